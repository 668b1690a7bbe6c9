"""The seam over pyverbs: rdma-core's own binding, as Debian and the NIC vendors ship it (44 and newer).

pyverbs holds the GIL in every call, so nothing here may wait: both event descriptors are non-blocking and are read only
after they became readable. Its objects close their children by themselves; `Handle` keeps the order explicit.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
from collections.abc import Iterator, Sequence
from importlib import metadata
from typing import Any

import pyverbs.enums as e
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ, CompChannel
from pyverbs.device import Context, get_device_list
from pyverbs.mr import MR, DmaBufMR
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsError
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR

from pykvpool.fabric.verbs.event_descriptors import made_with_descriptor, readable
from pykvpool.fabric.verbs.lifetime import Handle
from pykvpool.fabric.verbs.load import UNKNOWN_VERSION
from pykvpool.fabric.verbs.model import (
    EVENT_KINDS,
    MTU_BYTES,
    MTU_CODES,
    PORT_STATES,
    QUEUE_PAIR_STATES,
    UNKNOWN_MTU_BYTES,
    Access,
    Completion,
    DeviceName,
    Event,
    EventKind,
    Gid,
    GidType,
    Limits,
    LinkLayer,
    Opcode,
    Path,
    Port,
    QueuePairLimits,
    QueuePairState,
    RemoteQueuePair,
    Retries,
    WorkRequest,
)
from pykvpool.fabric.verbs.protocol import CompletionQueue, VerbsError
from pykvpool.fabric.verbs.sysfs import SYSFS

_LINK_LAYERS = {e.IBV_LINK_LAYER_INFINIBAND: LinkLayer.INFINIBAND, e.IBV_LINK_LAYER_ETHERNET: LinkLayer.ETHERNET}
#: ibv_gid_type, in order from 0.
_GID_TYPES = (GidType.INFINIBAND, GidType.ROCE_V1, GidType.ROCE_V2)
_WR_OPCODES = {Opcode.WRITE: e.IBV_WR_RDMA_WRITE, Opcode.READ: e.IBV_WR_RDMA_READ}
_WC_OPCODES = {e.IBV_WC_RDMA_WRITE: Opcode.WRITE, e.IBV_WC_RDMA_READ: Opcode.READ}
_SIGNALED = int(e.IBV_SEND_SIGNALED)
#: How long a receiver that is not ready asks to be left alone; the code of 0.64 ms, which nothing here ever needs.
_MIN_RNR_TIMER = 12


def _code(error: Exception) -> int:
    """The errno in a pyverbs error, 0 where there is none."""
    code = getattr(error, "error_code", 0)
    return abs(code) if isinstance(code, int) and code != -1 else 0


@contextlib.contextmanager
def _verb(operation: str, device: str) -> Iterator[None]:
    try:
        yield
    except PyverbsError as error:
        raise VerbsError(operation, device, _code(error), str(error)) from error


class _Region(Handle):
    def __init__(self, domain: _Domain, address: int, mr: Any) -> None:
        super().__init__(domain.device, domain)
        self.address = address
        self.length = int(mr.length)
        self.lkey = int(mr.lkey)
        self.rkey = int(mr.rkey)
        self._mr = mr

    def _destroy(self) -> None:
        with _verb("deregister memory", self.device):
            self._mr.close()


class _QueuePair(Handle):
    def __init__(self, domain: _Domain, completions: _Completions, limits: QueuePairLimits) -> None:
        cq = completions.cq
        # One receive slot that is never used: some providers refuse a queue pair with none.
        cap = QPCap(limits.send_depth, 1, limits.max_sge, 1)
        with _verb("create a queue pair", domain.device):
            self._qp = QP(domain.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=cap, sq_sig_all=0))
        super().__init__(domain.device, domain, completions)
        self.number = int(self._qp.qp_num)

    @property
    def state(self) -> QueuePairState:
        with _verb("query a queue pair", self.device):
            attributes, _ = self._qp.query(e.IBV_QP_STATE)
        return QUEUE_PAIR_STATES[int(attributes.qp_state)]

    def to_init(self, port: int, access: Access) -> None:
        attributes = QPAttr(port_num=port)
        attributes.qp_access_flags = int(access)
        with _verb("queue pair to INIT", self.device):
            self._qp.to_init(attributes)

    def to_ready_to_receive(self, remote: RemoteQueuePair, path: Path) -> None:
        attributes = QPAttr(port_num=path.port)
        attributes.dest_qp_num = remote.number
        attributes.rq_psn = remote.psn
        attributes.path_mtu = MTU_CODES[min(path.mtu_bytes, remote.mtu_bytes)]
        attributes.max_dest_rd_atomic = path.read_depth
        attributes.min_rnr_timer = _MIN_RNR_TIMER
        with _verb("queue pair to RTR", self.device):
            route = GlobalRoute(
                dgid=GID(ipaddress.IPv6Address(remote.gid).exploded),
                sgid_index=path.gid_index,
                hop_limit=path.hop_limit,
                traffic_class=path.traffic_class,
            )
            attributes.ah_attr = AHAttr(
                gr=route, is_global=1, port_num=path.port, dlid=remote.lid, sl=path.service_level
            )
            self._qp.to_rtr(attributes)

    def to_ready_to_send(self, psn: int, path: Path, retries: Retries) -> None:
        attributes = QPAttr(port_num=path.port)
        attributes.sq_psn = psn
        attributes.timeout = retries.timeout_exponent
        attributes.retry_cnt = retries.count
        attributes.rnr_retry = retries.not_ready_count
        attributes.max_rd_atomic = path.read_depth
        with _verb("queue pair to RTS", self.device):
            self._qp.to_rts(attributes)

    def to_error(self) -> None:
        with _verb("queue pair to ERROR", self.device):
            self._qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)

    def post(self, requests: Sequence[WorkRequest]) -> None:
        post_send = self._qp.post_send
        for posted, request in enumerate(requests):
            pieces = [SGE(piece.address, piece.length, piece.lkey) for piece in request.pieces]
            wr = SendWR(
                wr_id=request.id,
                opcode=_WR_OPCODES[request.opcode],
                num_sge=len(pieces),
                sg=pieces,
                send_flags=_SIGNALED if request.signaled else 0,
            )
            wr.set_wr_rdma(request.rkey, request.remote_address)
            try:
                post_send(wr)
            except PyverbsError as error:
                raise VerbsError("post to a queue pair", self.device, _code(error), str(error), posted) from error

    def _destroy(self) -> None:
        with _verb("destroy a queue pair", self.device):
            self._qp.close()


class _Completions(Handle):
    def __init__(self, context: _Context, depth: int) -> None:
        with _verb("create a completion queue", context.device):
            if hasattr(CompChannel, "fd"):
                self._channel = CompChannel(context.context)
                self.fd = int(self._channel.fd)
            else:
                self._channel, self.fd = made_with_descriptor(lambda: CompChannel(context.context))
            os.set_blocking(self.fd, False)
            self.cq = CQ(context.context, depth, None, self._channel, 0)
        super().__init__(context.device, context)
        self.depth = int(self.cq.cqe)

    def arm(self) -> None:
        with _verb("arm a completion queue", self.device):
            self.cq.req_notify()

    def take_event(self) -> int:
        try:
            self._channel.get_cq_event(self.cq)
        except PyverbsError as error:
            if _code(error) == errno.EAGAIN:
                return 0
            raise VerbsError("take a completion event", self.device, _code(error), str(error)) from error
        self.cq.ack_events(1)
        return 1

    def poll(self, limit: int) -> list[Completion]:
        try:
            _, entries = self.cq.poll(limit)
        except PyverbsError as error:
            raise VerbsError("poll a completion queue", self.device, _code(error), str(error)) from error
        return [Completion.of(entry, _WC_OPCODES) for entry in entries]

    def _destroy(self) -> None:
        with _verb("destroy a completion queue", self.device):
            self.cq.close()
            self._channel.close()


class _Domain(Handle):
    def __init__(self, context: _Context) -> None:
        with _verb("allocate a protection domain", context.device):
            self.pd = PD(context.context)
        super().__init__(context.device, context)

    def register(self, address: int, length: int, access: Access) -> _Region:
        operation = f"register {length} bytes of memory"
        if not address:  # pyverbs would allocate memory of its own
            raise VerbsError(operation, self.device, errno.EFAULT, os.strerror(errno.EFAULT))
        with _verb(operation, self.device):
            mr = MR(self.pd, length, int(access), address=address)
        return _Region(self, address, mr)

    def register_dmabuf(self, fd: int, offset: int, length: int, address: int, access: Access) -> _Region:
        # pyverbs takes no address of its own: it registers with the offset as the first one that peers name.
        with _verb(f"register {length} bytes of a dma-buf", self.device):
            mr = DmaBufMR(self.pd, length, int(access), dmabuf=fd, offset=offset)
        return _Region(self, offset, mr)

    def queue_pair(self, completions: CompletionQueue, limits: QueuePairLimits) -> _QueuePair:
        if not isinstance(completions, _Completions):
            raise TypeError(f"a completion queue of another binding: {type(completions).__name__}")
        return _QueuePair(self, completions, limits)

    def _destroy(self) -> None:
        with _verb("deallocate a protection domain", self.device):
            self.pd.close()


class _Context(Handle):
    def __init__(self, name: str) -> None:
        with _verb("open", name):
            self.context, self.event_fd = made_with_descriptor(lambda: Context(name=name))
        os.set_blocking(self.event_fd, False)
        super().__init__(name)
        self.name = name

    def limits(self) -> Limits:
        with _verb("query", self.name):
            found = self.context.query_device()
        return Limits(
            max_mr_size_bytes=found.max_mr_size,
            max_mr=found.max_mr,
            max_qp=found.max_qp,
            max_qp_wr=found.max_qp_wr,
            max_sge=found.max_sge,
            max_cqe=found.max_cqe,
            max_qp_read_depth=found.max_qp_rd_atom,
            ports=found.phys_port_cnt,
        )

    def port(self, number: int) -> Port:
        with _verb(f"query port {number}", self.name):
            found = self.context.query_port(number)
            # The table holds all ports of the device: room for each of them.
            entries = self.context.query_gid_table(found.gid_tbl_len * self.context.query_device().phys_port_cnt)
        return Port(
            number=number,
            state=PORT_STATES[found.state],
            link_layer=_LINK_LAYERS.get(found.link_layer, LinkLayer.UNKNOWN),
            lid=found.lid,
            active_mtu_bytes=MTU_BYTES.get(found.active_mtu, UNKNOWN_MTU_BYTES),
            max_message_bytes=found.max_msg_sz,
            gids=tuple(_gid(entry) for entry in entries if entry.port_num == number),
        )

    def next_event(self) -> Event | None:
        if not readable(self.event_fd):
            return None  # pyverbs would raise without an error number
        with _verb("read events", self.name):
            found = self.context.get_async_event()
        number = int(found.event_type)
        found.ack()
        return Event(self.name, EVENT_KINDS[number] if number < len(EVENT_KINDS) else EventKind.UNKNOWN)

    def protection_domain(self) -> _Domain:
        return _Domain(self)

    def completion_queue(self, depth: int) -> _Completions:
        return _Completions(self, depth)

    def _destroy(self) -> None:
        with _verb("close", self.name):
            self.context.close()


def _gid(entry: Any) -> Gid:
    kind = _GID_TYPES[entry.gid_type] if entry.gid_type < len(_GID_TYPES) else GidType.UNKNOWN
    interface = ""
    if entry.ndev_ifindex:
        with contextlib.suppress(OSError):  # an interface of another network namespace has no name here
            interface = socket.if_indextoname(entry.ndev_ifindex)
    return Gid(entry.gid_index, ipaddress.IPv6Address(entry.gid_str()).packed, kind, interface)


class _Binding:
    name = "pyverbs"
    pins_memory = True

    def __init__(self) -> None:
        self.version = _version()

    def devices(self) -> list[DeviceName]:
        try:
            found = get_device_list()
        except PyverbsError as error:
            if not SYSFS.is_dir():
                return []  # no RDMA in this kernel; pyverbs gives no error number for that
            raise VerbsError("list devices", "this host", _code(error), str(error)) from error
        return [DeviceName(device.name.decode(), int(device.guid)) for device in found or ()]

    def open(self, name: str) -> _Context:
        return _Context(name)


def _version() -> str:
    try:
        return metadata.version("pyverbs")
    except metadata.PackageNotFoundError:
        return UNKNOWN_VERSION  # Debian ships no metadata


def binding() -> _Binding:
    return _Binding()
