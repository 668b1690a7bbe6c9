"""What travels: any message survives any fragmentation; a damaged one is another message or a clear error, no worse."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykvpool.errors import ProtocolError
from pykvpool.fabric import handshake, shm_wire
from pykvpool.model.facts import Fact
from pykvpool.protocol.codec import Unreadable, decode_from_master, decode_handshake, decode_to_master, encode
from pykvpool.protocol.frames import FrameDecoder, frame_header
from pykvpool.protocol.messages import FromMaster, HandshakeFrame, ToMaster
from tests.properties.any_message import any_message, tags_of
from tests.properties.budgets import budget

#: What one end of a control connection may send, and how the other reads it.
DIRECTIONS = {
    "to the master": (ToMaster, decode_to_master),
    "from the master": (FromMaster, decode_from_master),
    "handshake": (HandshakeFrame, decode_handshake),
}
cuts = st.lists(st.integers(0, 10_000), max_size=12)


def fragments(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


def damaged(frame: bytes, damage: list[tuple[str, int, int]]) -> bytes:
    """Bytes changed, dropped, inserted or repeated; the end cut off."""
    body = bytearray(frame)
    for kind, place, value in damage:
        at = place % (len(body) + 1)
        match kind:
            case "change" if at < len(body):
                body[at] ^= value or 1
            case "drop":
                del body[at : at + 1 + value % 3]
            case "insert":
                body.insert(at, value)
            case "repeat":
                body[at:at] = body[at : at + value]
            case "cut":
                del body[at:]
    return bytes(body)


damages = st.lists(
    st.tuples(
        st.sampled_from(["change", "change", "drop", "insert", "repeat", "cut"]),
        st.integers(0, 10_000),
        st.integers(0, 255),
    ),
    min_size=1,
    max_size=4,
)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_p12_any_messages_survive_the_wire_however_it_is_cut(direction: str) -> None:
    kind, decode = DIRECTIONS[direction]

    @budget(120)
    @given(st.lists(any_message(kind), max_size=5), cuts)
    def check(messages: list[Any], places: list[int]) -> None:
        bodies = [encode(message) for message in messages]
        stream = b"".join(frame_header(len(body)) + body for body in bodies)
        decoder = FrameDecoder()
        frames = [frame for piece in fragments(stream, places) for frame in decoder.feed(piece)]
        assert [decode(frame) for frame in frames] == messages
        assert (decoder.pending_bytes, decoder.failure) == (0, None)

    check()


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_p12_a_damaged_message_is_another_one_or_an_error_that_says_what_is_wrong(direction: str) -> None:
    kind, decode = DIRECTIONS[direction]

    @budget(120)
    @given(any_message(kind), damages)
    def check(message: Any, damage: list[tuple[str, int, int]]) -> None:
        try:
            received = decode(damaged(encode(message), damage))
        except ProtocolError as error:
            assert error.message
            return
        if isinstance(received, Unreadable):
            assert received.request_id >= 1 and received.error.message
        else:
            # Whatever it is now, it is a message: it can be sent on, and means the same there.
            assert decode(encode(received)) == received

    check()


@budget(120)
@given(st.lists(st.binary(max_size=30), max_size=4), damages, cuts)
def test_p12_a_damaged_stream_gives_frames_or_a_failure_and_the_same_however_it_is_cut(
    bodies: list[bytes], damage: list[tuple[str, int, int]], places: list[int]
) -> None:
    stream = damaged(b"".join(frame_header(len(body)) + body for body in bodies), damage)
    whole, in_pieces = FrameDecoder(1_000), FrameDecoder(1_000)
    at_once = whole.feed(stream)
    assert [frame for piece in fragments(stream, places) for frame in in_pieces.feed(piece)] == at_once
    assert (whole.failure is None) == (in_pieces.failure is None)
    assert whole.pending_bytes == in_pieces.pending_bytes <= len(stream)


@budget(60)
@given(any_message(handshake.Body), damages)
def test_p12_a_damaged_data_handshake_is_refused_or_another_message(message: Any, damage: list) -> None:
    assert handshake.decode(handshake.encode(message)) == message
    try:
        handshake.decode(damaged(handshake.encode(message), damage))
    except handshake.PoolError as error:
        assert error.kind in ("ProtocolError", "Refused")


@budget(60)
@given(any_message(shm_wire.Message), damages)
def test_p12_a_damaged_shm_message_is_refused_or_another_message(message: Any, damage: list) -> None:
    assert shm_wire.decode(shm_wire.encode(message)) == message
    try:
        shm_wire.decode(damaged(shm_wire.encode(message), damage))
    except ProtocolError as error:
        assert error.message


def test_every_kind_of_message_has_a_tag_of_its_own_in_its_direction() -> None:
    for kind, _ in DIRECTIONS.values():
        assert len(tags_of(kind)) == len(kind.__args__)
    assert len(tags_of(Fact)) == len(Fact.__args__)
