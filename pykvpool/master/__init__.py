"""The master's shell: it feeds a deterministic core with what happens and carries out what it decides. Read `decider`
(what a core is), `stepper`, `connection`, `server`."""

from pykvpool.master.decider import Decider
from pykvpool.master.server import MasterServer
from pykvpool.master.stepper import FactSubscriber

__all__ = ["Decider", "FactSubscriber", "MasterServer"]
