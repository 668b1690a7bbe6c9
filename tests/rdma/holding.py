"""A real `Verbs` whose devices can be held: requests are kept back in front of the send queue, a few are let through.

So a test may stop a transfer in its middle, as with the fake, while everything that does happen is real. It may also
spoil requests on their way, and let the send queue appear full.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from pykvpool.fabric.verbs import DeviceName, QueuePairLimits, Verbs, VerbsError, WorkRequest
from pykvpool.fabric.verbs.protocol import CompletionQueue, DeviceContext, ProtectionDomain, QueuePair


class Card:
    """What one device keeps back."""

    def __init__(self) -> None:
        self.held = False
        self.pairs: list[HeldQueuePair] = []
        #: What becomes of the next requests, one each.
        self.spoil: deque[Callable[[WorkRequest], WorkRequest]] = deque()
        #: Refuse the next posts, having taken one request of each.
        self.full = 0
        #: Requests that were posted.
        self.posted = 0

    @property
    def under_way(self) -> int:
        return sum(len(pair.kept) for pair in self.pairs)

    def hold(self) -> None:
        self.held = True

    def step(self, count: int = 1) -> int:
        done = 0
        for pair in self.pairs:
            while pair.kept and done < count:
                pair.send([pair.kept.popleft()])
                done += 1
        return done

    def release(self) -> None:
        self.held = False
        self.step(self.under_way)


class Delegating:
    """Everything that is not said here is the inner object's."""

    def __init__(self, inner: Any, card: Card) -> None:
        self.inner = inner
        self.card = card

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class HeldQueuePair(Delegating):
    inner: QueuePair

    def __init__(self, inner: QueuePair, card: Card) -> None:
        super().__init__(inner, card)
        self.kept: deque[WorkRequest] = deque()
        card.pairs.append(self)

    def post(self, requests: Sequence[WorkRequest]) -> None:
        if self.card.held:
            self.kept += requests
        else:
            self.send(requests)

    def send(self, requests: Sequence[WorkRequest]) -> None:
        card = self.card
        requests = [card.spoil.popleft()(request) if card.spoil else request for request in requests]
        if card.full:
            card.full -= 1
            self.inner.post(requests[:1])
            raise VerbsError("post to a queue pair", "a full card", errno.ENOMEM, os.strerror(errno.ENOMEM), posted=1)
        card.posted += len(requests)
        self.inner.post(requests)

    def to_error(self) -> None:
        assert not self.kept, "who flushes a held queue pair?"
        self.inner.to_error()

    def close(self) -> None:
        self.kept.clear()
        self.inner.close()
        if self in self.card.pairs:
            self.card.pairs.remove(self)


class HeldDomain(Delegating):
    inner: ProtectionDomain

    def queue_pair(self, completions: CompletionQueue, limits: QueuePairLimits) -> HeldQueuePair:
        return HeldQueuePair(self.inner.queue_pair(completions, limits), self.card)


class HeldContext(Delegating):
    inner: DeviceContext

    def protection_domain(self) -> HeldDomain:
        return HeldDomain(self.inner.protection_domain(), self.card)


class HoldingVerbs:
    """`verbs`, of which only `names` are shown."""

    def __init__(self, verbs: Verbs, *names: str) -> None:
        self.name = verbs.name
        self.version = verbs.version
        self.pins_memory = verbs.pins_memory
        self._inner = verbs
        self._cards = {name: Card() for name in names}

    def __getitem__(self, name: str) -> Card:
        return self._cards[name]

    def devices(self) -> list[DeviceName]:
        return [device for device in self._inner.devices() if device.name in self._cards]

    def open(self, name: str) -> HeldContext:
        return HeldContext(self._inner.open(name), self._cards[name])
