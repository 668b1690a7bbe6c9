"""Every invariant of the core, checked across the whole state: for tests, after every step.

Walks everything and trusts no counter, index or link that it can recompute.
"""

from __future__ import annotations

from collections import Counter

from pykvpool.core.catalog import GHOST, LINGERING, NONE, RESIDENT
from pykvpool.core.context import Context
from pykvpool.core.eviction.evictor import ABSENT, PARKED, TAKEN
from pykvpool.core.state import DurableState
from pykvpool.errors import invariant
from pykvpool.model.objects import Extent, Pin


def validate(context: Context) -> None:
    """Raise `InternalError` at the first thing that does not fit."""
    check_space(context.state)
    check_rows(context.state)
    check_chains(context.state)
    check_puts(context)
    check_leases(context)
    check_evictor(context.state)
    check_watchers(context)
    searching = bool(context.state.evictor._taken_from) or context.state.evictor.sealed
    invariant(context.waiting.is_placing() or not searching, "a search ends with the placing that it is for")


def check_watchers(context: Context) -> None:
    watching = context.watching
    pairs = {(scope, session) for scope, sessions in watching.by_scope.items() for session in sessions}
    same = {(scope, session) for session, scopes in watching.by_session.items() for scope in scopes}
    invariant(pairs == same, "watchers are known by scope as by session")
    invariant(all(context.is_live(session) for session in watching.by_session), "watchers are live sessions")


def check_space(state: DurableState) -> None:
    """P2, P3: in every segment, what is free, used and quarantined tiles the capacity without gap or overlap."""
    taken: dict[int, list[Extent]] = {segment: [] for segment in state.segments.by_id}
    catalog = state.catalog
    for row in range(len(catalog)):
        if catalog.state[row] in (RESIDENT, LINGERING):
            for extent in catalog.extents(row):
                invariant(extent.segment in taken, "replicas lie in mounted segments")
                taken[extent.segment].append(extent)
    for put in state.puts.by_id.values():
        for extent in put.extents:
            if extent.segment in taken:
                taken[extent.segment].append(extent)
    quarantined = Counter[int]()
    for record in state.puts.quarantined.values():
        for extent in record.held.values():
            taken[extent.segment].append(extent)
            quarantined[extent.segment] += state.segments.by_id[extent.segment].space.rounded(extent.length)
    for segment in state.segments.by_id.values():
        space = segment.space
        runs = space.runs() + [(extent.offset, space.rounded(extent.length)) for extent in taken[segment.id]]
        end = 0
        for offset, length in sorted(runs):
            invariant(offset == end, f"segment {segment.id}: gap or overlap at {end}, next extent at {offset}")
            end = offset + length
        invariant(end == space.capacity, f"segment {segment.id}: accounted to {end} of {space.capacity}")
        invariant(space.free_bytes == sum(length for _, length in space.runs()), "free bytes are counted right")
        invariant(segment.quarantined_bytes == quarantined[segment.id], "quarantined bytes are counted right")
        invariant((segment.id in state.segments.going) == bool(segment.going), "going segments are known as such")


def check_rows(state: DurableState) -> None:
    """Index, ghosts, put_ids, replica lists and totals agree with the rows."""
    catalog = state.catalog
    resident = lingering = resident_bytes = lingering_bytes = lingering_object_bytes = 0
    for row in range(len(catalog)):
        kind, scope = catalog.state[row], catalog.scope[row]
        if kind == RESIDENT:
            resident += 1
            resident_bytes += catalog.size[row]
            invariant(catalog.index[scope].get(catalog.hash_of(row)) == row, "a resident row is in the index")
            invariant(catalog.replica[row] != NONE, "a resident object has a replica")
        elif kind == LINGERING:
            lingering += 1
            lingering_bytes += state.replica_bytes(row)
            lingering_object_bytes += catalog.size[row]
            invariant(catalog.leases[row] > 0, "an object lingers for a lease")
            invariant(not catalog.children[row] and catalog.parent[row] == NONE, "a lingering row is in no chain")
        elif kind == GHOST:
            invariant(catalog.ghosts[scope].get(catalog.hash_of(row)) == row, "a ghost is known as one")
            invariant(catalog.hash_of(row) not in catalog.index[scope], "a ghost stands for what is missing")
            invariant(catalog.children[row] > 0, "a ghost has children")
            invariant(catalog.replica[row] == NONE and catalog.parent[row] == NONE, "a ghost is no object")
        if kind in (RESIDENT, LINGERING):
            invariant(catalog.by_put.get(catalog.put_id[row]) == row, "a put_id leads to its row")
            extents = catalog.extents(row)
            nodes = {state.segments.by_id[extent.segment].node for extent in extents}
            invariant(len(nodes) == len(extents), "replicas lie on distinct nodes")
            for replica in catalog.replicas.of_object(catalog.replica[row]):
                invariant(catalog.replicas.object_row[replica] == row, "a replica knows its object")
    invariant(catalog.count == resident == sum(map(len, catalog.index)), "objects are counted right")
    invariant(catalog.resident_bytes == resident_bytes, "object bytes are counted right")
    invariant((state.lingering, state.lingering_bytes) == (lingering, lingering_bytes), "lingering ones too")
    invariant(state.lingering_object_bytes == lingering_object_bytes, "and with one copy each")
    by_segment = Counter(replica for s in catalog.replicas.heads for replica in catalog.replicas.in_segment(s))
    of_objects = Counter(
        replica
        for row in range(len(catalog))
        if catalog.state[row] in (RESIDENT, LINGERING)
        for replica in catalog.replicas.of_object(catalog.replica[row])
    )
    invariant(by_segment == of_objects, "the replica lists of segments and objects hold the same rows")
    pinned = {row for row in catalog.resident_rows() if catalog.pin[row] == Pin.HARD}
    invariant(set(state.hard_pinned) == pinned, "hard pinned rows are known")
    invariant(state.hard_pinned_bytes == sum(catalog.size[row] for row in pinned), "and their bytes")


