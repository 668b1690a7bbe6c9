"""The one key that is being placed: room is made for it, over as many steps as that takes, and for nobody else.

Most keys are placed in the step in which they come. What takes longer goes on in `pump` (see `waiting`), with a slice
in every step, until the put is open or there is no room. It cannot be broken off, only told that nobody wants it any
more: then it gives back what it had taken, or evicts what was decided, and opens nothing.
"""

from __future__ import annotations

from collections.abc import Generator

from pykvpool.core.catalog import NONE
from pykvpool.core.context import Context
from pykvpool.core.jobs import Pace, Slice
from pykvpool.core.placement import Choice, Wish, next_put_id
from pykvpool.core.puts import OpenPut
from pykvpool.core.tickets import NO_TICKET, Ticket, TicketState
from pykvpool.errors import KeyConflict, PoolError
from pykvpool.model.facts import PutOpened
from pykvpool.model.ids import PutId
from pykvpool.model.replies import Existing


class Placer:
    """Opens puts, one after the other."""

    def __init__(self, context: Context) -> None:
        self._context = context
        #: Whose placing is under way; `waiting` sets the ticket that a key gets for it.
        self.ticket: Ticket | None = None
        #: Moment of the step in which that began, or went on last.
        self._worked_at = -1
        self._steps: Generator[None, None, OpenPut | None] | None = None
        self._pace: Pace | None = None

    def is_busy(self) -> bool:
        return self.ticket is not None

    def has_worked(self) -> bool:
        """Has what is under way had its slice in this step?"""
        return self.is_busy() and self._worked_at == self._context.state.moment

    def begin(self, wish: Wish, work: Slice) -> OpenPut | None:
        """For a key that comes now, while nobody is being placed. None and what it raises: as `go_on`.

        Room is made within a slice of its own, charged to `work`: a key is not to become a ticket because others of its
        batch have used theirs up.
        """
        choice = self._context.placement.choose(wish)
        if choice.is_best(wish):
            return self._open(wish, choice)
        own = self._context.new_slice()
        try:
            return self._begin(Ticket(NO_TICKET, wish, TicketState.GONE, 0), choice, own)
        finally:
            work.charge(own)

    def go_on(self, ticket: Ticket, work: Slice) -> OpenPut | None:
        """Begin with this one, or go on with what is under way.

        None: not done yet (`is_busy`), or there is no room. Raises what `Placement.check` raises.
        """
        if self._steps is not None:
            return self._advance(self._steps, work)
        choice = self._context.placement.choose(ticket.wish)
        return self._open(ticket.wish, choice) if choice.is_best(ticket.wish) else self._begin(ticket, choice, work)

    def _begin(self, ticket: Ticket, choice: Choice, work: Slice) -> OpenPut | None:
        self._pace = Pace(work)
        self._steps = self._make_room(ticket.wish, choice, self._pace)
        self.ticket = ticket
        return self._advance(self._steps, work)

    def _advance(self, steps: Generator[None, None, OpenPut | None], work: Slice) -> OpenPut | None:
        if self._pace is not None:
            self._pace.work = work
        self._worked_at = self._context.state.moment
        try:
            next(steps)
        except StopIteration as end:
            self._end()
            put: OpenPut | None = end.value
            return put
        except PoolError:
            self._end()
            raise
        return None

    def cancel(self) -> None:
        """Nobody wants the put any more."""
        if self._pace is not None:
            self._pace.cancelled = True

    def readable(self, wish: Wish) -> Existing | None:
        """For a key that was about to be evicted when it was asked for, and then stayed. Raises `KeyConflict`."""
        catalog = self._context.state.catalog
        row = NONE if self.is_busy() else catalog.find(wish.scope, wish.hash)
        if row == NONE:
            return None
        if catalog.size[row] != wish.size_bytes:
            raise KeyConflict(
                f"the key exists with {catalog.size[row]} bytes, not {wish.size_bytes}: content addressed keys never "
                "change their bytes",
                size_bytes=catalog.size[row],
                asked_bytes=wish.size_bytes,
            )
        return Existing(PutId(catalog.put_id[row]))

    def _end(self) -> None:
        self.ticket = self._steps = self._pace = None

    def _make_room(self, wish: Wish, choice: Choice, pace: Pace) -> Generator[None, None, OpenPut | None]:
        context = self._context
        better = yield from context.placement.make_room(wish, choice, pace)
        if better is None or pace.cancelled or not context.is_live(wish.session):
            return None
        return self._open(wish, better)

    def _open(self, wish: Wish, choice: Choice) -> OpenPut:
        context = self._context
        put_id, extents = next_put_id(context), context.placement.extents(wish, choice)
        context.emit(
            PutOpened(
                put_id, wish.session, wish.scope, wish.hash, wish.size_bytes, wish.parent, wish.pin, wish.min_replicas,
                extents,
            )
        )  # fmt: skip
        context.open_put(put_id)
        return context.state.puts.by_id[put_id]
