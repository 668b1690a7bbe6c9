"""The yardstick of rdma: `ib_write_bw` and `ib_read_bw` of the perftest package, between the same two devices.

They post from C, into one buffer, without checksums, keys or a master: what a device moves when nobody gets in its way.
Each figure is a pair of processes, a server on the node's device and a client on ours.
"""

from __future__ import annotations

import asyncio
import asyncio.subprocess
import contextlib
import shutil
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass

from pykvpool.errors import NotSupported, TransferFailed
from pykvpool.fabric.rdma import gids
from pykvpool.fabric.verbs.load import load
from pykvpool.fabric.verbs.protocol import Verbs

TOOLS = ("ib_write_bw", "ib_read_bw")
#: Moved for one figure.
MOVED_BYTES = 64 << 20
#: The tool refuses fewer repetitions.
MIN_ITERATIONS = 5
#: A pair that has not ended by then has failed (s): on an emulated processor it takes seconds.
TIMEOUT_S = 120.0
#: How often, and how many times, the client tries to reach a server that is not listening yet.
RETRY_S = 0.1
RETRIES = 100


@dataclass(frozen=True, slots=True)
class End:
    """One device and the address on it that the tool is to use."""

    device: str
    port: int
    gid_index: int

    @property
    def options(self) -> list[str]:
        return ["-d", self.device, "-i", str(self.port), "-x", str(self.gid_index)]


class Perftest:
    """Rates between two devices (which may be one)."""

    def __init__(self, client: End, server: End) -> None:
        self._client = client
        self._server = server

    @classmethod
    def between(cls, client_device: str, server_device: str) -> Perftest:
        """Device names as in ``rdma.devices``; "": the first one. Raises `NotSupported`, with what to install."""
        missing = [tool for tool in TOOLS if shutil.which(tool) is None]
        if missing:
            raise NotSupported(f"rdma is measured beside {' and '.join(missing)}: apt-get install perftest")
        verbs = load()
        return cls(_end(verbs, client_device), _end(verbs, server_device))

    async def rate(self, tool: str, size_bytes: int) -> float:
        """Bytes per second with messages of that size. Raises `TransferFailed` with the tool's own words."""
        iterations = max(MIN_ITERATIONS, MOVED_BYTES // size_bytes)
        common = [tool, "-s", str(size_bytes), "-n", str(iterations), "-p", str(_free_port()), "-F", "--report_gbits"]
        async with asyncio.timeout(TIMEOUT_S), _running(*common, *self._server.options):
            for _ in range(RETRIES):
                process = await _start(*common, *self._client.options, "127.0.0.1")
                said, complaints = await process.communicate()
                if process.returncode == 0:
                    return parse(said.decode(), size_bytes)
                await asyncio.sleep(RETRY_S)
        raise TransferFailed(f"{tool} failed: {' '.join((complaints or said).decode().split())[-300:]}")


def parse(text: str, size_bytes: int) -> float:
    """Bytes per second out of the tool's table: size, iterations, peak, average (Gbit/s), messages."""
    for line in text.splitlines():
        fields = line.split()
        if len(fields) >= 4 and fields[0] == str(size_bytes):
            return float(fields[3]) * 1e9 / 8
    raise TransferFailed(f"perftest printed no figure for {size_bytes} bytes: {text[-300:]!r}")


def _end(verbs: Verbs, wanted: str) -> End:
    name, _, port = wanted.partition(":")
    if not name:
        devices = verbs.devices()
        if not devices:
            raise NotSupported(f"rdma: this host has no RDMA device ({verbs.name} lists none)")
        name = devices[0].name
    context = verbs.open(name)
    try:
        usable = gids.usable(context.port(int(port or 1)).gids)
    finally:
        context.close()
    if not usable:
        raise NotSupported(f"rdma: port {port or 1} of {name} has no address")
    return End(name, int(port or 1), usable[0].index)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


async def _start(*command: str) -> asyncio.subprocess.Process:
    pipe, none = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    return await asyncio.create_subprocess_exec(*command, stdin=none, stdout=pipe, stderr=pipe)


@contextlib.asynccontextmanager
async def _running(*command: str) -> AsyncIterator[None]:
    """The server; it ends with its client, and is ended where there was none."""
    process = await _start(*command)
    try:
        yield
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await process.communicate()
