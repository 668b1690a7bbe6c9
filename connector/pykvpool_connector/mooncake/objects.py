"""Questions about objects, removing them, and where their copies are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pykvpool.errors import InvalidArgument, KeyNotFound, Leased, NotSupported, PoolError
from pykvpool.model.keys import key_text
from pykvpool.model.objects import Pin
from pykvpool.model.replies import ObjectStat
from pykvpool_connector.mooncake.attachment import Attachment
from pykvpool_connector.mooncake.base import StoreBase
from pykvpool_connector.mooncake.calls import OK, code, per_key, value
from pykvpool_connector.mooncake.checks import check_key, check_keys, key_to_find
from pykvpool_connector.mooncake.enums import ReplicaStatus


@dataclass(frozen=True, slots=True)
class Descriptor:
    """Where the bytes of one copy are."""

    size: int
    #: Offset within the node's segment: addresses of other processes say nothing here.
    buffer_address: int
    #: Name of the node.
    transport_endpoint: str


@dataclass(frozen=True, slots=True)
class MemoryDescriptor:
    """A copy in memory."""

    buffer_descriptor: Descriptor


@dataclass(frozen=True, slots=True)
class ReplicaDescriptor:
    """One copy of an object. All copies are in memory."""

    memory: MemoryDescriptor
    status: ReplicaStatus = ReplicaStatus.COMPLETE

    def is_memory_replica(self) -> bool:
        return True

    def is_disk_replica(self) -> bool:
        return False

    def is_local_disk_replica(self) -> bool:
        return False

    def get_memory_descriptor(self) -> MemoryDescriptor:
        return self.memory

    def get_disk_descriptor(self) -> object:
        """There is none: raises `RuntimeError`, as Mooncake's."""
        raise RuntimeError("this copy is in memory: use get_memory_descriptor")


