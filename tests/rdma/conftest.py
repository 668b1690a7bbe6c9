"""Tests on real verbs. They need the devices of tests/rdma/guest (`make test-rdma`); elsewhere they are skipped."""

from __future__ import annotations

import pytest

from pykvpool.fabric.verbs.load import BINDINGS, load
from pykvpool.fabric.verbs.protocol import Verbs
from tests.rdma.devices import devices_are_here


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not devices_are_here():
        for item in items:
            if "tests/rdma/" in item.path.as_posix():
                item.add_marker(pytest.mark.skip(reason="no RDMA devices here: make test-rdma"))


@pytest.fixture(scope="session", params=BINDINGS)
def verbs(request: pytest.FixtureRequest) -> Verbs:
    """Each binding in turn. One that cannot be loaded is a failure here: the guest has both."""
    return load(request.param)
