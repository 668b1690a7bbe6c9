"""Frames arrive whole and in order, however the network cut them; what is no frame is refused before it is kept."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pykvpool.errors import LimitExceeded, ProtocolError
from pykvpool.model.commands import MAX_BATCH_KEYS, PutStart
from pykvpool.model.ids import RequestId, ScopeId
from pykvpool.model.keys import MAX_KEY_BYTES
from pykvpool.protocol.codec import encode
from pykvpool.protocol.frames import HEADER, MAX_FRAME_BYTES, FrameDecoder, frame_header
from pykvpool.protocol.messages import RequestFrame


def on_the_wire(frames: list[bytes]) -> bytes:
    return b"".join(frame_header(len(frame)) + frame for frame in frames)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


@settings(max_examples=100, derandomize=True)
@given(st.lists(st.binary(max_size=50), max_size=8), st.lists(st.integers(0, 10_000), max_size=12))
def test_frames_are_the_same_under_any_fragmentation(frames: list[bytes], places: list[int]) -> None:
    decoder = FrameDecoder()
    received = [frame for piece in cut(on_the_wire(frames), places) for frame in decoder.feed(piece)]
    decoder.end()
    assert received == frames
    assert decoder.failure is None
    assert decoder.pending_bytes == 0


@settings(max_examples=100, derandomize=True)
@given(st.lists(st.binary(max_size=20), max_size=5), st.lists(st.integers(0, 10_000), max_size=12), st.binary())
def test_what_came_before_an_oversized_frame_is_delivered_under_any_fragmentation(
    frames: list[bytes], places: list[int], after: bytes
) -> None:
    decoder = FrameDecoder(limit_bytes=20)
    data = on_the_wire(frames) + HEADER.pack(21) + after
    received = [frame for piece in cut(data, places) for frame in decoder.feed(piece)]
    assert received == frames
    assert isinstance(decoder.failure, ProtocolError)
    assert decoder.feed(on_the_wire([b"more"])) == []


def test_an_oversized_frame_is_refused_by_its_header_alone_and_nothing_of_it_is_kept() -> None:
    decoder = FrameDecoder(limit_bytes=100)
    assert decoder.feed(HEADER.pack(101)) == []
    assert decoder.failure is not None
    assert decoder.failure.fields == {"size_bytes": 101, "limit_bytes": 100}
    decoder.feed(b"x" * 101)
    assert decoder.pending_bytes == 0


def test_the_error_shows_how_another_protocol_began() -> None:
    decoder = FrameDecoder()
    decoder.feed(b"GET / HTTP/1.1\r\n\r\n")
    assert "GET / HTTP/1.1" in str(decoder.failure)


def test_a_stream_that_ends_inside_a_frame_is_a_failure() -> None:
    decoder = FrameDecoder()
    decoder.feed(HEADER.pack(10) + b"half")
    assert decoder.pending_bytes == 8
    decoder.end()
    assert "inside a frame" in str(decoder.failure)


def test_a_frame_that_no_peer_would_accept_is_not_sent() -> None:
    with pytest.raises(LimitExceeded) as caught:
        frame_header(MAX_FRAME_BYTES + 1)
    assert caught.value.fields["limit_bytes"] == MAX_FRAME_BYTES


def test_the_largest_honest_batch_fits_into_a_frame() -> None:
    keys = tuple(index.to_bytes(MAX_KEY_BYTES, "big") for index in range(MAX_BATCH_KEYS))
    command = PutStart(ScopeId(1), keys, (1 << 40,) * MAX_BATCH_KEYS, parents=keys)
    frame = encode(RequestFrame(RequestId(1 << 62), RequestId(0), command))
    assert len(frame_header(len(frame))) == HEADER.size
