"""Checks of what is installed: Python, packages, bindings, the clock."""

from __future__ import annotations

import time
from collections.abc import Iterator

from pykvpool.cli.doctor.finding import Check, Finding
from pykvpool.cli.doctor.view import HostView
from pykvpool.cli.doctor.wants import Wants
from pykvpool.errors import PoolError
from pykvpool.fabric.verbs.load import INSTALL, UNKNOWN_VERSION

#: What the pool cannot do without, by the names of pip.
REQUIRED = ("msgspec", "msgpack", "xxhash", "aiofiles", "click", "rich", "prometheus-client", "starlette", "uvicorn")
OLDEST_PYTHON = (3, 11)


def python(view: HostView, wants: Wants) -> Iterator[Finding]:
    check = Check("python")
    version = ".".join(map(str, view.python))
    if view.python[:2] < OLDEST_PYTHON:
        yield check.bad(f"Python {version} is too old", "install Python 3.11 or newer, and make a new environment")
    else:
        yield check.ok(f"Python {version}")


def packages(view: HostView, wants: Wants) -> Iterator[Finding]:
    check = Check("packages")
    missing = [package for package in REQUIRED if view.version(package) is None]
    if missing:
        yield check.bad(f"not installed: {', '.join(missing)}", f"pip install {' '.join(missing)}")
    else:
        yield check.ok("all required packages are installed")


def uvloop(view: HostView, wants: Wants) -> Iterator[Finding]:
    check = Check("uvloop")
    version = view.version("uvloop")
    if version is None:
        yield check.ok(
            "uvloop is not installed: asyncio's own loop is used", "pip install '.[fast]' in a clone of pykvpool"
        )
    else:
        yield check.ok(f"uvloop {version}")


def clock(view: HostView, wants: Wants) -> Iterator[Finding]:
    """Leases are counted on a clock that runs through suspend."""
    check = Check("clock")
    number = getattr(time, "CLOCK_BOOTTIME", None)
    try:
        if number is None:
            raise OSError("this system has none")
        boot, monotonic = view.clock(number), view.clock(time.CLOCK_MONOTONIC)
    except OSError as error:
        yield check.bad(f"CLOCK_BOOTTIME cannot be read ({error}): leases could outlive a suspend", "use Linux")
        return
    # A little less is the time between the two readings.
    if boot < monotonic - 1:
        yield check.warn(
            "CLOCK_BOOTTIME is behind CLOCK_MONOTONIC: a time namespace sets it back",
            "start the process without a time namespace (unshare -T)",
        )
    else:
        asleep = f"; this host was suspended for {boot - monotonic:.0f} s" if boot > monotonic + 60 else ""
        yield check.ok(f"CLOCK_BOOTTIME runs{asleep}")


def verbs_binding(view: HostView, wants: Wants) -> Iterator[Finding]:
    check = Check("rdma.binding")
    try:
        verbs = view.verbs()
    except PoolError as error:
        why = error.message.rpartition(INSTALL)[2].strip(" ()")
        yield check.missing(f"no verbs binding can be loaded: {why}", INSTALL, wanted=wants.rdma)
        return
    version = "(which does not tell its version)" if verbs.version == UNKNOWN_VERSION else verbs.version
    yield check.ok(f"verbs binding: {verbs.name} {version}")
