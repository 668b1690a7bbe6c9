"""The longest prefix that every rank and every cache group can restore (promise P11).

Full attention and MLA need every block of the prefix; a sliding window needs the blocks under its last window and no
others. A hit ends where blocks of all groups end together, so it is looked for from the far end, in steps of the least
common multiple of their sizes.

Groups that a draft model writes into need one block more than the hit: what a drafter stores for a block's last token
depends on the token after it, which only the next block's hash vouches for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pykvpool.host.port import Found, Question
from pykvpool_connector.vllm.cache_groups import GroupRule
from pykvpool_connector.vllm.identity import Identity

MISSING = b"\0"


class Hits:
    """Questions to the pool and what their answers allow.

    Args:
        identity: the engine's groups and keys.
        draft_groups: numbers of the groups in which a block's last token depends on the token after it.
    """

    def __init__(self, identity: Identity, draft_groups: frozenset[int] = frozenset()) -> None:
        self._identity = identity
        self._groups = identity.groups
        #: Blocks beyond the hit that must match, by place of the group.
        self._proof = tuple(int(rule.group in draft_groups) for rule in identity.groups)
        #: Tokens; a hit is a multiple of it.
        self.unit = math.lcm(*(rule.block_tokens for rule in identity.groups))

    def questions(self, adapter: str, hashes: Sequence[bytes]) -> tuple[Question, ...]:
        """What to ask about a request: one chain of keys for each group, in every rank's scope."""
        return tuple(
            Question(
                self._identity.scopes(adapter, rule.group),
                self._identity.keys(hashes, rule.group),
                presence=rule.kind == "window",
            )
            for rule in self._groups
        )

    def furthest(self, tokens: int) -> int:
        """The longest hit that a request of so many tokens may get: at least one token is left to compute."""
        return (tokens - 1) // self.unit * self.unit

    def longest(self, found: Sequence[Found], local: int, tokens: int) -> int:
        """Tokens of the longest restorable prefix; `local` where the pool has nothing beyond it.

        Args:
            found: the answers to `questions`.
            local: tokens that the engine has itself, a multiple of `unit`. They need not be in the pool.
            tokens: of the request.
        """
        upper = self.furthest(tokens)
        for rule, answer, proof in zip(self._groups, found, self._proof, strict=True):
            if rule.kind == "full":
                upper = min(upper, (answer.count - proof) * rule.block_tokens)
        while (upper := upper // self.unit * self.unit) > local:
            below = upper
            for rule, answer, proof in zip(self._groups, found, self._proof, strict=True):
                if rule.kind == "window":
                    below = min(below, _window_end(rule, answer.presence, local, below, proof))
            if below == upper:
                return upper
            upper = below
        return local


def window_start(rule: GroupRule, end: int) -> int:
    """The first block that a window group needs to go on from a prefix of `end` tokens."""
    return max(0, end - rule.window_tokens + 1) // rule.block_tokens


def _window_end(rule: GroupRule, presence: bytes, local: int, end: int, proof: int) -> int:
    """`end` where every block under the window is there; else an upper bound for ends that may still work."""
    first = max(local // rule.block_tokens, window_start(rule, end))
    last = end // rule.block_tokens + proof
    if last > len(presence):
        return (len(presence) - proof) * rule.block_tokens
    missing = presence.rfind(MISSING, first, last)
    return end if missing < 0 else (missing - proof) * rule.block_tokens
