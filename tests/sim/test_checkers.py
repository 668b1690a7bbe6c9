"""Each checker finds what it is there for, in a few facts or answers, and says nothing where all is well."""

import pytest

from pykvpool.core.config import CoreConfig
from pykvpool.core.effects import Effects
from pykvpool.core.master import MasterCore
from pykvpool.errors import StaleView
from pykvpool.fabric.base import Peer
from pykvpool.model import facts
from pykvpool.model.commands import (
    ClusterState,
    Exists,
    Fenced,
    GetReplicas,
    Goodbye,
    MatchPrefix,
    PutEnd,
    PutRevoke,
    PutStart,
    PutWait,
)
from pykvpool.model.events import Request
from pykvpool.model.instructions import Fence
from pykvpool.model.keys import Scope
from pykvpool.model.objects import Extent, ObjectInfo, Pin, SegmentDescriptor
from pykvpool.model.replies import (
    ErrorInfo,
    Flags,
    Located,
    Matched,
    Pending,
    PutGrant,
    PutStarted,
    SegmentState,
    State,
)
from pykvpool_sim.checkers.answers import Answer, AnswerChecker
from pykvpool_sim.checkers.contents import ContentChecker
from pykvpool_sim.checkers.guarded import GuardChecker
from pykvpool_sim.checkers.landings import LandingChecker
from pykvpool_sim.checkers.leases import LeaseBook
from pykvpool_sim.checkers.ledger import Ledger
from pykvpool_sim.checkers.queue import QueueChecker
from pykvpool_sim.checkers.rules import Rules
from pykvpool_sim.checkers.verdicts import MAX_VIOLATIONS, Verdicts
from pykvpool_sim.checkers.views import ViewChecker
from pykvpool_sim.checkers.witness import Witness
from pykvpool_sim.cluster.keys import value_of
from pykvpool_sim.fabric import Landing, SimMemory
from pykvpool_sim.life import State as LifeState
from pykvpool_sim.runtime import sim_runtime
from pykvpool_sim.world import World

CLIENT, NODE = 1, 2
GENERATION, OTHER_GENERATION = 77, 78
SCOPE = Scope("plain")


class Bench:
    """A ledger with a client, two nodes and their segments, and every checker around it."""

    def __init__(self):
        self.verdicts = Verdicts(lambda: 0)
        self.ledger = Ledger(64, self.verdicts)
        self.book = LeaseBook(self.ledger)
        self.rules = Rules(CoreConfig(), self.ledger, self.book, self.verdicts)
        self.answers = AnswerChecker(self.ledger, self.verdicts)
        self.queue = QueueChecker(self.ledger, self.verdicts)
        self.landings = LandingChecker(lambda: self.ledger, self.verdicts)
        self.decide(
            facts.SessionOpened(CLIENT, "client", "client", 11),
            facts.SessionOpened(NODE, "node", "node", 12),
            facts.SegmentMounted(1, NODE, "node", GENERATION, 4096, ("sim://node/1",)),
            facts.ScopeInterned(0, SCOPE),
            now=0,
        )

    def decide(self, *decided, now=1):
        for fact in decided:
            self.rules.decide(fact, now)
            self.ledger.apply(fact)
            if isinstance(fact, facts.PutOpened):
                self.queue.opened(fact)
        self.rules.stepped(decided, now, idle=True)

    def say(self, session, command):
        self.rules.hear(Request(session, 1, 0, command), 0)

    def committed(self, put_id=1, offset=0, key=b"k", parent=None, size=100):
        self.decide(opened(put_id, offset, key, parent, size))
        self.say(CLIENT, PutEnd((put_id,), (5,), (1,)))
        self.decide(landed(put_id, offset, size))

    def found(self):
        return [violation.promise for violation in self.verdicts.found]


@pytest.fixture
def bench():
    return Bench()


def extent(offset, size=100, segment=1):
    return Extent(segment, offset, size)


