"""RDMA devices in memory: a `Verbs` whose queue pairs really move bytes between registered buffers of this process.

It keeps the rules that real devices keep: a request is checked against both ends' protection domains, keys, bounds and
rights; requests of a queue pair run in order; a failed one breaks the queue pair and flushes the rest; a slot of the
send queue is free again only when a completion at or behind it was polled; a completion wakes only an armed queue; a
packet from a peer other than the connected one is dropped, and silence ends as exhausted retries. What it does at once
takes a real device a while: `hold` and `step` put that time into a test's hands.

    verbs = FakeVerbs("mlx0", "mlx1")            # two devices on one network
    verbs["mlx0"].fail_next(Status.REMOTE_ACCESS)
    verbs["mlx1"].drop()                         # fatal: it is gone

The moving of bytes is in `fake_rnic`; `calls` records what was asked, by name.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Sequence

from pykvpool.fabric.verbs import (
    Access,
    Completion,
    DeviceName,
    Event,
    EventKind,
    Limits,
    LinkLayer,
    MemoryRegion,
    Path,
    Port,
    PortState,
    QueuePairLimits,
    QueuePairState,
    RemoteQueuePair,
    Retries,
    Status,
    VerbsError,
    WorkRequest,
)
from pykvpool.fabric.verbs.lifetime import Handle
from pykvpool.fabric.verbs.protocol import CompletionQueue
from tests.fabric.fake_rnic import FakeDevice, Network, carry_out

State = QueuePairState


class FakeVerbs:
    """The library: devices by name, all on one network."""

    name = "fake"
    version = "1"

    def __init__(self, *names: str) -> None:
        #: A test of the limit on locked memory says that it counts here.
        self.pins_memory = False
        self.network = Network()
        self._devices = {name: FakeDevice(name, self.network) for name in names or ("fake0", "fake1")}

    def __getitem__(self, name: str) -> FakeDevice:
        return self._devices[name]

    def devices(self) -> list[DeviceName]:
        return [DeviceName(name, guid) for guid, name in enumerate(self._devices, 1)]

    def open(self, name: str) -> FakeContext:
        device = self._devices.get(name)
        if device is None or device.gone:
            raise VerbsError("open", name, errno.ENODEV, f"no such device (there are: {', '.join(self._devices)})")
        device.called("open")
        return FakeContext(device)


class FakeContext(Handle):
    def __init__(self, rnic: FakeDevice) -> None:
        super().__init__(rnic.name)
        self.name = rnic.name
        self.rnic = rnic
        self.event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_SEMAPHORE | os.EFD_CLOEXEC)
        self._events: deque[Event] = deque()
        rnic.contexts.append(self)

    def limits(self) -> Limits:
        self.rnic.called("limits")
        return self.rnic.limits

    def port(self, number: int) -> Port:
        self.rnic.called("port")
        self.rnic.must_be_here("query")
        if number != 1:
            raise VerbsError(f"query port {number}", self.name, errno.EINVAL, "no such port")
        return Port(
            number,
            PortState.ACTIVE if self.rnic.up else PortState.DOWN,
            LinkLayer.ETHERNET,
            lid=0,
            active_mtu_bytes=self.rnic.mtu_bytes,
            max_message_bytes=1 << 30,
            gids=self.rnic.gids,
        )

    def tell(self, kind: EventKind) -> None:
        self._events.append(Event(self.name, kind))
        os.eventfd_write(self.event_fd, 1)

    def next_event(self) -> Event | None:
        self.rnic.called("next_event")
        if not self._events:
            return None
        os.eventfd_read(self.event_fd)
        return self._events.popleft()

    def protection_domain(self) -> FakeDomain:
        self.rnic.called("protection_domain")
        self.rnic.must_be_here("allocate a protection domain")
        return FakeDomain(self)

    def completion_queue(self, depth: int) -> FakeCompletions:
        self.rnic.called("completion_queue")
        self.rnic.must_be_here("create a completion queue")
        if not 0 < depth <= self.rnic.limits.max_cqe:
            raise VerbsError("create a completion queue", self.name, errno.EINVAL, f"depth {depth}")
        return FakeCompletions(self, depth)

    def _destroy(self) -> None:
        self.rnic.called("close context")
        self.rnic.contexts.remove(self)
        os.close(self.event_fd)
        self.rnic.closed("close context")


class FakeDomain(Handle):
    def __init__(self, context: FakeContext) -> None:
        super().__init__(context.device, context)
        self.rnic = context.rnic
        self.context = context

    def register(self, address: int, length: int, access: Access) -> FakeRegion:
        self.rnic.called("register")
        self.rnic.must_be_here("register memory")
        self.rnic.refuse_registration(address, length)
        return FakeRegion(self, address, length, access)

    def register_dmabuf(self, fd: int, offset: int, length: int, address: int, access: Access) -> FakeRegion:
        """Refused, as by Soft-RoCE, unless a test says that it is taken: then the memory is that at `address`, and
        its name that or, as with pyverbs, the offset."""
        self.rnic.called("register_dmabuf")
        if self.rnic.dma_buf == "refused":
            raise VerbsError("register a dma-buf", self.device, errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        region = FakeRegion(self, address, length, access)
        if self.rnic.dma_buf == "by offset":
            region.address, region.shift = offset, address - offset
        return region

    def queue_pair(self, completions: CompletionQueue, limits: QueuePairLimits) -> FakeQueuePair:
        assert isinstance(completions, FakeCompletions)
        self.rnic.called("queue_pair")
        self.rnic.must_be_here("create a queue pair")
        allowed = self.rnic.limits
        if not (0 < limits.send_depth <= allowed.max_qp_wr and 0 < limits.max_sge <= allowed.max_sge):
            raise VerbsError("create a queue pair", self.device, errno.EINVAL, f"beyond the device: {limits}")
        return FakeQueuePair(self, completions, limits)

    def _destroy(self) -> None:
        self.rnic.called("close domain")
        self.rnic.closed("close domain")


class FakeRegion(Handle):
    def __init__(self, domain: FakeDomain, address: int, length: int, access: Access) -> None:
        super().__init__(domain.device, domain)
        self.domain = domain
        self.address = address
        self.length = length
        self.access = access
        #: From the addresses that requests name to those of the bytes.
        self.shift = 0
        self.rnic = domain.rnic
        self.lkey = self.rkey = self.rnic.new_key()
        self.rnic.regions[self.rkey] = self
        _conforms: MemoryRegion = self

    def holds(self, address: int, length: int) -> bool:
        return self.address <= address and address + length <= self.address + self.length

    def _destroy(self) -> None:
        self.rnic.called("close region")
        del self.rnic.regions[self.rkey]
        self.rnic.closed("close region")


class FakeCompletions(Handle):
    def __init__(self, context: FakeContext, depth: int) -> None:
        super().__init__(context.device, context)
        self.rnic = context.rnic
        self.context = context
        self.depth = depth
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_SEMAPHORE | os.EFD_CLOEXEC)
        #: With the queue pair's running number of the request, whose slots polling sets free.
        self._entries: deque[tuple[Completion, FakeQueuePair, int]] = deque()
        self._armed = False
        self.overrun = False

    def arm(self) -> None:
        self.rnic.called("arm")
        self._armed = True

    def take_event(self) -> int:
        self.rnic.called("take_event")
        try:
            return os.eventfd_read(self.fd)
        except BlockingIOError:
            return 0

    def push(self, completion: Completion, pair: FakeQueuePair, position: int) -> None:
        if len(self._entries) >= self.depth:
            if not self.overrun:
                self.overrun = True
                self.context.tell(EventKind.CQ_ERROR)
            return
        self._entries.append((completion, pair, position))
        if self._armed:
            self._armed = False
            os.eventfd_write(self.fd, 1)

    def poll(self, limit: int) -> list[Completion]:
        self.rnic.called("poll")
        polled = []
        while self._entries and len(polled) < limit:
            completion, pair, position = self._entries.popleft()
            pair.retired = max(pair.retired, position)
            polled.append(completion)
        return polled

    def forget(self, pair: FakeQueuePair) -> None:
        """What some drivers do when a queue pair is destroyed: its completions vanish."""
        self._entries = deque(entry for entry in self._entries if entry[1] is not pair)

    def _destroy(self) -> None:
        self.rnic.called("close completion queue")
        os.close(self.fd)
        self.rnic.closed("close completion queue")


class FakeQueuePair(Handle):
    def __init__(self, domain: FakeDomain, completions: FakeCompletions, limits: QueuePairLimits) -> None:
        super().__init__(domain.device, domain, completions)
        self.domain = domain
        self.rnic = domain.rnic
        self.completions = completions
        self.limits = limits
        self.number = self.rnic.network.new_number()
        self.access = Access.NONE
        self.remote: RemoteQueuePair | None = None
        self.path: Path | None = None
        self.psn: int | None = None
        self._state = State.RESET
        #: Posted and not carried out: (running number, request).
        self.queue: deque[tuple[int, WorkRequest]] = deque()
        #: Requests posted so far, and the last of them whose slot is free again.
        self.posted = 0
        self.retired = 0
        self.rnic.pairs[self.number] = self

    @property
    def state(self) -> QueuePairState:
        return self._state

    def to_init(self, port: int, access: Access) -> None:
        self._must_be(State.RESET, "INIT")
        if port != 1:
            raise VerbsError("queue pair to INIT", self.device, errno.EINVAL, f"no port {port}")
        self.access = access
        self._state = State.INIT

    def to_ready_to_receive(self, remote: RemoteQueuePair, path: Path) -> None:
        self._must_be(State.INIT, "RTR")
        if path.gid_index in self.rnic.bad_gids or path.gid_index not in {gid.index for gid in self.rnic.gids}:
            raise VerbsError("queue pair to RTR", self.device, errno.ENETUNREACH, os.strerror(errno.ENETUNREACH))
        if not 0 < path.read_depth <= self.rnic.limits.max_qp_read_depth:
            raise VerbsError("queue pair to RTR", self.device, errno.EINVAL, f"read depth {path.read_depth}")
        self.remote, self.path = remote, path
        self._state = State.RTR

    def to_ready_to_send(self, psn: int, path: Path, retries: Retries) -> None:
        self._must_be(State.RTR, "RTS")
        self.psn = psn
        self._state = State.RTS

    def _must_be(self, state: QueuePairState, target: str) -> None:
        self.rnic.called(f"to {target}")
        self.rnic.must_be_here(f"queue pair to {target}")
        if self._state is not state:
            raise VerbsError(f"queue pair to {target}", self.device, errno.EINVAL, f"it is in {self._state}")

    def to_error(self) -> None:
        self.rnic.called("to ERROR")
        self.break_down()

    def break_down(self) -> None:
        """Into ERROR; what is queued is flushed."""
        self._state = State.ERROR
        while self.queue:
            position, request = self.queue.popleft()
            self.complete(position, request, Status.FLUSHED)

    def post(self, requests: Sequence[WorkRequest]) -> None:
        for count, request in enumerate(requests):
            self.rnic.called("post")
            problem = self._refusal(request)
            if problem:
                self.rnic.run()
                raise VerbsError("post to a queue pair", self.device, problem, os.strerror(problem), count)
            self.posted += 1
            self.queue.append((self.posted, request))
        if self._state is State.ERROR:
            self.break_down()
        self.rnic.run()

    def _refusal(self, request: WorkRequest) -> int:
        if self._state not in (State.RTS, State.ERROR):
            return errno.EINVAL
        if self.posted - self.retired >= self.limits.send_depth:
            return errno.ENOMEM
        if len(request.pieces) > self.limits.max_sge:
            return errno.EINVAL
        return 0

    def carry_out_next(self) -> None:
        position, request = self.queue.popleft()
        status = carry_out(self, request)
        self.complete(position, request, status)
        if status is not Status.SUCCESS:
            self.break_down()

    def complete(self, position: int, request: WorkRequest, status: Status) -> None:
        if status is Status.SUCCESS and not request.signaled:
            return
        good = status is Status.SUCCESS
        moved = sum(piece.length for piece in request.pieces) if good else 0
        opcode = request.opcode if good else None
        self.completions.push(Completion(request.id, status, opcode, moved, self.number), self, position)

    def _destroy(self) -> None:
        self.rnic.called("close queue pair")
        self.queue.clear()
        self.completions.forget(self)
        del self.rnic.pairs[self.number]
        self.rnic.closed("close queue pair")
