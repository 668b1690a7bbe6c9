"""Child processes that never outlive us: how the demo and the bench run real masters, nodes and engines.

Every child has a pipe from us as its standard input and stops when that ends, so even a killed parent leaves nobody
behind. Children are in a session of their own: Ctrl-C at the terminal reaches us alone, and we end them in order. What
a child says on standard error is kept, a bounded part of it, for the message about its failure.
"""

from __future__ import annotations

import asyncio
import collections
import signal
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import msgspec

from pykvpool.cli.boundary import ChildFailed
from pykvpool.cli.supervised import Announcement
from pykvpool.errors import InternalError, ProtocolError

#: How long a child may take to say where it listens (s): a cold start of Python takes half a second, on an
#: emulated processor that others use too a minute.
START_TIMEOUT_S = 120.0
#: How long a child may take to leave once its input has ended, and once it was told to (s).
STOP_TIMEOUT_S = 5.0
#: Lines of a child's standard error that are kept.
KEPT_LINES = 20
#: Longest line that is read from a child (bytes).
MAX_LINE_BYTES = 1 << 20


class Child:
    """One child process."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.process = process
        #: The last lines of its standard error.
        self._complaints: collections.deque[str] = collections.deque(maxlen=KEPT_LINES)
        self._listening = asyncio.create_task(self._listen(), name=f"stderr of {name}")

    @property
    def stdin(self) -> asyncio.StreamWriter:
        writer = self.process.stdin
        if writer is None:
            raise InternalError(f"{self.name} has no standard input")
        return writer

    @property
    def stdout(self) -> asyncio.StreamReader:
        reader = self.process.stdout
        if reader is None:
            raise InternalError(f"{self.name} has no standard output")
        return reader

    async def announcement(self) -> Announcement:
        """Where it listens. Raises `ChildFailed` with its own words where it ended or kept silent."""
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                line = await self.stdout.readline()
        except TimeoutError:
            raise ChildFailed(f"{self.name} did not start within {START_TIMEOUT_S:.0f} s{self.last_words()}") from None
        if not line:
            raise await self.failure("did not start")
        try:
            return msgspec.json.decode(line, type=Announcement)
        except msgspec.MsgspecError as error:
            raise ProtocolError(f"{self.name} announced {line[:200]!r}: {error}") from error

    async def failure(self, what: str) -> ChildFailed:
        """The error to raise for a child that ended by itself: waits for its end and quotes it."""
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._listening
                code = await self.process.wait()
        except TimeoutError:
            return ChildFailed(f"{self.name} {what}: it closed its output and lives{self.last_words()}")
        how = f"it ended with exit code {code}" if code >= 0 else f"it was killed by {signal.Signals(-code).name}"
        return ChildFailed(f"{self.name} {what}: {how}{self.last_words()}", exit_code=code)

    def last_words(self) -> str:
        """What it said last, as the end of a sentence."""
        return ": " + " | ".join(self._complaints) if self._complaints else ""

    def close_input(self) -> None:
        """Tell it to stop."""
        if self.process.stdin is not None:
            self.process.stdin.close()

    async def stopped(self) -> None:
        """Wait until it has ended, with growing insistence. Its input must be closed before."""
        for insist in (self.process.terminate, self.process.kill):
            try:
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await self.process.wait()
                break
            except TimeoutError:
                insist()
        await self.process.wait()
        await self._listening

    async def _listen(self) -> None:
        reader = self.process.stderr
        while reader is not None and (line := await reader.readline()):
            if text := line.decode(errors="replace").strip():
                self._complaints.append(text)


class Children:
    """All children of a run, as a context: leaving it ends them, last started first, and waits until they are gone."""

    def __init__(self) -> None:
        self._children: list[Child] = []

    async def start(self, name: str, module: str, *arguments: str) -> Child:
        """Run ``python -m module arguments``. `name` is for messages."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", module, *arguments,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            start_new_session=True, limit=MAX_LINE_BYTES,
        )  # fmt: skip
        child = Child(name, process)
        self._children.append(child)
        return child

    async def end(self, child: Child) -> None:
        """End one child now."""
        child.close_input()
        await child.stopped()
        self._children.remove(child)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ending = asyncio.ensure_future(self._end_all())
        interrupted: asyncio.CancelledError | None = None
        while not ending.done():
            # A second cancellation must not leave processes behind: finish, then be cancelled.
            try:
                await asyncio.shield(ending)
            except asyncio.CancelledError as cancelled:
                interrupted = cancelled
        ending.result()
        if interrupted is not None:
            raise interrupted

    async def _end_all(self) -> None:
        groups: Sequence[Child] = list(reversed(self._children))
        for child in groups:
            child.close_input()
            await child.stopped()
        self._children.clear()
