"""A port in the engine's own process, when that process stands still."""

from __future__ import annotations

import threading

import pytest

from pykvpool.client import Client
from pykvpool.core.config import CoreConfig
from pykvpool.host import access
from pykvpool.host.embedded import EmbeddedPort
from pykvpool.host.port import Found, Question
from tests.host.stage import OTHER_MODEL, SCOPE, Engine, Memory, chain, until


def sessions(pool) -> set[int]:
    return pool.on_loop(lambda: set(pool.core._context.state.sessions.by_id))


@pytest.mark.slow
def test_a_session_that_was_given_up_while_the_engine_stood_still_costs_no_job(make_pool, monkeypatch):
    """An engine that loads its model may keep every thread from running for longer than a session lives."""
    monkeypatch.setattr(access, "LOOK_S", 1_000.0)  # the job comes before the port has looked by itself
    pool = make_pool().start(CoreConfig(session_ttl_ms=2_000, reconnect_grace_ms=0))
    port = EmbeddedPort(pool.access())
    engine, memory = Engine(port).connected(), Memory().fill()
    before, go_on = sessions(pool), threading.Event()
    port._thread.post(go_on.wait)
    until(lambda: sessions(pool) < before, "the session did not expire")
    go_on.set()
    until(lambda: not port.connected, "the loss was not noticed")
    assert engine.save(memory.group(chain(5), range(5))).stored == 5
    assert engine.load(memory.group(chain(5), range(5))).loaded
    port.close(0.0)


def test_a_reset_fences_the_saves_of_every_port_of_the_process(pool):
    scheduler, worker = [Engine(EmbeddedPort(pool.access(name))).connected() for name in ("scheduler", "worker")]
    memory = Memory(blocks=256).fill()
    jobs = [worker.begin_save(memory.group(chain(256, f"job{number}"), range(256))) for number in range(6)]
    other = worker.begin_save(memory.group(chain(20), range(20), OTHER_MODEL))
    assert scheduler.port.reset((SCOPE,), 10.0) is True
    assert worker.end_of(other).stored == 20, "a save of another model was fenced"
    assert worker.end_of(jobs[-1]).reasons == {"fenced": 256}
    assert (
        scheduler.lookup(*[Question((SCOPE,), chain(1, f"job{number}")) for number in range(6)]).found
        == (Found(0),) * 6
    )
    worker.port.close(0.0)
    scheduler.port.close(0.0)


@pytest.mark.parametrize("trouble", [OSError(24, "Too many files"), ValueError("a bug")], ids=["no files", "a bug"])
def test_a_try_to_connect_that_breaks_is_not_the_last_one(pool, monkeypatch, caplog, trouble):
    left, real = [trouble, trouble], Client.connect

    async def broken(*args, **options):
        if left:
            raise left.pop()
        return await real(*args, **options)

    monkeypatch.setattr(access.Client, "connect", broken)
    port = EmbeddedPort(pool.access())
    engine, memory = Engine(port).connected(), Memory().fill()
    assert engine.save(memory.group(chain(2), range(2))).stored == 2
    assert str(trouble.args[-1]) in caplog.text
    port.close(0.0)
