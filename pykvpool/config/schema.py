"""Every key there is: name, kind, default, meaning. Everything else in this package is derived from these classes.

The file has one table per section; a variable is ``PYKVPOOL_`` + section + key, but the keys of `[pool]`, which all
parts share, go without their section (``PYKVPOOL_MASTER``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from pykvpool.config.kinds import Absent, Address, Advertised, Choice, DataListen, Kind, Listen, Several, Switch, Text
from pykvpool.config.quantities import Duration, Ratio, Size, Whole
from pykvpool.model.commands import MAX_REPLICAS
from pykvpool.model.keys import DEFAULT_NAMESPACE

T = TypeVar("T")

ENVIRONMENT_PREFIX = "PYKVPOOL_"
#: Section whose keys have no section in their variables.
SHARED_SECTION = "pool"
#: A day. Times beyond it are mistakes of a unit.
DAY_MS = 86_400_000
#: How blocks can move, cheapest first.
FABRICS = ("inproc", "shm", "rdma", "tcp")
#: How a node that is a process of its own can be reached: nobody shares its process.
NODE_FABRICS = ("shm", "rdma", "tcp")
#: What works everywhere. RDMA is asked for by name: it needs devices, a binding, and memory that may be locked.
DEFAULT_FABRICS = ("inproc", "shm", "tcp")
DEFAULT_NODE_FABRICS = ("shm", "tcp")
_NO_INPROC = Absent(
    "inproc", "a node that is a process of its own shares it with nobody: inproc is for pools within one program"
)

_client_fabrics = Several(Choice(FABRICS))
_node_fabrics = Several(Choice(NODE_FABRICS, (_NO_INPROC,)))
_milliseconds = Duration(1, DAY_MS, 1)
_count = Whole(1)


@dataclass(frozen=True, slots=True)
class Key:
    """One key, as the rest of this package sees it."""

    section: str
    name: str
    kind: Kind[object]
    default: object
    meaning: str
    #: Flag of the command line that sets it, "" where no command has one.
    flag: str
    #: Never shown.
    secret: bool

    @property
    def path(self) -> str:
        return f"{self.section}.{self.name}"

    @property
    def variable(self) -> str:
        section = "" if self.section == SHARED_SECTION else self.section.upper() + "_"
        return ENVIRONMENT_PREFIX + section + self.name.upper()


def key(default: T, kind: Kind[T], meaning: str, *, flag: str | None = "", secret: bool = False) -> T:
    """Declare a key of a section (a dataclass field with what `Key` needs in its metadata).

    `flag`: empty for ``--`` and the key's name, None where no command takes one.
    """
    metadata = {"kind": kind, "meaning": meaning, "flag": flag, "secret": secret}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """What all parts of one pool share."""

    master: tuple[str, ...] = key(
        ("tcp://127.0.0.1:7000",), Several(Address()), "Addresses of the master, tried in order."
    )
    cluster: str = key(
        "", Text("a cluster id"), "Id of the cluster: another one is refused at the handshake. Empty takes any."
    )
    token: str = key(
        "", Text("a token"), "Shared secret that both ends of a connection prove. Empty: none.", secret=True
    )
    token_file: str = key("", Text("a path"), "File whose first line is the token, instead of `token`.")


@dataclass(frozen=True, slots=True)
class MasterConfig:
    """The master. The numbers of its decisions have the names of `pykvpool.core.config.CoreConfig`."""

    listen: tuple[str, ...] = key(("tcp://127.0.0.1:7000",), Several(Address()), "Addresses it listens on.")
    http_listen: str = key(
        "", Listen(), "Where it serves health, metrics, and the pool's state. Empty: nowhere.", flag="--http"
    )
    session_ttl_ms: int = key(10_000, _milliseconds, "A session without a sign of life for this long is expired.")
    reconnect_grace_ms: int = key(
        3_000, Duration(0, DAY_MS, 1), "A session whose connection is gone may come back within this time."
    )
    lease_ms: int = key(10_000, _milliseconds, "Lease granted where the reader names none.")
    max_lease_ms: int = key(60_000, _milliseconds, "Longest lease that one grant or renewal may ask for.")
    max_lease_lifetime_ms: int = key(600_000, _milliseconds, "A lease is not renewed past this age.")
    max_leases_per_session: int = key(65_536, _count, "Most leases one session may hold.")
    max_leased_ratio_per_session: float = key(
        1.0, Ratio(), "Most bytes under one session's leases, as a part of the pool's capacity; 1: no bound."
    )
    put_ttl_ms: int = key(120_000, _milliseconds, "An unfinished put of a live session is closed after this long.")
    max_wait_ms: int = key(300_000, Duration(0, DAY_MS, 1), "Longest a key may queue for room or for another writer.")
    max_waiting: int = key(
        1_048_576, Whole(0), "Most keys queued for room in the whole pool; more get PoolFull at once."
    )
    max_requests_per_session: int = key(1_024, _count, "Requests in flight, and replies kept for repeats, per session.")
    alignment_bytes: int = key(64, Size(1), "Extents begin at multiples of this: a power of two.")
    slice_objects: int = key(2_000, _count, "Objects handled per slice of long work.")
    policy: str = key("lru", Choice(("lru", "fifo")), "Eviction policy.")


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """A node: a process that lends memory."""

    name: str = key(
        "", Text("a name"), "Unique name in the cluster; a restarted node keeps it. Empty: the host's name."
    )
    replace: bool = key(
        False, Switch(), "Take the name over from a node that is connected now; what that one holds is lost."
    )
    segment_size: int = key(1024**3, Size(1), "Memory it lends.")
    data_listen: str = key(
        "tcp://127.0.0.1:0", DataListen(), "Where it serves blocks over TCP; port 0 takes a free one."
    )
    advertise: str = key("", Advertised(), "Host under which others reach it. Empty: the host it listens on.")
    shm_dir: str = key(
        "",
        Text("a directory"),
        "Directory of its UNIX socket for shared memory. Empty: `$XDG_RUNTIME_DIR/pykvpool`, or where that is not set "
        "`pykvpool-UID` in the directory for temporary files.",
    )
    engine_socket: str = key(
        "",
        Text("a path"),
        "UNIX socket at which engines of this host find it, to have it move their blocks. Empty: in `shm_dir`; `off`: "
        "nowhere.",
    )
    fabrics: tuple[str, ...] = key(DEFAULT_NODE_FABRICS, _node_fabrics, "How others reach its memory.", flag="--fabric")
    rdma_listen: str = key(
        "",
        DataListen(may_be_empty=True),
        "Where peers agree with it on RDMA queue pairs (over TCP; blocks do not pass there). Empty: a free port of the "
        "host in `data_listen`.",
    )
    http_listen: str = key(
        "", Listen(), "Where it serves health, its metrics, and the pool's state. Empty: nowhere.", flag="--http"
    )


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """A client: a process that puts and gets."""

    name: str = key("", Text("a name"), "Unique name in the cluster. Empty: a random one.", flag=None)
    role: str = key("client", Choice(("client", "reader")), "A reader may not write.", flag=None)
    namespace: str = key(
        DEFAULT_NAMESPACE, Text("a namespace", may_be_empty=False), "Keeps keys of different users apart."
    )
    replicas: int = key(1, Whole(1, MAX_REPLICAS), "Copies of each object, on different nodes.")
    min_replicas: int = key(
        0,
        Whole(0, MAX_REPLICAS),
        "Fewest copies with which a put starts and succeeds. 0: it starts with all `replicas`, one that lands will do.",
    )
    timeout_s: float = key(30.0, Duration(0.001, 86_400.0, 1_000), "Deadline of a call, waiting for room included.")
    fabrics: tuple[str, ...] = key(DEFAULT_FABRICS, _client_fabrics, "How blocks may move.", flag="--fabric")
    verify: str = key(
        "auto",
        Choice(("auto", "staged")),
        "GPU memory: `auto` lets a NIC that reaches it move it past the CPU; `staged` has every byte pass the host and "
        "be summed.",
        flag=None,
    )


@dataclass(frozen=True, slots=True)
class RdmaConfig:
    """RDMA, for nodes and clients alike, where `fabrics` names it."""

    devices: tuple[str, ...] = key(
        (),
        Several(Text("a device like 'mlx5_0', or one of its ports like 'mlx5_0:1'", may_be_empty=False), least=0),
        "Devices to use, all at once. Empty: every one with a port that is up.",
        flag="--rdma-device",
    )
    queue_pairs: int = key(2, Whole(1, 16), "Queue pairs from each port to each port of a peer.", flag=None)
    gid_index: int = key(
        -1,
        Whole(-1, 255),
        "Index of the address to use in the GID table of a port. -1: found by trying, RoCE v2 with IPv4 first.",
        flag="--rdma-gid-index",
    )
    binding: str = key(
        "any",
        Choice(("any", "pyverbs", "ibverbs")),
        "Library that speaks to the devices. any: the first of these that is installed.",
        flag=None,
    )


@dataclass(frozen=True, slots=True)
class LogConfig:
    """What is logged."""

    level: str = key("info", Choice(("debug", "info", "warning", "error")), "Least grave level that is logged.")


#: Sections by name, in the order of the file.
SECTIONS: dict[str, type[Any]] = {
    "pool": PoolConfig,
    "master": MasterConfig,
    "node": NodeConfig,
    "client": ClientConfig,
    "rdma": RdmaConfig,
    "log": LogConfig,
}


def section_keys(section: str) -> Iterator[Key]:
    """Keys of one section, in order."""
    for each in dataclasses.fields(SECTIONS[section]):
        flag = each.metadata["flag"]
        if flag == "":
            flag = "--" + each.name.replace("_", "-")
        yield Key(
            section,
            each.name,
            each.metadata["kind"],
            each.default,
            each.metadata["meaning"],
            flag or "",
            each.metadata["secret"],
        )


#: Every key by its path, for example ``node.segment_size``.
KEYS: dict[str, Key] = {each.path: each for section in SECTIONS for each in section_keys(section)}
