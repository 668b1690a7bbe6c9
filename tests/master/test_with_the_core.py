"""The shell and the real core together, over real sockets: sessions, repeats, expiry, restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from pykvpool.core.config import CoreConfig
from pykvpool.core.master import MasterCore
from pykvpool.errors import InvalidArgument, KeyConflict, LimitExceeded, SessionExpired
from pykvpool.model.commands import (
    MAX_BATCH_KEYS,
    ClusterState,
    Exists,
    GetReplicas,
    Intern,
    Mount,
    PutEnd,
    PutStart,
    PutWait,
)
from pykvpool.model.facts import SessionEnded
from pykvpool.model.ids import Generation, ScopeId
from pykvpool.model.keys import Scope
from pykvpool.model.replies import ErrorInfo, Flags, Located, Mounted, PutGrant, PutStarted, State
from pykvpool.protocol.messages import Parting
from pykvpool.transport.control import ControlSession
from tests.transport.stage import Stage

MIB = 1 << 20


class Pool(Stage):
    """A stage whose core is the real one."""

    def __init__(self, listen: str = "faulty://master", **config: Any) -> None:
        self.config = CoreConfig(**config)
        super().__init__(listen)

    def make_core(self, epoch: int) -> MasterCore:
        return MasterCore(self.config, epoch)

    async def node(self, name: str = "node-0") -> ControlSession:
        node = await self.session(name, "node")
        reply = await node.call(Mount(Generation(9), MIB, ("inproc://0/9",)))
        assert isinstance(reply, Mounted)
        return node

    async def put(self, session: ControlSession, scope: ScopeId, key: bytes, size_bytes: int = 64) -> None:
        reply = await session.call(PutStart(scope, (key,), (size_bytes,)))
        assert isinstance(reply, PutStarted)
        [grant] = reply.entries
        assert isinstance(grant, PutGrant)
        await session.call(PutEnd((grant.put_id,), (None,), (1,)))


async def scope_of(session: ControlSession) -> ScopeId:
    return (await session.call(Intern((Scope(),)))).scopes[0]


@pytest.fixture
async def pool() -> AsyncIterator[Pool]:
    async with Pool() as pool:
        yield pool
        pool.core.validate()


async def test_a_block_is_put_and_found_over_tcp() -> None:
    async with Pool("tcp://127.0.0.1:0") as pool:
        await pool.node()
        client = await pool.session()
        scope = await scope_of(client)
        await pool.put(client, scope, b"block")
        assert await client.call(Exists(scope, (b"block", b"none"))) == Flags(b"\x01\x00")
        located = await client.call(GetReplicas(scope, (b"block",)))
        assert isinstance(located, Located)
        assert located.segments[0].node == "node-0"
        pool.core.validate()


async def test_errors_of_the_core_arrive_as_their_kinds(pool: Pool) -> None:
    await pool.node()
    client = await pool.session()
    scope = await scope_of(client)
    await pool.put(client, scope, b"block", 64)
    conflict = (await client.call(PutStart(scope, (b"block",), (65,)))).entries[0]
    assert isinstance(conflict, ErrorInfo)
    assert isinstance(conflict.error(), KeyConflict)
    with pytest.raises(InvalidArgument):
        await client.call(Exists(ScopeId(999), (b"k",)))
    with pytest.raises(LimitExceeded):
        await client.call(Exists(scope, (b"k",) * (MAX_BATCH_KEYS + 1)))


async def test_a_put_that_is_repeated_after_a_cut_connection_gets_the_same_grant(pool: Pool) -> None:
    await pool.node()
    client = await pool.session()
    scope = await scope_of(client)
    pool.faults.near[-1].deaf = True
    before = len(pool.faults.near)
    put = asyncio.ensure_future(client.call(PutStart(scope, (b"block",), (64,))))
    observer = await pool.session("observer")
    while (await observer.call(ClusterState())).open_puts == 0:
        pass
    pool.faults.near[before - 1].abort()
    reply = await put
    assert isinstance(reply.entries[0], PutGrant)
    state = await observer.call(ClusterState())
    assert isinstance(state, State)
    assert state.open_puts == 1
    assert state.counters["requests_repeated_total"] == 1


async def test_one_long_wait_does_not_exhaust_the_replies_that_the_core_keeps(pool: Pool) -> None:
    await pool.node()
    writer, waiter = await pool.session("writer"), await pool.session("waiter")
    scope = await scope_of(writer)
    grant = (await writer.call(PutStart(scope, (b"block",), (64,)))).entries[0]
    ticket = (await waiter.call(PutStart(scope, (b"block",), (64,)))).entries[0].ticket
    waiting = asyncio.ensure_future(waiter.call(PutWait((ticket,), 30_000)))
    for _ in range(3 * pool.config.max_requests_per_session):
        await waiter.call(Exists(scope, (b"k",)))
    await writer.call(PutEnd((grant.put_id,), (None,), (1,)))
    [entry] = (await waiting).entries
    assert entry.put_id == grant.put_id


async def test_an_idle_session_outlives_its_time_by_heartbeats_alone() -> None:
    async with Pool(session_ttl_ms=400) as pool:
        idle = await pool.session("idle")
        beats: asyncio.Queue[bytes] = asyncio.Queue()
        pool.faults.on_near_send = lambda frame: beats.put_nowait(frame) if b"heartbeat" in frame else None
        for _ in range(5):  # three make up its time
            await beats.get()
        state = await idle.call(ClusterState())
        assert state.counters["sessions_opened_total"] == 1
        assert state.counters["sessions_expired_total"] == 0
        pool.core.validate()


async def test_a_node_that_is_cut_off_too_long_expires_and_lends_again_after_renewal() -> None:
    async with Pool(reconnect_grace_ms=20) as pool:
        lost = asyncio.get_running_loop().create_future()
        node = await pool.session("node-0", "node", on_session_lost=lost.set_result)
        await node.call(Mount(Generation(9), MIB, ("inproc://0/9",)))
        ended = asyncio.get_running_loop().create_future()
        pool.server.subscribe(
            lambda facts: [ended.set_result(fact) for fact in facts if isinstance(fact, SessionEnded)]
        )
        node._backoff._ceiling_s = 0.2  # as after many attempts: longer than the grace
        node._backoff.reset = lambda: None
        pool.faults.cut()
        assert (await ended).reason == "expired"
        await lost
        assert node.lost is not None
        assert node.lost.reason is Parting.EXPIRED
        await node.renew_session()
        assert isinstance(await node.call(Mount(Generation(10), MIB, ("inproc://0/10",))), Mounted)
        pool.core.validate()


async def test_a_superseded_process_is_told_so_and_cannot_come_back(pool: Pool) -> None:
    lost = asyncio.get_running_loop().create_future()
    old = await pool.session("twin", on_session_lost=lost.set_result)
    new = await pool.session("twin")
    await lost
    assert old.lost is not None
    assert old.lost.final
    with pytest.raises(SessionExpired):
        await old.renew_session()
    assert isinstance(await new.call(ClusterState()), State)


async def test_a_process_superseded_while_cut_off_does_not_push_its_successor_out(pool: Pool) -> None:
    lost = asyncio.get_running_loop().create_future()
    old = await pool.session("twin", on_session_lost=lost.set_result)
    pool.faults.cut()
    new = await pool.session("twin")
    await lost
    assert old.lost is not None
    assert old.lost.final
    assert isinstance(await new.call(ClusterState()), State)
    assert new.lost is None


async def test_after_a_restart_the_old_session_is_told_and_no_ghost_of_it_is_opened(pool: Pool) -> None:
    lost = asyncio.get_running_loop().create_future()
    client = await pool.session(on_session_lost=lost.set_result)
    await pool.restart()
    assert "has restarted" in await lost
    observer = await pool.session("observer")
    assert [session.name for session in (await observer.call(ClusterState())).sessions] == ["observer"]
    await client.renew_session()
    assert isinstance(await client.call(ClusterState()), State)


async def test_the_master_warns_of_engines_whose_block_hashes_can_never_agree(
    pool: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    family = "0123456789abcdef" * 2
    for name, first in (("engine-a", "a" * 16), ("engine-b", "a" * 16), ("engine-c", "b" * 16)):
        engine = await pool.session(name)
        await engine.call(Intern((Scope("default", f"{family}.{first}", "tp0", 0),)))
    [warning] = [record.getMessage() for record in caplog.records if family in record.getMessage()]
    assert "PYTHONHASHSEED" in warning
