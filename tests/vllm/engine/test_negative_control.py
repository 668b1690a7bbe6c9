"""The tests would notice wrong bytes: an engine that loads blocks whose bytes are reversed answers differently."""

from __future__ import annotations

from pykvpool.client import PutItem
from pykvpool.client.sync import SyncClient
from pykvpool.model.keys import Scope
from tests.vllm.engine.conftest import answers
from tests.vllm.engine.models import prompt

BLOCK = 32
SCOPES = """
identity = scheduler.connector._identity
result = [[s.namespace, s.fingerprint, s.rank, s.group] for s in identity.scopes("", 0)]
"""


def test_reversed_bytes_give_other_tokens(pool, engine, expected):
    tokens = prompt(11, 8 * BLOCK + 5)
    right = expected([tokens])
    with engine(pool) as one:
        assert answers(one.generate([tokens])) == right
        [scope] = [Scope(*fields) for fields in one.run(SCOPES)]
        reverse_all(pool.address, scope, blocks=8)
        assert one.reset_prefix_cache()
        assert answers(one.generate([tokens])) != right
        assert one.hits() == 8 * BLOCK


def test_the_same_bytes_put_by_another_hand_give_the_same_tokens(pool, engine, expected):
    """The control of the control: taking objects out and putting them back changes nothing."""
    tokens = prompt(12, 8 * BLOCK + 5)
    right = expected([tokens])
    with engine(pool) as one:
        one.generate([tokens])
        [scope] = [Scope(*fields) for fields in one.run(SCOPES)]
        reverse_all(pool.address, scope, blocks=8)
        reverse_all(pool.address, scope, blocks=8)
        assert one.reset_prefix_cache()
        assert answers(one.generate([tokens])) == right
        assert one.hits() == 8 * BLOCK


def reverse_all(master: str, scope: Scope, blocks: int) -> None:
    """Replace every object of a scope by its bytes in the opposite order."""
    with SyncClient.connect(master) as client:
        keys = [listed.key for listed in client.list_keys(namespace=scope.namespace)]
        assert len(keys) == blocks
        objects = client.get_batch(keys, scope=scope)
        client.remove_batch(keys, scope=scope)
        stored = client.put_batch(
            [PutItem(key, value[::-1]) for key, value in zip(keys, objects, strict=True)], scope=scope
        )
        assert not [each for each in stored if isinstance(each, Exception)]
