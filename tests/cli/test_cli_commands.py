"""The commands against a real master and node."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from pykvpool.cli.main import cli
from tests.cli.live import NODE_MIB, Pool


def test_a_file_goes_in_and_comes_out_the_same(pool: Pool, tmp_path: Path) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_bytes(bytes(range(256)) * 5_000)
    put = pool.run("put", "key", str(source))
    assert "key: 1.2 MiB over shm, 1 copy" in put.stderr
    got = pool.run("get", "key", "-o", str(target))
    assert target.read_bytes() == source.read_bytes()
    assert "key: 1.2 MiB over shm from node-1, vouched for by its checksum" in got.stderr
    assert got.stdout == ""


def test_standard_input_and_output_are_a_pipe(address: str, pool: Pool) -> None:
    data = bytes(range(256)) * 100
    command = [sys.executable, "-m", "pykvpool"]
    put = subprocess.run(
        [*command, "put", "piped", "-", "--master", address], input=data, capture_output=True, check=True
    )
    assert put.stdout == b""
    got = subprocess.run([*command, "get", "piped", "--master", address], capture_output=True, check=True)
    assert got.stdout == data


@pytest.mark.parametrize("fabric", ["shm", "tcp"])
def test_the_fabric_can_be_chosen(pool: Pool, tmp_path: Path, fabric: str) -> None:
    (tmp_path / "in").write_bytes(b"x" * 1000)
    assert f"over {fabric}" in pool.run("put", "key", str(tmp_path / "in"), "--fabric", fabric).stderr
    assert f"over {fabric}" in pool.run("get", "key", "-o", str(tmp_path / "out"), "--fabric", fabric).stderr


def test_putting_again_moves_nothing_and_another_size_is_a_conflict(pool: Pool, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    (tmp_path / "b").write_bytes(b"123456")
    pool.run("put", "key", str(tmp_path / "a"))
    assert "was there already" in pool.run("put", "key", str(tmp_path / "a")).stderr
    conflict = pool.run("put", "key", str(tmp_path / "b"), code=1)
    assert conflict.stderr.startswith("pykvpool: KeyConflict: ")
    assert "pykvpool rm KEY" in conflict.stderr


def test_a_missing_key_says_where_to_look(pool: Pool, tmp_path: Path) -> None:
    missing = pool.run("get", "nothing", "-o", str(tmp_path / "out"), code=1)
    assert missing.stderr.startswith("pykvpool: KeyNotFound: nothing: no readable object under this key\n")
    assert "pykvpool ls" in missing.stderr
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_stored_is_refused_with_the_reason(pool: Pool, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert "is empty" in pool.run("put", "key", str(tmp_path / "empty"), code=1).stderr
    assert "No such file" in pool.run("put", "key", str(tmp_path / "none"), code=1).stderr
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate((NODE_MIB + 1) << 20)
    refused = pool.run("put", "key", str(large), code=1).stderr
    assert refused.startswith("pykvpool: ")
    assert str((NODE_MIB + 1) << 20) in refused.replace(",", "")


def test_keys_are_listed_by_pattern_and_namespace(pool: Pool, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 2048)
    for key in ("model/a", "model/b", "other", "0x00ff"):
        pool.run("put", key, str(tmp_path / "f"))
    pool.run("put", "elsewhere", str(tmp_path / "f"), "--namespace", "second")
    assert [line.split()[-1] for line in pool.run("ls", "model/*").stdout.splitlines()] == ["model/a", "model/b"]
    assert {line.split()[-1] for line in pool.run("ls").stdout.splitlines()} == {
        "model/a",
        "model/b",
        "other",
        "0x00ff",
    }
    assert "2 KiB" in pool.run("ls", "other").stdout
    assert "second  elsewhere" in pool.run("ls", "--all-namespaces").stdout
    lines = [json.loads(line) for line in pool.run("ls", "o*", "--json").stdout.splitlines()]
    assert lines == [{"namespace": "default", "key": "other", "size_bytes": 2048}]


def test_stat_tells_what_the_master_knows(pool: Pool, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 2048)
    pool.run("put", "key", str(tmp_path / "f"), "--pin", "soft")
    text = pool.run("stat", "key").stdout
    for part in ("2 KiB (2,048 bytes)", "xxh3-64", "soft", "node-1"):
        assert part in text, part
    found = pool.run("stat", "key", "none", "--json", code=1)
    assert json.loads(found.stdout)["size_bytes"] == 2048
    assert "pykvpool: KeyNotFound: none: " in found.stderr


def test_removing_by_key_by_pattern_and_all(pool: Pool, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x")
    for key in ("a1", "a2", "b1", "b2", "c"):
        pool.run("put", key, str(tmp_path / "f"))
    assert pool.run("rm", "a1").stderr == "removed 1 object\n"
    missing = pool.run("rm", "a1", "b1", code=1)
    assert "KeyNotFound: a1" in missing.stderr
    assert "removed 1" in pool.run("rm", "--pattern", "b*").stderr
    assert {line.split()[-1] for line in pool.run("ls").stdout.splitlines()} == {"a2", "c"}
    assert "Aborted" in pool.run("rm", "--all", stdin="n\n", code=1).stderr
    assert "removed 2" in pool.run("rm", "--all", stdin="y\n").stderr
    assert pool.run("ls").stdout == ""


@pytest.mark.parametrize("wrong", [[], ["key", "--all"], ["--all", "--pattern", "x"], ["key", "--all-namespaces"]])
def test_rm_wants_one_thing_to_remove(wrong: list[str]) -> None:
    assert CliRunner().invoke(cli, ["rm", *wrong]).exit_code == 2


def test_status_shows_the_pool(pool: Pool) -> None:
    text = pool.run("status").stdout
    for part in ("node-1", f"{NODE_MIB} MiB", "Sessions", "Counters"):
        assert part in text, part
    data = json.loads(pool.run("status", "--json").stdout)
    assert [segment["node"] for segment in data["segments"]] == ["node-1"]


def test_the_master_may_come_from_the_environment_or_a_file(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pool.toml").write_text(f'[pool]\nmaster = ["{address}"]\n')
    assert CliRunner().invoke(cli, ["ls", "--config", str(tmp_path / "pool.toml")]).exit_code == 0
    monkeypatch.setenv("PYKVPOOL_MASTER", address)
    assert CliRunner().invoke(cli, ["ls"]).exit_code == 0


def test_config_shows_every_value_and_where_it_is_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pool.toml").write_text('[node]\nsegment_size = "2GiB"\n')
    monkeypatch.setenv("PYKVPOOL_TOKEN", "secret word")
    arguments = ["config", "--show", "--config", str(tmp_path / "pool.toml"), "--cluster", "blue"]
    text = CliRunner().invoke(cli, arguments).output
    assert "secret word" not in text
    lines = {line.split()[0]: line for line in text.splitlines() if line.strip().startswith(("node.", "pool."))}
    assert "2147483648" in lines["node.segment_size"]
    assert "flag --cluster" in lines["pool.cluster"]
    shown = json.loads(CliRunner().invoke(cli, [*arguments, "--json", "--changed"]).output)
    assert shown == {
        "node.segment_size": {"value": "2147483648", "source": str(tmp_path / "pool.toml")},
        "pool.token": {"value": '"***"', "source": "PYKVPOOL_TOKEN"},
        "pool.cluster": {"value": '"blue"', "source": "flag --cluster"},
    }


def test_a_bad_value_names_its_flag() -> None:
    result = CliRunner().invoke(cli, ["node", "--segment-size", "huge"])
    assert result.exit_code == 1
    assert "--segment-size" in result.stderr


def test_nobody_at_the_address_says_what_to_start() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        result = CliRunner().invoke(cli, ["ls", "--master", address])
    assert result.exit_code == 1
    assert result.stderr.startswith("pykvpool: Unavailable: ")
    assert address in result.stderr
    assert "start a master (pykvpool master)" in result.stderr
    assert "Traceback" not in result.stderr


def test_version_lists_what_to_compare() -> None:
    text = CliRunner().invoke(cli, ["version"]).output
    assert text.startswith("pykvpool 0.")
    assert "Python 3." in text
    assert "msgspec" in text
