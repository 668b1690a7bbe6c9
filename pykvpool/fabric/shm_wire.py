"""What owner and peer of the shm fabric say to each other after the handshake: who maps what, and when that ends.

One message is one packet of a UNIX ``SOCK_SEQPACKET`` socket, so a message is whole or not there. No block bytes
travel here; file descriptors do, beside `Mapped`.
"""

from __future__ import annotations

import struct

import msgspec

from pykvpool.errors import ProtocolError
from pykvpool.model.base import Tagged
from pykvpool.model.ids import Generation

#: Largest packet; every message is far smaller, and a handshake message fits too.
MAX_PACKET_BYTES = 4096
#: The control page that goes with each mount: its first word is the generation, 0 once it is withdrawn.
CONTROL_BYTES = 4096
CONTROL_WORD = struct.Struct("@Q")


class MapRequest(Tagged, frozen=True, tag="map"):
    """Peer: give me this generation, writable if I may write. -> `Mapped` or `MapRefused`"""

    generation: Generation


class Mapped(Tagged, frozen=True, tag="mapped"):
    """Owner: here it is; beside this message come two descriptors, memory and control page."""

    generation: Generation
    size_bytes: int


class MapRefused(Tagged, frozen=True, tag="map_refused"):
    generation: Generation
    code: int
    message: str


class Unmap(Tagged, frozen=True, tag="unmap"):
    """Owner: end your copies, drop your map, then say `Unmapped`. `gone`: the generation is over for good."""

    generation: Generation
    gone: bool


class Unmapped(Tagged, frozen=True, tag="unmapped"):
    """Peer: nothing that I began can land in this generation any more."""

    generation: Generation


class Goodbye(Tagged, frozen=True, tag="goodbye"):
    """Peer: all is unmapped and this session of mine ends."""


Message = MapRequest | Mapped | MapRefused | Unmap | Unmapped | Goodbye
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    return _encoder.encode(message)


def decode(packet: bytes) -> Message:
    """Raises `ProtocolError`."""
    try:
        return _decoder.decode(packet)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"a malformed shm message: {error}") from error
