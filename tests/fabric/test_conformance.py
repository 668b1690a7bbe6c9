"""Every fabric of this machine keeps the promises of the contract."""

from __future__ import annotations

from tests.fabric.conformance import FabricConformance


class TestEveryFabric(FabricConformance):
    pass
