"""The caller's own memory, announced once for many transfers: host buffers and ranges of a GPU.

A NIC can reach memory by itself only after it was registered with it, which takes milliseconds; so fabrics keep what is
announced here registered until it is taken back. Everything else still moves, by way of a copy or a registration for
one call.
"""

from __future__ import annotations

import logging

from pykvpool.client.fabrics import Fabrics
from pykvpool.client.link import MasterLink
from pykvpool.client.verbs import Verbs
from pykvpool.errors import GpuFailed
from pykvpool.memory.buffers import BufferRegistry, RegisteredBuffer, as_any_piece
from pykvpool.memory.cuda import GpuMemory, RegisteredGpu
from pykvpool.memory.device import DevicePiece

_log = logging.getLogger("pykvpool.client")


class MemoryVerbs(Verbs):
    """See the module."""

    def __init__(
        self,
        link: MasterLink,
        fabrics: Fabrics,
        namespace: str,
        timeout_s: float,
        registered: BufferRegistry,
        gpu: GpuMemory,
    ) -> None:
        super().__init__(link, fabrics, namespace, timeout_s)
        self._registered = registered
        #: Closed after the fabrics. Nothing of it is loaded before GPU memory is used.
        self._gpu = gpu

    def register(self, buffer: object) -> RegisteredBuffer | RegisteredGpu:
        """Announce memory that transfers will use again and again (fabrics that need it register it once).

        Host memory, or GPU memory (a CUDA tensor): only what is registered can a NIC reach by itself. It must stay
        where it is until it is unregistered.

        Raises:
            InvalidArgument: not writable and contiguous, empty, or overlapping what is registered.
            NotSupported: GPU memory, without a driver or its binding; the message says what to install.
            LimitExceeded, GpuFailed.
        """
        self._check_open()
        piece = as_any_piece(buffer, writable=True)
        return self._gpu.register(piece) if isinstance(piece, DevicePiece) else self._registered.register(buffer)

    def unregister(self, buffer: RegisteredBuffer | RegisteredGpu) -> None:
        """Take it back, when no transfer uses it any more. Harmless for one that is not registered."""
        if isinstance(buffer, RegisteredGpu):
            self._gpu.unregister(buffer)
        else:
            self._registered.unregister(buffer)

    async def _close(self) -> None:
        await super()._close()
        try:
            self._gpu.close()
        except GpuFailed as error:  # nobody can do anything about it, and the pool knows nothing of it
            _log.warning("GPU memory could not be given back: %s", error)
