"""What a user may set for the connector: `kv_connector_extra_config`, each option with its kind, default and meaning.

Where the pool is (`master`, `token`, ...) may also stand in a configuration file or in the environment, as for every
other part of the pool; an option given here wins. An option that is not known is refused: a slip that is ignored would
only show as hits that never come.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from pykvpool.config import Config, load
from pykvpool.config.kinds import Absent, Choice, Kind, Several, Switch, Text
from pykvpool.config.quantities import Duration, Ratio, Size, Whole
from pykvpool.config.schema import DAY_MS, KEYS, key
from pykvpool.errors import ConfigError, InvalidArgument
from pykvpool.fabric.packet_socket import check_path
from pykvpool.hashing import format_scope
from pykvpool.model.keys import Scope

#: Options that are keys of the pool's configuration, by their path there.
_POOL_OPTIONS = {
    "master": "pool.master",
    "cluster": "pool.cluster",
    "token": "pool.token",
    "token_file": "pool.token_file",
    "namespace": "client.namespace",
    "replicas": "client.replicas",
    "fabrics": "client.fabrics",
}
#: Memory layouts that vLLM offers; in those that begin with B a block of all layers is one run of bytes.
LAYOUTS = ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC")
_ROLES = ("kv_producer", "kv_consumer", "kv_both")
_milliseconds = Duration(1, DAY_MS, 1)
_seconds = Duration(0.0, 86_400.0, 1_000)


@dataclass(frozen=True, slots=True)
class Options:
    """The connector's own options, by their names in `kv_connector_extra_config`."""

    config_file: str = key("", Text("a path"), "The pool's configuration file. Empty: what PYKVPOOL_CONFIG names.")
    cache_prefix: str = key(
        "", Text("a prefix"), "Keeps deployments apart within a namespace: blocks are shared where it is equal."
    )
    model_id: str = key(
        "", Text("a text"), "Names the weights, in place of what is read from the checkpoint; the user vouches for it."
    )
    save_decode_cache: bool = key(
        True, Switch(), "Save blocks of generated tokens too: an agent's next turn begins with them."
    )
    min_load_tokens: int = key(
        0, Whole(0), "Hits of fewer tokens are computed, not loaded. Where computing is fast, short loads do not pay."
    )
    lookup_timeout_ms: int = key(
        1_000, _milliseconds, "A request waits this long to learn what the pool has; then it is computed."
    )
    load_timeout_ms: int = key(30_000, _milliseconds, "A load that takes longer has failed; the request is computed.")
    save_timeout_ms: int = key(30_000, _milliseconds, "What is not stored by then is dropped and counted.")
    max_pinned_ratio: float = key(
        0.25,
        Ratio(),
        "Most of the engine's blocks that saves may pin at a time (one in any case); beyond, saves are dropped and "
        "counted.",
    )
    placement: str = key(
        "auto",
        Choice(("auto", "node", "embedded"), (Absent("agent", "the host's node is called 'node'"),)),
        "Where I/O is done: in the host's node, or in a thread of the engine. 'auto': in a node where one runs.",
    )
    node_socket: str = key(
        "", Text("a path"), "UNIX socket of the host's node. Empty: where a node of this user and host puts it."
    )
    embedded_size: int = key(
        0, Size(0), "Above 0: no pool is joined, the engine starts one of this size on its host and ends it again."
    )
    kv_layout: str = key(
        "",
        Choice(("", *LAYOUTS)),
        "Memory layout to ask vLLM for; with BLHNC a block is one run. Empty: vLLM's choice.",
    )
    drain_s: float = key(
        5.0,
        _seconds,
        "Longest that an engine's end waits for saves. 'vllm serve' kills its engine at once: give it a longer "
        "--shutdown-timeout, in whole seconds.",
    )
    reset_timeout_s: float = key(5.0, _seconds, "Longest that a reset of the cache waits for the pool's word.")


