"""``mooncake.store``: the pool's."""

from pykvpool_connector.mooncake.api import *  # noqa: F403
