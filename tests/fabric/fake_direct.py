"""A fabric that reaches GPU memory by itself, as a NIC with GPUDirect does: past every CPU, so without checksums.

It carries host memory over another fabric's client, and GPU memory by looking into the fake GPU, without any stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pykvpool.fabric.base import FabricClient, Outcome, Read, Write
from pykvpool.memory.device import DevicePiece
from pykvpool.model.objects import SegmentDescriptor
from tests.memory.fake_gpu import FakeGpu


class DirectFabric:
    """`obstacle`: what it says when it is asked for GPU memory; None: it moves it."""

    def __init__(self, inner: FabricClient, gpu: FakeGpu, obstacle: str | None = None) -> None:
        self.scheme = inner.scheme
        self.cost = inner.cost
        self.obstacle = obstacle
        self._inner = inner
        self._gpu = gpu

    def reaches(self, segment: SegmentDescriptor) -> str | None:
        return self._inner.reaches(segment)

    def device_obstacle(self, operation: Read | Write) -> str | None:
        return self.obstacle

    def device_path(self, operation: Read | Write) -> str:
        return "fake0 by magic"

    async def read(self, batch: Sequence[Read], timeout_s: float) -> list[Outcome]:
        outcomes = []
        for operation in batch:
            arrived = bytearray(operation.length)
            direct = bool(operation.device)
            plain = replace(operation, pieces=[memoryview(arrived)], device=()) if direct else operation
            [outcome] = await self._inner.read([plain], timeout_s)
            if direct and outcome.error is None:
                self._scatter(bytes(arrived), operation)
                self._gpu.calls.append(("nic read",))
                outcome = replace(outcome, checksum=None)
            outcomes.append(outcome)
        return outcomes

    async def write(self, batch: Sequence[Write], timeout_s: float) -> list[Outcome]:
        outcomes = []
        for operation in batch:
            direct = bool(operation.device)
            plain = replace(operation, pieces=[memoryview(self._gather(operation))], device=()) if direct else operation
            [outcome] = await self._inner.write([plain], timeout_s)
            outcomes.append(replace(outcome, checksum=None) if direct else outcome)
        return outcomes

    async def close(self) -> None:
        await self._inner.close()

    def _gather(self, operation: Write) -> bytes:
        return b"".join(
            self._gpu.peek(piece.address, piece.nbytes) if isinstance(piece, DevicePiece) else bytes(piece)
            for piece in operation.device
        )

    def _scatter(self, data: bytes, operation: Read) -> None:
        for piece in operation.device:
            part, data = data[: piece.nbytes], data[piece.nbytes :]
            if isinstance(piece, DevicePiece):
                self._gpu.poke(piece.address, part)
            else:
                piece[:] = part
