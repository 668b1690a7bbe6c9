"""Put and get sessions: one object written or read in several calls, layer by layer.

A put session stages the parts in memory of this process, for the caller may reuse its buffer after each call, and puts
the whole object when the session ends; it must be complete then. (One copy more than `batch_put_from_multi_buffers`
makes.) A get session asks once which keys are there and holds them; the parts are then read straight into registered
memory, and only they are moved.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from pykvpool.client import GetResult
from pykvpool.errors import InvalidArgument, KeyNotFound, PoolError
from pykvpool.memory.copying import copy
from pykvpool_connector.mooncake.calls import ALREADY_EXISTS, OK, code, per_key
from pykvpool_connector.mooncake.checks import check_equal, check_keys, integer, key_to_store, size_of
from pykvpool_connector.mooncake.handles import BufferHandle
from pykvpool_connector.mooncake.objects import Objects
from pykvpool_connector.mooncake.puts import Value, put_all
from pykvpool_connector.mooncake.ranges import fragment_item
from pykvpool_connector.mooncake.replicate import PutWish, ReplicateConfig
from pykvpool_connector.mooncake.zero_copy import registered


@dataclass(slots=True)
class _Staged:
    """An object that is being written."""

    staging: BufferHandle
    wish: PutWish
    #: Parts that were written, [begin, end), in order and apart from each other.
    written: list[tuple[int, int]] = field(default_factory=list)

    def note(self, begin: int, end: int) -> None:
        merged: list[tuple[int, int]] = []
        for part in sorted([*self.written, (begin, end)]):
            if merged and part[0] <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(merged[-1][1], part[1]))
            else:
                merged.append(part)
        self.written = merged

    @property
    def complete(self) -> bool:
        return self.written == [(0, len(self.staging))]


class Sessions(Objects):
    """Part of `MooncakeDistributedStore`. A session belongs to this store; a closed store has none."""

    def __init__(self) -> None:
        super().__init__()
        #: Put sessions by key.
        self._staged: dict[str, _Staged] = {}
        #: Get sessions by key, counted: two callers may read one object.
        self._reading: dict[str, int] = {}
        #: Held while either changes.
        self._sessions = threading.Lock()

    def _end_sessions(self) -> None:
        with self._sessions:
            self._staged.clear()
            self._reading.clear()

    # -- writing ---------------------------------------------------------------------------------------------------

    @per_key
    def batch_put_session_start(
        self, keys: list[str], sizes: list[int], config: ReplicateConfig | None = None
    ) -> list[int]:
        """Begin objects of these sizes; 0 each, -705 where the key exists or is being written, or a code."""
        check_keys(keys)
        check_equal("sizes", keys, sizes)
        attachment = self._open
        wish = (config or ReplicateConfig()).wish(len(keys), attachment.own_node)
        there = self.batch_is_exist(keys)
        codes = []
        for key, size, exists in zip(keys, sizes, there, strict=True):
            try:
                key_to_store(key)
                begun = exists != 1 and self._stage_new(
                    key, size_of("size", size), wish, attachment.settings.buffer_bytes
                )
                codes.append(OK if begun else ALREADY_EXISTS)
            except PoolError as error:
                codes.append(self._code("batch_put_session_start", key, error))
        return codes

    def _stage_new(self, key: str, size_bytes: int, wish: PutWish, limit_bytes: int) -> bool:
        """Memory for a new object; False where it is being written already. Raises `InvalidArgument` (too much)."""
        with self._sessions:
            if key in self._staged:
                return False
            staged = size_bytes + sum(len(each.staging) for each in self._staged.values())
            if staged > limit_bytes:
                raise InvalidArgument(f"{staged} bytes would be staged, local_buffer_size is {limit_bytes}")
            self._staged[key] = _Staged(BufferHandle.of_size(size_bytes), wish)
            return True

    @per_key
    def batch_put_from_multi_buffer_ranges(
        self,
        keys: list[str],
        all_buffer_ptrs: list[list[int]],
        all_sizes: list[list[int]],
        all_dst_offsets: list[list[int]],
    ) -> list[int]:
        """Write parts of begun objects from registered memory; bytes written, or a code, for each entry."""
        check_keys(keys)
        check_equal("pointers, sizes and offsets", keys, all_buffer_ptrs, all_sizes, all_dst_offsets)
        self._check_open()
        results = []
        for key, pointers, sizes, offsets in zip(keys, all_buffer_ptrs, all_sizes, all_dst_offsets, strict=True):
            try:
                results.append(self._stage(key, pointers, sizes, offsets))
            except PoolError as error:
                results.append(self._code("batch_put_from_multi_buffer_ranges", key, error))
        return results

    def _stage(self, key: str, pointers: Sequence[int], sizes: Sequence[int], offsets: Sequence[int]) -> int:
        session = self._staged.get(key)
        if session is None:
            raise InvalidArgument(f"{key!r:.80} has no put session")
        pieces = registered(self._open, pointers, sizes)
        check_equal("offsets", pieces, offsets)
        starts = [integer("offset", offset) for offset in offsets]
        if any(
            not 0 <= start <= len(session.staging) - piece.nbytes for start, piece in zip(starts, pieces, strict=True)
        ):
            raise InvalidArgument(f"{key!r:.80}: a part lies outside of the {len(session.staging)} bytes of the object")
        target = memoryview(session.staging)
        for start, piece in zip(starts, pieces, strict=True):
            copy(target[start : start + piece.nbytes], piece)
            session.note(start, start + piece.nbytes)
        return sum(piece.nbytes for piece in pieces)

    @per_key
    def batch_put_session_end(self, keys: list[str]) -> list[int]:
        """Make complete objects readable; 0 each, or a code (an incomplete one stays open)."""
        errors: list[PoolError | None] = [None] * len(check_keys(keys))
        self._check_open()
        ready: list[int] = []
        for position, key in enumerate(keys):
            session = self._staged.get(key)
            if session is None:
                errors[position] = InvalidArgument(f"{key!r:.80} has no put session")
            elif not session.complete:
                errors[position] = InvalidArgument(
                    f"{key!r:.80}: only {session.written} of {len(session.staging)} bytes were written"
                )
            else:
                ready.append(position)
        for position in ready:
            with self._sessions:
                session = self._staged.pop(keys[position], None)
            if session is None:
                continue  # the same key twice in one batch: its first place has ended it
            item = Value(key_to_store(keys[position]), [memoryview(session.staging)])
            [errors[position]] = self._run(functools.partial(put_all, values=[item], wish=session.wish))
        return self._codes("batch_put_session_end", keys, errors)

    @per_key
    def batch_put_session_revoke(self, keys: list[str]) -> list[int]:
        """Give begun objects up; 0 each, or a code."""
        self._check_open()
        codes = []
        for key in check_keys(keys):
            with self._sessions:
                revoked = self._staged.pop(key, None)
            error = None if revoked is not None else InvalidArgument(f"{key!r:.80} has no put session")
            codes.append(self._code("batch_put_session_revoke", key, error))
        return codes

    # -- reading ---------------------------------------------------------------------------------------------------

    @per_key
    def batch_get_session_start(self, keys: list[str]) -> list[int]:
        """Begin reading; 0 each, -704 where there is no such object. Those found are held for a lease's time."""
        codes = []
        for key, exists in zip(keys, self.batch_is_exist(keys), strict=True):
            if exists == 1:
                with self._sessions:
                    self._reading[key] = self._reading.get(key, 0) + 1
                codes.append(OK)
            else:
                codes.append(exists or self._code("batch_get_session_start", key, KeyNotFound("no such object")))
        return codes

    @per_key
    def batch_get_into_multi_buffer_ranges(
        self,
        keys: list[str],
        all_buffer_ptrs: list[list[int]],
        all_sizes: list[list[int]],
        all_src_offsets: list[list[int]],
    ) -> list[int]:
        """Read parts of begun objects into registered memory; bytes read, or a code, for each entry."""
        check_keys(keys)
        check_equal("pointers, sizes and offsets", keys, all_buffer_ptrs, all_sizes, all_src_offsets)
        attachment = self._open
        results: list[int] = []
        items, owners = [], []
        for position, (key, pointers, sizes, offsets) in enumerate(
            zip(keys, all_buffer_ptrs, all_sizes, all_src_offsets, strict=True)
        ):
            try:
                if key not in self._reading:
                    raise InvalidArgument(f"{key!r:.80} has no get session")
                check_equal("sizes and offsets", pointers, sizes, offsets)
                wanted = [
                    fragment_item(attachment, key, pointer, 0, offset, size)
                    for pointer, size, offset in zip(pointers, sizes, offsets, strict=True)
                ]
            except PoolError as error:
                results.append(self._code("batch_get_into_multi_buffer_ranges", key, error))
                continue
            results.append(0)
            items += wanted
            owners += [position] * len(wanted)
        got = self._read(lambda client: client.get_ranges_into(items))
        for position, part in zip(owners, got, strict=True):
            if isinstance(part, GetResult):
                results[position] += part.size_bytes if results[position] >= 0 else 0
            else:
                results[position] = self._code("batch_get_into_multi_buffer_ranges", keys[position], part)
        return results

    @code
    def batch_get_session_end(self, keys: list[str]) -> int:
        """End reading. Keys without a session are fine."""
        self._check_open()
        with self._sessions:
            for key in check_keys(keys):
                count = self._reading.pop(key, 0) - 1
                if count > 0:
                    self._reading[key] = count
        return OK
