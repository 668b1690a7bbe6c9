"""A failing run becomes a small one: strikes, hosts, turns and choices that it does not need are left out."""

import asyncio
import itertools

import pytest

from pykvpool_sim.choosers import Recorder, Seeded, Tape
from pykvpool_sim.cluster import Options, Report, run_seed
from pykvpool_sim.cluster.shape import ClientShape, Shape, draw_shape
from pykvpool_sim.cluster.turns import Turn
from pykvpool_sim.cluster.workload import VERBS
from pykvpool_sim.command.shrink import MAX_CHOICES, shrink
from pykvpool_sim.command.words import read_strikes, read_tape, read_turns, strikes_text, tape_text, turns_text
from pykvpool_sim.draws import Draws
from pykvpool_sim.loop import SimLoop

HOSTS = ("node-0", "node-1", "client-0", "client-1")
TURNS = tuple(f"client-{client}/{number}" for number in range(1, 31) for client in range(2))
NEVER_LATE = itertools.repeat(0.0).__next__


def pretend(needs, tape=bytes([1, 2, 3]) * 300):
    """A simulator that breaks P2 exactly where `needs` says so."""
    calls = []

    def run(seed, options):
        calls.append(options)
        strikes = tuple(range(16)) if options.keep is None else options.keep
        hosts = HOSTS if options.hosts is None else options.hosts
        turns = tuple(turn for turn in TURNS if options.turns is None or turn in options.turns)
        chosen = tape if options.tape is None else options.tape.ljust(len(tape), b"\0")
        broken = needs(set(strikes), set(hosts), set(turns), chosen)
        violations = ["P2 at 1 s: so"] if broken else []
        return Report(
            seed, planned=16, hosts=hosts, turns=turns, violations=violations, tape=chosen if options.record else b""
        )

    run.calls = calls
    return run


def test_strikes_hosts_and_turns_that_are_not_needed_go():
    run = pretend(
        lambda strikes, hosts, turns, tape: (
            {3, 11} <= strikes and {"node-1", "client-0"} <= hosts and {"client-0/3", "client-0/17"} <= turns
        )
    )
    smallest = shrink(run(1, Options()), Options(), run=run, now_s=NEVER_LATE)
    options = smallest.options
    assert (options.keep, options.hosts) == ((3, 11), ("node-1", "client-0"))
    assert options.turns == {"client-0/3", "client-0/17"}
    assert options.tape == b"", "asyncio's own order will do"
    assert smallest.report.broken == "P2" and smallest.runs == len(run.calls) - 1 < 150


def test_of_the_choices_those_stay_that_the_failure_needs():
    run = pretend(lambda strikes, hosts, turns, tape: tape[41] == 3 and tape[100] == 2)
    smallest = shrink(run(1, Options()), Options(), run=run, now_s=NEVER_LATE)
    assert tape_text(smallest.options.tape) == "41:3,100:2"
    assert (smallest.options.keep, smallest.options.hosts, smallest.options.turns) == ((), (), frozenset())


def test_a_failure_that_needs_nearly_all_choices_keeps_the_seeds_own_chooser():
    run = pretend(lambda strikes, hosts, turns, tape: sum(map(bool, tape)) > MAX_CHOICES)
    smallest = shrink(run(1, Options()), Options(), run=run, now_s=NEVER_LATE)
    assert smallest.options.tape is None and smallest.report.failed


def test_another_broken_promise_is_not_the_same_failure():
    def run(seed, options):
        whole = options.keep is None or len(options.keep) == 16
        return Report(seed, planned=16, hosts=HOSTS, violations=["P2 at 1 s: so" if whole else "P7 at 1 s: other"])

    smallest = shrink(run(1, Options()), Options(), run=run, now_s=NEVER_LATE)
    assert smallest.options.keep is None and smallest.report.broken == "P2"


def test_it_ends_in_time_with_what_it_has():
    run = pretend(lambda strikes, hosts, turns, tape: {3, 11} <= strikes)
    clock = itertools.count()
    whole = run(1, Options())
    smallest = shrink(whole, Options(), limit_s=20, run=run, now_s=lambda: float(next(clock)))
    assert smallest.report.failed and 0 < smallest.runs <= 20
    assert shrink(whole, Options(), max_runs=7, run=run, now_s=NEVER_LATE).runs == 7
    nothing = shrink(whole, Options(), limit_s=0, run=run, now_s=lambda: 0.0)
    assert (nothing.options, nothing.report) == (Options(), whole)


