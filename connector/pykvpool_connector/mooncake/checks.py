"""What arguments may be. A wrong type is a `TypeError`, a wrong value a `PoolError`; nothing is guessed."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TypeVar, cast

from pykvpool.errors import InvalidArgument, KeyNotFound, PoolError
from pykvpool.memory.buffers import as_piece
from pykvpool.model.keys import key_bytes

T = TypeVar("T")
R = TypeVar("R")


def check_key(key: object) -> None:
    """Raises `TypeError` for what is not a key at all."""
    if not isinstance(key, (str, bytes)):
        raise TypeError(f"a key is a str, not a {type(key).__name__}")


def check_keys(keys: object) -> Sequence[str]:
    """A list or tuple of keys, as it is. Raises `TypeError`."""
    if not isinstance(keys, (list, tuple)):
        raise TypeError(f"keys are a list of str, not a {type(keys).__name__}")
    for key in keys:
        check_key(key)
    return cast("Sequence[str]", keys)


def key_to_store(key: str) -> bytes:
    """The binary key. Raises `InvalidArgument` for one that no object can have (empty, too long)."""
    return key_bytes(key)


def key_to_find(key: str) -> bytes:
    """The binary key; one that no object can have is simply not there (`KeyNotFound`)."""
    try:
        return key_bytes(key)
    except InvalidArgument as error:
        raise KeyNotFound(f"no object can have this key: {error}") from None


def outcome(of: object, *args: object) -> object:
    """What ``of(*args)`` returns, or the `PoolError` it raises, for batches in which one key must not cost the rest."""
    try:
        return of(*args)  # type: ignore[operator]
    except PoolError as error:
        return error


def check_equal(what: str, keys: Sequence[object], *columns: Sequence[object]) -> None:
    """Raises `InvalidArgument` unless all columns are as long as `keys`, `TypeError` where one is no list."""
    for column in columns:
        if not isinstance(column, (list, tuple)):
            raise TypeError(f"{what}: a list is needed, not a {type(column).__name__}")
        if len(column) != len(keys):
            raise InvalidArgument(f"{what}: {len(column)} entries for {len(keys)}: one for each is needed")


def integer(what: str, number: object) -> int:
    """Any whole number (numpy's too) as int. Raises `TypeError`."""
    try:
        return operator.index(number)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{what} is a whole number, not a {type(number).__name__}") from None


def size_of(what: str, number: object) -> int:
    """A size in bytes that something can have. Raises `InvalidArgument` below 1."""
    size = integer(what, number)
    if size < 1:
        raise InvalidArgument(f"{what} is {size}: an object has at least one byte")
    return size


def value_piece(value: object) -> memoryview:
    """A value's bytes as they lie. Raises `TypeError` (no buffer), `InvalidArgument` (not contiguous)."""
    if isinstance(value, str) or value is None or isinstance(value, (int, float, list, tuple, dict)):
        raise TypeError(f"a value is a bytes-like object, not a {type(value).__name__}")
    return as_piece(value)