@dataclass(frozen=True, slots=True)
class Settings:
    """All that was set for one engine, read once on each side."""

    options: Options
    #: The pool's configuration: its addresses, token, fabrics, ...
    config: Config
    #: "kv_producer", "kv_consumer" or "kv_both".
    role: str

    @property
    def saves(self) -> bool:
        """This engine puts blocks into the pool."""
        return self.role != "kv_consumer"

    @property
    def loads(self) -> bool:
        """This engine looks blocks up and loads them."""
        return self.role != "kv_producer"

    @property
    def namespace(self) -> str:
        """The namespace of scopes: the pool's, and the prefix behind it."""
        prefix = self.options.cache_prefix
        return f"{self.config.client.namespace}:{prefix}" if prefix else self.config.client.namespace

    def __getattr__(self, name: str) -> Any:
        """Options by their names: ``settings.min_load_tokens``."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.options, name)


class Option(NamedTuple):
    """One row of the documentation's table."""

    name: str
    kind: Kind[object]
    default: object
    meaning: str


def options() -> Iterator[Option]:
    """Every option there is, the pool's own first."""
    for name, path in _POOL_OPTIONS.items():
        known = KEYS[path]
        yield Option(name, known.kind, known.default, known.meaning)
    for each in dataclasses.fields(Options):
        yield Option(each.name, each.metadata["kind"], each.default, each.metadata["meaning"])


def settings_of(kv_transfer_config: Any, environ: Mapping[str, str] = os.environ) -> Settings:
    """Read vLLM's `KVTransferConfig`.

    Raises:
        ConfigError: an unknown option (the message lists those there are), a value that is not allowed, a role.
    """
    role = kv_transfer_config.kv_role
    if role not in _ROLES:
        raise ConfigError(f"kv_role is {role!r}: one of {', '.join(_ROLES)}", key="kv_role")
    own = {each.name: each.metadata["kind"] for each in dataclasses.fields(Options)}
    values: dict[str, Any] = {}
    flags: dict[str, object] = {}
    for name, raw in dict(kv_transfer_config.kv_connector_extra_config or {}).items():
        if name in own:
            values[name] = _parsed(name, own[name], raw)
        elif name in _POOL_OPTIONS:
            path = _POOL_OPTIONS[name]
            as_list = isinstance(raw, str) and isinstance(KEYS[path].kind, Several)
            flags[path] = _parsed(name, KEYS[path].kind, raw.split(",") if as_list else raw)
        else:
            raise _unknown(name, [*_POOL_OPTIONS, *own])
    parsed = Options(**values)
    _check_place(parsed, joins="pool.master" in flags)
    settings = Settings(parsed, load(parsed.config_file or None, environ, flags), role)
    _check_namespace(settings, given="client.namespace" in flags)
    return settings


def check_options(extra: Mapping[str, Any] | None, environ: Mapping[str, str] = os.environ) -> None:
    """Raise what `settings_of` would for these options, where nothing else of the configuration is known yet."""
    settings_of(SimpleNamespace(kv_role="kv_both", kv_connector_extra_config=extra), environ)


def _check_place(options: Options, *, joins: bool) -> None:
    """What says in two ways where the pool is, one of which would be ignored, is refused."""
    if options.embedded_size and joins:
        raise ConfigError(
            "both master and embedded_size are given: the engine either joins a pool or starts one", key="embedded_size"
        )
    if options.embedded_size and (options.node_socket or options.placement != "auto"):
        other = "node_socket" if options.node_socket else "placement"
        raise ConfigError(
            f"both {other} and embedded_size are given: a pool that the engine starts does its I/O itself", key=other
        )
    if options.node_socket and options.placement == "embedded":
        raise ConfigError(
            "both node_socket and placement 'embedded' are given: I/O is done in a node or in the engine",
            key="node_socket",
        )
    if options.node_socket:
        check_path(Path(options.node_socket), "node's", "node_socket")


def _check_namespace(settings: Settings, *, given: bool) -> None:
    option = "cache_prefix" if settings.options.cache_prefix else "namespace"
    where = "kv_connector_extra_config" if given or option == "cache_prefix" else "[client] of the configuration"
    try:
        format_scope(Scope(settings.namespace))
    except InvalidArgument as error:
        raise ConfigError(f"bad value of {option!r} in {where}: {error.message}", key=option) from None


def _parsed(name: str, kind: Kind[object], raw: object) -> object:
    try:
        return kind.parse(raw)
    except ValueError as error:
        shown = f"expected {kind.allowed}" if name == "token" else str(error)
        raise ConfigError(f"bad value of {name!r} in kv_connector_extra_config: {shown}", key=name) from None


def _unknown(name: str, known: list[str]) -> ConfigError:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return ConfigError(
        f"unknown option {name!r} in kv_connector_extra_config{hint}: allowed are {', '.join(known)}", key=name
    )
