"""Which devices, ports and addresses the rdma fabric uses, how it finds out what works, and what it says about it."""

from __future__ import annotations

import ipaddress
import logging

import pytest

from pykvpool.errors import ConfigError, NotSupported, Unavailable
from pykvpool.fabric.base import Peer
from pykvpool.fabric.rdma import gids
from pykvpool.fabric.rdma.client import RdmaClient
from pykvpool.fabric.rdma.server import RdmaServer
from pykvpool.fabric.rdma.settings import RdmaSettings
from pykvpool.fabric.registry import ClientSettings, ServerSettings, build_client, build_server
from pykvpool.fabric.verbs import Gid, GidType
from pykvpool.memory.segment import MemorySegment
from pykvpool.runtime import real_runtime
from tests.fabric.bench import jump
from tests.fabric.fake_verbs import FakeVerbs
from tests.fabric.rdma_stage import MIB, stage, turns, until

V1, V2 = GidType.ROCE_V1, GidType.ROCE_V2


def gid(index: int, address: str, type_: GidType = V2) -> Gid:
    if "." in address:
        address = f"::ffff:{address}"
    return Gid(index, ipaddress.IPv6Address(address).packed, type_)


# -- which address -----------------------------------------------------------------------------------------------


def test_routed_addresses_come_first_and_empty_entries_not_at_all() -> None:
    table = [
        gid(0, "fe80::1", V1), gid(1, "fe80::1"), gid(2, "10.0.0.1", V1), gid(3, "10.0.0.1"), gid(4, "2001:db8::1"),
        gid(5, "::"), gid(6, "10.1.0.1"),
    ]  # fmt: skip
    assert [entry.index for entry in gids.usable(table)] == [3, 6, 4, 1, 0, 2]


def test_both_ends_use_one_framing_and_one_family_and_rather_one_subnet() -> None:
    ours = [gid(3, "10.1.0.1"), gid(4, "10.0.0.1"), gid(1, "fe80::1"), gid(0, "10.0.0.1", V1)]
    theirs = [gid(7, "10.0.0.2"), gid(2, "2001:db8::2"), gid(1, "fe80::2"), gid(9, "10.0.0.2", V1)]
    found = [(pair.local.index, pair.remote.index) for pair in gids.pairs(ours, theirs)]
    assert found == [(4, 7), (3, 7), (1, 1), (0, 9)]
    assert gids.pairs([gid(0, "10.0.0.1")], [gid(0, "2001:db8::2")]) == []


def test_an_infiniband_port_has_one_kind_of_address() -> None:
    (pair,) = gids.pairs([gid(0, "fe80::a", GidType.INFINIBAND)], [gid(0, "fe80::b", GidType.INFINIBAND)])
    assert gids.reason(pair.local) == "the InfiniBand address of the port"


async def test_the_choice_and_its_reason_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pykvpool.fabric.rdma")
    async with stage(near=("near0",), far=("far0",)) as here:
        await here.connected()
    assert "using near0:1 (ethernet, MTU 4096) with gid 3 (roce-v2, 192.0.2.1): RoCE v2 with an IPv4" in caplog.text
    assert "near0:1 reaches far0:1 of rdma://127.0.0.1:" in caplog.text
    assert "over gid 3 (roce-v2, 192.0.2.1) -> gid 3 (roce-v2, 192.0.2.2)" in caplog.text


async def test_an_address_that_no_queue_pair_can_be_made_ready_with_is_not_the_last_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "pykvpool.fabric.rdma")
    async with stage(near=("near0",), far=("far0",)) as here:
        here.near[0].bad_gids = {3}
        assert (await here.write(0, b"another way")).error is None
        (pair,) = here.near[0].pairs.values()
        assert pair.path is not None
        assert pair.path.gid_index == 1
    assert "near0:1 cannot reach far0:1 over gid 3" in caplog.text


async def test_an_owners_address_that_does_not_work_there_is_not_the_last_one() -> None:
    async with stage(near=("near0",), far=("far0",)) as here:
        here.far[0].bad_gids = {3}
        assert (await here.write(0, b"another way")).error is None
        (pair,) = here.far[0].pairs.values()
        assert pair.path is not None
        assert pair.path.gid_index == 1


async def test_addresses_over_which_nothing_comes_back_are_given_up_and_what_works_is_remembered() -> None:
    async with stage(near=("near0",), far=("far0",)) as here:
        here.near[0].silent_gids = {3}
        await here.connected()
        tried = here.near[0].calls["queue_pair"]
        assert tried == 2
        _, here.segment = here.mount(4096)
        assert (await here.write(0, b"at once")).error is None
        assert here.near[0].calls["queue_pair"] == tried + 1


async def test_where_no_address_works_the_error_tells_of_every_one() -> None:
    async with stage(near=("near0",), far=("far0",)) as here:
        here.near[0].silent_gids = {0, 1, 2, 3}
        error = (await here.write(0, b"x")).error
        assert isinstance(error, Unavailable)
        for index in range(4):
            assert f"gid {index} " in error.message
        assert "the first read failed: transport retries exceeded" in error.message


async def test_an_index_that_is_named_is_the_only_one_tried() -> None:
    async with stage(near=("near0",), far=("far0",)) as here:
        here.near[0].silent_gids = {3}
        settings = RdmaSettings(("near0",), gid_index=3, verbs=here.verbs)
        client = RdmaClient(Peer("stubborn", 1), here.runtime, settings=settings)
        (outcome,) = await client.write([here.to_write(0, b"x")], 5.0)
        assert isinstance(outcome.error, Unavailable)
        assert "gid 1 " not in outcome.error.message
        await client.close()


