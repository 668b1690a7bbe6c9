"""What besides its tokens names a block: adapter, images and sounds, salt, prompt embeddings.

Two requests with equal tokens hold different KV if one speaks through a LoRA adapter or has another image behind its
placeholder tokens. vLLM (0.32.0, `generate_block_hash_extra_keys`) therefore hashes *extra keys* with the tokens, each
a tuple that begins with its kind, in this order:

    ("lora", name, path)                 in every block
    ("mm", identifier, offset)           for every item that reaches into the block; offset relative to its start
    ("cache_salt", salt)                 in the first block only: the chain carries it on
    ("prompt_embeds", sha256 of rows)    in every block

A block without any has None. Within the pickle algorithms the *identity* of strings counts as well, because pickle
writes an object it has seen before as a reference; so every text is copied first, as if it had just been decoded from
a request, and a hash never depends on whether a caller happened to pass the same object twice.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from pykvpool.errors import InvalidArgument

#: One extra key, for example ``("mm", "a5f0...", -3)``.
ExtraKey = tuple[str | int | bytes, ...]
ExtraKeys = tuple[ExtraKey, ...]


@dataclass(frozen=True, slots=True)
class LoraAdapter:
    """The adapter of a request. vLLM hashes name and path, not content: content belongs in `KVLayout.adapter`."""

    name: str
    path: str


@dataclass(frozen=True, slots=True)
class MultiModalItem:
    """An image, sound or video whose placeholder tokens stand at [offset, offset + length) of the prompt."""

    #: The engine's hash of the content.
    identifier: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class PromptEmbeds:
    """Embeddings given in place of tokens: the raw bytes of a C-contiguous tensor (tokens, hidden size)."""

    rows: bytes | memoryview
    #: Bytes of one token's row.
    row_bytes: int

    def digest(self, start: int, end: int) -> bytes:
        """SHA-256 of the rows of tokens [start, end); rows past the end count as absent, as in a slice."""
        return hashlib.sha256(self.rows[start * self.row_bytes : end * self.row_bytes]).digest()


@dataclass(frozen=True, slots=True)
class HashExtras:
    """Everything but tokens that names a request's blocks. Raises `InvalidArgument` for items out of order."""

    cache_salt: str = ""
    lora: LoraAdapter | None = None
    #: By rising offset.
    multimodal: tuple[MultiModalItem, ...] = ()
    prompt_embeds: PromptEmbeds | None = None

    def __post_init__(self) -> None:
        offsets = [item.offset for item in self.multimodal]
        if offsets != sorted(offsets):
            raise InvalidArgument("multimodal items must come by rising offset")
        if any(item.offset < 0 or item.length < 0 for item in self.multimodal):
            raise InvalidArgument("a multimodal item has an offset and a length of 0 or more")
        if self.prompt_embeds is not None and self.prompt_embeds.row_bytes < 1:
            raise InvalidArgument("a row of prompt embeddings has at least one byte")

    def keys(self, start: int, end: int) -> ExtraKeys | None:
        """Extra keys of the block of tokens [start, end), in vLLM's order; None where there are none."""
        if self is NO_EXTRAS:
            return None
        keys: list[ExtraKey] = []
        if self.lora is not None:
            keys.append(("lora", _copied(self.lora.name), _copied(self.lora.path)))
        keys.extend(self._multimodal_keys(start, end))
        if start == 0 and self.cache_salt:
            keys.append(("cache_salt", _copied(self.cache_salt)))
        if self.prompt_embeds is not None:
            keys.append(("prompt_embeds", self.prompt_embeds.digest(start, end)))
        return tuple(keys) or None

    def _multimodal_keys(self, start: int, end: int) -> list[ExtraKey]:
        """Items that reach into the block. The first one that goes on beyond its end is the last that counts."""
        keys: list[ExtraKey] = []
        last = self.multimodal[-1] if self.multimodal else None
        if last is None or last.offset + last.length <= start:
            return keys
        for item in self.multimodal:
            if item.offset >= end:
                break
            item_end = item.offset + item.length
            if item_end <= start:
                continue
            keys.append(("mm", _copied(item.identifier), item.offset - start))
            if item_end > end:
                break
        return keys


#: The extras of an ordinary request.
NO_EXTRAS = HashExtras()


def _copied(text: str) -> str:
    """An equal string that is a new object (but for single Latin-1 characters, which exist once per process)."""
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "surrogatepass")
