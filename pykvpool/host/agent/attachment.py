"""The node's end of one engine process: its jobs become jobs of the host's client, its bytes pass through its ring.

The jobs run as those of any port (`pykvpool.host.work`); only the mover differs: a part of a job goes through a place
in the ring that the engine's process fills or empties. When the engine's process is gone its jobs end, its holds are
released, and its ring is unmapped once the client has drained.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol

from pykvpool.client import Client
from pykvpool.errors import Closed, PoolError, ProtocolError, Unavailable
from pykvpool.host.access import PoolLine
from pykvpool.host.agent import wire
from pykvpool.host.agent.ring import Place, RingMap
from pykvpool.host.jobs import SaveTally, all_or_first_error, check_loaded, chunks_of, put_item, streams_of
from pykvpool.host.port import Answer, BlockGroup, Lapsed, LoadDone, LoadJob, PortEvent, Removed, SaveDone, SaveJob
from pykvpool.host.work import PortWork
from pykvpool.model.keys import Scope
from pykvpool.transport.base import Stream

log = logging.getLogger("pykvpool.host.agent")

#: Parts of a job that a ring holds at least.
RING_PARTS = 8


class Others(Protocol):
    """What an attachment may ask of its siblings."""

    def fences(self, asking: Attachment, scopes: Sequence[Scope]) -> Iterable[Awaitable[object]]:
        """Fence the saves of all others that concern `scopes`; done when they are."""
        ...


class Attachment:
    """One engine process, from its attaching to its end (`serve`)."""

    def __init__(
        self, name: str, stream: Stream, ring: RingMap, replicas: int, line: PoolLine, lookup_line: PoolLine,
        others: Others,
    ) -> None:  # fmt: skip
        self.name = name
        self._stream = stream
        self._ring = ring
        self._line = line
        self._others = others
        #: What the engine was asked to do with a place in the ring, by ticket; done once it has answered.
        self._answers: dict[int, asyncio.Future[bool]] = {}
        self.work = PortWork(line, _RingMover(self._say, ring, replicas, self._answers), self._tell, lookup_line)
        self._resets: dict[asyncio.Task[None], None] = {}

    async def serve(self) -> None:
        """Until the engine's process is gone; then nothing of it is under way any more."""
        unfollow = self._line.follow(lambda connected: self._say(wire.State(connected)))
        try:
            self._say(wire.State(self._line.connected))
            while (frame := await self._stream.recv()) is not None:
                self._hear(wire.decode_from_engine(frame))
        finally:
            unfollow()
            await self._end()

    async def _end(self) -> None:
        self._stream.abort()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(Unavailable("the engine's process is gone"))
                answer.exception()
        for task in self._resets:
            task.cancel()
        await self.work.close(0.0)
        self._ring.close()

    def _hear(self, message: wire.FromEngine) -> None:
        match message:
            case wire.Save(job=job):
                _check(job.groups)
                self.work.save(job)
            case wire.Load(job=job):
                _check(job.groups)
                self.work.load(job)
            case wire.Filled(ticket=ticket, done=done):
                self._answered(ticket, done)
            case wire.Taken(ticket=ticket):
                self._answered(ticket, True)
            case wire.Drop(job_id=job_id):
                self.work.drop(job_id)
            case wire.Ask(lookup=lookup):
                self.work.lookup(lookup)
            case wire.Release(lookup_id=lookup_id):
                self.work.release(lookup_id)
            case wire.Watch(scopes=scopes):
                self.work.watch(scopes)
            case wire.Fence():
                self.work.fence()
            case wire.Reset():
                task = asyncio.get_running_loop().create_task(self._reset(message))
                self._resets[task] = None
                task.add_done_callback(lambda done: self._resets.pop(done, None))
            case wire.Ping():
                self._say(wire.State(self._line.connected))

    def _answered(self, ticket: int, done: bool) -> None:
        answer = self._answers.get(ticket)
        if answer is None:
            raise ProtocolError(f"an answer about ticket {ticket}, which is not open")
        if not answer.done():
            answer.set_result(done)

    async def _reset(self, message: wire.Reset) -> None:
        error = ""
        try:
            fences = tuple(self._others.fences(self, message.scopes))
            await self.work.reset(message.scopes, message.timeout_ms / 1_000, fences)  # fmt: skip
        except PoolError as failure:
            error = failure.message
        self._say(wire.ResetDone(message.number, error))

    def _tell(self, event: PortEvent) -> None:
        match event:
            case SaveDone():
                self._say(wire.Saved(event))
            case LoadDone():
                self._say(wire.Loaded(event))
            case Answer():
                self._say(wire.Answered(event))
            case Lapsed():
                self._say(wire.HoldLapsed(event))
            case Removed():
                self._say(wire.BlocksRemoved(event))

    def _say(self, message: wire.FromNode) -> None:
        try:
            self._stream.send(wire.encode(message))
        except Closed:
            pass  # the engine's process is gone: `serve` ends
        except PoolError as error:
            log.warning("%s is abandoned: %s", self.name, error)
            self._stream.abort()


