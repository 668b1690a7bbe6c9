"""The network: frames arrive whole and in order or the connection ends; hosts that cannot be reached keep silent."""

import asyncio
import inspect

import pytest

from pykvpool.errors import ConfigError, InvalidArgument, Unavailable
from pykvpool.protocol.frames import MAX_FRAME_BYTES
from pykvpool.transport.registry import TransportRegistry
from pykvpool_sim.choosers import Fifo, Seeded
from pykvpool_sim.clock import NS_PER_MS, NS_PER_S
from pykvpool_sim.network import NetworkFaults
from pykvpool_sim.transport import SimTransport
from pykvpool_sim.world import World
from tests.transport import test_streams as contract
from tests.transport.streams import Place

#: What every transport promises, from the tests of the real ones.
CONTRACT = [test for name, test in vars(contract).items() if name.startswith("test_")]
GIVES_UP_S = 20


class BetweenHosts:
    """A transport whose streams go from one host to another."""

    def __init__(self, near, far):
        self.near, self.far = SimTransport(near), SimTransport(far)
        self.check, self.connect, self.listen = self.near.check, self.near.connect, self.far.listen


def between(world, near="near", far="far"):
    registry = TransportRegistry()
    registry.register("sim", BetweenHosts(world.host(near), world.host(far)))
    return registry


@pytest.mark.parametrize("body", CONTRACT, ids=[test.__name__.removeprefix("test_") for test in CONTRACT])
@pytest.mark.parametrize("chooser", [lambda draws: Fifo(), Seeded], ids=["fifo", "seeded"])
def test_the_contract_of_all_transports_holds_here_too(body, chooser):
    assert list(inspect.signature(body).parameters) == ["place"]

    async def scenario(world):
        async with Place("sim://far:0", between(world)) as place:
            await body(place)

    World(1, chooser=chooser).run(scenario)


def on_a_connection(code, seed=1):
    """Run `code(world, near, far)` with a stream between the hosts "near" and "far", each end owned by its host."""

    async def scenario(world):
        near_host, far_host = world.host("near"), world.host("far")
        accepted = asyncio.Queue()
        await far_host.run(SimTransport(far_host).listen("far:1", accepted.put_nowait))
        near = await near_host.run(SimTransport(near_host).connect("far:1"))
        far = await accepted.get()
        far.allow(MAX_FRAME_BYTES)
        return await code(world, near, far)

    return World(seed).run(scenario)


async def numbers(stream, count=None):
    """What arrives, as numbers, until the end (or `count`), and how it ended."""
    seen = []
    try:
        while count is None or len(seen) < count:
            frame = await stream.recv()
            if frame is None:
                return seen, "end"
            seen.append(int(frame))
    except Unavailable as error:
        return seen, error.message
    return seen, None


def test_every_frame_takes_its_time_and_none_overtakes():
    async def code(world, near, far):
        world.network.faults = NetworkFaults(1 * NS_PER_MS, 50 * NS_PER_MS, slow_ratio=0.2)
        begun_ns = world.loop.now_ns
        for number in range(50):
            near.send(b"%d" % number)
        assert await numbers(far, 50) == (list(range(50)), None)
        return world.loop.now_ns - begun_ns

    took = {on_a_connection(code, seed) for seed in range(3)}
    assert min(took) >= NS_PER_MS
    assert len(took) == 3


def test_bandwidth_makes_large_frames_slow():
    async def code(world, near, far):
        world.network.faults = NetworkFaults(0, 0, bandwidth_bytes_per_s=1_000_000)
        begun_ns = world.loop.now_ns
        near.send(bytes(2_000_000))
        await far.recv()
        return world.loop.now_ns - begun_ns

    assert on_a_connection(code) == 2 * NS_PER_S


