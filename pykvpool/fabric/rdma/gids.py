"""Which address of a port to use. Decisions only.

A port has a table of GIDs: on Ethernet one per address of its interface and per framing (RoCE v1 is not routed, v2 is
UDP), on InfiniBand usually one. Both ends must use the same framing and, for v2, addresses of one family. Which entries
really reach each other only shows when packets travel, so what comes first here is a preference and the rest is tried
in order: `pykvpool.fabric.rdma.connecting` does that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pykvpool.fabric.verbs import Gid, GidType

#: Leading bits in which two addresses of one subnet agree: a /24 of IPv4 mapped into IPv6, and a /64 of IPv6.
NEAR_BITS_IPV4 = 96 + 24
NEAR_BITS_IPV6 = 64


@dataclass(frozen=True, slots=True)
class GidPair:
    """What one attempt to connect uses."""

    local: Gid
    remote: Gid

    @property
    def is_near(self) -> bool:
        """Both look like addresses of one subnet."""
        bits = NEAR_BITS_IPV4 if self.local.ipv4 is not None else NEAR_BITS_IPV6
        return common_bits(self.local.address, self.remote.address) >= bits

    def __str__(self) -> str:
        return f"{name(self.local)} -> {name(self.remote)}"


def name(gid: Gid) -> str:
    """For logs: index, framing and address."""
    return f"gid {gid.index} ({gid.type}, {gid.ipv4 or gid.text})"


def reason(gid: Gid) -> str:
    """Why a GID has the rank it has, for the log line that names the choice."""
    if gid.type is GidType.ROCE_V2:
        if gid.ipv4 is not None:
            return "RoCE v2 with an IPv4 address is preferred"
        return "RoCE v2, link-local address" if gid.is_link_local else "RoCE v2, IPv6 address"
    return "the InfiniBand address of the port" if gid.type is GidType.INFINIBAND else "nothing but RoCE v1"


def usable(gids: Iterable[Gid]) -> list[Gid]:
    """Those that can be used at all, the preferred first. An all-zero entry is an empty slot that some drivers show."""
    found = [gid for gid in gids if any(gid.address) and gid.type is not GidType.UNKNOWN]
    return sorted(found, key=lambda gid: (rank(gid), gid.index))


def rank(gid: Gid) -> int:
    """Lower is tried first: routed and unambiguous addresses before those that only work on one link."""
    match gid.type:
        case GidType.INFINIBAND:
            return 0
        case GidType.ROCE_V2:
            return 0 if gid.ipv4 is not None else 2 if gid.is_link_local else 1
        case _:
            return 3


def pairs(local: Sequence[Gid], remote: Sequence[Gid]) -> list[GidPair]:
    """All pairs that can work, the most promising first: by rank, then those of one subnet, then by index."""
    fitting = [GidPair(ours, theirs) for ours in local for theirs in remote if _fit(ours, theirs)]
    return sorted(
        fitting,
        key=lambda pair: (
            rank(pair.local) + rank(pair.remote),
            not pair.is_near,
            -common_bits(pair.local.address, pair.remote.address),
            pair.local.index,
            pair.remote.index,
        ),
    )


def common_bits(one: bytes, other: bytes) -> int:
    """Leading bits in which two addresses agree."""
    difference = int.from_bytes(one, "big") ^ int.from_bytes(other, "big")
    return 8 * len(one) - difference.bit_length()


def _fit(local: Gid, remote: Gid) -> bool:
    if local.type is not remote.type:
        return False
    return (local.ipv4 is None) == (remote.ipv4 is None) and local.is_link_local == remote.is_link_local
