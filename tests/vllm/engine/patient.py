"""In the processes of an engine's ranks: they wait for each other asleep, and say what their caches hold.

vLLM's ranks wait for the next order in a loop of `sched_yield`, for a second after the last one. With fewer cores than
waiting threads, Linux 6.18 then leaves other processes of the machine without a processor for seconds at a time: the
node is taken for dead, and tests would measure that.
"""

from __future__ import annotations

from ctypes import string_at
from hashlib import sha256

from vllm.distributed.device_communicators.shm_broadcast import SpinCondition
from vllm.distributed.kv_transfer import get_kv_transfer_group


def sleep_while_waiting() -> None:
    """In this process, from now on."""
    SpinCondition.record_read = lambda self: None


class PatientWorker:
    """For `worker_extension_cls`: vLLM imports this in each rank's process, and adds the methods to its worker."""

    def block_digests(self) -> list[str]:
        """Of the bytes of each block of this rank's cache, as the pool stores them; for engines of one cache group."""
        [runs] = get_kv_transfer_group()._worker._jobs._tensors.runs
        blocks = get_kv_transfer_group()._worker._jobs._tensors.num_blocks
        return [
            sha256(b"".join(string_at(run.base + block * run.stride, run.length) for run in runs)).hexdigest()
            for block in range(blocks)
        ]


sleep_while_waiting()
