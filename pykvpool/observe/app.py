"""The routes of the HTTP face: `/health`, `/metrics`, `/api/state`, and `/` for people. It only reads.

Every answer is made on the loop of the process it speaks of, from what the `Source` gives; a state that does not come
in time costs that answer only. There is no access control: the face is for the loopback interface or a trusted network.
"""

from __future__ import annotations

import asyncio
import platform
from importlib import resources
from typing import Any

import msgspec
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from pykvpool import __version__
from pykvpool.core.counters import MEANINGS
from pykvpool.errors import DeadlineExceeded, PoolError
from pykvpool.metrics import exposition
from pykvpool.model.replies import State
from pykvpool.observe.source import STATE_DEADLINE_S, Source

#: The page is one file: it may run its own script and style, and ask this server, and nothing else.
PAGE_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'"


def build_app(source: Source) -> Starlette:
    """The face of one process as an ASGI application."""
    face = _Face(source)
    return Starlette(
        routes=[
            Route("/", face.page),
            Route("/health", face.health),
            Route("/metrics", face.metrics),
            Route("/api/state", face.state),
        ]
    )


class _Face:
    def __init__(self, source: Source) -> None:
        self._source = source
        self._page = resources.files(__package__).joinpath("page.html").read_text("utf-8")

    async def health(self, _request: Request) -> Response:
        """200 or 503; the reasons are the same that a person would want."""
        health = self._source.health()
        return JSONResponse(
            {
                "status": "ok" if health.healthy else "unhealthy",
                "reasons": list(health.reasons),
                "build": self._build(),
            },
            status_code=200 if health.healthy else 503,
        )

    async def metrics(self, _request: Request) -> Response:
        """Prometheus' text. Without a state the process' own metrics still come, and a comment says what is missing."""
        state: State | None = None
        missing = ""
        try:
            state = await self._read_state()
        except PoolError as error:
            missing = f"# the pool's state is missing: {error.kind}: {' '.join(error.message.split())}\n"
        text = exposition(self._source.registry, state, MEANINGS, self._source.node) + missing.encode()
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    async def state(self, _request: Request) -> Response:
        """The whole state as JSON, by field names; 503 with the error where it cannot be had."""
        try:
            state = await self._read_state()
        except PoolError as error:
            return JSONResponse(
                {
                    "build": self._build(),
                    "error": {
                        "kind": error.kind,
                        "code": error.code,
                        "message": error.message,
                        "fields": dict(error.fields),
                    },
                },
                status_code=503,
            )
        return JSONResponse({"build": self._build(), "state": json_ready(state)})

    async def page(self, _request: Request) -> Response:
        return HTMLResponse(self._page, headers={"Content-Security-Policy": PAGE_POLICY})

    async def _read_state(self) -> State:
        try:
            async with asyncio.timeout(STATE_DEADLINE_S):
                return await self._source.state()
        except TimeoutError:
            raise DeadlineExceeded(f"the master did not tell its state within {STATE_DEADLINE_S:.0f} s") from None

    def _build(self) -> dict[str, str]:
        return {"role": self._source.role, "version": __version__, "python": platform.python_version()}


def json_ready(value: object) -> Any:
    """A message as JSON types, structs by field name (on the wire they are arrays)."""
    if isinstance(value, msgspec.Struct):
        return {name: json_ready(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, tuple):
        return [json_ready(item) for item in value]
    if isinstance(value, dict):
        return {name: json_ready(item) for name, item in value.items()}
    return value
