"""Reads the JSON file that Mooncake Store's users have at MOONCAKE_CONFIG_PATH.

What has a meaning here is translated into our keys, what has none is named in a warning, and what would mean
something else here (a protocol of other hardware, a master behind etcd) is refused instead of guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pykvpool.config.kinds import Advertised, Choice, Text, parse_host_port
from pykvpool.config.quantities import Size
from pykvpool.config.schema import FABRICS, NODE_FABRICS

#: Mooncake's protocols that have a meaning here. The cheapest fabric that works is taken anyway; "rdma" adds one.
PROTOCOLS = ("tcp", "rdma")
MODES = ("embedded", "standalone-store")

_text = Text().parse
_size = Size(0).parse


@dataclass(slots=True)
class Translated:
    """Our keys by path, as a program gives them, and what was ignored."""

    values: dict[str, object] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def translate(table: Mapping[str, object]) -> Translated:
    """Our keys for a Mooncake table. Raises `ValueError` that names the key."""
    result = Translated()
    for name, value in table.items():
        handler = _HANDLERS.get(name)
        if handler is None:
            result.warnings.append(f"{name!r} is unknown here and ignored")
            continue
        try:
            handler(result, value)
        except ValueError as error:
            raise ValueError(f"{name!r}: {error}") from None
    return result


def _master(result: Translated, value: object) -> None:
    text = _text(value)
    if "://" in text:
        raise ValueError(f"{text!r}: only a plain 'host:port' can be meant here (no etcd or Redis behind the master)")
    addresses = []
    for part in text.split(";"):  # Mooncake lists several masters so
        parse_host_port(part.strip())
        addresses.append(f"tcp://{part.strip()}")
    result.values["pool.master"] = tuple(addresses)


def _segment_size(result: Translated, value: object) -> None:
    size = _size(value)
    if size:
        result.values["node.segment_size"] = size
    else:
        result.warnings.append("'global_segment_size' is 0: engines lend no memory, so run a node beside them")


def _buffer_size(result: Translated, value: object) -> None:
    _size(value)
    result.warnings.append("'local_buffer_size' is ignored: transfers need no local staging buffer")


def _protocol(result: Translated, value: object) -> None:
    if Choice(PROTOCOLS).parse(value) == "rdma":
        result.values["node.fabrics"] = NODE_FABRICS
        result.values["client.fabrics"] = FABRICS


def _mode(_result: Translated, value: object) -> None:
    Choice(MODES).parse(value)


def _offload(result: Translated, value: object) -> None:
    if value is not True and value is not False:
        raise ValueError(f"{value!r:.80} is not allowed: expected true or false")
    if value:
        result.warnings.append("'enable_offload' is ignored: there is no SSD tier")


def _tenant(result: Translated, value: object) -> None:
    tenant = "" if value is None else _text(value).strip()
    if tenant:
        result.values["client.namespace"] = tenant


def _hostname(result: Translated, value: object) -> None:
    host = Advertised().parse(value)
    if host:
        result.values["node.advertise"] = host


def _metadata_server(result: Translated, value: object) -> None:
    if _text(value):
        result.warnings.append("'metadata_server' is ignored: descriptors travel through the master")


def _device(result: Translated, value: object) -> None:
    names = [name.strip() for name in _text(value).split(",") if name.strip()]
    if names:
        result.values["rdma.devices"] = names


_HANDLERS: dict[str, Callable[[Translated, object], None]] = {
    "master_server_address": _master,
    "global_segment_size": _segment_size,
    "local_buffer_size": _buffer_size,
    "protocol": _protocol,
    "mode": _mode,
    "enable_offload": _offload,
    "tenant_id": _tenant,
    "local_hostname": _hostname,
    "metadata_server": _metadata_server,
    "device_name": _device,
}
