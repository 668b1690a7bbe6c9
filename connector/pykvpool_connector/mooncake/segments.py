"""Lending more memory while the store runs: each piece is a node of its own."""

from __future__ import annotations

import functools

from pykvpool.errors import InvalidArgument, KeyNotFound, PoolError
from pykvpool_connector.mooncake.attachment import Attachment
from pykvpool_connector.mooncake.base import StoreBase
from pykvpool_connector.mooncake.calls import OK, code
from pykvpool_connector.mooncake.checks import integer

#: Sizes are rounded up to this: memory comes in pages.
PAGE_BYTES = 4_096


class Segments(StoreBase):
    """Part of `MooncakeDistributedStore`."""

    def allocate_and_mount_segment(self, size: int, protocol: str = "tcp", location: str = "") -> dict[str, object]:
        """Lend `size` bytes more. ``{"ret": code, "segment_ids": [...], "allocated_size": bytes}``.

        `protocol` and `location` are taken and not used: every fabric that reaches is offered.
        """
        try:
            wanted = integer("size", size)
            if wanted <= 0:
                raise InvalidArgument(f"a segment of {wanted} bytes: it must be positive")
            allocated = -(-wanted // PAGE_BYTES) * PAGE_BYTES
            name = self._run(lambda attachment: attachment.lend(allocated))
        except PoolError as error:
            number = self.failed("allocate_and_mount_segment", error)
            return {"ret": number, "segment_ids": [], "allocated_size": 0}
        return {"ret": OK, "segment_ids": [name], "allocated_size": allocated}

    @code
    def unmount_and_free_segment(self, segment_ids: list[str], grace_period_seconds: int = 0) -> int:
        """Take lent memory back at once; what was stored there alone is gone. There is no period of grace."""
        missing = []
        for name in segment_ids:
            try:
                self._run(functools.partial(Attachment.take_back, name=name))
            except KeyNotFound:
                missing.append(name)
        if missing:
            raise InvalidArgument(f"{', '.join(missing)}: no such segment of this store")
        return OK
