"""``pykvpool mooncake-shim -- python program.py``: run a program, unchanged, with Mooncake's store replaced.

The program and everything it starts find our `mooncake` package first on PYTHONPATH. The process becomes the program,
so signals and the exit code are its own.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import click

import pykvpool
import pykvpool_connector
from pykvpool.errors import InvalidArgument

SHIM = Path(__file__).parent / "shim"


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True)
def mooncake_shim(command: tuple[str, ...]) -> None:
    """Run COMMAND with `mooncake.store` replaced by the pool's.

    The program is not changed: pykvpool mooncake-shim -- python program.py
    """
    environment = shim_environment(os.environ)
    program = shutil.which(command[0], path=environment["PATH"])
    if program is None:
        raise InvalidArgument(f"there is no program {command[0]!r}")
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(program, list(command), environment)


def shim_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ`, in which Python finds our `mooncake`, and pykvpool too, and ``python`` is the one we run on."""
    roots = [str(SHIM), *(str(Path(str(package.__file__)).parents[1]) for package in (pykvpool, pykvpool_connector))]
    paths = [*roots, *filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))]
    programs = [str(Path(sys.executable).parent), environ.get("PATH", os.defpath)]
    return {
        **environ,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
        "PATH": os.pathsep.join(programs),
    }
