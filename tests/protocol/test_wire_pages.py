"""What the documentation says about the wire is what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pykvpool.core.handlers.cluster import MAX_INTERNED_SCOPES
from pykvpool.model import commands, keys
from pykvpool.model.commands import Command
from pykvpool.model.instructions import Instruction
from pykvpool.model.replies import Reply
from pykvpool.protocol import frames, handshake, messages
from pykvpool.protocol.reference import messages_markdown
from pykvpool.protocol.transitions import CLIENT_TABLE, SERVER_TABLE, mermaid

DOCS = Path(__file__).parents[2] / "docs"


def page() -> str:
    return (DOCS / "wire.md").read_text("utf-8")


def test_the_list_of_messages_is_current() -> None:
    assert (DOCS / "wire-messages.md").read_text("utf-8") == messages_markdown(), "run make reference"


@pytest.mark.parametrize("kind", [*Command.__args__, *Reply.__args__, *Instruction.__args__])
def test_every_message_is_listed_with_every_field(kind: type) -> None:
    [row] = re.findall(rf"^\| `{kind.__struct_config__.tag}` \| (.*) \|$", messages_markdown(), re.MULTILINE)
    assert re.findall(r"`(\w+)\??`", row) == list(kind.__struct_fields__)


def test_no_python_type_leaks_into_the_page() -> None:
    assert not re.search(r"tuple\[|dict\[|\bNone\b|[a-z]Id\b", messages_markdown())


@pytest.mark.parametrize("table", [CLIENT_TABLE, SERVER_TABLE])
def test_the_diagrams_are_in_the_page(table: dict) -> None:
    assert f"```mermaid\n{mermaid(table)}```" in messages_markdown()


@pytest.mark.parametrize("number", [frames.MAX_FRAME_BYTES, frames.MAX_HANDSHAKE_FRAME_BYTES])
def test_the_limits_are_those_of_the_code(number: int) -> None:
    assert f"{number:,} " in page()


@pytest.mark.parametrize(
    ("what", "most"),
    [
        ("keys of one command", commands.MAX_BATCH_KEYS),
        ("bytes of a key", keys.MAX_KEY_BYTES),
        ("bytes of a scope's namespace, fingerprint or rank", keys.MAX_SCOPE_FIELD_BYTES),
        ("scopes of one `intern` or `match_prefix`", commands.MAX_SCOPES),
        ("scopes that a master knows", MAX_INTERNED_SCOPES),
        ("replicas of an object", commands.MAX_REPLICAS),
        ("body of a frame", frames.MAX_FRAME_BYTES),
    ],
)
def test_the_table_of_limits_is_that_of_the_code(what: str, most: int) -> None:
    assert re.search(rf"^\| {re.escape(what)} \| {most:,}\b", page(), re.MULTILINE)


@pytest.mark.parametrize("name", sorted(path.name for path in DOCS.glob("*.md")))
def test_every_link_of_a_page_leads_to_a_file(name: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", (DOCS / name).read_text("utf-8")):
        assert "://" in target or (DOCS / target).exists(), target


def test_labels_and_envelopes_are_those_of_the_code() -> None:
    for label in (handshake.CLIENT_LABEL, handshake.MASTER_LABEL):
        assert f"`{label.decode()}`" in page()
    for kind in (messages.HelloFrame, messages.RequestFrame, messages.ReplyFrame, messages.Farewell):
        listed = kind.__struct_fields__[1:] if kind is messages.HelloFrame else kind.__struct_fields__
        start = '"hello", "pykvpool"' if kind is messages.HelloFrame else f'"{kind.__struct_config__.tag}"'
        assert f"`[{start}, {', '.join(listed)}]`" in page()


def test_every_parting_is_explained() -> None:
    for parting in messages.Parting:
        assert f"| {f'`{parting.value}`' if parting else '(empty)'} |" in page()
