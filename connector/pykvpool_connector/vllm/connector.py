"""Where vLLM finds the connector, by name or by `kv_connector_module_path`.

Importing this is choosing it: a vLLM of another version is refused before any of its modules is looked at, and the name
is registered, because vLLM looks a connector's class up by name also where it was loaded by path (MultiConnector's
statistics).
"""

from __future__ import annotations

import vllm

from pykvpool_connector.vllm.plugin import register
from pykvpool_connector.vllm.versions import require_supported

require_supported(vllm.__version__)

from pykvpool_connector.vllm.facade import PyKVPoolStoreConnector  # noqa: E402 - only now it is known to be importable

register()

__all__ = ["PyKVPoolStoreConnector"]
