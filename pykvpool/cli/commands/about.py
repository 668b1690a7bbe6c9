"""`config` and `version`: what is in force here, without asking anybody."""

from __future__ import annotations

import platform
from importlib import metadata

import click
import msgspec
from rich import box
from rich.table import Table

from pykvpool import __version__
from pykvpool.cli import screen
from pykvpool.cli.options import POOL_KEYS, configured
from pykvpool.config import Config

#: Packages whose versions matter when something does not work: those we need, then the optional ones.
PACKAGES = ("msgspec", "msgpack", "xxhash", "aiofiles", "click", "rich", "prometheus-client", "starlette", "uvicorn")
OPTIONAL_PACKAGES = ("ibverbs", "cuda-python", "torch", "uvloop", "vllm")


@click.command()
@click.option("--show", is_flag=True, help="Show every value and its source (the default; for scripts, say so).")
@click.option("--changed", is_flag=True, help="Only values that are not the default.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@configured(*POOL_KEYS)
def config(config: Config, show: bool, changed: bool, as_json: bool) -> None:
    """Show the configuration in force: file, environment and flags together, and which of them each value is from.

    Tokens are masked.
    """
    shown = [line for line in config.show() if not changed or line.source != "default"]
    if as_json:
        data = {line.path: {"value": line.text, "source": line.source} for line in shown}
        click.echo(msgspec.json.format(msgspec.json.encode(data), indent=2))
        return
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("key", "value", "source"):
        table.add_column(heading, overflow="fold", no_wrap=heading == "key")
    for line in shown:
        table.add_row(line.path, line.text, line.source, style="" if line.source != "default" else "dim")
    screen.console().print(table)


@click.command()
def version() -> None:
    """Show the versions of pykvpool, Python and the packages it uses: the first thing to compare at both ends."""
    click.echo(f"pykvpool {__version__}")
    click.echo(f"Python {platform.python_version()} on {platform.system()} {platform.release()} {platform.machine()}")
    for package in (*PACKAGES, *OPTIONAL_PACKAGES):
        found = _version_of(package)
        if found or package in PACKAGES:
            click.echo(f"{package} {found or 'missing: pip install ' + package}")


def _version_of(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
