"""The figures of a campaign as JSON, for other programs, for later, and to go on from: a campaign takes hours of a
machine, which may have other things to do in between.
"""

from __future__ import annotations

import json
import platform
from collections import Counter
from pathlib import Path

from pykvpool_sim.cluster.troubles import KINDS
from pykvpool_sim.command.campaign import Owed, Summary, Wishes
from pykvpool_sim.command.pages import option_words, replay_command


def write_record(path: Path, summary: Summary, wishes: Wishes, wall_s: float, *, whole: bool) -> None:
    """Replaces `path`, in one step. `whole`: all that was asked for is in it."""
    record = {
        "whole": whole,
        "command": _command(wishes),
        "python": platform.python_version(),
        "wall_s": round(wall_s, 1),
        "seeds": summary.seeds,
        "done": sorted(summary.done),
        "owed": {seed: {"without": owed.without, "again": owed.again} for seed, owed in sorted(summary.owed.items())},
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


def _command(wishes: Wishes) -> str:
    """What the figures are of, seeds aside: figures of two commands do not add up."""
    words = ["pykvpool", "sim", *option_words(wishes.options)]
    words += ["--twice"] if wishes.twice else []
    words += ["--compare", "--enough", str(wishes.enough)] if wishes.compare else []
    return " ".join(words)


def read_record(path: Path, wishes: Wishes) -> tuple[Summary, float]:
    """The figures in `path`, and the seconds they took. Raises OSError, and ValueError where it is no such file, or one
    of other wishes."""
    record = json.loads(path.read_text())
    try:
        if record["command"] != _command(wishes):
            raise ValueError(f"it has the figures of `{record['command']}`, and this is `{_command(wishes)}`")
        faults: dict[str, dict[str, int]] = record["faults"]

        def column(name: str) -> Counter[str]:
            return Counter({kind: count for kind, figures in faults.items() if (count := figures[name])})

        summary = Summary(
            seeds=record["seeds"],
            done=set(record["done"]),
            owed={int(seed): Owed(owed["without"], owed["again"]) for seed, owed in record["owed"].items()},
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