def opened(put_id, offset, key=b"k", parent=None, size=100, pin=Pin.NONE):
    return facts.PutOpened(put_id, CLIENT, 0, key, size, parent, pin, 1, (extent(offset, size),))


def landed(put_id, offset, size=100):
    return facts.ObjectCommitted(put_id, 5, (extent(offset, size),))


def removed(put_id=1, key=b"k", reason="evicted", lingering=False):
    return facts.ObjectRemoved(0, key, put_id, reason, lingering)


def write(put_id, offset, length=50, generation=GENERATION, memory=None, late=False):
    return Landing(Peer("client", 11), "c", "n", generation, memory or Memory(), offset, length, put_id, 1, late)


class Memory:
    generation = GENERATION


def test_p3_an_object_that_comes_and_goes_is_no_violation(bench):
    bench.committed()
    bench.decide(removed(reason="removed"))
    bench.committed(2)
    assert bench.found() == [] and not bench.ledger.segments[1].taken.keys() - {0}


@pytest.mark.parametrize(
    "wrong",
    [
        opened(2, 64),  # [0, 128) is taken: 100 bytes, rounded
        opened(1, 512),  # put_ids rise
        opened(2, 4032),  # beyond the end
        opened(2, 100),  # not aligned
        landed(9, 0),  # never opened
        facts.PutOpened(2, CLIENT, 0, b"x", 10, None, Pin.NONE, 1, (extent(512, 10, segment=9),)),
        facts.QuarantineEnded(1, 1, "fenced"),  # not in quarantine
        facts.ReplicaLost(0, b"k", 1, 7),  # no replica there
        facts.ObjectRemoved(0, b"other", 1, "removed", False),  # not its key
    ],
    ids=lambda fact: type(fact).__name__,
)
def test_p3_what_cannot_be_true_is_found(bench, wrong):
    bench.committed()
    bench.ledger.apply(wrong)
    assert "P3" in bench.found()


def test_p3_two_objects_under_one_key_are_found(bench):
    bench.committed()
    bench.ledger.apply(opened(2, 512))
    bench.ledger.apply(landed(2, 512))
    assert bench.found() == ["P3"]


def test_p3_reported_numbers_are_compared_with_the_facts(bench):
    bench.committed()

    def ask(free, used, quarantined):
        segment = SegmentState(1, "node", 4096, free, used, quarantined, (), False)
        state = State((segment,), (), 0, 0, 0, 0, 0, 0, {})
        bench.answers.before(Answer(CLIENT, 1, ClusterState(), state, at_once=True))
        return len(bench.found())

    assert ask(4096 - 128, 128, 0) == 0
    assert ask(4096 - 128, 0, 128) == 1
    assert ask(4096, 128, 0) == 3


def test_p2_a_write_may_land_in_its_own_open_or_quarantined_extent_alone(bench):
    bench.decide(opened(1, 0))
    bench.landings.landed(write(1, 50))
    assert bench.found() == []
    bench.landings.landed(write(2, 50))
    bench.landings.landed(write(1, 200))
    bench.say(CLIENT, PutEnd((1,), (5,), (1,)))
    bench.decide(landed(1, 0))
    bench.landings.landed(write(1, 0))
    assert bench.found() == ["P2"] * 3
    bench.decide(facts.SegmentGoing(1, "unmounted"))
    bench.landings.landed(write(9, 0))
    assert len(bench.found()) == 3 + 1  # the segment went without a word of its node; what lands there harms nobody


def test_p5_touching_another_generation_is_found_for_reads_too(bench):
    bench.landings.landed(write(None, 0, generation=OTHER_GENERATION))
    assert bench.found() == ["P5"]


