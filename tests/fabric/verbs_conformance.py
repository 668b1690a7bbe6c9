"""One suite for every `Verbs`: the fake, and each real binding on real (or emulated) devices.

To join: subclass this and give the fixture `rig` (see `verbs_rig`). What it promises is what `fabric/rdma` relies on.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random

import pytest

from pykvpool.fabric.verbs import (
    Access,
    EventKind,
    LinkLayer,
    Opcode,
    Piece,
    PortState,
    QueuePairState,
    Status,
    VerbsError,
    WorkRequest,
)
from pykvpool.fabric.verbs.event_descriptors import readable
from tests.fabric.verbs_rig import ALL, IMPATIENT, REMOTE, TIMEOUT_S, Memory, Rig

READ, WRITE = Opcode.READ, Opcode.WRITE


def data_of(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


class VerbsConformance:
    """Needs the fixture `rig`."""

    # -- what is there --------------------------------------------------------------------------------------------

    async def test_devices_are_listed_and_opened_by_name(self, rig: Rig) -> None:
        names = [device.name for device in rig.verbs.devices()]
        assert {rig.a.context.name, rig.b.context.name} <= set(names)
        with pytest.raises(VerbsError, match="nosuch") as caught:
            rig.verbs.open("nosuch0")
        assert caught.value.device == "nosuch0"

    async def test_a_device_says_what_it_allows(self, rig: Rig) -> None:
        limits = rig.a.context.limits()
        assert limits.ports == 1
        for value in (limits.max_mr_size_bytes, limits.max_qp_wr, limits.max_sge, limits.max_cqe):
            assert value > 0
        assert limits.max_qp_read_depth > 0

    async def test_a_port_says_how_it_is_reached(self, rig: Rig) -> None:
        port = rig.a.context.port(1)
        assert (port.number, port.state, port.link_layer) == (1, PortState.ACTIVE, LinkLayer.ETHERNET)
        assert port.active_mtu_bytes in (256, 512, 1024, 2048, 4096)
        assert all(any(gid.address) for gid in port.gids), "unused entries are left out"
        assert len({gid.index for gid in port.gids}) == len(port.gids)
        assert rig.a.gid.ipv4 and rig.a.gid.interface
        assert rig.a.gid.text == f"::ffff:{rig.a.gid.ipv4}"
        with pytest.raises(VerbsError):
            rig.a.context.port(9)

    # -- bytes ----------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("size", [1, 4095, 65_537, 1 << 20])
    async def test_a_write_and_a_read_move_bytes(self, rig: Rig, size: int) -> None:
        pair, _ = rig.connect()
        rig.a.memory[0:size] = data_of(size)
        (done,) = await rig.run(pair, [rig.a.request(WRITE, rig.b, size)])
        assert (done.status, done.opcode, done.queue_pair) == (Status.SUCCESS, WRITE, pair.number)
        assert rig.b.memory[0:size] == data_of(size)
        rig.b.memory[0:size] = data_of(size, 2)
        (done,) = await rig.run(pair, [rig.a.request(READ, rig.b, size)])
        assert (done.status, done.opcode, done.byte_length) == (Status.SUCCESS, READ, size)
        assert rig.a.memory[0:size] == data_of(size, 2)

    async def test_pieces_are_gathered_and_scattered_in_order(self, rig: Rig) -> None:
        pair, _ = rig.connect()
        rig.a.memory[0:3000] = data_of(3000)
        at, key = rig.a.memory.address, rig.a.region.lkey
        pieces = (Piece(at + 2000, 1000, key), Piece(at, 1, key), Piece(at + 7, 100, key))
        target, rkey = rig.b.memory.address + 5, rig.b.region.rkey
        gathered = data_of(3000)[2000:3000] + data_of(3000)[0:1] + data_of(3000)[7:107]
        await rig.run(pair, [WorkRequest(1, WRITE, pieces, target, rkey)])
        assert rig.b.memory[5 : 5 + 1101] == gathered
        rig.a.memory[0:3000] = bytes(3000)
        await rig.run(pair, [WorkRequest(2, READ, pieces, target, rkey)])
        assert rig.a.memory[2000:3000] + rig.a.memory[0:1] + rig.a.memory[7:107] == gathered
        assert rig.a.memory[1:7] == bytes(6)

    async def test_both_ends_may_ask(self, rig: Rig) -> None:
        _, pair = rig.connect()
        rig.b.memory[0:100] = data_of(100)
        pair.post([rig.b.request(WRITE, rig.a, 100)])
        (done,) = await rig.b.completed()
        assert done.status is Status.SUCCESS
        assert rig.a.memory[0:100] == data_of(100)

    async def test_only_signaled_requests_complete_and_in_order(self, rig: Rig) -> None:
        pair, _ = rig.connect()
        asked = [rig.a.request(WRITE, rig.b, 64, remote_offset=64 * n, signaled=n % 4 == 3) for n in range(12)]
        done = await rig.run(pair, asked)
        assert [entry.id for entry in done] == [request.id for request in asked if request.signaled]
        assert rig.a.completions.poll(10) == []

    async def test_a_read_behind_a_write_sees_it(self, rig: Rig) -> None:
        """What "a put has landed" stands on."""
        pair, _ = rig.connect()
        rig.a.memory[0:4096] = data_of(4096)
        write = rig.a.request(WRITE, rig.b, 4096, signaled=False)
        read = rig.a.request(READ, rig.b, 8, offset=8192, remote_offset=4088)
        await rig.run(pair, [write, read])
        assert rig.a.memory[8192:8200] == data_of(4096)[-8:]

    async def test_a_thousand_requests_go_through_a_short_queue(self, rig: Rig) -> None:
        pair, _ = rig.connect(depth=8)
        rig.a.memory[0:1000] = data_of(1000)
        for first in range(0, 1000, 8):
            asked = [rig.a.request(WRITE, rig.b, 1, offset=n, remote_offset=n) for n in range(first, first + 8)]
            await rig.run(pair, asked)
        assert rig.b.memory[0:1000] == data_of(1000)

    # -- being told -----------------------------------------------------------------------------------------------

    async def test_only_an_armed_queue_wakes_and_once(self, rig: Rig) -> None:
        pair, _ = rig.connect()
        await rig.run(pair, [rig.a.request(WRITE, rig.b, 1)])
        while rig.a.completions.take_event():  # of the run above, which armed it anew
            pass
        queue = rig.a.completions
        assert not readable(queue.fd)
        queue.arm()
        pair.post([rig.a.request(WRITE, rig.b, 1)])
        await becomes_readable(queue.fd)
        assert queue.take_event() == 1
        assert queue.take_event() == 0, "nothing to take is no error"
        pair.post([rig.a.request(WRITE, rig.b, 1, signaled=True)])
        found = 0
        async with asyncio.timeout(TIMEOUT_S):
            while found < 2:
                found += len(queue.poll(4))
                await asyncio.sleep(0)
        assert not readable(queue.fd), "it was not armed"

    async def test_the_descriptors_belong_to_an_event_loop(self, rig: Rig) -> None:
        for fd in (rig.a.completions.fd, rig.a.context.event_fd):
            assert not os.get_blocking(fd)
        assert rig.a.context.next_event() is None

    async def test_a_port_that_goes_down_is_told_of(self, rig: Rig) -> None:
        rig.set_port(False)
        try:
            await becomes_readable(rig.a.context.event_fd)
            assert await event_of_kind(rig, EventKind.PORT_DOWN)
            assert rig.a.context.port(1).state is not PortState.ACTIVE
        finally:
            rig.set_port(True)
        assert await event_of_kind(rig, EventKind.PORT_ACTIVE)

    # -- what is refused ------------------------------------------------------------------------------------------

    async def test_a_wrong_key_breaks_the_queue_pair_and_flushes_what_is_behind(self, rig: Rig) -> None:
        pair, _ = rig.connect()
        other, _ = rig.connect()
        wrong = rig.a.request(WRITE, rig.b, 64, rkey=rig.b.region.rkey ^ 0x5A5A)
        behind = rig.a.request(WRITE, rig.b, 64, remote_offset=128)
        rig.a.memory[0:64] = data_of(64)
        failed, flushed = await rig.run(pair, [wrong, behind])
        assert (failed.id, failed.status) == (wrong.id, Status.REMOTE_ACCESS)
        assert (flushed.id, flushed.status) == (behind.id, Status.FLUSHED)
        assert pair.state is QueuePairState.ERROR
        assert rig.b.memory[0:192] == bytes(192)
        (late,) = await rig.run(pair, [rig.a.request(WRITE, rig.b, 1)])
        assert late.status is Status.FLUSHED
        (fine,) = await rig.run(other, [rig.a.request(WRITE, rig.b, 64)])
        assert fine.status is Status.SUCCESS

    async def test_a_failed_request_completes_though_not_signaled(self, rig: Rig) -> None:
        pair, _ = rig.connect()
        wrong = rig.a.request(READ, rig.b, 64, rkey=rig.b.region.rkey ^ 0x5A5A, signaled=False)
        pair.post([wrong])
        (failed,) = await rig.a.completed()
        assert (failed.id, failed.status) == (wrong.id, Status.REMOTE_ACCESS)

    @pytest.mark.parametrize("opcode", [READ, WRITE])
    async def test_p2_nothing_moves_beyond_a_region(self, rig: Rig, opcode: Opcode) -> None:
        pair, _ = rig.connect()
        edge = rig.b.memory.size - 10
        rig.a.memory[0:64] = data_of(64)
        (failed,) = await rig.run(pair, [rig.a.request(opcode, rig.b, 64, remote_offset=edge)])
        assert failed.status is Status.REMOTE_ACCESS
        assert rig.b.memory[edge : edge + 10] == bytes(10)
        assert rig.a.memory[0:64] == data_of(64)

    async def test_a_wrong_local_key_is_refused_before_anything_is_sent(self, rig: Rig) -> None:
        pair, _ = rig.connect()
        wrong = rig.a.request(WRITE, rig.b, 64, lkey=rig.a.region.lkey ^ 0x5A5A)
        try:
            (failed,) = await rig.run(pair, [wrong])
        except VerbsError as error:
            assert error.posted == 0
        else:
            assert failed.status in (Status.LOCAL_PROTECTION, Status.LOCAL_QP_OPERATION)

    async def test_a_read_only_queue_pair_cannot_be_written_through(self, rig: Rig) -> None:
        pair, _ = rig.connect(access=Access.REMOTE_READ)
        rig.b.memory[0:64] = data_of(64)
        (done,) = await rig.run(pair, [rig.a.request(READ, rig.b, 64)])
        assert done.status is Status.SUCCESS
        rig.a.memory[0:64] = bytes(64)
        (failed,) = await rig.run(pair, [rig.a.request(WRITE, rig.b, 64)])
        assert failed.status in (Status.REMOTE_ACCESS, Status.REMOTE_INVALID_REQUEST)
        assert rig.b.memory[0:64] == data_of(64)

    async def test_a_read_only_region_cannot_be_written_to(self, rig: Rig) -> None:
        pair, _ = rig.connect()
        region = rig.b.domain.register(rig.b.memory.address, 4096, Access.REMOTE_READ)
        rig.b.regions.append(region)
        rig.a.memory[0:64] = data_of(64)
        (failed,) = await rig.run(pair, [rig.a.request(WRITE, rig.b, 64, rkey=region.rkey)])
        assert failed.status in (Status.REMOTE_ACCESS, Status.REMOTE_INVALID_REQUEST)
        assert rig.b.memory[0:64] == bytes(64)

    async def test_p5_a_region_of_another_domain_is_out_of_reach(self, rig: Rig) -> None:
        """A generation has one domain of its own: its keys say nothing to the queue pairs of another."""
        domain = rig.b.context.protection_domain()
        pair, other = rig.connect(b_domain=domain)
        rig.a.memory[0:64] = data_of(64)
        (failed,) = await rig.run(pair, [rig.a.request(WRITE, rig.b, 64)])
        assert failed.status in (Status.REMOTE_ACCESS, Status.REMOTE_INVALID_REQUEST)
        assert rig.b.memory[0:64] == bytes(64)
        other.close()
        domain.close()

    async def test_p5_a_region_that_was_closed_is_out_of_reach(self, rig: Rig) -> None:
        pair, _ = rig.connect()
        memory = Memory(4096)
        region = rig.b.domain.register(memory.address, 4096, ALL)
        region.close()
        rig.a.memory[0:64] = data_of(64)
        wrong = WorkRequest(
            1, WRITE, (Piece(rig.a.memory.address, 64, rig.a.region.lkey),), memory.address, region.rkey
        )
        (failed,) = await rig.run(pair, [wrong])
        assert failed.status is Status.REMOTE_ACCESS
        assert memory[0:64] == bytes(64)

    @pytest.mark.parametrize("address", [0, 4096])
    async def test_memory_that_is_not_there_cannot_be_registered(self, rig: Rig, address: int) -> None:
        with pytest.raises(VerbsError, match="register") as caught:
            rig.a.domain.register(address, 4096, ALL)
        assert caught.value.device == rig.a.context.name
        assert caught.value.errno in (0, errno.EFAULT, errno.EINVAL, errno.ENOMEM)

    async def test_a_dmabuf_that_the_device_cannot_take_is_an_error(self, rig: Rig) -> None:
        with rig_file() as file, pytest.raises(VerbsError, match="dma-buf"):
            rig.a.domain.register_dmabuf(file.fileno(), 0, 4096, 0, ALL)

    async def test_a_full_send_queue_refuses_and_says_how_many_went_in(self, rig: Rig) -> None:
        """The peer is gone, so that nothing completes meanwhile."""
        pair, peer = rig.connect(retries=IMPATIENT)
        peer.close()
        self.freeze(rig)
        asked = [rig.a.request(WRITE, rig.b, 1, signaled=False) for _ in range(4096)]
        with pytest.raises(VerbsError) as caught:
            pair.post(asked)
        assert 16 <= caught.value.posted < 4096, "at least what was asked for went in"
        assert caught.value.errno in (errno.ENOMEM, errno.EAGAIN)

    def freeze(self, rig: Rig) -> None:
        """Real devices take their time; the fake is told to."""

    # -- the ends of connections ----------------------------------------------------------------------------------

    async def test_a_peer_that_is_gone_ends_in_exhausted_retries(self, rig: Rig) -> None:
        pair, peer = rig.connect(retries=IMPATIENT)
        peer.close()
        (failed,) = await rig.run(pair, [rig.a.request(WRITE, rig.b, 64)])
        assert failed.status is Status.RETRY_EXCEEDED
        assert pair.state is QueuePairState.ERROR

    async def test_a_peer_that_broke_is_silent_too(self, rig: Rig) -> None:
        pair, peer = rig.connect(retries=IMPATIENT)
        peer.to_error()
        assert peer.state is QueuePairState.ERROR
        (failed,) = await rig.run(pair, [rig.a.request(WRITE, rig.b, 64)])
        assert failed.status is Status.RETRY_EXCEEDED

    async def test_a_queue_pair_told_to_break_flushes(self, rig: Rig) -> None:
        pair, peer = rig.connect()
        peer.close()
        self.freeze(rig)
        pair.post([rig.a.request(WRITE, rig.b, 64), rig.a.request(READ, rig.b, 64)])
        pair.to_error()
        first, second = await rig.a.completed(2)
        assert first.status in (Status.FLUSHED, Status.RETRY_EXCEEDED)
        assert second.status is Status.FLUSHED

    async def test_a_gid_that_is_not_in_the_table_cannot_be_used(self, rig: Rig) -> None:
        qa, qb = rig.a.pair(), rig.b.pair()
        qa.to_init(1, REMOTE)
        path = rig.a.path()
        far = type(path)(path.port, 200, path.mtu_bytes)
        with pytest.raises(VerbsError, match="RTR"):
            qa.to_ready_to_receive(rig.b.described(qb, 1), far)

    async def test_a_queue_pair_that_is_not_connected_cannot_send(self, rig: Rig) -> None:
        pair = rig.a.pair()
        assert pair.state is QueuePairState.RESET
        pair.to_init(1, REMOTE)
        assert pair.state is QueuePairState.INIT
        with pytest.raises(VerbsError, match="post"):
            pair.post([rig.a.request(WRITE, rig.b, 1)])

    # -- lifetimes ------------------------------------------------------------------------------------------------

    async def test_a_parent_outlives_its_children(self, rig: Rig) -> None:
        for parent in (rig.a.domain, rig.a.context):
            with pytest.raises(VerbsError, match="open") as caught:
                parent.close()
            assert caught.value.errno == errno.EBUSY
        pair, _ = rig.connect()
        with pytest.raises(VerbsError):
            rig.a.completions.close()
        (done,) = await rig.run(pair, [rig.a.request(WRITE, rig.b, 1)])
        assert done.status is Status.SUCCESS, "a close that was refused changes nothing"

    async def test_closing_again_is_harmless(self, rig: Rig) -> None:
        pair, _ = rig.connect()
        pair.close()
        pair.close()
        region = rig.a.domain.register(rig.a.memory.address, 4096, ALL)
        region.close()
        region.close()

    async def test_p2_after_closing_a_queue_pair_nothing_lands_any_more(self, rig: Rig) -> None:
        pair, _ = rig.connect()
        size = rig.a.memory.size
        rig.b.memory[0:size] = data_of(size)
        self.freeze(rig)
        pair.post([rig.a.request(READ, rig.b, size), rig.a.request(READ, rig.b, size)])
        pair.close()
        rig.a.memory[0:size] = bytes(size)
        self.thaw(rig)
        again, _ = rig.connect()
        (done,) = await rig.run(again, [rig.a.request(READ, rig.b, 8)])
        assert done.status is Status.SUCCESS
        assert rig.a.memory[8:size] == bytes(size - 8)

    def thaw(self, rig: Rig) -> None:
        """The end of `freeze`."""


async def becomes_readable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    woken = asyncio.Event()
    loop.add_reader(fd, woken.set)
    try:
        await asyncio.wait_for(woken.wait(), TIMEOUT_S)
    finally:
        loop.remove_reader(fd)


async def event_of_kind(rig: Rig, kind: EventKind) -> bool:
    """The next event of that kind; devices tell of other things too."""
    while True:
        event = rig.a.context.next_event()
        if event is None:
            await becomes_readable(rig.a.context.event_fd)
        elif event.kind is kind:
            return event.device == rig.a.context.name


def rig_file():  # type: ignore[no-untyped-def]
    """A file that is no dma-buf."""
    return open("/dev/null", "r+b")
