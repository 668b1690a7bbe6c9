"""Serves an ASGI application inside the loop that runs already.

uvicorn would like to own the process: signals, logging, the loop, and an exit when a port is taken. Here it gets a
socket that listens already, so that it is served from the moment `serve_http` returns, and every error of listening is
ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from pykvpool.errors import ConfigError

log = logging.getLogger("pykvpool.observe")

#: People and scrapers; more are answered 503.
MAX_CONNECTIONS = 64
#: Answers take milliseconds; one that hangs does not hold up the end of the process for longer.
SHUTDOWN_S = 2


class HttpServer:
    """A running server. Made by `serve_http`."""

    def __init__(self, server: uvicorn.Server, listener: socket.socket) -> None:
        self._server = server
        #: Taken before the server owns the socket: a closed one has no name.
        host, port = listener.getsockname()[:2]
        self.host: str = host
        #: The real one, also where 0 was asked for.
        self.port: int = port
        self._listener = listener
        self._task = asyncio.create_task(server.serve(sockets=[listener]), name="pykvpool-http")
        self._task.add_done_callback(self._ended)

    @property
    def url(self) -> str:
        """Where it is, for people."""
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"

    async def close(self) -> None:
        """Stop listening, let running answers end (for a short while), close connections. Harmless twice."""
        self._server.should_exit = True
        await asyncio.wait([self._task])
        self._listener.close()

    async def __aenter__(self) -> HttpServer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Said once, when it happens: nobody may call `close` for days."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("the HTTP server at %s ended: %s", self.url, error, exc_info=error)


class _GuestServer(uvicorn.Server):
    """uvicorn without its hands on the process' signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve_http(app: ASGIApp, host: str, port: int) -> HttpServer:
    """Serve `app` on the running loop; port 0 takes a free one.

    Raises:
        ConfigError: port taken, no such host, not allowed; the message names the flag.
    """
    config = uvicorn.Config(
        app,
        lifespan="off",
        ws="none",
        log_config=None,
        log_level=logging.WARNING,
        access_log=False,
        server_header=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=SHUTDOWN_S,
    )
    config.load()
    return HttpServer(_GuestServer(config), await _listen(host, port))


async def _listen(host: str, port: int) -> socket.socket:
    try:
        found: list[Any] = await asyncio.get_running_loop().getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (socket.gaierror, UnicodeError) as error:
        reason = error.strerror if isinstance(error, socket.gaierror) else "no valid name"
        raise ConfigError(f"--http {host}:{port}: no such host: {reason}", host=host, port=port) from None
    family, _, _, _, address = found[0]
    try:
        listener = socket.create_server(address[:2], family=family)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            message = f"port {port} of {host} is taken: name another with --http (0 takes a free one)"
        else:
            message = f"--http {host}:{port} cannot be listened on: {error.strerror}"
        raise ConfigError(message, host=host, port=port) from None
    listener.setblocking(False)
    return listener
