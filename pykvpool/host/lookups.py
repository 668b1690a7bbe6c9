"""What a request can find in the pool, and the holds that keep it there until the request has it or gives it up.

One lookup asks a question for each cache group; each is a `match_prefix` with `hold`, cut where it is over the limits
of one command. The leases are renewed until the lookup is released. When one is gone (the master restarted, or a
renewal came too late, or its lifetime is over) that is said once: the request asks again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pykvpool.client import Client, HeldLease
from pykvpool.host.port import Found, Lookup, Question
from pykvpool.model.commands import MAX_BATCH_KEYS, MAX_SCOPES
from pykvpool.model.keys import Scope


class Holds:
    """The leases of one lookup."""

    def __init__(self) -> None:
        self._leases: list[HeldLease] = []
        self._lapsed = False

    def add(self, lease: HeldLease | None) -> None:
        if lease is not None and lease.lease is not None:
            self._leases.append(lease)

    def keep(self, on_lapse: Callable[[], None]) -> None:
        """Renew until released; `on_lapse` is called once, when the first is gone."""

        def lapsed() -> None:
            if not self._lapsed:
                self._lapsed = True
                on_lapse()

        for lease in self._leases:
            lease.keep_alive(lapsed)

    def release(self) -> None:
        """Give everything up. Harmless twice."""
        self._lapsed = True
        leases, self._leases = self._leases, []
        for lease in leases:
            lease.release()


async def ask(client: Client, lookup: Lookup, holds: Holds, timeout_s: float) -> tuple[Found, ...]:
    """The answers, one for each question; the leases are in `holds`, also of an ask that failed half way."""
    return tuple([await _answer(client, question, holds, timeout_s) for question in lookup.questions])


async def _answer(client: Client, question: Question, holds: Holds, timeout_s: float) -> Found:
    if not question.keys or not question.scopes:
        return Found(0, b"")
    if question.presence:
        flags = b"".join([await _present(client, question, part, holds, timeout_s) for part in _parts(question.keys)])
        missing = flags.find(0)
        return Found(len(flags) if missing < 0 else missing, flags)
    count = 0
    for part in _parts(question.keys):
        there = len(part)
        for scopes in _scopes(question.scopes):
            if there:
                match = await client.match_prefix(part[:there], scopes, hold=True, timeout_s=timeout_s)
                holds.add(match.hold)
                there = match.count
        count += there
        if there < len(part):
            break
    return Found(count, b"")


async def _present(client: Client, question: Question, keys: Sequence[bytes], holds: Holds, timeout_s: float) -> bytes:
    """One byte for each key: is it readable in every scope?"""
    everywhere = [True] * len(keys)
    for scopes in _scopes(question.scopes):
        match = await client.match_prefix(
            keys, scopes, presence=range(len(scopes)), hold=True, timeout_s=timeout_s
        )  # fmt: skip
        holds.add(match.hold)
        everywhere = [all(flags) for flags in zip(everywhere, *match.presence, strict=True)]
    return bytes(everywhere)


def _parts(keys: Sequence[bytes]) -> list[Sequence[bytes]]:
    return [keys[start : start + MAX_BATCH_KEYS] for start in range(0, len(keys), MAX_BATCH_KEYS)]


def _scopes(scopes: Sequence[Scope]) -> list[Sequence[Scope]]:
    return [scopes[start : start + MAX_SCOPES] for start in range(0, len(scopes), MAX_SCOPES)]
