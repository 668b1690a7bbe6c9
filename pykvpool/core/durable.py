"""The durable state as a plain value: two cores that saw the same facts have equal ones."""

from __future__ import annotations

from pykvpool.core.catalog import LINGERING, NONE, RESIDENT, Catalog
from pykvpool.core.state import DurableState


def durable_state(state: DurableState) -> dict[str, object]:
    """Built of dicts, tuples, texts and numbers; independent of row numbers and of the order of insertion."""
    sessions, puts, catalog = state.sessions, state.puts, state.catalog
    used = (row for row in range(len(catalog)) if catalog.state[row] in (RESIDENT, LINGERING))
    return {
        "scopes": tuple(scope.text() for scope in state.scopes),
        "sessions": {s.id: (s.name, s.role, s.incarnation) for s in sessions.by_id.values()},
        "ended": {s.id: (s.name, s.role, s.incarnation) for s in sessions.ended.values()},
        "reasons": dict(sessions.reasons),
        "segments": {
            segment.id: (
                segment.session,
                segment.descriptor,
                segment.going,
                segment.quarantined_bytes,
                tuple(segment.space.runs()),
            )
            for segment in state.segments.by_id.values()
        },
        "objects": {catalog.put_id[row]: _object(catalog, row) for row in used},
        "open": dict(puts.by_id),
        "quarantined": {
            put_id: (record.session, record.grant, tuple(sorted(record.held.items())))
            for put_id, record in puts.quarantined.items()
        },
        "last_ids": (sessions.last_id, state.segments.last_id, puts.last_id),
    }


def _object(catalog: Catalog, row: int) -> tuple[object, ...]:
    parent = catalog.parent[row]
    return (
        catalog.state[row],
        catalog.scope[row],
        catalog.hashes[row],
        catalog.size[row],
        catalog.owner[row],
        catalog.checksum[row] if catalog.summed[row] else None,
        catalog.pin[row],
        catalog.depth[row],
        None if parent == NONE else catalog.hashes[parent],
        catalog.is_orphan(row),
        catalog.extents(row),
    )
