"""What owner and peer of the rdma fabric say to each other on their line, after the handshake.

    peer                                     owner
      Open     generation                  ->
                                           <-  Offer         its rails, the memory's address and keys
      Connect  a queue pair of the peer    ->
                                           <-  Connected     the owner's queue pair for it
      Disconnect  handle                   ->
                                           <-  Disconnected  nothing arrives through it any more
                                           <-  Ended         the owner destroyed queue pairs by itself, and why
      Heard                                ->

A message is a length (four bytes, little-endian) and a msgpack body. Requests carry a number that their answer repeats;
instead of any answer there may be `Failed`. No block bytes travel here.
"""

from __future__ import annotations

import struct

import msgspec

from pykvpool.errors import ProtocolError
from pykvpool.fabric.verbs import Gid, GidType
from pykvpool.model.base import Message, Tagged
from pykvpool.model.ids import Generation

LENGTH = struct.Struct("<I")
#: Largest body. The longest message is an `Offer`: a key of up to five bytes for each chunk on each rail.
MAX_BODY_BYTES = 1 << 20
#: Chunks of one mount on all rails together, so that an `Offer` keeps within that.
MAX_OFFERED_KEYS = 128 * 1024


class WireGid(Message, frozen=True):
    """One entry of the owner's GID table."""

    index: int
    address: bytes
    type: str

    @classmethod
    def of(cls, gid: Gid) -> WireGid:
        return cls(gid.index, gid.address, gid.type)

    def gid(self) -> Gid:
        """Raises `ProtocolError`."""
        try:
            return Gid(self.index, self.address, GidType(self.type))
        except ValueError as error:
            raise ProtocolError(f"the owner offers a GID that is none: {error}") from error


class WireRail(Message, frozen=True):
    """One rail of the owner: where its port is, and the keys of the mount there."""

    #: The owner's name for it, ``device:port``.
    name: str
    link_layer: str
    lid: int
    mtu_bytes: int
    #: Reads that a queue pair there answers at a time.
    read_depth: int
    #: In the owner's order of preference.
    gids: tuple[WireGid, ...]
    #: One per chunk of the mount, in order.
    rkeys: tuple[int, ...]


class Open(Tagged, frozen=True, tag="open"):
    """Peer: what do you have for this generation? -> `Offer`"""

    request: int
    generation: Generation


class Offer(Tagged, frozen=True, tag="offer"):
    """Owner: byte 0 of the mount is at `address`; each chunk but the last has `chunk_bytes` and a key of its own."""

    request: int
    size_bytes: int
    address: int
    chunk_bytes: int
    rails: tuple[WireRail, ...]


class Connect(Tagged, frozen=True, tag="connect"):
    """Peer: here is a queue pair of mine, make one for it on that rail of yours. -> `Connected`"""

    request: int
    generation: Generation
    #: Name of the owner's rail, and index of its GID that the owner must send from.
    rail: str
    gid_index: int
    #: The peer's own end.
    number: int
    psn: int
    gid: bytes
    lid: int
    mtu_bytes: int
    #: Reads under way at a time, either way.
    read_depth: int


class Connected(Tagged, frozen=True, tag="connected"):
    """Owner: it is ready. `handle` names it on this line; no handle is used twice."""

    request: int
    handle: int
    number: int
    psn: int


class Disconnect(Tagged, frozen=True, tag="disconnect"):
    """Peer: destroy that queue pair (one that is gone already is as good). -> `Disconnected`"""

    request: int
    handle: int


class Disconnected(Tagged, frozen=True, tag="disconnected"):
    """Owner: nothing that was sent to it can land any more. This is evidence, as a fence is."""

    request: int


class Failed(Tagged, frozen=True, tag="failed"):
    """Owner: that request cannot be met."""

    request: int
    code: int
    message: str


class Ended(Tagged, frozen=True, tag="ended"):
    """Owner: these queue pairs are destroyed, nothing arrives through them any more. `again`: only a rail was lost,
    what was under way may be sent by another; else it was meant (a fence, the end of the generation)."""

    number: int
    handles: tuple[int, ...]
    again: bool
    code: int
    message: str


class Heard(Tagged, frozen=True, tag="heard"):
    """Peer: I know of that `Ended`; what I begin from now on begins anew."""

    number: int


Request = Open | Connect | Disconnect
Answer = Offer | Connected | Disconnected | Failed
Said = Request | Answer | Ended | Heard
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Said)


def encode(message: Said) -> bytes:
    body = _encoder.encode(message)
    return LENGTH.pack(len(body)) + body


def body_bytes(head: bytes | bytearray) -> int:
    """Length of the body that follows. Raises `ProtocolError`."""
    (length,) = LENGTH.unpack(head)
    if not 0 < length <= MAX_BODY_BYTES:
        raise ProtocolError(f"a message of {length} bytes on an rdma line: allowed are 1 to {MAX_BODY_BYTES}")
    return int(length)


def decode(body: bytes | bytearray) -> Said:
    """Raises `ProtocolError`."""
    try:
        return _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"a malformed message on an rdma line: {error}") from error