def check_chains(state: DurableState) -> None:
    """Lists of children are whole, and counted right."""
    catalog = state.catalog
    linked = Counter[int]()
    not_tails = not_tails_bytes = 0
    for row in range(len(catalog)):
        if catalog.state[row] not in (RESIDENT, GHOST):
            continue
        before, child, count = NONE, catalog.first_child[row], 0
        while child != NONE:
            invariant(catalog.parent[child] == row, "a child knows its parent")
            invariant(catalog.state[child] == RESIDENT, "children are resident")
            invariant(catalog.scope[child] == catalog.scope[row], "chains stay in their scope")
            invariant(catalog.prev_sibling[child] == before, "siblings are linked both ways")
            before, child, count = child, catalog.next_sibling[child], count + 1
            linked[before] += 1
        invariant(catalog.children[row] == count, "children are counted right")
        if count and catalog.state[row] == RESIDENT:
            not_tails += 1
            not_tails_bytes += catalog.size[row]
    with_parent = {row for row in catalog.resident_rows() if catalog.parent[row] != NONE}
    invariant(set(linked) == with_parent and set(linked.values()) <= {1}, "every child is in one list")
    invariant((catalog.not_tails, catalog.not_tails_bytes) == (not_tails, not_tails_bytes), "tails are counted right")


def check_puts(context: Context) -> None:
    """One open put per key, of a session that is known; quarantine and its places agree."""
    state, puts = context.state, context.state.puts
    invariant(
        {put.key: put.put_id for put in puts.by_id.values()} == {k: p.put_id for k, p in puts.by_key.items()}, "keys"
    )
    for put in puts.by_id.values():
        invariant(put.hash not in state.catalog.index[put.scope], "a key is not both readable and being written")
        invariant(put.put_id in puts.by_session[put.session], "a session knows its puts")
        invariant(state.sessions.identity(put.session) is not None, "a put's session is known")
    invariant(sum(map(len, puts.by_session.values())) == len(puts.by_id), "no session has puts that are not open")
    invariant(
        puts.open_bytes == sum(put.size_bytes * len(put.extents) for put in puts.by_id.values()), "open bytes are right"
    )
    places = {(record.session, segment): None for record in puts.quarantined.values() for segment in record.held}
    extents = sum(len(record.held) for record in puts.quarantined.values())
    invariant(puts.quarantined_extents == extents, "quarantined extents are counted right")
    invariant(set(places) == set(puts.by_place), "places of quarantine are known")
    for put_id, record in puts.quarantined.items():
        invariant(bool(record.held), "a quarantined put holds something")
        invariant(all(put_id in puts.by_place[(record.session, segment)] for segment in record.held), "at its places")
        invariant(state.sessions.identity(record.session) is not None, "a quarantined put's writer is known by name")
    waiting = context.waiting
    undecided = sum(ticket.entry is None for ticket in waiting.tickets.values())
    invariant(waiting.undecided == undecided, "undecided tickets are counted right")


def check_leases(context: Context) -> None:
    """The column of counts, and what sessions hold, agree with the leases."""
    catalog, leases = context.state.catalog, context.leases
    counts = Counter(row for lease in (*leases.by_id.values(), *leases.ending.values()) for row in lease.rows)
    invariant(all(lease.rows for lease in leases.ending.values()), "a lease that let go of everything is forgotten")
    covered_bytes = sum(catalog.size[row] for row in counts)
    invariant((leases.covered, leases.covered_bytes) == (len(counts), covered_bytes), "leased rows are counted once")
    for row in range(len(catalog)):
        held = counts.get(row, 0)
        if catalog.state[row] in (RESIDENT, LINGERING):
            invariant(catalog.leases[row] == held, "leases are counted per object")
        else:
            invariant(not held, "leases cover objects only")
    held_bytes = Counter[int]()
    for lease in leases.by_id.values():
        held_bytes[lease.session] += lease.size_bytes
    invariant(
        {session: holding.size_bytes for session, holding in leases.by_session.items()} == dict(held_bytes),
        "leased bytes are counted per session",
    )


def check_evictor(state: DurableState) -> None:
    """Every resident row has a place, and what is set aside is so for a reason that still holds."""
    evictor, catalog = state.evictor, state.catalog
    taken, children = dict(evictor._taken_from), Counter[int]()
    order = {row: place for place, row in enumerate(taken)}
    for row, where in enumerate(evictor.where):
        resident = row < len(catalog) and catalog.state[row] == RESIDENT
        invariant(resident == (where != ABSENT), "the evictor knows the resident rows, and no others")
        if where == TAKEN:
            invariant(taken.pop(row, None) is not None, "a taken row is one of the search under way")
            invariant(not catalog.leases[row] and catalog.pin[row] != Pin.HARD, "what protects a taken row is noticed")
            children[catalog.parent[row]] += 1
            later = order.get(catalog.parent[row])
            invariant(later is None or order[row] < later, "children are taken before their parents")
        if where == PARKED:
            invariant(evictor.reason_to_stay(row) != "", "a parked row may not go")
    del children[NONE]
    invariant(not taken and evictor._taken_children == children, "taken rows and children are counted right")
