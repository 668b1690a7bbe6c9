"""The binding to cuda-python: its tuples become values, its statuses become errors that name the call.

The module is scripted; where cuda-bindings is installed, every name that we use must be in it as well.
"""

from __future__ import annotations

import enum
import inspect
import re
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import pytest

from pykvpool.errors import GpuFailed, NotSupported
from pykvpool.memory import cuda_python
from pykvpool.memory.cuda_driver import WriteOrdering
from pykvpool.memory.cuda_python import CudaPythonDriver, load_driver


class CUresult(enum.IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_INVALID_CONTEXT = 201
    CUDA_ERROR_NOT_READY = 600
    CUDA_ERROR_ILLEGAL_ADDRESS = 700
    CUDA_ERROR_NOT_SUPPORTED = 801


OK = CUresult.CUDA_SUCCESS
ATTRIBUTES = {
    "DMA_BUF_SUPPORTED": 1,
    "GPU_DIRECT_RDMA_SUPPORTED": 1,
    "GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS": 3,
    "GPU_DIRECT_RDMA_WRITES_ORDERING": 0,
}
POINTER = (
    "MEMORY_TYPE",
    "DEVICE_ORDINAL",
    "RANGE_START_ADDR",
    "RANGE_SIZE",
    "IS_MANAGED",
    "IS_GPU_DIRECT_RDMA_CAPABLE",
)


def named(prefix: str, *names: str) -> SimpleNamespace:
    return SimpleNamespace(**{f"{prefix}{name}": name for name in names})


class Script:
    """The module `cuda.bindings.driver` with an answer for each function; calls are kept."""

    CUresult = CUresult
    CUdevice_attribute = named("CU_DEVICE_ATTRIBUTE_", *ATTRIBUTES)
    CUpointer_attribute = named("CU_POINTER_ATTRIBUTE_", *POINTER)
    CUmemorytype = SimpleNamespace(CU_MEMORYTYPE_DEVICE=2)
    CUmemRangeHandleType = SimpleNamespace(CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD="dma-buf")
    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)
    CUevent_flags = SimpleNamespace(CU_EVENT_BLOCKING_SYNC=1, CU_EVENT_DISABLE_TIMING=2)
    CUflushGPUDirectRDMAWritesOptions = SimpleNamespace(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST=1)
    CUflushGPUDirectRDMAWritesTarget = SimpleNamespace(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX="current")
    CUflushGPUDirectRDMAWritesScope = SimpleNamespace(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES="all")
    CU_MEMHOSTALLOC_PORTABLE = 1

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.answers: dict[str, object] = {
            "cuDriverGetVersion": 12090,
            "cuDeviceGetCount": 2,
            "cuDeviceGet": lambda ordinal: (OK, f"device {ordinal}"),
            "cuDeviceGetName": lambda length, device: (OK, b"NVIDIA H200\0".ljust(length)),
            "cuDeviceGetPCIBusId": lambda length, device: (OK, b"0000:0A:00.0\0".ljust(length)),
            "cuDeviceGetAttribute": lambda name, device: (OK, ATTRIBUTES[name]),
            "cuDevicePrimaryCtxRetain": lambda device: (OK, f"context of {device}"),
            "cuDevicePrimaryCtxGetState": (0, 1),
            "cuPointerGetAttributes": [2, 1, 0x1000, 0x2000, False, 1],
            "cuMemGetHandleForAddressRange": 33,
            "cuMemHostAlloc": 0x5000,
            "cuStreamCreate": 0x51,
            "cuEventCreate": 0xE1,
        }

    def __getattr__(self, name: str) -> Callable[..., object]:
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*arguments: object) -> object:
            self.calls.append((name, *arguments))
            answer = self.answers.get(name, ())
            if isinstance(answer, CUresult):
                return (answer, None) if name in ("cuMemHostAlloc", "cuInit") else (answer,)
            if isinstance(answer, Exception):
                raise answer
            if callable(answer):
                return answer(*arguments)
            return (OK, *answer) if isinstance(answer, tuple) else (OK, answer)

        return call

    def of(self, name: str) -> list[tuple[object, ...]]:
        return [call[1:] for call in self.calls if call[0] == name]


