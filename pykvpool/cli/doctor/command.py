"""The command: load what is asked for, look, print. A configuration that is wrong is a finding like others."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import click
import msgspec
from rich.text import Text

from pykvpool.cli import screen
from pykvpool.cli.boundary import EXIT_ERROR, next_step
from pykvpool.cli.doctor.checks import Examined, examine, exit_code
from pykvpool.cli.doctor.finding import Check, Finding, Status
from pykvpool.cli.doctor.view import HostView
from pykvpool.cli.doctor.wants import Wants, wants_of
from pykvpool.cli.options import debug_option
from pykvpool.config import load
from pykvpool.errors import ConfigError

#: What may be asked for by flag, whatever the configuration says.
FABRICS = ("shm", "tcp", "rdma")
STYLES = {Status.OK: "green", Status.ABSENT: "dim", Status.WARN: "yellow", Status.BAD: "bold red"}


@dataclass(frozen=True, slots=True)
class Asked:
    """What is wanted, and what is to be said of the configuration that wants it."""

    wants: Wants
    findings: tuple[Finding, ...]


@click.command()
@click.option(
    "--config",
    "config_file",
    metavar="FILE",
    help="Look whether what this configuration asks for can work.  [env: PYKVPOOL_CONFIG]",
)
@click.option(
    "--fabric",
    "fabrics",
    multiple=True,
    type=click.Choice(FABRICS),
    help="Ask for this fabric too; repeat it for more.",
)
@click.option("--gpu", is_flag=True, help="Ask for GPU memory.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@debug_option
def doctor(config_file: str | None, fabrics: Sequence[str], gpu: bool, as_json: bool) -> None:
    """Look at this host and say what will work: memory, ports, RDMA, GPUs, and what to type where something will not.

    Nothing is changed. The exit code is 1 where something that the configuration (or a flag) asks for cannot work.
    """
    asked = asked_for(config_file, os.environ, fabrics, gpu)
    examined = examine(HostView(), asked.wants)
    if asked.findings:
        examined.insert(0, Examined("configuration", asked.findings))
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(report(examined)), indent=2))
    else:
        show(examined)
    if exit_code(examined):
        raise click.exceptions.Exit(EXIT_ERROR)


def asked_for(config_file: str | None, environment: Mapping[str, str], fabrics: Sequence[str], gpu: bool) -> Asked:
    """From the configuration; where that is wrong, from the flags alone, with a finding that says so."""
    check = Check("config")
    try:
        config = load(config_file, environment, {})
    except ConfigError as error:
        return Asked(
            Wants(fabrics=frozenset({*Wants().fabrics, *fabrics}), gpu=gpu),
            (check.bad(error.message, next_step(error)),),
        )
    warnings = tuple(check.warn(warning, "correct or remove it") for warning in config.warnings)
    return Asked(wants_of(config, fabrics, gpu), warnings)


def report(examined: Sequence[Examined]) -> dict[str, object]:
    """The same as data."""
    return {
        "works": not exit_code(examined),
        "findings": [
            {
                "section": section.title,
                "check": finding.check,
                "status": str(finding.status),
                "message": finding.message,
                "fix": finding.fix,
            }
            for section in examined
            for finding in section.findings
        ],
    }


def show(examined: Sequence[Examined]) -> None:
    """For people: a line for each finding, and below it what to type."""
    console = screen.console()
    for section in examined:
        if not section.findings:
            continue
        console.print(Text(section.title, style="bold"))
        for finding in section.findings:
            line = Text("  ")
            line.append(f"{finding.status:<5}", style=STYLES[finding.status])
            line.append(_printable(finding.message))
            console.print(line, soft_wrap=True)
            if finding.fix:
                word = "tip" if finding.status in (Status.OK, Status.ABSENT) else "fix"
                console.print(Text(f"         {word}: {_printable(finding.fix)}", style="dim"), soft_wrap=True)
    console.print(Text(_verdict([finding for section in examined for finding in section.findings])), soft_wrap=True)


def _printable(text: str) -> str:
    """Without what would move a terminal's cursor: names of devices and of other people's processes are in there."""
    return "".join(each if each.isprintable() else "?" for each in text)


def _verdict(findings: Sequence[Finding]) -> str:
    bad = sum(finding.status is Status.BAD for finding in findings)
    warnings = sum(finding.status is Status.WARN for finding in findings)
    if bad:
        return f"{bad} thing{'s' * (bad > 1)} that {'are' if bad > 1 else 'is'} asked for cannot work"
    if warnings:
        return f"all that is asked for can work, with {warnings} warning{'s' * (warnings > 1)}"
    return "all that is asked for can work"
