"""What the driver and its engine processes say to each other, over the engine's standard input and output.

Frames are msgpack after a length of four bytes. An engine whose input ends leaves; so no engine outlives its driver.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

import msgspec

from pykvpool.cli.demo.turns import Turn
from pykvpool.errors import ProtocolError
from pykvpool.model.base import Tagged

T = TypeVar("T")

#: Longest frame: a recorded prompt of a million blocks, with room.
MAX_FRAME_BYTES = 16 << 20


class Setup(Tagged, frozen=True):
    """First of all: what kind of engine this is, and where the pool is."""

    name: str
    seed: int
    block_tokens: int
    block_bytes: int
    #: Blocks that the engine's own memory holds.
    slots: int
    masters: tuple[str, ...]
    cluster: str
    #: Schemes to move bytes over, most wanted first; empty: whatever is cheapest.
    fabrics: tuple[str, ...]


class BeginPass(Tagged, frozen=True):
    """Forget every block; from now on work with the pool, or without."""

    pool: bool


class RunTurn(Tagged, frozen=True):
    number: int
    turn: Turn


class Ready(Tagged, frozen=True):
    """Answer to `Setup` and to `BeginPass`."""


class TurnResult(msgspec.Struct, tag=True, array_like=True):
    """What one turn came to, filled in as it runs. Tokens are those of the prompt; times are in seconds."""

    number: int
    input_tokens: int
    own_tokens: int = 0
    pool_tokens: int = 0
    lookup_s: float = 0.0
    loaded_blocks: int = 0
    loaded_bytes: int = 0
    load_s: float = 0.0
    saved_blocks: int = 0
    saved_bytes: int = 0
    save_s: float = 0.0
    #: Of `loaded_bytes`, those that were compared with what they must be.
    verified_bytes: int = 0
    #: Blocks that the pool delivered as good and that were not: must be none.
    wrong_blocks: int = 0
    #: Blocks that were matched and could not be loaded (kind of the error -> blocks); they were computed.
    not_loaded: dict[str, int] = msgspec.field(default_factory=dict)
    not_saved: dict[str, int] = msgspec.field(default_factory=dict)
    #: Fabric -> bytes loaded and saved over it.
    fabric_bytes: dict[str, int] = msgspec.field(default_factory=dict)


class Failed(Tagged, frozen=True):
    """The engine cannot go on. `code` is that of a `PoolError`."""

    code: int
    message: str


ToEngine = Setup | BeginPass | RunTurn
FromEngine = Ready | TurnResult | Failed


def encode(message: ToEngine | FromEngine) -> bytes:
    """One frame."""
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(4, "little") + body


async def receive(reader: asyncio.StreamReader, decoder: msgspec.msgpack.Decoder[T]) -> T | None:
    """The next message, None at the end of the stream. Raises `ProtocolError` for anything else."""
    try:
        length = int.from_bytes(await reader.readexactly(4), "little")
        if length > MAX_FRAME_BYTES:
            raise ProtocolError(f"a frame of {length} bytes: not one of ours")
        return decoder.decode(await reader.readexactly(length))
    except asyncio.IncompleteReadError as error:
        if not error.partial:
            return None
        raise ProtocolError("the stream ended within a message") from error
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"not a message of ours: {error}") from error