def test_p2_quarantine_ends_on_the_word_of_the_writer_or_of_the_owner(bench):
    def quarantined(put_id, offset):
        bench.decide(opened(put_id, offset, b"%d" % put_id))
        bench.rules.told.add(put_id)
        bench.decide(facts.PutClosed(put_id, (extent(offset),), "expired"))

    for put_id in (1, 2, 3, 4):
        quarantined(put_id, 512 * put_id)
    bench.say(CLIENT, PutRevoke((1,)))
    bench.decide(facts.QuarantineEnded(1, 1, "drained"))
    bench.rules.instruct(Fence(CLIENT, "client", 11, 1, True, 1))
    quarantined(5, 3072)
    bench.say(NODE, Fenced(CLIENT, 1, 1))
    bench.decide(facts.QuarantineEnded(2, 1, "fenced"))
    assert bench.found() == []
    bench.decide(facts.QuarantineEnded(3, 1, "drained"))
    assert bench.found() == ["P2"]
    bench.decide(facts.QuarantineEnded(5, 1, "fenced"))
    assert bench.found() == ["P2"] * 2, "an answer covers what was in quarantine when the fence was sent"
    bench.say(CLIENT, Goodbye())
    bench.decide(facts.QuarantineEnded(4, 1, "drained"))
    assert bench.found() == ["P2"] * 2


def test_p2_a_fence_of_a_live_writer_covers_only_what_it_gave_up(bench):
    bench.decide(opened(1, 0, b"a"), opened(2, 512, b"b"))
    bench.rules.told.update((1, 2))
    bench.say(CLIENT, PutRevoke((1,), (1,)))
    for put_id in (1, 2):
        bench.decide(facts.PutClosed(put_id, (extent(512 * (put_id - 1)),), "expired"))
    bench.rules.instruct(Fence(CLIENT, "client", 11, 1, False, 1))
    bench.say(NODE, Fenced(CLIENT, 1, 1))
    bench.decide(facts.QuarantineEnded(1, 1, "fenced"))
    assert bench.found() == []
    bench.decide(facts.QuarantineEnded(2, 1, "fenced"))
    assert bench.found() == ["P2"]


def test_p2_extents_that_their_writer_may_be_at_work_in_do_not_come_free(bench):
    bench.decide(opened(1, 0, b"a"), opened(2, 512, b"b"))
    bench.rules.told.update((1, 2))
    bench.say(CLIENT, PutRevoke((1,)))
    bench.decide(facts.PutClosed(1, (), "revoked"))
    assert bench.found() == []
    bench.decide(facts.PutClosed(2, (), "expired"))
    assert bench.found() == ["P2"]


def test_p2_and_p6_nothing_is_taken_from_under_a_lease(bench):
    bench.committed()
    bench.book.grant(1, CLIENT, frozenset({1}), expires_at=1_000)
    bench.decide(removed(reason="removed", lingering=True), now=500)
    assert bench.found() == []
    bench.decide(facts.ExtentsFreed(1), now=999)
    assert bench.found() == ["P2"]
    bench.committed(2, 512, b"l")
    bench.book.grant(2, CLIENT, frozenset({2}), expires_at=2_000)
    bench.decide(removed(2, b"l"), opened(3, 1024, b"m"), now=1_999)
    assert bench.found() == ["P2", "P2", "P6"]
    assert bench.book.is_over(1, 1_000) and not bench.book.is_over(2, 1_999)


def test_p6_parents_and_pinned_objects_stay_and_nobody_goes_for_nothing(bench):
    bench.committed(1, 0, b"a")
    bench.committed(2, 512, b"b", parent=b"a")
    bench.decide(facts.PinChanged(0, b"b", Pin.HARD))
    bench.decide(removed(1, b"a"), opened(3, 0, b"c"))
    assert bench.found() == ["P6"]
    bench.decide(removed(2, b"b"), opened(4, 1024, b"d"))
    assert bench.found() == ["P6"] * 2
    bench.committed(5, 2048, b"e")
    bench.decide(removed(5, b"e"))
    assert bench.found() == ["P6"] * 3


