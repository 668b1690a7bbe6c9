"""A master with a scripted core, and sessions with it; everything is closed with the stage."""

from __future__ import annotations

import contextlib
from typing import Any

from pykvpool.master import MasterServer
from pykvpool.runtime import Runtime, real_runtime
from pykvpool.transport.control import ControlSession
from tests.master.fake_core import FakeCore
from tests.transport.faults import faulty_transports


class Stage:
    """`core`, `server` and `session()`; over ``faulty://`` unless told otherwise."""

    def __init__(self, listen: str = "faulty://master", token: str | None = None, ttl_ms: int = 10_000) -> None:
        self.transports, self.faults = faulty_transports()
        self.runtime: Runtime = real_runtime()
        self._ttl_ms = ttl_ms
        self.core: Any = self.make_core(77)
        self._listen = listen
        self._token = token
        self.stack = contextlib.AsyncExitStack()
        self.server = self._make_server()

    def make_core(self, epoch: int) -> Any:
        return FakeCore(epoch, self._ttl_ms)

    def _make_server(self) -> MasterServer:
        return MasterServer(self.core, [self._listen], self.runtime, token=self._token, transports=self.transports)

    @property
    def address(self) -> str:
        return self.server.addresses[0]

    async def __aenter__(self) -> Stage:
        await self.server.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stack.aclose()
        await self.server.close()
        self.runtime.offload.close()

    async def restart(self) -> None:
        """The master dies and another life of it, which knows nothing, takes its place."""
        listen = self.address
        await self.server.close()
        self.core = self.make_core(self.core.epoch + 1)
        self._listen = listen
        self.server = self._make_server()
        await self.server.start()

    async def session(self, name: str = "engine-0", role: str = "client", **options: Any) -> ControlSession:
        options.setdefault("token", self._token)
        session = await ControlSession.connect(
            [self.address], name=name, role=role, runtime=self.runtime, transports=self.transports, **options
        )
        self.stack.push_async_callback(session.close)
        return session
