"""Fixtures for tests of the core; the driver itself is in `driver`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.core.driver import World


@pytest.fixture
def new_world() -> Iterator[Callable[..., World]]:
    """Makes worlds; at the end each one must be valid, and its facts must rebuild it."""
    worlds: list[World] = []

    def make(**config: Any) -> World:
        worlds.append(World(**config))
        return worlds[-1]

    yield make
    for world in worlds:
        world.core.validate()
        assert world.replayed().durable_state() == world.core.durable_state()


@pytest.fixture
def world(new_world: Callable[..., World]) -> World:
    return new_world()
