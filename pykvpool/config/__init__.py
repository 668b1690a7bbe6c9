"""One typed configuration for every part of the pool.

`load` reads it: file, then environment, then flags. `schema` says which keys there are, `kinds` and `quantities` how a
value is read and what is allowed, `files` and `mooncake` read files, `reference` writes docs/configuration.md. Other
parts get a finished section (`NodeConfig`, ...) from their caller; none of them reads configuration by itself.
"""

from pykvpool.config.kinds import HostPort, parse_host_port
from pykvpool.config.load import Config, Shown, load
from pykvpool.config.quantities import parse_size
from pykvpool.config.schema import ClientConfig, LogConfig, MasterConfig, NodeConfig, PoolConfig, RdmaConfig

__all__ = [
    "ClientConfig",
    "Config",
    "HostPort",
    "LogConfig",
    "MasterConfig",
    "NodeConfig",
    "PoolConfig",
    "RdmaConfig",
    "Shown",
    "load",
    "parse_host_port",
    "parse_size",
]
