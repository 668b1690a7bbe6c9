"""Masters and nodes as processes: what they say, and how they end. Ctrl-C leaves no process and no traceback."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from pykvpool.cli.boundary import EXIT_INTERRUPTED, EXIT_TERMINATED
from pykvpool.cli.demo.driver import DemoOutcome, DemoSettings, Pass
from pykvpool.cli.demo.messages import TurnResult
from pykvpool.cli.demo.turns import Turn
from pykvpool.cli.main import cli
from pykvpool.model.replies import State
from tests.cli.live import Pool, command, finish, gone, run, server


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_node_is_gone_from_the_pool_at_once(number: signal.Signals) -> None:
    with server("master", "--listen", "tcp://127.0.0.1:0") as (_, announced):
        [address] = announced["addresses"]
        pool = Pool(address)
        with server("node", "--name", "leaving", "--master", address, "--segment-size", "1MiB") as (node, said):
            assert any(endpoint.startswith("tcp://") for endpoint in said["addresses"])
            assert len(json.loads(pool.run("status", "--json").stdout)["segments"]) == 1
            node.send_signal(number)
            _, err = finish(node, 0)
        state = json.loads(pool.run("status", "--json").stdout)
        assert state["segments"] == []
        assert [session for session in state["sessions"] if session["role"] == "node"] == []
    started = [line for line in err.splitlines() if "lends 1 MiB" in line]
    assert len(started) == 1
    assert address in started[0]


def test_a_started_master_says_one_line_with_its_address() -> None:
    with server("master", "--listen", "tcp://127.0.0.1:0", "--cluster", "blue") as (master, announced):
        master.send_signal(signal.SIGTERM)
        _, err = finish(master, 0)
    assert err.splitlines() == [f"pykvpool master listens on {announced['addresses'][0]} (cluster 'blue', no token)"]


def test_both_servers_show_themselves_over_http() -> None:
    with server("master", "--listen", "tcp://127.0.0.1:0", "--http", "127.0.0.1:0") as (_, announced):
        [address] = announced["addresses"]
        arguments = ("--name", "n", "--master", address, "--segment-size", "1MiB", "--http", "127.0.0.1:0")
        with server("node", *arguments) as (_, said):
            for url in (announced["http"], said["http"]):
                assert httpx.get(f"{url}/health").status_code == 200
                assert "n" in [segment["node"] for segment in httpx.get(f"{url}/api/state").json()["state"]["segments"]]
                assert "pykvpool_build_info" in httpx.get(f"{url}/metrics").text


def test_a_taken_port_names_its_holder_or_the_flag() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        _, err = run("master", "--listen", f"tcp://127.0.0.1:{port}", code=1)
    assert err.startswith("pykvpool: ConfigError: ")
    assert str(port) in err
    assert str(os.getpid()) in err or "--listen" in err


def free_address() -> str:
    """Where nobody listens now."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"tcp://127.0.0.1:{taken.getsockname()[1]}"


@pytest.mark.parametrize("extra", [(), ("--replace",)])
def test_a_node_that_is_started_first_waits_for_its_master(extra: tuple[str, ...]) -> None:
    address = free_address()
    with command("node", "--name", "early", "--master", address, "--segment-size", "1MiB", *extra) as node:
        assert node.stderr is not None
        waiting = node.stderr.readline()
        assert waiting == f"pykvpool: waiting for the master at {address}: start it with `pykvpool master`\n"
        with server("master", "--listen", address):
            assert node.stderr.readline().startswith("pykvpool node 'early' lends 1 MiB")
            node.send_signal(signal.SIGINT)
            _, err = finish(node, 0)
    assert "waiting" not in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_node_that_waits_for_its_master_ends_when_told_to(number: signal.Signals) -> None:
    with command("node", "--master", free_address(), "--segment-size", "1MiB") as node:
        assert node.stderr is not None
        assert "waiting for the master" in node.stderr.readline()
        node.send_signal(number)
        assert finish(node, 0) == ("", "")


def test_a_node_that_waits_is_still_refused_by_a_master_with_another_token() -> None:
    address = free_address()
    with command("node", "--master", address, "--segment-size", "1MiB", "--token", "wrong") as node:
        assert node.stderr is not None
        assert "waiting for the master" in node.stderr.readline()
        with server("master", "--listen", address, "--token", "right"):
            _, err = finish(node, 1)
    assert err.startswith("pykvpool: Refused: ")


def test_a_supervised_node_without_a_master_says_so() -> None:
    address = free_address()
    with command("node", "--supervised", "--master", address, "--segment-size", "1MiB") as node:
        _, err = finish(node, 1)
    assert err.startswith("pykvpool: Unavailable: ")
    assert address in err


