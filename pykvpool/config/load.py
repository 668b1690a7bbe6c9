"""Builds a `Config`: defaults, then a Mooncake file, then a file of ours, then the environment, then flags.

Each later layer wins key by key, and every value remembers its layer, so that an error can say where a wrong value
stands. Nothing is read from the process: the environment and the flags are arguments.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from pykvpool.config import mooncake
from pykvpool.config.files import read_json, read_table, read_text
from pykvpool.config.schema import (
    ENVIRONMENT_PREFIX,
    KEYS,
    SECTIONS,
    ClientConfig,
    Key,
    LogConfig,
    MasterConfig,
    NodeConfig,
    PoolConfig,
    RdmaConfig,
)
from pykvpool.errors import ConfigError

#: Names a configuration file where no argument does.
FILE_VARIABLE = ENVIRONMENT_PREFIX + "CONFIG"
MOONCAKE_VARIABLE = "MOONCAKE_CONFIG_PATH"
DEFAULT_SOURCE = "default"
#: Kubernetes adds such variables for a service that is called, say, "pykvpool-master".
_SERVICE_VARIABLE = re.compile(r".*_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)")


@dataclass(frozen=True, slots=True)
class Shown:
    """One line of `Config.show`."""

    path: str
    #: As in a TOML file; a secret is masked.
    text: str
    source: str


@dataclass(frozen=True, slots=True)
class Config:
    """All sections, and where each value came from."""

    pool: PoolConfig
    master: MasterConfig
    node: NodeConfig
    client: ClientConfig
    rdma: RdmaConfig
    log: LogConfig
    #: By path (``node.segment_size``); every key is there.
    sources: Mapping[str, str]
    #: What was ignored, in sentences; whoever loads should show them.
    warnings: tuple[str, ...]

    def value(self, path: str) -> object:
        """The value at a path such as ``node.segment_size``."""
        key = KEYS[path]
        found: object = getattr(getattr(self, key.section), key.name)
        return found

    def show(self) -> list[Shown]:
        """Every value with its source, in the order of the schema."""
        return [Shown(path, _shown(key, self.value(path)), self.sources[path]) for path, key in KEYS.items()]


def load(path: str | Path | None, environ: Mapping[str, str], flags: Mapping[str, object]) -> Config:
    """Read the configuration.

    Args:
        path: a ``.toml`` or ``.json`` file; None: the one that PYKVPOOL_CONFIG names, or none.
        environ: the environment, for example ``os.environ``.
        flags: by path (``node.segment_size``); None stands for a flag that was not given. Text is parsed, other
            values are taken as from a file.

    Raises:
        ConfigError: names the key, where it stands, and what is allowed.
    """
    building = _Building()
    mooncake_path = environ.get(MOONCAKE_VARIABLE)
    if mooncake_path:
        building.add_mooncake(Path(mooncake_path))
    file = path if path is not None else environ.get(FILE_VARIABLE)
    if file:
        building.add_file(Path(file))
    building.add_environment(environ)
    building.add_flags(flags)
    return building.finish()


class _Building:
    """A configuration that is being put together, layer by layer."""

    def __init__(self) -> None:
        self._values: dict[str, object] = {path: key.default for path, key in KEYS.items()}
        self._sources: dict[str, str] = dict.fromkeys(KEYS, DEFAULT_SOURCE)
        self._warnings: list[str] = []

    def add_mooncake(self, path: Path) -> None:
        source = f"{path} ({MOONCAKE_VARIABLE})"
        try:
            translated = mooncake.translate(read_json(path))
        except ValueError as error:
            raise ConfigError(f"{source}: {error}", file=str(path)) from None
        self._warnings += [f"{source}: {warning}" for warning in translated.warnings]
        for key_path, value in translated.values.items():
            self._set(KEYS[key_path], value, source, f"{key_path} from {source}")

    def add_file(self, path: Path) -> None:
        for section, table in read_table(path).items():
            if section not in SECTIONS:
                hint = _nearest(section, SECTIONS, "[{}]")
                raise ConfigError(f"unknown section [{section}] in {path}{hint}", file=str(path), key=section)
            if not isinstance(table, Mapping):
                raise ConfigError(f"[{section}] of {path} is no table but {table!r:.80}", file=str(path), key=section)
            for name, value in table.items():
                key = KEYS.get(f"{section}.{name}")
                if key is None:
                    known = [each.name for each in KEYS.values() if each.section == section]
                    raise ConfigError(
                        f"unknown key {name!r} in [{section}] of {path}{_nearest(name, known, '{!r}')}",
                        file=str(path),
                        key=name,
                    )
                self._set(key, value, str(path), f"{name!r} in [{section}] of {path}")

    def add_environment(self, environ: Mapping[str, str]) -> None:
        by_variable = {key.variable: key for key in KEYS.values()}
        for variable in sorted(environ):
            if not variable.startswith(ENVIRONMENT_PREFIX) or variable == FILE_VARIABLE:
                continue
            key = by_variable.get(variable)
            if key is not None:
                self._set(key, environ[variable], variable, f"the variable {variable}", textual=True)
            elif not _SERVICE_VARIABLE.fullmatch(variable):
                self._unknown_variable(variable, by_variable)

    def add_flags(self, flags: Mapping[str, object]) -> None:
        for path, value in flags.items():
            if value is None:
                continue
            key = KEYS.get(path)
            if key is None:
                raise ConfigError(f"unknown key {path!r}{_nearest(path, KEYS, '{!r}')}", key=path)
            self._set(key, value, f"flag {key.flag}", f"the flag {key.flag}", textual=True)

    def finish(self) -> Config:
        self._read_token_file()
        for low, high in (
            ("client.min_replicas", "client.replicas"),
            ("master.lease_ms", "master.max_lease_ms"),
            ("master.max_lease_ms", "master.max_lease_lifetime_ms"),
        ):
            if self._values[low] > self._values[high]:  # type: ignore[operator]  # both are numbers
                raise ConfigError(f"{self._story(low)} is more than {self._story(high)}", key=low)
        alignment = self._values["master.alignment_bytes"]
        if not isinstance(alignment, int) or alignment & (alignment - 1):
            raise ConfigError(
                f"{self._story('master.alignment_bytes')} is no power of two", key="master.alignment_bytes"
            )
        sections = {
            section: kind(**{key.name: self._values[key.path] for key in KEYS.values() if key.section == section})
            for section, kind in SECTIONS.items()
        }
        return Config(**sections, sources=self._sources, warnings=tuple(self._warnings))

    def _set(self, key: Key, raw: object, source: str, where: str, *, textual: bool = False) -> None:
        """Take a value over what earlier layers said. `textual`: numbers come as text here."""
        try:
            value = key.kind.parse_text(raw) if textual and isinstance(raw, str) else key.kind.parse(raw)
        except ValueError as error:
            reason = f"expected {key.kind.allowed}" if key.secret else str(error)
            raise ConfigError(f"bad value of {where}: {reason}", key=key.path, source=source) from None
        self._values[key.path] = value
        self._sources[key.path] = source

    def _unknown_variable(self, variable: str, known: Collection[str]) -> None:
        """A slip in a name of ours is an error; a variable of somebody else's that begins like ours is not."""
        near = _nearest(variable, known, "{}")
        section = variable.removeprefix(ENVIRONMENT_PREFIX).partition("_")[0].lower()
        if section in SECTIONS or near:
            raise ConfigError(f"unknown variable {variable}{near}", key=variable, source=variable)
        self._warnings.append(f"the variable {variable} is unknown and ignored")

    def _read_token_file(self) -> None:
        """Put the token of `pool.token_file` into `pool.token`."""
        path = self._values["pool.token_file"]
        if not path:
            return
        if self._values["pool.token"]:
            raise ConfigError(
                f"both a token (from {self._sources['pool.token']}) and a token file "
                f"(from {self._sources['pool.token_file']}) are given: only one can be meant",
                key="pool.token_file",
            )
        lines = read_text(Path(str(path))).splitlines()
        token = lines[0].strip() if lines else ""
        if not token:
            raise ConfigError(
                f"the token file {path} has an empty first line: it should be the token", key="pool.token"
            )
        self._values["pool.token"] = token
        self._sources["pool.token"] = f"token file {path}"

    def _story(self, path: str) -> str:
        return f"{path} = {self._values[path]} (from {self._sources[path]})"


def _nearest(name: str, known: Collection[str], form: str) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    return ": did you mean " + form.format(near[0]) + "?" if near else ""


def _shown(key: Key, value: object) -> str:
    if key.secret:
        return '"***"' if value else '""'
    return json.dumps(value, ensure_ascii=False)
