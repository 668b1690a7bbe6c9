"""What `setup` is told, checked and put into the pool's words.

Mooncake's sizes are binary whatever their spelling, and so are ours. A protocol names hardware there; here the cheapest
way that works is taken anyway, so ``tcp`` and ``rdma`` both mean "whatever reaches", and protocols of hardware that the
pool does not drive are refused at once. The metadata server is not needed: descriptors travel through the master.

What Mooncake has no word for (token, cluster, deadline, directory of the shm socket) comes from the ``PYKVPOOL_*``
variables.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass

from pykvpool.config import Config, load, parse_host_port, parse_size
from pykvpool.config.load import MOONCAKE_VARIABLE
from pykvpool.errors import InvalidArgument, NotSupported
from pykvpool.fabric.addresses import HostPort
from pykvpool.model.keys import DEFAULT_NAMESPACE
from pykvpool_connector.mooncake.checks import integer

log = logging.getLogger("pykvpool.mooncake")

#: Mooncake's defaults for a dict that leaves them out.
DEFAULT_SEGMENT_BYTES = 16 << 20
DEFAULT_BUFFER_BYTES = 16 << 20

#: Protocols that are served by the pool's fabrics, whichever reaches.
PROTOCOLS = ("tcp", "rdma")
#: Mooncake's other protocols: hardware that the pool does not drive.
OTHER_PROTOCOLS = frozenset({
    "efa", "nvmeof", "nvmeof_tcp", "nvlink", "nvlink_intra", "musa", "maca", "hip", "barex", "cxl", "ascend", "ub",
    "ubshmem", "sunrise_link", "rpc_only",
})  # fmt: skip
#: Keys of the dict form; some are taken without being needed.
_KNOWN = frozenset({
    "local_hostname", "metadata_server", "global_segment_size", "local_buffer_size", "protocol", "rdma_devices",
    "master_server_addr", "tenant_id", "enable_ssd_offload", "ssd_offload_path", "enable_client_http_server",
    "client_http_port", "ipc_socket_path",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """One store."""

    #: Host under which others reach this process; with a port, the node's name as it is.
    hostname: str
    #: Addresses of the master, tried in order.
    master: tuple[str, ...]
    #: Memory to lend; 0: none, a pure client.
    segment_bytes: int
    #: Most bytes that one call of the copying forms may put; 0: they cannot put.
    buffer_bytes: int
    #: The tenant.
    namespace: str
    #: Our own configuration: token, cluster, deadlines.
    own: Config

    @property
    def host(self) -> str:
        """`hostname` without a port."""
        host, port = _split(self.hostname)
        return host if port is not None else self.hostname

    @property
    def port(self) -> int | None:
        return _split(self.hostname)[1]


def from_arguments(
    local_hostname: object,
    global_segment_size: object,
    local_buffer_size: object,
    protocol: object,
    master_server_addr: object,
    tenant_id: object = DEFAULT_NAMESPACE,
    *,
    enable_ssd_offload: bool = False,
    enable_client_http_server: bool = False,
) -> StoreSettings:
    """Settings of the positional form. Raises `TypeError`, `InvalidArgument`, `NotSupported`, `ConfigError`."""
    hostname = _text("local_hostname", local_hostname)
    if not hostname:
        raise InvalidArgument("local_hostname is empty: name the host under which others reach this one")
    _check_protocol(_text("protocol", protocol))
    if enable_ssd_offload:
        log.warning("setup: enable_ssd_offload is ignored: there is no SSD tier")
    if enable_client_http_server:
        log.warning("setup: enable_client_http_server is ignored: the master and nodes have --http")
    environ = {name: text for name, text in os.environ.items() if name != MOONCAKE_VARIABLE}
    return StoreSettings(
        hostname=hostname,
        master=_masters(_text("master_server_addr", master_server_addr)),
        segment_bytes=_size("global_segment_size", global_segment_size),
        buffer_bytes=_size("local_buffer_size", local_buffer_size),
        namespace=_text("tenant_id", tenant_id).strip() or DEFAULT_NAMESPACE,
        own=load(None, environ, {}),
    )


def from_dict(table: Mapping[str, object]) -> StoreSettings:
    """Settings of the dict form. Raises as `from_arguments`; `InvalidArgument` names what is missing."""
    for name in ("local_hostname", "metadata_server", "master_server_addr"):
        if name not in table:
            raise InvalidArgument(f"setup: {name!r} is missing")
    for name in table.keys() - _KNOWN:
        log.warning("setup: %r is unknown and ignored", name)
    return from_arguments(
        table["local_hostname"],
        table.get("global_segment_size", DEFAULT_SEGMENT_BYTES),
        table.get("local_buffer_size", DEFAULT_BUFFER_BYTES),
        table.get("protocol", "tcp"),
        table["master_server_addr"],
        table.get("tenant_id", DEFAULT_NAMESPACE),
        enable_ssd_offload=_flag(table.get("enable_ssd_offload", False)),
        enable_client_http_server=_flag(table.get("enable_client_http_server", False)),
    )


def _check_protocol(protocol: str) -> None:
    name = protocol.strip().lower()
    if name in OTHER_PROTOCOLS:
        raise NotSupported(f"protocol {protocol!r}: the pool moves blocks over memory, shm and tcp; use 'tcp'")
    if name not in PROTOCOLS:
        raise InvalidArgument(f"protocol {protocol!r} is unknown: use 'tcp' or 'rdma'")


def _masters(text: str) -> tuple[str, ...]:
    """``host:port``, several with ``;`` between them, or addresses of ours (``unix://``, ``inproc://``)."""
    return tuple(_master(part.strip()) for part in text.split(";"))


def _master(text: str) -> str:
    scheme, separator, _ = text.partition("://")
    if separator and scheme in ("tcp", "unix", "inproc"):
        return text
    if separator:
        raise NotSupported(f"master_server_addr {text!r}: there is no {scheme} here, name the master's host:port")
    try:
        parse_host_port(text)
    except ValueError as error:
        raise InvalidArgument(f"master_server_addr: {error}") from None
    return f"tcp://{text}"


def _size(name: str, value: object) -> int:
    if isinstance(value, str):
        try:
            return parse_size(value)
        except ValueError as error:
            raise InvalidArgument(f"{name}: {error}") from None
    size = integer(name, value)
    if size < 0:
        raise InvalidArgument(f"{name} is {size}: a size is not negative")
    return size


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} is a str, not a {type(value).__name__}")
    return value


def _flag(value: object) -> bool:
    """A flag of a dict, in which everything may be text."""
    return value.strip().lower() in ("1", "true", "yes", "on") if isinstance(value, str) else bool(value)


def _split(hostname: str) -> tuple[str, int | None]:
    try:
        parsed = HostPort.parse(hostname)
    except InvalidArgument:
        return hostname, None
    return parsed.host, parsed.port
