"""Who runs next: the one decision that the simulator takes away from the event loop.

Callbacks that are ready form *strands* whose inner order asyncio promises: each task is a strand, and the plain
callbacks of one host are one. A chooser sees the numbers of the strands that could run now, the longest waiting first
(at most `CHOICE_WINDOW` of them), and answers with a position. Position 0 everywhere is what asyncio itself would do.

- `Fifo`: that.
- `Seeded`: any, evenly. Finds most races, soon.
- `Pct`: probabilistic concurrency testing (Burckhardt et al., ASPLOS 2010): strands have random priorities and the
  highest runs, but at `depth - 1` random moments the one on top falls to the bottom. A bug that needs `depth` ordered
  events is met with a probability of at least 1 / (strands x steps^(depth-1)), also when it needs one strand to sleep
  for a very long time, which even draws never give.
- `Tape`: choices from a list, so that Hypothesis can generate schedules and shrink them; a tape that has run out means
  Fifo, so the shortest and smallest tape is the plainest schedule.
- `Recorder`: notes what another chooser chose, as a tape that replays it.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Protocol

#: Most strands a chooser sees. Bounds the work of one choice, and how long the others can be overtaken.
CHOICE_WINDOW = 64
#: A strand that is chosen this often in a row has spun long enough: Pct sends it to the bottom, as a yield would.
PCT_PATIENCE = 1_000


class Chooser(Protocol):
    """Chooses among strands that are ready."""

    def choose(self, strands: Sequence[int]) -> int:
        """A position in `strands`, which has at least two."""
        ...


class Fifo:
    """The order in which callbacks became ready, as in asyncio."""

    def choose(self, strands: Sequence[int]) -> int:
        return 0


class Seeded:
    """Any strand, evenly."""

    def __init__(self, draws: random.Random) -> None:
        self._draws = draws

    def choose(self, strands: Sequence[int]) -> int:
        return self._draws.randrange(len(strands))


class Pct:
    """Priorities, with `depth - 1` change points among the first `steps` choices.

    Args:
        draws: where priorities and change points come from.
        depth: ordered events that the bug needs; 2 or 3 finds nearly all that are known.
        steps: about how many choices the scenario takes; change points after its end are wasted.
    """

    def __init__(self, draws: random.Random, *, depth: int = 3, steps: int = 10_000) -> None:
        if depth < 1 or steps < 1:
            raise ValueError(f"depth and steps are at least 1, not {depth} and {steps}")
        self._draws = draws
        self._changes = {draws.randrange(steps) for _ in range(depth - 1)}
        self._step = 0
        #: strand -> priority; the highest runs. Those that fell have negative ones, the last to fall the lowest.
        self._priorities: dict[int, float] = {}
        self._fallen = 0
        self._last = -1
        self._in_a_row = 0

    def choose(self, strands: Sequence[int]) -> int:
        for strand in strands:
            if strand not in self._priorities:
                self._priorities[strand] = self._draws.random()
        top = self._top(strands)
        self._in_a_row = self._in_a_row + 1 if strands[top] == self._last else 1
        if self._step in self._changes or self._in_a_row > PCT_PATIENCE:
            self._fallen += 1
            self._priorities[strands[top]] = float(-self._fallen)
            self._in_a_row = 0
            top = self._top(strands)
        self._step += 1
        self._last = strands[top]
        return top

    def _top(self, strands: Sequence[int]) -> int:
        return max(range(len(strands)), key=lambda position: self._priorities[strands[position]])


class Tape:
    """Choices read from `choices` (whole numbers of any size, taken modulo what there is to choose from), then Fifo."""

    def __init__(self, choices: Iterable[int]) -> None:
        self._choices = iter(choices)

    def choose(self, strands: Sequence[int]) -> int:
        return next(self._choices, 0) % len(strands)


class Recorder:
    """Chooses as `inner` does; `tape` then replays it: ``Tape(recorder.tape)``."""

    def __init__(self, inner: Chooser) -> None:
        self._inner = inner
        self.tape: list[int] = []

    def choose(self, strands: Sequence[int]) -> int:
        chosen = self._inner.choose(strands)
        self.tape.append(chosen)
        return chosen
