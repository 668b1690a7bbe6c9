"""Completions on the event loop: the channel's descriptor wakes us, then everything there is is polled in batches.

One completion queue serves many lanes of a device; what each may have under way is reserved beforehand, because a queue
that overflows is broken. The number of a work request says which lane it belongs to, so that what a destroyed queue
pair leaves behind finds nobody.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

from pykvpool.errors import PoolError, Unavailable
from pykvpool.fabric.rdma.rails import Device
from pykvpool.fabric.verbs import Completion, VerbsError

#: Completions taken by one call into the library, and calls in one turn of the loop.
POLL_BATCH = 64
POLLS_PER_TURN = 16
#: Completions that one queue has room for, where the device allows so many: some dozens of lanes.
QUEUE_DEPTH = 8192
#: A work request's number is the lane's number, then so many bits that count within the lane.
LANE_BITS = 32

#: Numbers of lanes in this process. Never used twice.
lane_numbers = itertools.count(1)

#: Takes the completions of one lane from one poll.
Taker = Callable[[list[Completion]], None]


class Completions:
    """One completion queue, watched by the loop."""

    def __init__(self, device: Device, on_broken: Callable[[Device, PoolError], None]) -> None:
        """Raises `VerbsError`."""
        self.device = device
        self._on_broken = on_broken
        self.queue = device.context.completion_queue(min(QUEUE_DEPTH, device.limits.max_cqe))
        self._free = self.queue.depth
        self._takers: dict[int, Taker] = {}
        self._closed = False
        self._loop = asyncio.get_running_loop()
        try:
            self.queue.arm()
        except VerbsError:
            self.queue.close()
            raise
        self._loop.add_reader(self.queue.fd, self._on_event)

    def reserve(self, count: int) -> bool:
        """Room for `count` more completions under way; False: there is none, use another queue."""
        if count > self._free:
            return False
        self._free -= count
        return True

    def give_back(self, count: int) -> None:
        """What was reserved for a lane that is not there (any more)."""
        self._free += count

    def join(self, lane: int, taker: Taker) -> None:
        self._takers[lane] = taker

    def leave(self, lane: int, reserved: int) -> None:
        """The lane's queue pair is destroyed: what it still has here is nobody's, and takes up room until polled."""
        self._takers.pop(lane, None)
        self._loop.call_soon(self._clear, reserved)

    def close(self) -> None:
        """No lane is left. Raises `VerbsError` as `Device.let_go`; may be called again then."""
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self.queue.fd)
        self.device.let_go(self.queue.close)

    def _on_event(self) -> None:
        try:
            self.queue.take_event()
            self.queue.arm()
        except VerbsError as error:
            self._broken(error)
        else:
            self._poll()

    def _clear(self, reserved: int) -> None:
        if self._poll():
            self._free += reserved
        elif not self._closed:
            self._loop.call_soon(self._clear, reserved)

    def _poll(self) -> bool:
        """Until it is empty, but never for longer than a turn; whether it is."""
        if self._closed:
            return False
        by_lane: dict[int, list[Completion]] = {}
        empty = False
        try:
            for _ in range(POLLS_PER_TURN):
                found = self.queue.poll(POLL_BATCH)
                for completion in found:
                    by_lane.setdefault(completion.id >> LANE_BITS, []).append(completion)
                if len(found) < POLL_BATCH:
                    empty = True
                    break
            else:
                self._loop.call_soon(self._poll)
        except VerbsError as error:
            self._broken(error)
            return False
        for lane, completions in by_lane.items():
            taker = self._takers.get(lane)
            if taker is not None:
                taker(completions)
        return empty

    def _broken(self, error: VerbsError) -> None:
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self.queue.fd)
        self._on_broken(self.device, Unavailable(f"rdma: {error}", device=self.device.name))
