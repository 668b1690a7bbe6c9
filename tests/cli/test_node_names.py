"""Two nodes of one name: the second one asks before it takes the name, except from one that is gone."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from pykvpool.cli.taken_names import check_name_in
from pykvpool.errors import ConfigError
from pykvpool.model.ids import SegmentId, SessionId
from pykvpool.model.replies import SegmentState, SessionState, State
from tests.cli.live import Pool, command, finish, run, server


def state(*, role: str = "node", connected: bool = True) -> State:
    session = SessionState(SessionId(1), "vm", role, connected, 0, 0, 0, 0)
    endpoints = ("shm://abc/run/vm-1.sock", "tcp://10.0.0.2:7001")
    segment = SegmentState(SegmentId(1), "vm", 1 << 30, 1 << 30, 0, 0, endpoints, not connected)
    return State((segment,) if role == "node" else (), (session,), 0, 0, 0, 0, 0, 0, {})


def test_a_name_that_a_connected_node_has_is_refused_with_what_it_lends_and_what_to_do() -> None:
    with pytest.raises(ConfigError) as refusal:
        check_name_in(state(), "vm", 10_000)
    for part in ("'vm'", "1 GiB", "tcp://10.0.0.2:7001", "--name", "--replace", "after 10 s"):
        assert part in refusal.value.message, part


def test_a_name_of_a_node_that_lost_its_connection_or_of_a_client_is_free() -> None:
    check_name_in(state(connected=False), "vm", 10_000)
    check_name_in(state(role="client"), "vm", 10_000)
    check_name_in(state(), "other", 10_000)


def test_a_second_node_of_one_name_leaves_the_first_alone_unless_it_is_told_to_replace_it(tmp_path: Path) -> None:
    (tmp_path / "value").write_bytes(b"precious")
    with server("master", "--listen", "tcp://127.0.0.1:0") as (_, announced):
        [address] = announced["addresses"]
        pool = Pool(address)
        arguments = ("node", "--name", "vm", "--master", address, "--segment-size", "1MiB", "--shm-dir", str(tmp_path))
        with server(*arguments) as (first, said):
            pool.run("put", "key", str(tmp_path / "value"))
            _, err = run(*arguments, code=1)
            assert err.startswith("pykvpool: ConfigError: a node named 'vm' is connected already")
            assert next(place for place in said["addresses"] if place.startswith("tcp://")) in err
            assert "--replace" in err
            pool.run("get", "key", "-o", str(tmp_path / "copy"))
            assert (tmp_path / "copy").read_bytes() == b"precious"
            with server(*arguments, "--replace"):
                first.wait(60)  # by itself: `finish` would end its input, which tells it to stop
                _, err = finish(first, 1)
                assert "the node ends" in err
                assert "lent anew" not in err
                assert err.count("session 'vm' is over: superseded by a newer session of its name\n") == 1
                assert "KeyNotFound" in pool.run("get", "key", code=1).stderr


def test_a_killed_node_is_followed_by_the_next_of_its_name_and_leaves_no_socket(tmp_path: Path) -> None:
    with server("master", "--listen", "tcp://127.0.0.1:0") as (_, announced):
        [address] = announced["addresses"]
        arguments = ("node", "--name", "vm", "--master", address, "--segment-size", "1MiB", "--shm-dir", str(tmp_path))
        with command(*arguments, "--supervised") as killed:
            assert killed.stdout is not None
            assert killed.stdout.readline()
            killed.send_signal(signal.SIGKILL)
            killed.wait(30)
        left = {each.name for each in tmp_path.iterdir()}
        assert left == {f"vm-{killed.pid}.sock", f"vm-{killed.pid}.engines"}
        with server(*arguments) as (node, _):
            assert {each.name for each in tmp_path.iterdir()} == {f"vm-{node.pid}.sock", f"vm-{node.pid}.engines"}
        assert not list(tmp_path.iterdir())


def test_a_started_node_says_its_name_its_size_its_master_and_how_it_is_reached(tmp_path: Path) -> None:
    with server("master", "--listen", "tcp://127.0.0.1:0") as (_, announced):
        [address] = announced["addresses"]
        arguments = ("--name", "n1", "--master", address, "--segment-size", "1MiB", "--shm-dir", str(tmp_path))
        with server("node", *arguments) as (node, said):
            [tcp] = [place for place in said["addresses"] if place.startswith("tcp://")]
            node.send_signal(signal.SIGTERM)
            _, err = finish(node, 0)
    assert err.splitlines()[0] == (
        f"pykvpool node 'n1' lends 1 MiB to {address}, over {tcp} and shm (same host and user); "
        f"engines attach at {said['engines']}"
    )
    assert not [place for place in said["addresses"] if place.startswith("inproc://")]
