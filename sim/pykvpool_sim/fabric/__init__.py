"""``sim://``: a fabric that moves bytes as RDMA does, with everything that this allows to go wrong.

Read `wire` (the data network of a world, its faults and who watches it), `queue_pair` (how one operation is carried
out, piece by piece), then the two ends that the pool sees: `server` and `client`, by the contract of
`pykvpool.fabric.base`. `memory` is what nodes lend.
"""

from pykvpool_sim.fabric.client import SimFabricClient
from pykvpool_sim.fabric.memory import SimMemory
from pykvpool_sim.fabric.server import RAILS, SimFabricServer
from pykvpool_sim.fabric.terms import FabricFaults, Landing, Taking, Watcher
from pykvpool_sim.fabric.wire import DataNetwork

__all__ = [
    "RAILS",
    "DataNetwork",
    "FabricFaults",
    "Landing",
    "SimFabricClient",
    "SimFabricServer",
    "SimMemory",
    "Taking",
    "Watcher",
]
