"""Every message survives the wire; whatever else arrives is refused with words that name the place."""

from __future__ import annotations

import msgpack
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pykvpool.errors import PoolFull, ProtocolError
from pykvpool.model import commands, instructions, replies
from pykvpool.model.commands import Command, Exists, Heartbeat
from pykvpool.model.ids import RequestId, ScopeId, SegmentId
from pykvpool.model.keys import Scope
from pykvpool.model.objects import Extent
from pykvpool.model.replies import ErrorInfo, PutGrant, PutStarted
from pykvpool.protocol.codec import (
    Unreadable,
    decode_from_master,
    decode_handshake,
    decode_to_master,
    encode,
    peek_version,
)
from pykvpool.protocol.messages import Farewell, InstructionFrame, Parting, ReplyFrame, RequestFrame

#: A value for each type of field that commands, replies and instructions have.
SAMPLES = {
    "tuple[Scope, ...]": (Scope("ns", "f" * 32, "tp0", 1),),
    "tuple[bytes, ...]": (b"\x00" * 32, b"key"),
    "tuple[bytes | None, ...]": (None, b"p"),
    "tuple[int, ...]": (0, 1 << 40),
    "tuple[int | None, ...]": (None, (1 << 64) - 1),
    "tuple[str, ...]": ("tcp://[::1]:7000",),
    "dict[str, FieldValue]": {"a": 1, "b": "x", "c": None, "d": 1.5, "e": True},
    "dict[str, int]": {"puts_total": 3},
    "bytes": b"\x01\x00",
    "str": "name",
    "bool": True,
    "Pin": 2,
    "int": (1 << 63) - 1,
    "int | None": (1 << 64) - 1,
    "LeaseId | None": None,
}


def sample(kind: type) -> object:
    """An instance with every field set: from `SAMPLES` by annotation; ids are numbers, tuples of messages empty."""
    values = []
    for field in msgspec.structs.fields(kind):
        annotation = kind.__annotations__.get(field.name, "")
        if annotation in SAMPLES:
            value = SAMPLES[annotation]
        elif annotation.startswith("tuple[") and annotation.split("[")[1].split(",")[0].endswith("Id"):
            value = (1, 2)
        elif annotation.startswith("tuple["):
            value = ()
        else:
            value = 7
        values.append(value)
    return msgspec.convert([kind.__struct_config__.tag, *values], kind)


@pytest.mark.parametrize("kind", commands.Command.__args__, ids=lambda kind: kind.__name__)
def test_every_command_survives_the_wire(kind: type) -> None:
    frame = RequestFrame(RequestId(3), RequestId(1), sample(kind), (RequestId(2),))
    assert decode_to_master(encode(frame)) == frame


@pytest.mark.parametrize("kind", replies.Reply.__args__, ids=lambda kind: kind.__name__)
def test_every_reply_survives_the_wire(kind: type) -> None:
    frame = ReplyFrame(RequestId(3), sample(kind))
    assert decode_from_master(encode(frame)) == frame


@pytest.mark.parametrize("kind", instructions.Instruction.__args__, ids=lambda kind: kind.__name__)
def test_every_instruction_survives_the_wire(kind: type) -> None:
    frame = InstructionFrame(sample(kind))
    assert decode_from_master(encode(frame)) == frame


