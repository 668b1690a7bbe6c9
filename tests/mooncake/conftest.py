"""One master for the programs of this directory."""

from __future__ import annotations

import pytest

from tests.cli.live import server


@pytest.fixture(scope="session")
def master():
    """``host:port`` of a real master."""
    with server("master", "--listen", "tcp://127.0.0.1:0") as (_, announced):
        [address] = announced["addresses"]
        yield address.removeprefix("tcp://")
