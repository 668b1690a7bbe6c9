"""Kinds of configuration values: what is allowed, and how text and file values become typed ones (numbers with units
stand in `quantities`).

A kind knows nothing about keys or sources. It raises `ValueError` with a sentence that says what is allowed; `load`
adds the key and where the value came from. Environment variables and flags are text; TOML and JSON have types of their
own, and a number in quotes is refused there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, NamedTuple, Protocol, TypeVar

T_co = TypeVar("T_co", covariant=True)


class Kind(Protocol[T_co]):
    """How one key's values are read."""

    @property
    def name(self) -> str:
        """For the reference: "size", "text", ..."""
        ...

    @property
    def allowed(self) -> str:
        """What is allowed, as a phrase that follows "expected"."""
        ...

    @property
    def bounds(self) -> str:
        """What is allowed beyond what the name of the kind says, for a table: a range, the words; maybe ""."""
        ...

    def parse(self, raw: object) -> T_co:
        """A value from a file, or one that a program gives. Raises `ValueError`."""
        ...

    def parse_text(self, text: str) -> T_co:
        """A value from an environment variable or a flag. Raises `ValueError`."""
        ...


def refused(kind: Kind[object], raw: object) -> ValueError:
    """The error of a kind that does not take `raw`."""
    return ValueError(f"{raw!r:.80} is not allowed: expected {kind.allowed}")


@dataclass(frozen=True, slots=True)
class Text:
    """Any text of one line."""

    #: What it names, for people.
    what: str = "text"
    may_be_empty: bool = True
    name: ClassVar[str] = "text"
    bounds: ClassVar[str] = ""

    @property
    def allowed(self) -> str:
        return f"{self.what} in one line" + ("" if self.may_be_empty else ", not empty")

    def parse(self, raw: object) -> str:
        if not isinstance(raw, str) or not raw.isprintable() or not (raw or self.may_be_empty):
            raise refused(self, raw)
        return raw

    def parse_text(self, text: str) -> str:
        return self.parse(text)


class Absent(NamedTuple):
    """A word that is no choice, and what to tell those who make it."""

    word: str
    reason: str


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few words."""

    words: tuple[str, ...]
    #: Words that people expect here and that are not allowed.
    absent: tuple[Absent, ...] = ()
    name: ClassVar[str] = "choice"

    @property
    def allowed(self) -> str:
        return "one of " + ", ".join(repr(word) for word in self.words)

    @property
    def bounds(self) -> str:
        return ", ".join(f"`{word}`" for word in self.words)

    def parse(self, raw: object) -> str:
        for absent in self.absent:
            if raw == absent.word:
                raise ValueError(absent.reason)
        if not isinstance(raw, str) or raw not in self.words:
            raise refused(self, raw)
        return raw

    def parse_text(self, text: str) -> str:
        return self.parse(text.strip().lower())


@dataclass(frozen=True, slots=True)
class Switch:
    """Yes or no."""

    name: ClassVar[str] = "switch"
    allowed: ClassVar[str] = "true or false"
    bounds: ClassVar[str] = ""

    def parse(self, raw: object) -> bool:
        if not isinstance(raw, bool):
            raise refused(self, raw)
        return raw

    def parse_text(self, text: str) -> bool:
        word = text.strip().lower()
        if word not in ("true", "false"):
            raise refused(self, text)
        return word == "true"


@dataclass(frozen=True, slots=True)
class Address:
    """A URI: ``tcp://host:port``, ``unix:///path``, ... The transport of its scheme checks the rest."""

    may_be_empty: bool = False
    name: ClassVar[str] = "address"
    bounds: ClassVar[str] = ""

    @property
    def allowed(self) -> str:
        empty = " (or nothing)" if self.may_be_empty else ""
        return f"an address like 'tcp://host:7000', 'tcp://[::1]:7000' or 'unix:///run/pykvpool.sock'{empty}"

    def parse(self, raw: object) -> str:
        if isinstance(raw, str):
            text = raw.strip()
            scheme, found, rest = text.partition("://")
            if (not text and self.may_be_empty) or (found and rest and re.fullmatch(r"[a-z][a-z0-9+.-]*", scheme)):
                return text
            if scheme == "inproc" and found:
                return text
            if text and not found and re.fullmatch(r"[\w.:\[\]-]+|/\S+", text):
                suggested = f"unix://{text}" if text.startswith("/") else f"tcp://{text}"
                raise ValueError(f"{raw!r:.80} has no scheme: write {suggested}")
        raise refused(self, raw)

    def parse_text(self, text: str) -> str:
        return self.parse(text)


