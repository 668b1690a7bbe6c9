"""Which place an engine's process chooses for its pool I/O."""

from __future__ import annotations

import os
import socket
import tempfile

import pytest

from pykvpool.host.access import PoolAccess
from pykvpool.host.agent.port import AgentPort
from pykvpool.host.embedded import EmbeddedPort
from pykvpool.host.place import any_port, node_port
from pykvpool.host.port import Question
from tests.host.stage import SCOPE, Engine, Memory, chain


@pytest.fixture
def opened(tmp_path, monkeypatch):
    """Closes ports; nodes of this test alone are found."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "pykvpool").mkdir(mode=0o700)
    ports = []
    yield lambda port: ports.append(port) or port
    for port in ports:
        port.close(0.0)


def leave(path):
    """A socket file of a node that was killed."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(str(path))


def told(port):
    """What the port's thread had to say of its first search is in the log."""
    assert Engine(port).save(Memory().group(chain(1), range(1))).reasons == {"Unavailable": 1}


def test_where_no_node_runs_the_log_says_what_to_do_and_nothing_of_killed_ones(pool, opened, tmp_path, caplog):
    for number in (1, 2):
        leave(tmp_path / "pykvpool" / f"killed-{number}.engines")
    told(opened(node_port(pool.access())))
    assert "killed" not in caplog.text
    assert f"start one (`pykvpool node --master {pool.address}`)" in caplog.text


def test_where_nobody_listens_at_the_named_socket_the_log_says_what_to_do(pool, opened, tmp_path, caplog):
    path = tmp_path / "named.engines"
    told(opened(node_port(pool.access(), str(path))))
    assert f"no `pykvpool node` listens at {path}" in caplog.text
    assert f"start one there (`pykvpool node --master {pool.address} --engine-socket {path}`)" in caplog.text


def test_a_node_that_does_not_take_the_engine_is_named_with_the_reason(pool, make_pool, opened, tmp_path, caplog):
    make_pool().start().agent("pykvpool/n0-1.engines")
    leave(tmp_path / "pykvpool" / "killed-1.engines")
    opened(any_port(pool.access()))
    assert "'n0' is of another pool" in caplog.text
    assert "killed" not in caplog.text


def test_a_process_is_not_said_to_be_connected_before_it_is(pool, opened):
    port = opened(EmbeddedPort(PoolAccess(("tcp://127.0.0.1:9",), "alone")))
    assert "will connect to tcp://127.0.0.1:9" in port.placement
    there = opened(EmbeddedPort(pool.access()))
    Engine(there).connected()
    assert "connected to " + pool.address in there.placement and "will" not in there.placement


def test_without_a_node_on_the_host_the_process_does_its_own_io(pool, opened, tmp_path):
    leave(tmp_path / "pykvpool" / "killed-1.engines")
    port = opened(any_port(pool.access()))
    assert isinstance(port, EmbeddedPort)
    assert pool.address in port.placement


def test_the_nodes_of_the_host_are_found_where_they_put_their_sockets(pool, opened):
    pool.agent("pykvpool/n0-1.engines")
    port = opened(any_port(pool.access()))
    assert isinstance(port, AgentPort)
    assert port.placement == "the node 'n0' of this host"
    engine, memory = Engine(port).connected(), Memory().fill()
    assert engine.save(memory.group(chain(3), range(3))).stored == 3
    other = Engine(opened(node_port(pool.access("other")))).connected()
    assert other.lookup(Question((SCOPE,), chain(3))).found[0].count == 3


def test_a_node_without_a_login_is_found_by_engines_with_one(pool, opened, tmp_path, caplog):
    """A service has no XDG_RUNTIME_DIR, so its sockets lie elsewhere than those of whoever starts the engine."""
    lost = Engine(opened(node_port(pool.access("early"))))
    assert lost.save(Memory().group(chain(1), range(1))).reasons == {"Unavailable": 1}
    service = tmp_path / f"pykvpool-{os.getuid()}"
    assert str(service) in caplog.text and str(tmp_path / "pykvpool") in caplog.text
    service.mkdir(mode=0o700)
    pool.agent(f"{service.name}/n0-1.engines")
    assert opened(any_port(pool.access())).placement == "the node 'n0' of this host"


def test_sockets_in_a_directory_that_others_may_write_to_are_not_looked_at(pool, opened, tmp_path):
    pool.agent("pykvpool/n0-1.engines")
    (tmp_path / "pykvpool").chmod(0o777)
    assert isinstance(opened(any_port(pool.access())), EmbeddedPort)


def test_a_node_of_another_pool_is_left_alone(pool, make_pool, opened, tmp_path):
    other = make_pool().start()
    node = other.agent("pykvpool/n0-1.engines")
    assert isinstance(opened(any_port(pool.access())), EmbeddedPort)
    assert not node.serves, "it has opened sessions with its pool for an engine of another one"


def test_a_node_that_is_named_and_not_there_yet_is_waited_for_in_the_background(pool, opened, tmp_path):
    path = str(tmp_path / "later.engines")
    port = opened(node_port(pool.access(), path))
    engine, memory = Engine(port), Memory().fill()
    assert port.placement == "a node of this host, not found yet"
    assert engine.save(memory.group(chain(2), range(2))).reasons == {"Unavailable": 2}
    pool.agent("later.engines")
    assert engine.connected().save(memory.group(chain(2), range(2))).stored == 2
