"""The nouns of RDMA verbs as this project uses them: devices, ports, GIDs, work requests, completions.

Plain values without a library behind them. A binding translates its library's objects into these and back, so that
`fabric/rdma` reads the same over pyverbs, ibverbs and the fake of the unit tests. Names are those of the InfiniBand
specification written out; numbers that the library defines (statuses, MTU codes, states) appear here once.
"""

from __future__ import annotations

import enum
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Bytes of a GID: an IPv6 address in form.
GID_BYTES = 16
#: Queue pair and packet sequence numbers have 24 bits.
MAX_24_BITS = 0xFFFFFF
#: The largest piece of one work request: a scatter/gather length has 32 bits, a message at most 2 GiB.
MAX_PIECE_BYTES = 1 << 31


class Access(enum.IntFlag):
    """What a memory region, or a queue pair, lets others do. Relaxed ordering is left out on purpose: a put has
    landed when a read that follows it completed, and that argument needs the order of PCIe writes kept."""

    NONE = 0
    LOCAL_WRITE = 1
    REMOTE_WRITE = 2
    REMOTE_READ = 4


class GidType(enum.StrEnum):
    """How packets to a GID are framed. Two ends must use the same."""

    INFINIBAND = "ib"
    ROCE_V1 = "roce-v1"
    ROCE_V2 = "roce-v2"
    UNKNOWN = "unknown"


class LinkLayer(enum.StrEnum):
    INFINIBAND = "infiniband"
    ETHERNET = "ethernet"
    UNKNOWN = "unknown"


class PortState(enum.StrEnum):
    """Only an ``ACTIVE`` port moves data."""

    NOP = "nop"
    DOWN = "down"
    INIT = "init"
    ARMED = "armed"
    ACTIVE = "active"
    ACTIVE_DEFER = "active-defer"


#: ibv_port_state, in order from 0.
PORT_STATES = tuple(PortState)
#: ibv_mtu is a code: 1 is 256 bytes, 5 is 4096.
MTU_BYTES = {1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096}
#: What is told as an active MTU that we do not know: what every port can do.
UNKNOWN_MTU_BYTES = 256
MTU_CODES = {size: code for code, size in MTU_BYTES.items()}


class Opcode(enum.StrEnum):
    """The one-sided operations. Nothing else of verbs is used: no sends, no atomics."""

    READ = "read"
    WRITE = "write"


class Status(enum.StrEnum):
    """How a work request ended (ibv_wc_status, in order from 0). Everything but ``SUCCESS`` breaks the queue pair."""

    SUCCESS = "success"
    LOCAL_LENGTH = "local length error"
    LOCAL_QP_OPERATION = "local queue pair operation error"
    LOCAL_EEC_OPERATION = "local EE context operation error"
    LOCAL_PROTECTION = "local protection error"
    FLUSHED = "flushed"
    MEMORY_WINDOW_BIND = "memory window bind error"
    BAD_RESPONSE = "bad response"
    LOCAL_ACCESS = "local access error"
    REMOTE_INVALID_REQUEST = "remote invalid request"
    REMOTE_ACCESS = "remote access error"
    REMOTE_OPERATION = "remote operation error"
    RETRY_EXCEEDED = "transport retries exceeded"
    RNR_RETRY_EXCEEDED = "receiver-not-ready retries exceeded"
    LOCAL_RDD_VIOLATION = "local RDD violation"
    REMOTE_INVALID_READ = "remote invalid read request"
    REMOTE_ABORTED = "remote aborted"
    INVALID_EEC_NUMBER = "invalid EE context number"
    INVALID_EEC_STATE = "invalid EE context state"
    FATAL = "fatal error"
    RESPONSE_TIMEOUT = "response timeout"
    GENERAL = "general error"
    TAG_MATCHING = "tag matching error"
    TAG_RENDEZVOUS = "tag matching rendezvous incomplete"


#: ibv_wc_status, in order from 0.
STATUSES = tuple(Status)


class QueuePairState(enum.StrEnum):
    """ibv_qp_state, in order from 0."""

    RESET = "reset"
    INIT = "init"
    #: Ready to receive: it answers the peer's reads and writes.
    RTR = "ready to receive"
    #: Ready to send.
    RTS = "ready to send"
    SQD = "send queue drained"
    SQE = "send queue error"
    #: Broken or told to be: every request in it, and every later one, is flushed.
    ERROR = "error"


QUEUE_PAIR_STATES = tuple(QueuePairState)


class EventKind(enum.StrEnum):
    """What a device says of itself, unasked (ibv_event_type, in order from 0)."""

    CQ_ERROR = "completion queue error"
    QP_FATAL = "queue pair fatal error"
    QP_REQUEST_ERROR = "queue pair request error"
    QP_ACCESS_ERROR = "queue pair access error"
    COMMUNICATION_ESTABLISHED = "communication established"
    SQ_DRAINED = "send queue drained"
    PATH_MIGRATED = "path migrated"
    PATH_MIGRATION_ERROR = "path migration error"
    #: The device is gone or beyond repair: nothing on it will work again.
    DEVICE_FATAL = "device fatal error"
    PORT_ACTIVE = "port active"
    PORT_DOWN = "port down"
    LID_CHANGE = "LID change"
    PKEY_CHANGE = "partition key change"
    SM_CHANGE = "subnet manager change"
    SRQ_ERROR = "shared receive queue error"
    SRQ_LIMIT = "shared receive queue limit"
    LAST_WQE_REACHED = "last work request reached"
    CLIENT_REREGISTER = "client reregister"
    GID_CHANGE = "GID table change"
    WQ_FATAL = "work queue fatal error"
    UNKNOWN = "unknown event"


