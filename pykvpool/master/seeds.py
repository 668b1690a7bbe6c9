"""Sees engines that could share blocks and never will, because their chains of block hashes begin differently.

Engines with different values of PYTHONHASHSEED name the same blocks differently, and no lookup fails: hits just never
come (LMCache#1095, vLLM PR#51875). Fingerprints show it: equal families, different first hashes. The master is where
such engines meet, so it says so, once for each.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from pykvpool.hashing import split_fingerprint
from pykvpool.model.facts import Fact, ScopeInterned

log = logging.getLogger("pykvpool.master")


class SeedWatch:
    """Follows the core's facts; decides nothing."""

    def __init__(self) -> None:
        #: First hashes of each family in each namespace. No larger than the core's table of scopes.
        self._first_hashes: dict[tuple[str, str], set[str]] = {}

    def note(self, facts: Sequence[Fact]) -> None:
        for fact in facts:
            if isinstance(fact, ScopeInterned):
                parts = split_fingerprint(fact.scope.fingerprint)
                if parts is not None:
                    self._see(fact.scope.namespace, parts.family, parts.first_hash)

    def _see(self, namespace: str, family: str, first_hash: str) -> None:
        known = self._first_hashes.setdefault((namespace, family), set())
        if first_hash in known:
            return
        known.add(first_hash)
        if len(known) > 1:
            log.warning(
                "engines of one model (family %s, namespace %s) begin their block hashes with %d different first hashes"
                ": they will never find each other's blocks. Give all of them the same PYTHONHASHSEED (or none, with "
                "sha256)",
                family,
                namespace,
                len(known),
            )
