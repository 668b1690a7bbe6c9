"""Master, nodes and client as processes of their own: blocks go by RDMA, and by nothing else."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from pykvpool.client import PutItem
from pykvpool.errors import PoolError
from pykvpool.fabric.verbs import Verbs
from pykvpool.fabric.verbs.load import BINDINGS
from tests.rdma.devices import LEFT, RAILS, RIGHT, counters, tcp_bytes_sent
from tests.rdma.processes import MIB, START_TIMEOUT_S, TIMEOUT_S, Processes, data_of, processes, warm

COUNT = 8
MTU_BYTES = 4096


@pytest.fixture(autouse=True)
def _other_binding(verbs: Verbs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes use the binding that the client does not: the two must understand each other."""
    (other,) = set(BINDINGS) - {verbs.name}
    monkeypatch.setenv("PYKVPOOL_RDMA_BINDING", other)


async def test_blocks_are_put_and_got_by_rdma_and_tcp_carries_none(verbs: Verbs) -> None:
    """Both fabrics are offered and allowed. The devices' counters and the kernel's say which one was used."""
    async with processes() as pool:
        await pool.node("n1", RIGHT)
        await pool.node("n2", RIGHT)
        client = await pool.client(verbs, LEFT, fabrics=("rdma", "tcp"), replicas=2)
        await warm(client)
        sent, tcp = {name: counters(name)["sent_pkts"] for name in (LEFT, RIGHT)}, tcp_bytes_sent()
        results = await client.put_batch([PutItem(f"key-{n}", data_of(n)) for n in range(COUNT)])
        assert [(result.scheme, result.replicas) for result in results] == [("rdma", 2)] * COUNT
        for n in range(COUNT):
            assert await client.get(f"key-{n}") == data_of(n)
        packets = MIB // MTU_BYTES * COUNT
        assert counters(LEFT)["sent_pkts"] - sent[LEFT] >= 2 * packets, "two copies were written"
        assert counters(RIGHT)["sent_pkts"] - sent[RIGHT] >= packets, "one was read"
        assert tcp_bytes_sent() - tcp < MIB // 4, "control messages for 24 MiB of blocks"


async def test_every_rail_is_used(verbs: Verbs) -> None:
    async with processes() as pool:
        await pool.node("n1", *(rail.right for rail in RAILS))
        client = await pool.client(verbs, *(rail.left for rail in RAILS))
        await warm(client)
        before = {rail.left: counters(rail.left)["sent_pkts"] for rail in RAILS}
        await client.put("key", data_of(1, 8 * MIB))
        for rail in RAILS:
            assert counters(rail.left)["sent_pkts"] - before[rail.left] >= MIB // MTU_BYTES, rail.left
        assert await client.get("key") == data_of(1, 8 * MIB)


async def killed_mid_transfer(verbs: Verbs, pool: Processes, replicas: int) -> list[bytes | PoolError]:
    """Read blocks of two nodes, kill one while they are under way; what became of each."""
    await pool.node("n1", RIGHT)
    await pool.node("n2", RIGHT)
    client = await pool.client(verbs, LEFT, replicas=replicas)
    await warm(client)
    results = await client.put_batch([PutItem(f"key-{n}", data_of(n)) for n in range(COUNT)])
    assert [result.replicas for result in results] == [replicas] * COUNT
    card = card_of(client)
    card.hold()
    reading = asyncio.ensure_future(client.get_batch([f"key-{n}" for n in range(COUNT)]))
    async with asyncio.timeout(TIMEOUT_S):
        while not card.under_way:
            await asyncio.sleep(0)
    card.step(3)
    process = pool.nodes["n1"].process
    os.kill(process.pid, signal.SIGKILL)
    await process.wait()
    card.release()
    return await asyncio.wait_for(reading, 2 * TIMEOUT_S)


def card_of(client):
    """The device that a client of `Processes` was given."""
    (fabric,) = client._fabrics.router._clients
    return fabric._settings.verbs[LEFT]


async def test_p8_a_node_that_dies_mid_transfer_costs_nothing_where_there_is_a_second_copy(verbs: Verbs) -> None:
    async with processes() as pool:
        got = await killed_mid_transfer(verbs, pool, replicas=2)
        assert got == [data_of(n) for n in range(COUNT)]


async def test_p8_a_node_that_dies_mid_transfer_takes_its_own_blocks_only(verbs: Verbs) -> None:
    async with processes() as pool:
        got = await killed_mid_transfer(verbs, pool, replicas=1)
        lost = [block for block in got if isinstance(block, PoolError)]
        assert 0 < len(lost) < COUNT
        assert all(isinstance(block, PoolError) or block == data_of(n) for n, block in enumerate(got))


async def test_a_node_that_is_stopped_still_serves_its_blocks(verbs: Verbs) -> None:
    """Nothing runs at the owner: its card reads and writes its memory."""
    async with processes() as pool:
        node = await pool.node("n1", RIGHT)
        client = await pool.client(verbs, LEFT)
        await warm(client)
        await client.put("before", data_of(1))
        os.kill(node.process.pid, signal.SIGSTOP)
        try:
            assert await client.get("before") == data_of(1)
            await client.put("meanwhile", data_of(2))
            assert await client.get("meanwhile") == data_of(2)
        finally:
            os.kill(node.process.pid, signal.SIGCONT)


async def test_a_node_that_may_not_lock_its_memory_says_so_and_how_to_change_that(verbs: Verbs) -> None:
    async with processes() as pool:
        arguments = ("node", "--master", pool.master, "--fabric", "rdma", "--rdma-device", RIGHT)
        done = await asyncio.to_thread(without_locked_memory, *arguments)
    assert done.returncode != 0
    assert "locked memory" in done.stderr
    assert "ulimit -l" in done.stderr
    assert "Traceback" not in done.stderr


async def test_a_client_that_may_not_lock_memory_says_so_or_goes_another_way(verbs: Verbs) -> None:
    async with processes() as pool:
        await pool.node("n1", RIGHT)
        client = await pool.client(verbs, LEFT)
        await warm(client)
        await client.put("key", b"value")
        arguments = ("get", "key", "--master", pool.master, "--rdma-device", LEFT, "--fabric", "rdma")
        alone = await asyncio.to_thread(without_locked_memory, *arguments)
        assert alone.returncode != 0
        assert "ulimit -l" in alone.stderr
        both = await asyncio.to_thread(without_locked_memory, *arguments, "--fabric", "tcp")
        assert both.returncode == 0, both.stderr
        assert both.stdout == "value"


def without_locked_memory(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command with a limit on locked memory that root may not pass over either."""
    command = ["setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock", sys.executable, "-m", "pykvpool"]
    script = 'ulimit -l 64 && exec "$@"'
    return subprocess.run(
        ["bash", "-c", script, "bash", *command, *arguments],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=START_TIMEOUT_S + TIMEOUT_S,
    )  # fmt: skip
