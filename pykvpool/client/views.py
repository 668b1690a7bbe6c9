"""Zero-copy views: read an object where it lies, for as long as its lease is kept alive.

A view is an async context manager. Inside, `data` is a read-only memoryview: of the owner's memory where a fabric can
map it (shm, inproc), else of a private copy. Leaving checks the lease once more: bytes that were looked at after it
lapsed may have been another block's, and the caller must know (`StaleView`).
"""

from __future__ import annotations

from types import TracebackType

from pykvpool.client.held import HeldLease
from pykvpool.errors import InvalidArgument, LeaseExpired, StaleView
from pykvpool.model.objects import Vouch


class View:
    """One object, readable between `__aenter__` and `__aexit__`. Made by `Client.view`."""

    def __init__(self, data: memoryview, held: HeldLease | None, vouch: Vouch, scheme: str, node: str) -> None:
        self._data = data.toreadonly()
        #: None: the bytes are a private copy that passed the gate already, and need no lease.
        self._held = held
        #: What vouches for the bytes: a mapped view lives by its lease alone.
        self.vouch = vouch
        self.scheme = scheme
        self.node = node

    @property
    def zero_copy(self) -> bool:
        return self._held is not None

    @property
    def data(self) -> memoryview:
        """The object's bytes, read-only. Raises `StaleView` once the lease has lapsed."""
        if self._held is not None and not self._held.trusted:
            raise self._stale()
        return self._data

    async def __aenter__(self) -> View:
        if self._held is not None:
            self._held.keep_alive()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._held is None:
            self._data.release()
            return
        try:
            self._data.release()
            self._held.check()
        except BufferError:
            if kind is None:
                raise InvalidArgument(
                    "the view was left while something (an array made from it?) still refers to its memory: "
                    "copy what you keep"
                ) from None
        except LeaseExpired:
            if kind is None:
                raise self._stale() from None
        finally:
            self._held.release()

    def _stale(self) -> StaleView:
        return StaleView("the lease of this view lapsed while it was open: what was read through it may be other bytes")
