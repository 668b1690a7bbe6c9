"""Inside vLLM's MultiConnector, in either place, registered by name or found by path."""

from __future__ import annotations

import pytest

from tests.vllm.engine.conftest import answers
from tests.vllm.engine.driver import transfer_config
from tests.vllm.engine.models import prompt
from tests.vllm.engine.neighbour import beside

BLOCK = 32


@pytest.mark.parametrize(("first", "by_path"), [(True, False), (False, True), (True, True), (False, False)])
def test_it_behaves_beside_another_connector(pool, engine, expected, first, by_path):
    tokens = prompt(61, 6 * BLOCK + 5)
    right = expected([tokens])
    ours = transfer_config(by_path=by_path, master=pool.address)
    ours.pop("kv_load_failure_policy")  # only the outermost counts
    with engine(transfer=beside(ours, first=first)) as one:
        assert answers(one.generate([tokens])) == right
        assert one.reset_prefix_cache()
        assert answers(one.generate([tokens])) == right
        assert one.hits() == 6 * BLOCK
        assert one.metrics()["vllm:pykvpool_saves"] > 0
        assert one.leftovers() == {"blocks": 0, "requests": 0}
