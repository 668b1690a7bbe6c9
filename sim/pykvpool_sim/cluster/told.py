"""What clients were told, boiled down, so that a run can be compared with another of the same seed while it goes on.

The question is whether a kind of fault took effect: whether clients were told something else than they are without
it. What the fault itself does to whom it strikes is no answer. A client that was killed, paused or suspended makes
other calls, or none, whatever the pool does; so its own calls do not count, and only those of other clients do. Nor do
times count, nor the order among clients; only what each was told in answer to what.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pykvpool_sim.history import History, Operation

#: For each client host, a number for each call, in the order in which it called: what it asked and what it was told.
Told = Mapping[str, Sequence[int]]


def told_by(history: History) -> dict[str, list[int]]:
    """All of a run."""
    told: dict[str, list[int]] = defaultdict(list)
    for operation in history.operations:
        told[_host(operation)].append(_number(operation))
    return dict(told)


@dataclass(slots=True)
class Comparison:
    """This run against another. Give `invoked` and `returned` to the history; `finish` looks at the rest.

    Args:
        other: what the other run's clients were told.
        ignored: hosts whose calls do not count.
    """

    other: Told
    ignored: frozenset[str] = frozenset()
    #: A client was told something else. Once true, it stays.
    differs: bool = False
    #: Calls so far, by host.
    _counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    #: Which of its host's calls one is, by its number in the history.
    _positions: dict[int, int] = field(default_factory=dict)

    def invoked(self, operation: Operation) -> None:
        host = _host(operation)
        self._positions[operation.number] = self._counts[host]
        self._counts[host] += 1

    def returned(self, operation: Operation) -> None:
        host, position = _host(operation), self._positions.pop(operation.number)
        if host in self.ignored or self.differs:
            return
        others = self.other.get(host, ())
        self.differs = position >= len(others) or others[position] != _number(operation)

    def finish(self, history: History) -> None:
        """The run is over: calls that the other made and this one did not, and calls that never returned."""
        here = told_by(history)
        for host in (here.keys() | self.other.keys()) - self.ignored:
            self.differs |= list(here.get(host, ())) != list(self.other.get(host, ()))


def _host(operation: Operation) -> str:
    """Of all lives of a host the calls are one sequence."""
    return operation.process.partition("#")[0]


def _number(operation: Operation) -> int:
    text = f"{operation.name} {operation.arguments} {operation.outcome} {operation.value}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
