"""The simulator as a finder: seeds of the whole cluster, run on a broken copy until one of them breaks a promise.

`SIMULATED` says which mutations it has to find, within how many seeds and with which faults; `UNSEEN` says of others
why it cannot, and a test of their own has to do; `NOT_RUN` names the files that the simulated cluster does not run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tests.mutations.mutation import Verdict

#: Seeds of a search, unless the row says otherwise.
SEEDS = 40
#: What one search may take, healthy runs included: a second a seed on a machine that has much else to do, twice over.
BUDGET_S = 240.0
#: Its exit codes: all seeds passed, some failed.
_PASSED, _FAILED = 0, 1
#: Of a violation, in the table.
_MAX_WORDS = 110


@dataclass(frozen=True, slots=True)
class Simulation:
    """A check: the first of `seeds` seeds that fails."""

    seeds: int = SEEDS
    first: int = 0
    #: Only these kinds of faults; empty: all.
    faults: tuple[str, ...] = ()
    #: Further options of the command.
    options: tuple[str, ...] = ()
    budget_s: float = BUDGET_S

    @property
    def arguments(self) -> list[str]:
        """As one would type them."""
        seeds = f"{self.first}-{self.first + self.seeds - 1}" if self.first else str(self.seeds)
        which = ["--seed", str(self.first)] if self.seeds == 1 else ["--seeds", seeds]
        faults = ["--faults", ",".join(self.faults)] if self.faults else []
        return [*which, *faults, *self.options]

    @property
    def label(self) -> str:
        return " ".join(["sim", *(f"'{word}'" if " " in word else word for word in self.arguments)])

    def command(self, python: str) -> list[str]:
        return [python, "-m", "pykvpool_sim", *self.arguments, "--no-shrink", "--first-failure", "--jobs", "1"]

    def verdict(self, returncode: int, output: str) -> Verdict:
        if returncode == _PASSED:
            return Verdict(False)
        seed = re.search(r"^seed (\d+) breaks ", output, re.MULTILINE)
        said = re.search(r"^  (P\d|calm|bug) at [\d.]+ s: (.*)$", output, re.MULTILINE)
        if returncode != _FAILED or seed is None or said is None:
            return Verdict(False, trouble=output.strip()[-2_000:] or f"the simulator ended with {returncode}")
        words = said[2] if len(said[2]) <= _MAX_WORDS else f"{said[2][:_MAX_WORDS]}..."
        return Verdict(True, f"seed {seed[1]}: {said[1]}: {words}")

    def without_promises(self, off: str) -> Simulation:
        """The same search with these promises not judged (comma-separated)."""
        return replace(self, options=(*self.options, "--off", off))


def failed_seed(verdict: Verdict) -> int:
    """Of a verdict that found something."""
    return int(verdict.finder.partition(":")[0].removeprefix("seed "))


#: Seeds as they come.
ANY = Simulation()

#: Rare ones: twice as many.
LONG = Simulation(2 * SEEDS)
#: Time and transfers go on apart from each other: leases lapse under reads, cancelled calls have much under way.
SLOW = Simulation(2 * SEEDS, faults=("slow fabric", "torn operations"))
#: What breaks half way may still land.
BROKEN = Simulation(faults=("slow fabric", "write errors", "lost acknowledgements"))
LINGERING = Simulation(faults=("slow fabric", "lingering writes"))
#: Sessions end while their holders live.
CUT_OFF = Simulation(faults=("isolate", "master restart", "suspend"))

#: Leases lapse under readers who do not know of it yet.
LAPSED = Simulation(faults=("isolate", "mute", "deafen", "pause", "suspend"))
#: Sessions end before the leases of those who read.
SILENT_READERS = Simulation(2 * SEEDS, faults=("kill", "power cut", "isolate", "mute", "deafen"))
#: Writers whose sessions are over, and who do not know of it, begin to write.
LATE_WRITERS = Simulation(faults=("pause", "suspend", "part from one", "slow fabric", "lost acknowledgements"))

#: Writers say that a put has landed when it has run out of time.
LATE_ENDS = Simulation(faults=("slow fabric", "write errors", "pause", "suspend"))
#: What was said in time is heard too late.
DEAF_MASTER = Simulation(
    options=("--strikes", "; ".join(f"pause at master from {at_s}000 for 2500" for at_s in range(4, 28, 5)))
)
#: Answers are heard when the leases that they grant have run out, or soon will.
DEAF_READERS = Simulation(
    options=("--strikes", "; ".join(f"deafen at client-{i % 2} from {3 + 3 * i}000 for 600" for i in range(8)))
)
#: The pool is full, and everybody wants room on all nodes at once.
EVERYWHERE = Simulation(faults=("clock jump",), options=("--everywhere",))

SIMULATED: dict[str, Simulation] = {
    # where bytes lie, and when they may be used again
    "off-by-one-in-coalescing": ANY,
    "reuse-a-quarantined-extent": ANY,
    "quarantine-ended-by-a-timer": ANY,
    "the-puts-of-a-dead-writer-are-free-at-once": ANY,
    "a-failed-copy-on-which-something-may-land-is-free-at-once": ANY,
    "a-revoke-forgets-what-is-uncertain": ANY,
    "a-fence-frees-what-came-after-it-was-sent": ANY,
    "a-removed-object-is-free-under-its-readers": ANY,
    "a-lingering-object-never-comes-free": ANY,
    "a-loss-takes-the-whole-object": ANY,
    # objects, leases, eviction, the queue
    "evict-a-leased-block": ANY,
    "evict-a-hard-pinned-block": ANY,
    "evict-a-parent-before-its-children": ANY,
    "a-released-block-is-never-evicted-again": ANY,
    "a-failed-eviction-changes-something": LONG,
    "a-stale-put-id-is-accepted": LATE_ENDS,
    "copies-that-failed-are-named-to-readers": ANY,
    "in-progress-answered-as-success": ANY,
    "a-writer-that-gave-up-is-success-for-its-followers": ANY,
    "waiters-are-overtaken": EVERYWHERE,
    "renew-a-lapsed-lease": DEAF_MASTER,
    "the-leases-of-a-dead-reader-end-at-once": SILENT_READERS,
    "a-lease-covers-the-first-of-its-batch": ANY,
    "end-a-put-by-the-wrong-client": ANY,
    "another-size-under-a-key-is-success": ANY,
    "a-prefix-is-counted-in-the-last-scope-alone": ANY,
    # the master as a state machine
    "drop-one-fact": ANY,
    "durable-state-changed-beside-the-facts": ANY,
    "an-evolve-that-reads-the-clock": ANY,
    "a-repeated-request-is-carried-out-twice": ANY,
    "a-superseded-session-is-still-obeyed": ANY,
    # the shells
    "skip-the-lease-check-on-the-read-path": ANY,
    "a-checksum-never-verified": ANY,
    "a-lease-counted-from-its-answer": DEAF_READERS,
    "a-lease-released-before-the-read-has-drained": ANY,
    "a-view-never-looks-at-its-lease-again": LAPSED,
    "a-stale-view-goes-on-showing-bytes": ANY,
    "local-buffers-released-before-the-drain": SLOW,
    "a-torn-write-is-named-certain": LINGERING,
    "an-unsettled-copy-is-named-certain": BROKEN,
    "a-late-grant-is-kept-for-nobody": ANY,
    "a-failed-copy-counts-as-landed": Simulation(faults=("write errors", "lost acknowledgements")),
    "fewer-copies-than-asked-is-not-said": Simulation(faults=("write errors", "node leaves", "kill")),
    "a-remount-leaves-the-old-generation-open": CUT_OFF,
    "a-node-answers-a-fence-before-it-is-done": ANY,
    "a-node-forgets-that-the-session-is-over": LATE_WRITERS,
    # what the fabrics share
    "serve-an-old-generation": Simulation(faults=("node leaves", "isolate")),
    "a-banned-session-comes-again": LATE_WRITERS,
    "a-ban-hits-the-successor": ANY,
    "the-router-retries-an-unsettled-write": BROKEN,
    "the-router-forgets-that-a-write-is-unsettled": BROKEN,
    "a-transfer-ends-before-its-pieces": SLOW,
}

_ORDER = "the checkers judge what may go and what for, not which of the blocks that may go is first"
_ONE_SIDED = "its fabric is one-sided, as RDMA is: no owner is asked, so none can refuse"
_RECOMPUTE = "a needless miss costs a recompute and breaks no promise that a whole cluster can see"
_PEERS = "its peers speak the protocol; hostile input is for tests at the door"
_SUMMED = "its clients sum all they write, so no owner is asked for a checksum"

UNSEEN: dict[str, str] = {
    "the-longest-run-is-taken-in-place-of-the-best-fit": "any run that fits keeps every promise",
    "a-double-free-is-taken": "a guard against other bugs: a healthy core never frees twice",
    "the-overlay-forgets-its-neighbour-on-the-right": "the plan evicts one block more than it needed, for its put",
    "a-going-segment-is-named-to-readers": "a segment has to go between two slices of one lookup: hundreds of keys",
    "copies-on-one-node": "a simulated node lends one segment",
    "too-few-nodes-is-silently-fewer-copies": "the put waits until its deadline, as one may that finds no room",
    "soft-pins-count-for-nothing": _ORDER,
    "orphans-wait-their-turn": _ORDER,
    "evict-more-than-the-room-needs": "the room is somebody's, if more than was needed",
    "a-touched-block-keeps-its-old-place": _ORDER,
    "what-is-put-back-starts-anew": _ORDER,
    "a-read-is-no-use": _ORDER,
    "the-answer-of-an-owner-sums-any-object": _SUMMED,
    "an-owner-hashes-a-byte-too-few": _SUMMED,
    "an-order-that-depends-on-the-hash-seed": "both runs of a process have its hash seed; `--twice` runs them in two",
    "a-late-duplicate-is-new-again": "a request has to be said again after its answer was acknowledged",
    "a-reader-may-write": _PEERS,
    "a-batch-of-any-size-is-taken": _PEERS,
    "an-unknown-field-is-taken": _PEERS,
    "replies-leave-before-their-facts": "the witness sees both in the core's own step",
    "a-lease-trusted-to-its-last-moment": "simulated clocks drift by a percent at most, messages take longer",
    "a-lapsed-lease-renewed-by-its-holder": "the master refuses; only where both are broken it shows",
    "only-the-first-copy-is-tried": _RECOMPUTE,
    "a-copy-with-other-bytes-is-a-miss-for-good": _RECOMPUTE,
    "another-sessions-word-is-evidence": "bytes come free by writer and place, so a stranger's word frees nothing: "
    "only the error that it is told is another one",
    "a-view-that-is-open-lets-its-lease-run-out": "whoever looks is told that the lease lapsed, as one has to expect",
    "a-batch-holds-its-grants-while-it-waits": "a put that waits ends at its deadline, and its room comes free then",
    "tickets-are-left-behind": "a ticket that nobody waits for ends at its deadline, and what it was granted with it",
    "a-late-lease-is-kept-for-nobody": "a lease that nobody holds lapses by itself",
    "a-goodbye-though-the-master-was-not-told": "a revoke that was given up is still sent, before the goodbye; it "
    "takes one that was ended before it began",
    "a-view-can-be-written-through": "its clients look, and do not try to write",
    "an-offloaded-copy-outlives-its-cancellation": "copies of the simulated fabric take no threads",
    "a-checksum-misses-the-last-piece": "the simulated fabric sums by itself",
    "a-straggler-of-an-older-put-lands": _ONE_SIDED,
    "a-write-is-not-asked-for-its-put-id": _ONE_SIDED,
    "an-owner-skips-the-bounds": _ONE_SIDED,
    "bounds-off-by-one": _ONE_SIDED,
    "a-reader-may-write-over-the-data-plane": "all its clients are writers",
    "an-owner-believes-a-reader-that-writes": _ONE_SIDED,
}


#: Parts of the pool that the simulated cluster does not run, by their files: what is wrong there is nothing to it.
NOT_RUN: dict[str, str] = {
    "pykvpool/protocol/": "its connections carry frames whole, and ask for no token",
    "pykvpool/hashing/": "its keys are given, not hashed",
    "pykvpool/fabric/tcp_": "its fabric is its own",
    "pykvpool/fabric/shm_": "its fabric is its own",
    "pykvpool/fabric/local": "its fabric is its own",
    "pykvpool/fabric/handshake": "its fabric is its own",
    "pykvpool/fabric/rdma/": "its fabric is its own",
    "pykvpool/fabric/verbs/": "its fabric is its own",
    "pykvpool/fabric/device_": "it has no GPUs",
    "pykvpool/memory/cuda": "it has no GPUs",
    "pykvpool/memory/copying": "its fabric copies and sums by itself",
    "pykvpool/host/": "it has no engines",
    "connector/": "it has no engines",
}


def unseen() -> Iterator[tuple[str, str]]:
    """What the simulator cannot see, and why."""
    return iter(UNSEEN.items())


def not_run() -> Iterator[tuple[str, str]]:
    """Files, by how their names begin, that it does not run, and why."""
    return iter(NOT_RUN.items())
