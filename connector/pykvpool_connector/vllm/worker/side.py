"""One rank's side of the connector: what the engine calls in each step.

Nothing here waits (promise P9): orders become jobs that the port takes, and what has ended by then is polled. Every
order is answered, exactly once: a load by its request's name, as received or as failed; a save by its job's number.
Whatever goes wrong on the way, an exception included, ends as a failed load or a dropped save, never as an exception in
the engine, whose worker it would kill.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from pykvpool.errors import PoolError
from pykvpool.hashing import Rank
from pykvpool.host.port import DeviceOrder, LoadDone, PoolPort, SaveDone
from pykvpool_connector.vllm.identity import Identity
from pykvpool_connector.vllm.messages import LoadOrder, RankReport, SaveOrder, SaveReport, StepOrders
from pykvpool_connector.vllm.settings import Settings
from pykvpool_connector.vllm.tally import Tally
from pykvpool_connector.vllm.worker.jobs import RankJobs
from pykvpool_connector.vllm.worker.tensors import CacheTensors

log = logging.getLogger(__name__)

#: Failed loads and dropped saves that are logged one by one; the rest is counted only.
LOGGED_FAILURES = 20
#: Reasons of our own, beside the names of the pool's errors.
OTHER_FINGERPRINT = "other_fingerprint"
FENCED = "fenced"
#: What to do about saves that were dropped for these reasons; of the others nothing has to be done.
ADVICE = {
    "TooFewNodes": " (no node lends memory to this pool: start `pykvpool node`; `pykvpool status` lists them)",
    "Unavailable": " (the pool cannot be reached: `pykvpool status` shows whether its master and nodes are there)",
}


@dataclass(slots=True)
class Transfers:
    """Requests whose load has ended since the last call; the failed ones are among the received, as vLLM wants it."""

    received: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)


class WorkerSide:
    """All of it for one rank. Belongs to the worker's thread.

    Args:
        identity: made on this side; compared with the scheduler's in every step.
        settings: timeouts.
        rank: which part of the model this worker holds.
        port: way to the pool; closed with this.
        tensors: where the blocks lie.
        device_order: see `RankJobs`; None for a cache in host memory.
    """

    def __init__(
        self,
        identity: Identity,
        settings: Settings,
        rank: Rank,
        port: PoolPort,
        tensors: CacheTensors,
        device_order: Callable[[], DeviceOrder] | None = None,
    ) -> None:
        self._identity = identity
        self._settings = settings
        self._port = port
        self._jobs = RankJobs(identity, rank, tensors, device_order)
        #: This rank in a report's set of ranks.
        self._rank_bit = 1 << identity.number(rank)
        #: Name of the request that waits for a load, by job. Every rank has the same jobs.
        self._loading: dict[int, str] = {}
        #: Save jobs under way, with how many blocks each has.
        self._saving: dict[int, int] = {}
        self._transfers = Transfers()
        self._report = RankReport()
        self._tally = Tally()
        #: The last fence that was passed on.
        self._fenced = 0
        self._failures_left_to_log = LOGGED_FAILURES
        self._closed = False

    @property
    def busy(self) -> bool:
        """Jobs are under way."""
        return bool(self._loading or self._saving)

    def start_loads(self, orders: StepOrders) -> None:
        """Hand a step's loads to the pool. They may begin before the step's forward pass or after it."""
        for order in orders.loads:
            self._loading[order.job_id] = order.request_id
            reason = self._attempt(orders, lambda order=order: self._load(order))  # type: ignore[misc]  # bound now
            if reason:
                self._end_load(LoadDone(order.job_id, False, error=reason, reason=reason))

    def start_saves(self, orders: StepOrders) -> None:
        """Hand a step's saves to the pool, when the step's forward pass has written the blocks."""
        if orders.fence > self._fenced:
            self._fenced = orders.fence
            self._attempt(orders, self._port.fence)
        for job_id in orders.overdue:
            if job_id not in self._saving:
                self._report.add(RankReport({job_id: SaveReport(self._rank_bit, complete=False)}))
        for order in orders.saves:
            blocks = sum(len(group.keys) for group in order.groups)
            self._saving[order.job_id] = blocks
            reason = self._attempt(orders, lambda order=order: self._save(order))  # type: ignore[misc]  # bound now
            if reason:
                self._end_save(SaveDone(order.job_id, dropped=blocks, reasons={reason: blocks}))

    def poll(self) -> None:
        """Take in what has ended. Once per step, before `take_transfers` and `take_report`."""
        try:
            events = self._port.poll()
        except Exception:  # the engine must not die of it; jobs stay under way, as they may really be
            if self._failures_left_to_log > 0:
                self._failures_left_to_log -= 1
                log.exception("the port to the pool failed while it was polled")
            return
        for event in events:
            if isinstance(event, LoadDone):
                self._end_load(event)
            elif isinstance(event, SaveDone):
                self._end_save(event)

    def take_transfers(self) -> Transfers:
        taken, self._transfers = self._transfers, Transfers()
        return taken

    def take_report(self) -> RankReport | None:
        """Save jobs that have ended since the last call; None where there are none."""
        if not self._report.saves:
            return None
        taken, self._report = self._report, RankReport()
        return taken

    def take_tally(self) -> Tally | None:
        """What was counted since the last call; None where nothing was."""
        return None if self._tally.empty else self._tally.take()

    def close(self) -> None:
        """Give saves a bounded time, then let go of the engine's memory for good."""
        if not self._closed:
            self._closed = True
            self._port.close(self._settings.options.drain_s)

    def _attempt(self, orders: StepOrders, work: Callable[[], None]) -> str:
        """Why `work` was not done; empty where it was."""
        if orders.fingerprint and orders.fingerprint != self._identity.fingerprint:
            self._complain(
                "the scheduler names blocks by the fingerprint %s, this worker has %s: their configurations differ, so "
                "nothing is loaded or saved",
                orders.fingerprint,
                self._identity.fingerprint,
            )
            return OTHER_FINGERPRINT
        try:
            work()
        except PoolError as error:
            self._complain("the pool was not asked: %s", error)
            return error.kind
        except Exception as error:
            if self._failures_left_to_log > 0:
                self._failures_left_to_log -= 1
                log.exception("an order of the scheduler could not be carried out")
            return type(error).__name__
        return ""

    def _load(self, order: LoadOrder) -> None:
        job = self._jobs.load(order, self._settings.options.load_timeout_ms)
        if job is None:
            self._end_load(LoadDone(order.job_id, True))
        else:
            self._port.load(job)

    def _save(self, order: SaveOrder) -> None:
        job = self._jobs.save(order, self._settings.options.save_timeout_ms)
        if job is None:
            self._end_save(SaveDone(order.job_id))
        else:
            self._port.save(job)

    def _end_load(self, done: LoadDone) -> None:
        request = self._loading.pop(done.job_id, None)
        if request is None:
            log.error("the port ended the load %d, which is not under way: ignored", done.job_id)
            return
        self._transfers.received.add(request)
        if not done.loaded:
            self._transfers.failed.add(request)
            self._complain("a load of %s has failed, it will be computed: %s", request, done.error)
        self._tally.count("loads", label="loaded" if done.loaded else done.reason or "unknown")
        self._tally.count("load_bytes", done.bytes_loaded)
        self._tally.observe("load_seconds", done.seconds)

    def _end_save(self, done: SaveDone) -> None:
        if self._saving.pop(done.job_id, None) is None:
            log.error("the port ended the save %d, which is not under way: ignored", done.job_id)
            return
        counts = (done.stored, done.existed, done.dropped, done.bytes_stored)
        self._report.add(RankReport({done.job_id: SaveReport(self._rank_bit, *counts, complete=done.dropped == 0)}))
        if done.dropped:
            advice = next((ADVICE[reason] for reason in done.reasons if reason in ADVICE), "")
            self._complain("%d blocks were not saved: %s%s", done.dropped, ", ".join(done.reasons) or "unknown", advice)
        self._tally.count("saves")
        self._tally.count("saved_blocks", done.stored, "stored")
        self._tally.count("saved_blocks", done.existed, "existed")
        for reason, blocks in (done.reasons or {"unknown": done.dropped}).items():
            self._tally.count("saved_blocks", blocks, reason)
        self._tally.count("save_bytes", done.bytes_stored)
        self._tally.observe("save_seconds", done.seconds)

    def _complain(self, message: str, *values: object) -> None:
        """Warn, a bounded number of times."""
        if self._failures_left_to_log > 0:
            self._failures_left_to_log -= 1
            log.warning(message, *values)
            if not self._failures_left_to_log:
                log.warning("further failures are counted in vllm:pykvpool_* metrics, not logged")