def test_p6_room_may_be_made_over_several_steps(bench):
    bench.committed()
    bench.rules.stepped([removed()], 7, idle=False)
    bench.rules.stepped([opened(2, 512, b"b")], 7, idle=True)
    bench.rules.stepped([removed()], 8, idle=False)
    bench.rules.stepped([], 9, idle=True)
    assert bench.found() == []
    bench.rules.stepped([removed()], 9, idle=False)
    bench.rules.stepped([], 9, idle=True)
    assert bench.found() == ["P6"]


def test_p8_only_the_end_of_its_node_loses_an_object(bench):
    bench.committed()
    bench.decide(removed(reason="replicas lost"))
    assert bench.found() == ["P8"]
    bench.committed(2)
    bench.decide(facts.SessionEnded(NODE, "superseded"), facts.SegmentGoing(1, "session of its node superseded"))
    bench.decide(removed(2, reason="replicas lost"), facts.SegmentRemoved(1))
    assert bench.found() == ["P8"]


def test_p8_a_session_that_was_heard_of_does_not_expire(bench):
    bench.rules.hear(Request(CLIENT, 1, 0, Goodbye()), 5_000)
    bench.decide(facts.SessionEnded(CLIENT, "expired"), now=5_001)
    assert bench.found() == ["P8"]


def test_lookups_are_compared_with_the_facts(bench):
    bench.committed()

    def ask(found, hash_=b"k"):
        located = Located((found,), 1, 1_000)
        bench.answers.before(Answer(CLIENT, 1, GetReplicas(0, (hash_,)), located, at_once=True))
        return bench.found()

    info = ObjectInfo(1, 100, 5, (extent(0),))
    assert ask(info) == []
    assert ask(ErrorInfo(-704, "no readable object")) == ["P8"]
    assert ask(info, b"other") == ["P8", "P1"]
    assert ask(ObjectInfo(1, 100, 6, (extent(0),))) == ["P8", "P1", "P1"]
    assert ask(ObjectInfo(1, 100, 5, (extent(512),))) == ["P8", "P1", "P1", "P1"]


MISSES = [
    (GetReplicas(0, (b"k",)), Located((ErrorInfo(-704, "no readable object"),), 1, 1_000)),
    (Exists(0, (b"k",)), Flags(b"\0")),
    (MatchPrefix((b"k",), (0,)), Matched(0)),
]


@pytest.mark.parametrize(("command", "reply"), MISSES)
def test_a_miss_is_forgiven_only_where_a_search_for_room_may_hide_the_object(bench, command, reply):
    """Found by a seed with a long pause of the master: among the requests that had waited meanwhile were a put that
    needed room in several steps, and a lookup of what the search had sealed, and gave back in the end."""
    bench.committed()
    answer = Answer(CLIENT, 1, command, reply, at_once=True)
    bench.answers.before(answer, lambda key: key == (0, b"k"))
    assert bench.found() == []
    bench.answers.before(answer, lambda key: key == (0, b"other"))
    assert bench.found() == ["P8"]


class BusyCore:
    """Decides what it is told to; its next deadline is as given."""

    def __init__(self):
        self.config, self.epoch = CoreConfig(), 1
        self.deadline = None
        self.decides = Effects()

    def next_deadline(self):
        return self.deadline

    def step(self, event, now):
        return self.decides


