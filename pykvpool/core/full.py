"""Why the pool is full, in numbers: what a `PoolFull` says.

Put together only when somebody has to be told, once per step however many are told in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pykvpool.errors import PoolFull

if TYPE_CHECKING:
    from pykvpool.core.context import Context

#: One session is named when its leases alone hold this part of the bytes in use, or more.
CULPRIT_RATIO = 0.8
#: Rows under leases that are counted one by one for that: some hundred microseconds.
CULPRIT_ROWS = 1_000


@dataclass(frozen=True, slots=True)
class Occupancy:
    """What cannot go now: objects (or extents) and bytes by reason. A block may count under several."""

    counts: dict[str, int]
    size_bytes: dict[str, int]
    capacity_bytes: int
    free_bytes: int
    #: The session whose leases hold (nearly) everything, with its name and bytes; empty: none does.
    culprit: str
    culprit_bytes: int


def measure(context: Context) -> Occupancy:
    """From what is counted anyway: no walk over objects."""
    state, catalog, leases = context.state, context.state.catalog, context.leases
    segments = state.segments.by_id.values()
    used = sum(segment.space.capacity - segment.space.free_bytes for segment in segments)
    culprit, culprit_bytes = _culprit(context, used)
    return Occupancy(
        {
            "leased": leases.covered - state.lingering,
            "hard_pinned": len(state.hard_pinned),
            "unfinished": len(state.puts.by_id),
            "quarantined": state.puts.quarantined_extents,
            "not_tail": catalog.not_tails,
            "lingering": state.lingering,
        },
        {
            "leased": leases.covered_bytes - state.lingering_object_bytes,
            "hard_pinned": state.hard_pinned_bytes,
            "unfinished": state.puts.open_bytes,
            "quarantined": sum(segment.quarantined_bytes for segment in segments),
            "not_tail": catalog.not_tails_bytes,
            "lingering": state.lingering_bytes,
        },
        sum(segment.space.capacity for segment in segments),
        sum(segment.space.free_bytes for segment in segments),
        culprit,
        culprit_bytes,
    )


def _culprit(context: Context, used_bytes: int) -> tuple[str, int]:
    """The session that holds (nearly) everything. Counted exactly unless it holds very many objects: then an object
    under several of its leases counts several times, up to what is leased at all."""
    holdings = context.leases.by_session
    if not holdings or not used_bytes:
        return "", 0
    session_id = max(holdings, key=lambda ident: holdings[ident].size_bytes)
    session = context.state.sessions.identity(session_id)
    if session is None or holdings[session_id].size_bytes < used_bytes * CULPRIT_RATIO:
        return "", 0
    rows = context.leases.rows_of_session(session_id, CULPRIT_ROWS)
    if rows is None:
        held = min(holdings[session_id].size_bytes, context.leases.covered_bytes)
    else:
        held = sum(context.state.replica_bytes(row) for row in rows)
    return (session.name, held) if held >= used_bytes * CULPRIT_RATIO else ("", 0)


def explain_full(context: Context, size_bytes: int, replicas: int) -> PoolFull:
    """The error for a put of `size_bytes` that requires `replicas` copies; also counts it."""
    context.counters["pool_full_total"] += 1
    occupancy = context.occupancy()
    reasons = ", ".join(
        f"{occupancy.counts[name]} {name.replace('_', ' ')} ({occupancy.size_bytes[name]} bytes)"
        for name in occupancy.counts
        if occupancy.counts[name]
    )
    message = (
        f"no room for {size_bytes} bytes{f' on {replicas} nodes' if replicas > 1 else ''}: "
        f"{occupancy.free_bytes} of {occupancy.capacity_bytes} bytes are free, and of the rest what could go is not "
        f"enough in one piece; staying: {reasons or 'nothing'}"
    )
    if occupancy.culprit:
        message += (
            f". Session {occupancy.culprit!r} holds leases on {occupancy.culprit_bytes} bytes, nearly everything: "
            "it has to release them"
        )
    fields: dict[str, int | str] = {f"{name}_objects": count for name, count in occupancy.counts.items()}
    fields |= {f"{name}_bytes": size for name, size in occupancy.size_bytes.items()}
    if occupancy.culprit:
        fields |= {"session": occupancy.culprit, "session_leased_bytes": occupancy.culprit_bytes}
    return PoolFull(
        message,
        size_bytes=size_bytes,
        capacity_bytes=occupancy.capacity_bytes,
        free_bytes=occupancy.free_bytes,
        **fields,
    )
