"""The driver seam over cuda-python (`cuda.bindings.driver`, 12.6 and newer). Loaded when GPU memory is first used.

Every function of the binding returns a tuple: a `CUresult`, then the values. A missing binding, a missing driver and a
driver that is too old for a call are told apart, each with what to do about it. The calls give the GIL up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module, metadata
from types import ModuleType
from typing import Any

from pykvpool.errors import GpuFailed, NotSupported
from pykvpool.memory.cuda_driver import Allocation, DeviceFacts, Driver, WriteOrdering

INSTALL = "pip install '.[gpu]' in a clone of pykvpool"
#: Room for a device's name, and for a PCI address as the driver writes it.
_NAME_BYTES = 256
_PCI_BYTES = 32


def load_driver() -> Driver:
    """Initialise the driver. Takes a few hundred milliseconds the first time.

    Raises:
        NotSupported: no binding, no driver, or no GPU; one line with what to do.
    """
    try:
        module = import_module("cuda.bindings.driver")
    except ImportError as error:
        raise NotSupported(f"GPU memory needs cuda-python: {INSTALL} ({error})") from error
    return CudaPythonDriver(module)


class CudaPythonDriver:
    """`Driver` over the module `cuda.bindings.driver`, or one that looks like it."""

    name = "cuda-python"

    def __init__(self, module: ModuleType) -> None:
        """Raises `NotSupported` where there is no driver or no GPU."""
        self._cuda: Any = module
        #: Primary contexts by device, each with how often it was retained.
        self._contexts: dict[int, object] = {}
        self._retained: dict[int, int] = {}
        try:
            status, *_ = self._cuda.cuInit(0)
        except Exception as error:
            # The binding raises RuntimeErrors of its own, which differ between its versions.
            raise NotSupported(f"there is no NVIDIA driver here: {error}") from error
        if int(status) != 0:
            raise NotSupported(f"no usable GPU: cuInit says {_status_name(status)}; does nvidia-smi work?")
        number = self._call("cuDriverGetVersion")
        self.version = f"CUDA {number // 1000}.{number % 1000 // 10} by cuda-bindings {_binding_version()}"

    def device_count(self) -> int:
        return int(self._call("cuDeviceGetCount"))

    def describe(self, ordinal: int) -> DeviceFacts:
        device = self._call("cuDeviceGet", ordinal)
        flush = self._attribute("GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS", device)
        return DeviceFacts(
            ordinal=ordinal,
            name=_text(self._call("cuDeviceGetName", _NAME_BYTES, device)),
            pci_address=_text(self._call("cuDeviceGetPCIBusId", _PCI_BYTES, device)).lower(),
            dma_buf=bool(self._attribute("DMA_BUF_SUPPORTED", device)),
            direct=bool(self._attribute("GPU_DIRECT_RDMA_SUPPORTED", device)),
            ordering=_ordering(self._attribute("GPU_DIRECT_RDMA_WRITES_ORDERING", device)),
            can_flush=bool(
                flush & int(self._cuda.CUflushGPUDirectRDMAWritesOptions.CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST)
            ),
        )

    def locate(self, address: int) -> Allocation | None:
        kind = self._cuda.CUpointer_attribute
        wanted = [
            getattr(kind, f"CU_POINTER_ATTRIBUTE_{name}")
            for name in (
                "MEMORY_TYPE", "DEVICE_ORDINAL", "RANGE_START_ADDR", "RANGE_SIZE", "IS_MANAGED",
                "IS_GPU_DIRECT_RDMA_CAPABLE",
            )
        ]  # fmt: skip
        memory_type, ordinal, start, size_bytes, managed, direct = self._somewhere(
            "cuPointerGetAttributes", len(wanted), wanted, address
        )
        if int(memory_type) != int(self._cuda.CUmemorytype.CU_MEMORYTYPE_DEVICE) and not managed:
            return None
        return Allocation(int(ordinal), int(start), int(size_bytes), bool(managed), bool(direct))

    def retain(self, ordinal: int) -> None:
        if not self._retained.get(ordinal):
            device = self._call("cuDeviceGet", ordinal)
            self._contexts[ordinal] = self._call("cuDevicePrimaryCtxRetain", device)
        self._retained[ordinal] = self._retained.get(ordinal, 0) + 1

    def release(self, ordinal: int) -> None:
        self._retained[ordinal] -= 1
        if not self._retained[ordinal]:
            del self._contexts[ordinal]
            self._call("cuDevicePrimaryCtxRelease", self._call("cuDeviceGet", ordinal))

    @contextmanager
    def current(self, ordinal: int) -> Iterator[None]:
        self._call("cuCtxPushCurrent", self._contexts[ordinal])
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent")

    def export_dma_buf(self, address: int, size_bytes: int) -> int:
        kind = self._cuda.CUmemRangeHandleType.CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
        return int(self._call("cuMemGetHandleForAddressRange", address, size_bytes, kind, 0))

    def allocate_host(self, size_bytes: int) -> int:
        return int(self._call("cuMemHostAlloc", size_bytes, int(self._cuda.CU_MEMHOSTALLOC_PORTABLE)))

    def free_host(self, address: int) -> None:
        self._call("cuMemFreeHost", address)

    def create_stream(self) -> int:
        return int(self._call("cuStreamCreate", int(self._cuda.CUstream_flags.CU_STREAM_NON_BLOCKING)))

    def destroy_stream(self, stream: int) -> None:
        self._call("cuStreamDestroy", stream)

    def create_event(self) -> int:
        flags = self._cuda.CUevent_flags
        return int(self._call("cuEventCreate", int(flags.CU_EVENT_BLOCKING_SYNC) | int(flags.CU_EVENT_DISABLE_TIMING)))

    def destroy_event(self, event: int) -> None:
        self._call("cuEventDestroy", event)

    def record(self, event: int, stream: int) -> None:
        self._call("cuEventRecord", event, stream)

    def reached(self, event: int) -> bool:
        (status,) = self._function("cuEventQuery")(event)
        if int(status) == int(self._cuda.CUresult.CUDA_ERROR_NOT_READY):
            return False
        self._check("cuEventQuery", status)
        return True

    def wait(self, event: int) -> None:
        self._call("cuEventSynchronize", event)

    def stream_wait(self, stream: int, event: int) -> None:
        self._call("cuStreamWaitEvent", stream, event, 0)

    def copy_to_host(self, host: int, device: int, size_bytes: int, stream: int) -> None:
        self._call("cuMemcpyDtoHAsync", host, device, size_bytes, stream)

    def copy_to_device(self, device: int, host: int, size_bytes: int, stream: int) -> None:
        self._call("cuMemcpyHtoDAsync", device, host, size_bytes, stream)

    def flush_writes(self) -> None:
        self._call(
            "cuFlushGPUDirectRDMAWrites",
            self._cuda.CUflushGPUDirectRDMAWritesTarget.CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
            self._cuda.CUflushGPUDirectRDMAWritesScope.CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES,
        )

    def _attribute(self, name: str, device: object) -> int:
        """0 where this driver does not know the attribute: the capability is then not there either."""
        status, *values = self._function("cuDeviceGetAttribute")(
            getattr(self._cuda.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}"), device
        )
        if int(status) == int(self._cuda.CUresult.CUDA_ERROR_INVALID_VALUE):
            return 0
        self._check("cuDeviceGetAttribute", status)
        return int(values[0])

    def _somewhere(self, name: str, *arguments: object) -> Any:
        """A question that some drivers answer only to a thread with a context: any context that is there will do.

        Never one that is made for it: a context takes hundreds of MiB of the GPU.
        """
        status, *values = self._function(name)(*arguments)
        if int(status) != int(self._cuda.CUresult.CUDA_ERROR_INVALID_CONTEXT):
            self._check(name, status)
            return values[0]
        for ordinal in range(self.device_count()):
            _, active = self._call("cuDevicePrimaryCtxGetState", self._call("cuDeviceGet", ordinal))
            if active:
                self.retain(ordinal)
                try:
                    with self.current(ordinal):
                        return self._call(name, *arguments)
                finally:
                    self.release(ordinal)
        raise GpuFailed(f"{name}: no context on any GPU: the memory of which is this?", operation=name)

    def _call(self, name: str, *arguments: object) -> Any:
        """The value, the tuple of values, or None. Raises `GpuFailed`."""
        status, *values = self._function(name)(*arguments)
        self._check(name, status)
        if len(values) > 1:
            return tuple(values)
        return values[0] if values else None

    def _function(self, name: str) -> Callable[..., Any]:
        function = getattr(self._cuda, name)

        def call(*arguments: object) -> Any:
            try:
                return function(*arguments)
            except RuntimeError as error:  # the binding's word for a symbol that this driver lacks
                raise GpuFailed(f"{name} is not in this driver: {error}", operation=name) from error

        return call

    def _check(self, name: str, status: object) -> None:
        number = int(status)  # type: ignore[call-overload]  # an IntEnum, in a module without types
        if number:
            raise GpuFailed(f"{name}: {_status_name(status)} ({number})", operation=name, status=number)


def _status_name(status: object) -> str:
    return str(getattr(status, "name", status))


def _text(raw: bytes) -> str:
    """The binding fills a buffer of its own: the text ends at the first zero."""
    return raw.split(b"\0", 1)[0].decode("utf-8", "replace").strip()


def _ordering(value: int) -> WriteOrdering:
    """The strongest promise that we know and that `value` keeps."""
    return max((known for known in WriteOrdering if known <= value), default=WriteOrdering.NONE)


def _binding_version() -> str:
    try:
        return metadata.version("cuda-bindings")
    except metadata.PackageNotFoundError:
        return "of unknown version"
