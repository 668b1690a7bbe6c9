"""Has the processes of a tensor-parallel engine wait for each other asleep.

vLLM's ranks wait for the next order in a loop of `sched_yield`, for a second after the last one. With fewer cores than
waiting threads, Linux 6.18 then leaves other processes of the machine without a processor for seconds at a time: the
node is taken for dead, and tests would measure that.
"""

from __future__ import annotations

from vllm.distributed.device_communicators.shm_broadcast import SpinCondition


def sleep_while_waiting() -> None:
    """In this process, from now on."""
    SpinCondition.record_read = lambda self: None


class PatientWorker:
    """For `worker_extension_cls`: vLLM imports it in each rank's process, which is all that is wanted."""


sleep_while_waiting()
