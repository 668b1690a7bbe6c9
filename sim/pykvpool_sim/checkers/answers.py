"""Is what the master answers true? Its replies against the ledger, at the moment of the request.

A lookup that misses an object which is there costs a recompute; one that finds an object which is not there costs wrong
bytes. Both are judged. Answers that took several steps are left out where the world may have moved meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pykvpool.model.commands import ClusterState, Command, Exists, GetReplicas, MatchPrefix, PutEnd, PutStart, PutWait
from pykvpool.model.commands import Touch as TouchCommand
from pykvpool.model.ids import PutId, RequestId, ScopeId, SessionId
from pykvpool.model.objects import ObjectInfo
from pykvpool.model.replies import Done, Existing, Flags, Located, Matched, PutGrant, PutStarted, Reply, State
from pykvpool_sim.checkers.ledger import Holding, Key, Ledger
from pykvpool_sim.checkers.verdicts import Verdicts


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply and what it answers."""

    session: SessionId
    request_id: RequestId
    command: Command
    reply: Reply
    #: Given in the step of its request.
    at_once: bool


class AnswerChecker:
    """One life of the master."""

    def __init__(self, ledger: Ledger, verdicts: Verdicts) -> None:
        self._ledger = ledger
        self._verdicts = verdicts
        self._may_hide: Callable[[Key], bool] = lambda key: False

    def before(self, answer: Answer, may_hide: Callable[[Key], bool] = lambda key: False) -> None:
        """Lookups, against the ledger as it was when the step began. `may_hide`: could a search for room, which is
        under way, hide this object? Then a miss is allowed."""
        if not answer.at_once:
            return
        self._may_hide = may_hide
        match answer.command, answer.reply:
            case GetReplicas(), Located():
                self._located(answer.command, answer.reply)
            case Exists() | TouchCommand(), Flags(flags=flags):
                self._flags(answer.command.scope, answer.command.hashes, flags, answer)
            case MatchPrefix(), Matched():
                self._matched(answer.command, answer.reply)
            case ClusterState(), State():
                self._state(answer.reply)

    def after(self, answer: Answer) -> None:
        """What was decided, against the ledger with the step's facts."""
        match answer.command, answer.reply:
            case PutStart() | PutWait(), PutStarted():
                self._started(answer, answer.reply)
            case PutEnd(), Done():
                self._ended(answer.command, answer.reply)

    def _located(self, command: GetReplicas, reply: Located) -> None:
        for hash_, found in zip(command.hashes, reply.objects, strict=True):
            entry = self._ledger.readable((command.scope, hash_))
            if not isinstance(found, ObjectInfo):
                if entry is not None and not self._may_hide((command.scope, hash_)):
                    self._add("P8", f"{hash_!r} is readable and was answered with {found.message!r}", hash_)
                continue
            if entry is None:
                self._add("P1", f"{hash_!r} is not readable and was answered with {found}", hash_)
                continue
            held = entry.extents(Holding.COMMITTED)
            if (
                found.put_id != entry.fact.put_id
                or found.size_bytes != entry.fact.size_bytes
                or found.checksum != entry.checksum
                or not found.extents
                or not set(found.extents) <= set(held)
            ):
                self._add("P1", f"{hash_!r} was answered with {found}; it is {entry}", hash_, found.put_id)
            if found.extents and not all(self._ledger.is_alive(extent.segment) for extent in found.extents):
                self._add("P5", f"{hash_!r} was answered with {found}, of which a segment goes", hash_, found.put_id)

    def _flags(self, scope: ScopeId, hashes: tuple[bytes, ...], flags: bytes, answer: Answer) -> None:
        for hash_, flag in zip(hashes, flags, strict=True):
            there = self._ledger.readable((scope, hash_)) is not None
            if bool(flag) != there and not (there and self._may_hide((scope, hash_))):
                self._add(
                    "P8" if not flag else "P1", f"{answer.command} was answered {bool(flag)} for {hash_!r}", hash_
                )

    def _matched(self, command: MatchPrefix, reply: Matched) -> None:
        counted = [scope for position, scope in enumerate(command.scopes) if position not in command.presence]
        count = 0
        while count < len(command.hashes) and all(
            self._ledger.readable((scope, command.hashes[count])) is not None for scope in counted
        ):
            count += 1
        missed = [(scope, command.hashes[reply.count]) for scope in counted] if reply.count < count else []
        if count != reply.count and not any(self._may_hide(key) for key in missed):
            self._add("P1" if reply.count > count else "P8", f"{command} matched {reply.count}, there are {count}")

    def _state(self, reply: State) -> None:
        for state in reply.segments:
            segment = self._ledger.segments.get(state.segment)
            if segment is None:
                self._add("P3", f"{state} is not a segment that is mounted")
                continue
            if segment.going is not None:
                continue
            held = dict.fromkeys(Holding, 0)
            for taken in segment.taken.values():
                held[taken.holding] += taken.length
            quarantined, all_bytes = held[Holding.QUARANTINED], sum(held.values())
            if state.free_bytes + state.used_bytes + state.quarantined_bytes != state.capacity_bytes:
                self._add("P3", f"{state}: free, used and quarantined are not its capacity")
            if (state.quarantined_bytes, state.free_bytes) != (quarantined, state.capacity_bytes - all_bytes):
                self._add("P3", f"{state}: facts say {quarantined} quarantined, {all_bytes} taken in all")

    def _started(self, answer: Answer, reply: PutStarted) -> None:
        named = {segment.segment: segment for segment in reply.segments}
        for position, entry in enumerate(reply.entries):
            hash_ = answer.command.hashes[position] if isinstance(answer.command, PutStart) else None
            if isinstance(entry, Existing):
                self._existing(answer, entry.put_id, hash_, position)
            elif isinstance(entry, PutGrant):
                self._granted(answer.command, reply, entry, hash_)
                put = self._ledger.puts.get(entry.put_id)
                if put is None or put.fact.session != answer.session or put.fact.extents != entry.extents:
                    self._add("P2", f"session {answer.session} was given {entry}; it is {put}", hash_, entry.put_id)
                elif hash_ is not None and put.fact.hash != hash_:
                    self._add("P1", f"{hash_!r} was given {entry}, which is for {put.fact.hash!r}", hash_, entry.put_id)
                for extent in entry.extents:
                    # The segment may go in this very step; the name it was told under is its own all the same.
                    told = named.get(extent.segment)
                    segment = self._ledger.by_generation.get(told.generation) if told is not None else None
                    if segment is None or segment.fact.segment != extent.segment:
                        self._add("P5", f"{entry} comes with {told} for segment {extent.segment}", hash_, entry.put_id)

    def _granted(self, command: Command, reply: PutStarted, grant: PutGrant, hash_: bytes | None) -> None:
        nodes = {segment.segment: segment.node for segment in reply.segments}
        if len({nodes.get(extent.segment) for extent in grant.extents}) < len(grant.extents):
            self._add("P8", f"{grant} has two copies on one node: {nodes}", hash_, grant.put_id)
        if isinstance(command, PutStart) and len(grant.extents) < (command.min_granted or command.min_replicas):
            self._add("P7", f"{grant} has fewer copies than {command} needs", hash_, grant.put_id)

    def _existing(self, answer: Answer, put_id: PutId, hash_: bytes | None, position: int) -> None:
        put = self._ledger.puts.get(put_id)
        right_key = put is not None and (hash_ is None or put.fact.hash == hash_)
        right_size = put is not None and (
            not isinstance(answer.command, PutStart) or put.fact.size_bytes == answer.command.sizes[position]
        )
        if put is None or not put.committed or not right_key or not right_size:
            self._add("P1", f"put {put_id} was called existing for {hash_!r}; it is {put}", hash_, put_id)

    def _ended(self, command: PutEnd, reply: Done) -> None:
        errors = reply.errors or (None,) * len(command.puts)
        for put_id, error in zip(command.puts, errors, strict=True):
            put = self._ledger.puts.get(put_id)
            if error is None and (put is None or not put.committed):
                self._add("P4", f"put {put_id} was acknowledged, and no fact says so: {put}", None, put_id)

    def _add(self, promise: str, text: str, hash_: bytes | None = None, put_id: PutId | None = None) -> None:
        self._verdicts.add(promise, text, key=hash_, put_id=put_id)
