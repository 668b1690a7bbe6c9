"""What the master counts: monotonic totals since it started, by metric name."""

from __future__ import annotations

#: Name -> what one unit means.
MEANINGS: dict[str, str] = {
    "requests_total": "requests that were carried out (repeats not counted)",
    "requests_repeated_total": "repeats of a request answered from the log, or already under way",
    "requests_refused_total": "requests refused as a whole with an error",
    "sessions_opened_total": "sessions opened",
    "sessions_expired_total": "sessions that ended by silence",
    "master_pauses_total": "times the master itself was away (stopped, suspended), so that silence proved nothing",
    "sessions_superseded_total": "sessions that a new incarnation of the same name pushed out",
    "segments_mounted_total": "segments mounted",
    "segments_lost_total": "segments that went, by unmount or with their node",
    "lookup_hashes_total": "hashes asked for (exists, match_prefix, get_replicas), once per scope looked at",
    "lookup_hits_total": "hashes of those that were readable",
    "puts_existing_total": "keys of put_start that were readable already",
    "puts_granted_total": "puts that got extents",
    "puts_committed_total": "puts that became objects",
    "puts_closed_total": "puts that ended without an object",
    "puts_degraded_total": "puts committed on fewer replicas than granted",
    "bytes_committed_total": "object bytes of committed puts (one replica each)",
    "waits_total": "keys that had to wait, for room or for another writer",
    "waits_granted_total": "waiting keys that got room or took over",
    "waits_existing_total": "waiting keys that another writer committed",
    "waits_timed_out_total": "waiting keys whose time ran out",
    "pool_full_total": "keys answered with PoolFull",
    "objects_removed_total": "objects whose key went, for any reason",
    "objects_evicted_total": "objects evicted",
    "bytes_evicted_total": "object bytes evicted (one replica each)",
    "objects_lost_total": "objects whose last replica went with its segment",
    "replicas_lost_total": "replicas that went with their segment while others remained",
    "leases_granted_total": "leases granted",
    "leases_expired_total": "leases that ran out unreleased",
    "extents_quarantined_total": "extents that went to quarantine",
    "quarantine_drained_total": "quarantined extents freed by their writer's word",
    "quarantine_fenced_total": "quarantined extents freed by the owner's word",
    "fences_sent_total": "fence instructions sent",
}


def new_counters() -> dict[str, int]:
    """All counters at zero."""
    return dict.fromkeys(MEANINGS, 0)
