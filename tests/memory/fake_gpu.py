"""A GPU without one: device memory that no pointer of the host leads to, and streams that do nothing until asked.

It plays the driver (`pykvpool.memory.cuda_driver.Driver`), records every call, and is as lazy as a real one may be:
what is enqueued runs only when somebody waits for an event behind it, or looks whether it was reached. So code that
forgets to wait finds old bytes, and a slot of pinned memory that is reused too early carries the wrong ones.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace

from pykvpool.errors import GpuFailed
from pykvpool.memory.cuda_driver import Allocation, DeviceFacts, WriteOrdering
from pykvpool.memory.device import DevicePiece

#: Device pointers look like this; no mapping of the host is near.
FIRST_ADDRESS = 0x7F0000000000
PAGE = 4096


def facts(ordinal: int = 0, **changes: object) -> DeviceFacts:
    known = {
        "ordinal": ordinal,
        "name": "Fake GPU",
        "pci_address": f"0000:{ordinal + 0x17:02x}:00.0",
        "dma_buf": True,
        "direct": True,
        "ordering": WriteOrdering.NONE,
        "can_flush": True,
    }
    return DeviceFacts(**{**known, **changes})


@dataclass
class DeviceMemory:
    """One allocation."""

    allocation: Allocation
    data: bytearray


@dataclass
class Stream:
    """Work that is enqueued and has not run: functions, in order."""

    ordinal: int
    waiting: list[Callable[[], None]] = field(default_factory=list)


@dataclass
class Event:
    ordinal: int
    #: The stream and how much of its work comes before; None: never recorded, which counts as reached.
    stream: Stream | None = None
    reached: bool = True


class FakeGpu:
    """All GPUs of one imaginary host."""

    name = "fake"
    version = "fake 1.0"

    def __init__(self, *devices: DeviceFacts) -> None:
        self.devices = list(devices or [facts()])
        #: Names of calls with their arguments, in order, from any thread.
        self.calls: list[tuple[object, ...]] = []
        self.memories: list[DeviceMemory] = []
        self.host: dict[int, ctypes.Array[ctypes.c_char]] = {}
        self.streams: dict[int, Stream] = {0: Stream(0)}
        self.events: dict[int, Event] = {}
        self.retained: dict[int, int] = {}
        #: Calls that fail, by name: how often they work before they do, and then for ever.
        self.broken: dict[str, int] = {}
        #: Of these, how often they fail until they work again.
        self._fails: dict[str, int] = {}
        #: Engine events that are not reached until the test says so.
        self.unreached: set[int] = set()
        #: Cleared: threads in `wait` stay there.
        self.may_finish = threading.Event()
        self.may_finish.set()
        #: Set when a thread is in `wait`.
        self.waited = threading.Event()
        #: Set: addresses are those of the bytes themselves, so that a fake NIC of this process finds them.
        self.reachable = False
        self._pinned: list[object] = []
        self._next = 0x1000
        self._next_address = FIRST_ADDRESS
        self._stack = threading.local()
        self._lock = threading.RLock()

    # -- what a test does with it ----------------------------------------------------------------------------------

    def allocate(self, size_bytes: int, ordinal: int = 0, **changes: object) -> DeviceMemory:
        """Device memory, with a gap behind it."""
        data = bytearray(size_bytes)
        address = self._next_address
        if self.reachable:
            window = (ctypes.c_char * size_bytes).from_buffer(data)
            self._pinned.append(window)
            address = ctypes.addressof(window)
        known = {"ordinal": ordinal, "address": address, "size_bytes": size_bytes}
        allocation = Allocation(**{**known, "managed": False, "direct": True, **changes})
        self._next_address += -(-size_bytes // PAGE) * PAGE + (2 << 20)
        memory = DeviceMemory(allocation, data)
        self.memories.append(memory)
        return memory

    def tensor(self, data: bytes, ordinal: int = 0) -> FakeCudaTensor:
        memory = self.allocate(len(data), ordinal)
        memory.data[:] = data
        return FakeCudaTensor(memory)

    def engine_event(self) -> int:
        """An event that the engine recorded and that its stream has not reached yet; see `reach`."""
        handle = self._handle()
        self.events[handle] = Event(0)
        self.unreached.add(handle)
        return handle

    def fail(self, call: str, works_before: int, times: int) -> None:
        """A call, or "current", fails so often, after it has worked so often."""
        self.broken[call], self._fails[call] = works_before, times

    def fail_no_more(self) -> None:
        self.broken.clear()
        self._fails.clear()

    def reach(self, event: int) -> None:
        self.unreached.discard(event)

    async def looked(self, times: int) -> None:
        """Wait until somebody has looked so often whether an event was reached."""
        async with asyncio.timeout(10):
            while self.names().count("reached") < times:
                await asyncio.sleep(0.001)

    def names(self) -> list[str]:
        return [str(call[0]) for call in self.calls]

    def peek(self, address: int, size_bytes: int) -> bytes:
        data, offset = self._find(address, size_bytes)
        return bytes(data[offset : offset + size_bytes])

    def poke(self, address: int, data: bytes) -> None:
        """As a NIC writes: without any stream."""
        found, offset = self._find(address, len(data))
        found[offset : offset + len(data)] = data

    # -- the driver ------------------------------------------------------------------------------------------------

    def device_count(self) -> int:
        return len(self.devices)

    def describe(self, ordinal: int) -> DeviceFacts:
        self._note("describe", ordinal)
        return self.devices[ordinal]

    def locate(self, address: int) -> Allocation | None:
        self._note("locate", address)
        for memory in self.memories:
            start = memory.allocation.address
            if start <= address < start + memory.allocation.size_bytes:
                return memory.allocation
        return None

    def retain(self, ordinal: int) -> None:
        self._note("retain", ordinal)
        self.retained[ordinal] = self.retained.get(ordinal, 0) + 1

    def release(self, ordinal: int) -> None:
        self._note("release", ordinal)
        self.retained[ordinal] -= 1
        assert self.retained[ordinal] >= 0

    @contextmanager
    def current(self, ordinal: int) -> Iterator[None]:
        assert self.retained.get(ordinal), "a context must be retained before it is used"
        self._break("current")
        stack = self._contexts()
        stack.append(ordinal)
        try:
            yield
        finally:
            stack.pop()

    def export_dma_buf(self, address: int, size_bytes: int) -> int:
        self._in_context("export_dma_buf", address, size_bytes)
        assert not address % PAGE and not size_bytes % PAGE
        return os.memfd_create("dma-buf")

    def allocate_host(self, size_bytes: int) -> int:
        self._in_context("allocate_host", size_bytes)
        memory = (ctypes.c_char * size_bytes)()
        self.host[ctypes.addressof(memory)] = memory
        return ctypes.addressof(memory)

    def free_host(self, address: int) -> None:
        self._in_context("free_host", address)
        del self.host[address]

    def create_stream(self) -> int:
        self._in_context("create_stream")
        handle = self._handle()
        self.streams[handle] = Stream(self._contexts()[-1])
        return handle

    def destroy_stream(self, stream: int) -> None:
        self._in_context("destroy_stream", stream)
        assert not self.streams.pop(stream).waiting, "a stream was destroyed with work in it"

    def create_event(self) -> int:
        self._in_context("create_event")
        handle = self._handle()
        self.events[handle] = Event(self._contexts()[-1])
        return handle

    def destroy_event(self, event: int) -> None:
        self._in_context("destroy_event", event)
        del self.events[event]

    def record(self, event: int, stream: int) -> None:
        self._in_context("record", event, stream)
        recorded = self.events[event]
        recorded.stream, recorded.reached = self.streams[stream], False
        self.streams[stream].waiting.append(lambda: setattr(recorded, "reached", True))

    def reached(self, event: int) -> bool:
        self._in_context("reached", event)
        if event in self.unreached:
            return False
        self._run_until(self.events[event])
        return True

    def wait(self, event: int) -> None:
        self._in_context("wait", event)
        self.waited.set()
        assert self.may_finish.wait(20)
        self._break("wait, half way")
        self._run_until(self.events[event])

    def stream_wait(self, stream: int, event: int) -> None:
        self._in_context("stream_wait", stream, event)

    def copy_to_host(self, host: int, device: int, size_bytes: int, stream: int) -> None:
        self._in_context("copy_to_host", host, device, size_bytes, stream)
        self._check_host(host, size_bytes)
        self._find(device, size_bytes)
        self.streams[stream].waiting.append(lambda: ctypes.memmove(host, self.peek(device, size_bytes), size_bytes))

    def copy_to_device(self, device: int, host: int, size_bytes: int, stream: int) -> None:
        self._in_context("copy_to_device", device, host, size_bytes, stream)
        self._check_host(host, size_bytes)
        self._find(device, size_bytes)
        self.streams[stream].waiting.append(lambda: self.poke(device, ctypes.string_at(host, size_bytes)))

    def flush_writes(self) -> None:
        self._in_context("flush_writes", self._contexts()[-1])

    # -- within ----------------------------------------------------------------------------------------------------

    def _run_until(self, event: Event) -> None:
        with self._lock:
            while not event.reached:
                assert event.stream is not None
                event.stream.waiting.pop(0)()

    def _contexts(self) -> list[int]:
        if not hasattr(self._stack, "contexts"):
            self._stack.contexts = []
        return self._stack.contexts

    def _in_context(self, name: str, *arguments: object) -> None:
        assert self._contexts(), f"{name} needs a context"
        self._note(name, *arguments)

    def _note(self, name: str, *arguments: object) -> None:
        with self._lock:
            self.calls.append((name, *arguments))
            self._break(name)

    def _break(self, name: str) -> None:
        if name not in self.broken:
            return
        self.broken[name] -= 1
        if self.broken[name] < 0 and self._fails.get(name, 1):
            if name in self._fails:
                self._fails[name] -= 1
            raise GpuFailed(f"{name}: CUDA_ERROR_ILLEGAL_ADDRESS (700)", operation=name, status=700)

    def _find(self, address: int, size_bytes: int) -> tuple[bytearray, int]:
        for memory in self.memories:
            offset = address - memory.allocation.address
            if offset >= 0 and offset + size_bytes <= memory.allocation.size_bytes:
                return memory.data, offset
        raise AssertionError(f"{size_bytes} bytes at {address:#x} are no device memory")

    def _check_host(self, address: int, size_bytes: int) -> None:
        assert any(
            start <= address and address + size_bytes <= start + len(memory) for start, memory in self.host.items()
        ), "only pinned memory may be copied to and from"

    def _handle(self) -> int:
        self._next += 1
        return self._next


class FakeCudaTensor:
    """What a torch tensor on a GPU looks like to us."""

    def __init__(self, memory: DeviceMemory, contiguous: bool = True) -> None:
        self.memory = memory
        self._contiguous = contiguous
        self.device = SimpleNamespace(type="cuda", index=memory.allocation.ordinal)

    def data_ptr(self) -> int:
        return self.memory.allocation.address

    def numel(self) -> int:
        return self.memory.allocation.size_bytes

    def element_size(self) -> int:
        return 1

    def is_contiguous(self) -> bool:
        return self._contiguous

    @property
    def piece(self) -> DevicePiece:
        return DevicePiece(self.data_ptr(), self.numel(), owner=self)

    def __bytes__(self) -> bytes:
        return bytes(self.memory.data)