EVENT_KINDS = tuple(EventKind)[:-1]


@dataclass(frozen=True, slots=True)
class Event:
    """One asynchronous event of a device. It names no port: ask `DeviceContext.port` what changed."""

    device: str
    kind: EventKind


@dataclass(frozen=True, slots=True)
class Gid:
    """One entry of a port's GID table: an address that a queue pair can send from, by `index`."""

    index: int
    address: bytes
    type: GidType
    #: Name of the network interface behind it, "" where that is not known.
    interface: str = ""

    @property
    def text(self) -> str:
        """As an IPv6 address, a mapped one as ``::ffff:192.0.2.1``."""
        return f"::ffff:{self.ipv4}" if self.ipv4 else str(ipaddress.IPv6Address(self.address))

    @property
    def ipv4(self) -> str | None:
        """The IPv4 address that it stands for, if it is a mapped one (what routed RoCE v2 networks use)."""
        mapped = ipaddress.IPv6Address(self.address).ipv4_mapped
        return None if mapped is None else str(mapped)

    @property
    def is_link_local(self) -> bool:
        return ipaddress.IPv6Address(self.address).is_link_local


@dataclass(frozen=True, slots=True)
class Port:
    """A port as it is now. Ports count from 1."""

    number: int
    state: PortState
    link_layer: LinkLayer
    #: Local identifier in an InfiniBand subnet; 0 on Ethernet.
    lid: int
    active_mtu_bytes: int
    max_message_bytes: int
    #: Entries that are in use, by index.
    gids: tuple[Gid, ...]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a device allows."""

    max_mr_size_bytes: int
    max_mr: int
    max_qp: int
    #: Work requests in one queue of one queue pair.
    max_qp_wr: int
    #: Pieces in one work request.
    max_sge: int
    #: Completions in one completion queue.
    max_cqe: int
    #: Reads that one queue pair answers, and has under way, at a time.
    max_qp_read_depth: int
    ports: int


@dataclass(frozen=True, slots=True)
class DeviceName:
    """A device that could be opened."""

    name: str
    #: Node GUID; 0 where the binding does not say.
    guid: int


@dataclass(frozen=True, slots=True)
class QueuePairLimits:
    """What a new queue pair has room for. The device may give more, never less."""

    #: Work requests that may be posted and not yet completed.
    send_depth: int
    #: Pieces in one work request.
    max_sge: int


@dataclass(frozen=True, slots=True)
class RemoteQueuePair:
    """The other end of a connection, as *it* described itself: its number, its first packet, its own address."""

    number: int
    #: First packet sequence number that it will send.
    psn: int
    gid: bytes
    lid: int
    #: Active MTU of its port; the smaller of both is used.
    mtu_bytes: int


@dataclass(frozen=True, slots=True)
class Path:
    """How this end reaches the other."""

    port: int
    #: The local GID that packets are sent from.
    gid_index: int
    #: Of this end's port.
    mtu_bytes: int
    #: Routed RoCE v2 crosses routers; 1 would keep it on its own link.
    hop_limit: int = 64
    traffic_class: int = 0
    service_level: int = 0
    #: Reads that may be under way in each direction.
    read_depth: int = 1


@dataclass(frozen=True, slots=True)
class Retries:
    """When a queue pair gives up on a silent peer."""

    #: An answer is awaited for 4.096 us times two to this power: 14 is 67 ms.
    timeout_exponent: int = 14
    #: Times that a request is sent again, at most 7.
    count: int = 7
    #: Times for a receiver that is not ready; one-sided requests need no receiver.
    not_ready_count: int = 7


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of local, registered memory."""

    address: int
    length: int
    lkey: int


@dataclass(frozen=True, slots=True)
class WorkRequest:
    """Read remote memory into the pieces (at least one), in order, or write the pieces to it."""

    id: int
    opcode: Opcode
    pieces: tuple[Piece, ...]
    remote_address: int
    rkey: int
    #: Ask for a completion. One that fails always completes, as do all behind it.
    signaled: bool = True


@dataclass(frozen=True, slots=True)
class Completion:
    """How a work request ended. With another status than success only `id`, `status` and `queue_pair` mean anything."""

    id: int
    status: Status
    #: None where the request failed or the binding does not say.
    opcode: Opcode | None
    byte_length: int
    #: Number of the queue pair.
    queue_pair: int
    #: The vendor's own word on a failure, for logs.
    vendor_error: int = 0

    @classmethod
    def of(cls, entry: Any, opcodes: Mapping[int, Opcode]) -> Completion:
        """From a library's copy of `ibv_wc`, whose fields every binding names alike; `opcodes` are the library's."""
        status = STATUSES[entry.status] if entry.status < len(STATUSES) else Status.GENERAL
        return cls(
            id=entry.wr_id,
            status=status,
            opcode=opcodes.get(entry.opcode) if status is Status.SUCCESS else None,
            byte_length=entry.byte_len,
            queue_pair=entry.qp_num,
            vendor_error=entry.vendor_err,
        )
