"""What was found to be broken, and about which object, so that its story can be told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pykvpool.model.ids import PutId

#: The first few tell all; a broken pool breaks every promise soon after.
MAX_VIOLATIONS = 10


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken promise."""

    #: "P1" to "P8", "calm" (it did not come to rest), "bug" (an error that no caller should meet).
    promise: str
    text: str
    world_ns: int
    #: Binary key and put it is about, where there is one.
    key: bytes | None = None
    put_id: PutId | None = None

    def __str__(self) -> str:
        return f"{self.promise} at {self.world_ns / 1e9:.6f} s: {self.text}"


@dataclass(slots=True)
class Verdicts:
    """Grows by what is found. `off`: promises that are not judged, to see what each checker is worth."""

    now_ns: Callable[[], int]
    off: frozenset[str] = frozenset()
    found: list[Violation] = field(default_factory=list)

    def add(self, promise: str, text: str, *, key: bytes | None = None, put_id: PutId | None = None) -> None:
        if promise not in self.off and len(self.found) < MAX_VIOLATIONS:
            self.found.append(Violation(promise, text, self.now_ns(), key, put_id))
