"""The numbers that the master's decisions depend on. The shell fills them from `pykvpool.config`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CoreConfig:
    """Times in milliseconds, sizes in bytes."""

    #: A session without a sign of life for this long is expired.
    session_ttl_ms: int = 10_000
    #: A session whose control connection is gone may come back within this time.
    reconnect_grace_ms: int = 3_000
    #: Lease granted where the reader names none, and the longest one grant or renewal may ask for.
    lease_ms: int = 10_000
    max_lease_ms: int = 60_000
    #: A lease is not renewed past this age.
    max_lease_lifetime_ms: int = 600_000
    #: Most leases one session may hold, and most bytes under them as a part of the pool's capacity (1: any).
    max_leases_per_session: int = 65_536
    max_leased_ratio_per_session: float = 1.0
    #: An unfinished put of a live session is closed after this long.
    put_ttl_ms: int = 120_000
    #: Longest a key may queue for room or for another writer.
    max_wait_ms: int = 300_000
    #: Most keys queued for room in the whole pool; more get `PoolFull` at once.
    max_waiting: int = 1_048_576
    #: Requests in flight, and replies kept for repeats, per session.
    max_requests_per_session: int = 1_024
    #: Extents begin at multiples of this.
    alignment_bytes: int = 64
    #: Objects handled per slice of long work, so that no step holds the loop for more than a millisecond or two.
    slice_objects: int = 2_000
    #: Name of the eviction policy: "lru" or "fifo".
    policy: str = "lru"