def driver_of(script: Script) -> CudaPythonDriver:
    return CudaPythonDriver(script)


def test_a_gpu_is_described_in_our_words() -> None:
    found = driver_of(Script()).describe(1)
    assert (found.name, found.pci_address, found.ordering) == ("NVIDIA H200", "0000:0a:00.0", WriteOrdering.NONE)
    assert found.dma_buf and found.direct and found.can_flush


def test_an_attribute_that_this_driver_does_not_know_is_a_capability_that_is_not_there() -> None:
    script = Script()
    script.answers["cuDeviceGetAttribute"] = CUresult.CUDA_ERROR_INVALID_VALUE
    found = driver_of(script).describe(0)
    assert not found.dma_buf and not found.direct and not found.can_flush


@pytest.mark.parametrize(("value", "meaning"), [(0, "NONE"), (100, "OWNER"), (150, "OWNER"), (900, "ALL_DEVICES")])
def test_orderings_that_we_do_not_know_promise_what_the_weaker_one_does(value: int, meaning: str) -> None:
    script = Script()
    script.answers["cuDeviceGetAttribute"] = (value,)
    assert driver_of(script).describe(0).ordering.name == meaning


def test_a_pointer_leads_to_its_allocation() -> None:
    found = driver_of(Script()).locate(0x1234)
    assert found is not None
    assert (found.ordinal, found.address, found.size_bytes, found.managed, found.direct) == (
        1,
        0x1000,
        0x2000,
        False,
        True,
    )


def test_a_pointer_of_the_host_leads_nowhere() -> None:
    script = Script()
    script.answers["cuPointerGetAttributes"] = [0, -2, 0, 0, False, 0]
    assert driver_of(script).locate(0x1234) is None


def test_managed_memory_is_gpu_memory_wherever_it_is_now() -> None:
    script = Script()
    script.answers["cuPointerGetAttributes"] = [1, 0, 0x1000, 16, True, 0]
    found = driver_of(script).locate(0x1000)
    assert found is not None and found.managed


def test_a_thread_without_a_context_asks_in_one_that_exists_and_makes_none() -> None:
    script = Script()
    answers = iter([(CUresult.CUDA_ERROR_INVALID_CONTEXT, None), (OK, [2, 1, 16, 16, False, 1])])
    script.answers["cuPointerGetAttributes"] = lambda *_: next(answers)
    states = iter([(OK, 0, 0), (OK, 0, 1)])
    script.answers["cuDevicePrimaryCtxGetState"] = lambda _: next(states)
    assert driver_of(script).locate(16) is not None
    assert script.of("cuCtxPushCurrent") == [("context of device 1",)]
    assert len(script.of("cuDevicePrimaryCtxRelease")) == len(script.of("cuDevicePrimaryCtxRetain")) == 1


def test_where_no_context_exists_the_pointer_is_nobodys() -> None:
    script = Script()
    script.answers["cuPointerGetAttributes"] = CUresult.CUDA_ERROR_INVALID_CONTEXT
    script.answers["cuDevicePrimaryCtxGetState"] = (0, 0)
    with pytest.raises(GpuFailed, match="no context on any GPU"):
        driver_of(script).locate(16)
    assert not script.of("cuDevicePrimaryCtxRetain")


def test_a_context_is_retained_once_and_popped_whatever_happens() -> None:
    script = Script()
    driver = driver_of(script)
    driver.retain(0)
    driver.retain(0)
    assert len(script.of("cuDevicePrimaryCtxRetain")) == 1
    with pytest.raises(ZeroDivisionError), driver.current(0):
        _ = 1 // 0
    assert len(script.of("cuCtxPopCurrent")) == 1
    driver.release(0)
    assert not script.of("cuDevicePrimaryCtxRelease")
    driver.release(0)
    assert len(script.of("cuDevicePrimaryCtxRelease")) == 1


