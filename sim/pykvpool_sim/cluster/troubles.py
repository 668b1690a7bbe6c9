"""What befalls a cluster: the faults of hosts and network that the simulator has, those of the data plane, and a plan.

Clients and nodes suffer anything, also several at once: the promises hold whoever dies. The master has a plan of its
own: while it has no journal, its death voids all sessions and objects, and what must hold then is that everybody finds
back, and that nothing of the life before touches the one after.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from pykvpool_sim.checkers.ledger import Holding
from pykvpool_sim.clock import NS_PER_MS
from pykvpool_sim.cluster.cluster import MASTER, Cluster
from pykvpool_sim.draws import Draws
from pykvpool_sim.fabric import FabricFaults, Landing, SimMemory
from pykvpool_sim.faults import FAULTS, Fault, Undo
from pykvpool_sim.host import Host
from pykvpool_sim.plan import Budget, FaultPlan, Strike, draw_plan
from pykvpool_sim.world import World

#: Faults of hosts and network that a cluster without disks can have.
_HOST_FAULTS = (
    "power cut",
    "kill",
    "pause",
    "suspend",
    "clock jump",
    "isolate",
    "mute",
    "deafen",
    "part from one",
    "bad network",
)
#: What befalls the master, besides "master restart". Its clock does not leap: leases rest on clocks whose rates agree
#: within a few percent, and a master that leaps ahead would end leases that readers still count on.
_MASTER_FAULTS = ("pause", "suspend", "isolate")
#: Strikes on the master, in a run that has any.
_MAX_MASTER_STRIKES = 3
MASTER_RESTART = "master restart"


#: Faults that stop a process, and are worst in the middle of a transfer; and their names when they wait for one.
_STOPS = {
    "power cut": "power cut in a transfer",
    "kill": "kill in a transfer",
    "pause": "pause in a transfer",
    "suspend": "suspend in a transfer",
}
#: All that can wait for a transfer. A clock that leaps matters to who holds a lease, which few do for long.
_AIMED = {**_STOPS, "clock jump": "clock jump in a transfer"}
#: Names of all kinds.
KINDS = (
    *_HOST_FAULTS,
    *_AIMED.values(),
    "node leaves",
    "slow fabric",
    "torn operations",
    "write errors",
    "read errors",
    "lost acknowledgements",
    "lingering writes",
    "slow fences",
    "memory decay",
    MASTER_RESTART,
)


def troubles_of(cluster: Cluster) -> tuple[Fault, ...]:
    """Every fault that this cluster can have."""
    hosts = [fault for fault in FAULTS if fault.name in _HOST_FAULTS]
    return (
        *(_noted(cluster, fault) for fault in hosts),
        *(_aimed(cluster, fault, _AIMED[fault.name]) for fault in hosts if fault.name in _AIMED),
        Fault("node leaves", _node_leaves(cluster)),
        *(_noted(cluster, Fault(name, _fabric(cluster, change), everywhere=True)) for name, change in _FABRIC.items()),
        Fault("memory decay", _memory_decay(cluster), silent=True),
        _noted(cluster, Fault(MASTER_RESTART, _master_restart, takes_down=True)),
    )


def stops(kind: str) -> bool:
    """A fault of this kind stops the process that it strikes, for a while or for good."""
    return kind in _STOPS or kind in _STOPS.values()


def draw_troubles(draws: Draws, cluster: Cluster, only: Sequence[str] = ()) -> FaultPlan:
    """A plan for one cluster. `only`: of these kinds alone."""
    shape = cluster.shape
    kinds = [fault for fault in troubles_of(cluster) if not only or fault.name in only]
    hosts = [*shape.nodes, *(client.name for client in shape.clients)]
    budget = Budget(
        max_strikes=draws.between(4, 24),
        max_down=draws.between(1, 3),
        media=shape.decay,
        chaos_ms=shape.chaos_ms,
        calm_ms=0,
        max_lasts_ms=draws.choice((2_000, 8_000, 20_000)),
    )
    strikes: list[Strike] = []
    common = [fault for fault in kinds if fault.name != MASTER_RESTART and (shape.decay or not fault.silent)]
    if common:
        strikes += draw_plan(draws, hosts, budget, common).strikes
    of_master = [fault for fault in kinds if fault.name in (*_MASTER_FAULTS, MASTER_RESTART)]
    if of_master and (draws.chance(0.3) or not common):
        limits = replace(budget, max_strikes=_MAX_MASTER_STRIKES, max_down=1)
        strikes += draw_plan(draws, [MASTER], limits, of_master).strikes
    ordered = sorted(strikes, key=lambda strike: (strike.at_ms, strike.fault, strike.host))
    return FaultPlan(tuple(ordered), shape.chaos_ms, 0)


# -- hosts -----------------------------------------------------------------------------------------------------------


def _noted(cluster: Cluster, fault: Fault) -> Fault:
    """The same; it is noted where there is a process to befall."""

    def strike(world: World, host: Host, draws: Draws) -> Undo:
        if host.is_up:
            cluster.fired.append((fault.name, host.name))
        return fault.strike(world, host, draws)

    return replace(fault, strike=strike)


def _node_leaves(cluster: Cluster) -> Callable[[World, Host, Draws], Undo]:
    """A node is told to stop (SIGTERM), leaves in order, and is started again."""

    def strike(world: World, host: Host, draws: Draws) -> Undo:
        node = cluster.nodes.pop(host.name, None)
        if node is None or not host.is_up:
            return lambda: None
        cluster.fired.append(("node leaves", host.name))
        host.spawn(node.stop(), name=f"{host.name} leaves")
        life = host.life

        def undo() -> None:
            if host.life is life and host.is_up:
                host.restart()

        return undo

    return strike


def _aimed(cluster: Cluster, fault: Fault, name: str) -> Fault:
    """The fault strikes when the next bytes move from or to the host (some read, some write, or any): most transfers
    are too short to be met by chance."""

    def strike(world: World, host: Host, draws: Draws) -> Undo:
        def fire() -> Undo:
            cluster.fired.append((name, host.name))
            return fault.strike(world, host, draws)

        kinds = ("read", "write", "") if fault.takes_down else ("read",)
        aim = _Aim(cluster, host, draws.choice(kinds), fire)
        cluster.network.watchers.append(aim)
        return aim.undo

    return Fault(name, strike, takes_down=fault.takes_down)


class _Aim:
    """A `Watcher` that waits for its moment."""

    def __init__(self, cluster: Cluster, host: Host, what: str, strike: Callable[[], Undo]) -> None:
        self._cluster = cluster
        self._host = host
        self._what = what
        self._strike = strike
        self._fired = False
        self._undo: Undo | None = None

    def landed(self, landing: Landing) -> None:
        what = "read" if landing.put_id is None else "write"
        here = self._host.name in (landing.source, landing.target)
        if not self._fired and here and self._what in ("", what):
            self._fired = True
            # In a turn of its own: not in the middle of whoever moves the bytes.
            self._cluster.network.after(0, self._fire)

    def _fire(self) -> None:
        if self in self._cluster.network.watchers and self._host.is_up:
            self._cluster.network.counts["strike in a transfer"] += 1
            self._undo = self._strike()

    def undo(self) -> None:
        self._cluster.network.watchers.remove(self)
        if self._undo is not None:
            self._undo()


def _master_restart(world: World, host: Host, draws: Draws) -> Undo:
    host.crash(power=draws.chance(0.5))

    def undo() -> None:
        if not host.is_up:
            host.restart()

    return undo


def _memory_decay(cluster: Cluster) -> Callable[[World, Host, Draws], Undo]:
    """Bits flip in what a node lends (any, where the host lends nothing): half of them anywhere, half of them where
    objects lie."""

    def strike(world: World, host: Host, draws: Draws) -> Undo:
        lender = host.name if host.name in cluster.memories else draws.choice(cluster.shape.nodes)
        for memory in cluster.memories.get(lender, ()):
            if memory.closed:
                continue
            objects = _objects_in(cluster, memory)
            for _ in range(draws.between(1, 20)):
                start, length = 0, memory.size_bytes
                if objects and draws.chance(0.5):
                    start, length = draws.choice(objects)
                offset = start + draws.between(0, length - 1)
                memory.flip(offset, draws.between(0, 7))
                cluster.contents.decayed(memory, offset)
            if objects:
                cluster.fired.append(("memory decay", lender))
        return lambda: None

    return strike


def _objects_in(cluster: Cluster, memory: SimMemory) -> list[tuple[int, int]]:
    """Offset and length of each object that can be read there."""
    ledger = cluster.witness.ledger if cluster.witness is not None else None
    segment = ledger.by_generation.get(memory.generation) if ledger is not None else None
    if ledger is None or segment is None:
        return []
    return sorted(
        (taken.offset, ledger.puts[taken.put_id].fact.size_bytes)
        for taken in segment.taken.values()
        if taken.holding is Holding.COMMITTED
    )


# -- the data plane --------------------------------------------------------------------------------------------------

#: From the faults as they are, and a stream, to the fields that change.
Change = Callable[[Draws], dict[str, int | float]]


def _fabric(cluster: Cluster, change: Change) -> Callable[[World, Host, Draws], Undo]:
    """Some fields of the data network's faults change, and go back to what is normal."""

    def strike(world: World, host: Host, draws: Draws) -> Undo:
        fields = change(draws)
        normal = FabricFaults()
        cluster.network.faults = replace(cluster.network.faults, **fields)  # type: ignore[arg-type]

        def undo() -> None:
            back = {name: getattr(normal, name) for name in fields}
            cluster.network.faults = replace(cluster.network.faults, **back)

        return undo

    return strike


