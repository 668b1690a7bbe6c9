"""Reads a TOML or JSON file as a table, with errors that name file and line. Knows nothing about keys."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path

from pykvpool.errors import ConfigError

#: No configuration is as long as this; a log file or a model given by mistake is.
MAX_FILE_BYTES = 1 << 20


def read_table(path: Path) -> Mapping[str, object]:
    """The top table of a ``.toml`` or ``.json`` file. Raises `ConfigError`."""
    if path.suffix not in (".toml", ".json"):
        raise ConfigError(f"{path} is neither .toml nor .json: its name says how it is read", file=str(path))
    return read_json(path) if path.suffix == ".json" else _read_toml(path)


def read_json(path: Path) -> Mapping[str, object]:
    """The top object of a JSON file, whatever its name. Raises `ConfigError`."""
    text = read_text(path)
    try:
        value = json.loads(text, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{path} line {error.lineno}, column {error.colno}: not valid JSON: {error.msg}", file=str(path)
        ) from None
    except (_Twice, RecursionError) as error:
        raise ConfigError(f"{path}: {error}", file=str(path)) from None
    if not isinstance(value, dict):
        raise ConfigError(f"{path} holds no JSON object but a {type(value).__name__}", file=str(path))
    return value


def read_text(path: Path) -> str:
    """The whole of a small UTF-8 file. Raises `ConfigError`."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError(f"there is no file {path}", file=str(path)) from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a directory: a file is needed", file=str(path)) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigError(f"{path} cannot be read: {reason}", file=str(path)) from None
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"{path} is over {MAX_FILE_BYTES:,} bytes: that is no configuration", file=str(path))
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: byte {error.start} is wrong", file=str(path)) from None


def _read_toml(path: Path) -> Mapping[str, object]:
    try:
        return tomllib.loads(read_text(path))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}", file=str(path)) from None


class _Twice(Exception):
    """A key stands twice in one object: JSON would silently take the last."""


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    table = dict(pairs)
    if len(table) != len(pairs):
        names = [name for name, _ in pairs]
        raise _Twice(f"the key {next(name for name in names if names.count(name) > 1)!r} stands there twice")
    return table
