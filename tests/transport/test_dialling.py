"""A wrong address is an error soon, and says what was tried and why it failed."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from pykvpool.errors import InvalidArgument, Refused, Unavailable
from pykvpool.runtime import Runtime, real_runtime
from pykvpool.transport.address import DEFAULT_MASTER_ADDRESS
from pykvpool.transport.control import DEFAULT_CONNECT_TIMEOUT_S, ControlSession
from tests.transport.stage import Stage


@pytest.fixture
def runtime() -> Runtime:
    return real_runtime()


async def connect(runtime: Runtime, *addresses: str, timeout_s: float = 5.0, **options: object) -> ControlSession:
    options = {"name": "engine-0", "role": "client"} | options
    return await ControlSession.connect(addresses, runtime=runtime, connect_timeout_s=timeout_s, **options)


def refusing_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


@contextlib.asynccontextmanager
async def other_server(serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], object]) -> AsyncIterator[str]:
    """Something on a port that is no master."""
    writers: list[asyncio.StreamWriter] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await serve(reader, writer)

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    yield f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()
    for writer in writers:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Takes the connection and says nothing."""


async def web(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.close()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1_000):
        writer.write(data)


async def test_every_address_is_listed_with_its_reason_and_a_hint(runtime: Runtime, tmp_path: Path) -> None:
    closed, missing = refusing_address(), f"unix://{tmp_path}/none.sock"
    with pytest.raises(Unavailable) as caught:
        await connect(runtime, closed, missing, "inproc://nobody")
    message = caught.value.message
    assert f"{closed}: connection refused" in message
    assert f"{missing}: no such socket file" in message
    assert "inproc://nobody: nothing in this process" in message
    assert "is `pykvpool master` running" in message


@pytest.mark.parametrize(
    ("serve", "reason"),
    [
        (silent, "takes connections but says nothing"),
        (web, "not a pykvpool master: the peer announces a frame"),
        (hang_up, "closed the connection without a word"),
        (echo, "speaks like a client"),
    ],
)
async def test_what_answers_and_is_no_master_is_named_so(runtime: Runtime, serve: Callable, reason: str) -> None:
    async with other_server(serve) as address:
        with pytest.raises(Unavailable, match=reason):
            await connect(runtime, address, timeout_s=0.3 if serve is silent else 5.0)


async def test_a_silent_address_does_not_use_up_the_time_of_the_next() -> None:
    async with Stage("tcp://127.0.0.1:0") as stage, other_server(silent) as address:
        session = await connect(stage.runtime, address, stage.address, timeout_s=0.5)
        assert session.connected
        await session.close()


async def test_a_host_name_that_nobody_knows_says_so(runtime: Runtime) -> None:
    with pytest.raises(Unavailable, match=r"tcp://no-such-host\.invalid:7000"):
        await connect(runtime, "tcp://no-such-host.invalid:7000")


async def test_an_address_that_refuses_is_passed_over_for_one_that_does_not() -> None:
    async with Stage("tcp://127.0.0.1:0", token="secret") as strict, Stage("tcp://127.0.0.1:0") as open_to_all:
        session = await connect(strict.runtime, strict.address, open_to_all.address)
        assert session.epoch == open_to_all.core.epoch
        await session.close()


async def test_where_somebody_refused_that_is_the_error(runtime: Runtime) -> None:
    async with Stage("tcp://127.0.0.1:0", token="secret") as stage:
        with pytest.raises(Refused, match="none was given") as caught:
            await connect(runtime, refusing_address(), stage.address)
    assert "connection refused" in caught.value.message


@pytest.mark.parametrize(
    ("addresses", "options"),
    [
        (["127.0.0.1:7000"], {}),
        ([], {}),
        ([DEFAULT_MASTER_ADDRESS], {"name": ""}),
        ([DEFAULT_MASTER_ADDRESS], {"role": "king"}),
        ([DEFAULT_MASTER_ADDRESS], {"token": ""}),
    ],
)
async def test_what_cannot_be_right_is_refused_before_anything_is_tried(
    runtime: Runtime, addresses: list[str], options: dict[str, object]
) -> None:
    with pytest.raises(InvalidArgument):
        await connect(runtime, *addresses, **options)


async def test_a_single_text_in_place_of_a_list_is_noticed(runtime: Runtime) -> None:
    with pytest.raises(InvalidArgument, match="a list"):
        await ControlSession.connect("tcp://127.0.0.1:7000", name="n", role="client", runtime=runtime)


async def test_connecting_can_be_cancelled_and_leaves_nothing_behind(runtime: Runtime) -> None:
    arrived = asyncio.Event()
    hung_up = asyncio.Event()

    async def watch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(4)
        arrived.set()
        with contextlib.suppress(ConnectionError):
            while await reader.read(1_000):
                pass
        hung_up.set()

    async with other_server(watch) as address:
        task = asyncio.ensure_future(connect(runtime, address))
        await arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await hung_up.wait()


def test_an_address_is_given_up_on_within_five_seconds() -> None:
    assert DEFAULT_CONNECT_TIMEOUT_S <= 5.0
