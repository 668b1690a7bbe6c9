"""A node's end for engines in a process of its own, that can be stopped and killed."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import asyncio, sys
from pykvpool.host.access import PoolAccess
from pykvpool.host.agent.server import AgentServer
from pykvpool.runtime import real_runtime
async def serve():
    server = AgentServer(sys.argv[1], "stopping", PoolAccess((sys.argv[2],), "stopping-engines"), real_runtime())
    await server.start()
    print("up", flush=True)
    await asyncio.Event().wait()
asyncio.run(serve())
"""


class NodeProcess:
    """Serves from the moment it is made; a context manager that kills it."""

    def __init__(self, path: str, address: str) -> None:
        """`address`: of the master."""
        self.path = path
        self._address = address
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, self.path, self._address], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "up\n"

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """Harmless twice."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def __enter__(self) -> NodeProcess:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()