def test_an_error_is_rebuilt_with_kind_message_and_fields() -> None:
    error = PoolFull("no room: 3 leased", leased=3, wanted_bytes=10)
    entry = PutStarted((PutGrant(1, (Extent(SegmentId(1), 0, 64),)), ErrorInfo.of(error)))
    received = decode_from_master(encode(ReplyFrame(RequestId(1), entry)))
    rebuilt = received.reply.entries[1].error()
    assert type(rebuilt) is PoolFull
    assert (rebuilt.message, rebuilt.fields) == (error.message, error.fields)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (["nope", 1], "unknown verb 'nope'"),
        (["heartbeat", 5], "heartbeat: an unknown field"),
        (["put_start", 1, [b"k"], ["y"]], "put_start: Expected `int`, got `str` at sizes[0]"),
        (["put_start", 1, [b"k"], [1], ["text"]], "at parents[0]"),
        (["intern", [["ns", "fp", "rank", "group"]]], "intern: Expected `int`, got `str` at scopes[0][3]"),
        (["pin", 1, [b"k"], 9], "pin: Invalid enum value 9 at pin"),
        (["put_end", [1]], "put_end: Expected `array` of at least length 4"),
        (["exists", 1, [b"k"], "extra"], "exists: an unknown field: it has 2 (scope, hashes)"),
        ([5], "as the verb"),
        ({"verb": "exists"}, "Expected `array`, got `object`"),
        ("exists", "Expected `array`, got `str`"),
    ],
)
def test_p12_a_bad_command_is_answered_to_its_request_and_names_the_place(body: object, words: str) -> None:
    received = decode_to_master(msgpack.packb(["request", 12, 3, body]))
    assert isinstance(received, Unreadable)
    assert received.request_id == 12
    assert words in received.error.message


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (b"", "truncated"),
        (b"\xc1", "malformed"),
        (b"\x93", "truncated"),
        (b"\xdd\xff\xff\xff\xff", "truncated"),
        (b"\x91" * 5_000, ""),
        (msgpack.packb(5), "Expected `array`"),
        (msgpack.packb(["shout", 1]), "unknown kind of message 'shout'"),
        (msgpack.packb([1, 2, 3]), "as the kind of message"),
        (msgpack.packb(["request", 0, 0, ["heartbeat"]]), "request_id"),
        (msgpack.packb(["request", -1, 0, ["heartbeat"]]), "request_id"),
        (msgpack.packb(["request", "one", 0, ["heartbeat"]]), "request_id"),
        (msgpack.packb(["request", True, 0, ["heartbeat"]]), "request_id"),
        (msgpack.packb(["request", 1 << 63, 0, ["heartbeat"]]), ""),
        (msgpack.packb(["reply", 1, ["done"]]), "unknown kind of message 'reply'"),
    ],
)
def test_p12_a_frame_whose_request_cannot_be_known_is_a_protocol_error(frame: bytes, words: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode_to_master(frame)
    assert words in caught.value.message


def test_text_after_a_whole_message_is_refused() -> None:
    received = decode_to_master(encode(RequestFrame(RequestId(1), RequestId(0), Heartbeat())) + b"\x00")
    assert isinstance(received, Unreadable)


def test_a_deeply_nested_command_is_refused_without_being_built() -> None:
    frame = msgpack.packb(["request", 4, 0])[1:]
    received = decode_to_master(b"\x94" + frame + b"\x91" * 100_000)
    assert isinstance(received, Unreadable)
    assert received.request_id == 4


def test_a_reply_that_cannot_be_read_is_an_error_of_that_call_alone() -> None:
    received = decode_from_master(msgpack.packb(["reply", 9, ["done", 5]]))
    assert isinstance(received, Unreadable)
    assert received.request_id == 9
    assert "done: Expected `array`, got `int` at errors" in received.error.message


@settings(max_examples=300, derandomize=True)
@given(st.binary(max_size=60))
def test_p12_garbage_is_a_protocol_error_and_never_anything_worse(frame: bytes) -> None:
    for decode in (decode_to_master, decode_from_master, decode_handshake):
        try:
            decode(frame)
        except ProtocolError as error:
            assert error.message


scalars = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(allow_nan=False)
values = st.recursive(
    scalars | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)
verbs = st.sampled_from([kind.__struct_config__.tag for kind in Command.__args__])


@settings(max_examples=300, derandomize=True)
@given(verbs, st.lists(values, max_size=6))
def test_p12_a_request_with_any_fields_is_a_command_or_an_error_of_that_request(verb: str, fields: list) -> None:
    received = decode_to_master(msgpack.packb(["request", 7, 0, [verb, *fields]]))
    assert received.request_id == 7
    assert isinstance(received, RequestFrame | Unreadable)


def test_any_language_may_leave_out_fields_that_have_defaults() -> None:
    received = decode_to_master(msgpack.packb(["request", 1, 0, ["exists", 4, [b"k"]]]))
    assert received == RequestFrame(RequestId(1), RequestId(0), Exists(ScopeId(4), (b"k",)))
    received = decode_to_master(msgpack.packb(["farewell", -605, "bye"]))
    assert received == Farewell(-605, "bye", Parting.NONE)


@pytest.mark.parametrize(
    ("frame", "version"),
    [
        (msgpack.packb(["hello", "pykvpool", 1, "", "n"]), 1),
        (msgpack.packb(["hello", "pykvpool", 9, {"other": ["fields"]}]), 9),
        (msgpack.packb(["hello", "mooncake", 1]), None),
        (msgpack.packb(["hello", "pykvpool", "two"]), None),
        (msgpack.packb(["hello"]), None),
        (b"", None),
        (b"\xc1", None),
    ],
)
def test_the_version_of_any_hello_can_be_read(frame: bytes, version: int | None) -> None:
    assert peek_version(frame) == version


def test_a_lookup_costs_hardly_more_than_its_hashes() -> None:
    hashes = tuple(bytes([index % 256]) * 32 for index in range(1_250))
    assert len(encode(RequestFrame(RequestId(1), RequestId(0), Exists(ScopeId(1), hashes)))) < 1_250 * 34 + 40
