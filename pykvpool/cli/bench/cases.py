"""What is measured: the table of cases, and how much of it a quick run takes.

Sizes are those of KV blocks: 4 KiB (a small model's block of one rank) to 8 MiB (a large block of all layers). Objects
of pieces are blocks that lie scattered in an engine's memory, one piece for each layer's key or value.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

KIB = 1024
MIB = 1024 * KIB

#: What is measured unless told otherwise: what works everywhere.
FABRICS = ("inproc", "shm", "tcp")
#: Longer than anybody waits (s). Not infinite: a plan travels as JSON.
NO_LIMIT_S = 1e9
ALL_FABRICS = (*FABRICS, "rdma")


class Transfer(Struct, frozen=True):
    """Puts, then gets, of `batch` objects of `pieces` pieces of `piece_bytes` over one fabric, one call each."""

    fabric: str
    piece_bytes: int
    batch: int
    pieces: int = 1

    @property
    def object_bytes(self) -> int:
        return self.pieces * self.piece_bytes

    @property
    def total_bytes(self) -> int:
        return self.object_bytes * self.batch


class Control(Struct, frozen=True):
    """A question to the master: `exists` or `match_prefix` of `hashes` hashes in `scopes` scopes, all present."""

    verb: str
    hashes: int
    scopes: int = 1


class PutRate(Struct, frozen=True):
    """New objects per second in batches: what a saving engine asks of the master, bytes being few."""

    fabric: str
    object_bytes: int
    batch: int


class Plan(Struct, frozen=True):
    """One run."""

    transfers: tuple[Transfer, ...]
    controls: tuple[Control, ...]
    put_rates: tuple[PutRate, ...]
    #: Interleaved rounds; figures are medians over them.
    rounds: int
    #: Time given to one case in one round (s); a case runs at least once.
    case_seconds: float
    #: No new round begins after this long (s).
    max_seconds: float
    #: What each of the two nodes lends.
    segment_bytes: int
    #: RDMA device of the measuring client and of the node, "" for any.
    rdma_device: str = ""
    rdma_node_device: str = ""

    @property
    def fabrics(self) -> tuple[str, ...]:
        """All that it takes."""
        transfers = [case.fabric for case in self.transfers]
        return tuple(dict.fromkeys(transfers + [case.fabric for case in self.put_rates]))


CONTROLS = (Control("exists", 512), Control("match_prefix", 1_250), Control("match_prefix", 5_000, 8))
PUT_RATES = (PutRate("shm", 4 * KIB, 512),)


def full_plan(fabrics: Sequence[str] = FABRICS) -> Plan:
    """About two minutes."""
    sizes = (4 * KIB, 64 * KIB, 1 * MIB, 8 * MIB)
    transfers = [
        Transfer(fabric, size, batch)
        for size in sizes
        for batch in (1, 16, 64)
        for fabric in fabrics
        if size * batch <= 512 * MIB
    ]
    transfers += [Transfer(fabric, 16 * KIB, 16, 64) for fabric in fabrics]
    return Plan(tuple(transfers), CONTROLS, PUT_RATES, 5, 0.15, 110.0, 1280 * MIB)


def quick_plan(fabrics: Sequence[str] = FABRICS) -> Plan:
    """About twenty seconds: one size of each kind, for CI and for a first look."""
    transfers = [Transfer(fabric, size, batch) for size, batch in ((64 * KIB, 16), (1 * MIB, 16)) for fabric in fabrics]
    transfers += [Transfer(fabric, 16 * KIB, 4, 64) for fabric in fabrics]
    return Plan(tuple(transfers), CONTROLS, PUT_RATES, 3, 0.1, 12.0, 256 * MIB)


def transfers_only(plan: Plan, rounds: int | None) -> Plan:
    """Without questions to the master. With `rounds`, exactly so many, however long they take."""
    plan = replace(plan, controls=(), put_rates=())
    return plan if rounds is None else replace(plan, rounds=rounds, max_seconds=NO_LIMIT_S)