@pytest.fixture
def planted(monkeypatch):
    """A client that has put something spoils what it gets next: a bug that takes two turns of one client."""
    judged, spoiled = Turn.recorded, set()

    async def recorded(self, name, call, keys=()):
        value = await judged(self, name, call, keys)
        if name == "put":
            spoiled.add(self._process)
        elif name == "get" and self._process in spoiled:
            self._cluster.verdicts.add("P1", "planted")
        return value

    monkeypatch.setattr(Turn, "recorded", recorded)
    return spoiled


def test_a_planted_bug_of_two_turns_is_shrunk_to_two_turns_and_replays(planted):
    def run(seed, options):
        planted.clear()
        return run_seed(seed, options)

    options = Options(chaos_ms=4_000)
    whole = next(report for seed in range(10) if (report := run(seed, options)).failed and len(report.turns) > 3)
    smallest = shrink(whole, options, run=run, now_s=NEVER_LATE)
    assert len(smallest.report.turns) == 2, smallest.report.schedule
    assert smallest.options.keep == () and smallest.options.tape == b""
    # A put that finds no node is one all the same: no node is needed, and no other client.
    assert len(smallest.report.hosts) == 1
    # A turn makes one call, or two; those of two turns may overlap.
    lines = [line.split()[2] for line in smallest.report.schedule]
    assert set(lines) == {"call", "return"} and 2 <= lines.count("call") <= 4
    again = run(whole.seed, smallest.options)
    assert (again.digest, again.violations) == (smallest.report.digest, smallest.report.violations)


def test_a_recorded_tape_replays_the_run_and_leaving_out_a_turn_leaves_the_others_as_they_were():
    options = Options(chaos_ms=2_000, record=True)
    first = run_seed(3, options)
    again = run_seed(3, Options(chaos_ms=2_000, tape=first.tape))
    assert again.history_digest == first.history_digest and len(first.tape) > 100
    turns = frozenset(first.turns[1:])
    fewer = run_seed(3, Options(chaos_ms=2_000, turns=turns))
    assert set(fewer.turns) <= turns


def test_a_smaller_shape_is_the_same_shape_without_the_others():
    draws = Draws(5, "shape")
    shape = draw_shape(draws, [weights for _, weights in VERBS.values()], 1_000)
    assert isinstance(shape, Shape) and isinstance(shape.clients[0], ClientShape)
    smaller = shape.reduced_to(("node-0", "client-1"))
    assert smaller.nodes == ("node-0",) and smaller.segment_bytes == shape.segment_bytes[:1]
    assert smaller.clients == shape.clients[1:2] and smaller.keys == shape.keys


def test_turns_and_tapes_are_words_and_back():
    turns = frozenset({"client-0/3", "client-0/4", "client-0/5", "client-0/9", "client-10/1"})
    assert turns_text(turns) == "client-0:3-5,9;client-10:1"
    assert read_turns(turns_text(turns)) == turns
    assert turns_text(()) == "none" and read_turns("none") == frozenset()
    strikes = "pause at master from 8000 for 15000; slow fabric at node-0 from 0 for 9"
    assert strikes_text(read_strikes(strikes)) == strikes
    for wrong in ("earthquake at node-0 from 1 for 2", "kill at node-0", ""):
        with pytest.raises(ValueError, match="no strike"):
            read_strikes(wrong)
    assert tape_text(bytes([0, 3, 0, 1])) == "1:3,3:1"
    assert read_tape("1:3,3:1") == bytes([0, 3, 0, 1])
    assert tape_text(b"") == "none" and read_tape("none") == b""
    for wrong in ("1:999", "99999999999:1", "1"):
        with pytest.raises(ValueError, match=r"bounds|invalid literal"):
            read_tape(wrong)


def test_a_tape_of_a_chooser_is_that_chooser():
    async def race():
        order = []

        async def work(number):
            for _ in range(3):
                await asyncio.sleep(0)
                order.append(number)

        await asyncio.gather(*(work(number) for number in range(4)))
        return order

    recorder = Recorder(Seeded(Draws(1, "schedule")))
    seen = SimLoop(recorder).run(race())
    assert SimLoop(Tape(read_tape(tape_text(bytes(recorder.tape))))).run(race()) == seen
