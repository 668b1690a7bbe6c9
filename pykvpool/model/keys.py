"""What an object is called.

A key is a `Scope` plus a binary block hash. The scope says whose bytes these are (namespace), what shaped them
(fingerprint of the model's KV layout) and which part of a block they hold (rank, cache group); two keys with different
scopes never name the same bytes. On the wire a scope is interned once per connection and then a small number.

People's own keys (``pool.put("my-key", ...)``) are the same thing with an empty fingerprint: the hash is the key's
UTF-8.
"""

from __future__ import annotations

from pykvpool.errors import InvalidArgument
from pykvpool.model.base import Message

#: Longest key in bytes. Block hashes are 16 to 32; Mooncake-style text keys of vLLM run to about 200.
MAX_KEY_BYTES = 1024
#: Longest namespace, fingerprint or rank text.
MAX_SCOPE_FIELD_BYTES = 256

#: Namespace of keys whose user named none.
DEFAULT_NAMESPACE = "default"


class Scope(Message, frozen=True, order=True):
    """Everything but the hash: (namespace, fingerprint, rank, group)."""

    namespace: str = DEFAULT_NAMESPACE
    fingerprint: str = ""
    rank: str = ""
    group: int = 0

    def text(self) -> str:
        """For people: ``namespace`` alone for plain keys, all four joined by ``/`` otherwise."""
        if not self.fingerprint and not self.rank and not self.group:
            return self.namespace
        return f"{self.namespace}/{self.fingerprint}/{self.rank}/{self.group}"


def key_bytes(key: str | bytes) -> bytes:
    """The binary form of a user's key; raises `InvalidArgument` where it is empty, too long or not text.

    ``bytes`` are taken as they are (block hashes); ``str`` as UTF-8.
    """
    if isinstance(key, str):
        try:
            raw = key.encode("utf-8")
        except UnicodeEncodeError:
            raise InvalidArgument(f"key {key[:40]!r} is not valid text: it cannot be written as UTF-8") from None
    elif isinstance(key, bytes):
        raw = key
    else:
        raise InvalidArgument(f"a key is str or bytes, not {type(key).__name__}")
    if not raw:
        raise InvalidArgument("the key is empty: a key has 1 to 1024 bytes")
    if len(raw) > MAX_KEY_BYTES:
        raise InvalidArgument(
            f"the key has {len(raw)} bytes: at most {MAX_KEY_BYTES} are allowed",
            key_bytes=len(raw),
            limit_bytes=MAX_KEY_BYTES,
        )
    return raw


def key_text(raw: bytes) -> str:
    """A key for people: the text itself where it is printable UTF-8, ``0x`` and hex otherwise.

    Text that itself begins with ``0x`` is shown in hex too, so that what is shown means one key and no other.
    """
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        return "0x" + raw.hex()
    return text if text.isprintable() and not text.startswith("0x") else "0x" + raw.hex()
