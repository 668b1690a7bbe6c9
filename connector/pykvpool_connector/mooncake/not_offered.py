"""Mooncake's calls that the pool cannot mean. Each says so with the code for "not supported", and changes nothing."""

from __future__ import annotations

from pykvpool.errors import NotSupported
from pykvpool_connector.mooncake.base import StoreBase
from pykvpool_connector.mooncake.calls import TASK_NOT_FOUND, code, per_key

#: Id of a task that was not created.
NO_TASK = (0, 0)


class NotOffered(StoreBase):
    """Part of `MooncakeDistributedStore`."""

    @code
    def setup_dummy(self, mem_pool_size: int, local_buffer_size: int, server_address: str) -> int:
        """A client behind another process's client: here every process is a client itself, so use `setup`."""
        raise NotSupported("setup_dummy: every process is a client of its own here, call setup")

    @code
    def init_all(self, protocol: str, device_name: str, mount_segment_size: int = 16 << 20) -> int:
        """A setup that says neither where the master is nor who calls: use `setup`."""
        raise NotSupported("init_all: call setup, which names the master")

    def alloc_from_mem_pool(self, size: int) -> int:
        """Memory of the dummy client's pool: 0, there is none. Register memory of your own instead."""
        self.failed("alloc_from_mem_pool", NotSupported("there is no dummy client: register memory of your own"))
        return 0

    def mount_segment(
        self, path: str, size: int, offset: int = 0, protocol: str = "tcp", location: str = ""
    ) -> dict[str, object]:
        """Lend a file's memory: the pool lends sealed memory of its own alone, see `allocate_and_mount_segment`."""
        error = NotSupported("mount_segment: files are not lent, call allocate_and_mount_segment")
        return {"ret": self.failed("mount_segment", error), "segment_ids": []}

    @code
    def unmount_segment(self, segment_ids: list[str], grace_period_seconds: int = 0) -> int:
        """The end of `mount_segment`: nothing to do for no segments, else refused."""
        if segment_ids:
            raise NotSupported("unmount_segment: nothing was mounted by mount_segment")
        return 0

    @code
    def unmount_local_disk_segment(self, grace_period_seconds: int = 0) -> int:
        """There is no SSD tier."""
        raise NotSupported("unmount_local_disk_segment: there is no SSD tier")

    def get_offload_rpc_read_count(self) -> int:
        """Reads from another process's SSD: always 0, there is no SSD tier."""
        return 0

    def create_copy_task(self, key: str, targets: list[str]) -> tuple[tuple[int, int], int]:
        """Copies are made by the put that asks for them."""
        return NO_TASK, self.failed("create_copy_task", NotSupported("copies are made by puts: set replica_num"))

    def create_move_task(self, key: str, source: str, target: str) -> tuple[tuple[int, int], int]:
        """Objects do not move between nodes."""
        return NO_TASK, self.failed("create_move_task", NotSupported("objects do not move between nodes"))

    def query_task(self, task_id: tuple[int, int]) -> tuple[None, int]:
        """There are no tasks."""
        return None, TASK_NOT_FOUND

    @code
    def get_tensor_into_cuda(self, key: str, tensor: object) -> int:
        """GPU memory cannot be a target yet: read into host memory and copy."""
        raise NotSupported("get_tensor_into_cuda: GPU memory cannot be a target yet, use get_tensor")

    @per_key
    def batch_get_tensor_into_cuda(self, keys: list[str], tensors_list: list[object]) -> list[int]:
        """As `get_tensor_into_cuda`."""
        raise NotSupported("batch_get_tensor_into_cuda: GPU memory cannot be a target yet, use batch_get_tensor")

    def load_tensor_from_safetensor(self, key: str | None = None, file_name: str = "") -> None:
        """Files are the program's business: load the tensor and put it."""
        self.failed("load_tensor_from_safetensor", NotSupported("load the tensor and call put_tensor"))

    @code
    def save_tensor_to_safetensor(self, key: str, file_name: str | None = None) -> int:
        """Files are the program's business: get the tensor and save it."""
        raise NotSupported("save_tensor_to_safetensor: call get_tensor and save it")
