"""The seam over PyPI's `ibverbs`: a wheel that loads the system's libibverbs, for environments without pyverbs.

It releases the GIL in the verbs, refuses to close parents before children, and tells no GID types: those come from
sysfs.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from typing import Any

import ibverbs as ib

from pykvpool.fabric.verbs.event_descriptors import readable
from pykvpool.fabric.verbs.lifetime import Handle
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
from pykvpool.fabric.verbs.sysfs import gid_entry

#: IBV_LINK_LAYER_*, which the library passes on as numbers.
_LINK_LAYERS = {1: LinkLayer.INFINIBAND, 2: LinkLayer.ETHERNET}
_WR_OPCODES = {Opcode.WRITE: int(ib.WROpcode.RDMA_WRITE), Opcode.READ: int(ib.WROpcode.RDMA_READ)}
_WC_OPCODES = {int(ib.WCOpcode.RDMA_WRITE): Opcode.WRITE, int(ib.WCOpcode.RDMA_READ): Opcode.READ}
_SIGNALED = int(ib.SendFlags.SIGNALED)


@contextlib.contextmanager
def _verb(operation: str, device: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:  # the library's VerbsError is one
        raise VerbsError(operation, device, error.errno or 0, str(error)) from error


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
        wanted = ib.QPInitAttr(
            send_cq=completions.cq,
            recv_cq=completions.cq,
            qp_type=ib.QPType.RC,
            max_send_wr=limits.send_depth,
            max_recv_wr=1,  # never used; some providers refuse a queue pair with none
            max_send_sge=limits.max_sge,
            max_recv_sge=1,
        )
        with _verb("create a queue pair", domain.device):
            self._qp = domain.pd.create_qp(wanted)
        super().__init__(domain.device, domain, completions)
        self.number = int(self._qp.qp_num)

    @property
    def state(self) -> QueuePairState:
        with _verb("query a queue pair", self.device):
            return QUEUE_PAIR_STATES[int(self._qp.state)]

    def to_init(self, port: int, access: Access) -> None:
        with _verb("queue pair to INIT", self.device):
            self._qp.to_init(port, int(access))

    def to_ready_to_receive(self, remote: RemoteQueuePair, path: Path) -> None:
        mtu = MTU_CODES[min(path.mtu_bytes, remote.mtu_bytes)]
        peer = ib.QPInfo(remote.number, remote.psn, remote.lid, remote.gid, path.port, mtu)
        with _verb("queue pair to RTR", self.device):
            self._qp.to_rtr(
                peer,
                path.gid_index,
                mtu=mtu,
                hop_limit=path.hop_limit,
                max_dest_rd_atomic=path.read_depth,
                sl=path.service_level,
                traffic_class=path.traffic_class,
            )

    def to_ready_to_send(self, psn: int, path: Path, retries: Retries) -> None:
        with _verb("queue pair to RTS", self.device):
            self._qp.to_rts(
                psn,
                timeout=retries.timeout_exponent,
                retry_cnt=retries.count,
                rnr_retry=retries.not_ready_count,
                max_rd_atomic=path.read_depth,
            )

    def to_error(self) -> None:
        with _verb("queue pair to ERROR", self.device):
            self._qp.modify(int(ib.QPAttrMask.STATE), qp_state=int(ib.QPState.ERR))

    def post(self, requests: Sequence[WorkRequest]) -> None:
        post_send = self._qp.post_send
        for posted, request in enumerate(requests):
            wr = ib.SendWR(
                wr_id=request.id,
                sg_list=[ib.SGE(piece.address, piece.length, piece.lkey) for piece in request.pieces],
                opcode=_WR_OPCODES[request.opcode],
                send_flags=_SIGNALED if request.signaled else 0,
                remote_addr=request.remote_address,
                rkey=request.rkey,
            )
            try:
                post_send(wr)
            except OSError as error:
                raise VerbsError("post to a queue pair", self.device, error.errno or 0, str(error), posted) from error

    def _destroy(self) -> None:
        with _verb("destroy a queue pair", self.device):
            self._qp.close()


class _Completions(Handle):
    def __init__(self, context: _Context, depth: int) -> None:
        with _verb("create a completion queue", context.device):
            self._channel = context.context.create_comp_channel()
            self.fd = int(self._channel.fd)
            os.set_blocking(self.fd, False)
            self.cq = context.context.create_cq(depth, self._channel)
        super().__init__(context.device, context)
        self.depth = int(self.cq.cqe)

    def arm(self) -> None:
        with _verb("arm a completion queue", self.device):
            self.cq.req_notify()

    def take_event(self) -> int:
        try:
            self._channel.get_cq_event()
        except OSError as error:
            if error.errno == errno.EAGAIN:
                return 0
            raise VerbsError("take a completion event", self.device, error.errno or 0, str(error)) from error
        self.cq.ack_events(1)
        return 1

    def poll(self, limit: int) -> list[Completion]:
        try:
            entries = self.cq.poll(limit)
        except OSError as error:
            raise VerbsError("poll a completion queue", self.device, error.errno or 0, str(error)) from error
        return [Completion.of(entry, _WC_OPCODES) for entry in entries]

    def _destroy(self) -> None:
        with _verb("destroy a completion queue", self.device):
            self.cq.close()
            self._channel.close()


class _Domain(Handle):
    def __init__(self, context: _Context) -> None:
        with _verb("allocate a protection domain", context.device):
            self.pd = context.context.alloc_pd()
        super().__init__(context.device, context)

    def register(self, address: int, length: int, access: Access) -> _Region:
        with _verb(f"register {length} bytes of memory", self.device):
            mr = self.pd.reg_mr(address, length, int(access))
        return _Region(self, address, mr)

    def register_dmabuf(self, fd: int, offset: int, length: int, address: int, access: Access) -> _Region:
        with _verb(f"register {length} bytes of a dma-buf", self.device):
            mr = self.pd.reg_dmabuf_mr(offset, length, address, fd, int(access))
        return _Region(self, address, mr)

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
            found = {device.name: device for device in ib.get_device_list()}
            if name not in found:
                known = ", ".join(found) or "none"
                raise OSError(errno.ENODEV, f"no such device (there are: {known})")
            self.context = found[name].open()
            self.event_fd = int(self.context.async_fd)
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
            link_layer = _LINK_LAYERS.get(int(found.link_layer), LinkLayer.UNKNOWN)
            gids = self._gids(number, found.gid_tbl_len, link_layer)
        return Port(
            number=number,
            state=PORT_STATES[int(found.state)],
            link_layer=link_layer,
            lid=found.lid,
            active_mtu_bytes=MTU_BYTES.get(int(found.active_mtu), UNKNOWN_MTU_BYTES),
            max_message_bytes=found.max_msg_sz,
            gids=gids,
        )

    def _gids(self, port: int, size: int, link_layer: LinkLayer) -> tuple[Gid, ...]:
        """Entries in use. Most of the table, which may hold a thousand, is zeros: those are passed over first."""
        infiniband = link_layer is LinkLayer.INFINIBAND
        addresses = ((index, self.context.query_gid(port, index).raw) for index in range(size))
        return tuple(
            gid_entry(self.name, port, index, bytes(address), infiniband=infiniband)
            for index, address in addresses
            if any(address)
        )

    def next_event(self) -> Event | None:
        if not readable(self.event_fd):
            return None
        with _verb("read events", self.name):
            found = self.context.get_async_event()
        number = int(found.event_type)
        self.context.ack_async_event(found)
        return Event(self.name, EVENT_KINDS[number] if number < len(EVENT_KINDS) else EventKind.UNKNOWN)

    def protection_domain(self) -> _Domain:
        return _Domain(self)

    def completion_queue(self, depth: int) -> _Completions:
        return _Completions(self, depth)

    def _destroy(self) -> None:
        with _verb("close", self.name):
            self.context.close()


class _Binding:
    name = "ibverbs"
    pins_memory = True
    version = str(ib.__version__)

    def devices(self) -> list[DeviceName]:
        try:
            found = ib.get_device_list()
        except OSError as error:
            if error.errno == errno.ENOSYS:
                return []  # no RDMA in this kernel
            raise VerbsError("list devices", "this host", error.errno or 0, str(error)) from error
        return [DeviceName(device.name, int(device.guid)) for device in found]

    def open(self, name: str) -> _Context:
        return _Context(name)


def binding() -> _Binding:
    return _Binding()
