"""The one base of all messages: immutable, positional on the wire, and unknown to the garbage collector."""

from __future__ import annotations

from msgspec import Struct


class Message(Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """A value that can be sent: fields in declared order, encoded as a msgpack array."""


class Tagged(Message, frozen=True, tag=True):
    """A `Message` that stands in a union: its class name comes first on the wire."""
