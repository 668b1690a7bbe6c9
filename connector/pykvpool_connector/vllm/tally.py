"""What the connector counts: one table of names, and tallies that add up over ranks and steps.

A tally is a plain dictionary, because it travels as JSON-like data from workers to the process that logs; the classes
that vLLM wants stand in `stats`. The scheduler's side and the workers count into tallies of the same form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

#: Measurements kept between two collections. The engine collects every step, so more means that nobody collects.
MAX_SAMPLES = 1_000


class Metric(NamedTuple):
    """One thing that is counted or measured."""

    help: str
    #: What a counter is divided by in its metric; "" for none.
    label: str = ""
    #: A distribution of seconds, not a counter.
    seconds: bool = False


#: Names as in Prometheus, behind ``vllm:pykvpool_``.
METRICS: dict[str, Metric] = {
    "loads": Metric("Loads that ranks ended, by outcome: loaded, or the reason of the failure.", "outcome"),
    "load_bytes": Metric("Bytes loaded from the pool into the engine's cache."),
    "load_seconds": Metric("Duration of one rank's load.", seconds=True),
    "saves": Metric("Save jobs that ranks ended."),
    "save_bytes": Metric("Bytes saved into the pool."),
    "save_seconds": Metric("Duration of one rank's save job.", seconds=True),
    "saved_blocks": Metric("Blocks of save jobs, by outcome: stored, existed, or the reason why dropped.", "outcome"),
    "lookups": Metric("Lookups that ended, by outcome: hit, miss, or the reason of the failure.", "outcome"),
    "lookup_seconds": Metric("Time until a lookup was answered.", seconds=True),
    "unsaved_blocks": Metric("Blocks that were not handed to a save job, by reason.", "reason"),
}


@dataclass(slots=True)
class Tally:
    """Counts since the last collection."""

    #: By name, then by the label's value ("" for metrics without one).
    counters: dict[str, dict[str, float]] = field(default_factory=dict)
    #: Durations in seconds, by name.
    samples: dict[str, list[float]] = field(default_factory=dict)

    def count(self, name: str, amount: float = 1, label: str = "") -> None:
        if amount:
            series = self.counters.setdefault(name, {})
            series[label] = series.get(label, 0) + amount

    def observe(self, name: str, seconds: float) -> None:
        kept = self.samples.setdefault(name, [])
        if len(kept) < MAX_SAMPLES:
            kept.append(seconds)

    @property
    def empty(self) -> bool:
        return not self.counters and not self.samples

    def add(self, other: Tally) -> None:
        for name, series in other.counters.items():
            for label, amount in series.items():
                self.count(name, amount, label)
        for name, seconds in other.samples.items():
            kept = self.samples.setdefault(name, [])
            kept += seconds[: MAX_SAMPLES - len(kept)]

    def take(self) -> Tally:
        """What was counted, and begin anew."""
        taken = Tally(self.counters, self.samples)
        self.counters, self.samples = {}, {}
        return taken

    def to_dict(self) -> dict[str, Any]:
        return {"counters": self.counters, "samples": self.samples}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Tally:
        """Also of data of another version: what is unknown is left out."""
        tally = cls()
        for name, series in dict(data.get("counters", {})).items():
            for label, amount in dict(series).items() if name in METRICS else ():
                tally.count(name, amount, label)
        for name, seconds in dict(data.get("samples", {})).items():
            if name in METRICS:
                tally.samples[name] = list(seconds)
        return tally

    def summary(self) -> dict[str, int | float]:
        """A few numbers for a line of the log: sums, and the mean and greatest of durations."""
        found: dict[str, int | float] = {}
        for name, series in sorted(self.counters.items()):
            for label, amount in sorted(series.items()):
                found[f"{name} {label}".strip()] = int(amount) if amount == int(amount) else amount
        for name, seconds in sorted(self.samples.items()):
            if seconds:
                found[f"mean {name}"] = round(sum(seconds) / len(seconds), 6)
                found[f"max {name}"] = round(max(seconds), 6)
        return found
