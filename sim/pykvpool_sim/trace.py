"""What happened, boiled down to a digest: equal digests mean equal runs.

The loop tells the trace each callback that it executes (who, and when in virtual time), the streams tell it each draw.
Identities are words and numbers that are the same in every process: creation numbers of tasks, qualified names of
functions, names of hosts. Never addresses, never hashes.

The last entries are kept for error messages. With `keep_all` the whole text is kept, so that two runs that should have
been equal can be laid side by side: `first_difference` finds where they part.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence

#: Entries shown when a run goes wrong: enough to see a cycle, few enough to read.
KEPT_ENTRIES = 40
#: Entries hashed at a time.
_BATCH = 512


class Trace:
    """Grows with the run; costs less than a microsecond an entry."""

    def __init__(self, *, keep_all: bool = False) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        #: The last entries; all of them with `keep_all`.
        self._entries: deque[str] = deque(maxlen=None if keep_all else KEPT_ENTRIES)
        #: The latest entries, in neither hash nor `_entries` yet: both take many at a time more cheaply.
        self._pending: list[str] = []
        #: Callbacks executed so far.
        self.executed_count = 0

    def executed(self, time_ns: int, identity: str) -> None:
        """The loop ran a callback."""
        self.executed_count += 1
        self._pending.append(f"{time_ns} {identity}")
        if len(self._pending) >= _BATCH:
            self._take_in()

    def drew(self, stream: str, value: float) -> None:
        """A stream of randomness was asked."""
        self._pending.append(f"{stream} drew {value!r}")
        if len(self._pending) >= _BATCH:
            self._take_in()

    def note(self, text: str) -> None:
        """Anything else that two equal runs share (a fault that struck, a result)."""
        self._pending.append(text)
        if len(self._pending) >= _BATCH:
            self._take_in()

    def _take_in(self) -> None:
        self._entries.extend(self._pending)
        self._pending.append("")
        self._hash.update("\n".join(self._pending).encode())
        self._pending.clear()

    def digest(self) -> str:
        """32 hex digits over everything told so far."""
        if self._pending:
            self._take_in()
        return self._hash.hexdigest()

    def entries(self) -> list[str]:
        """What is kept, oldest first."""
        if self._pending:
            self._take_in()
        return list(self._entries)


def first_difference(left: Sequence[str], right: Sequence[str]) -> str | None:
    """Where two kept traces part, in words; None where they are equal."""
    for position, (ours, theirs) in enumerate(zip(left, right, strict=False)):
        if ours != theirs:
            return f"entry {position}: {ours!r} against {theirs!r}"
    if len(left) != len(right):
        longer, end = max(left, right, key=len), min(len(left), len(right))
        return f"entry {end}: one trace ends, the other goes on with {longer[end]!r}"
    return None
