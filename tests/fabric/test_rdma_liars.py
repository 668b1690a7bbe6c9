"""An owner that lies on its line, or a peer that does: what cannot be is refused in one line, and nothing hangs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import pytest

from pykvpool.errors import PoolError, ProtocolError
from pykvpool.fabric.rdma import wire
from pykvpool.fabric.rdma.owner_session import OwnerSession
from tests.fabric.rdma_stage import Stage, stage

Lie = Callable[[wire.Said], wire.Said]


def lying(monkeypatch: pytest.MonkeyPatch, kind: type[wire.Said], **changes: object) -> None:
    """Owners answer with `changes` in every answer of that kind; the changes of a rail begin with ``rail_``."""
    answer = OwnerSession._answer

    def lie(self: OwnerSession, request: wire.Request) -> wire.Answer:
        said = answer(self, request)
        if not isinstance(said, kind):
            return said
        of_rails = {name.removeprefix("rail_"): value for name, value in changes.items() if name.startswith("rail_")}
        rest = {name: value for name, value in changes.items() if not name.startswith("rail_")}
        if of_rails:
            rest["rails"] = tuple(msgspec.structs.replace(rail, **of_rails) for rail in said.rails)
        return msgspec.structs.replace(said, **rest)

    monkeypatch.setattr(OwnerSession, "_answer", lie)


async def refused(here: Stage) -> PoolError:
    """The error of a write that cannot be; and that of the next, which must not hang either."""
    for _ in range(2):
        async with asyncio.timeout(10):
            outcome = await here.write(0, b"to a liar")
        assert outcome.error is not None
        assert outcome.settled, "nothing was sent"
    assert not any(here.memory.view[:9])
    return outcome.error


GID = wire.WireGid(3, bytes(10) + b"\xff\xff" + bytes([192, 0, 2, 2]), "roce-v2")
OFFERS: tuple[dict[str, object], ...] = (
    {"address": -1},
    {"address": (1 << 64) - 4096},
    {"size_bytes": -5},
    {"size_bytes": 1 << 63},
    {"chunk_bytes": 0},
    {"chunk_bytes": 1},
    {"rail_rkeys": ()},
    {"rail_rkeys": (1 << 32,)},
    {"rail_rkeys": (-1,)},
    {"rail_lid": 1 << 16},
    {"rail_lid": -1},
    {"rail_mtu_bytes": 1500},
    {"rail_read_depth": 0},
    {"rail_name": "one for both"},
    {"rail_gids": (msgspec.structs.replace(GID, address=b"short"),)},
    {"rail_gids": (msgspec.structs.replace(GID, type="roce-v9"),)},
    {"rail_gids": (msgspec.structs.replace(GID, index=-1),)},
)
CONNECTED: tuple[dict[str, object], ...] = (
    {"number": 1 << 24},
    {"number": -1},
    {"psn": 1 << 24},
    {"psn": -1},
    {"handle": -1},
)


@pytest.mark.parametrize("lie", OFFERS, ids=str)
async def test_p12_an_offer_that_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch, lie: dict[str, object]) -> None:
    async with stage() as here:
        lying(monkeypatch, wire.Offer, **lie)
        assert isinstance(await refused(here), ProtocolError)


@pytest.mark.parametrize("lie", CONNECTED, ids=str)
async def test_p12_an_owners_queue_pair_that_cannot_be_is_refused(
    monkeypatch: pytest.MonkeyPatch, lie: dict[str, object]
) -> None:
    async with stage() as here:
        lying(monkeypatch, wire.Connected, **lie)
        assert isinstance(await refused(here), ProtocolError)


async def test_an_end_of_connecting_that_nobody_foresaw_is_a_failure_and_no_silence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with stage() as here:

        def confused(*_: object) -> None:
            raise ValueError("two and two are five")

        with monkeypatch.context() as patch:
            patch.setattr("pykvpool.fabric.rdma.link.plan", confused)
            error = await refused(here)
        assert "connecting failed: ValueError" in error.message
        assert (await here.write(0, b"an honest one")).error is None
