"""Copies between GPU memory and pinned host memory, on streams of our own.

A copy engine of the GPU carries them out, so no multiprocessor is taken from the engine's kernels. There is one stream
for each direction: the two run at once. Enqueueing and waiting happen in an offload thread. `copy` returns, or raises,
only when the copies it enqueued are over, also when it is cancelled; so whoever holds the memory at both ends may then
give it back. If even that cannot be had, the error says so (`Adrift`).

Each transfer's events are waited for on our stream too, which is what orders the copy after the engine's kernels for
the GPU itself; that the host saw them reached first (`pykvpool.memory.cuda`) only keeps one engine step from holding up
everybody's copies behind it on the same stream.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pykvpool.errors import GpuFailed
from pykvpool.memory.cuda_driver import Driver
from pykvpool.memory.cuda_ring import Run
from pykvpool.runtime import Offload, drain

_log = logging.getLogger("pykvpool.fabric.gpu")


@contextmanager
def giving_back(what: str, ordinal: int) -> Iterator[None]:
    """A refusal is logged: a GPU whose context is broken refuses everything, and takes it back with the process."""
    try:
        yield
    except GpuFailed as error:
        _log.warning("%s of GPU %d is not taken back: %s", what, ordinal, error)


class Direction(enum.Enum):
    TO_HOST = "to host"
    TO_DEVICE = "to device"


class Adrift(GpuFailed):
    """Copies failed, and waiting for those that had begun failed too: what they touch must not be used again."""


class CopyQueue:
    """The two streams of one GPU. Opened and closed within the GPU's context."""

    def __init__(self, driver: Driver, ordinal: int, offload: Offload) -> None:
        self._driver = driver
        self._ordinal = ordinal
        self._offload = offload
        self._streams: dict[Direction, int] = {}
        try:
            with driver.current(ordinal):
                for direction in Direction:
                    self._streams[direction] = driver.create_stream()
        except GpuFailed:
            self.close()
            raise

    async def copy(self, direction: Direction, runs: Sequence[Run], after: Sequence[int] = ()) -> None:
        """Carry `runs` out once the events of `after` are reached.

        Raises:
            GpuFailed: nothing of it is under way any more; how much was copied is unknown.
            Adrift: something may be under way for ever.
        """
        if not runs:
            return
        carrying = asyncio.ensure_future(self._offload.run(self._carry, direction, runs, after))
        try:
            await asyncio.wait([carrying])
        except asyncio.CancelledError:
            await drain(carrying)
            error = carrying.exception()
            if error is not None and (isinstance(error, Adrift) or not isinstance(error, GpuFailed)):
                raise error from None  # before the cancellation: this memory must not be given back
            raise
        carrying.result()

    def close(self) -> None:
        """Give the streams back. Nothing may be under way."""
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            with giving_back("a stream", self._ordinal), self._driver.current(self._ordinal):
                self._driver.destroy_stream(stream)

    def _carry(self, direction: Direction, runs: Sequence[Run], after: Sequence[int]) -> None:
        """In an offload thread: enqueueing thousands of copies takes milliseconds, and waits where a stream is full."""
        driver, stream = self._driver, self._streams[direction]
        begun = False
        try:
            with driver.current(self._ordinal):
                done = driver.create_event()
                begun = True
                failure = self._enqueue(direction, stream, runs, after)
                driver.record(done, stream)
                driver.wait(done)
                with giving_back("an event", self._ordinal):
                    driver.destroy_event(done)
        except GpuFailed as error:
            if begun:
                message = f"GPU {self._ordinal} is not usable any more: {error.message}"
                raise Adrift(message, **error.fields) from error
            raise
        if failure is not None:
            raise failure

    def _enqueue(
        self, direction: Direction, stream: int, runs: Sequence[Run], after: Sequence[int]
    ) -> GpuFailed | None:
        """The error that stopped it half way, if one did: what was enqueued before it runs all the same."""
        driver = self._driver
        try:
            for event in after:
                driver.stream_wait(stream, event)
            for run in runs:
                if direction is Direction.TO_HOST:
                    driver.copy_to_host(run.host, run.device, run.size_bytes, stream)
                else:
                    driver.copy_to_device(run.device, run.host, run.size_bytes, stream)
        except GpuFailed as error:
            return error
        return None
