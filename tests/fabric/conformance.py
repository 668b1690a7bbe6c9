"""One suite for every fabric. To join: describe the fabric as a `bench.Backend`, subclass this, give both fixtures."""

from __future__ import annotations

from tests.fabric.conformance_endings import Endings
from tests.fabric.conformance_moves import Moves


class FabricConformance(Moves, Endings):
    """All promises of `pykvpool.fabric.base`."""
