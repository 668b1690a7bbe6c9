"""From a described prompt to the block hashes that name it, as an engine gets them: hash every block, every turn.

Token streams are drawn from their name and the seed, so every engine and both passes see equal tokens without any being
sent. A recorded prompt has no tokens, only ids that already stand for a block and all before it; an id is hashed as if
it were the one token of its block, salted with its scope, which gives equal chains exactly where the trace has them.
"""

from __future__ import annotations

import random
from array import array
from dataclasses import dataclass

from pykvpool.cli.demo.turns import StreamPrompt, Turn
from pykvpool.hashing import BlockHasher, HashExtras

#: Algorithm and seed of the demo's engines (vLLM's default algorithm; a seed that is the same in every process).
HASH_ALGORITHM = "sha256"
HASH_SEED = "0"
#: Token ids are below this (a power of two, about the vocabulary of a present-day model).
VOCABULARY = 1 << 17
#: Tokens drawn at a time.
DRAW_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class PromptBlocks:
    """The full blocks of one turn."""

    hashes: list[bytes]
    #: How many of them are prompt; the rest is filled by the output.
    prompt_blocks: int


class PromptHasher:
    """Hashes the turns that one engine gets."""

    def __init__(self, seed: int, block_tokens: int) -> None:
        self._seed = seed
        self._block_tokens = block_tokens
        self._tokens = BlockHasher(HASH_ALGORITHM, HASH_SEED, block_tokens)
        self._ids = BlockHasher(HASH_ALGORITHM, HASH_SEED, 1)
        #: Stream name -> (its generator, the tokens drawn so far).
        self._streams: dict[str, tuple[random.Random, list[int]]] = {}

    def blocks(self, turn: Turn) -> PromptBlocks:
        """Hashes of all full blocks that the engine knows after `turn`."""
        prompt = turn.prompt
        if isinstance(prompt, StreamPrompt):
            tokens: list[int] = []
            for part in prompt.parts:
                extra = turn.output_tokens if part is prompt.parts[-1] else 0
                tokens += self._stream(part.stream, part.tokens + extra)
            return PromptBlocks(self._tokens.hash_tokens(tokens), turn.input_tokens // self._block_tokens)
        hashes = self._ids.hash_tokens(prompt.ids, HashExtras(cache_salt=prompt.scope))
        return PromptBlocks(hashes, len(hashes))

    def _stream(self, name: str, length: int) -> list[int]:
        """The first `length` tokens of a stream."""
        if name not in self._streams:
            self._streams[name] = (random.Random(f"{self._seed}/{name}"), [])
        generator, tokens = self._streams[name]
        while len(tokens) < length:
            drawn = array("I", generator.randbytes(DRAW_TOKENS * 4))
            tokens += [value % VOCABULARY for value in drawn]
        return tokens[:length]
