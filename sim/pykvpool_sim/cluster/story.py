"""The story of an object, when something went wrong with it: what was decided about it, what landed, who asked."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

from pykvpool.model.facts import PutOpened
from pykvpool.model.ids import PutId
from pykvpool_sim.checkers import Violation
from pykvpool_sim.clock import NS_PER_MS
from pykvpool_sim.cluster.cluster import Cluster
from pykvpool_sim.plan import FaultPlan

#: Lines of one story: the latest ones.
MAX_LINES = 40
Line = tuple[int, str]


def story_of(cluster: Cluster, violation: Violation) -> list[str]:
    """The last lines about the key and put of a violation, or about the cluster where it names none."""
    key = violation.key
    puts = set() if violation.put_id is None else {violation.put_id}
    puts |= {fact.put_id for _, fact in cluster.facts if isinstance(fact, PutOpened) and fact.hash == key}
    lines = heapq.merge(_facts(cluster, key, puts), _landings(cluster, puts), _calls(cluster, key))
    return _told(line for line in lines if line[0] <= violation.world_ns)[-MAX_LINES:]


def timeline(cluster: Cluster, plan: FaultPlan) -> list[str]:
    """All that happened: strikes, facts, landings, calls."""
    every = {landing.put_id for _, landing in cluster.landings.kept if landing.put_id is not None}
    return _told(
        heapq.merge(_strikes(plan), _facts(cluster, None, set()), _landings(cluster, every), _calls(cluster, None))
    )


def schedule(cluster: Cluster, plan: FaultPlan) -> list[str]:
    """What happened from outside until the first promise broke: strikes, and what clients asked and were told."""
    until_ns = cluster.verdicts.found[0].world_ns
    return _told(line for line in heapq.merge(_strikes(plan), _calls(cluster, None)) if line[0] <= until_ns)


def _strikes(plan: FaultPlan) -> list[Line]:
    begin = [(strike.at_ms * NS_PER_MS, f"strike   {strike.fault} at {strike.host}") for strike in plan.strikes]
    end = [(strike.ends_ms * NS_PER_MS, f"over     {strike.fault} at {strike.host}") for strike in plan.strikes]
    return sorted(begin + end)


def _told(lines: Iterable[Line]) -> list[str]:
    return [f"{time_ns / 1e9:>14.6f} s  {text}" for time_ns, text in lines]


def _facts(cluster: Cluster, key: bytes | None, puts: set[PutId]) -> Iterator[Line]:
    """All facts where the story is about nothing in particular; else those about it, its segments and sessions."""
    for time_ns, fact in cluster.facts:
        put = getattr(fact, "put_id", None)
        if put is None or put in puts or (key is None and not puts):
            yield time_ns, f"fact     {fact}"


def _landings(cluster: Cluster, puts: set[PutId]) -> Iterator[Line]:
    for time_ns, landing in cluster.landings.kept:
        if landing.put_id in puts:
            late = " late" if landing.late else ""
            yield (
                time_ns,
                f"landing  put {landing.put_id} by {landing.peer.name}: {landing.length} bytes at {landing.offset} of "
                f"{landing.generation:#x}{late}",
            )


def _calls(cluster: Cluster, key: bytes | None) -> Iterator[Line]:
    events = []
    for operation in cluster.world.history.operations:
        keys = operation.arguments.get("keys")
        if key is not None and not (isinstance(keys, list) and key.decode(errors="replace") in keys):
            continue
        events.append((operation.invoked_ns, f"call     {operation.process} {operation.name} {keys}"))
        if operation.returned_ns is not None:
            outcome = f"{operation.outcome.value} {operation.value}"
            events.append((operation.returned_ns, f"return   {operation.process} {operation.name} {outcome}"))
    yield from sorted(events)
