"""Writes docs/errors.md from `pykvpool.errors`: code, kind, whether to retry, what it means, what to do next."""

from __future__ import annotations

import inspect

from pykvpool import errors
from pykvpool.errors import KINDS, PoolError

_INTRODUCTION = """# Errors

*This page is written by `make reference` from `pykvpool/errors.py` and `pykvpool/observe/errors_page.py`.*

Every failure that a caller can meet is a `PoolError`. Its class is its kind, `code` is a stable number (Mooncake
Store's where the meaning is the same), the message is for people, `fields` are for programs. `retryable` says that the
same call may succeed later without a change; repeating any other is useless. A batch has one outcome per key: one bad
key never hides the others.

| code | kind | retry | meaning | what to do next |
|---|---|---|---|---|
"""

#: What to do next, for somebody who programs or runs the pool.
ADVICE: dict[type[PoolError], str] = {
    errors.InternalError: "Report it, with the traceback and what led to it. The pool goes on serving other requests.",
    errors.SegmentGone: "Try again: other replicas are taken. With one replica the block is lost and recomputed.",
    errors.SessionExpired: "The client opens a new session by itself. If it repeats, look for a second process of the "
    "same name, or for a loop that is blocked longer than `session_ttl_ms`.",
    errors.PoolFull: "Its fields count what held the room: leases, pins, unfinished puts, quarantine. Wait longer "
    "(`timeout_s`), release leases, or add a node.",
    errors.TooFewNodes: "Start more nodes, ask for fewer `replicas`, or allow fewer with `min_replicas`.",
    errors.InvalidArgument: "Correct the argument that the message names.",
    errors.NotOwner: "End only your own puts and leases; after a session was lost, its puts are gone with it.",
    errors.ConfigError: "Correct the key in the source that the message names; `pykvpool config --show` lists all.",
    errors.LimitExceeded: "Split the batch or the object; the fields tell the limit.",
    errors.NotSupported: "Install the extra or choose the option that the message names.",
    errors.Closed: "Open a new client or region; whoever closes has to wait for its users first.",
    errors.NotReady: "Try again soon: its writer is at work.",
    errors.KeyNotFound: "Treat it as a miss and compute the block; it was never stored, evicted, removed, or lost.",
    errors.KeyConflict: "Look for what the key leaves out: dtype, layout, rank, block size (`KVLayout`). Remove the "
    "old object only if its bytes are truly wrong.",
    errors.Leased: "Try again when its readers are done, or force the removal: the bytes stay until leases end.",
    errors.LeaseExpired: "Treat it as a miss, or read again. If it repeats, ask for a longer lease or smaller batches.",
    errors.StaleView: "Discard what was computed from the view. Leave views sooner, or copy.",
    errors.StalePut: "Put again: the earlier attempt was revoked, timed out (`put_ttl_ms`) or was taken over.",
    errors.TransferFailed: "Try again. The message names each fabric and replica that was tried; if one always fails, "
    "check its address and firewall.",
    errors.GpuFailed: "An error of the driver usually lasts as long as the process: restart the engine. `pykvpool "
    "doctor` says what works on this host.",
    errors.ChecksumMismatch: "Treat it as a miss. If it repeats on one node, suspect its memory or network card.",
    errors.Unavailable: "Check that the master runs and that the address is right: `pykvpool status --master ADDRESS`.",
    errors.DeadlineExceeded: "Try again with a longer `timeout_s`, or look at the load of the master and the network.",
    errors.Refused: "Compare version, cluster id and token of both ends; the message says which differs.",
    errors.ProtocolError: "Check that the address is that of a pykvpool master or node of the same version.",
    errors.Overloaded: "Keep fewer calls in flight, or release leases; the message names the bound.",
}


def errors_markdown() -> str:
    """The whole page, kinds by descending code."""
    return _INTRODUCTION + "\n".join(_row(kind) for _, kind in sorted(KINDS.items(), reverse=True)) + "\n"


def _row(kind: type[PoolError]) -> str:
    meaning = " ".join(inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0].split())
    retry = "yes" if kind.retryable else "no"
    return f"| {kind.code} | `{kind.__name__}` | {retry} | {meaning} | {ADVICE[kind]} |"
