"""Which vLLM this connector is for. Others are refused: the interface is experimental and changes with every version,
and a hook that is called a little differently shows as wrong tokens, not as an error."""

from __future__ import annotations

from pykvpool.errors import NotSupported

SUPPORTED = "0.32"


def require_supported(version: str) -> None:
    """Raise `NotSupported` unless `version` (vLLM's `__version__`) is one that this connector is for."""
    if version.split(".")[:2] != SUPPORTED.split("."):
        raise NotSupported(
            f"PyKVPoolStoreConnector supports vLLM {SUPPORTED}.x, this is vLLM {version}: "
            f"install vllm=={SUPPORTED}.0, or a pykvpool that supports vLLM {version}",
            version=version,
            supported=f"{SUPPORTED}.x",
        )
