"""Runs the programs, on the pool or on Mooncake, and collects what they saw.

A program that dies leaves what it saw until then, and how it died. For the crash cases, which Mooncake may not survive,
there is a process for each.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"
ROOT = Path(__file__).parents[2]
#: In the order of the table. `tensors` needs torch.
NAMES = ("basics", "pointers", "sessions", "configs", "setups", "two_nodes", "threads", "awaiting", "tensors")
#: A program that takes longer hangs.
TIMEOUT_S = 120
#: Runs what follows with our store in Mooncake's place: the command ``pykvpool mooncake-shim``, installed or not.
SHIM = (sys.executable, "-c", "from pykvpool_connector.mooncake.command import mooncake_shim as s; s()", "--")


@dataclass
class Seen:
    """What one program saw: name -> value as text, in order."""

    values: dict[str, str] = field(default_factory=dict)
    #: "" where it ended by itself with success.
    died: str = ""
    stderr: str = ""


def run_program(command: Sequence[str], name: str, master: str, *arguments: str, extra: Mapping[str, str] = {}) -> Seen:
    """Run one program: `command` and then its path."""
    environment = {**os.environ, "PROGRAM_MASTER": master, **extra}
    seen = Seen()
    try:
        done = subprocess.run(
            [*command, str(PROGRAMS / f"{name}.py"), *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as late:
        out = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
        seen.died = f"hangs for {TIMEOUT_S} s"
    else:
        out, seen.stderr = done.stdout, done.stderr
        if done.returncode:
            seen.died = how_it_died(done.returncode)
    for line in out.splitlines():
        if line.startswith('["'):
            observed, value = json.loads(line)
            seen.values[observed] = value
    return seen


def how_it_died(code: int) -> str:
    """A return code in words."""
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def ours(name: str, master: str, *arguments: str) -> Seen:
    """Run a program on the pool."""
    paths = [str(ROOT), str(ROOT / "connector"), os.environ.get("PYTHONPATH", "")]
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    return run_program([*SHIM, "python"], name, master, *arguments, extra=environment)
