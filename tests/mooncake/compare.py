"""Run the programs on Mooncake and on the pool, print how they differ, and record it: what `make test-mooncake` does.

Needs Mooncake's wheel beside pykvpool. Exit code 1 where a difference has no reason in `recorded`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.cli.live import server
from tests.mooncake import recorded
from tests.mooncake.recorded import Observation
from tests.mooncake.running import NAMES, PROGRAMS, Seen, ours, run_program

#: Mooncake logs a lot; of it only fatal things matter here.
QUIET = {"GLOG_minloglevel": "3", "MC_LOG_LEVEL": "ERROR"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def mooncake_master() -> Iterator[str]:
    """A master of Mooncake's; yields its ``host:port`` once it accepts."""
    port, metrics = free_port(), free_port()
    command = Path(sys.executable).parent / "mooncake_master"
    with subprocess.Popen(
        [str(command), f"--rpc_port={port}", f"--metrics_port={metrics}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            while process.poll() is None:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
                    break
            yield f"127.0.0.1:{port}"
        finally:
            process.kill()


def on_mooncake(name: str, master: str, *arguments: str) -> Seen:
    return run_program([sys.executable], name, master, *arguments, extra=QUIET)


def crash_cases() -> list[str]:
    listed = subprocess.run(
        [sys.executable, str(PROGRAMS / "crash.py"), "--list"],
        env={"PROGRAM_MASTER": "-", **QUIET},
        capture_output=True,
        text=True,
        check=True,
    )
    return listed.stdout.split("\n")[:-1]


def watch_mooncake(names: tuple[str, ...]) -> dict[str, Seen]:
    """A master of its own for each program: a node that was killed under one would disturb the next for seconds."""
    found = {}
    for name in names:
        print(f"  Mooncake: {name}", flush=True)
        with mooncake_master() as master:
            found[name] = on_mooncake(name, master)
    print("  Mooncake: crash, a process for each case (minutes)", flush=True)
    found["crash"] = watch_crashes(crash_cases())
    return found


def watch_crashes(cases: list[str]) -> Seen:
    """Every case by itself, with a new master after each that died."""
    crash, deaths = Seen(), 0
    while cases:
        with mooncake_master() as master:
            while cases:
                case = cases.pop(0)
                seen = on_mooncake("crash", master, case)
                crash.values.update(seen.values or {case: seen.died})
                if seen.died:
                    deaths += 1
                    break
    crash.values["the process is alive"] = repr(not deaths)
    return crash


def watch_pool(names: tuple[str, ...]) -> dict[str, Seen]:
    with server("master", "--listen", "tcp://127.0.0.1:0") as (_, announced):
        addresses = announced["addresses"]
        assert isinstance(addresses, list)
        master = str(addresses[0]).removeprefix("tcp://")
        found = {}
        for name in (*names, "crash"):
            print(f"  pykvpool: {name}", flush=True)
            found[name] = ours(name, master)
    return found


def side_by_side(mooncake: dict[str, Seen], pool: dict[str, Seen]) -> list[Observation]:
    """What the pool saw, with what Mooncake saw; after Mooncake died, how it did."""
    return [
        Observation(program, name, mooncake[program].values.get(name, mooncake[program].died or "not seen"), value)
        for program, seen in pool.items()
        for name, value in seen.values.items()
    ]


def merged(seen: list[Observation], *, whole: bool) -> list[Observation]:
    """What was seen now in the place of what was recorded. Without torch (not `whole`) what needs it stays recorded."""
    before = recorded.load() if recorded.FILE.exists() else []
    now = {(each.program, each.name): each for each in seen}
    kept = [] if whole else [each for each in before if (each.program, each.name) not in now]
    if not whole:
        print(f"torch is not installed: {len(kept)} observations that need it stay as they were recorded")
    places = {(each.program, each.name): place for place, each in enumerate(before)}
    both = [*seen, *kept]
    return sorted(both, key=lambda each: places.get((each.program, each.name), len(places)))


def main() -> int:
    if importlib.util.find_spec("mooncake") is None:
        print("Mooncake's wheel (mooncake-transfer-engine-non-cuda) is not installed: nothing to compare with")
        return 0
    try:
        importlib.import_module("mooncake.store")
    except ImportError as error:
        print(f"Mooncake's wheel cannot be loaded here ({error}); on Debian: apt-get install libibverbs1")
        return 0
    names = tuple(name for name in NAMES if name != "tensors" or importlib.util.find_spec("torch"))
    pool = watch_pool(names)
    died = {name: seen for name, seen in pool.items() if seen.died}
    for name, seen in died.items():
        print(f"{name} on pykvpool: {seen.died}\n{seen.stderr}")
    mooncake = watch_mooncake(names)
    observations = merged(side_by_side(mooncake, pool), whole=importlib.util.find_spec("torch") is not None)
    recorded.save(observations)
    recorded.write_page(observations)
    print(recorded.table(observations))
    unmeant = [each for each in observations if each.differs and not recorded.reason_for(each)]
    for each in unmeant:
        print(f"no reason is known for: {each.program}: {each.name}: {each.mooncake} and {each.pool}")
    alike = sum(not each.differs for each in observations)
    print(
        f"{len(observations)} observations, {alike} alike, {len(observations) - alike} differ, {len(unmeant)} unmeant"
    )
    return 1 if died or unmeant else 0


if __name__ == "__main__":
    sys.exit(main())
