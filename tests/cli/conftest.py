"""A real pool for the commands, started once, and no configuration of whoever runs the tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.cli.live import NODE_MIB, Pool, server


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    with server("master", "--listen", "tcp://127.0.0.1:0") as (_, announced):
        [address] = announced["addresses"]
        with server("node", "--name", "node-1", "--master", address, "--segment-size", f"{NODE_MIB}MiB"):
            yield address


@pytest.fixture
def pool(address: str) -> Iterator[Pool]:
    """The pool, empty afterwards."""
    pool = Pool(address)
    yield pool
    pool.run("rm", "--all", "--all-namespaces", "--yes", "--force")


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No configuration of whoever runs the tests."""
    for name in [name for name in os.environ if name.startswith(("PYKVPOOL_", "MOONCAKE_"))]:
        monkeypatch.delenv(name)
