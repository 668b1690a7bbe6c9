"""On which nodes a put goes, making room there if it must, and why it cannot where it cannot.

All or nothing: either extents for as many replicas as can be had (never fewer than the put requires), on distinct
nodes, or no change at all. The preferred node comes first if it has room or can make it; otherwise the segments with
the largest part free. Deterministic: equal ones go by segment id.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from pykvpool.core.context import Context
from pykvpool.core.eviction.plan import Outcome, make_room
from pykvpool.core.eviction.window import Room
from pykvpool.core.full import explain_full
from pykvpool.core.jobs import Pace
from pykvpool.core.segments import Segment
from pykvpool.errors import InvalidArgument, PoolFull, TooFewNodes, invariant
from pykvpool.model.ids import PutId, ScopeId, SessionId
from pykvpool.model.objects import Extent, Pin

#: A search that found no room after examining this many rows is not repeated at once for the head of the queue,
#: whatever happens: it waits a time in proportion, so that searching takes a bounded part of the master's time.
LONG_SEARCH_ROWS = 2_000
#: Rows examined per millisecond of that pause: about a fifth of what the search itself manages.
PAUSE_ROWS_PER_MS = 100


@dataclass(frozen=True, slots=True)
class Wish:
    """What one key of a put_start asks for."""

    session: SessionId
    scope: ScopeId
    hash: bytes
    size_bytes: int
    parent: bytes | None
    replicas: int
    #: Fewest that must land.
    min_replicas: int
    #: Fewest that must be granted.
    min_granted: int
    preferred_node: str
    pin: Pin
    wait_ms: int

    @property
    def key(self) -> tuple[ScopeId, bytes]:
        return (self.scope, self.hash)


@dataclass(slots=True)
class Choice:
    """Where a put could go."""

    #: Segments that are large enough and may be written to.
    fitting: list[Segment]
    #: How many replicas there can be at most.
    wanted: int
    #: Those that have room now, on distinct nodes, best first.
    segments: list[Segment]
    #: Of the step in which this is so.
    moment: int

    def is_on(self, node: str) -> bool:
        return any(segment.node == node for segment in self.segments)

    def is_best(self, wish: Wish) -> bool:
        """Could evicting others bring nothing better?"""
        return len(self.segments) >= self.wanted and (not wish.preferred_node or self.is_on(wish.preferred_node))


@dataclass(frozen=True, slots=True)
class _Failure:
    """A search that found no room; nothing larger will, until room appears."""

    room_version: int
    size_bytes: int
    needed: int


class Placement:
    """Chooses extents for new puts."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._failure: _Failure | None = None
        #: The head of the queue is not tried before (ms).
        self.retry_at = 0

    def check(self, wish: Wish) -> None:
        """Raises `InvalidArgument` (no segment is that large), `TooFewNodes`."""
        self._options(wish)

    def _options(self, wish: Wish) -> tuple[list[Segment], int]:
        """The segments that are large enough and may be written to, and how many replicas there can be."""
        segments = self._context.state.segments.by_id.values()
        largest = max((segment.space.capacity for segment in segments if not segment.going), default=0)
        if largest and wish.size_bytes > largest:
            raise InvalidArgument(
                f"the object has {wish.size_bytes} bytes: the largest segment of the pool has {largest}, and an object "
                "lies in one piece",
                size_bytes=wish.size_bytes,
                limit_bytes=largest,
            )
        fitting = [segment for segment in segments if segment.writable and segment.space.capacity >= wish.size_bytes]
        nodes = len({segment.node for segment in fitting})
        if nodes < wish.min_granted:
            raise TooFewNodes(
                f"{wish.min_granted} replicas on distinct nodes are required: {nodes} nodes could hold one now"
                if nodes
                else "no node lends memory to this pool at present: start one with `pykvpool node`",
                required=wish.min_granted,
                nodes=nodes,
            )
        return fitting, min(wish.replicas, nodes)

    def choose(self, wish: Wish) -> Choice:
        """Where it could go as things are. Raises what `check` raises."""
        fitting, wanted = self._options(wish)
        return Choice(fitting, wanted, self._choose(fitting, wish, wanted), self._context.state.moment)

    def extents(self, wish: Wish, choice: Choice) -> tuple[Extent, ...]:
        """The place itself; to be taken before anything else is chosen."""
        return tuple(self._extent(segment, wish.size_bytes) for segment in choice.segments)

    def make_room(self, wish: Wish, choice: Choice, pace: Pace) -> Generator[None, None, Choice | None]:
        """A better choice than the one of this step, at the cost of others; None: no room. Raises what `check` raises.

        In slices; from its beginning to its end nothing else may be placed.
        """
        prefers, tried, began = bool(wish.preferred_node), False, choice.moment
        state = self._context.state
        version = state.evictor.room_version
        while True:
            if prefers and not choice.is_on(wish.preferred_node):
                prefers = False
                preferred = [segment for segment in choice.fitting if segment.node == wish.preferred_node]
                # Room there is worth an eviction only where the put can start with it (P6).
                enough = len(choice.segments) + 1 >= wish.min_granted
                if preferred and enough and (yield from self._evict(wish, 1, 0, preferred, pace)).is_news:
                    choice = self._choose_again(wish, choice)
            if pace.cancelled:
                return None
            if tried or len(choice.segments) >= choice.wanted:
                break
            if len(choice.segments) < wish.min_granted and self._is_hopeless(wish):
                return None
            outcome = yield from self._evict(wish, choice.wanted, wish.min_granted, choice.fitting, pace)
            tried = not outcome.stale
            choice = self._choose_again(wish, choice)
        if len(choice.segments) < wish.min_granted:
            if state.moment == began:
                version = state.evictor.room_version
            self._failure = _Failure(version, wish.size_bytes, wish.min_granted)
            return None
        return choice

    def _choose_again(self, wish: Wish, choice: Choice) -> Choice:
        """After an eviction; in the same step the segments are what they were."""
        if self._context.state.moment != choice.moment:
            return self.choose(wish)
        segments = self._choose(choice.fitting, wish, choice.wanted)
        return Choice(choice.fitting, choice.wanted, segments, choice.moment)

    def full(self, wish: Wish) -> PoolFull:
        """Why there is no room for it."""
        return explain_full(self._context, wish.size_bytes, wish.min_granted)

    def _choose(self, fitting: list[Segment], wish: Wish, wanted: int) -> list[Segment]:
        """Up to `wanted` segments with a long enough run, on distinct nodes, best first."""
        size = wish.size_bytes
        having = [segment for segment in fitting if segment.space.largest_free_run >= segment.space.rounded(size)]
        if len(having) > 1:
            having.sort(key=lambda s: (s.node != wish.preferred_node, -s.free_ratio, s.id))
        chosen: dict[str, Segment] = {}
        for segment in having:
            if len(chosen) == wanted:
                break
            chosen.setdefault(segment.node, segment)
        return list(chosen.values())

    def has_news(self) -> bool:
        """Has room appeared since the last search that found none began?"""
        return self._failure is not None and self._failure.room_version != self._context.state.evictor.room_version

    def _is_hopeless(self, wish: Wish) -> bool:
        failure = self._failure
        return (
            failure is not None
            and failure.room_version == self._context.state.evictor.room_version
            and wish.size_bytes >= failure.size_bytes
            and wish.min_granted >= failure.needed
        )

    def _evict(
        self, wish: Wish, wanted: int, needed: int, segments: list[Segment], pace: Pace
    ) -> Generator[None, None, Outcome]:
        """Make the room if that can be; otherwise nothing has changed, or others have changed it."""
        context, state = self._context, self._context.state
        room = Room(wish.size_bytes, wanted, needed, segments, state.segments.version)
        outcome = yield from make_room(room, state, pace, lambda row: context.remove_object(row, "evicted"))
        if not outcome.evicted and outcome.examined > LONG_SEARCH_ROWS:
            self.retry_at = context.now + outcome.examined // PAUSE_ROWS_PER_MS
        return outcome

    def _extent(self, segment: Segment, size_bytes: int) -> Extent:
        offset = segment.space.find(size_bytes)
        if offset is None:
            invariant(False, "a chosen segment has room")
            raise AssertionError
        return Extent(segment.id, offset, size_bytes)


def next_put_id(context: Context) -> PutId:
    """Never reused, also by a follower that takes over."""
    return PutId(context.state.puts.last_id + 1)
