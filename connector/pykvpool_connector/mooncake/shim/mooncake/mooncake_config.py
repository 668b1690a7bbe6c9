"""``mooncake.mooncake_config``: the pool's."""

from pykvpool_connector.mooncake.mooncake_config import MooncakeConfig

__all__ = ["MooncakeConfig"]
