"""What a process with a session shows, and how long a master's steps took."""

import pytest

from pykvpool.core.config import CoreConfig
from pykvpool.core.counters import MEANINGS
from pykvpool.core.master import MasterCore
from pykvpool.errors import ProtocolError, Unavailable
from pykvpool.metrics import Metrics, exposition
from pykvpool.model.commands import ClusterState, Command
from pykvpool.model.events import Hello, Request, Tick
from pykvpool.model.ids import RequestId
from pykvpool.model.replies import Beat, Reply, State
from pykvpool.observe.source import SessionSource
from pykvpool.observe.timed import TimedCore


class FakeSession:
    """A session whose master answers what a test says."""

    def __init__(self, reply: Reply) -> None:
        self.connected = True
        self.reply = reply
        self.asked: list[Command] = []

    async def call(self, command: Command, timeout_s: float) -> Reply:
        assert timeout_s > 0
        self.asked.append(command)
        return self.reply


def a_masters_state(core: MasterCore | TimedCore) -> State:
    """Asked as a client asks."""
    welcome = core.step(Hello(1, "e", "client", 7), 1).replies[0][2]
    request = Request(welcome.session, RequestId(1), RequestId(0), ClusterState())
    state = core.step(request, 2).replies[0][2]
    assert isinstance(state, State)
    return state


async def test_the_state_is_asked_of_the_master() -> None:
    state = a_masters_state(MasterCore(CoreConfig(), 1))
    session = FakeSession(state)
    source = SessionSource("node", Metrics("node", "0.0"), lambda: session)
    assert await source.state() is state
    assert session.asked == [ClusterState()]
    session.reply = Beat(1)
    with pytest.raises(ProtocolError, match="with Beat"):
        await source.state()


async def test_a_process_is_healthy_while_it_has_its_master() -> None:
    sessions: list[FakeSession] = []
    source = SessionSource("node", Metrics("node", "0.0"), lambda: sessions[0] if sessions else None)
    assert source.health().reasons == ("there is no session with the master",)
    with pytest.raises(Unavailable, match="no session"):
        await source.state()
    sessions.append(FakeSession(Beat(1)))
    assert source.health().healthy
    sessions[0].connected = False
    assert source.health().reasons == ("the connection to the master is gone",)


def test_every_counter_of_a_real_master_is_exported_with_its_meaning() -> None:
    text = exposition(
        Metrics("master", "0.0").registry, a_masters_state(MasterCore(CoreConfig(), 1)), MEANINGS
    ).decode()
    for name, meaning in MEANINGS.items():
        assert f"# HELP pykvpool_master_{name} {meaning}\n" in text
    assert "pykvpool_master_sessions_opened_total 1.0" in text
    assert "unknown to this version" not in text


def test_steps_are_timed_by_command_and_decide_as_ever() -> None:
    ticks = iter(range(100))
    metrics = Metrics("master", "0.0")
    core = TimedCore(MasterCore(CoreConfig(), 5), metrics, lambda: next(ticks) / 1_000)
    assert core.epoch == 5
    assert a_masters_state(core) == a_masters_state(MasterCore(CoreConfig(), 5))
    assert core.next_deadline() is not None
    core.step(Tick(), 3)
    text = exposition(metrics.registry).decode()
    for event in ("Hello", "ClusterState", "Tick"):
        assert f'pykvpool_master_step_seconds_count{{event="{event}"}} 1.0' in text
        assert f'pykvpool_master_step_seconds_bucket{{event="{event}",le="0.001"}} 1.0' in text