class _RingMover:
    """A `Mover` whose memory is the engine's, reached through the ring.

    A place is given back when the engine has answered, or is gone: until then it may still use it.
    """

    def __init__(
        self, say: Callable[[wire.FromNode], None], ring: RingMap, replicas: int,
        answers: dict[int, asyncio.Future[bool]],
    ) -> None:  # fmt: skip
        self._say = say
        self._ring = ring
        self._replicas = replicas
        self._answers = answers
        #: Several parts find room beside each other, so that one is copied while others move.
        self._part_bytes = ring.size_bytes // RING_PARTS
        self._last_ticket = 0

    async def save(self, client: Client, job: SaveJob, tally: SaveTally, timeout_s: float) -> None:
        for number, group in enumerate(job.groups):
            for chunk in chunks_of(group, self._part_bytes):
                there = await client.touch([group.keys[i] for i in chunk], scope=group.scope, timeout_s=timeout_s)
                missing = [i for i, known in zip(chunk, there, strict=True) if not known]
                tally.existed(len(chunk) - len(missing))
                if not await self._put(client, job.job_id, number, group, missing, tally, timeout_s):
                    tally.dropped(tally.last_reason, len(group.keys) - chunk.stop)
                    break

    async def _put(
        self, client: Client, job_id: int, number: int, group: BlockGroup, missing: Sequence[int], tally: SaveTally,
        timeout_s: float,
    ) -> bool:  # fmt: skip
        """Put these blocks, as many at a time as find a place; False: one was dropped, with all behind it."""
        block_bytes = group.block_bytes
        while missing:
            place = await self._ring.take(block_bytes, len(missing))
            part, missing = missing[: place.blocks], missing[place.blocks :]
            ticket, filled = self._open(place)
            self._say(wire.Fill(ticket, job_id, number, tuple(part), place.offset))
            try:
                if not await asyncio.shield(filled):
                    raise Closed("the engine gave the job up")
            except BaseException:
                self._give_back_later(place, filled)
                raise
            try:
                views = [self._ring.view(place.offset + i * block_bytes, block_bytes) for i in range(len(part))]
                items = [put_item(group, i, [view]) for i, view in zip(part, views, strict=True)]
                results = await client.put_batch(
                    items,
                    scope=group.scope,
                    replicas=self._replicas,
                    min_replicas=1,
                    wait=False,
                    timeout_s=timeout_s,
                )
            finally:
                self._ring.give_back(place)
            if not tally.put(results):
                tally.dropped(tally.last_reason, len(missing))
                return False
        return True

    async def load(self, client: Client, job: LoadJob, timeout_s: float) -> int:
        works = [
            self._load(client, job.job_id, number, group, chunks, timeout_s)
            for number, group in enumerate(job.groups)
            for chunks in streams_of(chunks_of(group, self._part_bytes))
        ]
        return await all_or_first_error(works)

    async def _load(
        self, client: Client, job_id: int, number: int, group: BlockGroup, chunks: Sequence[range], timeout_s: float
    ) -> int:
        """The next part is read while the engine copies the last one."""
        block_bytes = group.block_bytes
        for chunk in chunks:
            rest = list(chunk)
            while rest:
                place = await self._ring.take(block_bytes, len(rest))
                part, rest = rest[: place.blocks], rest[place.blocks :]
                try:
                    views = [self._ring.view(place.offset + i * block_bytes, block_bytes) for i in range(len(part))]
                    keys = [group.keys[i] for i in part]
                    results = await client.get_into_batch(keys, views, scope=group.scope, timeout_s=timeout_s)
                    check_loaded(results, block_bytes)
                except BaseException:
                    self._ring.give_back(place)
                    raise
                ticket, taken = self._open(place)
                self._give_back_later(place, taken)
                self._say(wire.Take(ticket, job_id, number, tuple(part), place.offset))
        return block_bytes * sum(map(len, chunks))

    def _open(self, place: Place) -> tuple[int, asyncio.Future[bool]]:
        """A ticket for what the engine is asked to do with a place."""
        self._last_ticket += 1
        ticket = self._last_ticket
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._answers[ticket] = answer
        answer.add_done_callback(lambda done: self._answers.pop(ticket, None))
        return ticket, answer

    def _give_back_later(self, place: Place, answer: asyncio.Future[bool]) -> None:
        answer.add_done_callback(lambda done: self._ring.give_back(place))


def _check(groups: Sequence[BlockGroup]) -> None:
    """Raises `ProtocolError` for what no engine of ours sends."""
    for group in groups:
        if len(group.runs) != 1 or not group.runs[0].length > 0:
            raise ProtocolError("a group of a job has one run, of a block's size")
        if group.parents and len(group.parents) != len(group.keys):
            raise ProtocolError("a group of a job has as many parents as keys")
