"""What callers of the client hand in and get back: plain, typed values, and the counters that a client keeps."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING

from pykvpool.model.objects import Pin, Vouch

if TYPE_CHECKING:
    from pykvpool.client.held import HeldLease

#: A key as people write it: text, or a binary block hash.
Key = str | bytes
#: The bytes of one object: anything with the buffer protocol (bytes, bytearray, memoryview, array), a tensor on the CPU
#: or a GPU (`pykvpool.memory.device.gpu_buffer` adds when its bytes are there), or a sequence of such pieces in order
#: (scatter/gather). `pykvpool.memory.buffers.as_pieces` says what is refused.
Data = object


@dataclass(frozen=True, slots=True)
class PutItem:
    """One object of a batch."""

    key: Key
    data: Data
    #: Key of the block before it in its chain, None for the first.
    parent: Key | None = None


@dataclass(frozen=True, slots=True)
class RangeItem:
    """A part of one object, to be read into a buffer: ``[offset, offset + length)``."""

    key: Key
    offset: int
    length: int
    #: Writable, of at least `length` bytes.
    buffer: Data


@dataclass(frozen=True, slots=True)
class PutOptions:
    """How a batch is stored."""

    #: Copies wanted, on distinct nodes.
    replicas: int = 1
    #: Fewest copies with which a put may start and counts as done; fewer than `replicas` is then reported as
    #: `degraded`. None: fewer nodes than `replicas` is an error, but once it has started one copy that lands is enough.
    min_replicas: int | None = None
    #: Name of the node that should hold the first copy, where it has room.
    preferred_node: str = ""
    pin: Pin = Pin.NONE
    #: A key that finds no room, or that another client is writing, waits for it within the deadline. False: it is
    #: refused at once (`PoolFull`, `NotReady`).
    wait: bool = True

    @property
    def must_be_granted(self) -> int:
        return self.replicas if self.min_replicas is None else self.min_replicas

    @property
    def must_land(self) -> int:
        return 1 if self.min_replicas is None else self.min_replicas


@dataclass(frozen=True, slots=True)
class PutResult:
    """A put that succeeded."""

    size_bytes: int
    #: The key was readable already: nothing was transferred.
    existed: bool = False
    #: Copies that landed by this put (0 where it existed).
    replicas: int = 0
    #: Fewer copies landed than were asked for.
    degraded: bool = False
    #: Scheme of the fabric that carried the first copy.
    scheme: str = ""


@dataclass(frozen=True, slots=True)
class GetResult:
    """A get that succeeded: the first `size_bytes` of the caller's buffer are the object."""

    size_bytes: int
    #: What vouches for the bytes.
    vouch: Vouch
    #: Fabric that carried them, and node that held them.
    scheme: str
    node: str


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """Answer of `match_prefix`."""

    #: How many of the first hashes are readable in every counted scope.
    count: int
    #: For each scope named in `presence`: for each hash, is it readable?
    presence: tuple[tuple[bool, ...], ...] = ()
    #: With ``hold=True``: the lease over what matched. Release it (it is an async context manager).
    hold: HeldLease | None = None


@dataclass(frozen=True, slots=True)
class RemovedCount:
    """Of a pattern removal: objects that are gone, and those that stayed because they were leased or hard pinned."""

    count: int
    kept: int


@dataclass(frozen=True, slots=True)
class ListedKey:
    namespace: str
    key: bytes
    size_bytes: int


@dataclass(slots=True)
class ClientStatistics:
    """Counters of one client since it connected. Bytes are object bytes, each copy counted.

    The one mutable value here: the client's parts count in it as they work. Callers get a `copy`.
    """

    puts: int = 0
    puts_existing: int = 0
    puts_degraded: int = 0
    puts_failed: int = 0
    put_retries: int = 0
    puts_waited: int = 0
    gets: int = 0
    get_misses: int = 0
    gets_failed: int = 0
    #: Reads of another replica after one failed.
    replica_retries: int = 0
    checksum_mismatches: int = 0
    leases_lapsed: int = 0
    sessions_renewed: int = 0
    bytes_written: dict[str, int] = field(default_factory=dict)
    bytes_read: dict[str, int] = field(default_factory=dict)

    def wrote(self, scheme: str, size_bytes: int) -> None:
        self.bytes_written[scheme] = self.bytes_written.get(scheme, 0) + size_bytes

    def read(self, scheme: str, size_bytes: int) -> None:
        self.bytes_read[scheme] = self.bytes_read.get(scheme, 0) + size_bytes

    def add(self, other: ClientStatistics) -> None:
        """Count what `other` counted too."""
        for each in fields(self):
            value = getattr(other, each.name)
            if isinstance(value, dict):
                mine: dict[str, int] = getattr(self, each.name)
                for scheme, size_bytes in value.items():
                    mine[scheme] = mine.get(scheme, 0) + size_bytes
            else:
                setattr(self, each.name, getattr(self, each.name) + value)

    def copy(self) -> ClientStatistics:
        """A snapshot that later operations do not change."""
        return replace(self, bytes_written=dict(self.bytes_written), bytes_read=dict(self.bytes_read))
