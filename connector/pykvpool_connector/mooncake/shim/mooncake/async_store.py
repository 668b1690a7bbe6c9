"""``mooncake.async_store``: the pool's."""

from pykvpool_connector.mooncake.async_store import MooncakeDistributedStoreAsync

__all__ = ["MooncakeDistributedStoreAsync"]
