"""Every fabric, real or simulated, keeps the promises of the contract."""

from __future__ import annotations

from tests.fabric.bench import BACKENDS, BIG_BYTES, SEGMENT_BYTES
from tests.fabric.conformance import FabricConformance, on_every_fabric


@on_every_fabric
class TestEveryFabric(FabricConformance):
    pass


def test_the_suite_is_really_there() -> None:
    assert len([name for name in vars(TestEveryFabric) if name.startswith("test_")]) >= 25
    assert {backend.scheme for backend in BACKENDS} >= {"inproc", "shm", "tcp", "sim"}
    assert BIG_BYTES < SEGMENT_BYTES
