"""The figures of a campaign as JSON, for other programs and for later."""

from __future__ import annotations

import json
import platform
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
        "runs": summary.runs,
        "virtual_s": round(summary.virtual_s, 1),
        "callbacks": summary.callbacks,
        "repeated": summary.repeated,
        "unrepeatable": summary.unrepeatable,
        "failures": [
            {"replay": replay_command(report.seed, options), "violations": report.violations}
            for report, options in summary.failures
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
