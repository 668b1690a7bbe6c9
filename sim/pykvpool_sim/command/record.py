"""The figures of a campaign as JSON, for other programs, for later, and to go on from: a campaign takes hours of a
machine, which may have other things to do in between.
"""

from __future__ import annotations

import json
import platform
from collections import Counter
from pathlib import Path

from pykvpool_sim.cluster.troubles import KINDS
from pykvpool_sim.command.campaign import Summary
from pykvpool_sim.command.pages import replay_command


def write_record(path: Path, summary: Summary, wall_s: float, *, whole: bool) -> None:
    """Replaces `path`, in one step. `whole`: all seeds that were asked for are in it."""
    record = {
        "whole": whole,
        "python": platform.python_version(),
        "wall_s": round(wall_s, 1),
        "seeds": summary.seeds,
        "done": sorted(summary.done),
        "runs": summary.runs,
        "virtual_s": round(summary.virtual_s, 1),
        "callbacks": summary.callbacks,
        "repeated": summary.repeated,
        "unrepeatable": summary.unrepeatable,
        "failures": [
            *summary.earlier_failures,
            *(
                {"replay": replay_command(report.seed, options), "violations": report.violations}
                for report, options in summary.failures
            ),
        ],
        "faults": {
            kind: {
                "strikes": summary.struck[kind],
                "found_a_victim": summary.fired[kind],
                "seeds": summary.seeds_with[kind],
                "compared": summary.compared[kind],
                "took_effect": summary.took_effect[kind],
            }
            for kind in KINDS
        },
        "counts": dict(summary.counts.most_common()),
        "calls": dict(summary.calls.most_common()),
    }
    unfinished = path.with_name(path.name + ".part")
    unfinished.write_text(json.dumps(record, indent=1) + "\n")
    unfinished.replace(path)


def read_record(path: Path) -> tuple[Summary, float]:
    """The figures in `path`, and the seconds they took. Raises OSError, and ValueError where it is no such file."""
    record = json.loads(path.read_text())
    try:
        faults: dict[str, dict[str, int]] = record["faults"]

        def column(name: str) -> Counter[str]:
            return Counter({kind: count for kind, figures in faults.items() if (count := figures[name])})

        summary = Summary(
            seeds=record["seeds"],
            done=set(record["done"]),
            earlier_failures=record["failures"],
            repeated=record["repeated"],
            unrepeatable=record["unrepeatable"],
            struck=column("strikes"),
            fired=column("found_a_victim"),
            seeds_with=column("seeds"),
            compared=column("compared"),
            took_effect=column("took_effect"),
            counts=Counter(record["counts"]),
            calls=Counter(record["calls"]),
            callbacks=record["callbacks"],
            virtual_s=record["virtual_s"],
            runs=record["runs"],
        )
        return summary, float(record["wall_s"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is no record of a campaign: {error!r}") from error
