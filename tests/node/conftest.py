"""The same pools as in tests/pool."""

from tests.pool.conftest import make_cluster, pool

__all__ = ["make_cluster", "pool"]
