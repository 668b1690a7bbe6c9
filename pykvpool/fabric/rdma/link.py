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
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque

from pykvpool.errors import PoolError, SegmentGone, TransferFailed, Unavailable
from pykvpool.fabric.rdma.connecting import Connector, Ends, RemoteRail, Route, plan, remote_rails
from pykvpool.fabric.rdma.lane import MAX_PIECES, Lane
from pykvpool.fabric.rdma.local_memory import LocalMemory
from pykvpool.fabric.rdma.rails import Rail, Rails
from pykvpool.fabric.rdma.session import Session
from pykvpool.fabric.rdma.slices import Call, Item, Shape, Slice, cut
from pykvpool.fabric.verbs import Completion, Status
from pykvpool.model.ids import Generation
from pykvpool.runtime import drain

log = logging.getLogger("pykvpool.fabric.rdma")

#: Times that a slice may be the one that broke a lane. The second time it is the slice, or the owner, not the lane.
MAX_FAILURES = 2
#: What is under way for a call that was given up may end by itself for so long, before its lanes are destroyed: they
#: carry other calls too, and a window's worth of bytes takes milliseconds.
GRACE_S = 0.2
#: Missing lanes are tried again after this time, when there is something to move.
MEND_PAUSE_S = 2.0


class Link:
    """Made by `open`; over when `failure` is set."""

    def __init__(
        self, session: Session, generation: Generation, rails: Rails, connector: Connector, memory: LocalMemory,
        queue_pairs: int,
    ) -> None:  # fmt: skip
        self.generation = generation
        #: Why nothing can be moved here any more; None: it can.
        self.failure: PoolError | None = None
        self._session = session
        self._rails = rails
        self._connector = connector
        self._memory = memory
        self._queue_pairs = queue_pairs
        self._remotes: list[RemoteRail] = []
        self._routes: list[Route] = []
        #: Lanes that work, and between which rails each is meant to be (it may have had to take another of theirs).
        self._lanes: dict[Lane, Ends] = {}
        self._waiting: deque[Slice] = deque()
        #: Writes whose lane broke and that wait for the owner's word: tasks, in order; values mean nothing.
        self._asking: dict[asyncio.Task[None], None] = {}
        self._mending: asyncio.Task[None] | None = None
        self._mend_after = 0.0
        self._loop = asyncio.get_running_loop()

    async def open(self) -> None:
        """Ask for the mount and connect. Raises what the owner says, or `Unavailable` where no lane came about."""
        self._session.attach(self)
        try:
            await self._connect_missing()
        except PoolError as error:
            self.fail(error)
            raise
        except BaseException:
            self.fail(Unavailable("connecting was given up"))
            raise

    @property
    def size_bytes(self) -> int:
        return self._remotes[0].memory.size_bytes

    @property
    def lanes(self) -> int:
        """How many work now."""
        return len(self._lanes)

    @property
    def busy(self) -> bool:
        """Something goes on in the background."""
        return bool(self._asking) or self._mending is not None

    # -- calls ---------------------------------------------------------------------------------------------------

    async def carry(self, call: Call, items: list[Item]) -> None:
        """Move what `items` say. Every item's slices have ended then. Cancelled, it raises when nothing of the call is
        under way any more; its items may be unfinished then."""
        pieces = min([MAX_PIECES, *(device.limits.max_sge for device in self._rails.devices)])
        work = cut(items, Shape(self._remotes[0].memory.chunk_bytes, pieces), self._memory)
        call.left = call.waiting = len(work.slices)
        if not work.slices:
            return
        for registration in work.kept:
            registration.use()
        try:
            if self.failure is not None:
                raise self.failure
            self._waiting += work.slices
            self._mend_if_due()
            self._pump()
            await call.done
        except asyncio.CancelledError:
            self._give_up(call)
            assert call.given_up is not None, "just given up"
            await drain(call.given_up)
            raise
        finally:
            self._memory.give_back(work.borrowed)
            for registration in work.kept:
                registration.done()

    def _give_up(self, call: Call) -> None:
        """Post nothing of it any more, and see that nothing stays under way."""
        call.given_up = self._loop.create_future()
        kept = deque(slice_ for slice_ in self._waiting if slice_.item.call is not call)
        for slice_ in self._waiting:
            if slice_.item.call is call:
                self._release(slice_)
        self._waiting = kept
        if call.under_way:
            timer = self._loop.call_later(GRACE_S, self._cut_short, call)
            call.given_up.add_done_callback(lambda _: timer.cancel())
        else:
            call.given_up.set_result(None)

    def _cut_short(self, call: Call) -> None:
        reason = TransferFailed("the transfer was given up")
        for lane in list(self._lanes):
            if lane.carries(lambda slice_: slice_.item.call is call):
                self._break(lane, reason)
        self._mend_if_due()
        self._pump()

    # -- dealing out ---------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Post what can be posted."""
        confirm = False
        while self._waiting:
            slice_ = self._waiting[0]
            if slice_.item.error is not None:
                self._waiting.popleft()
                slice_.item.call.waiting -= 1
                self._end(slice_, slice_.item.error)
                continue
            lane = min((lane for lane in self._lanes if lane.has_room), key=lambda lane: lane.load_bytes, default=None)
            if lane is None:
                break
            if not self._stage(slice_):
                # Slots come back when what uses them has ended, which for writes is when they are confirmed.
                confirm = True
                break
            self._waiting.popleft()
            call = slice_.item.call
            call.waiting -= 1
            try:
                if slice_.item.is_write and lane.must_confirm:
                    lane.confirm()
                lane.add(slice_)
            except PoolError as error:
                self._end(slice_, error)
                continue
            call.under_way += 1
            # With the last slice of a batch its writes are confirmed: nobody waits for other batches.
            confirm |= not call.waiting
        for lane in list(self._lanes):
            try:
                if confirm or not self._waiting:
                    lane.confirm()
                lane.post()
            except PoolError as error:
                self._break(lane, TransferFailed(error.message))
                self._pump_soon()

    def _pump_soon(self) -> None:
        self._loop.call_soon(self._pump)

    def _stage(self, slice_: Slice) -> bool:
        """Give a slice of plain memory its slot. False: there is none, wait."""
        if not slice_.staged or slice_.slot is not None:
            return True
        staging = self._memory.staging
        slice_.slot = staging.take(slice_.length)
        if slice_.slot is None:
            staging.call_when_free(self._pump)
            return False
        if slice_.item.is_write:
            slice_.slot.gather(slice_.staged, slice_.length)
        return True

    def _release(self, slice_: Slice) -> None:
        """No card uses its slot any more."""
        if slice_.slot is not None:
            self._memory.staging.give_back(slice_.slot)
            slice_.slot = None

    def _end(self, slice_: Slice, error: PoolError | None) -> None:
        """The slice is over, well or with an error; it is neither waiting nor under way."""
        item, call = slice_.item, slice_.item.call
        if error is None and slice_.slot is not None and not item.is_write and call.given_up is None:
            slice_.slot.scatter(slice_.staged, slice_.length)
        self._release(slice_)
        item.left -= 1
        item.error = item.error or error
        call.left -= 1
        if not call.left and not call.done.done():
            call.done.set_result(None)

    def _left_lane(self, slice_: Slice) -> None:
        """No card works on it any more."""
        call = slice_.item.call
        call.under_way -= 1
        if not call.under_way and call.given_up is not None and not call.given_up.done():
            call.given_up.set_result(None)

    # -- completions and failures --------------------------------------------------------------------------------

    def _on_completions(self, lane: Lane, completions: list[Completion]) -> None:
        if lane.closed:
            return
        progress = lane.take(completions)
        for slice_ in progress.done:
            self._end(slice_, None)
            self._left_lane(slice_)
        if progress.failure is not None:
            self._break(lane, self._explain(lane, progress.failure))
            self._mend_if_due()
        self._pump()

    def _explain(self, lane: Lane, failure: Completion) -> PoolError:
        """A completion that is none, as an error; counts it against the slice that broke the lane."""
        head = lane.head
        if head is not None and failure.status is not Status.FLUSHED:
            head.failures += 1
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
        del self._lanes[lane]
        slices = lane.close()
        for slice_ in slices:
            self._left_lane(slice_)
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

    def _once_more(self, slice_: Slice, error: PoolError, *, again: bool) -> None:
        """A slice whose lane broke: in the queue again, or over."""
        call = slice_.item.call
        if call.given_up is not None:
            self._release(slice_)
            return
        if self.failure is not None or not again or slice_.failures >= MAX_FAILURES:
            self._end(slice_, self.failure or error)
            return
        call.waiting += 1
        self._waiting.appendleft(slice_)

    def _ask(self, lane: Lane, writes: list[Slice], error: PoolError) -> None:
        """Have the owner destroy its end, and go on with the writes then."""

        async def ask() -> None:
            gone = await self._session.disconnect(lane.handle)
            # What was given up meanwhile stays in doubt: its caller has gone by what was known then.
            for slice_ in reversed(writes):
                slice_.item.in_doubt -= gone
                self._once_more(slice_, error, again=gone)
            self._mend_if_due()
            self._pump()

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
        self._mend_if_due()
        self._pump_soon()
        return True

    def on_line_lost(self, error: PoolError) -> None:
        self.fail(error)

    def on_rail_lost(self, rail: Rail, error: PoolError) -> None:
        """A port of ours does not work any more: what was under way there goes on elsewhere."""
        for lane in [lane for lane in self._lanes if lane.rail is rail]:
            self._break(lane, error)
        self._mend_if_due()
        self._pump_soon()

    def fail(self, error: PoolError) -> None:
        """Nothing more here: every lane is destroyed, every slice that is not over fails. Harmless twice."""
        if self.failure is not None:
            return
        self.failure = error
        self._session.detach(self)
        for lane in list(self._lanes):
            self._break(lane, error, again=False)
        waiting, self._waiting = self._waiting, deque()
        for slice_ in waiting:
            slice_.item.call.waiting -= 1
            self._end(slice_, error)

    async def close(self, error: PoolError) -> None:
        """`fail`, and wait for what was begun in the background."""
        self.fail(error)
        for task in [*self._asking, *([self._mending] if self._mending is not None else [])]:
            task.cancel()
            await drain(task)

    # -- mending -------------------------------------------------------------------------------------------------

    def _mend_if_due(self) -> None:
        """Begin to make the lanes anew that are missing: at once where none is left, else now and then."""
        if self._mending is not None or self.failure is not None or len(self._lanes) == len(self._routes):
            return
        if self._lanes and self._loop.time() < self._mend_after:
            return
        self._mending = self._loop.create_task(self._mend(), name=f"pykvpool rdma mending {self._session.endpoint}")

    async def _mend(self) -> None:
        try:
            self._rails.refresh()
            await self._connect_missing()
        except PoolError as error:
            if not self._lanes:
                self.fail(error)
        finally:
            self._mending = None
            self._mend_after = self._loop.time() + MEND_PAUSE_S
        self._pump()

    async def _connect_missing(self) -> None:
        """Connect every route that has no lane, as rails are now. Raises where none has one afterwards."""
        remotes = remote_rails(await self._session.open(self.generation))
        rails = self._rails.active
        if not rails:
            raise Unavailable("rdma: no port of this host is up")
        self._remotes = remotes
        self._routes = plan(rails, remotes, self._queue_pairs)
        missing = [route.ends for route in self._routes]
        for ends in self._lanes.values():
            if ends in missing:
                missing.remove(ends)
        errors: list[PoolError] = []
        for route in self._routes:
            if route.ends not in missing or self.failure is not None:
                continue
            missing.remove(route.ends)
            try:
                self._add(await self._connector.connect(route, self._session, self.generation), route)
            except PoolError as error:
                errors.append(error)
                if self._session.failure is not None:
                    break
        if self.failure is not None:
            raise self.failure
        if not self._lanes:
            raise errors[0] if errors else Unavailable("every queue pair broke as soon as it was made")

    def _add(self, lane: Lane, route: Route) -> None:
        """A lane has proved itself. Raises what has happened to it since."""
        early = self._session.ended_early(lane.handle)
        error = self.failure or (early[0] if early is not None else None)
        if error is None and not lane.rail.active:
            error = Unavailable(f"{lane.rail.name}: {lane.rail.idle_reason}")
        if error is not None:
            lane.close()
            self._session.forget(lane.handle)
            raise error
        self._lanes[lane] = route.ends
        lane.join(lambda completions: self._on_completions(lane, completions))
        self._pump()
