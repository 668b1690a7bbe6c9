"""The scheduler's side of the connector: vLLM's hooks, one method each, and what connects them.

A request's way: `new` asks the pool; `matched` tells vLLM what may be loaded, once the answer is there; `allocated`
orders the load or lets go of the lease; `build` sends orders with every step and looks for blocks to save; `reported`
takes what the workers say; `finished` is the last that is heard of it. A load goes on after its request has ended, a
save after its request is forgotten: both are known by their own numbers.

Every hook runs on the engine's thread and returns at once, except `reset` and `close`, which wait a bounded time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from itertools import count

from pykvpool.errors import NotReady, PoolError, invariant
from pykvpool.host.port import Answer, Lapsed, PoolPort, Removed
from pykvpool_connector.vllm.identity import Identity
from pykvpool_connector.vllm.messages import RankReport, StepOrders
from pykvpool_connector.vllm.scheduler.announce import Announcer, EventMaker
from pykvpool_connector.vllm.scheduler.engine import Block, EngineBlocks, EngineRequest, StepPlan
from pykvpool_connector.vllm.scheduler.guarded import GuardedPort
from pykvpool_connector.vllm.scheduler.hits import Hits
from pykvpool_connector.vllm.scheduler.loads import Loads
from pykvpool_connector.vllm.scheduler.lookups import Ask, Lookups, State
from pykvpool_connector.vllm.scheduler.pins import Pins
from pykvpool_connector.vllm.scheduler.policy import Policy
from pykvpool_connector.vllm.scheduler.requests import Tracked
from pykvpool_connector.vllm.scheduler.resets import Resets
from pykvpool_connector.vllm.scheduler.saves import Saves
from pykvpool_connector.vllm.tally import Tally

log = logging.getLogger(__name__)

#: `matched`: how many tokens may be loaded (None: ask again later), and that they come between steps.
Match = tuple[int | None, bool]
NOTHING: Match = (0, False)
LATER: Match = (None, False)
#: Reasons why requests bypass the pool that are logged, each once: with an adapter that cannot be read every one does.
LOGGED_BYPASSES = 20


class SchedulerSide:
    """One engine's scheduler side.

    Args:
        identity: scopes and keys, the same as the workers'.
        policy: what to do.
        port: the scheduler's own way to the pool.
        now: a clock in milliseconds.
        draft_groups: cache groups that a draft model writes into (see `Hits`).
        events: makes the engine's cache events; None where nobody listens.
    """

    def __init__(
        self,
        identity: Identity,
        policy: Policy,
        port: PoolPort,
        now: Callable[[], int],
        *,
        draft_groups: frozenset[int] = frozenset(),
        events: EventMaker | None = None,
    ) -> None:
        self._identity = identity
        self._policy = policy
        self._port = GuardedPort(port)
        self._now = now
        self._tally = Tally()
        self._hits = Hits(identity, draft_groups)
        self._lookups = Lookups(self._port, now, policy.lookup_timeout_ms, self._tally)
        self._announcer = Announcer(identity, events, self._port.watch)
        self._resets = Resets(identity, self._port, self._announcer, saving=lambda: self.save_jobs > 0, now=now)
        #: Numbers of saves and loads, in the order in which they are ordered.
        self._jobs = count(1)
        self._last_job = 0
        self._loads = Loads(identity, next_job=self._next_job)
        self._pins: Pins | None = None
        self._saves: Saves | None = None
        self._requests: dict[str, Tracked] = {}
        #: Requests whose load was ordered and is not reported, with what holds the blocks they load.
        self._loading: dict[str, Tracked] = {}
        #: The last job of before a reset; 0: no reset is to be told to the workers.
        self._fence = 0
        #: Why requests bypass the pool, as far as it was logged.
        self._bypasses: set[str] = set()

    # -- what is left, for tests and shutdown ------------------------------------------------------------------------

    @property
    def requests(self) -> int:
        return len(self._requests)

    @property
    def loading(self) -> int:
        return len(self._loading)

    @property
    def open_lookups(self) -> int:
        return self._lookups.open

    @property
    def pinned(self) -> int:
        return self._pins.pinned if self._pins is not None else 0

    @property
    def save_jobs(self) -> int:
        return self._pins.jobs if self._pins is not None else 0

    # -- hooks -------------------------------------------------------------------------------------------------------

    def bind(self, blocks: EngineBlocks) -> None:
        """The engine's blocks are there. Before this nothing is saved."""
        self._pins = Pins(blocks, self._identity.world, self._policy.max_pinned_ratio, self._now)
        self._saves = Saves(
            self._identity,
            self._policy,
            blocks,
            self._pins,
            self._announcer,
            self._tally,
            next_job=self._next_job,
            now=self._now,
        )

    def new(self, request: EngineRequest) -> None:
        """A request has arrived: ask the pool about it."""
        groups = len(self._identity.groups)
        invariant(request.request_id not in self._requests, "vLLM never runs two requests of one name at once")
        tracked = Tracked(request, saved=[0] * groups, present=[b""] * groups)
        self._requests[request.request_id] = tracked
        if self._worth_asking(tracked, local=0):
            self._ask(tracked)

    def matched(self, request: EngineRequest, local: int) -> Match:
        """What the pool has of a waiting request beyond the `local` tokens that the engine has itself."""
        tracked = self._requests.get(request.request_id)
        if tracked is None or tracked.loading or not self._worth_asking(tracked, local):
            return NOTHING
        tracked.local = local
        ask = tracked.ask or self._ask(tracked)
        if ask is None:
            return NOTHING if tracked.bypass else LATER
        self._poll()
        state = self._lookups.state(ask)
        if state is State.ASKED:
            return LATER
        if state is State.OVER:
            return NOTHING
        hit = self._hits.longest(ask.found, local, request.num_tokens) - local
        return (hit, True) if hit >= max(1, self._policy.min_load_tokens) else NOTHING

    def allocated(self, request: EngineRequest, table: Sequence[Sequence[Block]], tokens: int) -> None:
        """vLLM has given a request its blocks, and takes `tokens` tokens from the pool."""
        tracked = self._requests.get(request.request_id)
        if tracked is None or tracked.loading:
            return
        tracked.ran = False
        if tokens > 0:
            self._learn(tracked)
            if tracked.ask is not None:
                tracked.ask.lent = True
            self._loads.order(tracked, table, tokens)
            self._loading[request.request_id] = tracked
        elif tracked.ask is not None and (tracked.ask.state is not State.ASKED or not self._policy.saves):
            self._learn(tracked)
            self._end_ask(tracked)

    def build(self, plan: StepPlan) -> StepOrders:
        """The orders of a step; called once for each, at the end of its scheduling."""
        self._poll()
        for request_id in plan.preempted_req_ids or ():
            tracked = self._requests.get(request_id)
            if tracked is not None:
                tracked.ran = tracked.stale = False
        if self._saves is not None and self._pins is not None and self._policy.saves:
            for request_id in plan.num_scheduled_tokens:
                tracked = self._requests.get(request_id)
                if tracked is not None:
                    tracked.ran = True
                    self._save(tracked, self._saves)
        overdue = self._pins.overdue() if self._pins is not None else ()
        if overdue:
            log.warning("saves %s are not reported by every rank: asking again", list(overdue))
        fence, self._fence = self._fence, 0
        return StepOrders(
            loads=self._loads.take(),
            saves=self._saves.take() if self._saves is not None else (),
            fence=fence,
            fingerprint=self._identity.fingerprint,
            overdue=overdue,
        )

    def reported(self, report: RankReport | None, received: Iterable[str], failed: Iterable[str]) -> None:
        """What the workers have done: save jobs by number, and loads by request once all ranks have said so."""
        if report is not None and self._pins is not None:
            for job_id, save in report.saves.items():
                job = self._pins.reported(job_id, save)
                if job is not None:
                    self._announcer.saved(job)
        failures = set(failed)
        for request_id in received:
            tracked = self._loading.pop(request_id, None)
            if tracked is None:
                continue  # another connector's, beside this one
            tracked.loading = 0
            if request_id in failures:
                tracked.load_failed = True
                tracked.forget_saved()
            self._end_ask(tracked)

    def finished(self, request: EngineRequest) -> None:
        """A request ends, however it does. Its blocks are still its own until this returns."""
        tracked = self._requests.pop(request.request_id, None)
        if tracked is None:
            return
        if self._saves is not None and self._policy.saves:
            self._save(tracked, self._saves, last=True)
        if not tracked.loading:
            self._end_ask(tracked)

    def pending(self) -> bool:
        """Work is left for which the engine must go on stepping, with or without requests."""
        return self.save_jobs > 0 or self._fence > 0

    def take_tally(self) -> Tally | None:
        """What was counted since the last call; None where nothing was."""
        return None if self._tally.empty else self._tally.take()

    def take_events(self) -> list[object]:
        return self._announcer.take()

    def reset(self) -> bool:
        """Clear this engine's blocks from the pool, in the scopes of its own fingerprint only.

        Returns:
            False where that is not confirmed: the pool did not answer in time, or workers still have saves of before
            under way, which may yet store something (they are told not to, with the next step). Then it is tried again
            when requests come, and until it is confirmed the pool is not used.
        """
        if self._saves is not None:
            self._saves.drop_queued()
        self._fence = self._last_job
        for tracked in self._requests.values():
            tracked.stale = tracked.ran or tracked.loading > 0
            tracked.forget_saved()
        self._ask_again()
        return self._resets.clear(self._policy.reset_timeout_s)

    def close(self) -> None:
        """Let go of everything. The workers have ended or are about to."""
        self._lookups.close()
        if self._pins is not None:
            self._pins.close()
        self._requests.clear()
        self._loading.clear()
        self._port.close(self._policy.drain_s)

    # -- asking ------------------------------------------------------------------------------------------------------

    def _usable(self) -> bool:
        """The pool holds nothing of before a reset."""
        if self._resets.finish():
            self._ask_again()
        return not self._resets.due

    def _ask_again(self) -> None:
        """What was found before a reset is there no longer."""
        for tracked in self._requests.values():
            if tracked.ask is not None and not tracked.loading and tracked.ask.state is State.HELD:
                self._lookups.again(tracked.ask)

    def _worth_asking(self, tracked: Tracked, local: int) -> bool:
        request = tracked.request
        if not self._policy.loads or tracked.bypass or tracked.load_failed or request.skip_reading_prefix_cache:
            return False
        if request.kv_transfer_params and request.kv_transfer_params.get("do_remote_prefill"):
            return False  # another connector brings these blocks
        if not request.block_hashes or local % self._hits.unit:
            return False
        pays = self._hits.furthest(request.num_tokens) - local >= max(1, self._policy.min_load_tokens)
        return pays and self._usable()

    def _ask(self, tracked: Tracked) -> Ask | None:
        """Start the lookup of this wait. None: not yet, or never (`bypass`)."""
        if not self._adapter(tracked):
            return None
        questions = self._hits.questions(tracked.adapter or "", tracked.request.block_hashes)
        tracked.ask = self._lookups.ask(questions)
        return tracked.ask

    def _adapter(self, tracked: Tracked) -> bool:
        """The adapter's content is known."""
        if tracked.adapter is not None:
            return True
        if tracked.bypass:
            return False
        try:
            tracked.adapter = self._identity.adapter_digest(tracked.request.lora_request)
        except PoolError as error:
            now = self._now()
            tracked.adapter_deadline = tracked.adapter_deadline or now + self._policy.lookup_timeout_ms
            if isinstance(error, NotReady) and now < tracked.adapter_deadline:
                return False
            tracked.bypass = True
            if str(error) not in self._bypasses and len(self._bypasses) < LOGGED_BYPASSES:
                self._bypasses.add(str(error))
                log.warning("requests bypass the pool, %s is the first: %s", tracked.request.request_id, error)
            return False
        self._resets.adapters.add(tracked.adapter)
        return True

    def _learn(self, tracked: Tracked) -> None:
        """What a lookup found need not be saved."""
        if tracked.ask is None:
            return
        for place, found in enumerate(tracked.ask.found):
            if self._identity.groups[place].kind == "window":
                tracked.present[place] = found.presence
            else:
                tracked.saved[place] = max(tracked.saved[place], found.count)

    def _end_ask(self, tracked: Tracked) -> None:
        if tracked.ask is not None:
            self._lookups.give_up(tracked.ask)
            tracked.ask = None

    # -- saving ------------------------------------------------------------------------------------------------------

    def _save(self, tracked: Tracked, saves: Saves, *, last: bool = False) -> None:
        if not tracked.ran or tracked.stale or not self._usable() or not self._adapter(tracked):
            return
        if tracked.ask is not None:
            # It ran without waiting for the answer, which still says what need not be saved.
            if self._lookups.state(tracked.ask) is State.ASKED and not last:
                return
            self._learn(tracked)
            self._end_ask(tracked)
        saves.plan(tracked, last=last)

    # -- the port ----------------------------------------------------------------------------------------------------

    def _poll(self) -> None:
        for event in self._port.poll():
            if isinstance(event, Answer):
                self._lookups.answered(event)
            elif isinstance(event, Lapsed):
                self._lookups.lapsed(event)
            elif isinstance(event, Removed):
                self._announcer.removed(event)

    def _next_job(self) -> int:
        self._last_job = next(self._jobs)
        return self._last_job
