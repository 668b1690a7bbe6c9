"""The seam to RDMA verbs: the dozen things that we ask of a device, as protocols.

`Verbs` is a library (a binding, or the fake of the unit tests); it opens a `DeviceContext`; that makes a
`ProtectionDomain` and a `CompletionQueue`; a domain registers memory and makes queue pairs. All calls are ordinary
functions: none waits. What takes time is told through two file descriptors, `CompletionQueue.fd` and
`DeviceContext.event_fd`, which an event loop watches.

Lifetimes are explicit. Every object has `close()`, harmless when repeated, to be called children first: queue pairs,
regions, completion queues, domains, contexts. A parent closed before its children raises `VerbsError` and stays open.
After `QueuePair.close()` returned, nothing of that queue pair touches local memory any more and nothing more arrives
through it: that is what a drain or a fence may rely on. Its completions that were not polled yet may be lost or may
still be polled: a caller that closes settles them itself.

Failures are `VerbsError`; how a work request ended is a `Completion`, never an exception.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pykvpool.errors import TransferFailed
from pykvpool.fabric.verbs.model import (
    Access,
    Completion,
    DeviceName,
    Event,
    Limits,
    Path,
    Port,
    QueuePairLimits,
    QueuePairState,
    RemoteQueuePair,
    Retries,
    WorkRequest,
)


class VerbsError(TransferFailed):
    """A verb failed: which, on what device, and the kernel's or the library's error number.

    `posted` is for `QueuePair.post` alone: how many of the requests, from the first on, went into the queue.
    """

    def __init__(self, operation: str, device: str, errno: int, detail: str, posted: int = 0) -> None:
        super().__init__(f"{operation} on {device}: {detail}", operation=operation, device=device, errno=errno)
        self.operation = operation
        self.device = device
        #: 0 where the library gave none.
        self.errno = errno
        self.posted = posted


class MemoryRegion(Protocol):
    """Registered memory: pages pinned, and known to the device by two keys."""

    #: What pieces and peers call its first byte.
    address: int
    length: int
    #: What local pieces name.
    lkey: int
    #: What peers name. It is the whole of their permission.
    rkey: int

    def close(self) -> None: ...


class QueuePair(Protocol):
    """One end of a reliable connection (RC). It has no receive queue: everything here is one-sided."""

    number: int

    @property
    def state(self) -> QueuePairState:
        """As the device sees it now; a call to the kernel."""
        ...

    def to_init(self, port: int, access: Access) -> None:
        """RESET -> INIT. `access` is what the peer may do through this end."""
        ...

    def to_ready_to_receive(self, remote: RemoteQueuePair, path: Path) -> None:
        """INIT -> RTR: from now on it answers the peer. Raises where `path.gid_index` cannot reach `remote.gid`
        (another GID may)."""
        ...

    def to_ready_to_send(self, psn: int, path: Path, retries: Retries) -> None:
        """RTR -> RTS. `psn` is this end's first packet, as told to the peer."""
        ...

    def to_error(self) -> None:
        """Any state -> ERROR: what is in the send queue completes as flushed."""
        ...

    def post(self, requests: Sequence[WorkRequest]) -> None:
        """Append to the send queue, in order. Never waits: with no room it raises (ENOMEM); `VerbsError.posted` says
        how many went in. The caller keeps count, so that this does not happen."""
        ...

    def close(self) -> None: ...


class CompletionQueue(Protocol):
    """A completion queue with a channel of its own.

    The order that loses no wake-up: `arm()`, `poll` until empty, then wait for `fd`; when it is readable,
    `take_event()`, `arm()` again and `poll` until empty.
    """

    #: Readable when something completed since `arm`.
    fd: int
    #: Completions it has room for. Overrun breaks it: no more signalled requests may be under way than this.
    depth: int

    def arm(self) -> None:
        """Ask that the next completion makes `fd` readable. Once per call."""
        ...

    def take_event(self) -> int:
        """Take and acknowledge one event that made `fd` readable; `fd` stays readable where there are more. How many
        were taken: 0 is no error."""
        ...

    def poll(self, limit: int) -> list[Completion]:
        """Up to `limit` (1 or more) completions, oldest first; empty when there is none."""
        ...

    def close(self) -> None: ...


class ProtectionDomain(Protocol):
    """What binds queue pairs to the memory that they may touch."""

    def register(self, address: int, length: int, access: Access) -> MemoryRegion:
        """Pin `length` bytes at `address`, which must stay mapped until the region is closed. Takes time with size
        (it faults pages in). Raises `VerbsError` (ENOMEM: memlock or the device's tables; EINVAL: over its limit)."""
        ...

    def register_dmabuf(self, fd: int, offset: int, length: int, address: int, access: Access) -> MemoryRegion:
        """Memory of another device behind a dma-buf: `length` bytes at `offset` of it. `address` is what pieces and
        peers should name its first byte; a binding may settle on another, so use the region's own. Raises
        `VerbsError` (EOPNOTSUPP: this device or kernel cannot)."""
        ...

    def queue_pair(self, completions: CompletionQueue, limits: QueuePairLimits) -> QueuePair:
        """A queue pair in RESET that completes into `completions`."""
        ...

    def close(self) -> None: ...


class DeviceContext(Protocol):
    """An open device."""

    name: str
    #: Readable when the device has something to say.
    event_fd: int

    def limits(self) -> Limits: ...

    def port(self, number: int) -> Port:
        """A port and its GID table, read anew each time."""
        ...

    def next_event(self) -> Event | None:
        """One event, acknowledged; None when there is none."""
        ...

    def protection_domain(self) -> ProtectionDomain: ...

    def completion_queue(self, depth: int) -> CompletionQueue: ...

    def close(self) -> None: ...


class Verbs(Protocol):
    """One binding."""

    #: "pyverbs", "ibverbs" or "fake".
    name: str
    version: str
    #: What is registered is pinned, and counts against the limit on locked memory.
    pins_memory: bool

    def devices(self) -> list[DeviceName]:
        """The host's devices, in the library's order; empty where there are none, or no RDMA in the kernel at all."""
        ...

    def open(self, name: str) -> DeviceContext:
        """Raises `VerbsError`: no such device, or no permission."""
        ...
