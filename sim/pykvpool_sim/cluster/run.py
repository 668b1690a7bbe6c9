"""One seed, from drawing a cluster to judging it: `run_seed` gives a `Report` that crosses process borders."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pykvpool_sim.choosers import Chooser, Fifo, Pct, Recorder, Seeded, Tape
from pykvpool_sim.cluster.cluster import MASTER, BugLog, Cluster, awaited
from pykvpool_sim.cluster.program import ClientProgram
from pykvpool_sim.cluster.rest import come_to_rest
from pykvpool_sim.cluster.shape import ClientShape, Shape, draw_shape
from pykvpool_sim.cluster.story import schedule, story_of, timeline
from pykvpool_sim.cluster.told import Comparison, told_by
from pykvpool_sim.cluster.troubles import draw_troubles, stops, troubles_of
from pykvpool_sim.cluster.workload import VERBS
from pykvpool_sim.draws import Draws
from pykvpool_sim.errors import Hung, SimulationError
from pykvpool_sim.history import Outcome
from pykvpool_sim.host import Host
from pykvpool_sim.plan import FaultPlan, Strike, carry_out
from pykvpool_sim.world import World

#: Virtual time of trouble in one run, unless asked otherwise.
CHAOS_MS = 30_000
#: Virtual time after which a run that has not ended never will: trouble, rest, and the probe's work.
_LIMIT_S = 3_600.0
#: How often it is looked whether something was found, so that a broken run ends soon.
_LOOK_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Options:
    """What a run does other than its seed says."""

    #: Kinds of faults; empty: all.
    only: tuple[str, ...] = ()
    #: Strikes in place of those that the seed draws; empty: its own.
    strikes: tuple[Strike, ...] = ()
    #: All clients want a copy on every node, and no fewer: room is made on all of them or on none, all the time.
    everywhere: bool = False
    #: A kind that is left out of the plan, which is otherwise as it was.
    without: str = ""
    #: Numbers of the strikes of the plan that are carried out; None: all.
    keep: tuple[int, ...] | None = None
    #: Nodes and clients that there are; None: all that the seed draws. What befalls the others befalls nobody.
    hosts: tuple[str, ...] | None = None
    #: Turns of clients that are taken ("client-0/17"); None: all.
    turns: frozenset[str] | None = None
    #: Who runs next: the choices of a `Tape`, then first in first out; None: the chooser that the seed draws.
    tape: bytes | None = None
    chaos_ms: int = CHAOS_MS
    #: Promises that are not judged.
    off: frozenset[str] = frozenset()
    #: Keep all that happened, in words.
    timeline: bool = False
    #: Keep what the chooser chose, as a tape.
    record: bool = False


@dataclass(slots=True)
class Report:
    """What came of one seed."""

    seed: int
    #: Of everything that happened; equal for equal runs.
    digest: str = ""
    #: Of what clients asked and were told alone.
    history_digest: str = ""
    plan: str = ""
    #: Strikes that the plan has, those left out included.
    planned: int = 0
    #: Nodes and clients that there were, and turns that clients took.
    hosts: tuple[str, ...] = ()
    turns: tuple[str, ...] = ()
    #: What the chooser chose; where `Options.record` asks for it.
    tape: bytes = b""
    #: Where a promise was broken: what happened from outside, in order (strikes, and what clients asked).
    schedule: list[str] = field(default_factory=list)
    #: Broken promises, and a story for each.
    violations: list[str] = field(default_factory=list)
    stories: list[list[str]] = field(default_factory=list)
    #: Strikes carried out, by kind.
    struck: Counter[str] = field(default_factory=Counter)
    #: Those of them that found something to befall, by kind; and whom they stopped.
    fired: Counter[str] = field(default_factory=Counter)
    stopped: dict[str, frozenset[str]] = field(default_factory=dict)
    #: What clients were told (see `pykvpool_sim.cluster.told`).
    told: dict[str, list[int]] = field(default_factory=dict)
    #: What happened how often: of the data plane, the master's counters, calls by name and outcome.
    counts: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    callbacks: int = 0
    virtual_s: float = 0.0
    #: What happened, in order; where `Options.timeline` asks for it.
    timeline: list[str] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        return bool(self.violations)

    @property
    def broken(self) -> str:
        """The promise that was broken first; empty: none."""
        return self.violations[0].partition(" ")[0] if self.violations else ""


def run_seed(
    seed: int,
    options: Options | None = None,
    comparison: Comparison | None = None,
    *,
    reshape: Callable[[Shape], Shape] = lambda shape: shape,
) -> Report:
    """Simulate one seed. Never raises for what the pool does: that is in the report.

    Args:
        comparison: the run ends once it differs; what would have come then is not in the report.
        reshape: makes another cluster of the one that the seed draws.
    """
    options = options or Options()
    world = World(seed, chooser=lambda draws: _chooser(draws, options), limit_s=_LIMIT_S)
    shape = reshape(draw_shape(world.draws("shape"), [weights for _, weights in VERBS.values()], options.chaos_ms))
    if options.everywhere:
        shape = shape.copied_everywhere()
    cluster = Cluster(world, shape, options.off)
    drawn = draw_troubles(world.draws("plan"), cluster, options.only)
    if options.strikes:
        drawn = FaultPlan(options.strikes, drawn.chaos_ms, drawn.calm_ms)
    cluster.shape = shape if options.hosts is None else shape.reduced_to(options.hosts)
    plan = _reduced(drawn, cluster, options)
    programs: dict[str, ClientProgram] = {}
    struck = Counter(strike.fault for strike in plan.strikes)
    hosts = (*cluster.shape.nodes, *(client.name for client in cluster.shape.clients))
    report = Report(seed, plan=str(plan), planned=len(drawn.strikes), struck=struck, hosts=hosts)
    log = logging.getLogger("pykvpool")
    bugs, level, propagates = BugLog(cluster.verdicts), log.level, log.propagate
    log.addHandler(bugs)
    log.setLevel(logging.ERROR)
    log.propagate = False
    world.history.listener = comparison
    try:
        with awaited(cluster.verdicts):
            world.run(lambda _: _scenario(cluster, plan, programs, options, comparison))
    except (SimulationError, Hung) as error:
        cluster.verdicts.add("bug", f"{type(error).__name__}: {error}")
    finally:
        log.removeHandler(bugs)
        log.setLevel(level)
        log.propagate = propagates
    _fill(report, cluster)
    if comparison is not None:
        comparison.finish(world.history)
    if options.timeline:
        report.timeline = timeline(cluster, plan)
    if report.failed:
        report.schedule = schedule(cluster, plan)
    if isinstance(world.loop.chooser, Recorder):
        report.tape = bytes(world.loop.chooser.tape)
    return report


def _chooser(draws: Draws, options: Options) -> Chooser:
    chooser = _draw_chooser(draws) if options.tape is None else Tape(options.tape)
    return Recorder(chooser) if options.record else chooser


def _draw_chooser(draws: Draws) -> Chooser:
    """Most runs shuffle; some starve one task for long, some do as asyncio does."""
    kind = draws.between(0, 9)
    if kind == 0:
        return Fifo()
    return Pct(draws, depth=3, steps=20_000) if kind <= 2 else Seeded(draws)


def _reduced(plan: FaultPlan, cluster: Cluster, options: Options) -> FaultPlan:
    """The plan without what is left out."""
    hosts = (MASTER, *cluster.shape.nodes, *(client.name for client in cluster.shape.clients))
    strikes = [
        strike
        for number, strike in enumerate(plan.strikes)
        if strike.fault != options.without and strike.host in hosts and (options.keep is None or number in options.keep)
    ]
    return FaultPlan(tuple(strikes), plan.chaos_ms, plan.calm_ms)


async def _scenario(
    cluster: Cluster,
    plan: FaultPlan,
    programs: dict[str, ClientProgram],
    options: Options,
    comparison: Comparison | None,
) -> None:
    world = cluster.world

    def known() -> bool:
        """The run has shown what it was to show."""
        return bool(cluster.verdicts.found) or (comparison is not None and comparison.differs)

    clients = {client.name: client for client in cluster.shape.clients}
    cluster.start(_client_program(cluster, clients, programs, options))
    probe = world.host("probe")
    trouble = asyncio.ensure_future(carry_out(world, plan, troubles_of(cluster)))
    while not trouble.done() and not known():
        await asyncio.wait([trouble], timeout=_LOOK_EVERY_S)
    cluster.rest.set()
    if not trouble.done():
        trouble.cancel()
    await trouble_over(trouble)
    if cluster.witness is not None:
        # Now, while there is much to compare.
        cluster.witness.check_follower()
    if not known():
        await come_to_rest(cluster, probe)
    _last_look(cluster, programs)
    for host in list(world.hosts.values()):
        host.crash(power=True)


async def trouble_over(trouble: asyncio.Future[None]) -> None:
    await asyncio.wait([trouble])
    if not trouble.cancelled():
        trouble.result()


def _client_program(
    cluster: Cluster, clients: dict[str, ClientShape], programs: dict[str, ClientProgram], options: Options
) -> Callable[[Host], object]:
    async def run(host: Host) -> None:
        program = programs[host.name] = ClientProgram(cluster, host, clients[host.name], options.turns)
        await program.run()

    return run


def _last_look(cluster: Cluster, programs: dict[str, ClientProgram]) -> None:
    """What can be judged at the end alone."""
    witness = cluster.witness
    if witness is not None:
        witness.validate()
        witness.check_follower()
        cluster.contents.check_all(witness.ledger)
    for program in programs.values():
        program.buffers.check()


def _fill(report: Report, cluster: Cluster) -> None:
    world, witness = cluster.world, cluster.witness
    report.digest = world.trace.digest()
    report.history_digest = _digest(
        [f"{one.process} {one.name} {one.arguments} {one.outcome} {one.value}" for one in world.history.operations]
    )
    report.violations = [str(violation) for violation in cluster.verdicts.found]
    report.fired = Counter(kind for kind, _ in cluster.fired)
    report.stopped = {
        kind: frozenset(host for other, host in cluster.fired if other == kind) for kind in report.fired if stops(kind)
    }
    report.told = told_by(world.history)
    report.stories = [story_of(cluster, violation) for violation in cluster.verdicts.found[:1]]
    report.counts.update(cluster.network.counts)
    if witness is not None:
        report.counts.update({name: count for name, count in witness.core.counters.items() if count})
    for operation in world.history.operations:
        report.calls[f"{operation.name}: {_kind(operation.outcome, operation.value)}"] += 1
    turns = dict.fromkeys(str(operation.arguments["turn"]) for operation in world.history.operations)
    report.turns = tuple(filter(None, turns))
    report.callbacks = world.trace.executed_count
    report.virtual_s = world.loop.now_ns / 1e9


def _kind(outcome: Outcome, value: object) -> str:
    return str(value) if outcome is Outcome.UNKNOWN else outcome.value


def _digest(lines: Sequence[str]) -> str:
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=16).hexdigest()
