"""Requests, with everything that they are bound to say, and what each of their blocks must hold.

Prompts share beginnings, and go on from conversations that have ended. What a request says depends on its prompt alone,
so that equal prompts have equal conversations.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from vllm.sampling_params import SamplingParams
from vllm.v1.core.kv_cache_utils import get_request_block_hasher
from vllm.v1.request import Request

from pykvpool_connector.vllm.identity import Identity
from tests.vllm.engine.models import VOCABULARY


@dataclass
class Known:
    """A request and the tokens that it is bound to have."""

    request: Request
    tokens: list[int]
    #: Chain over the tokens up to each position.
    chains: list[int]
    aborted: bool = False


class Conversations:
    """Makes requests."""

    def __init__(self, rng: random.Random, identity: Identity, hasher: Callable[[bytes], Any]) -> None:
        self._rng = rng
        self._identity = identity
        self._hasher = hasher
        #: (group, key) -> chains of the block's positions.
        self.truth: dict[tuple[int, bytes], tuple[int, ...]] = {}
        #: Beginnings that prompts share.
        self._families = [self._draw_tokens(200) for _ in range(2)]

    def draw_prompt(self, finished: Iterable[Known]) -> list[int]:
        """A new one, some of it seen before."""
        rng = self._rng
        whole = [known.tokens for known in finished if not known.aborted]
        base = rng.choice(whole) if whole and rng.random() < 0.5 else rng.choice(self._families)
        tokens = base[: rng.randint(1, min(len(base), 260))]
        return tokens + self._draw_tokens(rng.randint(1, 60)) if rng.random() < 0.7 else tokens

    def request(self, name: str, tokens: list[int], output: int, **params: Any) -> Known:
        sampling = SamplingParams(max_tokens=output, ignore_eos=True, temperature=0, **params)
        sampling.update_from_generation_config({}, 2)
        request = Request(
            request_id=name,
            prompt_token_ids=list(tokens),
            sampling_params=sampling,
            pooling_params=None,
            block_hasher=self._hash_request,
        )
        chain = random.Random(repr(tokens))
        known = Known(request, list(tokens) + [chain.randrange(4, VOCABULARY) for _ in range(output + 1)], [])
        chained = 0
        for token in known.tokens:
            chained = hash((chained, token))
            known.chains.append(chained)
        self._learn(known)
        return known

    def _learn(self, known: Known) -> None:
        """Which chains stand behind which key, over all tokens that the request may ever have."""
        sampling = SamplingParams(max_tokens=1)
        whole = Request("truth", known.tokens, sampling, None, block_hasher=self._hash_request)
        for rule in self._identity.groups:
            size = rule.block_tokens
            for at, key in enumerate(self._identity.keys(whole.block_hashes, rule.group)):
                self.truth[rule.group, key] = tuple(known.chains[at * size : (at + 1) * size])

    def _hash_request(self, request: Request) -> list[Any]:
        return get_request_block_hasher(self._identity.hash_block_tokens, self._hasher)(request)

    def _draw_tokens(self, number: int) -> list[int]:
        return [self._rng.randrange(4, VOCABULARY) for _ in range(number)]