@pytest.mark.parametrize("half_open_ratio", [0.0, 1.0])
def test_a_connection_that_breaks_loses_its_last_frames_and_no_other(half_open_ratio):
    async def code(world, near, far):
        world.network.faults = NetworkFaults(break_ratio=0.05, half_open_ratio=half_open_ratio)
        receiving = asyncio.ensure_future(numbers(far))
        sent = 0
        ended = asyncio.ensure_future(numbers(near))
        while not ended.done() and sent < 500:
            near.send(b"%d" % sent)
            sent += 1
            await asyncio.sleep(0.0001)
        # If only this end knows, the other learns as soon as it sends.
        far.send(b"0") if not receiving.done() else None
        seen, how = await receiving
        assert seen == list(range(len(seen)))
        assert len(seen) < sent < 500
        assert "reset" in how
        _, how = await ended
        assert "reset" in how
        return sent - len(seen)

    assert {on_a_connection(code, seed) for seed in range(10)} != {1}


def test_frames_wait_out_a_short_partition():
    async def code(world, near, far):
        world.network.cut(["near"], ["far"])
        near.send(b"1")
        await asyncio.sleep(2)
        near.send(b"2")
        receiving = asyncio.ensure_future(numbers(far, 2))
        await asyncio.sleep(1)
        assert not receiving.done()
        assert near.buffered_bytes == 2
        world.network.heal()
        assert await receiving == ([1, 2], None)

    on_a_connection(code)


def test_in_a_long_partition_the_sender_gives_up_and_the_receiver_does_not_know():
    async def code(world, near, far):
        world.network.cut(["near"], ["far"])
        near.send(b"1")
        receiving = asyncio.ensure_future(numbers(far))
        assert await numbers(near) == ([], "connection to far timed out")
        world.network.heal()
        await asyncio.sleep(60)
        assert not receiving.done()  # half-open: nothing was lost that it knows of
        far.send(b"2")
        assert await receiving == ([], "connection reset by near")

    on_a_connection(code)


def test_a_partition_can_stop_one_direction_only():
    async def code(world, near, far):
        cut = world.network.cut(["near"], ["far"], one_way=True)
        near.send(b"1")
        far.send(b"2")
        assert await numbers(near, 1) == ([2], None)
        await asyncio.sleep(1)
        assert near.buffered_bytes == 1
        world.network.heal(cut)
        world.network.heal(cut)
        assert await numbers(far, 1) == ([1], None)

    on_a_connection(code)


def test_overlapping_partitions_are_healed_one_by_one():
    async def scenario(world):
        for name in "abc":
            world.host(name)
        first, second = world.network.cut("a", "bc"), world.network.cut("b", "a", one_way=True)
        network = world.network
        assert [network.passes(*pair) for pair in ("ab", "ba", "ac", "ca", "bc", "aa")] == [False] * 4 + [True] * 2
        network.heal(first)
        assert [network.passes(*pair) for pair in ("ab", "ba", "ac")] == [True, False, True]
        network.heal(second)
        assert network.passes("b", "a")

    World(1).run(scenario)


# -- hosts that stop, sleep and die ------------------------------------------------------------------------------


def test_a_killed_process_ends_its_connections_behind_what_it_sent():
    async def code(world, near, far):
        for number in range(5):
            near.send(b"%d" % number)
        world.hosts["near"].crash(power=False)
        seen, how = await numbers(far)
        assert seen == list(range(5))
        return how

    assert {on_a_connection(code, seed) for seed in range(10)} == {"end", "connection reset by near"}


def test_a_machine_without_power_is_silent_until_it_is_back():
    async def code(world, near, far):
        for number in range(5):
            near.send(b"%d" % number)
        world.hosts["near"].crash(power=True)
        receiving = asyncio.ensure_future(numbers(far))
        await asyncio.sleep(60)
        assert not receiving.done()
        world.hosts["near"].restart()
        await asyncio.sleep(1)
        assert not receiving.done()
        far.send(b"are you there?")
        seen, how = await receiving
        assert how == "connection reset by near"
        assert seen == list(range(len(seen)))
        return len(seen)

    assert len({on_a_connection(code, seed) for seed in range(20)}) > 3  # what was on the wire arrived


