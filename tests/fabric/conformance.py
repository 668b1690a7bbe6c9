"""One suite for every fabric. To join: describe the fabric as a `bench.Backend`, subclass this, give both fixtures."""

from __future__ import annotations

from conformance_endings import Endings
from conformance_moves import Moves


class FabricConformance(Moves, Endings):
    """All promises of `pykvpool.fabric.base`."""