class HostPort(NamedTuple):
    """Where a server listens, taken apart."""

    host: str
    #: 0: any free one.
    port: int


@dataclass(frozen=True, slots=True)
class Listen:
    """Where an HTTP server listens. A port alone means the loopback interface: being reachable is a decision."""

    name: ClassVar[str] = "host:port"
    bounds: ClassVar[str] = ""

    @property
    def allowed(self) -> str:
        return "'host:port', '[ipv6]:port', ':port' or 'port' (on 127.0.0.1), or nothing for no server"

    def parse(self, raw: object) -> str:
        if raw == "":
            return ""
        text = str(raw) if isinstance(raw, int) and not isinstance(raw, bool) else raw
        if not isinstance(text, str):
            raise refused(self, raw)
        try:
            host, port = parse_host_port(text)
        except ValueError:
            raise refused(self, raw) from None
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def parse_text(self, text: str) -> str:
        return self.parse(text.strip())


@dataclass(frozen=True, slots=True)
class DataListen:
    """Where a node listens for peers that move blocks, with ``tcp://`` in front or without."""

    may_be_empty: bool = False
    name: ClassVar[str] = "host:port"
    bounds: ClassVar[str] = ""

    @property
    def allowed(self) -> str:
        return "'host:port', '[ipv6]:port' or the same after 'tcp://'" + (", or nothing" if self.may_be_empty else "")

    def parse(self, raw: object) -> str:
        if raw == "" and self.may_be_empty:
            return ""
        if isinstance(raw, str):
            try:
                host, port = parse_host_port(raw.strip().removeprefix("tcp://"))
            except ValueError:
                raise refused(self, raw) from None
            return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"
        raise refused(self, raw)

    def parse_text(self, text: str) -> str:
        return self.parse(text)


#: A host alone, or with a port; an IPv6 address alone needs no brackets.
_ADVERTISED = re.compile(r"[\w.-]+(:\d{1,5})?|\[[0-9A-Fa-f:.]+\](:\d{1,5})?|[0-9A-Fa-f:.]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Advertised:
    """Under which name others reach a listener; empty: the one that it listens on."""

    name: ClassVar[str] = "host"
    bounds: ClassVar[str] = ""

    @property
    def allowed(self) -> str:
        return "a host name or IP address, maybe with ':port'; or nothing"

    def parse(self, raw: object) -> str:
        if isinstance(raw, str):
            text = raw.strip()
            if not text or _ADVERTISED.fullmatch(text):
                return text
        raise refused(self, raw)

    def parse_text(self, text: str) -> str:
        return self.parse(text)


@dataclass(frozen=True, slots=True)
class Several(Generic[T_co]):
    """A list of values of one kind; in text they are joined by commas."""

    item: Kind[T_co]
    least: int = 1
    name: ClassVar[str] = "list"

    @property
    def allowed(self) -> str:
        count = "a list (in text: joined by commas) of " if self.least else "a list, maybe empty, of "
        return count + self.item.allowed

    @property
    def bounds(self) -> str:
        return self.item.bounds

    def parse(self, raw: object) -> tuple[T_co, ...]:
        if isinstance(raw, str) or not isinstance(raw, Sequence) or len(raw) < self.least:
            raise refused(self, raw)
        return tuple(self.item.parse(each) for each in raw)

    def parse_text(self, text: str) -> tuple[T_co, ...]:
        parts = [part.strip() for part in text.split(",") if part.strip()]
        if len(parts) < self.least:
            raise refused(self, text)
        return tuple(self.item.parse_text(part) for part in parts)


def parse_host_port(text: str, default_host: str = "127.0.0.1") -> HostPort:
    """Take 'host:port', '[ipv6]:port', ':port' or 'port' apart; `ValueError` for anything else."""
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%\w]+)\]:|([^:\[\]/\s]*):)?(\d{1,5})", text, re.ASCII)
    if match is None or int(match[3]) > 65_535:
        raise ValueError(f"{text!r:.80} is no host and port: expected 'host:port', '[ipv6]:port' or 'port'")
    return HostPort(match[1] or match[2] or default_host, int(match[3]))
