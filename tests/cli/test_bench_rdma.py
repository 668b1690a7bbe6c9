"""The bench over rdma: its plan, its yardsticks, and what it says where there is no RDMA."""

from __future__ import annotations

import msgspec
import pytest
from click.testing import CliRunner
from rich.console import Console

from pykvpool.cli import format as say
from pykvpool.cli.bench import command, perftest
from pykvpool.cli.bench.cases import MIB, NO_LIMIT_S, Plan, Transfer, full_plan, quick_plan, transfers_only
from pykvpool.cli.bench.perftest import End, Perftest, parse
from pykvpool.cli.bench.report import render
from pykvpool.cli.bench.results import Figures, Round, Sample, raw_medians, transfer_figure, yardsticks
from pykvpool.cli.bench.yardsticks import Raw
from pykvpool.cli.processes import Children
from pykvpool.errors import NotSupported, TransferFailed
from pykvpool.fabric.verbs import GidType
from tests.fabric.fake_verbs import FakeVerbs

CASE = Transfer("rdma", MIB, 16)

#: What ib_write_bw of perftest 4.5 prints with --report_gbits, shortened.
PRINTED = """
                    RDMA_Write BW Test
 Dual-port       : OFF		Device         : rxeA
 Mtu             : 4096[B]
 remote address: LID 0000 QPN 0x0011 PSN 0xc1a4d7 RKey 0x000411 VAddr 0x007f3a5c3f6000
 GID: 00:00:00:00:00:00:00:00:00:00:255:255:10:98:00:02
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 1048576    64               2.40               2.00   		   0.000238
---------------------------------------------------------------------------------------
"""


def test_the_average_is_taken_from_what_the_tool_prints() -> None:
    assert parse(PRINTED, MIB) == 2.0e9 / 8
    with pytest.raises(TransferFailed, match="no figure for 4096"):
        parse(PRINTED, 4096)


@pytest.mark.parametrize("make", [full_plan, quick_plan])
def test_a_plan_of_one_fabric_moves_bytes_and_asks_nothing(make) -> None:
    plan = transfers_only(make(("rdma",)), rounds=2)
    assert plan.fabrics == ("rdma",)
    assert {case.piece_bytes for case in plan.transfers} >= {64 * 1024, MIB}
    assert not plan.controls
    assert not plan.put_rates
    assert (plan.rounds, plan.max_seconds) == (2, NO_LIMIT_S)
    assert msgspec.json.decode(msgspec.json.encode(plan), type=Plan) == plan, "it is told to the worker"
    assert transfers_only(make(("tcp",)), rounds=None).max_seconds == make().max_seconds


def test_rdma_is_divided_by_what_c_moves_with_messages_of_that_size() -> None:
    assert yardsticks(CASE) == ("ib_write_bw 1048576", "ib_read_bw 1048576")
    assert yardsticks(Transfer("rdma", 16_384, 4, 64)) == ("ib_write_bw 16384", "ib_read_bw 16384")
    raw = {"ib_write_bw 1048576": 2e9, "ib_read_bw 1048576": 1e9}
    rounds = [Round(raw, {0: Sample(CASE.total_bytes / 1e9, 3)}, {0: Sample(CASE.total_bytes / 0.9e9, 3)}, {}, {})]
    figure = transfer_figure(CASE, 0, rounds)
    assert figure is not None
    assert (figure.put_ratio, figure.get_ratio) == pytest.approx((0.5, 0.9))
    console = Console(width=160)
    with console.capture() as capture:
        render(Figures("0", "3.11", 2, 1, 3.0, raw_medians(rounds), [figure], [], []), console)
    text = capture.get()
    for part in ("ib_write_bw: RDMA writes from C of 1 MiB", say.rate(2e9), "0.90"):
        assert part in text, part
    assert "Asking the master" not in text


async def test_only_the_yardsticks_that_a_plan_needs_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Recorded:
        async def rate(self, tool: str, size: int) -> float:
            asked.append((tool, size))
            return 1e9

    monkeypatch.setattr(Perftest, "between", classmethod(lambda cls, client, server: Recorded()))
    async with Children() as children:
        raw = await Raw.start(transfers_only(quick_plan(("rdma",)), 1), children)
        rates = await raw.rates(0.0)
    assert [f"{tool} {size}" for tool, size in asked] == list(rates)
    assert "memcpy" not in rates
    assert "loopback" not in rates


def test_perftest_is_given_the_address_that_the_fabric_prefers(monkeypatch: pytest.MonkeyPatch) -> None:
    verbs = FakeVerbs("card0", "card1")
    monkeypatch.setattr(perftest, "load", lambda: verbs)
    monkeypatch.setattr(perftest.shutil, "which", lambda tool: f"/usr/bin/{tool}")
    pair = Perftest.between("", "card1:1")
    (wanted,) = [gid for gid in verbs["card1"].gids if gid.type is GidType.ROCE_V2 and gid.ipv4]
    assert (pair._client.device, pair._server) == ("card0", End("card1", 1, wanted.index))
    assert pair._server.options == ["-d", "card1", "-i", "1", "-x", str(wanted.index)]


def test_without_perftest_the_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perftest.shutil, "which", lambda tool: None)
    with pytest.raises(NotSupported, match="apt-get install perftest"):
        Perftest.between("", "")


def test_without_rdma_the_bench_says_so_before_it_starts_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(settings: object) -> None:
        raise NotSupported("rdma needs a verbs binding: install one")

    monkeypatch.setattr(command, "require_verbs", missing)
    done = CliRunner().invoke(command.bench, ["--fabric", "rdma"])
    assert isinstance(done.exception, NotSupported)