@pytest.mark.parametrize(
    ("deadline", "pin", "leased", "hides"),
    [
        (None, Pin.NONE, False, False),
        (101, Pin.NONE, False, False),
        (100, Pin.NONE, False, True),
        (100, Pin.SOFT, False, True),
        (100, Pin.HARD, False, False),
        (100, Pin.NONE, True, False),
    ],
)
def test_a_search_hides_what_may_be_evicted_and_only_while_it_goes_on(bench, deadline, pin, leased, hides):
    host = World(0).host("master")
    core = BusyCore()
    witness = Witness(core, host.clock, bench.verdicts, ContentChecker(value_of, bench.verdicts), lambda fact: None)
    core.deadline = deadline
    core.decides = Effects(
        facts=(
            facts.SessionOpened(CLIENT, "client", "client", 11),
            facts.SessionOpened(NODE, "node", "node", 12),
            facts.SegmentMounted(1, NODE, "node", GENERATION, 4096, ("sim://node/1",)),
            facts.ScopeInterned(0, SCOPE),
            opened(1, 0, b"k"),
            landed(1, 0),
            facts.PinChanged(0, b"k", pin),
        )
    )
    if leased:
        witness._book.grant(1, CLIENT, frozenset({1}), 10_000)
    witness.step(Request(CLIENT, 1, 0, Goodbye()), 100)
    assert witness._may_hide((0, b"k")) is hides


def test_p7_who_came_later_is_not_served_before(bench):
    segment = SegmentDescriptor(1, GENERATION, "node", 4096, ())

    def start(request, *entries):
        keys = tuple(b"%d-%d" % (request, number) for number in range(len(entries)))
        command = PutStart(0, keys, (100,) * len(keys))
        bench.queue.answered(Answer(CLIENT, request, command, PutStarted(entries, (segment,)), at_once=True), 0)

    def collect(request, tickets, *entries):
        reply = PutStarted(entries, (segment,))
        bench.queue.answered(Answer(CLIENT, request, PutWait(tickets, 100), reply, at_once=False), 0)

    start(1, Pending(1, False), Pending(2, False), Pending(3, True))
    bench.decide(opened(1, 0, b"1"), opened(2, 512, b"2"))
    collect(2, (1, 2), PutGrant(1, (extent(0),)), PutGrant(2, (extent(512),)))
    assert bench.found() == []
    start(3, Pending(4, False))
    bench.decide(opened(3, 1024, b"3"))
    start(4, PutGrant(3, (extent(1024),)))
    bench.decide(opened(4, 2048, b"4"))
    collect(5, (4,), PutGrant(4, (extent(2048),)))
    assert bench.found() == ["P7"]


def test_p7_a_wait_is_answered_when_its_time_is_over(bench):
    bench.queue.asked(CLIENT, 1, PutWait((1,), 500), 0, 10_000)
    bench.queue.stepped(1_400)
    assert bench.found() == []
    bench.queue.stepped(1_501)
    bench.queue.stepped(9_000)
    assert bench.found() == ["P7"]


def test_p1_memory_that_does_not_hold_the_bytes_of_its_key_is_found_unless_it_decayed(bench):
    world = World(1)
    memory = SimMemory(4096, sim_runtime(world.host("node")))
    value = value_of(SCOPE, b"k")
    bench.ledger.apply(facts.SegmentMounted(9, NODE, "node", memory.generation, 4096, ()))
    where = Extent(9, 0, len(value))
    bench.ledger.apply(facts.PutOpened(1, CLIENT, 0, b"k", len(value), None, Pin.NONE, 1, (where,)))
    bench.ledger.apply(facts.ObjectCommitted(1, 5, (where,)))
    contents = ContentChecker(value_of, bench.verdicts)
    contents.lent(memory)
    memory.view[: len(value)] = value
    contents.check_all(bench.ledger)
    assert bench.found() == []
    memory.flip(len(value) - 1, 3)
    contents.check_all(bench.ledger)
    assert bench.found() == ["P1"]
    contents.decayed(memory, len(value) - 1)
    contents.check_all(bench.ledger)
    assert bench.found() == ["P1"]
    world.loop.close()


def test_verdicts_are_few_and_can_be_switched_off():
    verdicts = Verdicts(lambda: 1_500_000_000, frozenset({"P1"}))
    for _ in range(2 * MAX_VIOLATIONS):
        verdicts.add("P1", "not judged")
        verdicts.add("P2", "so it is")
    assert [str(violation) for violation in verdicts.found] == ["P2 at 1.500000 s: so it is"] * MAX_VIOLATIONS


