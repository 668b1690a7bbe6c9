"""Figures of a run: how they are collected round by round, and what becomes of them.

Rates are bytes (or keys, or objects) per second. A ratio divides a round's rate by the yardstick of the same round;
medians are taken last, of rates and of ratios apart, so that a round on a busy machine spoils neither.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping

from msgspec import Struct

from pykvpool.cli.bench.cases import Control, PutRate, Transfer

#: Yardstick of a fabric, for puts and for gets: what its bytes would cost without us. That of rdma depends on the size
#: of what goes in one piece, which is part of its name.
YARDSTICKS: Mapping[str, tuple[str, str]] = {
    "inproc": ("memcpy", "memcpy"),
    "shm": ("memcpy", "memcpy"),
    "tcp": ("loopback", "loopback"),
    "rdma": ("ib_write_bw", "ib_read_bw"),
}


def yardsticks(case: Transfer) -> tuple[str, str]:
    """Names of the raw figures that puts and gets of a case are divided by."""
    put, get = YARDSTICKS[case.fabric]
    if case.fabric != "rdma":
        return put, get
    return f"{put} {case.piece_bytes}", f"{get} {case.piece_bytes}"


class Sample(Struct, frozen=True, array_like=True):
    """One case in one round: the median time of one call, in seconds, and how many calls were timed."""

    call_s: float
    calls: int


class Round(Struct):
    """What one round measured, by case number. `raw`: yardstick -> bytes per second."""

    raw: dict[str, float]
    puts: dict[int, Sample]
    gets: dict[int, Sample]
    controls: dict[int, Sample]
    put_rates: dict[int, Sample]


class TransferFigure(Struct, frozen=True):
    case: Transfer
    put_bytes_per_s: float
    put_ratio: float
    put_call_s: float
    get_bytes_per_s: float
    get_ratio: float
    get_call_s: float


class ControlFigure(Struct, frozen=True):
    case: Control
    call_s: float
    #: Hashes times scopes.
    keys_per_s: float


class PutRateFigure(Struct, frozen=True):
    case: PutRate
    call_s: float
    objects_per_s: float


class Figures(Struct, frozen=True):
    """What ``pykvpool bench --json`` prints."""

    version: str
    python: str
    processors: int
    rounds: int
    seconds: float
    #: Yardstick -> median bytes per second.
    raw: dict[str, float]
    transfers: list[TransferFigure]
    controls: list[ControlFigure]
    put_rates: list[PutRateFigure]


def transfer_figure(case: Transfer, number: int, rounds: list[Round]) -> TransferFigure | None:
    """None where no round got to this case."""
    put, get = yardsticks(case)
    puts = [(this.puts[number], this.raw[put]) for this in rounds if number in this.puts]
    gets = [(this.gets[number], this.raw[get]) for this in rounds if number in this.gets]
    if not puts or not gets:
        return None

    def rate(samples: list[tuple[Sample, float]]) -> float:
        return statistics.median(case.total_bytes / sample.call_s for sample, _ in samples)

    def ratio(samples: list[tuple[Sample, float]]) -> float:
        return statistics.median(case.total_bytes / sample.call_s / raw for sample, raw in samples)

    return TransferFigure(
        case,
        rate(puts),
        ratio(puts),
        _call_s(sample for sample, _ in puts),
        rate(gets),
        ratio(gets),
        _call_s(sample for sample, _ in gets),
    )


def control_figure(case: Control, number: int, rounds: list[Round]) -> ControlFigure | None:
    samples = [this.controls[number] for this in rounds if number in this.controls]
    if not samples:
        return None
    call_s = _call_s(samples)
    return ControlFigure(case, call_s, case.hashes * case.scopes / call_s)


def put_rate_figure(case: PutRate, number: int, rounds: list[Round]) -> PutRateFigure | None:
    samples = [this.put_rates[number] for this in rounds if number in this.put_rates]
    if not samples:
        return None
    call_s = _call_s(samples)
    return PutRateFigure(case, call_s, case.batch / call_s)


def raw_medians(rounds: list[Round]) -> dict[str, float]:
    names = {name for this in rounds for name in this.raw}
    return {name: statistics.median(this.raw[name] for this in rounds if name in this.raw) for name in sorted(names)}


def _call_s(samples: Iterable[Sample]) -> float:
    return statistics.median(sample.call_s for sample in samples)
