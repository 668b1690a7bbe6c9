"""`World`: one master core, driven by hand. It advances time, validates after every step, and keeps the facts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pykvpool.core.config import CoreConfig
from pykvpool.core.effects import Effects
from pykvpool.core.master import MasterCore
from pykvpool.errors import PoolError
from pykvpool.model import commands
from pykvpool.model.events import Disconnected, Event, Hello, Request, Tick
from pykvpool.model.facts import Fact
from pykvpool.model.ids import Generation, LeaseId, PutId, RequestId, ScopeId, SegmentId, SessionId, TicketId
from pykvpool.model.instructions import Instruction
from pykvpool.model.keys import Scope
from pykvpool.model.objects import Pin
from pykvpool.model.replies import (
    Done,
    ErrorInfo,
    Existing,
    Flags,
    Interned,
    Located,
    Mounted,
    ObjectInfo,
    Pending,
    PutGrant,
    PutStarted,
    Reply,
    Welcome,
)

T = TypeVar("T")
#: Steps that one command may take until its reply is there; long work goes in slices.
MAX_STEPS = 10_000


@dataclass
class Peer:
    """One session, as its owner would know it."""

    world: World
    id: SessionId
    name: str
    incarnation: int
    last_request: int = 0
    #: Replies by request id, in the order they came (a repeat adds another).
    replies: dict[int, list[Reply]] = field(default_factory=dict)
    instructions: list[Instruction] = field(default_factory=list)

    def is_alive(self) -> bool:
        return self.id in self.world.core._context.state.sessions.by_id

    def send(self, command: commands.Command, acknowledged: int = 0) -> int:
        """Send without waiting; returns the request id."""
        self.last_request += 1
        self.world.step(Request(self.id, RequestId(self.last_request), RequestId(acknowledged), command))
        return self.last_request

    def repeat(self, request_id: int, command: commands.Command) -> None:
        self.world.step(Request(self.id, RequestId(request_id), RequestId(0), command))

    def reply(self, request_id: int) -> Reply | None:
        replies = self.replies.get(request_id, [])
        return replies[0] if replies else None

    def ask(self, command: commands.Command, kind: type[T]) -> T:
        """Send, let slices run, and return the reply; raises the error of an `ErrorInfo`."""
        acknowledged = min(self.last_request, *(n - 1 for n in self.world.unanswered(self) or [1 << 60]))
        request_id = self.send(command, acknowledged)
        self.world.settle(lambda: self.reply(request_id) is not None)
        reply = self.reply(request_id)
        if isinstance(reply, ErrorInfo):
            raise reply.error()
        assert isinstance(reply, kind), reply
        return reply

    # -- writes ------------------------------------------------------------------------------------------------------

    def put_start(self, *keys: bytes, size: int | tuple[int, ...] = 64, **options: Any) -> list[Any]:
        sizes = (size,) * len(keys) if isinstance(size, int) else size
        options.setdefault("scope", self.world.scope)
        return list(self.ask(commands.PutStart(hashes=keys, sizes=sizes, **options), PutStarted).entries)

    def grant(self, key: bytes, size: int = 64, **options: Any) -> PutGrant:
        entry = self.put_start(key, size=size, **options)[0]
        if isinstance(entry, ErrorInfo):
            raise entry.error()
        assert isinstance(entry, PutGrant), entry
        return entry

    def pending(self, key: bytes, size: int = 64, **options: Any) -> Pending:
        entry = self.put_start(key, size=size, **options)[0]
        assert isinstance(entry, Pending), entry
        return entry

    def put_end(self, put_id: PutId, landed: int = 0xFF, checksum: int | None = 7, uncertain: int = 0) -> None:
        """Ends one put; raises its error."""
        put = self.world.core._context.state.puts.by_id.get(put_id)
        if landed == 0xFF:
            landed = (1 << len(put.extents)) - 1 if put else 1
        self.fine(commands.PutEnd((put_id,), (checksum,), (landed,), (uncertain,)))

    def put_revoke(self, put_id: PutId, uncertain: int = 0) -> None:
        self.fine(commands.PutRevoke((put_id,), (uncertain,)))

    def put(self, *keys: bytes, size: int = 64, **options: Any) -> list[PutGrant]:
        """Start, write and end; every key must be granted."""
        entries = self.put_start(*keys, size=size, **options)
        for entry in entries:
            assert isinstance(entry, PutGrant), entry
            self.put_end(entry.put_id)
        return entries

    def chain(self, *keys: bytes, size: int = 64, **options: Any) -> None:
        """Put keys as one chain, each the parent of the next."""
        self.put(*keys, size=size, parents=(None, *keys[:-1]), **options)

    def wait(self, *tickets: TicketId, timeout_ms: int = 0) -> list[Any]:
        return list(self.ask(commands.PutWait(tickets, timeout_ms), PutStarted).entries)

    def send_wait(self, *tickets: TicketId, timeout_ms: int = 30_000) -> int:
        return self.send(commands.PutWait(tickets, timeout_ms))

    def entries(self, request_id: int) -> list[Any] | None:
        reply = self.reply(request_id)
        return None if reply is None else list(reply.entries)  # type: ignore[union-attr]

    # -- reads and the rest ------------------------------------------------------------------------------------------

    def exists(self, *keys: bytes) -> list[int]:
        return list(self.ask(commands.Exists(self.world.scope, keys), Flags).flags)

    def locate(self, *keys: bytes, lease_ms: int = 0) -> Located:
        return self.ask(commands.GetReplicas(self.world.scope, keys, lease_ms), Located)

    def lease(self, *keys: bytes, lease_ms: int = 0) -> LeaseId:
        located = self.locate(*keys, lease_ms=lease_ms)
        assert all(isinstance(info, ObjectInfo) for info in located.objects), located
        assert located.lease is not None
        return located.lease

    def release(self, *leases: LeaseId) -> None:
        self.fine(commands.Release(leases))

    def remove(self, key: bytes, force: bool = False) -> None:
        self.fine(commands.Remove(self.world.scope, (key,), force))

    def pin(self, key: bytes, pin: Pin) -> None:
        self.fine(commands.SetPin(self.world.scope, (key,), pin))

    def mount(self, size: int, generation: int | None = None) -> SegmentId:
        self.world.generations += 1
        generation = self.world.generations if generation is None else generation
        command = commands.Mount(Generation(generation), size, (f"inproc://{self.name}",))
        return self.ask(command, Mounted).segment

    def fine(self, command: commands.Command) -> None:
        """A command that answers `Done`; raises the first error in it."""
        for error in self.ask(command, Done).errors:
            if error is not None:
                raise error.error()

    def disconnect(self) -> None:
        self.world.step(Disconnected(self.id))

    def told(self, kind: type[T]) -> list[T]:
        """Instructions of one kind so far, and forget them."""
        found = [instruction for instruction in self.instructions if isinstance(instruction, kind)]
        self.instructions = [instruction for instruction in self.instructions if not isinstance(instruction, kind)]
        return found


class World:
    """A core with its clock, its peers and everything it has said."""

    def __init__(self, **config: Any) -> None:
        self.config = CoreConfig(**config)
        self.core = MasterCore(self.config, epoch=1)
        self.now = 1_000
        self.peers: dict[SessionId, Peer] = {}
        self.facts: list[Fact] = []
        self.generations = 0
        self.connections = 0
        self.incarnations = 0
        self.scope = ScopeId(0)

    def step(self, event: Event) -> Effects:
        effects = self.core.step(event, self.now)
        self.core.validate()
        self.facts += effects.facts
        for session, request_id, reply in effects.replies:
            if session in self.peers:
                self.peers[session].replies.setdefault(request_id, []).append(reply)
        for session, instruction in effects.instructions:
            if session in self.peers:
                self.peers[session].instructions.append(instruction)
        return effects

    def settle(self, done: Callable[[], bool] | None = None) -> None:
        """Step until `done`, or (without it) until nothing is wanted at this moment."""
        for _ in range(MAX_STEPS):
            if done is not None and done():
                return
            deadline = self.core.next_deadline()
            if deadline is None or deadline > self.now:
                assert done is None or done(), "nothing is going to happen at this time"
                return
            self.step(Tick())
        raise AssertionError(f"not settled after {MAX_STEPS} steps")

    def advance(self, ms: int) -> None:
        """Let time pass, stepping at every deadline on the way."""
        until = self.now + ms
        while (deadline := self.core.next_deadline()) is not None and deadline <= until:
            self.now = max(self.now, deadline)
            self.step(Tick())
        self.now = until

    def idle(self, ms: int, *alive: Peer, every_ms: int = 1_000) -> None:
        """Let time pass while these peers keep their sessions alive."""
        until = self.now + ms
        while self.now < until:
            self.advance(min(every_ms, until - self.now))
            for peer in alive:
                if peer.is_alive():
                    peer.ask(commands.Heartbeat(), object)

    def hello(self, name: str, role: str = "client", incarnation: int | None = None) -> Welcome:
        """Raises the error of a refusal."""
        self.connections += 1
        if incarnation is None:
            self.incarnations += 1
            incarnation = self.incarnations
        effects = self.step(Hello(self.connections, name, role, incarnation))
        answers = [reply for session, number, reply in effects.replies if (session, number) == (0, self.connections)]
        assert len(answers) == 1
        if isinstance(answers[0], ErrorInfo):
            raise answers[0].error()
        assert isinstance(answers[0], Welcome)
        welcome = answers[0]
        if welcome.session not in self.peers:
            self.peers[welcome.session] = Peer(self, welcome.session, name, incarnation)
            for session, instruction in effects.instructions:
                if session == welcome.session:
                    self.peers[session].instructions.append(instruction)
        return welcome

    def peer(self, name: str, role: str = "client") -> Peer:
        return self.peers[self.hello(name, role).session]

    def node(self, name: str, *sizes: int) -> Peer:
        """A node that has mounted segments of these sizes."""
        node = self.peer(name, "node")
        for size in sizes:
            node.mount(size)
        return node

    def client(self, name: str = "client") -> Peer:
        """A client that has interned the world's scope."""
        client = self.peer(name)
        self.scope = client.ask(commands.Intern((Scope("default"),)), Interned).scopes[0]
        return client

    def unanswered(self, peer: Peer) -> list[int]:
        return [number for number in range(1, peer.last_request + 1) if not peer.replies.get(number)]

    def free_bytes(self) -> int:
        return sum(segment.space.free_bytes for segment in self.core._context.state.segments.by_id.values())

    def quarantined_bytes(self) -> int:
        return sum(segment.quarantined_bytes for segment in self.core._context.state.segments.by_id.values())

    def facts_of(self, kind: type[T]) -> list[T]:
        return [fact for fact in self.facts if isinstance(fact, kind)]

    def replayed(self) -> MasterCore:
        """A fresh core that was told all facts so far."""
        core = MasterCore(self.config, epoch=2)
        for fact in self.facts:
            core.evolve(fact)
        return core


def error_of(entry: object) -> PoolError:
    """The error of a batch entry."""
    assert isinstance(entry, ErrorInfo), entry
    return entry.error()


def is_existing(entry: object) -> bool:
    return isinstance(entry, Existing)