def test_a_token_is_needed_at_both_ends(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("open sesame\n")
    with server("master", "--listen", "tcp://127.0.0.1:0", "--token-file", str(tmp_path / "token")) as (_, announced):
        pool = Pool(announced["addresses"][0])
        refused = pool.run("status", code=1).stderr
        assert refused.startswith("pykvpool: Refused: ")
        assert "open sesame" not in refused
        pool.run("status", "--token", "open sesame")


def test_ctrl_c_while_a_put_waits_for_its_input(address: str) -> None:
    with command("put", "key", "-", "--master", address) as process:
        assert process.stdin is not None
        # The pipe takes 64 KiB: when more has gone through, the command is reading.
        process.stdin.write("x" * (1 << 20))
        process.stdin.flush()
        process.send_signal(signal.SIGINT)
        _, err = finish(process, EXIT_INTERRUPTED)
    assert err == "pykvpool: interrupted\n"


def test_ctrl_c_ends_a_put_whose_input_stays_open(address: str) -> None:
    with command("put", "key", "-", "--master", address) as process:
        assert process.stdin is not None
        process.stdin.write("x" * (1 << 20))
        process.stdin.flush()
        process.send_signal(signal.SIGINT)
        assert gone(process.pid)
        _, err = finish(process, EXIT_INTERRUPTED)
    assert err == "pykvpool: interrupted\n"


def test_ctrl_c_while_a_get_waits_for_a_master_that_does_not_answer() -> None:
    silent = socket.create_server(("127.0.0.1", 0))
    address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
    with silent, command("get", "key", "--master", address) as process:
        connection, _ = silent.accept()
        with connection:
            assert connection.recv(1)
            process.send_signal(signal.SIGINT)
            _, err = finish(process, EXIT_INTERRUPTED)
    assert err == "pykvpool: interrupted\n"


def test_a_reader_that_goes_away_is_no_traceback(pool: Pool, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x")
    for number in range(20):
        pool.run("put", f"key-{number}", str(tmp_path / "f"))
    with command("ls", "--master", pool.address) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        err = process.stderr.read()
    assert "Traceback" not in err
    assert "Exception ignored" not in err


DEMO = (
    "demo", "--sessions", "3", "--turns", "4", "--engines", "2", "--nodes", "2", "--node-size", "96MiB",
    "--engine-tokens", "16384", "--token-bytes", "256",
)  # fmt: skip


@pytest.mark.parametrize("fabric", ["shm", "tcp"])
def test_the_demo_compares_every_byte_and_says_so(fabric: str) -> None:
    out, err = run(*DEMO, "--json", "--fabric", fabric, code=0)
    summary = json.loads(out)
    alone, pooled = summary["engines_alone"], summary["with_pool"]
    assert summary["turns"] == 12
    assert summary["sub_agent_turns"] == 0
    assert summary["turns_left_out"] == 0
    assert alone["input_tokens"] == pooled["input_tokens"]
    assert alone["pool_hit_tokens"] == alone["loaded_bytes"] == 0
    assert pooled["own_hit_tokens"] == alone["own_hit_tokens"]
    assert pooled["pool_hit_tokens"] > 0
    assert pooled["hit_rate"] > alone["hit_rate"]
    assert pooled["verified_bytes"] == pooled["loaded_bytes"] > 0
    assert (pooled["wrong_blocks"], pooled["not_loaded"], pooled["not_saved"]) == (0, {}, {})
    assert set(pooled["fabric_bytes"]) == {fabric}
    assert "with the pool: 12 turns" in err


def test_the_demo_replays_a_trace_and_shows_tables(tmp_path: Path) -> None:
    requests = [
        {
            "t": float(turn),
            "type": "n",
            "model": "m",
            "in": 64 * (turn + 5),
            "out": 1,
            "hash_ids": list(range(turn + 5)),
        }
        for turn in range(6)
    ]
    trace = tmp_path / "trace.jsonl"
    trace.write_text(json.dumps({"id": "s", "block_size": 64, "requests": requests}) + "\n")
    out, _ = run("demo", "--trace", str(trace), "--engines", "2", "--nodes", "1", "--node-size", "32MiB")
    for part in (
        "The first 1 sessions of trace.jsonl",
        "hit rate",
        "none wrong",
        "A block of 64 tokens has 64 KiB",
        "per engine",
    ):
        assert part in out, part


def test_a_node_killed_in_the_demo_costs_its_own_blocks_and_nothing_else() -> None:
    out, err = run(*DEMO, "--json", "--kill-node")
    summary = json.loads(out)
    pooled = summary["with_pool"]
    assert "killing node-1" in err
    assert summary["killed_node"] == "node-1"
    assert summary["turns"] == 12
    assert pooled["wrong_blocks"] == 0
    assert pooled["verified_bytes"] == pooled["loaded_bytes"] > 0
    assert pooled["hit_rate"] > summary["engines_alone"]["hit_rate"]


def test_an_engine_that_dies_ends_the_demo_with_its_name_and_no_process_behind() -> None:
    with command("demo", "--sessions", "6", "--turns", "16") as process:
        assert process.stderr is not None
        assert any(line.startswith("with the pool") for line in process.stderr)
        children = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
        [engine, *_] = [pid for pid in children if b"engine_process" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        os.kill(engine, signal.SIGKILL)
        _, err = finish(process, 1)
    assert "pykvpool: ChildFailed: engine-0 is gone: it was killed by SIGKILL" in err
    assert all(gone(pid) for pid in children)


def test_wrong_bytes_make_the_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run_demo(settings: DemoSettings, turns: list[Turn], *rest: object) -> DemoOutcome:
        wrong = TurnResult(0, 100, loaded_bytes=64, verified_bytes=64, wrong_blocks=1)
        state = State((), (), 0, 0, 0, 0, 0, 0, {})
        return DemoOutcome(Pass(False, {0: TurnResult(0, 100)}), Pass(True, {0: wrong}), len(turns), state)

    monkeypatch.setattr("pykvpool.cli.demo.command.run_demo", run_demo)
    shown = CliRunner().invoke(cli, ["demo", "--sessions", "1", "--turns", "1"])
    assert shown.exit_code == 1
    assert "1 block WRONG" in shown.stdout
    data = CliRunner().invoke(cli, ["demo", "--sessions", "1", "--turns", "1", "--json"])
    assert data.exit_code == 1
    assert json.loads(data.stdout)["with_pool"]["wrong_blocks"] == 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, EXIT_INTERRUPTED), (signal.SIGTERM, EXIT_TERMINATED)])
