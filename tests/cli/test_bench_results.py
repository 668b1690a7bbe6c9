"""The bench's plans, and what becomes of its figures."""

from __future__ import annotations

import msgspec
import pytest
from rich.console import Console

from pykvpool.cli.bench import measure
from pykvpool.cli.bench.cases import MIB, Control, Plan, PutRate, Transfer, full_plan, quick_plan
from pykvpool.cli.bench.report import describe, render
from pykvpool.cli.bench.results import (
    Figures,
    Round,
    Sample,
    control_figure,
    put_rate_figure,
    raw_medians,
    transfer_figure,
)

CASE = Transfer("tcp", MIB, 16)


def a_round(raw: float, put_s: float, get_s: float) -> Round:
    return Round({"memcpy": 9e9, "loopback": raw}, {0: Sample(put_s, 3)}, {0: Sample(get_s, 3)}, {}, {})


def test_ratios_are_taken_within_a_round_and_medians_last() -> None:
    total = CASE.total_bytes
    # The second round ran on a machine half as fast: its ratio is as good as the others'.
    rounds = [a_round(total * 2.0, 1.0, 0.5), a_round(total * 1.0, 2.0, 1.0), a_round(total * 2.0, 1.0, 0.5)]
    figure = transfer_figure(CASE, 0, rounds)
    assert figure is not None
    assert (figure.put_bytes_per_s, figure.put_ratio, figure.put_call_s) == (total, 0.5, 1.0)
    assert (figure.get_bytes_per_s, figure.get_ratio, figure.get_call_s) == (total * 2, 1.0, 0.5)
    assert raw_medians(rounds) == {"loopback": total * 2.0, "memcpy": 9e9}


def test_shared_memory_is_measured_by_memcpy() -> None:
    case = Transfer("shm", MIB, 9_000)
    figure = transfer_figure(case, 0, [a_round(1.0, 2.0, 1.0)])
    assert figure is not None
    assert figure.get_ratio == pytest.approx(case.total_bytes / 9e9)


def test_a_case_that_no_round_got_to_has_no_figure() -> None:
    assert transfer_figure(CASE, 5, [a_round(1.0, 1.0, 1.0)]) is None
    assert control_figure(Control("exists", 512), 0, [a_round(1.0, 1.0, 1.0)]) is None
    assert put_rate_figure(PutRate("shm", 4096, 512), 0, [a_round(1.0, 1.0, 1.0)]) is None


@pytest.mark.parametrize("plan", [full_plan(), quick_plan()], ids=["full", "quick"])
def test_a_plan_fits_its_memory_and_covers_every_fabric(plan: Plan) -> None:
    assert {case.fabric for case in plan.transfers} == {"inproc", "shm", "tcp"}
    asked_bytes = 40_000 * 64
    # A put is removed before the next one: twice the largest call would be room for a remove that waits for a lease.
    assert all(2 * case.total_bytes + asked_bytes <= plan.segment_bytes for case in plan.transfers)
    assert any(case.pieces == 64 for case in plan.transfers)
    assert {(case.verb, case.hashes, case.scopes) for case in plan.controls} == {
        ("exists", 512, 1),
        ("match_prefix", 1_250, 1),
        ("match_prefix", 5_000, 8),
    }


def test_the_full_plan_has_every_size_and_batch_that_fits() -> None:
    whole = {(case.piece_bytes, case.batch) for case in full_plan().transfers if case.pieces == 1}
    assert whole == {(size, batch) for size in (4096, 65_536, MIB, 8 * MIB) for batch in (1, 16, 64)}


def test_pieces_of_a_batch_lie_scattered_and_cover_the_memory_once() -> None:
    case = Transfer("shm", 4096, 3, 5)
    buffers = measure.Buffers(case.total_bytes)
    objects = buffers.pieces(buffers.target, case)
    assert [len(pieces) for pieces in objects] == [5, 5, 5]
    for number, pieces in enumerate(objects):
        for piece in pieces:
            piece[:] = bytes([number]) * 4096
    assert bytes(buffers.target).count(1) == 5 * 4096
    assert bytes(buffers.target[:4096]) != bytes(buffers.target[4096:8192])


async def test_a_call_is_timed_at_least_once() -> None:
    calls: list[int] = []

    async def call() -> None:
        calls.append(1)

    sample = await measure.repeat(call, 0.0)
    assert sample.calls == len(calls) == 1


def test_names_are_never_given_twice() -> None:
    names = measure.Names()
    taken = names.take(3) + names.take(2)
    assert len(set(taken)) == 5
    assert {len(name) for name in taken} == {32}


def test_the_tables_show_every_figure() -> None:
    rounds = [a_round(2e9, 0.01, 0.008)]
    transfer = transfer_figure(CASE, 0, rounds)
    assert transfer is not None
    rounds[0].controls[0] = Sample(0.0005, 9)
    rounds[0].put_rates[0] = Sample(0.05, 2)
    control = control_figure(Control("match_prefix", 5_000, 8), 0, rounds)
    put_rate = put_rate_figure(PutRate("shm", 4096, 512), 0, rounds)
    assert control is not None
    assert put_rate is not None
    figures = Figures("0", "3.11", 2, 1, 3.0, raw_medians(rounds), [transfer], [control], [put_rate])
    console = Console(width=160)
    with console.capture() as capture:
        render(figures, console)
    text = capture.get()
    for part in (
        "16 x 1 MiB",
        "0.84",
        "match_prefix of 5,000 hashes in 8 scopes",
        "80,000,000 keys/s",
        "10,240 objects/s",
    ):
        assert part in text, part
    assert msgspec.json.decode(msgspec.json.encode(figures), type=Figures) == figures


def test_objects_of_pieces_are_described_as_such() -> None:
    assert describe(Transfer("tcp", 16_384, 16, 64)) == "16 x 1 MiB of 64 pieces of 16 KiB"
