"""The process around one pretended engine: ``python -m pykvpool.cli.demo.engine_process``, started by the driver.

It reads messages on standard input and answers each on standard output, in order; when its input ends, so does it.
"""

from __future__ import annotations

import asyncio
import mmap
import sys

import msgspec

from pykvpool.cli.demo.engine import Engine
from pykvpool.cli.demo.messages import BeginPass, Failed, Ready, RunTurn, Setup, ToEngine, encode, receive
from pykvpool.cli.running import run
from pykvpool.cli.supervised import standard_input
from pykvpool.client import Client
from pykvpool.errors import PoolError, ProtocolError
from pykvpool.fabric.registry import DEFAULT_FABRICS


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer messages until their end. A `PoolError` is sent as `Failed` and ends the engine."""
    decoder = msgspec.msgpack.Decoder(ToEngine)
    client: Client | None = None
    try:
        setup = await receive(reader, decoder)
        if setup is None:
            return
        if not isinstance(setup, Setup):
            raise ProtocolError(f"an engine is set up first, not sent {type(setup).__name__}")
        memory = memoryview(mmap.mmap(-1, setup.slots * setup.block_bytes))
        fabrics = setup.fabrics or DEFAULT_FABRICS
        client = await Client.connect(setup.masters, name=setup.name, cluster=setup.cluster, fabrics=fabrics)
        client.register(memory)
        engine = Engine(setup, memory)
        writer.write(encode(Ready()))
        while (message := await receive(reader, decoder)) is not None:
            match message:
                case BeginPass(pool=with_pool):
                    engine.forget()
                    engine.pool = client if with_pool else None
                    writer.write(encode(Ready()))
                case RunTurn(number=number, turn=turn):
                    writer.write(encode(await engine.run(number, turn)))
                case Setup():
                    raise ProtocolError("an engine is set up once")
            await writer.drain()
    except PoolError as error:
        writer.write(encode(Failed(error.code, f"{error.kind}: {error}")))
        await writer.drain()
    finally:
        if client is not None:
            await client.close()


async def main() -> None:
    """Connect standard input and output to `serve`."""
    loop = asyncio.get_running_loop()
    reader = await standard_input()
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, sys.stdout.buffer)
    await serve(reader, asyncio.StreamWriter(transport, protocol, None, loop))


if __name__ == "__main__":
    run(main)
