"""The command table, and where errors end."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from pykvpool import __version__, errors
from pykvpool.cli import main as main_module
from pykvpool.cli.boundary import EXIT_ERROR, EXIT_INTERRUPTED, NEXT, UNREADABLE, Terminated, next_step
from pykvpool.cli.main import COMMANDS, PoolGroup, cli, main


def failing_group(error: BaseException) -> PoolGroup:
    """The real group with one more command, which raises."""

    class Group(PoolGroup):
        def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
            @click.command("fail")
            def fail() -> None:
                raise error

            return fail

    return Group(name="pykvpool", params=cli.params, callback=cli.callback)


def test_help_names_every_command_without_importing_any() -> None:
    code = (
        "import sys; from pykvpool.cli.main import main; main(['--help']);"
        "print('LOADED', [m for m in ('asyncio', 'rich', 'msgspec', 'pykvpool.client') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "LOADED []" in done.stdout
    for name, lazy in COMMANDS.items():
        assert name in done.stdout
        assert lazy.help in " ".join(done.stdout.split())


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str) -> None:
    result = CliRunner().invoke(cli, [name, "--help"])
    assert result.exit_code == 0
    assert result.output.startswith(f"Usage: pykvpool {name}")


def test_python_dash_m_is_the_same_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pykvpool", "--version"],
        capture_output=True,
        text=True,
        check=True,
        env=dict(os.environ),
    )
    assert done.stdout == f"pykvpool, version {__version__}\n"


def test_an_unknown_command_is_wrong_usage() -> None:
    result = CliRunner().invoke(cli, ["gte"])
    assert result.exit_code == 2
    assert "No such command 'gte'" in result.output


def test_main_returns_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert main(["gte"]) == 2
    assert "Try 'pykvpool --help'" in capsys.readouterr().err


def test_an_error_of_the_pool_is_one_line_and_what_to_do_next() -> None:
    result = CliRunner().invoke(failing_group(errors.PoolFull("no room for 3 objects")), ["fail"])
    assert result.exit_code == EXIT_ERROR
    assert result.stderr.splitlines() == ["pykvpool: PoolFull: no room for 3 objects", f"  {NEXT[errors.PoolFull]}"]
    assert result.stdout == ""


def test_a_missing_file_is_named() -> None:
    result = CliRunner().invoke(failing_group(FileNotFoundError(2, "No such file or directory", "a/b")), ["fail"])
    assert result.exit_code == EXIT_ERROR
    assert result.stderr == "pykvpool: a/b: No such file or directory\n"


def test_a_bug_is_one_line_too_and_debug_shows_where() -> None:
    group = failing_group(ZeroDivisionError("division by zero"))
    plain = CliRunner().invoke(group, ["fail"])
    assert plain.exit_code == EXIT_ERROR
    assert "pykvpool: ZeroDivisionError: division by zero" in plain.stderr
    assert "--debug" in plain.stderr
    assert "Traceback" not in plain.stderr
    assert "Traceback" in CliRunner().invoke(group, ["--debug", "fail"]).stderr


def test_interrupted_and_terminated_have_the_usual_exit_codes() -> None:
    interrupted = CliRunner().invoke(failing_group(KeyboardInterrupt()), ["fail"])
    assert (interrupted.exit_code, interrupted.stderr) == (EXIT_INTERRUPTED, "pykvpool: interrupted\n")
    terminated = CliRunner().invoke(failing_group(Terminated()), ["fail"])
    assert (terminated.exit_code, terminated.stderr) == (143, "")


def test_every_kind_of_error_says_what_to_do_next_or_says_it_in_its_message() -> None:
    says_it_itself = {errors.PoolError, errors.InvalidArgument, errors.NotSupported, errors.NotOwner, errors.StalePut}
    kinds = set(errors.KINDS.values()) | {errors.PoolError}
    assert {kind for kind in kinds if not next_step(kind("x"))} == says_it_itself
    assert next_step(errors.StaleView("x")) == NEXT[errors.LeaseExpired]


def plug_in(monkeypatch: pytest.MonkeyPatch, **points: str) -> None:
    found = [EntryPoint(name, value, main_module.ENTRY_POINT_GROUP) for name, value in points.items()]
    monkeypatch.setattr(main_module, "entry_points", lambda group: found)


hello = click.Command("hello", callback=lambda: click.echo("hello from a plug-in"))


def test_a_plug_in_adds_a_command_and_cannot_replace_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    plug_in(monkeypatch, hello=f"{__name__}:hello", version=f"{__name__}:hello")
    assert CliRunner().invoke(cli, ["hello"]).output == "hello from a plug-in\n"
    assert "hello" not in CliRunner().invoke(cli, ["version"]).output
    listed = CliRunner().invoke(cli, ["--help"]).output
    assert "Further commands" in listed
    assert "hello" in listed


def test_a_broken_plug_in_costs_only_its_own_command(monkeypatch: pytest.MonkeyPatch) -> None:
    plug_in(monkeypatch, broken="no_such_module:command", wrong="os:sep", hello=f"{__name__}:hello")
    assert CliRunner().invoke(cli, ["--help"]).exit_code == 0
    assert CliRunner().invoke(cli, ["hello"]).exit_code == 0
    broken = CliRunner().invoke(cli, ["broken"])
    assert broken.exit_code == EXIT_ERROR
    assert "the command 'broken' of no_such_module:command does not load (ModuleNotFoundError" in broken.stderr
    wrong = CliRunner().invoke(cli, ["wrong"])
    assert wrong.exit_code == EXIT_ERROR
    assert "is a str, not a click command" in wrong.stderr


def test_where_the_configuration_itself_is_wrong_the_next_step_is_not_to_read_it_again(tmp_path: Path) -> None:
    file = tmp_path / "pool.toml"
    for text in ("[pool\n", "[pol]\n", '[node]\nsegment_size = "many"\n'):
        file.write_text(text)
        told = CliRunner().invoke(cli, ["status", "--config", str(file)])
        assert told.exit_code == EXIT_ERROR
        assert str(file) in told.stderr
        assert told.stderr.splitlines()[1] == f"  {UNREADABLE}"
    assert next_step(errors.ConfigError("cannot listen there")) == NEXT[errors.ConfigError]
