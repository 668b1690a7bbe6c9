"""The promises of the pool (docs/architecture.md), checked from outside the code under test.

Checkers see what crosses borders, and nothing of the pool's own state: events and effects of the master's steps
(`witness`), every touch of remote memory (`landings`), the memories themselves (`contents`), and what clients were told
(the workload). What they know they build from *facts* alone (`ledger`), which is how a standby or a dashboard sees the
pool; a promise that cannot be checked from there could not be relied on either.

A checker does not raise: it adds to the `Verdicts`, because it is called from inside the code it judges.
"""

from pykvpool_sim.checkers.verdicts import Verdicts, Violation
from pykvpool_sim.checkers.witness import Witness

__all__ = ["Verdicts", "Violation", "Witness"]
