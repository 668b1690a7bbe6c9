"""Places: segments, extents, replicas, and how a peer reaches them."""

from __future__ import annotations

from enum import IntEnum

from pykvpool.model.base import Message, Tagged
from pykvpool.model.ids import Generation, NodeName, PutId, SegmentId


class Pin(IntEnum):
    """How hard an object resists eviction."""

    NONE = 0
    #: Evicted only when nothing else is left.
    SOFT = 1
    #: Never evicted.
    HARD = 2


class Tier(IntEnum):
    DRAM = 0
    SSD = 1


class Vouch(IntEnum):
    """What vouches for bytes that a read returned."""

    #: A CPU saw the bytes and their checksum matched the committed one.
    CHECKSUM = 0
    #: No CPU saw them (or the object is unsummed): lease and generation alone.
    LEASE = 1


class Extent(Message, frozen=True, order=True):
    """A run of bytes in one mount of one segment: [offset, offset + length)."""

    segment: SegmentId
    offset: int
    length: int


class SegmentDescriptor(Message, frozen=True):
    """All that a peer needs to reach one mount of a segment; self-contained, so it can travel without the master.

    `endpoints` are fabric addresses in no order: ``tcp://host:port``, ``shm://<host id>/path/of/socket``,
    ``inproc://<process id>/<generation>``; the reader takes the cheapest that works for it.
    """

    segment: SegmentId
    generation: Generation
    node: NodeName
    size_bytes: int
    endpoints: tuple[str, ...]
    #: Layout version of this descriptor.
    version: int = 1


class Replica(Message, frozen=True):
    """One copy of an object."""

    extent: Extent
    tier: Tier = Tier.DRAM


class ObjectInfo(Tagged, frozen=True, tag="object"):
    """What a reader needs about one readable object."""

    put_id: PutId
    size_bytes: int
    #: xxh3-64 of the whole object, None where it was committed unsummed and not hashed yet.
    checksum: int | None
    extents: tuple[Extent, ...]
