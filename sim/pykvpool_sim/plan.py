"""Which faults strike when: a plan drawn from a seed within a budget, and the nemesis that carries it out.

Plans are *swarms* (Groce et al., ISSTA 2012): each kind of fault is on or off for a whole run, by a coin. Runs with few
kinds go deep where runs with all of them only make noise, and a fault that hides another's bug is off half of the time.

The budget states what the system under test is promised: how many hosts are down at once, how long it all lasts, and
that calm follows. In the calm phase everything is undone and nothing new strikes, so that a checker may then demand
that work goes on: a system that is only ever safe and never alive would pass any other test.

A plan is plain data that prints as a table, so that a failing one can be read, cut down by hand and run again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pykvpool_sim.draws import Draws
from pykvpool_sim.faults import FAULTS, Fault, Undo

if TYPE_CHECKING:
    from pykvpool_sim.world import World

#: A draw that does not fit the budget is drawn again this often, then the strike is left out.
_ATTEMPTS = 20


@dataclass(frozen=True, slots=True)
class Budget:
    """What a system has to live with. Times in milliseconds of virtual time."""

    #: Most strikes in all.
    max_strikes: int = 20
    #: Most hosts that are down, stopped or cut off at any time.
    max_down: int = 1
    #: Disks may lose, misplace or corrupt what they say they wrote.
    media: bool = False
    chaos_ms: int = 60_000
    calm_ms: int = 60_000
    max_lasts_ms: int = 20_000


@dataclass(frozen=True, slots=True)
class Strike:
    """One fault at one host."""

    at_ms: int
    lasts_ms: int
    fault: str
    host: str

    @property
    def ends_ms(self) -> int:
        return self.at_ms + self.lasts_ms

    def overlaps(self, other: Strike) -> bool:
        return self.at_ms <= other.ends_ms and other.at_ms <= self.ends_ms


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """Strikes in order of time, all over by `chaos_ms`; then `calm_ms` of peace."""

    strikes: tuple[Strike, ...]
    chaos_ms: int
    calm_ms: int

    def __str__(self) -> str:
        lines = [
            f"{strike.at_ms:>8} ms  {strike.fault} at {strike.host} for {strike.lasts_ms} ms" for strike in self.strikes
        ]
        return "\n".join([*lines, f"{self.chaos_ms:>8} ms  calm for {self.calm_ms} ms"])


def draw_plan(draws: Draws, hosts: Sequence[str], budget: Budget, faults: Sequence[Fault] = FAULTS) -> FaultPlan:
    """A plan for `hosts` within `budget`."""
    allowed = [fault for fault in faults if budget.media or not fault.silent]
    swarm = [fault for fault in allowed if draws.chance(0.5)] or [draws.choice(allowed)]
    kinds = {fault.name: fault for fault in swarm}
    strikes: list[Strike] = []
    for _ in range(draws.between(1, budget.max_strikes)):
        for _ in range(_ATTEMPTS):
            lasts_ms = draws.between(1, min(budget.max_lasts_ms, budget.chaos_ms))
            at_ms = draws.between(0, budget.chaos_ms - lasts_ms)
            strike = Strike(at_ms, lasts_ms, draws.choice(swarm).name, draws.choice(hosts))
            if _fits(strike, strikes, kinds, budget):
                strikes.append(strike)
                break
    ordered = sorted(strikes, key=lambda strike: (strike.at_ms, strike.fault, strike.host))
    return FaultPlan(tuple(ordered), budget.chaos_ms, budget.calm_ms)


def _fits(strike: Strike, strikes: Sequence[Strike], kinds: dict[str, Fault], budget: Budget) -> bool:
    """No kind strikes a host twice at once (it puts back what it found), and never are too many hosts down."""
    meanwhile = [other for other in strikes if other.overlaps(strike)]
    everywhere = kinds[strike.fault].everywhere
    if any(other.fault == strike.fault and (everywhere or other.host == strike.host) for other in meanwhile):
        return False
    if not kinds[strike.fault].takes_down:
        return True
    down = [other for other in meanwhile if kinds[other.fault].takes_down]
    # All that overlap this one may overlap each other: counting them all errs on the side of the budget.
    return len(down) < budget.max_down and all(other.host != strike.host for other in down)


async def carry_out(world: World, plan: FaultPlan, faults: Sequence[Fault] = FAULTS) -> None:
    """Strike and undo as planned, until the end of the calm phase. Cancelled, it undoes what still lasts."""
    kinds = {fault.name: fault for fault in faults}
    begun_s = world.loop.time()
    lasting: dict[Strike, Undo] = {}
    moments = sorted(
        [(strike.at_ms, number, True) for number, strike in enumerate(plan.strikes)]
        + [(strike.ends_ms, number, False) for number, strike in enumerate(plan.strikes)]
    )
    try:
        for at_ms, number, begins in moments:
            await asyncio.sleep(max(0.0, begun_s + at_ms / 1_000 - world.loop.time()))
            strike = plan.strikes[number]
            if begins:
                world.trace.note(f"strike: {strike.fault} at {strike.host}")
                # A stream of its own: without one strike, all others are as they were.
                draws = world.draws(f"strike/{strike.at_ms}/{strike.fault}/{strike.host}")
                lasting[strike] = kinds[strike.fault].strike(world, world.hosts[strike.host], draws)
            else:
                world.trace.note(f"over: {strike.fault} at {strike.host}")
                lasting.pop(strike)()
    finally:
        for undo in lasting.values():
            undo()
    await asyncio.sleep(max(0.0, begun_s + (plan.chaos_ms + plan.calm_ms) / 1_000 - world.loop.time()))