class OneLease:
    """A witness in whose book put 1 is leased while `leased` says so."""

    def __init__(self, ledger):
        self.ledger = ledger
        self.leased = True

    def is_leased(self, put_id):
        return self.leased and put_id == 1


def test_p1_what_was_read_without_a_lease_is_not_believed_however_right_the_bytes(bench):
    bench.committed()
    witness = OneLease(bench.ledger)
    guards = GuardChecker(lambda: witness, bench.verdicts)

    def read(operation, offset=0):
        guards.landed(Landing(Peer("client", 11), "c", "n", GENERATION, Memory(), offset, 50, None, operation, False))

    read(1)
    witness.leased = False
    read(2)
    guards.returned("c", 0, b"k")
    guards.returned("another host", 0, b"k")
    assert bench.found() == [], "the first read was under a lease all the time"
    read(1, 50)
    guards.returned("c", 0, b"k")
    assert bench.found() == ["P1"], "now it was not: its last piece came after the lease"


def test_p1_an_object_is_committed_by_the_word_of_its_own_writer(bench):
    bench.decide(opened(1, 0))
    bench.say(NODE, PutEnd((1,), (5,), (1,)))
    bench.decide(landed(1, 0))
    assert bench.found() == ["P1"]


def test_p7_an_object_is_committed_with_the_copies_that_were_asked_for(bench):
    wish = facts.PutOpened(1, CLIENT, 0, b"k", 100, None, Pin.NONE, 2, (extent(0),))
    bench.decide(wish)
    bench.say(CLIENT, PutEnd((1,), (5,), (1,)))
    bench.decide(landed(1, 0))
    assert bench.found() == ["P7"]


def test_p8_the_copies_of_a_put_lie_on_distinct_nodes_and_are_as_many_as_it_needs(bench):
    copies = (extent(0), extent(0, segment=2))
    bench.decide(
        facts.SegmentMounted(2, NODE, "node", OTHER_GENERATION, 4096, ("sim://node/2",)),
        facts.PutOpened(1, CLIENT, 0, b"k", 100, None, Pin.NONE, 1, copies),
    )
    segments = tuple(
        SegmentDescriptor(number, generation, "node", 4096, ())
        for number, generation in ((1, GENERATION), (2, OTHER_GENERATION))
    )
    reply = PutStarted((PutGrant(1, copies),), segments)
    command = PutStart(0, (b"k",), (100,), replicas=3, min_granted=3)
    bench.answers.after(Answer(CLIENT, 1, command, reply, at_once=True))
    assert bench.found() == ["P8", "P7"]


@pytest.mark.parametrize(("reason", "broken"), [("goodbye", []), ("expired", ["P2"]), ("superseded", ["P2"])])
def test_p2_only_a_goodbye_ends_the_leases_of_a_session(bench, reason, broken):
    bench.committed()
    bench.book.grant(7, CLIENT, frozenset({1}), 1_000)
    bench.say(CLIENT, Goodbye())
    bench.ledger.apply(facts.SessionEnded(CLIENT, reason))
    bench.decide(removed(reason="removed"))
    assert bench.found() == broken


@pytest.mark.parametrize("put_id", [None, 3])
def test_p5_a_mount_is_not_touched_any_more_once_its_node_has_mounted_again(bench, put_id):
    bench.landings.landed(write(None, 0))
    bench.decide(
        facts.SegmentGoing(1, "session of its node goodbye"),
        facts.SegmentRemoved(1),
        facts.SegmentMounted(2, NODE, "node", OTHER_GENERATION, 4096, ("sim://node/1",)),
    )
    bench.verdicts.found.clear()
    bench.landings.landed(write(put_id, 0))
    assert bench.found() == ["P5"]


# -- views -----------------------------------------------------------------------------------------------------------