def _slow(draws: Draws) -> dict[str, int | float]:
    """Pieces late by up to longer than any lease or deadline."""
    return {
        "slow_ratio": draws.choice((0.05, 0.2, 0.6)),
        "slow_ns": draws.between(50, 8_000) * NS_PER_MS,
        "flush_ns": draws.between(0, draws.choice((500, 4_000))) * NS_PER_MS,
    }


def _torn(draws: Draws) -> dict[str, int | float]:
    """Operations in many pieces, with time between them."""
    return {"min_pieces": 2, "max_pieces": 6, "max_delay_ns": draws.choice((1, 20, 200)) * NS_PER_MS}


def _write_errors(draws: Draws) -> dict[str, int | float]:
    return {"write_error_ratio": draws.choice((0.02, 0.2))}


def _read_errors(draws: Draws) -> dict[str, int | float]:
    return {"read_error_ratio": draws.choice((0.02, 0.2))}


def _lost_acks(draws: Draws) -> dict[str, int | float]:
    return {"lost_ack_ratio": draws.choice((0.02, 0.2))}


def _lingering(draws: Draws) -> dict[str, int | float]:
    """What was on the wire when its sender went away lands long after."""
    return {
        "linger_ratio": 1.0,
        "linger_ns": draws.between(100, 20_000) * NS_PER_MS,
        "max_delay_ns": draws.choice((1, 100)) * NS_PER_MS,
    }


def _slow_fences(draws: Draws) -> dict[str, int | float]:
    return {"fence_ns": draws.between(100, 10_000) * NS_PER_MS, "flush_ns": draws.between(1, 500) * NS_PER_MS}


_FABRIC: dict[str, Change] = {
    "slow fabric": _slow,
    "torn operations": _torn,
    "write errors": _write_errors,
    "read errors": _read_errors,
    "lost acknowledgements": _lost_acks,
    "lingering writes": _lingering,
    "slow fences": _slow_fences,
}
