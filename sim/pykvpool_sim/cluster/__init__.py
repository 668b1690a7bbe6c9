"""A whole pool in one simulated world: master, nodes and clients as they are, on hosts that faults strike.

Read `shape` (what a seed draws), `cluster` (what it builds), `workload` (what clients do), `troubles` (what befalls
them), `rest` (what must hold when it is calm again), and `run`, which puts them together.
"""

from pykvpool_sim.cluster.run import Options, Report, run_seed

__all__ = ["Options", "Report", "run_seed"]