def test_ctrl_c_during_the_demo_leaves_no_process_behind(number: signal.Signals, code: int) -> None:
    with command("demo", "--sessions", "6", "--turns", "16") as process:
        assert process.stderr is not None
        assert any(line.startswith("with the pool") for line in process.stderr)
        children = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
        assert len(children) == 7
        process.send_signal(number)
        _, err = finish(process, code)
    assert err.endswith("pykvpool: interrupted\n") == (number is signal.SIGINT)
    assert all(gone(pid) for pid in children)


def test_a_demo_that_cannot_start_says_why(tmp_path: Path) -> None:
    missing = CliRunner().invoke(cli, ["demo", "--trace", str(tmp_path / "none.jsonl")])
    assert missing.exit_code == 1
    assert "none.jsonl" in missing.stderr
    too_small = CliRunner().invoke(cli, ["demo", "--sessions", "1", "--turns", "1", "--node-size", "4KiB"])
    assert too_small.exit_code == 1
    assert "raise --node-size" in too_small.stderr
    _, err = run("demo", "--sessions", "1", "--turns", "2", "--fabric", "pigeon", code=1)
    assert "pigeon" in err


@pytest.mark.slow
def test_the_bench_measures_every_case() -> None:
    out, err = run("bench", "--quick", "--json", code=0)
    figures = json.loads(out)
    assert err == ""
    assert {figure["case"]["fabric"] for figure in figures["transfers"]} == {"inproc", "shm", "tcp"}
    assert all(figure["put_ratio"] > 0 and figure["get_ratio"] > 0 for figure in figures["transfers"])
    assert [question["case"]["hashes"] for question in figures["controls"]] == [512, 1250, 5000]
    assert figures["put_rates"][0]["objects_per_s"] > 0
    assert set(figures["raw"]) == {"memcpy", "loopback"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["raw_wire.py"], "usage: python examples/raw_wire.py HOST PORT"),
        (["raw_wire.py", "127.0.0.1", "1"], "no master at 127.0.0.1 port 1: "),
        (["async_client.py", "tcp://127.0.0.1:1"], "Unavailable: no master answers: tcp://127.0.0.1:1: "),
        (["prefix_cache.py", "tcp://127.0.0.1:1"], "Unavailable: no master answers: tcp://127.0.0.1:1: "),
    ],
)
def test_an_example_that_cannot_run_says_why_in_one_line(arguments: list[str], said: str) -> None:
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, str(root / "examples" / arguments[0]), *arguments[1:]], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr.startswith(said)
    assert done.stderr.count("\n") == 1


def test_examples_run(address: str) -> None:
    root = Path(__file__).resolve().parents[2]
    for arguments in (["hello.py"], ["prefix_cache.py"], ["prefix_cache.py", address], ["async_client.py", address]):
        done = subprocess.run(
            [sys.executable, str(root / "examples" / arguments[0]), *arguments[1:]], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout
