"""Stands between the master's shell and its core, and shows every event and effect to the checkers.

The core is the real one; the witness changes nothing. One witness is one life of the master.
"""

from __future__ import annotations

from collections.abc import Callable

from pykvpool.core.config import CoreConfig
from pykvpool.core.effects import Effects
from pykvpool.core.master import MasterCore
from pykvpool.errors import PoolError
from pykvpool.model.commands import Command, GetReplicas, MatchPrefix, PutWait, Release, Renew
from pykvpool.model.events import Event, Request
from pykvpool.model.facts import Fact, ObjectCommitted, PutOpened
from pykvpool.model.ids import LeaseId, PutId, RequestId, SessionId
from pykvpool.model.objects import ObjectInfo, Pin
from pykvpool.model.replies import Done, Located, Matched, PutGrant, PutStarted, Reply
from pykvpool.runtime import Clock
from pykvpool_sim.checkers.answers import Answer, AnswerChecker
from pykvpool_sim.checkers.contents import ContentChecker
from pykvpool_sim.checkers.leases import LeaseBook
from pykvpool_sim.checkers.ledger import Key, Ledger
from pykvpool_sim.checkers.queue import QueueChecker
from pykvpool_sim.checkers.rules import Rules
from pykvpool_sim.checkers.verdicts import Verdicts

#: The core checks its own invariants after so many steps: often enough to be near the step that broke one.
VALIDATE_EVERY = 50

OnFact = Callable[[Fact], None]


