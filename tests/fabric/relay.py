"""A byte relay between a peer and an owner that can stop in the middle of a stream, so that a test can look around."""

from __future__ import annotations

import asyncio

from pykvpool.fabric.addresses import HostPort

_CHUNK = 64 * 1024


class Relay:
    """Forwards both ways until a direction has carried `hold_after_bytes`; then it waits for `release`."""

    def __init__(self, target: HostPort, hold_after_bytes: int) -> None:
        self._target = target
        self._limit = hold_after_bytes
        self._reached = asyncio.Event()
        self._released = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []

    @classmethod
    async def open(cls, endpoint: str, hold_after_bytes: int) -> Relay:
        relay = cls(HostPort.parse(endpoint), hold_after_bytes)
        relay._server = await asyncio.start_server(relay._serve, "127.0.0.1", 0)
        return relay

    @property
    def endpoint(self) -> str:
        assert self._server is not None
        return HostPort("127.0.0.1", self._server.sockets[0].getsockname()[1]).endpoint

    @property
    def connections(self) -> int:
        """How many peers have come so far."""
        return len(self._writers) // 2

    async def reached(self) -> None:
        await self._reached.wait()

    def release(self) -> None:
        self._released.set()

    async def quiet(self) -> None:
        """Wait until both ends of every connection have hung up, so that nothing is under way any more."""
        self._released.set()
        await asyncio.gather(*self._tasks)

    def cut(self) -> None:
        """Tear every connection, as a dying host would."""
        for writer in self._writers:
            writer.transport.abort()

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await self.quiet()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(self._target.host, self._target.port)
        self._writers += [writer, far_writer]
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            self._tasks.append(asyncio.ensure_future(self._pump(source, sink)))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        carried = 0
        try:
            while data := await reader.read(_CHUNK):
                carried += len(data)
                if carried >= self._limit:
                    self._reached.set()
                    await self._released.wait()
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass  # one end is gone: the other is told below
        finally:
            writer.transport.abort()