def test_calls_go_out_as_the_binding_takes_them() -> None:
    script = Script()
    driver = driver_of(script)
    assert driver.export_dma_buf(4096, 8192) == 33
    assert driver.allocate_host(100) == 0x5000
    assert (driver.create_stream(), driver.create_event()) == (0x51, 0xE1)
    script.calls.clear()
    driver.stream_wait(1, 2)
    driver.copy_to_host(3, 4, 5, 6)
    driver.copy_to_device(7, 8, 9, 10)
    driver.record(11, 12)
    driver.wait(13)
    driver.flush_writes()
    driver.destroy_event(14)
    driver.destroy_stream(15)
    driver.free_host(16)
    assert script.calls == [
        ("cuStreamWaitEvent", 1, 2, 0),
        ("cuMemcpyDtoHAsync", 3, 4, 5, 6),
        ("cuMemcpyHtoDAsync", 7, 8, 9, 10),
        ("cuEventRecord", 11, 12),
        ("cuEventSynchronize", 13),
        ("cuFlushGPUDirectRDMAWrites", "current", "all"),
        ("cuEventDestroy", 14),
        ("cuStreamDestroy", 15),
        ("cuMemFreeHost", 16),
    ]


def test_an_event_that_is_not_reached_is_no_error() -> None:
    script = Script()
    driver = driver_of(script)
    assert driver.reached(1)
    script.answers["cuEventQuery"] = CUresult.CUDA_ERROR_NOT_READY
    assert not driver.reached(1)
    script.answers["cuEventQuery"] = CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
    with pytest.raises(GpuFailed, match=r"cuEventQuery: CUDA_ERROR_ILLEGAL_ADDRESS \(700\)"):
        driver.reached(1)


def test_a_failed_call_names_itself_and_the_drivers_error() -> None:
    script = Script()
    script.answers["cuMemHostAlloc"] = CUresult.CUDA_ERROR_NOT_SUPPORTED
    with pytest.raises(GpuFailed, match=r"cuMemHostAlloc: CUDA_ERROR_NOT_SUPPORTED \(801\)") as failed:
        driver_of(script).allocate_host(1)
    assert failed.value.fields == {"operation": "cuMemHostAlloc", "status": 801}


def test_a_call_that_an_old_driver_lacks_is_told_as_such() -> None:
    script = Script()
    script.answers["cuMemGetHandleForAddressRange"] = RuntimeError('Function "cuMemGetHandleForAddressRange" not found')
    with pytest.raises(GpuFailed, match="is not in this driver"):
        driver_of(script).export_dma_buf(0, 4096)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (RuntimeError("libcuda.so.1 not found"), "there is no NVIDIA driver here: libcuda"),
        (CUresult.CUDA_ERROR_NO_DEVICE, "no usable GPU: cuInit says CUDA_ERROR_NO_DEVICE; does nvidia-smi work"),
    ],
)
def test_a_host_without_a_gpu_is_told_so_in_one_line(answer: object, said: str) -> None:
    script = Script()
    script.answers["cuInit"] = answer
    with pytest.raises(NotSupported, match=said) as missing:
        driver_of(script)
    assert "\n" not in str(missing.value)


def test_a_missing_binding_names_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda", None)
    monkeypatch.delitem(sys.modules, "cuda.bindings.driver", raising=False)
    with pytest.raises(NotSupported, match=re.escape("pip install '.[gpu]'")):
        load_driver()


def real_binding() -> ModuleType:
    return pytest.importorskip("cuda.bindings.driver")


def test_every_name_that_we_use_is_in_the_real_binding() -> None:
    real = real_binding()
    source = inspect.getsource(cuda_python)
    functions = set(re.findall(r'"(cu[A-Z]\w+)"', source))
    assert len(functions) > 20
    assert not [name for name in functions if not hasattr(real, name)]
    for name in ATTRIBUTES:
        assert hasattr(real.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    for name in POINTER:
        assert hasattr(real.CUpointer_attribute, f"CU_POINTER_ATTRIBUTE_{name}")
    for path in set(re.findall(r"self\._cuda\.(CU\w+(?:\.CU\w+)?)", source)):
        found: object = real
        for part in path.split("."):
            found = getattr(found, part)


def test_the_real_binding_without_a_gpu_says_so_in_one_line() -> None:
    real_binding()
    try:
        driver = load_driver()
    except NotSupported as missing:
        assert "\n" not in str(missing)
    else:
        assert driver.device_count() >= 0