def test_a_paused_hosts_kernel_takes_frames_up_to_its_buffers():
    async def code(world, near, far):
        world.hosts["far"].pause()
        sent = 0
        while near.buffered_bytes < 500_000:
            near.send(bytes(100_000))
            sent += 1
            await asyncio.sleep(0.01)
        assert 1_000_000 < sent * 100_000 < 3_000_000
        await asyncio.sleep(10 * GIVES_UP_S)  # a full peer is not a lost one
        world.hosts["far"].resume()
        for _ in range(sent):
            assert len(await far.recv()) == 100_000

    on_a_connection(code)


def test_a_sleeping_machine_takes_nothing_and_gives_nothing_up():
    async def code(world, near, far):
        far.send(b"1")
        world.hosts["far"].suspend()
        near.send(b"2")
        receiving = asyncio.ensure_future(numbers(near))
        await asyncio.sleep(10 * GIVES_UP_S)
        assert await receiving == ([], "connection to far timed out")
        world.hosts["far"].wake()
        assert await numbers(far) == ([], "connection reset by near")

    on_a_connection(code)


# -- connecting --------------------------------------------------------------------------------------------------


def test_connecting_is_refused_where_nobody_listens_and_hangs_where_nobody_is():
    async def scenario(world):
        near, far = world.host("near"), world.host("far")
        transport = SimTransport(near)
        with pytest.raises(Unavailable, match="refused"):
            await near.run(transport.connect("far:1"))
        with pytest.raises(Unavailable, match="no host"):
            await near.run(transport.connect("nowhere:1"))
        far.crash(power=True)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(100):
                await near.run(transport.connect("far:1"))
        far.restart()
        accepted = asyncio.Queue()
        await far.run(SimTransport(far).listen("far:1", accepted.put_nowait))
        world.network.cut(["far"], ["near"], one_way=True)
        connecting = asyncio.ensure_future(near.run(transport.connect("far:1")))
        await asyncio.sleep(5)
        assert not connecting.done()
        world.network.heal()
        stream = await connecting
        stream.send(b"hello")
        assert await (await accepted.get()).recv() == b"hello"
        far.crash(power=False)
        with pytest.raises(Unavailable, match="refused"):
            await near.run(transport.connect("far:1"))

    World(1).run(scenario)


def test_a_paused_host_accepts_and_learns_of_it_later():
    async def scenario(world):
        near, far = world.host("near"), world.host("far")
        accepted = []
        await far.run(SimTransport(far).listen("far:1", accepted.append))
        far.pause()
        stream = await near.run(SimTransport(near).connect("far:1"))
        stream.send(b"early")
        await asyncio.sleep(10)
        assert accepted == []
        far.resume()
        await asyncio.sleep(1)
        assert await accepted[0].recv() == b"early"

    World(1).run(scenario)


def test_who_gives_up_connecting_leaves_no_half_of_a_connection():
    async def scenario(world):
        near, far = world.host("near"), world.host("far")
        accepted = asyncio.Queue()
        await far.run(SimTransport(far).listen("far:1", accepted.put_nowait))
        connecting = asyncio.ensure_future(near.run(SimTransport(near).connect("far:1")))
        stream = await accepted.get()
        connecting.cancel()
        assert await numbers(stream) == ([], "connection reset by near")

    World(1).run(scenario)


def test_wrong_addresses_are_told_what_is_right():
    async def scenario(world):
        host = world.host("a")
        transport = SimTransport(host)
        for rest in ("a", "a:", "a:x", "a:70000", ":1", ""):
            with pytest.raises(InvalidArgument, match="sim://host:port"):
                transport.check(rest)
        with pytest.raises(InvalidArgument, match="only a can listen"):
            await transport.listen("b:1", print)
        listener = await transport.listen(":0", print)
        assert listener.address.startswith("sim://a:")
        with pytest.raises(ConfigError, match="a#1 does"):
            await transport.listen(listener.address.removeprefix("sim://"), print)

    World(1).run(scenario)


def test_connections_that_are_over_are_forgotten():
    async def code(world, near, far):
        for end in ("near", "far"):
            assert any(known.host == end for known in world.network._ends)
        near.send(b"1")
        near.close()
        assert await numbers(far) == ([1], "end")
        await asyncio.sleep(1)
        assert not world.network._ends

    on_a_connection(code)
