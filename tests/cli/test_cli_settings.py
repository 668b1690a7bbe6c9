"""From configuration to running parts: every number arrives, directories are safe."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from pykvpool.cli import servers
from pykvpool.cli.main import COMMANDS, cli
from pykvpool.cli.options import CLIENT_KEYS, configured, section, size_option
from pykvpool.config import Config, load
from pykvpool.config.schema import KEYS
from pykvpool.core.config import CoreConfig
from pykvpool.errors import ConfigError
from pykvpool.node import socket_files


def test_every_number_of_the_master_comes_from_its_configuration() -> None:
    assert servers.core_config(load(None, {}, {}).master) == CoreConfig()
    changed = load(None, {}, {"master.lease_ms": "7s", "master.policy": "fifo"}).master
    assert servers.core_config(changed) == dataclasses.replace(CoreConfig(), lease_ms=7_000, policy="fifo")


def test_flags_become_configuration_and_several_are_a_list(tmp_path: Path) -> None:
    seen: list[Config] = []

    @click.command()
    @click.argument("what")
    @configured(*CLIENT_KEYS)
    def probe(config: Config, what: str) -> None:
        seen.append(config)

    (tmp_path / "pool.toml").write_text('[client]\nnamespace = "file"\ntimeout_s = 5\n')
    arguments = ["x", "--master", "tcp://a:1", "--master", "tcp://b:2", "--timeout-s", "2s", "--fabric", "tcp"]
    result = CliRunner().invoke(probe, [*arguments, "--config", str(tmp_path / "pool.toml")])
    assert result.exit_code == 0, result.output
    [config] = seen
    assert config.pool.master == ("tcp://a:1", "tcp://b:2")
    assert (config.client.namespace, config.client.timeout_s, config.client.fabrics) == ("file", 2.0, ("tcp",))


def test_every_key_of_a_section_has_a_flag_that_names_its_variable() -> None:
    @click.command()
    @configured(*section("master"))
    def probe(config: Config) -> None:
        pass

    text = " ".join(CliRunner().invoke(probe, ["--help"], terminal_width=200).output.split())
    for path in section("master"):
        assert f"PYKVPOOL_MASTER_{path.removeprefix('master.').upper()}" in text.replace("- ", "-")


def test_a_flag_in_the_reference_is_one_that_a_command_takes() -> None:
    taken = {option for name in COMMANDS for parameter in _command(name).params for option in parameter.opts}
    assert {key.flag for key in KEYS.values() if key.flag} <= taken
    assert KEYS["client.role"].flag == KEYS["client.name"].flag == ""


def _command(name: str) -> click.Command:
    found = cli.get_command(click.Context(cli), name)
    assert found is not None
    return found


def test_a_warning_of_the_configuration_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYKVPOOL_SOMETHING", "1")

    @click.command()
    @configured()
    def probe(config: Config) -> None:
        pass

    assert "PYKVPOOL_SOMETHING" in CliRunner().invoke(probe).stderr


@pytest.mark.parametrize(("given", "size_bytes"), [([], 2 << 20), (["--size", "64KiB"], 65_536), (["--size", "7"], 7)])
def test_sizes_have_units(given: list[str], size_bytes: int) -> None:
    @click.command()
    @size_option("--size", "2MiB", "A size.")
    def probe(size: int) -> None:
        click.echo(size)

    assert CliRunner().invoke(probe, given).output == f"{size_bytes}\n"
    assert CliRunner().invoke(probe, ["--size", "many"]).exit_code == 2


def test_the_socket_directory_belongs_to_this_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = Path(socket_files.shm_path("node/1", ""))
    assert path == tmp_path / f"pykvpool-{os.getuid()}" / f"node_1-{os.getpid()}.sock"
    assert path.parent.stat().st_mode & 0o777 == 0o700
    path.parent.chmod(0o777)
    with pytest.raises(ConfigError, match="not a directory of this user alone"):
        socket_files.shm_path("node", "")
    path.parent.rmdir()
    path.parent.symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="--shm-dir"):
        socket_files.shm_path("node", "")


def test_the_runtime_directory_and_a_named_one_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert Path(socket_files.shm_path("n", "")).parent == tmp_path / "pykvpool"
    assert Path(socket_files.shm_path("n", str(tmp_path / "here"))).parent == tmp_path / "here"


def test_a_runtime_directory_of_another_user_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`su` keeps the variable, and the directory that it names lets nobody else in."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "theirs"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "theirs").mkdir()
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    assert socket_files.shm_dirs()[0] == tmp_path / f"pykvpool-{os.getuid()}"


def test_a_socket_directory_that_cannot_be_made_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(ConfigError, match=r"cannot make .*gone.*--shm-dir"):
        socket_files.default_shm_dir()


def test_help_says_what_is_in_force_where_nothing_is_said() -> None:
    shown = " ".join(CliRunner().invoke(cli, ["node", "--help"]).output.split())
    assert "[env: PYKVPOOL_NODE_SEGMENT_SIZE; default: 1GiB]" in shown
    assert "default: tcp://127.0.0.1:7000]" in shown
    assert "[env: PYKVPOOL_TOKEN]" in shown, "an empty value is explained by the meaning"
