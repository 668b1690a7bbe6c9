"""Fixtures of the conformance suite."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.fabric.bench import BACKENDS, Backend, Bench, open_bench

pytest.register_assert_rewrite("tests.fabric.conformance_moves", "tests.fabric.conformance_endings")


@pytest.fixture(params=BACKENDS, ids=lambda backend: backend.name)
def backend(request: pytest.FixtureRequest) -> Backend:
    chosen: Backend = request.param
    return chosen


@pytest_asyncio.fixture
async def bench(backend: Backend, tmp_path: Path) -> AsyncIterator[Bench]:
    async with open_bench(backend, tmp_path) as opened:
        yield opened
