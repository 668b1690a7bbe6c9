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
from pykvpool.core.placement import Wish, next_put_id
from pykvpool.core.puts import OpenPut
from pykvpool.core.tickets import Ticket
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
        self._steps: Generator[None, None, OpenPut | None] | None = None
        self._pace: Pace | None = None

    def is_busy(self) -> bool:
        return self.ticket is not None

    def place(self, ticket: Ticket, work: Slice) -> OpenPut | None:
        """Begin, or go on with what is under way.

        None: not done yet (`is_busy`), or there is no room. Raises what `Placement.check` raises.
        """
        if self._steps is None or self._pace is None:
            self._pace = Pace(work)
            self._steps = self._open(ticket.wish, self._pace)
            self.ticket = ticket
        self._pace.work = work
        try:
            next(self._steps)
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

    def _open(self, wish: Wish, pace: Pace) -> Generator[None, None, OpenPut | None]:
        context = self._context
        extents = yield from context.placement.place(wish, pace)
        if extents is None or pace.cancelled or not context.is_live(wish.session):
            return None
        put_id = next_put_id(context)
        context.emit(
            PutOpened(
                put_id, wish.session, wish.scope, wish.hash, wish.size_bytes, wish.parent, wish.pin, wish.min_replicas,
                extents,
            )
        )  # fmt: skip
        context.open_put(put_id)
        return context.state.puts.by_id[put_id]
