"""Faults in moving GPU memory: before the engine is done, through memory that is in use, past what must be said."""

from __future__ import annotations

from tests.mutations.mutation import Mutation, selections

COPIES = "pykvpool/memory/cuda_copies.py"
CUDA = "pykvpool/memory/cuda.py"
RING = "pykvpool/memory/cuda_ring.py"
MOVER = "pykvpool/fabric/device_mover.py"
STAGER = "pykvpool/fabric/device_stager.py"
REGISTRATION = "pykvpool/fabric/rdma/gpu_memory.py"

_COPIES = selections("memory/test_cuda_copies.py", "fabric/test_device_mover.py")
_MEMORY = selections("memory/test_cuda_memory.py", "fabric/test_device_mover.py")
_RING = selections("memory/test_cuda_ring.py")
_MOVER = selections("fabric/test_device_mover.py")
_REGISTRATION = selections("fabric/test_rdma_gpu_memory.py")
_REFUSALS = selections("fabric/test_gpu_refusals.py")

MUTATIONS = (
    Mutation(
        name="a-copy-is-over-when-it-is-enqueued",
        rule="P1: staged bytes are there before they are used",
        file=COPIES,
        old="                driver.wait(done)\n",
        new="                pass\n",
        checks=_COPIES,
    ),
    Mutation(
        name="a-copy-does-not-come-after-the-engines-event",
        rule="events of the engine's streams are waited for on ours",
        file=COPIES,
        old="                driver.stream_wait(stream, event)\n",
        new="                pass\n",
        checks=_COPIES,
    ),
    Mutation(
        name="a-cancelled-copy-is-left-behind",
        rule="P2: a transfer ends when it is drained",
        file=COPIES,
        old="            await drain(carrying)\n",
        new="            return\n",
        checks=_COPIES,
    ),
    Mutation(
        name="copies-adrift-are-an-ordinary-error",
        rule="P2: pinned memory is not reused where it is not known to be safe",
        file=COPIES,
        old="            if begun:\n",
        new="            if not begun:\n",
        checks=_COPIES,
    ),
    Mutation(
        name="gpu-memory-moves-before-the-engine-is-done",
        rule="P1: nothing is moved before the engine's event is reached",
        file=CUDA,
        old="            while unreached := self._unreached(ordinal, unreached):\n",
        new="            while False:\n",
        checks=_MEMORY,
    ),
    Mutation(
        name="what-a-card-wrote-is-not-flushed",
        rule="design 5: reads into GPU memory end with the driver's flush",
        file=CUDA,
        old="        if self.facts.ordering < WriteOrdering.OWNER:\n",
        new="        if self.facts.ordering > WriteOrdering.ALL_DEVICES:\n",
        checks=_MEMORY,
    ),
    Mutation(
        name="a-managed-pointer-is-taken",
        rule="P1: memory that moves by itself is refused",
        file=CUDA,
        old="        if allocation.managed:\n",
        new="        if allocation.managed and not allocation.size_bytes:\n",
        checks=_MEMORY,
    ),
    Mutation(
        name="a-small-transfer-overtakes-in-the-ring",
        rule="pinned memory goes to who asked first",
        file=RING,
        old="        if not self._waiters and len(self._free) >= count:\n",
        new="        if len(self._free) >= count:\n",
        checks=_RING,
    ),
    Mutation(
        name="slots-of-a-cancelled-waiter-are-lost",
        rule="P3: nothing leaks",
        file=RING,
        old="                self.release(waiter.future.result())\n",
        new="                pass\n",
        checks=_RING,
    ),
    Mutation(
        name="a-slot-is-given-out-twice",
        rule="P2: no pinned memory is used by two transfers",
        file=RING,
        old="        numbers = tuple(self._free.popleft() for _ in range(count))\n",
        new="        numbers = tuple(list(self._free)[:count])\n",
        checks=_RING,
    ),
    Mutation(
        name="a-broken-ring-takes-its-slots-back",
        rule="P2: pinned memory is not reused where it is not known to be safe",
        file=RING,
        old="        if isinstance(self._over, PoolError) and not isinstance(self._over, Closed):\n",
        new="        if self._over is not None and isinstance(self._over, Closed):\n",
        checks=_RING,
    ),
    Mutation(
        name="slots-adrift-are-given-back",
        rule="P2: pinned memory is not reused where it is not known to be safe",
        file=STAGER,
        old="            if isinstance(error, Adrift):\n",
        new="            if isinstance(error, Adrift) and not slots.numbers:\n",
        checks=_MOVER,
    ),
    Mutation(
        name="a-failed-read-is-copied-to-the-gpu",
        rule="P1: only what arrived reaches the caller's memory",
        file=STAGER,
        old="zip(layouts, results, strict=True) if result.error is None]\n",
        new="zip(layouts, results, strict=True) if result is not None]\n",
        checks=_MOVER,
    ),
    Mutation(
        name="a-large-object-is-settled-whatever-its-parts-say",
        rule="P2: what may still land is named uncertain",
        file=STAGER,
        old="                outcomes[item.index] = result\n                return\n",
        new="                outcomes[item.index] = replace(result, settled=True)\n                return\n",
        checks=_MOVER,
    ),
    Mutation(
        name="staged-verification-lets-the-card-do-it",
        rule='design 5: verify = "staged" forces a host bounce',
        file=MOVER,
        old="        if self._staged_only:\n",
        new="        if self._staged_only and not item.device_pieces:\n",
        checks=_MOVER,
    ),
    Mutation(
        name="bytes-that-were-not-flushed-are-given-out",
        rule="P1: what could not be flushed is an error",
        file=MOVER,
        old="            if outcome.error is None and failure is not None:\n",
        new="            if outcome.error is not None and failure is not None:\n",
        checks=_MOVER,
    ),
    Mutation(
        name="a-dma-buf-is-registered-from-its-first-page",
        rule="P1: a registration names the bytes that were meant",
        file=REGISTRATION,
        old="            return domain.register_dmabuf(fd, pages.offset, size_bytes, address, self._access)\n",
        new="            return domain.register_dmabuf(fd, 0, size_bytes, address, self._access)\n",
        checks=_REGISTRATION,
    ),
    Mutation(
        name="one-rail-that-reaches-the-gpu-is-enough",
        rule="any rail may carry any part of a block",
        file=REGISTRATION,
        old="        for device in devices:\n            known",
        new="        for device in devices[:1]:\n            known",
        checks=_REGISTRATION,
    ),
    Mutation(
        name="a-refused-registration-leaves-chunks-behind",
        rule="P3: nothing leaks",
        file=REGISTRATION,
        old="            for region in regions:\n                region.close()\n            raise\n",
        new="            raise\n",
        checks=_REGISTRATION,
    ),
    Mutation(
        name="gpu-memory-is-unregistered-under-a-card",
        rule="P2: pages stay registered while a card may touch them",
        file=REGISTRATION,
        old="            self._leaving.retire(kept)\n",
        new="            kept._users = 0\n            self._leaving.retire(kept)\n",
        checks=_REGISTRATION,
    ),
    Mutation(
        name="pinned-memory-is-freed-under-copies-adrift",
        rule="P2: pinned memory is not reused where it is not known to be safe",
        file=CUDA,
        old="        if self.ring.taken:\n            return False",
        new="        if self.ring.taken < 0:\n            return False",
        checks=_MEMORY,
    ),
    Mutation(
        name="ranges-of-gpu-memory-overlap",
        rule="memory belongs to one registration",
        file=CUDA,
        old="        if self._registered.overlaps(piece):\n",
        new="        if self._registered.overlaps(piece) and not piece.nbytes:\n",
        checks=_MEMORY,
    ),
    Mutation(
        name="events-of-a-wait-are-left-behind",
        rule="P3: nothing leaks",
        file=CUDA,
        old="                    driver.destroy_event(event)\n",
        new="                    pass\n",
        checks=_MEMORY,
    ),
    Mutation(
        name="nobody-hears-that-gpu-memory-is-taken-back",
        rule="P2: pages stay registered only as long as the user lets them",
        file=CUDA,
        old="                forget(registered)\n",
        new="                pass\n",
        checks=_MEMORY,
    ),
    Mutation(
        name="two-gpus-are-taken-for-one-allocation",
        rule="P1: a range lies on one GPU",
        file=CUDA,
        old="            if following is None or following.ordinal != allocation.ordinal or following.managed:\n",
        new="            if following is None or following.managed:\n",
        checks=_MEMORY,
    ),
    Mutation(
        name="the-ring-stays-registered-when-it-is-gone",
        rule="P2: no card touches memory that was given back",
        file=CUDA,
        old="                self._buffers.unregister(ring)\n",
        new="                pass\n",
        checks=_MEMORY,
    ),
    Mutation(
        name="one-refusal-keeps-everything-of-a-gpu",
        rule="P3: nothing leaks",
        file=COPIES,
        old='        _log.warning("%s of GPU %d is not taken back: %s", what, ordinal, error)\n',
        new="        raise\n",
        checks=_REFUSALS,
    ),
    Mutation(
        name="the-network-takes-a-slot-before-its-copy-is-there",
        rule="P1: staged bytes are there before they are used",
        file=STAGER,
        old="            await staging.copies.copy(Direction.TO_HOST, _runs(layouts), after)\n",
        new="            copying = staging.copies.copy(Direction.TO_HOST, _runs(layouts), after)\n"
        "            asyncio.ensure_future(copying).add_done_callback(lambda done: done.exception())\n",
        checks=_MOVER,
    ),
    Mutation(
        name="every-slot-of-a-piece-holds-its-beginning",
        rule="P1: bytes keep their places",
        file=RING,
        old="                piece = piece[view.nbytes :]\n",
        new="                piece = piece[0:]\n",
        checks=_RING,
    ),
    Mutation(
        name="waves-of-one-operation-share-a-slot",
        rule="P2: no pinned memory is used by two transfers",
        file=RING,
        old="        self.filled_bytes = -(-self.filled_bytes // self.ring.slot_bytes) * self.ring.slot_bytes\n",
        new="        self.filled_bytes = 0\n",
        checks=selections("memory/test_cuda_ring.py", "fabric/test_device_mover.py"),
    ),
    Mutation(
        name="an-exported-descriptor-stays-open",
        rule="P3: nothing leaks",
        file=REGISTRATION,
        old="            os.close(fd)  # the registration holds the buffer by itself\n",
        new="            pass\n",
        checks=_REGISTRATION,
    ),
    Mutation(
        name="a-device-that-goes-keeps-gpu-memory-that-was-taken-back",
        rule="P3: nothing leaks",
        file=REGISTRATION,
        old="        forget_all((*self._kept.values(), *self._leaving), device)\n",
        new="        forget_all(self._kept.values(), device)\n",
        checks=_REGISTRATION,
    ),
)
