"""Parts of a run as one word on a command line, and back: turns as ``client-0:3-7,9;client-2:1``, and a tape as the
choices that are not plain, ``15:3,23:1`` (the 15th choice took the strand at position 3). ``none`` is none at all. And
strikes, as ``pause at master from 8000 for 15000``, with semicolons between them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from pykvpool_sim.cluster.troubles import KINDS
from pykvpool_sim.plan import Strike

NONE = "none"
#: Longest tape that is believed: far more choices than a run has.
_MAX_CHOICES = 10_000_000
#: Largest position that is believed; see `pykvpool_sim.choosers.CHOICE_WINDOW`.
_MAX_POSITION = 255


def turns_text(turns: Iterable[str]) -> str:
    """Of names like "client-0/17"."""
    numbers: dict[str, list[int]] = {}
    for name in turns:
        host, _, number = name.rpartition("/")
        numbers.setdefault(host, []).append(int(number))
    return ";".join(f"{host}:{_ranges(sorted(numbers[host]))}" for host in sorted(numbers)) or NONE


def read_turns(text: str) -> frozenset[str]:
    """Raises ValueError."""
    turns: set[str] = set()
    for part in text.split(";") if text != NONE else ():
        host, colon, ranges = part.rpartition(":")
        if not colon:
            raise ValueError(f"{part!r} has no host")
        for one in ranges.split(","):
            first, _, last = one.partition("-")
            turns.update(f"{host}/{number}" for number in range(int(first), int(last or first) + 1))
    return frozenset(turns)


def strikes_text(strikes: Iterable[Strike]) -> str:
    return "; ".join(f"{one.fault} at {one.host} from {one.at_ms} for {one.lasts_ms}" for one in strikes)


def read_strikes(text: str) -> tuple[Strike, ...]:
    """Raises ValueError."""
    strikes = []
    for part in text.split(";"):
        match = re.fullmatch(r"\s*(.+?) at (\S+) from (\d+) for (\d+)\s*", part)
        if match is None or match[1] not in KINDS:
            raise ValueError(f"{part.strip()!r} is no strike")
        strikes.append(Strike(int(match[3]), int(match[4]), match[1], match[2]))
    return tuple(strikes)


def tape_text(tape: bytes) -> str:
    return ",".join(f"{position}:{choice}" for position, choice in enumerate(tape) if choice) or NONE


def read_tape(text: str) -> bytes:
    """Raises ValueError."""
    choices: dict[int, int] = {}
    for part in text.split(",") if text != NONE else ():
        position, _, choice = part.partition(":")
        choices[int(position)] = int(choice)
    if any(not 0 <= position < _MAX_CHOICES for position in choices) or any(
        not 0 < choice <= _MAX_POSITION for choice in choices.values()
    ):
        raise ValueError("a position or a choice is out of all bounds")
    tape = bytearray(max(choices, default=-1) + 1)
    for at, chosen in choices.items():
        tape[at] = chosen
    return bytes(tape)


def _ranges(numbers: list[int]) -> str:
    """Of rising numbers."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
