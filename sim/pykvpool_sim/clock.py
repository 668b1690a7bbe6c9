"""What time it is, on virtual time that one loop owns and on each host's own clocks.

The world's time is a whole number of nanoseconds that only the loop moves. A host sees it through a `HostClock`: it
drifts by some parts in a million, it stands still while the host is suspended, and it started at a number of its own,
so that nobody can compare two hosts' readings by mistake and get away with it. Two readings are kept apart, as Linux
does: *monotonic* (what timers and `loop.time()` go by; stops in suspend) and *boot* time (`now_ms`; goes on).
"""

from __future__ import annotations

from collections.abc import Callable

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000
#: Drift is in parts of this.
_MILLION = 1_000_000


def seconds_to_ns(seconds: float) -> int:
    """The nearest whole nanosecond: sums of floats like 0.1 + 0.2 come out as people mean them."""
    return round(seconds * NS_PER_S)


class HostClock:
    """The clocks of one host; implements `pykvpool.runtime.Clock`.

    Args:
        world_ns: reads the world's time.
        boot_ms: what `now_ms` says at world time 0.
        drift_ppm: how much faster than the world's both clocks run, in parts per million (negative: slower).
    """

    def __init__(self, world_ns: Callable[[], int], *, boot_ms: int = 0, drift_ppm: int = 0) -> None:
        self._world_ns = world_ns
        self._boot_ns = boot_ms * NS_PER_MS
        self._drift_ppm = drift_ppm
        #: World time spent in suspends that are over.
        self._slept_ns = 0
        #: World time at which the present suspend began.
        self._asleep_since_ns: int | None = None

    def now_ms(self) -> int:
        """Boot time: goes on through suspend."""
        return (self._boot_ns + self._drifted(self._world_ns())) // NS_PER_MS

    def jump(self, forward_ms: int) -> None:
        """Boot time leaps ahead, as after the migration of a virtual machine. It never goes back, as Linux promises."""
        if forward_ms < 0:
            raise ValueError(f"boot time never goes back (asked for {forward_ms} ms)")
        self._boot_ns += forward_ms * NS_PER_MS

    def monotonic_ns(self) -> int:
        """What timers go by: without the time spent suspended."""
        awake_until = self._world_ns() if self._asleep_since_ns is None else self._asleep_since_ns
        return self._drifted(awake_until - self._slept_ns)

    def world_ns_at(self, monotonic_ns: int) -> int:
        """The first world time at which `monotonic_ns` is reached, if the host is never suspended again."""
        world_ns = monotonic_ns * _MILLION // (_MILLION + self._drift_ppm)
        while self._drifted(world_ns) < monotonic_ns:  # at most a few: the division rounds down
            world_ns += 1
        return world_ns + self._slept_ns

    def suspend(self) -> None:
        """The lid closes: monotonic time stops."""
        self._asleep_since_ns = self._world_ns()

    def wake(self) -> int:
        """The lid opens. Returns how long it was closed, in nanoseconds of world time."""
        if self._asleep_since_ns is None:
            return 0
        asleep_ns = self._world_ns() - self._asleep_since_ns
        self._slept_ns += asleep_ns
        self._asleep_since_ns = None
        return asleep_ns

    def _drifted(self, world_ns: int) -> int:
        return world_ns + world_ns * self._drift_ppm // _MILLION
