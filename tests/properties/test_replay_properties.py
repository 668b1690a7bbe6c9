"""The master core as a function of its events: facts alone rebuild it, the same events make it say the same, and what
is asked twice is done once. The histories are those of tests/core, followed step by step."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from pykvpool.model import commands
from pykvpool.model.events import Request
from pykvpool.model.ids import RequestId
from pykvpool.model.replies import ErrorInfo
from tests.core.test_core_histories import KEYS, Histories
from tests.properties.budgets import budget
from tests.properties.recording import FollowedWorld


class FollowedHistories(Histories):
    """`FollowedWorld` compares after every step; the rules below add what a bad network does."""

    new_world = FollowedWorld

    def requests(self) -> list[tuple[int, Request]]:
        """Requests of sessions that live, with their places in the history."""
        return [
            (place, event)
            for place, (event, _, _) in enumerate(self.world.history)
            if isinstance(event, Request) and self.world.peers[event.session].is_alive()
        ]

    @precondition(lambda self: self.requests())
    @rule(back=st.integers(0, 40))
    def a_request_comes_twice(self, back: int) -> None:
        """It gets the reply it got, or is told that the reply had arrived; it is not carried out again."""
        requests = self.requests()
        _, request = requests[-1 - back % len(requests)]
        before = self.world.core.durable_state()
        first = self.world.peers[request.session].replies.get(request.request_id, [])
        effects = self.world.repeat_unseen(request)
        answers = [reply for session, number, reply in effects.replies if number == request.request_id]
        if not first:
            assert answers == [], "it still waits, and will be answered once"
        elif answers != first:
            (answer,) = answers
            assert isinstance(answer, ErrorInfo) and "acknowledged" in answer.message
        # Time may have been due in that step; a repeat by itself decides nothing.
        if not effects.facts:
            assert self.world.core.durable_state() == before
        assert not any(type(fact).__name__ == "PutOpened" for fact in effects.facts) or self.waiters_were_due()

    @rule(number=st.integers(0, 1 << 16), key=st.sampled_from(KEYS))
    def a_reply_that_was_acknowledged_out_of_turn_is_not_new_again(self, number: int, key: bytes) -> None:
        """One slow request must not pin the replies to all later ones; a late duplicate of those is still none."""
        client = self.client(number)
        repeated = client.send(commands.Touch(self.world.scope, (key,)))
        if client.reply(repeated) is None:
            return
        request = next(event for event, _, _ in reversed(self.world.history) if isinstance(event, Request))
        client.last_request += 1
        word = Request(client.id, RequestId(client.last_request), RequestId(0), commands.Heartbeat(), (repeated,))
        self.world.step(word)
        effects = self.world.repeat_unseen(request)
        (answer,) = [reply for _, ident, reply in effects.replies if ident == repeated]
        assert isinstance(answer, ErrorInfo) and "acknowledged" in answer.message

    def waiters_were_due(self) -> bool:
        """Somebody queued for room: a step may grant that, whatever the event."""
        return bool(self.tickets)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.settle()
            self.world.told_again()


class FollowedSlices(FollowedHistories):
    """The same with the smallest slices: everything may come between everything."""

    slice_objects = 1


TestFollowedHistories = FollowedHistories.TestCase
TestFollowedHistories.settings = budget(100)
TestFollowedSlices = FollowedSlices.TestCase
TestFollowedSlices.settings = budget(60)


def test_a_history_does_not_depend_on_the_hash_seed_of_its_process() -> None:
    """Or a master restarted elsewhere, a follower, and a replayed simulation would each decide for themselves."""
    root = Path(__file__).parents[2]
    digests = {
        subprocess.run(
            [sys.executable, "-m", "tests.properties.scripted_history", *map(str, range(8))],
            cwd=root,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join([str(root), *sys.path])},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("0", "1", "4711")
    }
    (said,) = digests
    assert len(set(said.split())) == 8, "every seed is another history"
