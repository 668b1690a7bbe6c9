"""A store's life: closed, forgotten, forked, used by threads while it closes; what it holds and what runs out."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pykvpool.errors import Closed, Overloaded
from pykvpool_connector.mooncake import MooncakeDistributedStore, ReplicateConfig, SoftPinAction
from pykvpool_connector.mooncake.holds import MAX_HELD, Holds

MIB = 1 << 20
ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "connector")])}


def open_store(master, segment=16 * MIB, **more):
    store = MooncakeDistributedStore()
    assert store.setup("localhost", "P2PHANDSHAKE", segment, 4 * MIB, "tcp", "", master, **more) == 0, (
        store.last_error()
    )
    return store


@pytest.fixture
def store(master):
    made = open_store(master)
    made.remove_all(True)
    yield made
    made.close()


def nodes(store):
    """Names of the pool's nodes, as a store sees them."""
    attachment = store._attachment
    state = attachment.run(lambda: attachment.client.state())
    return {session.name for session in state.sessions if session.role == "node"}


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("pykvpool-mooncake")]


def test_a_closed_store_leaves_no_thread_and_no_node(store, master):
    before = len(threads())
    other = open_store(master)
    name = other.get_hostname()
    assert name in nodes(store)
    assert other.close() == 0
    assert len(threads()) == before
    assert name not in nodes(store)


def test_a_forgotten_store_closes_itself(store, master):
    other = open_store(master)
    name = other.get_hostname()
    del other
    gc.collect()
    assert name not in nodes(store)


def test_a_setup_that_fails_leaves_nothing_behind(master):
    before = len(threads())
    store = MooncakeDistributedStore()
    assert store.setup("localhost", "P2PHANDSHAKE", MIB, MIB, "tcp", "", "127.0.0.1:1") == -900
    assert store.last_error().kind == "Unavailable"
    assert store.setup("localhost", "P2PHANDSHAKE", 1 << 45, MIB, "tcp", "", master) == -602
    assert len(threads()) == before
    assert store.health_check() == 1


def test_two_stores_under_one_host_name_are_two_nodes(store, master):
    other = open_store(master)
    assert store.get_hostname() != other.get_hostname()
    assert {store.get_hostname(), other.get_hostname()} <= nodes(store)
    other.close()


def test_a_store_in_a_forked_child_is_closed_there_and_lives_on_in_the_parent(store):
    store.put("k", b"x")
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.write(writer, f"{store.put('child', b'x')} {store.close()}".encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 100) == b"-605 0"
    os.close(reader)
    os.close(writer)
    assert store.get("k") == b"x"


def test_calls_of_other_threads_end_when_the_store_closes(master):
    """A put that waits for room does not keep its thread when somebody closes the store."""
    store = open_store(master, segment=MIB)
    store.remove_all(True)
    near = ReplicateConfig(with_hard_pin=True)
    assert store.put("full", bytes(MIB), near) == 0
    attachment = store._attachment
    codes = []
    thread = threading.Thread(target=lambda: codes.append(store.put("more", bytes(MIB), near)))
    thread.start()
    while not attachment.run(lambda: attachment.client.state()).waiting:
        assert not codes, "it has not waited"
    assert store.close() == 0
    thread.join(30)
    assert not thread.is_alive()
    assert codes[0] < 0


def test_a_soft_pin_ends_when_its_time_has_come(store):
    config = ReplicateConfig()
    config.soft_pin_action, config.soft_pin_ttl_ms = SoftPinAction.ENABLE, 1
    unpinned = threading.Event()
    attachment = store._attachment
    real = attachment.client.unpin

    async def unpin(keys):
        result = await real(keys)
        unpinned.set()
        return result

    attachment.client.unpin = unpin
    assert store.put("soft", b"x", config) == 0
    assert unpinned.wait(10)
    [stat] = attachment.run(lambda: attachment.client.stat(["soft"]))
    assert stat.pin == 0


def test_a_hard_pin_does_not_hinder_its_owner_but_a_reader_does(store):
    store.put("pinned", b"x", ReplicateConfig(with_hard_pin=True))
    assert store.is_exist("pinned") == 1
    assert store.remove("pinned") == -706
    assert store.remove("pinned", True) == 0


