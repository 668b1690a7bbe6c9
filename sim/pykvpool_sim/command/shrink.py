"""From a failing run to a smaller one: faults are left out as long as it fails alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pykvpool_sim.cluster import Options, Report, run_seed

#: Runs spent on it.
MAX_RUNS = 60


def shrink(seed: int, options: Options, report: Report, run: Callable[[int, Options], Report] = run_seed) -> Options:
    """Options with as few strikes of the plan as still break the promise that `report` names first.

    Drops halves, then quarters, down to single strikes (Zeller's delta debugging, complements only).
    """
    broken = report.broken
    kept = list(range(report.planned)) if options.keep is None else list(options.keep)
    runs, size = 0, max(1, len(kept) // 2)
    while kept and runs < MAX_RUNS:
        position, dropped = 0, False
        while position < len(kept) and runs < MAX_RUNS:
            fewer = kept[:position] + kept[position + size :]
            runs += 1
            if run(seed, replace(options, keep=tuple(fewer))).broken == broken:
                kept, dropped = fewer, True
            else:
                position += size
        if size == 1 and not dropped:
            break
        size = max(1, size // 2)
    return replace(options, keep=tuple(kept))