# -- which rails -------------------------------------------------------------------------------------------------


async def test_every_rail_of_both_ends_is_used_and_a_transfer_is_split_over_them() -> None:
    async with stage(near=("near0", "near1", "near2"), far=("far0", "far1"), queue_pairs=2) as here:
        link = await here.connected()
        assert link.lanes == 6
        assert [len(card.pairs) for card in here.near] == [2, 2, 2]
        assert sorted(len(card.pairs) for card in here.far) == [2, 4]
        before = [card.calls["post"] for card in here.near]
        assert (await here.write(0, bytes(12 * MIB))).error is None
        assert all(card.calls["post"] >= old + 3 for card, old in zip(here.near, before, strict=True))


async def test_a_rail_that_reaches_none_costs_nothing_but_itself() -> None:
    async with stage() as here:
        here.near[0].silent_gids = {0, 1, 2, 3}
        assert (await here.write(0, bytes(MIB))).error is None
        link = await here.connected()
        assert link.lanes == 1


async def test_a_device_that_comes_back_is_used_again() -> None:
    async with stage() as here:
        link = await here.connected()
        here.near[0].drop()
        await until(lambda: link.lanes == 1)
        await until(lambda: not here.near[0].contexts)
        here.near[0].gone = False
        jump(60)
        assert await here.read(0, 1) == bytes(1)
        await until(lambda: link.lanes == 2)


@pytest.mark.parametrize("end", ["near", "far"])
@pytest.mark.parametrize("how", ["port", "device"])
async def test_a_rail_that_was_long_away_is_used_again_when_it_is_back(end: str, how: str) -> None:
    """The lanes were planned anew while it was away, and all that was planned then is there."""
    async with stage() as here:
        link = await here.connected()
        card = (here.near if end == "near" else here.far)[0]
        if how == "port":
            card.set_port(up=False)
        else:
            card.drop()
        for _ in range(3):
            await turns()
            jump(60)
            assert await here.read(0, 1) == bytes(1)
            await until(lambda: not link.busy)
        card.gone = False
        card.set_port(up=True)
        for _ in range(3):
            await turns()
            jump(60)
            assert await here.read(0, 1) == bytes(1)
            await until(lambda: not link.busy)
        assert card.pairs, "there are lanes on it again"
        assert sorted(len(each.pairs) for each in here.cards) == [1, 1, 1, 1]


async def test_an_owners_device_that_comes_back_serves_again() -> None:
    async with stage() as here:
        link = await here.connected()
        here.far[0].drop()
        await until(lambda: link.lanes == 1)
        await until(lambda: not here.far[0].contexts)
        here.far[0].gone = False
        jump(60)
        assert await here.read(0, 1) == bytes(1)
        await until(lambda: link.lanes == 2)
        assert len(here.far[0].regions) == 1


@pytest.mark.parametrize(
    ("devices", "complaint"),
    [
        (("mlx9",), "rdma.devices names 'mlx9': this host has fake0, fake1"),
        (("fake0:x",), "rdma.devices has 'fake0:x'"),
        ((":1",), "rdma.devices has ':1'"),
    ],
)
async def test_a_device_that_is_not_there_is_an_error_that_names_those_that_are(
    devices: tuple[str, ...], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        server = RdmaServer(real_runtime(), settings=RdmaSettings(devices, verbs=FakeVerbs()))
        await server.start()


async def test_a_node_whose_ports_are_all_down_does_not_start_and_says_which() -> None:
    verbs = FakeVerbs("one", "two")
    verbs["one"].set_port(up=False)
    verbs["two"].set_port(up=False)
    server = RdmaServer(real_runtime(), settings=RdmaSettings(verbs=verbs))
    with pytest.raises(ConfigError, match=r"one:1: the port is down; two:1: the port is down"):
        await server.start()
    assert not verbs["one"].contexts


def test_who_asks_for_rdma_where_there_is_none_is_told_in_one_line_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nothing_there(name: str = "") -> None:
        raise NotSupported("rdma needs a verbs binding: apt-get install python3-pyverbs")

    monkeypatch.setattr("pykvpool.fabric.rdma.rails.load", nothing_there)
    runtime = real_runtime()
    with pytest.raises(NotSupported, match="needs a verbs binding") as no_binding:
        build_client("rdma", ClientSettings(Peer("p", 1), runtime))
    no_device = FakeVerbs("only")
    no_device.devices = list  # type: ignore[method-assign]
    with pytest.raises(NotSupported, match="this host has no RDMA device") as none:
        build_server("rdma", ServerSettings(runtime, rdma=RdmaSettings(verbs=no_device)))
    assert "\n" not in no_binding.value.message + none.value.message


async def test_a_port_for_the_lines_that_is_taken_is_an_error_with_the_flag_to_use() -> None:
    verbs = FakeVerbs()
    first = RdmaServer(real_runtime(), settings=RdmaSettings(verbs=verbs))
    await first.start()
    second = RdmaServer(real_runtime(), first.endpoint.removeprefix("rdma://"), settings=RdmaSettings(verbs=verbs))
    with pytest.raises(ConfigError, match="--rdma-listen"):
        await second.start()
    await first.close()
    assert not verbs["fake0"].contexts


async def test_a_mount_is_offered_before_anything_else_is_asked_for() -> None:
    server = RdmaServer(real_runtime(), settings=RdmaSettings(verbs=FakeVerbs()))
    memory = MemorySegment(4096, real_runtime())
    with pytest.raises(Exception, match="was not started"):
        server.export(memory)
    memory.close()
