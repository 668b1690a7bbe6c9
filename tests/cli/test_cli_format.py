"""Numbers and keys as people read and write them."""

from __future__ import annotations

import pytest

from pykvpool.cli import format as say
from pykvpool.errors import InvalidArgument
from pykvpool.model.keys import key_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (200 * 1024, "200 KiB"),
        (1 << 30, "1 GiB"),
        (5 * 2**60, "5120 PiB"),
    ],
)
def test_sizes_are_binary(value: int, text: str) -> None:
    assert say.size(value) == text


def test_rates_are_binary_as_sizes_are() -> None:
    assert say.rate(2.5 * (1 << 30)) == "2.50 GiB/s"
    assert say.rate(5 << 20) == "5.0 MiB/s"


def test_one_thing_is_no_several() -> None:
    assert (say.size(1), say.counted(1, "object"), say.counted(2_000, "object")) == (
        "1 byte",
        "1 object",
        "2,000 objects",
    )


@pytest.mark.parametrize(
    ("seconds", "text"), [(125.0, "125 s"), (1.25, "1.2 s"), (0.025, "25 ms"), (0.0025, "2.50 ms"), (35e-6, "35 us")]
)
def test_durations_take_the_unit_that_fits(seconds: float, text: str) -> None:
    assert say.duration(seconds) == text


def test_a_part_of_nothing_is_a_dash() -> None:
    assert say.percent(0, 0) == "-"
    assert say.percent(942, 1000) == "94.2 %"


@pytest.mark.parametrize("raw", [b"\x00\xff\x10", b"plain", "blöcke".encode()])
def test_a_key_that_is_shown_can_be_given_back(raw: bytes) -> None:
    given = say.parse_key(key_text(raw))
    assert (given.encode() if isinstance(given, str) else given) == raw


def test_bad_hex_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="hex digits must follow"):
        say.parse_key("0xzz")
