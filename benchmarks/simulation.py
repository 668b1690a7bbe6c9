"""How fast the simulator is, and how that grows with the cluster: client calls a second, by number of hosts.

    python benchmarks/simulation.py [--hosts 2,4,8,16] [--seeds 20] [--json]

Of the hosts a quarter (at least one) are nodes, the others clients; the master and the probe are not counted. Every
seed draws the rest of its cluster, its workload and 30 virtual seconds of trouble as `pykvpool sim` does. One process;
what is counted is the time that it computes, so that a busy machine matters little.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass, replace

from pykvpool_sim.cluster import run_seed
from pykvpool_sim.cluster.shape import Shape


@dataclass(slots=True)
class Figures:
    """The sum over all seeds."""

    hosts: int
    seeds: int = 0
    cpu_s: float = 0.0
    calls: int = 0
    callbacks: int = 0
    virtual_s: float = 0.0

    def row(self) -> str:
        cells = (
            f"{self.hosts}",
            f"{self.cpu_s / self.seeds:.2f}",
            f"{self.calls / self.seeds:,.0f}",
            f"{self.calls / self.cpu_s:,.0f}",
            f"{self.callbacks / self.cpu_s:,.0f}",
            f"{self.virtual_s / self.cpu_s:.0f}",
        )
        return "  ".join(cell.rjust(len(heading)) for cell, heading in zip(cells, HEADINGS, strict=True))


#: A second is one of computing, but for the virtual ones.
HEADINGS = ("hosts", "s a seed", "calls a seed", "calls a second", "callbacks a second", "virtual s a second")


def resized(shape: Shape, hosts: int) -> Shape:
    """The same cluster with so many nodes and clients: those drawn, over and over."""
    nodes = max(1, hosts // 4)
    return replace(
        shape,
        nodes=tuple(f"node-{number}" for number in range(nodes)),
        segment_bytes=tuple(shape.segment_bytes[number % len(shape.segment_bytes)] for number in range(nodes)),
        clients=tuple(
            replace(shape.clients[number % len(shape.clients)], name=f"client-{number}", replicas=1)
            for number in range(hosts - nodes)
        ),
    )


def measure(hosts: int, seeds: int) -> Figures:
    figures = Figures(hosts)
    for seed in range(seeds):
        begun_s = time.process_time()
        report = run_seed(seed, reshape=lambda shape: resized(shape, hosts))
        figures.cpu_s += time.process_time() - begun_s
        if report.failed:
            sys.exit(f"seed {seed} with {hosts} hosts breaks a promise: {report.violations[0]}")
        figures.seeds += 1
        figures.calls += sum(report.calls.values())
        figures.callbacks += report.callbacks
        figures.virtual_s += report.virtual_s
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", default="2,4,8,16", help="numbers of hosts")
    parser.add_argument("--seeds", type=int, default=20, help="of each")
    parser.add_argument("--json", action="store_true", help="one JSON line for each number of hosts")
    arguments = parser.parse_args()
    run_seed(0)  # imports, caches
    if not arguments.json:
        print("  ".join(HEADINGS))
    for hosts in map(int, arguments.hosts.split(",")):
        figures = measure(hosts, arguments.seeds)
        line = {name: getattr(figures, name) for name in Figures.__slots__}
        print(json.dumps(line) if arguments.json else figures.row(), flush=True)


if __name__ == "__main__":
    main()