class Witness:
    """A `pykvpool.master.Decider`."""

    def __init__(
        self, core: MasterCore, clock: Clock, verdicts: Verdicts, contents: ContentChecker, on_fact: OnFact
    ) -> None:
        self.core = core
        self._clock = clock
        self._verdicts = verdicts
        self._contents = contents
        self._on_fact = on_fact
        self.ledger = Ledger(core.config.alignment_bytes, verdicts)
        self._book = LeaseBook(self.ledger)
        self._rules = Rules(core.config, self.ledger, self._book, verdicts)
        self._answers = AnswerChecker(self.ledger, verdicts)
        self._queue = QueueChecker(self.ledger, verdicts)
        #: All facts, for the follower that must come to the same state.
        self.facts: list[Fact] = []
        #: Requests without an answer, and the step they came in.
        self._asked: dict[tuple[SessionId, RequestId], tuple[Command, int, int]] = {}
        self._first_replies: dict[tuple[SessionId, RequestId], Reply] = {}
        self._steps = 0
        self._now = 0
        #: After the last step the core had nothing more to do at once.
        self._idle = True

    @property
    def config(self) -> CoreConfig:
        return self.core.config

    @property
    def epoch(self) -> int:
        return self.core.epoch

    def next_deadline(self) -> int | None:
        return self.core.next_deadline()

    def step(self, event: Event, now: int) -> Effects:
        self._now = max(self._now, now)
        self._steps += 1
        self._hear(event)
        try:
            effects = self.core.step(event, now)
        except PoolError as error:
            self._verdicts.add("bug", f"the core failed on {event}: {error}")
            raise
        self._judge(effects)
        if self._steps % VALIDATE_EVERY == 0:
            self.validate()
        return effects

    def is_leased(self, put_id: PutId) -> bool:
        """A lease over this object is in force, on the master's clock."""
        return self._book.covering(put_id, self._clock.now_ms()) is not None

    def leases(self) -> list[LeaseId]:
        """Those that may be in force, oldest first."""
        return self._book.known()

    def validate(self) -> None:
        """The core's own invariants."""
        try:
            self.core.validate()
        except PoolError as error:
            self._verdicts.add("P3", f"the core's own check: {error}")

    def check_follower(self) -> None:
        """Facts alone rebuild the durable state."""
        follower = MasterCore(self.core.config, self.core.epoch)
        try:
            for fact in self.facts:
                follower.evolve(fact)
        except (PoolError, LookupError) as error:  # a fact that is missing makes later ones trip
            self._verdicts.add("P4", f"the facts cannot be replayed: {error!r}")
            return
        if follower.durable_state() != self.core.durable_state():
            self._verdicts.add("P4", "the facts, replayed, build another state than the master has")

    # -- what comes in -------------------------------------------------------------------------------------------

    def _hear(self, event: Event) -> None:
        self._rules.hear(event, self._now)
        if not isinstance(event, Request) or event.session not in self.ledger.sessions:
            return
        key, command = (event.session, event.request_id), event.command
        if key in self._asked or key in self._first_replies:
            return
        self._asked[key] = (command, self._steps, self._now)
        if isinstance(command, PutWait):
            self._queue.asked(*key, command, self._now, self.config.max_wait_ms)
        elif isinstance(command, Release):
            for lease in command.leases:
                self._book.release(lease, event.session)

    # -- what comes out ------------------------------------------------------------------------------------------

    def _judge(self, effects: Effects) -> None:
        answers = [answer for reply in effects.replies if (answer := self._answer(*reply)) is not None]
        for answer in answers:
            self._answers.before(answer, self._may_hide)
            self._lease(answer)
        for answer in answers:
            self._tell(answer)
        for fact in effects.facts:
            self._rules.decide(fact, self._now)
            self.ledger.apply(fact)
            self.facts.append(fact)
            self._on_fact(fact)
            if isinstance(fact, PutOpened):
                self._queue.opened(fact)
            elif isinstance(fact, ObjectCommitted):
                self._contents.check(self.ledger, self.ledger.puts[fact.put_id])
        deadline = self.core.next_deadline()
        self._idle = deadline is None or deadline > self._now
        self._rules.stepped(effects.facts, self._now, idle=self._idle)
        for _, instruction in effects.instructions:
            self._rules.instruct(instruction)
        for answer in answers:
            self._answers.after(answer)
            self._queue.answered(answer, self._now)
        self._queue.stepped(self._now)
        self._book.forget_ended(self._now)

    def _may_hide(self, key: Key) -> bool:
        """A search for room that takes several steps may hide what it is about to evict, and let it stay after all: a
        miss costs a recompute. It never hides what must not be evicted, and nothing when it has ended."""
        put_id = self.ledger.objects.get(key)
        guarded = put_id is not None and self._book.covering(put_id, self._now) is not None
        return not self._idle and not guarded and self.ledger.pins.get(key) != Pin.HARD

    def _answer(self, session: SessionId, request_id: RequestId, reply: Reply) -> Answer | None:
        """None for welcomes, and for what was answered before (which must be the same answer)."""
        key = (session, request_id)
        asked = self._asked.pop(key, None)
        if asked is None:
            before = self._first_replies.get(key)
            if before is not None and before != reply:
                self._verdicts.add("P1", f"request {key} was answered {before}, and when repeated {reply}")
            return None
        self._first_replies[key] = reply
        command, step, _ = asked
        return Answer(session, request_id, command, reply, at_once=step == self._steps)

    def _tell(self, answer: Answer) -> None:
        """From now on the writer knows its extents."""
        if isinstance(answer.reply, PutStarted):
            for entry in answer.reply.entries:
                if isinstance(entry, PutGrant):
                    self._rules.told.add(entry.put_id)

    def _lease(self, answer: Answer) -> None:
        config = self.config
        match answer.command, answer.reply:
            case GetReplicas(), Located(objects=objects, lease=lease, lease_ms=lease_ms) if lease is not None:
                puts = frozenset(found.put_id for found in objects if isinstance(found, ObjectInfo))
                self._grant(lease, answer, puts, lease_ms)
            case MatchPrefix() as command, Matched(lease=lease, lease_ms=lease_ms) as matched if lease is not None:
                self._grant(lease, answer, self._matched_puts(command, matched), lease_ms)
            case Renew(leases=leases, lease_ms=asked_ms), Done(errors=errors):
                for position, renewed in enumerate(leases):
                    if errors and errors[position] is not None:
                        continue
                    if self._book.is_over(renewed, self._now):
                        self._verdicts.add("P2", f"lease {renewed} had lapsed, and was renewed")
                    self._book.renew(renewed, self._now + (asked_ms or config.lease_ms))

    def _grant(self, lease: LeaseId, answer: Answer, puts: frozenset[PutId], lease_ms: int) -> None:
        # Granted when it was asked for; an answer that took several steps came after the grant.
        if answer.at_once:
            self._book.grant(lease, answer.session, puts, self._now + lease_ms)

    def _matched_puts(self, command: MatchPrefix, reply: Matched) -> frozenset[PutId]:
        keys = []
        for position, scope in enumerate(command.scopes):
            if position in command.presence:
                flags = reply.presence[command.presence.index(position)]
                keys += [(scope, hash_) for hash_, flag in zip(command.hashes, flags, strict=True) if flag]
            else:
                keys += [(scope, hash_) for hash_ in command.hashes[: reply.count]]
        return frozenset(self.ledger.objects[key] for key in keys if key in self.ledger.objects)
