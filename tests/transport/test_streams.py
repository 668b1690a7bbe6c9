"""What every control transport promises, on each of them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pykvpool.errors import Closed, ConfigError, LimitExceeded, Overloaded, ProtocolError, Unavailable
from pykvpool.protocol.frames import MAX_FRAME_BYTES, MAX_HANDSHAKE_FRAME_BYTES
from pykvpool.transport.base import RECV_HIGH_BYTES, SEND_HIGH_BYTES, SEND_LIMIT_BYTES
from tests.transport.streams import SCHEMES, Place, listen_address

MIB = 1 << 20


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.fixture(params=SCHEMES)
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    if request.param == "tcp6" and not has_ipv6():
        pytest.skip("this host has no IPv6")
    async with Place(listen_address(request.param, tmp_path)) as place:
        yield place


async def test_frames_arrive_whole_in_order_and_both_ways(place: Place) -> None:
    near, far = await place.pair()
    frames = [bytes([index % 256]) * (index % 300) for index in range(1_000)]
    for frame in frames:
        near.send(frame)
        far.send(frame[::-1])
    assert [await far.recv() for _ in frames] == frames
    assert [await near.recv() for _ in frames] == [frame[::-1] for frame in frames]


async def test_a_large_frame_passes_once_it_is_allowed(place: Place) -> None:
    near, far = await place.pair()
    far.allow(MAX_FRAME_BYTES)
    frame = bytes(range(256)) * (8 * MIB // 256)
    near.send(frame)
    assert await far.recv() == frame


async def test_a_stranger_may_not_send_large_frames_and_earlier_ones_are_still_delivered(place: Place) -> None:
    near, far = await place.pair()
    near.send(b"small")
    near.send(b"x" * (MAX_HANDSHAKE_FRAME_BYTES + 1))
    assert await far.recv() == b"small"
    with pytest.raises(ProtocolError, match="over the limit"):
        await far.recv()


async def test_a_frame_that_no_peer_would_take_is_refused_by_send_and_the_stream_lives_on(place: Place) -> None:
    near, far = await place.pair()
    with pytest.raises(LimitExceeded):
        near.send(bytes(MAX_FRAME_BYTES + 1))
    near.send(b"fine")
    assert await far.recv() == b"fine"


async def test_what_was_sent_before_a_close_arrives_then_the_end(place: Place) -> None:
    near, far = await place.pair()
    near.send(b"last words")
    near.close()
    assert await far.recv() == b"last words"
    assert await far.recv() is None
    assert await far.recv() is None
    await near.wait_closed()


async def test_closing_twice_is_harmless_and_using_it_after_is_closed(place: Place) -> None:
    near, _ = await place.pair()
    near.close()
    near.close()
    near.abort()
    await near.wait_closed()
    assert await near.recv() is None
    await near.drain()
    with pytest.raises(Closed):
        near.send(b"too late")


async def test_a_receiver_that_waits_learns_of_the_end(place: Place) -> None:
    near, far = await place.pair()
    waiting = asyncio.ensure_future(far.recv())
    near.close()
    assert await waiting is None


async def test_a_receive_that_is_cancelled_loses_nothing(place: Place) -> None:
    near, far = await place.pair()
    waiting = asyncio.ensure_future(far.recv())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    near.send(b"kept")
    assert await far.recv() == b"kept"


async def test_a_peer_that_does_not_read_holds_the_sender_up_and_not_the_memory(place: Place) -> None:
    near, far = await place.pair()
    far.allow(MAX_FRAME_BYTES)
    near.send(bytes(16 * MIB))
    near.send(bytes(16 * MIB))
    waiting = asyncio.ensure_future(near.drain())
    assert (await far.recv()) == bytes(16 * MIB)
    assert (await far.recv()) == bytes(16 * MIB)
    await waiting
    assert near.buffered_bytes <= SEND_HIGH_BYTES


async def test_more_than_the_bound_is_refused_and_what_was_taken_still_arrives(place: Place) -> None:
    near, far = await place.pair()
    far.allow(MAX_FRAME_BYTES)
    frame = bytes(8 * MIB)
    sent = 0
    with pytest.raises(Overloaded, match="does not read"):
        for _ in range(SEND_LIMIT_BYTES // len(frame) + 2):
            near.send(frame)
            sent += 1
    for _ in range(sent):
        assert await far.recv() == frame


async def test_frames_that_nobody_takes_stop_the_reading(place: Place) -> None:
    near, far = await place.pair()
    far.allow(MAX_FRAME_BYTES)
    frame = bytes(MIB // 4)
    sent = 0
    while near.buffered_bytes < 2 * SEND_HIGH_BYTES:  # not before the far end has stopped
        near.send(frame)
        sent += 1
        await asyncio.sleep(0)
    assert sent * len(frame) > RECV_HIGH_BYTES
    for _ in range(sent):
        assert await far.recv() == frame


async def test_the_peer_has_a_name_for_people(place: Place) -> None:
    near, far = await place.pair()
    assert near.peer != "unknown"
    assert far.peer != "unknown"


async def test_a_closed_listener_takes_no_more_and_leaves_connections_alone(place: Place) -> None:
    near, far = await place.pair()
    await place.listener.close()
    await place.listener.close()
    near.send(b"still here")
    assert await far.recv() == b"still here"
    with pytest.raises(Unavailable):
        await place.transports.connect(place.listener.address)


async def test_an_address_that_is_taken_is_refused_with_the_flag_to_use(place: Place) -> None:
    with pytest.raises(ConfigError, match="--listen"):
        await place.transports.listen(place.listener.address, lambda stream: None)


async def test_a_closed_address_can_be_listened_on_again(place: Place) -> None:
    await place.listener.close()
    again = await place.transports.listen(place.listener.address, place.accepted.put_nowait)
    near, far = await place.pair()
    near.send(b"hello")
    assert await far.recv() == b"hello"
    await again.close()