class PretendView:
    """Of some memory, and believed in until it is said to be stale."""

    zero_copy = True

    def __init__(self, data):
        self._data = data
        self.stale = False

    @property
    def data(self):
        if self.stale:
            raise StaleView("stale")
        return self._data


class ViewBench(Bench):
    """A client looks at an object of the bench."""

    def __init__(self):
        super().__init__()
        self.world = World(0)
        host = self.world.host("reader")
        self.memory = SimMemory(4096, sim_runtime(host))
        self.memory.generation = GENERATION
        self.value = value_of(SCOPE, b"k")
        self.committed(size=len(self.value))
        self.memory.view[: len(self.value)] = self.value
        self.view = PretendView(self.memory.mapped(0, len(self.value)))
        self.leased = {1}
        self.now = self
        self.checker = ViewChecker(lambda: self.now, lambda view: self.memory, self.verdicts)
        self.life = host.life

    def is_leased(self, put_id):
        return put_id in self.leased

    def watch(self):
        return self.checker.watched(self.life, b"k", self.view, self.value)

    def write(self, put_id=2):
        self.memory.view[:4] = b"oops"
        peer = Peer("client", 1)
        self.checker.landed(Landing(peer, "c", "n", GENERATION, self.memory, 0, 4, put_id, 1, False))


def test_a_view_that_shows_its_object_under_a_lease_is_no_violation():
    bench = ViewBench()
    with bench.watch():
        bench.checker.landed(Landing(Peer("c", 1), "c", "n", GENERATION, bench.memory, 2048, 4, 2, 1, False))
    assert bench.found() == []


def test_p1_a_view_that_may_be_looked_at_while_something_lands_in_it_is_found():
    bench = ViewBench()
    with bench.watch():
        bench.write()
    assert bench.found() == ["P1"]


def test_a_view_that_knows_that_it_is_stale_a_dead_reader_and_one_that_left_show_nothing():
    for end in ("stale", "dead", "left"):
        bench = ViewBench()
        with bench.watch():
            bench.view.stale = end == "stale"
            bench.life.state = LifeState.DEAD if end == "dead" else LifeState.RUNNING
            if end != "left":
                bench.write()
        bench.write()
        assert bench.found() == [], end


def test_p1_a_view_without_a_lease_is_not_believed_however_right_the_bytes():
    bench = ViewBench()
    with bench.watch():
        bench.leased.clear()
        assert bench.found() == []
        bench.checker.look(bench.view)
    assert bench.found() == ["P1"]


@pytest.mark.parametrize(
    "told", [(facts.SessionEnded(9, "expired"),), (facts.ScopeInterned(0, SCOPE),)], ids=["trips", "differs"]
)
def test_p4_facts_that_build_another_state_or_none_at_all_are_found(bench, told):
    core = MasterCore(CoreConfig(), epoch=1)
    witness = Witness(
        core, World(0).host("master").clock, bench.verdicts, ContentChecker(value_of, bench.verdicts), lambda fact: None
    )
    witness.check_follower()
    assert bench.found() == []
    witness.facts += told
    witness.check_follower()
    assert bench.found() == ["P4"]


def test_p1_a_view_whose_lease_has_lapsed_is_not_left_without_a_word():
    bench = ViewBench()
    with bench.watch():
        assert not bench.checker.lapsed(bench.view)
        bench.leased.clear()
        assert bench.checker.lapsed(bench.view) and bench.found() == []
        bench.checker.left_silently(b"k")
    assert bench.found() == ["P1"] and not bench.checker.lapsed(bench.view)


def test_memory_that_the_master_gave_up_is_given_to_nobody():
    bench = ViewBench()
    bench.leased.clear()
    bench.decide(facts.SessionEnded(NODE, "goodbye"), facts.SegmentGoing(1, "unmounted"), now=1)
    before = bench.found()
    with bench.watch():
        pass
    bench.now = None  # and while there is no master, nothing is given to anybody
    with bench.watch():
        pass
    assert bench.found() == before
