"""All lanes from this client to one mount: slices are dealt out over them, and survive the lanes.

Slices wait in one queue; whichever lane has least under way takes the next. When a lane breaks, for whatever reason,
its queue pair is destroyed at once, so that no card touches local memory through it. Then its *reads* are simply dealt
out again. Its *writes* may still be on their way to the owner, and must not be repeated or called off before they
cannot land any more: the owner is asked to destroy its end, and with its word they are dealt out again (or end
settled); without it they end in doubt. What the owner itself ended on purpose (a fence, the end of the generation) is
not repeated at all.

    waiting ──► on a lane ──► done
       ▲           │ the lane broke
       │           ▼
       └── the owner's word (writes) ──► failed, settled;  no word: failed, in doubt

Lanes are made side by side, in the background: the first one that has proved itself is enough to begin. Which there
should be is asked again now and then, as rails come and go at both ends; a lane that is planned no more takes nothing
new and goes when it is empty.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from pykvpool.errors import PoolError, SegmentGone, TransferFailed, Unavailable
from pykvpool.fabric.rdma.connecting import Connector, Ends, Route, plan, remote_rails
from pykvpool.fabric.rdma.lane import MAX_PIECES, Lane
from pykvpool.fabric.rdma.local_memory import LocalMemory
from pykvpool.fabric.rdma.rails import Rail, Rails
from pykvpool.fabric.rdma.session import Session
from pykvpool.fabric.rdma.slices import Call, Item, Shape, Slice, cut
from pykvpool.fabric.rdma.traffic import Traffic
from pykvpool.fabric.tasks import run_all
from pykvpool.fabric.verbs import Completion, Status, VerbsError
from pykvpool.model.ids import Generation
from pykvpool.runtime import drain

log = logging.getLogger("pykvpool.fabric.rdma")

#: Times that a slice may be refused, which breaks its lane. Twice is the slice's fault, or the owner's.
MAX_REFUSALS = 2
#: What is said of a request itself: its key, its bounds, its memory. Anything else is said of the way it takes.
_REFUSALS = frozenset(
    {
        Status.LOCAL_LENGTH,
        Status.LOCAL_PROTECTION,
        Status.LOCAL_ACCESS,
        Status.BAD_RESPONSE,
        Status.REMOTE_INVALID_REQUEST,
        Status.REMOTE_ACCESS,
        Status.REMOTE_OPERATION,
        Status.REMOTE_INVALID_READ,
    }
)
#: What is under way for a call that was given up may end by itself for so long, before its lanes are destroyed: they
#: carry other calls too, and a window's worth of bytes takes milliseconds.
GRACE_S = 0.2
#: A queue pair that could not be destroyed is tried again so often.
DESTROY_AGAIN_S = 0.1
#: Missing lanes are tried again after this time, when there is something to move.
MEND_PAUSE_S = 5.0
#: With none missing, rails that have come (back) are looked for so often: it takes a round trip to the owner.
LOOK_AGAIN_S = 30.0


class Link:
    """Made with `open`; over when `failure` is set."""

    def __init__(
        self, session: Session, generation: Generation, rails: Rails, connector: Connector, memory: LocalMemory,
        queue_pairs: int,
    ) -> None:  # fmt: skip
        self.generation = generation
        #: Why nothing can be moved here any more; None: it can.
        self.failure: PoolError | None = None
        #: Of the mount, as its owner says.
        self.size_bytes = 0
        self._chunk_bytes = 1
        self._session = session
        self._rails = rails
        self._connector = connector
        self._memory = memory
        self._queue_pairs = queue_pairs
        self._loop = asyncio.get_running_loop()
        self._traffic = Traffic(memory.staging, self._pump)
        #: Lanes that work, and between which rails each is meant to be (it may have had to take another of theirs).
        self._lanes: dict[Lane, Ends] = {}
        #: Lanes to have.
        self._wanted = 0
        #: Lanes that have broken and cannot be destroyed, with when that is tried again.
        self._stuck: dict[Lane, asyncio.TimerHandle] = {}
        #: Tasks that ask for the owner's word; values mean nothing.
        self._asking: dict[asyncio.Task[None], None] = {}
        self._mending: asyncio.Task[None] | None = None
        #: When that last ended.
        self._mended_at = 0.0
        #: Done with the first lane, or the failure.
        self._ready: asyncio.Future[None] = self._loop.create_future()

    async def open(self) -> None:
        """Ask for the mount and connect, or wait for what was begun. Raises what the owner says, or `Unavailable` where
        no lane came about. Cancelled, it leaves that to go on: the next caller may have more patience."""
        if not self._ready.done():
            self._session.attach(self)
            self._mend_if_due()
            await asyncio.shield(self._ready)
        if self.failure is not None:
            raise self.failure

    @property
    def lanes(self) -> int:
        """How many work now."""
        return len(self._lanes)

    @property
    def busy(self) -> bool:
        """Something goes on in the background."""
        return bool(self._asking or self._stuck) or self._mending is not None

    # -- calls ---------------------------------------------------------------------------------------------------

    async def carry(self, call: Call, items: list[Item]) -> None:
        """Move what `items` say. Every item's slices have ended then. Cancelled, it raises when nothing of the call is
        under way any more; its items may be unfinished then. Raises `PoolError` where nothing was begun."""
        pieces = min([MAX_PIECES, *(device.limits.max_sge for device in self._rails.devices)])
        work = cut(items, Shape(self._chunk_bytes, pieces), self._memory)
        for registration in work.kept:
            registration.use()
        try:
            if self.failure is not None:
                raise self.failure
            if work.slices:
                self._traffic.begin(call, work.slices)
                self._mend_if_due()
                self._pump()
                await call.done
        except asyncio.CancelledError:
            await self._give_up(call)
            raise
        finally:
            self._memory.give_back(work.borrowed)
            for registration in work.kept:
                registration.done()

    async def _give_up(self, call: Call) -> None:
        """Returns, however often it is cancelled, when nothing of the call is under way."""
        given_up = self._traffic.give_up(call)
        timer = self._loop.call_later(GRACE_S, self._cut_short, call)
        await drain(given_up)
        timer.cancel()

    def _cut_short(self, call: Call) -> None:
        reason = TransferFailed("the transfer was given up")
        for lane in list(self._lanes):
            if lane.carries(lambda slice_: slice_.item.call is call):
                self._break(lane, reason)
        self._go_on()

    # -- dealing out ---------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Post what can be posted."""
        finishing = False
        while (slice_ := self._traffic.next()) is not None:
            roomy = (lane for lane in self._lanes if lane.has_room and not lane.leaving)
            lane = min(roomy, key=lambda lane: lane.load_bytes, default=None)
            if lane is None:
                break
            self._traffic.taken(slice_)
            try:
                if slice_.item.is_write and lane.must_confirm:
                    lane.confirm()
                lane.add(slice_)
            except PoolError as error:
                self._traffic.let_go(slice_)
                self._traffic.end(slice_, error)
            finishing |= not slice_.item.call.waiting
        # With the last slice of a batch its writes are confirmed: nobody waits for other batches. And slots come back
        # from writes when these are confirmed.
        confirm = finishing or self._traffic.starved or not self._traffic.waiting
        for lane in list(self._lanes):
            try:
                if confirm:
                    lane.confirm()
                lane.post()
            except PoolError as error:
                self._break(lane, TransferFailed(error.message))
                self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Lanes may have been lost: see to it that what waits is moved."""
        self._mend_if_due()
        self._pump()

    # -- completions and failures --------------------------------------------------------------------------------

    def _on_completions(self, lane: Lane, completions: list[Completion]) -> None:
        if lane.closed:
            return
        progress = lane.take(completions)
        for slice_ in progress.done:
            self._traffic.end(slice_, None)
            self._traffic.let_go(slice_)
        if progress.failure is not None:
            self._break(lane, self._explain(lane, progress.failure))
        elif lane.leaving:
            self._part_if_empty(lane)
        self._go_on()

    def _explain(self, lane: Lane, failure: Completion) -> PoolError:
        """A completion that is none, as an error; counts it against the slice that broke the lane."""
        head = lane.head
        if head is not None and failure.status in _REFUSALS:
            head.refusals += 1
        elif head is not None and failure.status is not Status.FLUSHED:
            head.lost_lanes += 1
        error = TransferFailed(
            f"rdma: {lane.rail.name} to {lane.remote_rail} of {self._session.endpoint}: {failure.status}",
            peer=self._session.endpoint,
            device=lane.rail.name,
            status=str(failure.status),
        )
        log.warning("%s (vendor error %#x); the queue pair is made anew", error, failure.vendor_error)
        return error

    def _break(self, lane: Lane, error: PoolError, *, gone: bool = False, again: bool = True) -> None:
        """A lane is no more. `gone`: its other end is known to be destroyed. `again`: what was under way may be tried
        again."""
        self._lanes.pop(lane, None)
        try:
            slices = lane.close()
        except VerbsError as refused:
            self._wait_for(lane, refused, lambda: self._break(lane, error, gone=gone, again=again))
            return
        self._stuck.pop(lane, None)
        for slice_ in slices:
            self._traffic.let_go(slice_)
        if not gone:
            writes = [slice_ for slice_ in slices if slice_.item.is_write]
            for slice_ in writes:
                slice_.item.in_doubt += 1
            if writes and again:
                self._ask(lane, writes, error)
                slices = [slice_ for slice_ in slices if not slice_.item.is_write]
            else:
                self._session.forget(lane.handle)
        for slice_ in reversed(slices):
            self._once_more(slice_, error, again=again)

    def _wait_for(self, lane: Lane, refused: VerbsError, then: Callable[[], None]) -> None:
        """A queue pair cannot be destroyed: what it may touch is under way until it can."""
        if lane not in self._stuck:
            log.error("%s cannot be destroyed, so memory is not given back that it may touch: %s", lane, refused)

        def try_again() -> None:
            then()
            self._go_on()

        self._stuck[lane] = self._loop.call_later(DESTROY_AGAIN_S, try_again)

    def _once_more(self, slice_: Slice, error: PoolError, *, again: bool) -> None:
        """A slice whose lane broke: in the queue again, or over."""
        if self.failure is not None or not again or self._is_hopeless(slice_):
            self._traffic.end(slice_, self.failure or error)
        else:
            self._traffic.again(slice_)

    def _is_hopeless(self, slice_: Slice) -> bool:
        """Refused again and again; or every lane broke once under it, as those of a device that vanished do, and then
        another: a way that lets through the small read by which a lane proves itself, and no more than that."""
        return slice_.refusals >= MAX_REFUSALS or slice_.lost_lanes > self._wanted

    def _ask(self, lane: Lane, writes: list[Slice], error: PoolError) -> None:
        """Have the owner destroy its end, and go on with the writes then."""

        async def ask() -> None:
            gone = await self._session.disconnect(lane.handle)
            # What was given up meanwhile has been told as in doubt; nobody looks any more.
            for slice_ in reversed(writes):
                slice_.item.in_doubt -= gone
                self._once_more(slice_, error, again=gone)
            self._go_on()

        task = self._loop.create_task(ask(), name=f"pykvpool rdma {lane}")
        self._asking[task] = None
        task.add_done_callback(lambda done: self._asking.pop(done, None))

    # -- what others tell us -------------------------------------------------------------------------------------

    def on_ended(self, handle: int, error: PoolError, again: bool) -> bool:
        """See `pykvpool.fabric.rdma.session.Listener`."""
        lane = next((lane for lane in self._lanes if lane.handle == handle), None)
        if lane is None:
            return False
        self._break(lane, error, gone=True, again=again)
        if isinstance(error, SegmentGone):
            self.fail(error)
        self._loop.call_soon(self._go_on)
        return True

    def on_line_lost(self, error: PoolError) -> None:
        self.fail(error)

    def on_rail_lost(self, rail: Rail, error: PoolError) -> None:
        """A port of ours does not work any more: what was under way there goes on elsewhere."""
        for lane in [lane for lane in self._lanes if lane.rail is rail]:
            self._break(lane, error)
        self._loop.call_soon(self._go_on)

    def fail(self, error: PoolError) -> None:
        """Nothing more here: every lane is destroyed, every slice that is not over fails. Harmless twice."""
        if self.failure is not None:
            return
        self.failure = error
        self._session.detach(self)
        for lane in list(self._lanes):
            self._break(lane, error, again=False)
        self._traffic.fail(error)
        if self._mending is not None:
            self._mending.cancel()
        if not self._ready.done():
            self._ready.set_result(None)

    async def close(self, error: PoolError) -> None:
        """`fail`, and wait for what was begun in the background."""
        self.fail(error)
        for task in [*self._asking, *([self._mending] if self._mending is not None else [])]:
            task.cancel()
            await drain(task)
        # Nothing is under way on these. They need not be waited for as long as a transfer would.
        for lane, timer in self._stuck.items():
            timer.cancel()
            self._connector.discard(lane)
        self._stuck.clear()

    # -- mending -------------------------------------------------------------------------------------------------

    def _mend_if_due(self) -> None:
        """Begin to make the lanes that are missing: at once where there is none, else now and then."""
        if self._mending is not None or self.failure is not None:
            return
        staying = sum(not lane.leaving for lane in self._lanes)
        pause_s = MEND_PAUSE_S if staying < self._wanted else LOOK_AGAIN_S
        if staying and self._loop.time() < self._mended_at + pause_s:
            return
        self._mending = self._loop.create_task(self._mend(), name=f"pykvpool rdma mending {self._session.endpoint}")

    async def _mend(self) -> None:
        error: PoolError | None
        try:
            error = await self._connect_missing()
        except PoolError as raised:
            error = raised
        except asyncio.CancelledError:
            error = Unavailable("connecting was given up")
        except Exception as failure:  # a bug must not leave transfers waiting for ever
            log.exception("rdma: connecting to %s failed", self._session.endpoint)
            error = Unavailable(f"connecting failed: {type(failure).__name__}")
        self._mending = None
        self._mended_at = self._loop.time()
        if error is not None and all(lane.leaving for lane in self._lanes):
            self.fail(error)
        elif self._traffic.waiting:
            self._go_on()

    async def _connect_missing(self) -> PoolError | None:
        """Connect every route that has no lane, as rails are now, all at once. Why none could be, None where one was:
        if it has broken since, that is for whatever it carried to say."""
        rails = self._rails.refresh()
        offer = await self._session.open(self.generation)
        self.size_bytes, self._chunk_bytes = offer.size_bytes, offer.chunk_bytes
        routes = plan(rails, remote_rails(offer), self._queue_pairs)
        self._wanted = len(routes)
        missing: list[Route] = []
        there = [ends for lane, ends in self._lanes.items() if not lane.leaving]
        for route in routes:
            if route.ends in there:
                there.remove(route.ends)
            else:
                missing.append(route)
        results = await run_all([self._connect(route) for route in missing])
        if results == [None] * len(missing):
            self._let_go_of(there)
        return None if None in results else next(iter(results), None)

    def _let_go_of(self, ends: list[Ends]) -> None:
        """Lanes between these are not planned any more, and those in their place are there."""
        for lane, between in list(self._lanes.items()):
            if between in ends and not lane.leaving:
                ends.remove(between)
                lane.leaving = True
                self._part_if_empty(lane)

    def _part_if_empty(self, lane: Lane) -> None:
        """Close a lane that is leaving, once nothing is under way on it."""
        if not lane.is_busy:
            self._break(lane, Unavailable("this lane is not needed any more"))

    async def _connect(self, route: Route) -> PoolError | None:
        """A lane for one route, or why not."""
        try:
            lane = await self._connector.connect(route, self._session, self.generation)
        except PoolError as error:
            return error
        # It has proved itself; things may have happened to it since.
        early = self._session.ended_early(lane.handle)
        refusal = self.failure or (early[0] if early is not None else None)
        if refusal is None and not lane.rail.active:
            refusal = Unavailable(f"{lane.rail.name}: {lane.rail.idle_reason}")
        if refusal is not None:
            self._connector.discard(lane)
            self._session.forget(lane.handle)
            return refusal
        self._lanes[lane] = route.ends
        lane.join(lambda completions: self._on_completions(lane, completions))
        if not self._ready.done():
            self._ready.set_result(None)
        self._pump()
        return None
