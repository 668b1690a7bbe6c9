"""The plugin is loaded into every vLLM on a host: it never raises, and brings nothing along."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType, SimpleNamespace

import pytest

from pykvpool.errors import NotSupported
from pykvpool_connector.vllm import plugin
from pykvpool_connector.vllm.versions import require_supported

FACTORY = "vllm.distributed.kv_transfer.kv_connector.factory"


class Factory:
    """vLLM's registry: a name can be registered once."""

    def __init__(self) -> None:
        self.known: dict[str, tuple[str, str]] = {}

    def register_connector(self, name: str, module_path: str, class_name: str) -> None:
        if name in self.known:
            raise ValueError(f"{name} is already registered")
        self.known[name] = (module_path, class_name)


def with_vllm(monkeypatch: pytest.MonkeyPatch, factory: object) -> None:
    parts = FACTORY.split(".")
    for depth in range(1, len(parts) + 1):
        monkeypatch.setitem(sys.modules, ".".join(parts[:depth]), ModuleType(parts[depth - 1]))
    sys.modules[FACTORY].__dict__.update(vars(SimpleNamespace(KVConnectorFactory=factory)))


def test_it_registers_the_class_under_its_own_name_any_number_of_times(monkeypatch):
    factory = Factory()
    with_vllm(monkeypatch, factory)
    plugin.register()
    plugin.register()
    assert factory.known == {plugin.NAME: ("pykvpool_connector.vllm.connector", plugin.NAME)}


def test_it_never_raises_whatever_vllm_is_like(monkeypatch, caplog):
    """An exception here would stop every vLLM on the host."""

    class Broken:
        def register_connector(self, *_: str) -> None:
            raise RuntimeError("not this year")

    with_vllm(monkeypatch, Broken())
    plugin.register()
    monkeypatch.setitem(sys.modules, FACTORY, None)
    plugin.register()
    assert caplog.text.count("cannot be registered") == 2


def test_it_imports_nothing_of_the_pool():
    code = (
        "import sys; import pykvpool_connector.vllm.plugin as plugin; plugin.register();"
        "print(sorted(name for name in sys.modules if name.startswith('pykvpool')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    parts = plugin.__name__.split(".")
    assert done.stdout.splitlines()[-1] == str([".".join(parts[:depth]) for depth in (1, 2, 3)])


@pytest.mark.parametrize("version", ["0.32.0", "0.32.7", "0.32.1.dev3+gabc", "0.32.0+cu128"])
def test_vllm_0_32_is_supported(version):
    require_supported(version)


@pytest.mark.parametrize("version", ["0.31.1", "0.33.0", "0.3.2", "0.320.0", "1.32.0", "dev"])
def test_other_versions_are_refused_with_the_supported_ones(version):
    with pytest.raises(NotSupported, match=r"supports vLLM 0\.32\.x, this is vLLM"):
        require_supported(version)
