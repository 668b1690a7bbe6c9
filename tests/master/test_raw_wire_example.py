"""The example client of docs/wire.md, which imports nothing of ours, is understood by a real master."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from pykvpool.core.config import CoreConfig
from pykvpool.core.master import MasterCore
from pykvpool.master import MasterServer
from pykvpool.runtime import real_runtime

EXAMPLE = Path(__file__).parents[2] / "examples" / "raw_wire.py"


async def test_thirty_lines_without_pykvpool_can_ask_a_master() -> None:
    assert "import pykvpool" not in EXAMPLE.read_text()
    runtime = real_runtime()
    core = MasterCore(CoreConfig(), epoch=1)
    server = MasterServer(core, ["tcp://127.0.0.1:0"], runtime)
    await server.start()
    port = server.addresses[0].rpartition(":")[2]
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(EXAMPLE), "127.0.0.1", port, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, errors = await process.communicate()
    await server.close()
    runtime.offload.close()
    assert errors == b""
    assert output.decode().splitlines() == ["challenge", "accepted session 1", "some-key is not there", "done"]
    assert core.counters["requests_total"] == 3
