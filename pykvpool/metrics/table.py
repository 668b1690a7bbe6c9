"""Every metric of the pool: name, kind, labels, meaning. docs/metrics.md is written from here.

Names follow Prometheus' rules: ``pykvpool_``, the part, the thing, the unit, ``_total`` for counters. Labels have few
values (a fabric, a verb, a node), never a key or a session. Some are recorded where things happen (`Metrics`), others
are read off at scrape time from what a part counts anyway (`pykvpool.metrics.collect`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

#: Seconds from the fastest step to the longest deadline that is usual: 50 us to a minute, three buckets per decade.
LATENCY_BUCKETS = (
    50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0,
    60.0,
)  # fmt: skip


class Kind(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Declared:
    """One metric."""

    name: str
    kind: Kind
    #: "bytes", "seconds", or what is counted: "objects", "keys", ...
    unit: str
    meaning: str
    labels: tuple[str, ...] = ()


def _counter(name: str, unit: str, meaning: str, *labels: str) -> Declared:
    return Declared(name, Kind.COUNTER, unit, meaning, labels)


def _gauge(name: str, unit: str, meaning: str, *labels: str) -> Declared:
    return Declared(name, Kind.GAUGE, unit, meaning, labels)


def _histogram(name: str, unit: str, meaning: str, *labels: str) -> Declared:
    return Declared(name, Kind.HISTOGRAM, unit, meaning, labels)


# -- every process -----------------------------------------------------------------------------------------------

BUILD_INFO = _gauge("pykvpool_build_info", "1", "Always 1; its labels say what runs.", "role", "version", "python")

# -- the pool, from the master's state ---------------------------------------------------------------------------

SEGMENT_CAPACITY = _gauge("pykvpool_segment_capacity_bytes", "bytes", "Memory a segment lends.", "node", "segment")
SEGMENT_FREE = _gauge("pykvpool_segment_free_bytes", "bytes", "Of that, free.", "node", "segment")
SEGMENT_USED = _gauge("pykvpool_segment_used_bytes", "bytes", "Of that, in use.", "node", "segment")
SEGMENT_QUARANTINED = _gauge(
    "pykvpool_segment_quarantined_bytes",
    "bytes",
    "Of that, waiting for evidence that a lost writer can do no more harm.",
    "node",
    "segment",
)
SEGMENT_SUSPECT = _gauge(
    "pykvpool_segment_suspect", "0 or 1", "Its node is not connected; its time has not run out yet.", "node", "segment"
)
SESSIONS = _gauge(
    "pykvpool_sessions", "sessions", "Open sessions. A master that serves HTTP is a reader of its own.", "role"
)
SESSIONS_DISCONNECTED = _gauge(
    "pykvpool_sessions_disconnected", "sessions", "Of those, sessions whose connection is gone.", "role"
)
OBJECTS = _gauge("pykvpool_objects", "objects", "Readable objects.")
OBJECT_BYTES = _gauge(
    "pykvpool_object_bytes", "bytes", "Their bytes, one copy of each; `pykvpool_segment_used_bytes` counts every copy."
)
LEASES = _gauge("pykvpool_leases", "leases", "Leases held.")
OPEN_PUTS = _gauge("pykvpool_open_puts", "objects", "Unfinished puts.")
WAITING = _gauge("pykvpool_waiting_keys", "keys", "Keys that wait for room or for another writer.")
SCOPES = _gauge("pykvpool_scopes", "scopes", "Interned scopes.")

STATE_METRICS = (
    SEGMENT_CAPACITY, SEGMENT_FREE, SEGMENT_USED, SEGMENT_QUARANTINED, SEGMENT_SUSPECT, SESSIONS,
    SESSIONS_DISCONNECTED, OBJECTS, OBJECT_BYTES, LEASES, OPEN_PUTS, WAITING, SCOPES,
)  # fmt: skip

#: Prefix of the counters of `pykvpool.model.replies.State`, each of which is exported under its own name.
MASTER_PREFIX = "pykvpool_master_"

# -- a client, from what it counts ---------------------------------------------------------------------------------

CLIENT_METRICS = (
    _counter("pykvpool_client_puts_total", "objects", "Objects stored."),
    _counter("pykvpool_client_puts_existing_total", "objects", "Of those, objects that were there already."),
    _counter("pykvpool_client_puts_degraded_total", "objects", "Of those, objects with fewer copies than asked for."),
    _counter("pykvpool_client_puts_failed_total", "objects", "Objects that could not be stored."),
    _counter("pykvpool_client_put_retries_total", "objects", "Puts that began anew after a failed write."),
    _counter("pykvpool_client_puts_waited_total", "objects", "Puts that waited for room or for another writer."),
    _counter("pykvpool_client_gets_total", "objects", "Objects read."),
    _counter("pykvpool_client_get_misses_total", "keys", "Keys that were not in the pool."),
    _counter("pykvpool_client_gets_failed_total", "objects", "Objects that were there and could not be read."),
    _counter("pykvpool_client_replica_retries_total", "objects", "Reads of another copy after one had failed."),
    _counter("pykvpool_client_checksum_mismatches_total", "objects", "Copies whose bytes were wrong, and discarded."),
    _counter("pykvpool_client_leases_lapsed_total", "leases", "Leases that ran out during a read."),
    _counter("pykvpool_client_sessions_renewed_total", "sessions", "Times it opened a new session."),
    _counter("pykvpool_client_bytes_written_total", "bytes", "Bytes written, each copy counted.", "fabric"),
    _counter("pykvpool_client_bytes_read_total", "bytes", "Bytes read.", "fabric"),
)
CLIENT_PREFIX = "pykvpool_client_"

# -- a master, recorded step by step (`pykvpool.observe.timed`) ----------------------------------------------------

MASTER_STEP_SECONDS = _histogram(
    "pykvpool_master_step_seconds",
    "seconds",
    "Time that one step held the master's loop, by command or event.",
    "event",
)

#: Every metric with a fixed name, in the order of the reference.
METRICS: tuple[Declared, ...] = (
    BUILD_INFO,
    *STATE_METRICS,
    *CLIENT_METRICS,
    MASTER_STEP_SECONDS,
)
