"""P12 on the wire of tcp: what was encoded is decoded, everything else is a ProtocolError."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykvpool.errors import InvalidArgument, PoolError, ProtocolError, SegmentGone
from pykvpool.fabric.tcp_wire import (
    MAX_OPERATIONS,
    MAX_REQUEST_BYTES,
    MAX_TEXT_BYTES,
    OPERATION,
    REQUEST_HEADER,
    REQUEST_MAGIC,
    RESPONSE_HEADER,
    RESPONSE_MAGIC,
    STATUS,
    Kind,
    RequestHeader,
    WireOperation,
    decode_operations,
    decode_request_header,
    decode_response_header,
    decode_statuses,
    encode_request,
    encode_response,
)
from pykvpool.model.ids import Generation, PutId

operations = st.lists(
    st.builds(WireOperation, st.integers(0, 1 << 62), st.integers(0, 1 << 20), st.integers(0, (1 << 64) - 1)),
    min_size=1,
    max_size=8,
)


@given(st.sampled_from([Kind.READ, Kind.WRITE]), st.integers(0, 1 << 60), st.integers(1, (1 << 64) - 1), operations)
def test_requests_round_trip(kind: Kind, request_id: int, generation: int, entries: list[WireOperation]) -> None:
    header = RequestHeader(kind, len(entries), request_id, Generation(generation))
    data = encode_request(header, entries)
    assert decode_request_header(data[: REQUEST_HEADER.size]) == header
    assert decode_operations(data[REQUEST_HEADER.size :]) == entries


def test_responses_round_trip_with_kind_and_text_of_each_error() -> None:
    errors: list[PoolError | None] = [None, SegmentGone("gone"), InvalidArgument("zu groß"), None]
    data = encode_response(Kind.WRITE, 9, errors)
    header = decode_response_header(data[: RESPONSE_HEADER.size])
    assert (header.kind, header.request_id, header.operations) == (Kind.WRITE, 9, 4)
    assert len(data) == RESPONSE_HEADER.size + header.rest_bytes
    decoded = decode_statuses(header, data[RESPONSE_HEADER.size :])
    assert [(type(error), str(error)) for error in decoded] == [(type(error), str(error)) for error in errors]


def test_a_long_text_is_clipped_between_characters() -> None:
    data = encode_response(Kind.READ, 1, [SegmentGone("\N{SNOWMAN}" * 1000)])
    header = decode_response_header(data[: RESPONSE_HEADER.size])
    (error,) = decode_statuses(header, data[RESPONSE_HEADER.size :])
    assert error is not None
    assert set(error.message) == {"\N{SNOWMAN}"}
    assert len(error.message.encode()) <= MAX_TEXT_BYTES


@pytest.mark.parametrize(
    "data",
    [
        REQUEST_HEADER.pack(b"HTTP", Kind.READ, 1, 1, 1),
        REQUEST_HEADER.pack(REQUEST_MAGIC, 9, 1, 1, 1),
        REQUEST_HEADER.pack(REQUEST_MAGIC, Kind.FAREWELL, 1, 1, 1),
        REQUEST_HEADER.pack(REQUEST_MAGIC, Kind.READ, 0, 1, 1),
        REQUEST_HEADER.pack(REQUEST_MAGIC, Kind.READ, MAX_OPERATIONS + 1, 1, 1),
    ],
)
def test_a_bad_request_header_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_request_header(data)


@pytest.mark.parametrize("entry", [(0, MAX_REQUEST_BYTES + 1, 1), ((1 << 64) - 1, 1, 1), (0, (1 << 64) - 1, 1)])
def test_operations_out_of_range_are_refused(entry: tuple[int, int, int]) -> None:
    with pytest.raises(ProtocolError):
        decode_operations(OPERATION.pack(*entry))


@pytest.mark.parametrize(
    "data",
    [
        RESPONSE_HEADER.pack(b"HTTP", Kind.READ, 1, 1, 0),
        RESPONSE_HEADER.pack(RESPONSE_MAGIC, 0, 1, 1, 0),
        RESPONSE_HEADER.pack(RESPONSE_MAGIC, Kind.READ, 0, 1, 0),
        RESPONSE_HEADER.pack(RESPONSE_MAGIC, Kind.READ, MAX_OPERATIONS + 1, 1, 0),
        RESPONSE_HEADER.pack(RESPONSE_MAGIC, Kind.READ, 1, 1, MAX_TEXT_BYTES + 1),
    ],
)
def test_a_bad_response_header_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_response_header(data)


@pytest.mark.parametrize("text_length", [0, 3, 5, (1 << 32) - 1])
def test_texts_that_do_not_add_up_are_refused(text_length: int) -> None:
    header = decode_response_header(RESPONSE_HEADER.pack(RESPONSE_MAGIC, Kind.READ, 1, 1, 4))
    with pytest.raises(ProtocolError):
        decode_statuses(header, STATUS.pack(-100, text_length) + b"gone")


@given(st.binary(min_size=REQUEST_HEADER.size, max_size=REQUEST_HEADER.size))
def test_random_headers_are_decoded_or_refused(data: bytes) -> None:
    for prefix in (b"", REQUEST_MAGIC):
        try:
            header = decode_request_header((prefix + data)[: REQUEST_HEADER.size])
        except ProtocolError:
            continue
        assert 0 < header.operations <= MAX_OPERATIONS


def test_a_put_id_uses_its_whole_range() -> None:
    entry = WireOperation(0, 1, PutId((1 << 64) - 1))
    data = encode_request(RequestHeader(Kind.WRITE, 1, 0, Generation(1)), [entry])
    assert decode_operations(data[REQUEST_HEADER.size :]) == [entry]
