"""What every part of the store needs: is it set up, run on its loop, and turn results into codes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from pykvpool.client import Client
from pykvpool.errors import Closed, PoolError
from pykvpool_connector.mooncake.attachment import Attachment
from pykvpool_connector.mooncake.calls import OK, Failing

T = TypeVar("T")


class StoreBase(Failing):
    """Holds the attachment between `setup` and `close`."""

    def __init__(self) -> None:
        super().__init__()
        #: None before `setup` and after `close`.
        self._attachment: Attachment | None = None
        #: Held while the attachment changes.
        self._changing = threading.Lock()

    @property
    def _open(self) -> Attachment:
        """Raises `Closed` before `setup` and after `close`."""
        attachment = self._attachment
        if attachment is None:
            raise Closed("the store is not set up: call setup first")
        return attachment

    def _check_open(self) -> None:
        """Raises `Closed`."""
        assert self._open is not None, "raised otherwise"

    def _run(self, work: Callable[[Attachment], Coroutine[Any, Any, T]]) -> T:
        """Run on the loop of the open store. Raises `Closed`, and what `work` raises."""
        attachment = self._open
        return attachment.run(lambda: work(attachment))

    def _read(self, work: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        """Run a get of the open store's client; leases that `is_exist` left give way where they are in its way."""
        return self._run(lambda attachment: attachment.holds.with_room(lambda: work(attachment.client)))

    def _code(self, what: str, key: object, error: PoolError | None) -> int:
        """0, or the code of what went wrong with one key."""
        return OK if error is None else self.failed(f"{what} {key!r:.80}", error)

    def _codes(self, what: str, keys: Sequence[object], errors: Sequence[PoolError | None]) -> list[int]:
        return [self._code(what, key, error) for key, error in zip(keys, errors, strict=True)]
