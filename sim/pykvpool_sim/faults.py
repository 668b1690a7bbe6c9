"""The faults there are, one entry each. How many strike, and when, is `pykvpool_sim.plan`'s business.

A fault is a name, whether its host counts as down while it lasts, and a function that strikes and returns how it is
undone. To add one, write that function and put it into `FAULTS`: plans draw it from then on, and the trace, the plan's
text and the calm phase know it. What a fault needs to do it does through the public methods of `Host`, `Disk` and
`Network`; if they lack something, that is where it belongs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pykvpool_sim.clock import NS_PER_MS
from pykvpool_sim.draws import Draws
from pykvpool_sim.host import Host
from pykvpool_sim.platter import MediaFaults

if TYPE_CHECKING:
    from pykvpool_sim.world import World

Undo = Callable[[], None]

#: Longest leap of a host's boot time: longer than any lease or session lives.
_MAX_JUMP_MS = 120_000


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault.

    Attributes:
        name: as it appears in plans and traces.
        takes_down: nobody gets an answer from the host while it lasts: counts against `Budget.max_down`.
        everywhere: it befalls all hosts at once, whichever was drawn.
        silent: the disk lies about what it wrote; only where `Budget.media` allows it.
        strike: does it to the host; returns how to undo it.
    """

    name: str
    strike: Callable[[World, Host, Draws], Undo]
    takes_down: bool = False
    everywhere: bool = False
    silent: bool = False


def _power_cut(world: World, host: Host, draws: Draws) -> Undo:
    host.crash(power=True)
    return lambda: _restart(host)


def _kill(world: World, host: Host, draws: Draws) -> Undo:
    host.crash(power=False)
    return lambda: _restart(host)


def _pause(world: World, host: Host, draws: Draws) -> Undo:
    host.pause()
    return host.resume


def _suspend(world: World, host: Host, draws: Draws) -> Undo:
    host.suspend()
    return host.wake


def _clock_jump(world: World, host: Host, draws: Draws) -> Undo:
    host.clock.jump(draws.between(1, _MAX_JUMP_MS))
    return _nothing


def _isolate(world: World, host: Host, draws: Draws) -> Undo:
    cut = world.network.cut([host.name], _others(world, host))
    return lambda: world.network.heal(cut)


def _mute(world: World, host: Host, draws: Draws) -> Undo:
    cut = world.network.cut([host.name], _others(world, host), one_way=True)
    return lambda: world.network.heal(cut)


def _deafen(world: World, host: Host, draws: Draws) -> Undo:
    cut = world.network.cut(_others(world, host), [host.name], one_way=True)
    return lambda: world.network.heal(cut)


def _part_from_one(world: World, host: Host, draws: Draws) -> Undo:
    others = _others(world, host)
    if not others:
        return _nothing
    cut = world.network.cut([host.name], [draws.choice(others)])
    return lambda: world.network.heal(cut)


def _bad_network(world: World, host: Host, draws: Draws) -> Undo:
    """For all hosts at once; `host` is not asked."""
    before = world.network.faults
    world.network.faults = replace(
        before,
        slow_ratio=draws.choice((0.0, 0.01, 0.2)),
        slow_ns=draws.between(1, 2_000) * NS_PER_MS,
        break_ratio=draws.choice((0.0, 0.001, 0.02)),
        half_open_ratio=draws.choice((0.0, 0.5)),
    )

    def undo() -> None:
        world.network.faults = before

    return undo


def _failing_disk(world: World, host: Host, draws: Draws) -> Undo:
    before = host.disk.faults
    host.disk.faults = replace(
        before,
        read_error_ratio=draws.choice((0.0, 0.01)),
        write_error_ratio=draws.choice((0.0, 0.01, 0.1)),
        sync_error_ratio=draws.choice((0.0, 0.01, 0.1)),
        short_read_ratio=draws.choice((0.0, 0.3)),
        short_write_ratio=draws.choice((0.0, 0.3)),
        torn_sector_ratio=draws.choice((0.0, 0.5)),
    )

    def undo() -> None:
        # Its own fields only: other faults of the same disk may outlast it.
        host.disk.faults = replace(
            host.disk.faults,
            read_error_ratio=before.read_error_ratio,
            write_error_ratio=before.write_error_ratio,
            sync_error_ratio=before.sync_error_ratio,
            short_read_ratio=before.short_read_ratio,
            short_write_ratio=before.short_write_ratio,
            torn_sector_ratio=before.torn_sector_ratio,
        )

    return undo


def _lying_disk(world: World, host: Host, draws: Draws) -> Undo:
    before = host.disk.faults.media
    media = MediaFaults(
        lost_write_ratio=draws.choice((0.0, 0.01)),
        misdirected_write_ratio=draws.choice((0.0, 0.01)),
        corrupt_write_ratio=draws.choice((0.0, 0.01)),
    )
    host.disk.faults = replace(host.disk.faults, media=media)

    def undo() -> None:
        host.disk.faults = replace(host.disk.faults, media=before)

    return undo


def _full_disk(world: World, host: Host, draws: Draws) -> Undo:
    before = host.disk.faults.capacity_bytes
    host.disk.faults = replace(host.disk.faults, capacity_bytes=host.disk.used_bytes())

    def undo() -> None:
        host.disk.faults = replace(host.disk.faults, capacity_bytes=before)

    return undo


def _drop_caches(world: World, host: Host, draws: Draws) -> Undo:
    host.disk.drop_caches()
    return _nothing


def _nothing() -> None:
    """What struck in an instant has no end."""


def _restart(host: Host) -> None:
    """Where the scenario has not done so itself."""
    if not host.is_up:
        host.restart()


def _others(world: World, host: Host) -> list[str]:
    return [name for name in world.hosts if name != host.name]


FAULTS: tuple[Fault, ...] = (
    Fault("power cut", _power_cut, takes_down=True),
    Fault("kill", _kill, takes_down=True),
    Fault("pause", _pause, takes_down=True),
    Fault("suspend", _suspend, takes_down=True),
    Fault("clock jump", _clock_jump),
    Fault("isolate", _isolate, takes_down=True),
    Fault("mute", _mute, takes_down=True),
    Fault("deafen", _deafen, takes_down=True),
    Fault("part from one", _part_from_one),
    Fault("bad network", _bad_network, everywhere=True),
    Fault("failing disk", _failing_disk),
    Fault("lying disk", _lying_disk, silent=True),
    Fault("full disk", _full_disk),
    Fault("drop caches", _drop_caches),
)
