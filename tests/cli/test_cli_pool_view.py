"""The state of a pool as tables and data."""

from __future__ import annotations

import msgspec
from rich.console import Console

from pykvpool.cli import pool_view
from pykvpool.model.replies import SegmentState, SessionState, State

STATE = State(
    segments=(
        SegmentState(1, "node-a", 1 << 30, 1 << 29, 1 << 28, 1 << 20, ("tcp://10.0.0.1:5", "shm://x/y"), False),
        SegmentState(2, "node-b", 1 << 30, 1 << 30, 0, 0, ("tcp://10.0.0.2:5",), True),
    ),
    sessions=(
        SessionState(1, "node-a", "node", True, 120, 0, 0, 0),
        SessionState(9, "engine-0", "client", False, 2_000, 3, 2, 1),
    ),
    objects=1_234,
    object_bytes=1 << 28,
    leases=3,
    open_puts=2,
    waiting=1,
    scopes=1,
    counters={"puts_committed_total": 5_000, "bytes_evicted_total": 1 << 21},
)


def rendered(state: State, rates: dict[str, float] | None = None) -> str:
    console = Console(width=200, record=True, file=None, force_terminal=False)
    with console.capture() as capture:
        console.print(pool_view.render(state, rates))
    return capture.get()


def test_a_page_shows_nodes_sessions_and_counters() -> None:
    text = rendered(STATE)
    for part in (
        "1,234 objects, 256 MiB; 12.5 % of 2 GiB used; 3 leases, 2 unfinished puts, 1 waiting for room",
        "node-b (connection lost)",
        "1 MiB",
        "tcp, shm",
        "engine-0",
        "connection lost",
        "puts_committed_total",
        "5,000",
        "2 MiB",
    ):
        assert part in text, part
    assert "per second" not in text


def test_a_pool_without_memory_says_what_to_do() -> None:
    empty = msgspec.structs.replace(STATE, segments=())
    assert "no node lends memory: start one with pykvpool node" in rendered(empty)


def test_rates_are_growth_and_a_restarted_master_is_no_negative_rate() -> None:
    later = msgspec.structs.replace(STATE, counters={"puts_committed_total": 5_600, "new_total": 4})
    rates = pool_view.rates_between(STATE, later, 2.0)
    assert rates == {"puts_committed_total": 300.0, "new_total": 2.0}
    assert pool_view.rates_between(later, STATE, 2.0)["puts_committed_total"] == 0.0
    assert "300" in rendered(later, rates)


def test_hundreds_of_sessions_are_cut_and_counted() -> None:
    many = tuple(SessionState(n, f"c-{n:03}", "client", True, 0, 0, 0, 0) for n in range(100))
    text = rendered(msgspec.structs.replace(STATE, sessions=many))
    assert "and 60 more" in text
    assert "c-039" in text
    assert "c-040" not in text


def test_data_has_field_names() -> None:
    data = msgspec.json.decode(msgspec.json.encode(pool_view.as_data(STATE)))
    assert data["objects"] == 1_234
    assert data["segments"][0]["node"] == "node-a"
    assert data["sessions"][1]["name"] == "engine-0"
    assert data["counters"] == STATE.counters
