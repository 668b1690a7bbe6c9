"""Importing this module makes ``from mooncake.store import MooncakeDistributedStore`` give the pool's.

    import pykvpool_connector.mooncake.install
    from mooncake.store import MooncakeDistributedStore

Only Mooncake Store's modules are replaced (`REPLACED`); where Mooncake itself is installed, its others (the transfer
engine, say) stay what they are. Importing twice changes nothing.
"""

from __future__ import annotations

import importlib
import sys
import types
from importlib.machinery import ModuleSpec

#: Mooncake's module -> ours that takes its place.
REPLACED = {
    "mooncake.store": "pykvpool_connector.mooncake.api",
    "mooncake.async_store": "pykvpool_connector.mooncake.async_store",
    "mooncake.mooncake_config": "pykvpool_connector.mooncake.mooncake_config",
}


def install() -> None:
    """Put our modules into `sys.modules` under Mooncake's names."""
    package = _package()
    for name, ours in REPLACED.items():
        module = importlib.import_module(ours)
        sys.modules[name] = module
        setattr(package, name.rpartition(".")[2], module)


def _package() -> types.ModuleType:
    """The real ``mooncake`` package where it is installed, else an empty one."""
    try:
        return importlib.import_module("mooncake")
    except ModuleNotFoundError:
        package = types.ModuleType("mooncake", "Mooncake Store's API on pykvpool's pool.")
        package.__path__ = []
        package.__spec__ = ModuleSpec("mooncake", None, is_package=True)
        sys.modules["mooncake"] = package
        return package


install()
