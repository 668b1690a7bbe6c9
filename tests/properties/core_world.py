"""Worlds around a master core for machines that have a model of their own.

The core's own `validate` stays off here: what these machines find, they find from outside, by commands and replies
alone. (tests/core runs random histories with it on.)
"""

from __future__ import annotations

from typing import Any

from pykvpool.errors import PoolError
from pykvpool.model import commands
from pykvpool.model.facts import ObjectRemoved
from pykvpool.model.replies import ErrorInfo, SegmentState, State
from tests.core.driver import Peer, World

#: Nobody has to show life: sessions end only when a rule ends them.
FOR_EVER_MS = 1 << 40


def unchecked_world(**config: Any) -> World:
    """A world whose sessions live for ever, and whose leases are not capped."""
    world = World(
        session_ttl_ms=FOR_EVER_MS, max_lease_lifetime_ms=FOR_EVER_MS, max_leased_ratio_per_session=1e6, **config
    )
    world.core.validate = lambda: None  # type: ignore[method-assign]
    return world


def segments_of(peer: Peer) -> dict[int, SegmentState]:
    """What the master says of every segment."""
    return {segment.segment: segment for segment in peer.ask(commands.ClusterState(), State).segments}


def evicted_since(world: World, first: int) -> list[bytes]:
    """Keys of the objects that were evicted after the first `first` facts, in order."""
    return [f.hash for f in world.facts[first:] if isinstance(f, ObjectRemoved) and f.reason == "evicted"]


def kind_of(entry: object) -> str:
    """The name of a reply's kind, of an error's kind where it is one."""
    return entry.error().kind if isinstance(entry, ErrorInfo) else type(entry).__name__


def outcome(peer: Peer, command: commands.Command) -> str:
    """Carry out a command that answers `Done` for one thing: "fine", or the kind of its error."""
    try:
        peer.fine(command)
    except PoolError as error:
        return error.kind
    return "fine"
