"""Wrong options are refused when vLLM puts its configuration together, before it loads weights."""

import pytest
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector

from pykvpool.errors import ConfigError
from pykvpool_connector.vllm.connector import PyKVPoolStoreConnector

NAME = "PyKVPoolStoreConnector"


def test_the_hook_that_the_configuration_calls_checks_the_options():
    assert PyKVPoolStoreConnector.requires_piecewise_for_cudagraph({"min_load_tokens": 16}) is False
    with pytest.raises(ConfigError, match="min_load_tokens"):
        PyKVPoolStoreConnector.requires_piecewise_for_cudagraph({"min_load_token": 16})


def test_inside_multi_connector_too():
    child = {"kv_connector": NAME, "kv_role": "kv_both", "kv_connector_extra_config": {"min_load_token": 16}}
    with pytest.raises(ConfigError, match="min_load_tokens"):
        MultiConnector.requires_piecewise_for_cudagraph({"connectors": [child]})
