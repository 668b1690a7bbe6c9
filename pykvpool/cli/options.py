"""Options that commands share, made from the configuration's own keys: one name, one meaning, one check everywhere.

A flag is the last layer over file and environment (`pykvpool.config.load`); its text is checked there, so that a bad
size or address is refused in the same words wherever it stands.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Iterable
from typing import Any

import click

from pykvpool.cli.fabric_settings import rdma_settings
from pykvpool.client import Client
from pykvpool.config import Config, load, parse_size
from pykvpool.config.kinds import Several, Switch
from pykvpool.config.reference import default_text
from pykvpool.config.schema import KEYS, Key, section_keys

#: Keys of every command that speaks to a master.
POOL_KEYS = ("pool.master", "pool.cluster", "pool.token", "pool.token_file")
#: Keys of commands that use the pool as a client.
CLIENT_KEYS = (*POOL_KEYS, "client.namespace", "client.fabrics", "client.timeout_s", "rdma.devices", "rdma.gid_index")

Command = Callable[..., Any]


class Number(click.FloatRange):
    """click's range lets "nan" through, which is within no bounds and makes every comparison false."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is no number", param, ctx)
        return number


def size_option(flag: str, default: str, help: str) -> Callable[[Command], Command]:
    """A flag for bytes, like ``80GB``, ``512MiB`` or ``4096``: binary units, as everywhere in the configuration."""

    def parse(ctx: click.Context, param: click.Parameter, value: str) -> int:
        try:
            return parse_size(value)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return click.option(flag, default=default, show_default=True, metavar="SIZE", callback=parse, help=help)


def configured(*paths: str) -> Callable[[Command], Command]:
    """Give a command one flag for each configuration key of `paths`, and ``--config`` and ``--debug``.

    The command gets the finished `Config` as its first argument. What the configuration warns of goes to stderr.
    """

    def decorate(function: Command) -> Command:
        @functools.wraps(function)
        def call(config_file: str | None, **parameters: Any) -> Any:
            flags = {path: _given(parameters.pop(_parameter(path))) for path in paths}
            config = load(config_file, os.environ, flags)
            for warning in config.warnings:
                click.echo(f"pykvpool: {warning}", err=True)
            return function(config, **parameters)

        command: Command = call
        for path in reversed(paths):
            command = _flag(path)(command)
        command = click.option(
            "--config",
            "config_file",
            metavar="FILE",
            help="Configuration file (.toml or .json).  [env: PYKVPOOL_CONFIG]",
        )(command)
        return debug_option(command)

    return decorate


def section(name: str) -> tuple[str, ...]:
    """Paths of all keys of one section that have a flag."""
    return tuple(key.path for key in section_keys(name) if key.flag)


def debug_option(command: Command) -> Command:
    """``--debug`` after the command's name, where people add it; before it works too."""

    def remember(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        if value:
            ctx.find_root().ensure_object(dict)["debug"] = True

    return click.option(
        "--debug", is_flag=True, expose_value=False, callback=remember, help="Show the traceback of an error."
    )(command)


async def open_client(config: Config, role: str | None = None) -> Client:
    """Connect as the configuration says. Raises `Unavailable`, `Refused`, `NotSupported`."""
    client = config.client
    return await Client.connect(
        config.pool.master,
        name=client.name or None,
        role=role or client.role,
        token=config.pool.token or None,
        cluster=config.pool.cluster,
        namespace=client.namespace,
        replicas=client.replicas,
        min_replicas=client.min_replicas or None,
        timeout_s=client.timeout_s,
        fabrics=client.fabrics,
        verify=client.verify,
        rdma=rdma_settings(config.rdma),
    )


def _flag(path: str) -> Callable[[Command], Command]:
    key = KEYS[path]
    if isinstance(key.kind, Switch):
        return click.option(key.flag, _parameter(path), is_flag=True, help=f"{key.meaning}  [env: {key.variable}]")
    several = isinstance(key.kind, Several)
    again = " Repeat it for several." if several else ""
    return click.option(
        key.flag,
        _parameter(path),
        multiple=several,
        metavar=key.kind.name.upper(),
        help=f"{key.meaning}{again}  [env: {key.variable}{_default(key)}]",
    )


def _default(key: Key) -> str:
    """What is in force where nothing is said; an empty value says nothing that the meaning does not."""
    if key.default in ("", (), None):
        return ""
    value = ", ".join(key.default) if isinstance(key.default, tuple) else default_text(key).strip('"')
    return f"; default: {value}"


def _parameter(path: str) -> str:
    return path.replace(".", "_")


def _given(value: str | bool | Iterable[str] | None) -> str | bool | None:
    """A flag's value, None where it was not given; several are joined as the configuration reads lists."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return value or None
    return ",".join(value) or None
