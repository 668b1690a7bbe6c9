"""What an engine's process and the host's node say to each other.

First the handshake of the data plane over a packet socket (cluster, token, name). Then the node says of which pool it
is (`Offer`), and if that is the wanted one the engine sends one `Attach` with two descriptors beside it: the ring's
memory and one end of a stream socket. All that follows is frames on that stream, a message each, the node's first one a
`State`. Block bytes travel in the ring; a message says where in it.

    save:  Save ──► Fill* ◄──         a part of a job may be put into the ring there
                    Filled ──►        it is there; the node puts it into the pool and forgets the place
                    Saved ◄──
    load:  Load ──► Take* ◄──         a part of a job lies there
                    Taken ──►         it is copied; the node may use the place again
                    Loaded ◄──        comes behind the last `Take`
"""

from __future__ import annotations

import msgspec

from pykvpool.errors import ProtocolError
from pykvpool.host.port import Answer, Lapsed, LoadDone, LoadJob, Lookup, Removed, SaveDone, SaveJob
from pykvpool.model.base import Tagged
from pykvpool.model.keys import Scope

#: Largest ring that a node maps for one engine's process (bytes).
MAX_RING_BYTES = 1 << 36
#: Descriptors beside `Attach`: the ring, the stream.
ATTACH_DESCRIPTORS = 2


class Offer(Tagged, frozen=True, tag="offer"):
    """Node, as a packet after the handshake."""

    #: Name of the node, and addresses of its pool's masters.
    node: str
    masters: tuple[str, ...]


class Attach(Tagged, frozen=True, tag="attach"):
    """Engine, as a packet after `Offer`."""

    ring_bytes: int
    #: Copies of each block that this engine stores.
    replicas: int = 1


# -- the engine's process says -----------------------------------------------------------------------------------


class Save(Tagged, frozen=True, tag="save"):
    """Each group has one run as long as a block, and no block ids: where they lie is the engine's business."""

    job: SaveJob


class Load(Tagged, frozen=True, tag="load"):
    """As `Save`."""

    job: LoadJob


class Drop(Tagged, frozen=True, tag="drop"):
    """The engine gave this job up: end it, nobody waits for its report."""

    job_id: int


class Filled(Tagged, frozen=True, tag="filled"):
    """Answer to `Fill`. Not `done`: the job is over, the place holds nothing."""

    ticket: int
    done: bool


class Taken(Tagged, frozen=True, tag="taken"):
    """Answer to `Take`."""

    ticket: int


class Ask(Tagged, frozen=True, tag="ask"):
    lookup: Lookup


class Release(Tagged, frozen=True, tag="release"):
    lookup_id: int


class Watch(Tagged, frozen=True, tag="watch"):
    """Tell of blocks that leave these scopes."""

    scopes: tuple[Scope, ...]


class Fence(Tagged, frozen=True, tag="fence"):
    """End every save of this attachment."""


class Reset(Tagged, frozen=True, tag="reset"):
    """End every save of this attachment, and all saves of others that concern `scopes`; then remove what they hold.
    -> `ResetDone`"""

    number: int
    scopes: tuple[Scope, ...]
    timeout_ms: int


class Ping(Tagged, frozen=True, tag="ping"):
    """-> `State`"""


# -- the node says -----------------------------------------------------------------------------------------------


class State(Tagged, frozen=True, tag="state"):
    """I live; is the pool reachable? Said whenever that changes, too."""

    connected: bool


class Fill(Tagged, frozen=True, tag="fill"):
    """Put these blocks of a save into the ring, one after another from `offset` on. -> `Filled`"""

    ticket: int
    job_id: int
    #: Which group of the job, and positions in it.
    group: int
    positions: tuple[int, ...]
    offset: int


class Take(Tagged, frozen=True, tag="take"):
    """These blocks of a load lie in the ring. -> `Taken`"""

    ticket: int
    job_id: int
    group: int
    positions: tuple[int, ...]
    offset: int


class Saved(Tagged, frozen=True, tag="saved"):
    done: SaveDone


class Loaded(Tagged, frozen=True, tag="loaded"):
    done: LoadDone


class Answered(Tagged, frozen=True, tag="answered"):
    answer: Answer


class HoldLapsed(Tagged, frozen=True, tag="hold_lapsed"):
    lapsed: Lapsed


class BlocksRemoved(Tagged, frozen=True, tag="blocks_removed"):
    removed: Removed


class ResetDone(Tagged, frozen=True, tag="reset_done"):
    number: int
    #: Why it is not sure that nothing is left; empty: it is.
    error: str


FromEngine = Save | Load | Drop | Filled | Taken | Ask | Release | Watch | Fence | Reset | Ping
FromNode = (
    State | Fill | Take | Saved | Loaded | Answered | HoldLapsed | BlocksRemoved | ResetDone
)  # fmt: skip

_encoder = msgspec.msgpack.Encoder()
_offer_decoder = msgspec.msgpack.Decoder(Offer)
_attach_decoder = msgspec.msgpack.Decoder(Attach)
_engine_decoder = msgspec.msgpack.Decoder(FromEngine)
_node_decoder = msgspec.msgpack.Decoder(FromNode)


def encode(message: Offer | Attach | FromEngine | FromNode) -> bytes:
    return _encoder.encode(message)


def decode_offer(packet: bytes) -> Offer:
    """Raises `ProtocolError`."""
    try:
        return _offer_decoder.decode(packet)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"a malformed offer of a node: {error}") from error


def decode_attach(packet: bytes) -> Attach:
    """Raises `ProtocolError`."""
    try:
        return _attach_decoder.decode(packet)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"a malformed attach message: {error}") from error


def decode_from_engine(frame: bytes) -> FromEngine:
    """Raises `ProtocolError`."""
    try:
        return _engine_decoder.decode(frame)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"a malformed message of an engine: {error}") from error


def decode_from_node(frame: bytes) -> FromNode:
    """Raises `ProtocolError`."""
    try:
        return _node_decoder.decode(frame)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"a malformed message of a node: {error}") from error
