"""One suite for every fabric, real or simulated. To join, describe the fabric in `tests.fabric.bench.BACKENDS`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.fabric.bench import BACKENDS, Backend, Bench, run_on
from tests.fabric.conformance_endings import Endings
from tests.fabric.conformance_moves import Moves

#: What a test of the suite may ask for besides its own parameters.
_GIVEN = ("bench", "backend")


class FabricConformance(Moves, Endings):
    """All promises of `pykvpool.fabric.base`."""


def on_every_fabric(suite: type) -> type:
    """Each coroutine of the suite becomes a test that runs once on every backend, where that backend lives."""
    for name, test in inspect.getmembers(suite, inspect.iscoroutinefunction):
        if name.startswith("test_"):
            setattr(suite, name, _on_every_fabric(test))
    return suite


def _on_every_fabric(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    asked = list(inspect.signature(test).parameters)

    @functools.wraps(test)
    def run(self: object, backend: Backend, tmp_path: Path, **arguments: object) -> None:
        async def scenario(bench: Bench) -> None:
            given = {"bench": bench, "backend": backend, **arguments}
            await test(self, **{name: given[name] for name in asked if name in given})

        run_on(backend, tmp_path, scenario)

    # pytest reads here what to give.
    names = ["self", "backend", "tmp_path", *(name for name in asked[1:] if name not in _GIVEN)]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    run.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in names])  # type: ignore[attr-defined]
    marked: Callable[..., None] = pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)(run)
    return marked