def test_last_error_says_more_than_the_code_and_each_thread_has_its_own(store):
    assert store.get_size("nobody") == -704
    assert store.last_error().kind == "KeyNotFound"
    seen = []
    thread = threading.Thread(target=lambda: seen.append(store.last_error()))
    thread.start()
    thread.join()
    assert seen == [None]


def test_an_unknown_key_of_a_batch_costs_no_other(store):
    assert store.batch_get_buffer(["", "nobody"]) == [None, None]
    store.put("k", b"x")
    assert [each and bytes(each) for each in store.batch_get_buffer(["", "k"])] == [None, b"x"]
    assert store.get_batch(["", "k"]) == [b"", b"x"]


def test_a_token_admits_and_its_absence_does_not(monkeypatch):
    from tests.cli.live import server

    monkeypatch.setenv("PYKVPOOL_TOKEN", "secret")
    with server("master", "--listen", "tcp://127.0.0.1:0") as (_, announced):
        address = announced["addresses"][0].removeprefix("tcp://")
        store = open_store(address)
        assert store.put("k", b"x") == 0
        store.close()
        monkeypatch.delenv("PYKVPOOL_TOKEN")
        stranger = MooncakeDistributedStore()
        assert stranger.setup("localhost", "P2PHANDSHAKE", 0, MIB, "tcp", "", address) == -902


class FakeHold:
    """A lease that a test lets lapse."""

    def __init__(self):
        self.lease, self.trusted, self.released = 1, True, False

    def release(self):
        self.released = True


class FakeClient:
    """Grants holds until it is told to refuse."""

    def __init__(self):
        self.holds, self.refusals = [], 0

    async def match_prefix(self, keys, *, presence, hold):
        if self.refusals:
            self.refusals -= 1
            raise Overloaded("too much under leases")
        self.holds.append(FakeHold())
        return type("Match", (), {"presence": ([key == b"k" for key in keys],), "hold": self.holds[-1]})()

    async def exists(self, keys):
        return [False for _ in keys]


async def test_what_exists_is_held_and_lapsed_holds_are_forgotten():
    client = FakeClient()
    holds = Holds(client)
    assert await holds.exists([b"k", b"l", b"k"]) == [True, False, True]
    client.holds[0].trusted = False
    await holds.exists([b"k"])
    assert [hold.released for hold in client.holds] == [True, False]
    for _ in range(MAX_HELD + 5):
        await holds.exists([b"k"])
    assert sum(not hold.released for hold in client.holds) == MAX_HELD


async def test_holds_give_way_where_the_session_holds_too_much():
    client = FakeClient()
    holds = Holds(client)
    await holds.exists([b"k"])
    client.refusals = 1
    assert await holds.exists([b"k"]) == [True]
    assert [hold.released for hold in client.holds] == [True, False]


async def test_without_holds_of_its_own_the_refusal_is_the_answer():
    client = FakeClient()
    client.refusals = 1
    with pytest.raises(Overloaded):
        await Holds(client).exists([b"k"])


def test_run_in_a_closed_attachment_is_closed(master):
    store = open_store(master)
    attachment = store._attachment
    store.close()
    with pytest.raises(Closed):
        attachment.run(lambda: attachment.client.state())


def test_a_program_that_ends_without_closing_takes_its_node_with_it_at_once(store, master):
    """The interpreter's end closes the store: nothing is lost in silence for the time of a heartbeat."""
    code = (
        "import sys\n"
        "from pykvpool_connector.mooncake import MooncakeDistributedStore\n"
        "store = MooncakeDistributedStore()\n"
        f"assert store.setup('localhost', 'P2PHANDSHAKE', {MIB}, {MIB}, 'tcp', '', {master!r}) == 0\n"
        "print(store.get_hostname())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    assert done.stdout.strip() not in nodes(store)


async def test_a_store_that_is_forgotten_within_a_running_loop_does_not_block_it(store, master):
    other = await asyncio.to_thread(open_store, master)
    name = other.get_hostname()
    del other
    gc.collect()
    while name in await asyncio.to_thread(nodes, store):
        pass