class Objects(StoreBase):
    """Part of `MooncakeDistributedStore`."""

    # -- questions -------------------------------------------------------------------------------------------------

    @code
    def is_exist(self, key: str) -> int:
        """1: it is there (and stays for a lease's time), 0: it is not, negative: a code."""
        check_key(key)
        return self._exist([key])[0]

    @per_key
    def batch_is_exist(self, keys: list[str]) -> list[int]:
        """`is_exist` for many keys, with one lease."""
        return self._exist(check_keys(keys))

    def _exist(self, keys: Sequence[str]) -> list[int]:
        flags = [0] * len(keys)
        positions, raw = [], []
        for position, key in enumerate(keys):
            try:
                raw.append(key_to_find(key))
            except KeyNotFound:
                continue
            positions.append(position)
        there = self._run(lambda attachment: attachment.holds.exists(raw))
        for position, found in zip(positions, there, strict=True):
            flags[position] = int(found)
        return flags

    @code
    def get_size(self, key: str) -> int:
        """Size in bytes, or a code."""
        check_key(key)
        [stat] = self._stats([key])
        if isinstance(stat, PoolError):
            raise stat
        return stat.size_bytes

    @value(list)
    def get_replica_desc(self, key: str) -> list[ReplicaDescriptor]:
        """Where the copies are; empty where there is no such object."""
        check_key(key)
        [stat] = self._stats([key])
        if isinstance(stat, PoolError):
            raise stat
        return self._descriptors(stat)

    @value(dict)
    def batch_get_replica_desc(self, keys: list[str]) -> dict[str, list[ReplicaDescriptor]]:
        """`get_replica_desc` by key, without the keys that are not there."""
        stats = self._stats(check_keys(keys))
        return {
            key: self._descriptors(stat)
            for key, stat in zip(keys, stats, strict=True)
            if not isinstance(stat, PoolError)
        }

    def _descriptors(self, stat: ObjectStat) -> list[ReplicaDescriptor]:
        node_of = self._open.client.node_of
        return [
            ReplicaDescriptor(MemoryDescriptor(Descriptor(extent.length, extent.offset, node_of(extent.segment))))
            for extent in stat.extents
        ]

    def _stats(self, keys: Sequence[str]) -> list[ObjectStat | PoolError]:
        stats: list[ObjectStat | PoolError] = []
        raw = []
        for key in keys:
            try:
                raw.append(key_to_find(key))
                stats.append(KeyNotFound("not asked yet"))
            except KeyNotFound as error:
                stats.append(error)
                raw.append(b"")
        asked = [position for position, found in enumerate(raw) if found]
        found = self._run(lambda attachment: attachment.client.stat([raw[position] for position in asked]))
        for position, stat in zip(asked, found, strict=True):
            stats[position] = stat
        return stats

    # -- removing --------------------------------------------------------------------------------------------------

    @code
    def remove(self, key: str, force: bool = False) -> int:
        """Remove an object: 0, -704 where there is none, -706 where somebody reads it (unless `force`)."""
        check_key(key)
        return self._remove("remove", [key], force)[0]

    @per_key
    def batch_remove(self, keys: list[str], force: bool = False) -> list[int]:
        """`remove` for many keys; a code for each."""
        return self._remove("batch_remove", check_keys(keys), force)

    @code
    def remove_all(self, force: bool = False) -> int:
        """Remove everything of this tenant that nobody reads or has pinned hard (with `force`: all); how many."""
        return self._run(lambda attachment: attachment.client.remove_all(force=force)).count

    @code
    def remove_by_regex(self, regex_pattern: str, force: bool = False) -> int:
        """Remove what the (Python) regular expression finds anywhere in the key; how many, or a code.

        The expression runs here, not in the master.
        """
        try:
            pattern = re.compile(regex_pattern)
        except re.error as error:
            raise InvalidArgument(f"{regex_pattern!r:.80} is no regular expression: {error}") from error

        async def matching(attachment: Attachment) -> list[bytes]:
            listed = attachment.client.list_keys()
            return [item.key async for item in listed if pattern.search(key_text(item.key))]

        keys = self._run(matching)
        errors = self._run(lambda attachment: _remove_batch(attachment, keys, force))
        return sum(error is None for error in errors)

    def _remove(self, what: str, keys: Sequence[str], force: bool) -> list[int]:
        raw: list[bytes] = []
        errors: list[PoolError | None] = [None] * len(keys)
        asked = []
        for position, key in enumerate(keys):
            try:
                raw.append(key_to_find(key))
                asked.append(position)
            except KeyNotFound as error:
                errors[position] = error
        removed = self._run(lambda attachment: _remove_batch(attachment, raw, force))
        for position, outcome in zip(asked, removed, strict=True):
            errors[position] = outcome
        return self._codes(what, keys, errors)

    @value(list)
    def batch_replica_clear(self, keys: list[str], segment_name: str = "") -> list[str]:
        """Clear the copies of objects that nobody reads; returns the keys that were cleared.

        With a segment's name, those objects whose only copies lie there: one copy of several cannot go alone.
        """
        stats = self._stats(check_keys(keys))
        chosen = []
        for key, stat in zip(keys, stats, strict=True):
            if isinstance(stat, PoolError):
                continue
            nodes = {self._open.client.node_of(extent.segment) for extent in stat.extents}
            if not segment_name or nodes == {segment_name}:
                chosen.append(key)
            elif segment_name in nodes:
                self.failed(f"batch_replica_clear {key!r:.80}", NotSupported("one copy of several cannot go alone"))
        codes = self._remove("batch_replica_clear", chosen, force=False)
        return [key for key, number in zip(chosen, codes, strict=True) if number == OK]


async def _remove_batch(attachment: Attachment, keys: Sequence[bytes], force: bool) -> list[PoolError | None]:
    """As the pool's, but a hard pin guards against eviction alone, as in Mooncake, not against its owner's word."""
    client = attachment.client
    errors = await client.remove_batch(keys, force=force)
    refused = [position for position, error in enumerate(errors) if isinstance(error, Leased)]
    if refused:
        stats = await client.stat([keys[position] for position in refused])
        pinned = [
            position
            for position, stat in zip(refused, stats, strict=True)
            if isinstance(stat, ObjectStat) and stat.pin is Pin.HARD and not stat.leases
        ]
        again = await client.remove_batch([keys[position] for position in pinned], force=True)
        for position, error in zip(pinned, again, strict=True):
            errors[position] = error
    return errors
