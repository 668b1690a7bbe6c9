"""The slices of one link that are not over: which wait, which are under way, and what becomes of their memory.

It counts for each call how many of its slices wait, are under way, and are not over; ends the call with its last
slice; and lets a caller who gives up go as soon as nothing of his is under way any more. It knows no lanes: `link`
deals slices out, and says when a lane has let go of one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from pykvpool.errors import PoolError
from pykvpool.fabric.rdma.slices import Call, Slice
from pykvpool.fabric.rdma.staging import Staging


class Traffic:
    """`wake` is called, soon, when a slice that found no slot may find one now."""

    def __init__(self, staging: Staging, wake: Callable[[], None]) -> None:
        self._staging = staging
        self._wake = wake
        self._waiting: deque[Slice] = deque()
        #: The first waiting slice found no slot when it was last looked at.
        self.starved = False

    @property
    def waiting(self) -> bool:
        return bool(self._waiting)

    def begin(self, call: Call, slices: Sequence[Slice]) -> None:
        """All slices of a new call, in order."""
        call.left = call.waiting = len(slices)
        self._waiting += slices

    def next(self) -> Slice | None:
        """The slice to post next, with its slot where it needs one; it stays first until `taken`. None: nothing can be
        posted now."""
        self.starved = False
        while self._waiting:
            slice_ = self._waiting[0]
            if slice_.item.error is None:
                return slice_ if self._stage(slice_) else None
            self._waiting.popleft()
            slice_.item.call.waiting -= 1
            self.end(slice_, slice_.item.error)
        return None

    def taken(self, slice_: Slice) -> None:
        """What `next` gave is under way from now on."""
        self._waiting.popleft()
        slice_.item.call.waiting -= 1
        slice_.item.call.under_way += 1

    def let_go(self, slice_: Slice) -> None:
        """No card works on it any more. Say `end` or `again` too."""
        call = slice_.item.call
        call.under_way -= 1
        if not call.under_way and call.given_up is not None and not call.given_up.done():
            call.given_up.set_result(None)

    def again(self, slice_: Slice) -> None:
        """To the front of the queue: what it was to move did not arrive. Nothing, where its caller has gone."""
        if slice_.item.call.given_up is not None:
            self._release(slice_)
            return
        slice_.item.call.waiting += 1
        self._waiting.appendleft(slice_)

    def end(self, slice_: Slice, error: PoolError | None) -> None:
        """It is over, well or with an error. One that is under way ends before it is let go of: until then its caller
        waits, given up or not, and its memory may be written to."""
        item, call = slice_.item, slice_.item.call
        if error is None and slice_.slot is not None and not item.is_write:
            slice_.slot.scatter(slice_.staged, slice_.length)
        self._release(slice_)
        item.left -= 1
        item.error = item.error or error
        call.left -= 1
        if not call.left and not call.done.done():
            call.done.set_result(None)

    def give_up(self, call: Call) -> asyncio.Future[None]:
        """Post nothing of it any more; done when nothing of it is under way."""
        given_up = call.given_up = asyncio.get_running_loop().create_future()
        for slice_ in self._waiting:
            if slice_.item.call is call:
                self._release(slice_)
        self._waiting = deque(slice_ for slice_ in self._waiting if slice_.item.call is not call)
        if not call.under_way:
            given_up.set_result(None)
        return given_up

    def fail(self, error: PoolError) -> None:
        """Everything that waits is over."""
        waiting, self._waiting = self._waiting, deque()
        for slice_ in waiting:
            slice_.item.call.waiting -= 1
            self.end(slice_, error)

    def _stage(self, slice_: Slice) -> bool:
        """Give a slice of plain memory its slot. False: there is none."""
        if not slice_.staged or slice_.slot is not None:
            return True
        slice_.slot = self._staging.take(slice_.length)
        if slice_.slot is None:
            self.starved = True
            self._staging.call_when_free(self._wake)
            return False
        if slice_.item.is_write:
            slice_.slot.gather(slice_.staged, slice_.length)
        return True

    def _release(self, slice_: Slice) -> None:
        """Its slot is nobody's."""
        if slice_.slot is not None:
            self._staging.give_back(slice_.slot)
            slice_.slot = None
