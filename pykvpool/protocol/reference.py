"""Writes docs/wire-messages.md from the messages and the transition tables: page and code cannot drift apart."""

from __future__ import annotations

import re
from typing import Any

from msgspec import NODEFAULT
from msgspec.structs import fields

from pykvpool.model import ids
from pykvpool.model.commands import Command
from pykvpool.model.instructions import Instruction
from pykvpool.model.keys import Scope
from pykvpool.model.objects import Extent, ObjectInfo, SegmentDescriptor
from pykvpool.model.replies import (
    Existing,
    ObjectStat,
    Pending,
    PutGrant,
    Reply,
    SegmentState,
    SessionState,
)
from pykvpool.protocol.transitions import CLIENT_TABLE, SERVER_TABLE, mermaid

#: Entries of replies, which have tags too.
_ENTRIES: tuple[Any, ...] = (PutGrant, Existing, Pending, ObjectInfo, ObjectStat, SegmentState, SessionState)
#: Messages that stand where there is no choice, and so have no tag.
_UNTAGGED: tuple[Any, ...] = (Scope, Extent, SegmentDescriptor)

_INTRODUCTION = """\
# The messages of the wire

Written from the code; [the wire](wire.md) explains how they travel. Each row is a message and its fields in the order
in which they stand on the wire, after the tag; `?` marks a field that may be left out. A name in italics is another
message of this page. What they mean is told in `pykvpool/model/commands.py`, `pykvpool/model/replies.py` and
`pykvpool/model/instructions.py`.
"""


def messages_markdown() -> str:
    """The whole page."""
    parts = [
        _INTRODUCTION,
        "## Commands\n\n" + _table("verb", _members(Command)),
        "## Replies\n\n" + _table("reply", _members(Reply)),
        "## Entries of replies\n\n" + _table("entry", _ENTRIES),
        "## Instructions\n\n" + _table("instruction", _members(Instruction)),
        "## Messages without a tag\n\n" + _table("message", _UNTAGGED),
        "## The handshake of the peer\n\n```mermaid\n" + mermaid(CLIENT_TABLE) + "```\n",
        "## The handshake of the master\n\n```mermaid\n" + mermaid(SERVER_TABLE) + "```\n",
    ]
    return "\n".join(parts)


def _members(union: Any) -> tuple[Any, ...]:
    return tuple(union.__args__)


def _table(what: str, kinds: tuple[Any, ...]) -> str:
    rows = [f"| {_name(kind)} | {_fields(kind)} |" for kind in kinds]
    return "\n".join([f"| {what} | fields |", "|---|---|", *rows]) + "\n"


def _name(kind: Any) -> str:
    tag = kind.__struct_config__.tag
    return f"`{tag}`" if tag else _words(kind)


def _words(kind: Any) -> str:
    """SegmentDescriptor -> segment_descriptor."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


def _fields(kind: Any) -> str:
    listed = []
    for field in fields(kind):
        optional = field.default is not NODEFAULT or field.default_factory is not NODEFAULT
        listed.append(f"`{field.name}{'?' if optional else ''}` {_wire_type(str(kind.__annotations__[field.name]))}")
    return ", ".join(listed) or "none"


def _wire_type(annotation: str) -> str:
    """An annotation in words of the wire: ids and enums are ints, a tuple is a list, a message goes by its tag."""
    if annotation.startswith("tuple["):
        inner = _wire_type(annotation.removeprefix("tuple[").removesuffix(", ...]"))
        return f"list of ({inner})" if " or " in inner else f"list of {inner}"
    if annotation.startswith("dict[str, "):
        return f"map of str to {_wire_type(annotation.removeprefix('dict[str, ').removesuffix(']'))}"
    return " or ".join(_WIRE_NAMES.get(name, name) for name in annotation.split(" | "))


def _wire_names() -> dict[str, str]:
    names = {name: "int" for name in vars(ids) if name.endswith("Id")}
    names |= {"Generation": "int", "Pin": "int", "Tier": "int", "NodeName": "str", "None": "nil"}
    names["FieldValue"] = "(str or int or float or bool or nil)"
    for kind in (*_members(Reply), *_ENTRIES, *_UNTAGGED):
        names[kind.__name__] = f"*{kind.__struct_config__.tag or _words(kind)}*"
    return names


_WIRE_NAMES = _wire_names()
