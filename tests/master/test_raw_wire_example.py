"""The example client of docs/wire.md, which imports nothing of ours, is understood by a real master."""

from __future__ import annotations

import ast
import asyncio
import struct
import sys
from pathlib import Path

import msgpack

from pykvpool.core.config import CoreConfig
from pykvpool.core.master import MasterCore
from pykvpool.master import MasterServer
from pykvpool.runtime import real_runtime

EXAMPLE = Path(__file__).parents[2] / "examples" / "raw_wire.py"
WIRE_PAGE = Path(__file__).parents[2] / "docs" / "wire.md"


async def test_a_page_without_pykvpool_can_ask_a_master() -> None:
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


async def test_the_conversation_in_the_documentation_is_what_a_fresh_master_says() -> None:
    text = WIRE_PAGE.read_text("utf-8").split("A conversation with a fresh master")[1]
    lines = [ast.literal_eval(line.strip()) for line in text.splitlines() if line.startswith("    [")]
    assert [line[0] for line in lines] == ["request", "reply"] * 4
    runtime = real_runtime()
    server = MasterServer(MasterCore(CoreConfig(), epoch=1), ["tcp://127.0.0.1:0"], runtime)
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.addresses[0].rpartition(":")[2]))

    async def ask(message: list[object]) -> object:
        body = msgpack.packb(message)
        writer.write(struct.pack("<I", len(body)) + body)
        (length,) = struct.unpack("<I", await reader.readexactly(4))
        return msgpack.unpackb(await reader.readexactly(length))

    await ask(["hello", "pykvpool", 1, "", "reader of docs", "client", 1, bytes(16)])
    await ask(["proof", b""])
    for request, reply in zip(lines[::2], lines[1::2], strict=True):
        assert await ask(request) == reply
    writer.close()
    await server.close()
    runtime.offload.close()
