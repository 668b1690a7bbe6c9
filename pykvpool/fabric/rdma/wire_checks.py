"""Numbers that cannot be: what the other side of a line says of queue pairs, addresses and keys.

They end in fields of fixed size of a C library, so whoever takes them from a stranger looks at them here first. All
raise `ProtocolError`. Whether what is possible is also true shows when the first packet travels.
"""

from __future__ import annotations

from pykvpool.errors import ProtocolError
from pykvpool.fabric.rdma.wire import Connect, Connected, Offer, WireRail
from pykvpool.fabric.verbs.model import GID_BYTES, MAX_24_BITS, MTU_BYTES

_MAX_16_BITS = (1 << 16) - 1
_MAX_32_BITS = (1 << 32) - 1
_MAX_64_BITS = (1 << 64) - 1


def check_connect(asked: Connect) -> None:
    """A peer's queue pair."""
    possible = (
        0 <= asked.number <= MAX_24_BITS
        and 0 <= asked.psn <= MAX_24_BITS
        and 0 <= asked.lid <= _MAX_16_BITS
        and len(asked.gid) == GID_BYTES
        and asked.mtu_bytes in MTU_BYTES.values()
        and asked.read_depth >= 1
    )
    if not possible:
        raise ProtocolError("a queue pair that cannot be")


def check_connected(answer: Connected) -> None:
    """An owner's queue pair."""
    possible = 0 <= answer.number <= MAX_24_BITS and 0 <= answer.psn <= MAX_24_BITS and answer.handle >= 0
    if not possible:
        raise ProtocolError("the owner made a queue pair that cannot be")


def check_offer(offer: Offer) -> None:
    """An owner's memory and rails. No rail at all is no lie."""
    if offer.chunk_bytes <= 0 or offer.size_bytes <= 0:
        raise ProtocolError("the owner offers memory of no size")
    if not 0 < offer.address <= _MAX_64_BITS - offer.size_bytes:
        raise ProtocolError(f"the owner offers {offer.size_bytes} bytes at {offer.address:#x}, where there are none")
    if len({rail.name for rail in offer.rails}) < len(offer.rails):
        raise ProtocolError("the owner offers two rails of one name")
    chunks = -(-offer.size_bytes // offer.chunk_bytes)
    for rail in offer.rails:
        if len(rail.rkeys) != chunks:
            raise ProtocolError(f"the owner offers {len(rail.rkeys)} keys for {chunks} chunks")
        if not _is_possible(rail):
            raise ProtocolError(f"the owner offers a rail that cannot be: {rail.name}")


def _is_possible(rail: WireRail) -> bool:
    return (
        0 <= rail.lid <= _MAX_16_BITS
        and rail.mtu_bytes in MTU_BYTES.values()
        and rail.read_depth >= 1
        and all(0 <= rkey <= _MAX_32_BITS for rkey in rail.rkeys)
        and all(len(gid.address) == GID_BYTES and 0 <= gid.index <= _MAX_16_BITS for gid in rail.gids)
    )
