"""Numbers as people read them. Sizes and rates are binary (KiB, MiB/s, ...), so that one divides by the other."""

from __future__ import annotations

from collections.abc import Iterable

from pykvpool.errors import InvalidArgument
from pykvpool.model.keys import key_bytes, key_text

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")


def size(size_bytes: float) -> str:
    """``1.5 MiB``, ``12 bytes``."""
    if size_bytes == 1:
        return "1 byte"
    unit = 0
    value = float(size_bytes)
    while abs(value) >= 1024 and unit < len(_UNITS) - 1:
        value /= 1024
        unit += 1
    return (
        f"{value:.0f} {_UNITS[unit]}"
        if unit == 0 or value >= 100 or value == int(value)
        else f"{value:.1f} {_UNITS[unit]}"
    )


def rate(bytes_per_s: float) -> str:
    """``1.23 GiB/s``, ``456.7 MiB/s``."""
    if bytes_per_s >= 1 << 30:
        return f"{bytes_per_s / (1 << 30):.2f} GiB/s"
    return f"{bytes_per_s / (1 << 20):.1f} MiB/s"


def duration(seconds: float) -> str:
    """``3.2 s``, ``410 ms``, ``35 us``."""
    if seconds >= 100:
        return f"{seconds:.0f} s"
    if seconds >= 1:
        return f"{seconds:.1f} s"
    if seconds >= 1e-3:
        milliseconds = seconds * 1e3
        return f"{milliseconds:.0f} ms" if milliseconds >= 10 else f"{milliseconds:.2f} ms"
    return f"{seconds * 1e6:.0f} us"


def count(number: float) -> str:
    """``12,345``."""
    return f"{number:,.0f}"


def counted(number: float, noun: str) -> str:
    """``1 object``, ``12,345 objects``."""
    return f"{count(number)} {noun}" if number == 1 else f"{count(number)} {noun}s"


def percent(part: float, whole: float) -> str:
    """``94.2 %``; a dash where there is nothing to be a part of."""
    return f"{100 * part / whole:.1f} %" if whole else "-"


def shown_key(text: str) -> str:
    """A key that somebody typed, as `ls` prints it: without the control characters that would reach a terminal."""
    return key_text(key_bytes(parse_key(text)))


def endpoints(found: Iterable[str]) -> str:
    """Where a node's memory is reached: ``tcp://10.0.0.2:7001 and shm (same host and user)``."""
    named = {"shm": "shm (same host and user)", "inproc": "inproc (same process)"}
    return " and ".join(named.get(endpoint.partition("://")[0], endpoint) for endpoint in sorted(found, reverse=True))


def parse_key(text: str) -> str | bytes:
    """A key as people type it, the way `ls` prints it: ``0x`` and hex is binary, all else is text."""
    if text.startswith("0x"):
        try:
            return bytes.fromhex(text[2:])
        except ValueError:
            raise InvalidArgument(f"key {text!r} begins with 0x, so hex digits must follow") from None
    return text
