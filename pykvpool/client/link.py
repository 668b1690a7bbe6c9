"""The client's line to the master: deadlines, interned scopes, known segments, and work that outlives its caller.

It knows the control session and nothing of block bytes. A session that the master gave up is renewed underneath; what
was interned under the old one is forgotten with it. The numbers that a master gives out (scopes, put_ids, tickets,
leases, segments) mean something in that *life* of the session alone: a restarted master counts from one again. So
whoever holds such numbers says of which life they are, and nothing of an earlier life is ever said in a later one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from typing import TypeVar

from pykvpool.errors import DeadlineExceeded, Overloaded, PoolError, SessionExpired, Unavailable, invariant
from pykvpool.model.base import Tagged
from pykvpool.model.commands import MAX_SCOPES, Command, Intern, PutRevoke, Watch
from pykvpool.model.ids import ScopeId, SegmentId
from pykvpool.model.keys import Scope
from pykvpool.model.objects import SegmentDescriptor
from pykvpool.model.replies import Done, Interned
from pykvpool.runtime import Runtime
from pykvpool.transport.control import ControlSession

log = logging.getLogger("pykvpool.client")

R = TypeVar("R", bound=Tagged)

#: Told of keys that left a scope.
OnRemoved = Callable[[Scope, tuple[bytes, ...]], None]

#: Most segment descriptors remembered; a cluster has one or a few per node, remounts leave old ones behind.
MAX_KNOWN_SEGMENTS = 4_096
#: How long background clean-up (revokes, releases) may take before it is left to the master's own time-outs.
CLEANUP_TIMEOUT_S = 5.0
#: Pause before a revoke that did not get through is said again.
INSIST_PAUSE_S = 0.5


class MasterLink:
    """Typed calls with deadlines. All times in milliseconds of the runtime's clock."""

    def __init__(self, session: ControlSession, runtime: Runtime) -> None:
        self.session = session
        self.runtime = runtime
        #: Scope -> number, valid in the life `_scopes_of` alone.
        self._scopes: dict[Scope, ScopeId] = {}
        self._scopes_of = 0
        #: Every mount a reply of this life named lately; look them up before anything else is awaited.
        self._segments: dict[SegmentId, SegmentDescriptor] = {}
        #: Clean-up that runs on after its caller is gone. A dict: it iterates in order of creation.
        self._background: dict[asyncio.Task[None], None] = {}
        #: By life of the session: revokes that the master has not answered.
        self._unsaid: Counter[int] = Counter()
        #: Scopes that are watched in every life, and who is told; an empty tuple of keys: anything may have gone.
        self.watched: dict[Scope, None] = {}
        self.on_removed: OnRemoved | None = None
        #: The goodbye is on its way or said: it ends every lease.
        self.leaving = False

    def now_ms(self) -> int:
        return self.runtime.clock.now_ms()

    def deadline_ms(self, timeout_s: float) -> int:
        return self.now_ms() + int(timeout_s * 1_000)

    def remaining_s(self, deadline_ms: int) -> float:
        """Seconds left; raises `DeadlineExceeded` where none are."""
        left_ms = deadline_ms - self.now_ms()
        if left_ms <= 0:
            raise DeadlineExceeded("the deadline of this call has passed")
        return left_ms / 1_000

    @property
    def life(self) -> int:
        """The present life of the session."""
        return self.session.incarnation

    async def call(self, command: Command, expect: type[R], deadline_ms: int, life: int | None = None) -> R:
        """Send one command; its reply is an `expect` or the `PoolError` it stands for.

        `life`: of the numbers in the command. Raises `SessionExpired` where that is over.
        """
        if life not in (None, self.life):
            raise SessionExpired(f"session {self.session.name!r} was renewed: what the old one held is gone")
        reply = await self.session.call(command, self.remaining_s(deadline_ms))
        invariant(isinstance(reply, expect), f"{type(command).__name__} was answered with {type(reply).__name__}")
        return reply  # type: ignore[return-value]  # just checked; mypy cannot narrow through invariant

    async def scope_ids(self, scopes: Iterable[Scope], deadline_ms: int) -> list[ScopeId]:
        """Numbers of `scopes`, asked of the master once per session."""
        wanted = list(scopes)
        if self.life != self._scopes_of:
            self._scopes.clear()
            self._scopes_of = self.life
        unknown = tuple(dict.fromkeys(scope for scope in wanted if scope not in self._scopes))
        if unknown:
            reply = await self.call(Intern(unknown), Interned, deadline_ms)
            self._scopes.update(zip(unknown, reply.scopes, strict=True))
        return [self._scopes[scope] for scope in wanted]

    async def scope_id(self, scope: Scope, deadline_ms: int) -> ScopeId:
        return (await self.scope_ids((scope,), deadline_ms))[0]

    def removed(self, number: ScopeId, keys: tuple[bytes, ...]) -> None:
        """The master says that these left the pool."""
        scope = next((scope for scope, known in self._scopes.items() if known == number), None)
        if scope is not None and self.on_removed is not None and self._scopes_of == self.life:
            self.on_removed(scope, keys)

    async def watch_again(self) -> None:
        """In a new life of the session: whoever watches may have missed anything."""
        scopes = tuple(self.watched)
        if not scopes:
            return
        await self.watch(scopes)
        if self.on_removed is not None:
            for scope in scopes:
                self.on_removed(scope, ())

    async def watch(self, scopes: tuple[Scope, ...]) -> None:
        """Raises as any call."""
        deadline_ms, life = self.deadline_ms(CLEANUP_TIMEOUT_S), self.life
        for start in range(0, len(scopes), MAX_SCOPES):
            numbers = await self.scope_ids(scopes[start : start + MAX_SCOPES], deadline_ms)
            await self.call(Watch(tuple(numbers)), Done, deadline_ms, life)

    def learn(self, segments: Iterable[SegmentDescriptor]) -> None:
        """Remember the descriptors a reply carried."""
        for segment in segments:
            self._segments[segment.segment] = segment
        while len(self._segments) > MAX_KNOWN_SEGMENTS:
            del self._segments[next(iter(self._segments))]

    def segment(self, segment: SegmentId) -> SegmentDescriptor:
        known = self._segments.get(segment)
        invariant(known is not None, f"the master named segment {segment} without describing it")
        assert known is not None
        return known

    def node_name(self, segment: int) -> str:
        """Name of the node that lent a segment, empty where no reply described it."""
        known = self._segments.get(SegmentId(segment))
        return known.node if known is not None else ""

    def spawn(
        self,
        work: Callable[[], Coroutine[object, object, object]],
        what: str,
        limit_s: float | None = CLEANUP_TIMEOUT_S,
    ) -> None:
        """Run clean-up in the background. Its failure is logged, not raised: the master cleans up by itself later.

        A closing link may end it before it began: then `work` is not even called.
        """

        async def run() -> None:
            try:
                await asyncio.wait_for(work(), limit_s)
            except (PoolError, TimeoutError) as error:
                log.debug("%s did not get through: %s", what, error)

        task = asyncio.get_running_loop().create_task(run(), name=f"pykvpool {what}")
        self._background[task] = None
        task.add_done_callback(lambda done: self._background.pop(done, None))

    def tell(self, command: Command, life: int) -> None:
        """Send a command whose answer nobody waits for (release, revoke, forget); not at all after that life."""
        if isinstance(command, PutRevoke):
            self._unsaid[life] += 1
            self.spawn(lambda: self._insist(command, life), "PutRevoke", None)
            return
        deadline_ms = self.deadline_ms(CLEANUP_TIMEOUT_S)
        self.spawn(lambda: self.call(command, Done, deadline_ms, life), type(command).__name__)

    async def _insist(self, command: PutRevoke, life: int) -> None:
        """Say it until it is heard or that life is over. Leases and tickets run out by themselves; of a put that ran
        out of time nobody but its writer knows what may still land, so its extents would stay in quarantine for as
        long as the session lives."""
        while True:
            try:
                await self.call(command, Done, self.deadline_ms(CLEANUP_TIMEOUT_S), life)
                break
            except (DeadlineExceeded, Unavailable, Overloaded) as error:
                log.debug("PutRevoke did not get through yet: %s", error)
                await asyncio.sleep(INSIST_PAUSE_S)
        self._unsaid[life] -= 1

    async def close(self) -> None:
        """Let clean-up finish (bounded), then say goodbye. Without a master there is no use in waiting: it cleans up
        after a session that does not come back. And so it has to, without a goodbye, where it could not be told what
        may still land: a goodbye says that nothing is under way."""
        if self.session.connected and self._background:
            await asyncio.wait(list(self._background), timeout=CLEANUP_TIMEOUT_S)
        for task in self._background:
            task.cancel()
        while self._background:
            await asyncio.wait(list(self._background))
        self.leaving = True
        await self.session.close(goodbye=not self._unsaid[self.life])
