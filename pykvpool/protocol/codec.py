"""Envelopes to bytes and back, and what to say when bytes are not what they should be.

Decoding is strict: an unknown verb, an unknown field or a wrong type is a `ProtocolError` that names the place in the
words of the model ("put_start: expected `int`, got `str` at sizes[3]"). Where the frame is a request whose number can
be read, only that request is bad (`Unreadable`) and can be answered with the error; anything else ends the connection.
The number is fished out with a streaming decoder that reads the first elements and never builds the rest.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import msgpack
import msgspec

from pykvpool.errors import ProtocolError
from pykvpool.model.commands import Command
from pykvpool.model.ids import RequestId
from pykvpool.model.replies import Reply
from pykvpool.protocol.messages import MAGIC, FromMaster, HandshakeFrame, HelloFrame, ToMaster

_encoder = msgspec.msgpack.Encoder()
_handshake_decoder: msgspec.msgpack.Decoder[HandshakeFrame] = msgspec.msgpack.Decoder(HandshakeFrame)
_to_master_decoder: msgspec.msgpack.Decoder[ToMaster] = msgspec.msgpack.Decoder(ToMaster)
_from_master_decoder: msgspec.msgpack.Decoder[FromMaster] = msgspec.msgpack.Decoder(FromMaster)

#: Longest tag or verb that is repeated in an error message.
_MAX_TAG_CHARS = 64

_PATH = re.compile(r" - at `\$(?P<path>[^`]*)`$")
_INDEX = re.compile(r"\[(?P<index>\d+|\.\.\.)\]")


class Unreadable(NamedTuple):
    """A request or reply whose number could be read and whose body could not."""

    request_id: RequestId
    error: ProtocolError


def encode(message: ToMaster | FromMaster | HandshakeFrame) -> bytes:
    """The body of a frame."""
    return _encoder.encode(message)


def decode_handshake(frame: bytes) -> HandshakeFrame:
    """A frame of the handshake; raises `ProtocolError` for anything else."""
    try:
        return _handshake_decoder.decode(frame)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ProtocolError(f"not a handshake message: {_explain(error, _peek(frame))}") from None


def decode_to_master(frame: bytes) -> ToMaster | Unreadable:
    """What a peer sent after the handshake; raises `ProtocolError` where no request number can be read."""
    try:
        return _to_master_decoder.decode(frame)
    except (msgspec.DecodeError, RecursionError) as error:
        return _unreadable(frame, "request", error)


def decode_from_master(frame: bytes) -> FromMaster | Unreadable:
    """What the master sent after the handshake; raises `ProtocolError` where no request number can be read."""
    try:
        return _from_master_decoder.decode(frame)
    except (msgspec.DecodeError, RecursionError) as error:
        return _unreadable(frame, "reply", error)


def peek_version(frame: bytes) -> int | None:
    """The version that a hello of *any* version announces; None where this is no hello."""
    unpacker = _careful_unpacker(frame)
    try:
        unpacker.read_array_header()
        if unpacker.unpack() != HelloFrame.__struct_config__.tag or unpacker.unpack() != MAGIC:
            return None
        version = unpacker.unpack()
    except _LOOSE_ERRORS:
        return None
    return version if type(version) is int else None


def _unreadable(frame: bytes, tag: str, error: Exception) -> Unreadable:
    seen = _peek(frame)
    problem = ProtocolError(_explain(error, seen))
    if seen.tag != tag or seen.request_id is None:
        raise problem from None
    return Unreadable(RequestId(seen.request_id), problem)


class _Peek(NamedTuple):
    """The first elements of a frame, as far as they make sense."""

    tag: str | None = None
    request_id: int | None = None
    verb: str | None = None


def _peek(frame: bytes) -> _Peek:
    """Read tag, number and verb without building anything else."""
    unpacker = _careful_unpacker(frame)
    seen = _Peek()
    try:
        length = unpacker.read_array_header()
        seen = seen._replace(tag=_text(unpacker.unpack()))
        number = unpacker.unpack()
        if type(number) is not int or not 1 <= number < 1 << 63:
            return seen
        seen = seen._replace(request_id=number)
        if seen.tag == "request":
            unpacker.unpack()
        if length > 2:
            unpacker.read_array_header()
            seen = seen._replace(verb=_text(unpacker.unpack()))
    except _LOOSE_ERRORS:
        return seen  # what was read until here is all that can be said
    return seen


#: What msgpack raises for malformed, truncated, oversized or mistyped input.
_LOOSE_ERRORS = (ValueError, TypeError, msgpack.UnpackException)


def _careful_unpacker(frame: bytes) -> Any:
    """Reads a frame element by element. Its limits let scalars through and nothing that could be large."""
    limits = {"max_str_len": _MAX_TAG_CHARS, "max_bin_len": 0, "max_array_len": 0, "max_map_len": 0, "max_ext_len": 0}
    unpacker = msgpack.Unpacker(max_buffer_size=max(len(frame), 1), **limits)
    unpacker.feed(frame)
    return unpacker


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _explain(error: Exception, seen: _Peek) -> str:
    """An error of the decoder in the words of the model."""
    if isinstance(error, RecursionError):
        return "the message is nested too deeply"
    text = str(error)
    match = _PATH.search(text)
    if match is None:
        return f"the message is malformed: {text}" if seen.tag is None else f"{seen.tag}: {text}"
    said = text[: match.start()]
    path: list[int | str] = [index if index == "..." else int(index) for index in _INDEX.findall(match["path"])]
    if path == [0]:
        return f"unknown kind of message {seen.tag!r}" if seen.tag is not None else f"{said} as the kind of message"
    body_at = {"request": 3, "reply": 2, "instruction": 1}.get(seen.tag or "")
    if body_at is None or not path or path[0] != body_at:
        return f"{seen.tag}: {said}{_place(_ENVELOPES.get(seen.tag or ''), path)}"
    if path[1:] == [0]:
        return f"unknown verb {seen.verb!r}" if seen.verb is not None else f"{said} as the verb"
    body = _BODIES.get((seen.tag or "", seen.verb or ""))
    if len(path) == 1 and body is not None and said.startswith("Expected `array` of at most"):
        return f"{seen.verb}: an unknown field: it has {len(body)} ({', '.join(body) or 'none'}); {said}"
    return f"{seen.verb or seen.tag}: {said}{_place(body, path[1:])}"


def _place(fields: tuple[str, ...] | None, path: list[int | str]) -> str:
    """``[2, 7]`` of put_start -> `` at hashes[7]``. Element 0 is the tag, fields count from 1."""
    if not path:
        return ""
    first = path[0]
    named = fields is not None and isinstance(first, int) and 1 <= first <= len(fields)
    head = fields[first - 1] if named and fields is not None and isinstance(first, int) else f"[{first}]"
    return f" at {head}" + "".join(f"[{index}]" for index in path[1:])


def _fields_by_tag(union: Any) -> dict[str, tuple[str, ...]]:
    return {kind.__struct_config__.tag: kind.__struct_fields__ for kind in union.__args__}


_ENVELOPES = _fields_by_tag(HandshakeFrame | ToMaster | FromMaster)
_BODIES: dict[tuple[str, str], tuple[str, ...]] = {
    **{("request", tag): fields for tag, fields in _fields_by_tag(Command).items()},
    **{("reply", tag): fields for tag, fields in _fields_by_tag(Reply).items()},
}
