"""The pool is full, loses blocks, dies under a load, is not there: the engine computes, and goes on."""

from __future__ import annotations

import socket

import pytest

from pykvpool.client import SyncClient
from pykvpool.errors import PoolFull
from pykvpool.model.objects import Pin
from tests.vllm.engine.conftest import answers
from tests.vllm.engine.models import prompt

BLOCK = 32
#: Longer than any of these troubles may hold a request up: what is tested is that they end by themselves.
PATIENT = {"load_timeout_ms": 600_000, "lookup_timeout_ms": 10_000, "save_timeout_ms": 600_000}
NONE_LEFT = {"blocks": 0, "requests": 0}


@pytest.mark.parametrize("placement", ["embedded", "node"])
def test_p7_a_full_pool_costs_hits_and_nothing_else(empty_pool, engine, expected, placement):
    empty_pool.start_master()
    empty_pool.start_node(size="2MiB")
    tokens = prompt(31, 6 * BLOCK + 4)
    right = expected([tokens])
    with SyncClient.connect(empty_pool.address) as other:
        filled = 0
        with pytest.raises(PoolFull):
            while True:
                other.put(f"pinned-{filled}", b"x" * (16 << 10), pin=Pin.HARD, wait=False)
                filled += 1
        with engine(empty_pool, extra={"placement": placement} | PATIENT) as one:
            assert answers(one.generate([tokens])) == right
            assert one.leftovers() == NONE_LEFT, "a save that found no room holds blocks"
            assert one.reset_prefix_cache()
            assert answers(one.generate([tokens])) == right
            assert one.hits() == 0
            other.unpin([f"pinned-{number}" for number in range(filled)])
            assert one.reset_prefix_cache()
            one.generate([tokens])  # now there is room: the rest may go
            assert one.reset_prefix_cache()
            assert answers(one.generate([tokens])) == right
            assert one.hits() == 6 * BLOCK


REMOVE_BEFORE_LOADS = """
from vllm.distributed.kv_transfer import get_kv_transfer_group
from pykvpool.client import SyncClient
port = get_kv_transfer_group()._worker._port
load = port.load
def removed_first(job):
    with SyncClient.connect({address!r}) as other:
        other.remove_all(namespace="", force=True)
    del port.load
    load(job)
port.load = removed_first
"""


@pytest.mark.parametrize("placement", ["embedded", "node"])
def test_p10_blocks_that_go_between_lookup_and_load_are_computed(pool, engine, expected, placement):
    """What a lookup found is held: only a forced removal, or a node's death, takes it away."""
    tokens = prompt(32, 6 * BLOCK + 4)
    right = expected([tokens])
    with engine(pool, extra={"placement": placement} | PATIENT) as one:
        one.generate([tokens])
        assert one.reset_prefix_cache()
        one.run(REMOVE_BEFORE_LOADS.format(address=pool.address))
        [output] = one.generate([tokens])
        assert answers([output]) == right
        assert one.leftovers() == NONE_LEFT
        hits = one.hits()
        assert one.reset_prefix_cache()
        assert answers(one.generate([tokens])) == right
        assert one.hits() - hits == 6 * BLOCK, "what was computed again is stored again"


@pytest.mark.parametrize("placement", ["embedded", "node"])
def test_p10_a_pool_that_dies_under_a_load_and_comes_back(pool, engine, expected, placement):
    tokens = prompt(33, 6 * BLOCK + 4)
    right = expected([tokens])
    with engine(pool, extra={"placement": placement, "fabrics": ["tcp"]} | PATIENT) as one:
        one.generate([tokens])
        assert one.reset_prefix_cache()
        one.run(STOP_AT_LOADS.format(pids=[pool.processes[name].pid for name in ("n1", "master")]))
        name = one.submit(tokens)
        loading = one.run(STEP_UNTIL_LOADING)
        assert loading, "the load never began"
        pool.kill("n1")
        pool.kill("master")
        [output] = one.run_until_done([name])
        assert answers([output]) == right
        one.settle()
        assert one.leftovers() == NONE_LEFT

        pool.start_master(listen=pool.address)
        pool.start_node()
        one.run(UNTIL_CONNECTED)
        hits = one.hits()
        assert one.reset_prefix_cache()
        assert answers(one.generate([tokens])) == right
        assert one.hits() == hits, "the pool came back empty"
        assert one.reset_prefix_cache()
        assert answers(one.generate([tokens])) == right
        assert one.hits() - hits == 6 * BLOCK


#: The processes are stopped the moment that a load is handed in: it can neither end nor fail by itself.
STOP_AT_LOADS = """
import os, signal
from vllm.distributed.kv_transfer import get_kv_transfer_group
port = get_kv_transfer_group()._worker._port
load = port.load
def stopped_first(job):
    for pid in {pids!r}:
        os.kill(pid, signal.SIGSTOP)
    del port.load
    commands.loading = True
    load(job)
port.load = stopped_first
commands.loading = False
"""
STEP_UNTIL_LOADING = """
import time
deadline = time.monotonic() + 30
while not commands.loading and time.monotonic() < deadline:
    engine.step()
result = commands.loading
"""
UNTIL_CONNECTED = """
import time
from vllm.distributed.kv_transfer import get_kv_transfer_group
ports = [get_kv_transfer_group()._worker._port, scheduler.connector._scheduler._port._port]
deadline = time.monotonic() + 60
while not all(port.connected for port in ports):
    assert time.monotonic() < deadline, "it does not reconnect"
    time.sleep(0.05)
"""


@pytest.mark.parametrize("placement", ["embedded", "node", "auto"])
def test_p9_an_engine_starts_and_serves_without_its_pool_and_finds_it_later(empty_pool, engine, expected, placement):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        empty_pool.address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    tokens = prompt(34, 6 * BLOCK + 4)
    right = expected([tokens])
    with engine(empty_pool, extra={"placement": placement} | PATIENT) as one:
        assert answers(one.generate([tokens])) == right
        assert one.leftovers() == NONE_LEFT
        empty_pool.start_master(listen=empty_pool.address)
        empty_pool.start_node()
        one.run(UNTIL_CONNECTED)
        assert one.reset_prefix_cache()
        one.generate([tokens])
        assert one.hits() == 0
        assert one.reset_prefix_cache()
        assert answers(one.generate([tokens])) == right
        assert one.hits() == 6 * BLOCK
