"""Every shape of cache is restored bit for bit: bfloat16, MLA's joint latents, the parts of tensor-parallel ranks."""

from __future__ import annotations

from hashlib import sha256

from pykvpool.client.sync import SyncClient
from pykvpool.model.keys import Scope
from tests.vllm.engine.conftest import answers
from tests.vllm.engine.models import prompt
from tests.vllm.engine.test_negative_control import SCOPES

BLOCK = 32
#: MLA on a CPU wants blocks of this size.
MLA = {"model": "mla", "block_size": 16}
ONE_RANK = {"worker_extension_cls": "tests.vllm.engine.patient.PatientWorker"}
#: Two ranks, each on a core of its own.
TWO_RANKS = ONE_RANK | {
    "tensor_parallel_size": 2,
    "env": {"VLLM_CPU_OMP_THREADS_BIND": "0|1"},
}


def test_bfloat16_is_restored_and_float32_finds_nothing_of_it(pool, engine, expected):
    """numpy has no bfloat16; and the same folder in another type must not share a key (vLLM PR#56971)."""
    tokens = prompt(21, 6 * BLOCK + 5)
    right = expected([tokens], dtype="bfloat16")
    with engine(pool, dtype="bfloat16") as one:
        assert answers(one.generate([tokens])) == right
        assert one.reset_prefix_cache()
        assert answers(one.generate([tokens])) == right
        assert one.hits() == 6 * BLOCK
    with engine(pool) as other:
        assert answers(other.generate([tokens])) == expected([tokens])
        assert other.hits() == 0
    assert pool.keys() == 12


def test_mla_is_restored(pool, engine, expected):
    prefix, longer, right = one_token_behind(expected, prompt(22, 6 * 16), **MLA)
    with engine(pool, **MLA) as one:
        one.generate([prefix])
        assert pool.keys() == 6
        assert one.reset_prefix_cache()
        assert answers(one.generate([longer])) == right
        assert one.hits() == 6 * 16
    with engine(pool, **MLA) as fresh:
        assert answers(fresh.generate([longer])) == right
        assert fresh.hits() == 6 * 16


def one_token_behind(expected, prefix, **options):
    """`prefix`, the same with the token that follows, and what an engine without a connector answers to that.

    vLLM's MLA for CPUs cannot compute several tokens behind a prefix that is there already, wherever it comes from
    (vLLM switches its own prefix caching and chunked prefill off for it), and it decodes with other matrix products
    than it prefills with. So the token behind the prefix is one that the plain engine has decoded, too.
    """
    [(tokens, logprobs)] = expected([prefix], max_tokens=9, **options)
    return prefix, [*prefix, tokens[0]], [(tokens[1:], logprobs[1:])]


def test_two_tensor_parallel_ranks_restore_their_parts(pool, engine, expected):
    """Keys need the rank: two ranks that write one object corrupt it."""
    tokens = prompt(23, 6 * BLOCK + 5)
    right = expected([tokens], **TWO_RANKS)
    with engine(pool, **TWO_RANKS) as one:
        assert answers(one.generate([tokens])) == right
        assert pool.keys() == 2 * 6
        assert one.reset_prefix_cache()
        assert answers(one.generate([tokens])) == right
        assert one.hits() == 6 * BLOCK
        assert one.leftovers() == {"blocks": 0, "requests": 0}


def test_ranks_that_hold_the_same_latents_store_them_once_and_share_them_with_one_rank(pool, engine):
    """With MLA every tensor-parallel rank holds the same bytes: an engine of two ranks and one of one share blocks.

    Looked at are bytes: what one rank computes of this model is not what two do, without any connector.
    """
    prefix = prompt(24, 6 * 16)
    longer = [*prefix, 7]
    with engine(pool, **MLA, **TWO_RANKS) as two_ranks:
        two_ranks.generate([prefix], max_tokens=1)
        stored = stored_digests(pool, two_ranks)
        assert len(stored) == 6
        assert two_ranks.reset_prefix_cache()
        two_ranks.generate([longer])
        assert two_ranks.hits() == 6 * 16
        assert [stored - set(held) for held in two_ranks.run(DIGESTS)] == [set(), set()]
    with engine(pool, **MLA, **ONE_RANK) as one_rank:
        assert not stored & set(*one_rank.run(DIGESTS))
        one_rank.generate([longer])
        assert one_rank.hits() == 6 * 16
        assert not stored - set(*one_rank.run(DIGESTS))


DIGESTS = 'result = llm.collective_rpc("block_digests")'


def stored_digests(pool, engine) -> set[str]:
    """Of the bytes of every object that an engine has in the pool."""
    [scope] = [Scope(*fields) for fields in engine.run(SCOPES)]
    with SyncClient.connect(pool.address) as client:
        keys = [listed.key for listed in client.list_keys(namespace=scope.namespace)]
        return {sha256(value).hexdigest() for value in client.get_batch(keys, scope=scope)}
