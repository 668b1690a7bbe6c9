"""The state of a pool as tables (for `status` and `top`) and as plain data (for ``--json``). Knows no connection."""

from __future__ import annotations

import msgspec
from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from pykvpool.cli import format as say
from pykvpool.model.replies import SegmentState, SessionState, State

#: Counters that count bytes; shown as sizes.
BYTE_PREFIX = "bytes_"
#: Sessions shown; a large cluster has hundreds and a screen has not.
MAX_SESSIONS = 40


def as_data(state: State) -> dict[str, object]:
    """The state with its field names (on the wire it is an array)."""
    data = msgspec.structs.asdict(state)
    data["segments"] = [msgspec.structs.asdict(segment) for segment in state.segments]
    data["sessions"] = [msgspec.structs.asdict(session) for session in state.sessions]
    return data


def render(state: State, rates: dict[str, float] | None = None) -> Group:
    """Everything on one page. `rates`: counters per second, where they are known."""
    return Group(
        summary(state),
        nodes_table(state.segments),
        sessions_table(state.sessions),
        counters_table(state.counters, rates),
    )


def summary(state: State) -> Text:
    """One line; in red where the pool has no memory at all."""
    if not state.segments:
        return Text("no node lends memory: start one with pykvpool node", style="red")
    capacity = sum(segment.capacity_bytes for segment in state.segments)
    used = sum(segment.used_bytes for segment in state.segments)
    return Text(
        f"{say.counted(state.objects, 'object')}, {say.size(state.object_bytes)}; "
        f"{say.percent(used, capacity)} of {say.size(capacity)} used; {say.counted(state.leases, 'lease')}, "
        f"{say.counted(state.open_puts, 'unfinished put')}, {say.count(state.waiting)} waiting for room"
    )


def nodes_table(segments: tuple[SegmentState, ...]) -> Table:
    table = _table("Nodes", "node", "segment", "lends", "used", "free", "quarantined", "reached by")
    for segment in sorted(segments, key=lambda each: (each.node, each.segment)):
        node = Text(segment.node)
        if segment.suspect:
            node.append(" (connection lost)", style="yellow")
        quarantined = Text(say.size(segment.quarantined_bytes), style="yellow" if segment.quarantined_bytes else "")
        table.add_row(
            node,
            str(segment.segment),
            say.size(segment.capacity_bytes),
            f"{say.size(segment.used_bytes)} ({say.percent(segment.used_bytes, segment.capacity_bytes)})",
            say.size(segment.free_bytes),
            quarantined,
            ", ".join(endpoint.partition("://")[0] for endpoint in segment.endpoints),
        )
    return table


def sessions_table(sessions: tuple[SessionState, ...]) -> Table:
    table = _table("Sessions", "name", "role", "last heard", "leases", "puts", "waiting")
    for session in sorted(sessions, key=lambda each: (each.role, each.name))[:MAX_SESSIONS]:
        heard = Text(f"{say.duration(session.idle_ms / 1000)} ago")
        if not session.connected:
            heard = Text("connection lost", style="yellow")
        table.add_row(
            session.name, session.role, heard, say.count(session.leases), say.count(session.puts),
            say.count(session.waiting),
        )  # fmt: skip
    if len(sessions) > MAX_SESSIONS:
        table.caption = f"and {len(sessions) - MAX_SESSIONS} more (--json lists all)"
    return table


def counters_table(counters: dict[str, int], rates: dict[str, float] | None) -> Table:
    headings = ("counter", "since the master started", *(("per second",) if rates is not None else ()))
    table = _table("Counters", *headings)
    for name, value in sorted(counters.items()):
        shown = say.size if name.startswith(BYTE_PREFIX) else say.count
        row = [name, shown(value)]
        if rates is not None:
            row.append(shown(rates.get(name, 0.0)))
        table.add_row(*row)
    return table


def rates_between(before: State, after: State, seconds: float) -> dict[str, float]:
    """Growth of each counter per second; a counter that fell (the master was restarted) counts as still."""
    return {name: max(0.0, (value - before.counters.get(name, 0)) / seconds) for name, value in after.counters.items()}


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, title_style="bold")
    for position, heading in enumerate(headings):
        numeric = position > 0 and heading not in ("role", "reached by", "segment")
        table.add_column(heading, justify="right" if numeric else "left")
    return table
