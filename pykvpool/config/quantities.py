"""Kinds of configuration values that are numbers, with or without a unit: see `kinds`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from pykvpool.config.kinds import refused

Number = TypeVar("Number", int, float)

#: Sizes are binary whatever their spelling: Mooncake reads "80GB" as 80 x 1024^3, and so do its users.
SIZE_UNITS = {"": 1, "B": 1} | {
    prefix + end: 1024**power for power, prefix in enumerate("KMGTP", start=1) for end in ("", "B", "IB")
}
#: Durations by their length in milliseconds.
TIME_UNITS_MS = {"ms": 1.0, "s": 1_000.0, "m": 60_000.0, "min": 60_000.0, "h": 3_600_000.0}

_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", re.ASCII)
#: Longest number read from text. Longer ones are mistakes, and Python refuses to read them at all past 4,300 digits.
_MAX_TEXT = 100


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number in a range."""

    least: int
    most: int | None = None
    name: ClassVar[str] = "integer"

    @property
    def allowed(self) -> str:
        return f"a whole number {_range(self.least, self.most)}"

    @property
    def bounds(self) -> str:
        return f"from {self.least:,}" if self.most is None else f"{self.least:,} to {self.most:,}"

    def parse(self, raw: object) -> int:
        if isinstance(raw, bool) or not isinstance(raw, int) or not _within(raw, self.least, self.most):
            raise refused(self, raw)
        return raw

    def parse_text(self, text: str) -> int:
        plain = text.strip().replace("_", "")
        if len(plain) > _MAX_TEXT or not re.fullmatch(r"-?\d+", plain, re.ASCII):
            raise refused(self, text)
        return self.parse(int(plain))


@dataclass(frozen=True, slots=True)
class Ratio:
    """A part of a whole: above 0, at most 1."""

    name: ClassVar[str] = "ratio"

    @property
    def allowed(self) -> str:
        return "a number above 0 and at most 1"

    @property
    def bounds(self) -> str:
        return "above 0, at most 1"

    def parse(self, raw: object) -> float:
        if isinstance(raw, bool) or not isinstance(raw, int | float) or not 0 < raw <= 1:
            raise refused(self, raw)
        return float(raw)

    def parse_text(self, text: str) -> float:
        try:
            return self.parse(float(text))
        except ValueError:
            raise refused(self, text) from None


@dataclass(frozen=True, slots=True)
class Size:
    """Bytes: a whole number, or text with a unit, all of them binary."""

    least: int
    name: ClassVar[str] = "size"

    @property
    def allowed(self) -> str:
        least = "1 byte" if self.least == 1 else f"{self.least} bytes"
        return f"a size of at least {least}, as a whole number or like '512MiB' or '80GB' (1 GB = 1024^3)"

    @property
    def bounds(self) -> str:
        return ""

    def parse(self, raw: object) -> int:
        if isinstance(raw, str):
            return self.parse_text(raw)
        if isinstance(raw, bool) or not isinstance(raw, int) or raw < self.least:
            raise refused(self, raw)
        return raw

    def parse_text(self, text: str) -> int:
        number, unit = _quantity(text)
        factor = SIZE_UNITS.get(unit.upper())
        if number is None or factor is None:
            raise refused(self, text)
        size = number * factor
        if size != math.floor(size) or size < self.least:
            raise refused(self, text)
        return int(size)


@dataclass(frozen=True, slots=True)
class Duration(Generic[Number]):
    """A time in the key's own unit (the last part of its name): a number, or text with a unit."""

    least: Number
    most: Number
    #: Milliseconds of the key's unit: 1 for `..._ms`, 1,000 for `..._s`.
    unit_ms: int
    name: ClassVar[str] = "duration"

    @property
    def allowed(self) -> str:
        unit = "ms" if self.unit_ms == 1 else "s"
        return f"a time of {self.least:,} to {self.most:,} {unit}, as a number of {unit} or like '500ms', '10s', '2m'"

    @property
    def bounds(self) -> str:
        return f"{_readable(self.least * self.unit_ms)} to {_readable(self.most * self.unit_ms)}"

    def parse(self, raw: object) -> Number:
        if isinstance(raw, str):
            return self.parse_text(raw)
        if isinstance(raw, bool) or not isinstance(raw, int | float):
            raise refused(self, raw)
        return self._checked(float(raw), raw)

    def parse_text(self, text: str) -> Number:
        number, unit = _quantity(text)
        factor = TIME_UNITS_MS.get(unit.lower()) if unit else float(self.unit_ms)
        if number is None or factor is None:
            raise refused(self, text)
        return self._checked(number * factor / self.unit_ms, text)

    def _checked(self, value: float, raw: object) -> Number:
        # The range is checked first: infinities and NaN have no whole number.
        if not self.least <= value <= self.most:
            raise refused(self, raw)
        number = type(self.least)(value)
        if number != value:
            raise refused(self, raw)
        return number


def parse_size(text: str) -> int:
    """Bytes of '80GB', '512MiB', '4096'; `ValueError` says what is allowed."""
    return Size(0).parse_text(text)


def _quantity(text: str) -> tuple[float | int | None, str]:
    """Number (None: there is none) and unit of '1.5 GB'."""
    match = _QUANTITY.fullmatch(text) if len(text) <= _MAX_TEXT else None
    if match is None:
        return None, ""
    return (float(match[1]) if "." in match[1] else int(match[1])), match[2]


def _readable(milliseconds: float) -> str:
    """The shortest way to write a time: ``24 h``, ``3 s``, ``1 ms``; ``0`` for none."""
    for unit in ("h", "s"):
        number = milliseconds / TIME_UNITS_MS[unit]
        if number >= 1 and number == int(number):
            return f"{number:g} {unit}"
    return f"{milliseconds:g} ms" if milliseconds else "0"


def _within(value: int, least: int, most: int | None) -> bool:
    return value >= least and (most is None or value <= most)


def _range(least: int, most: int | None) -> str:
    return f"of at least {least:,}" if most is None else f"from {least:,} to {most:,}"
