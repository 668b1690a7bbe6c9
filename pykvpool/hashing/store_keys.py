"""The one builder of store keys (promise P11).

A lookup that builds keys a little differently from the save never hits, silently (LMCache#1728). So the scheduler that
looks up and the workers that save and load all go through `KeyBuilder`: layout, rank and group give the `Scope`, the
chain's hashes give the key bytes. What two ranks hold in common has one scope for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from pykvpool.errors import InvalidArgument, LimitExceeded
from pykvpool.hashing.algorithms import algorithm_named
from pykvpool.hashing.fingerprint import GroupLayout, KVLayout
from pykvpool.model.commands import MAX_SCOPES
from pykvpool.model.keys import DEFAULT_NAMESPACE, MAX_SCOPE_FIELD_BYTES, Scope

#: Joins the fields of a scope's text, and so may stand in none of them.
SEPARATOR = "/"
#: Fields of a full scope text: namespace, fingerprint, rank, group.
SCOPE_FIELDS = 4
#: More than any model has groups, and far from where Python refuses to read a number.
MAX_GROUP_DIGITS = 9


@dataclass(frozen=True, slots=True, order=True)
class Rank:
    """Which part of the model a worker holds."""

    tensor: int = 0
    pipeline: int = 0
    prefill_context: int = 0
    decode_context: int = 0


class KeyBuilder:
    """Scopes and keys of one layout in one namespace.

    Args:
        layout: what shapes the bytes; a request with a LoRA adapter needs a builder whose layout names the adapter.
        namespace: keeps deployments apart (against accidents; it is no security boundary).
        tensor_size: tensor-parallel ranks. Those that hold the same part of the KV heads share a scope.

    Raises:
        InvalidArgument: a namespace that no scope can carry, or ranks that the shards do not divide.
    """

    def __init__(self, layout: KVLayout, namespace: str = DEFAULT_NAMESPACE, tensor_size: int = 1) -> None:
        shards = layout.parallel.kv_shards
        if tensor_size < 1 or tensor_size % shards:
            raise InvalidArgument(
                f"{tensor_size} tensor-parallel ranks cannot hold {shards} KV shards evenly: "
                f"the number of ranks is a multiple of {shards}"
            )
        _check_field("namespace", namespace)
        self.layout = layout
        self.namespace = namespace
        self.tensor_size = tensor_size
        self.fingerprint = layout.fingerprint
        #: Bytes of every hash that may become a key here.
        self._digest_bytes = algorithm_named(layout.hash_algorithm).digest_bytes

    def scope(self, rank: Rank, group: int) -> Scope:
        """The scope of one worker's part of the blocks of one cache group."""
        parallel = self.layout.parallel
        self._group(group)
        for name, size in (
            ("tensor", self.tensor_size),
            ("pipeline", parallel.pipeline_size),
            ("prefill_context", parallel.prefill_context_size),
            ("decode_context", parallel.decode_context_size),
        ):
            at = getattr(rank, name)
            if not 0 <= at < size:
                raise InvalidArgument(f"{name} rank {at} is not one of the {size} there are")
        shard = rank.tensor // (self.tensor_size // parallel.kv_shards)
        part = f"tp{shard}-pp{rank.pipeline}-pcp{rank.prefill_context}-dcp{rank.decode_context}"
        return Scope(self.namespace, self.fingerprint, part, group)

    def scopes(self, groups: Sequence[int] | None = None) -> tuple[Scope, ...]:
        """Scopes of every rank for `groups` (None: all), each once: a block can be used when it is there in all.

        Raises `LimitExceeded` where one lookup cannot carry that many.
        """
        parallel = self.layout.parallel
        wanted = range(len(self.layout.groups)) if groups is None else groups
        step = self.tensor_size // parallel.kv_shards
        ranks = product(
            range(0, self.tensor_size, step),
            range(parallel.pipeline_size),
            range(parallel.prefill_context_size),
            range(parallel.decode_context_size),
        )
        scopes = tuple(self.scope(Rank(*rank), group) for rank, group in product(ranks, wanted))
        if len(scopes) > MAX_SCOPES:
            raise LimitExceeded(
                f"{len(scopes)} scopes (ranks x groups): one lookup carries at most {MAX_SCOPES}",
                scopes=len(scopes),
                limit=MAX_SCOPES,
            )
        return scopes

    def keys(self, hashes: Sequence[bytes], group: int) -> list[bytes]:
        """Keys of the blocks of `group` that `hashes` (a chain from its beginning) cover wholly, in order.

        A group whose blocks span several hashes is keyed by the last of each: it depends on all before. Raises
        `InvalidArgument` for hashes that are not of the layout's algorithm.
        """
        span = self._group(group).block_tokens // self.layout.hash_block_tokens
        keys = list(hashes[span - 1 :: span])
        for key in keys:
            if len(key) != self._digest_bytes:
                raise InvalidArgument(
                    f"a {self.layout.hash_algorithm} hash has {self._digest_bytes} bytes, this one has {len(key)}"
                )
        return keys

    def _group(self, group: int) -> GroupLayout:
        if not 0 <= group < len(self.layout.groups):
            raise InvalidArgument(f"group {group} is not one of the {len(self.layout.groups)} of this layout")
        return self.layout.groups[group]


def format_scope(scope: Scope) -> str:
    """`Scope.text`, refused with `InvalidArgument` where it could not be read back."""
    _check_field("namespace", scope.namespace)
    _check_field("fingerprint", scope.fingerprint, may_be_empty=True)
    _check_field("rank", scope.rank, may_be_empty=True)
    return scope.text()


def parse_scope(text: str) -> Scope:
    """The scope that `format_scope` wrote as `text`; raises `InvalidArgument` for anything else."""
    parts = text.split(SEPARATOR)
    group = 0
    if len(parts) == SCOPE_FIELDS and parts[3].isascii() and parts[3].isdigit() and len(parts[3]) <= MAX_GROUP_DIGITS:
        group = int(parts[3])
    elif len(parts) != 1:
        raise InvalidArgument(f"{text[:80]!r} is no scope: expected 'namespace' or 'namespace/fingerprint/rank/group'")
    scope = Scope(parts[0], parts[1], parts[2], group) if len(parts) == SCOPE_FIELDS else Scope(parts[0])
    if format_scope(scope) != text:
        raise InvalidArgument(f"{text[:80]!r} is no scope: it would be written as {scope.text()!r}")
    return scope


def _check_field(name: str, value: str, *, may_be_empty: bool = False) -> None:
    if not value and not may_be_empty:
        raise InvalidArgument(f"the {name} of a scope is empty")
    if SEPARATOR in value:
        raise InvalidArgument(f"the {name} {value[:80]!r} contains {SEPARATOR!r}, which joins the fields of a scope")
    if len(value.encode("utf-8", "surrogatepass")) > MAX_SCOPE_FIELD_BYTES:
        raise InvalidArgument(f"the {name} of a scope is over {MAX_SCOPE_FIELD_BYTES} bytes")
