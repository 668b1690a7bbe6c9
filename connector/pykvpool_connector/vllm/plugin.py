"""Makes `--kv-transfer-config '{"kv_connector": "PyKVPoolStoreConnector", ...}'` work where this package is installed.

vLLM calls `register` in every one of its processes, used or not, and an exception here would stop them all. So this
imports nothing but vLLM's own registry, tells it a name and where to find it, and never raises: a vLLM that has no such
registry only lacks the connector, and says so when somebody asks for it.
"""

from __future__ import annotations

import contextlib
import logging

NAME = "PyKVPoolStoreConnector"
MODULE = "pykvpool_connector.vllm.connector"


def register() -> None:
    """Tell vLLM's factory about the connector. May be called any number of times."""
    try:
        from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

        with contextlib.suppress(ValueError):  # registered already
            KVConnectorFactory.register_connector(NAME, MODULE, NAME)
    except Exception:
        logging.getLogger(__name__).warning("%s cannot be registered with this vLLM", NAME, exc_info=True)
