"""The node's end of an engine's process that says what it likes."""

from __future__ import annotations

import asyncio
import os
import socket

import pytest

from pykvpool.errors import Closed
from pykvpool.fabric.base import Peer
from pykvpool.fabric.handshake import Identity, introduce
from pykvpool.fabric.packet_socket import PacketSocket
from pykvpool.host.agent import wire
from pykvpool.host.agent.port import AgentPort
from pykvpool.host.agent.ring import RingFile
from pykvpool.host.port import BlockGroup, LoadJob, Run, SaveJob
from pykvpool.runtime import real_runtime
from tests.host.stage import SCOPE, Engine, Memory, chain, until

RING_BYTES = 1 << 16


class RawEngine:
    """An attachment, message by message."""

    def __init__(self, path: str) -> None:
        self.ring = RingFile(RING_BYTES)
        self._socket = asyncio.run(self._attach(path))
        self._socket.settimeout(20.0)

    async def _attach(self, path: str) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.connect(path)
        packets = PacketSocket(sock, asyncio.get_running_loop())
        await introduce(packets, Identity(Peer("raw", 1, True)).handshake(real_runtime()))
        wire.decode_offer((await packets.receive()).data)
        ours, theirs = socket.socketpair()
        packets.send(wire.encode(wire.Attach(self.ring.size_bytes)), [self.ring.fd, theirs.fileno()])
        theirs.close()
        packets.close(Closed("it goes on on the stream"))
        return ours

    def say(self, message: wire.FromEngine | bytes) -> None:
        frame = message if isinstance(message, bytes) else wire.encode(message)
        self._socket.sendall(len(frame).to_bytes(4, "little") + frame)

    def hear(self, kind: type) -> wire.FromNode:
        """The next message of a kind."""
        while True:
            message = wire.decode_from_node(self._exactly(int.from_bytes(self._exactly(4), "little")))
            if isinstance(message, kind):
                return message

    def connected(self) -> RawEngine:
        while not self.hear(wire.State).connected:
            pass
        return self

    def close(self) -> None:
        self._socket.close()
        self.ring.close()

    def ended(self) -> bool:
        while self._socket.recv(1 << 16):
            pass
        return True

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = self._socket.recv(count - len(data))
            assert part, "the node has ended the attachment"
            data += part
        return data


@pytest.fixture
def raw(pool):
    engine = RawEngine(pool.agent().path)
    yield engine
    engine.close()


def blocks(count: int, block_bytes: int, name: str = "a") -> BlockGroup:
    return BlockGroup(SCOPE, chain(count, name), (), (Run(0, 0, block_bytes),))


@pytest.mark.parametrize(
    "frame",
    [
        b"\xff" * 20,
        wire.encode(wire.Filled(99, True)),
        wire.encode(wire.Load(LoadJob(1, (BlockGroup(SCOPE, chain(1), (), ()),), 1_000))),
    ],
    ids=["garbage", "a ticket that is not open", "a group without a size"],
)
def test_p12_nonsense_costs_only_its_own_attachment(pool, raw, frame):
    port = AgentPort("neighbour", socket=pool.agent().path)
    neighbour, memory = Engine(port).connected(), Memory().fill()
    raw.say(frame)
    assert raw.ended()
    assert neighbour.save(memory.group(chain(3), range(3))).stored == 3
    until(lambda: pool.on_loop(lambda: pool.agent().engines) == ["neighbour"])
    port.close(0.0)


def test_what_the_engine_did_not_fill_is_not_stored(pool, raw):
    """A place holds what some other job left there."""
    raw.connected().say(wire.Save(SaveJob(1, (blocks(2, 4_000),), 60_000)))
    raw.say(wire.Filled(raw.hear(wire.Fill).ticket, False))
    assert raw.hear(wire.Saved).done.dropped == 2
    assert pool.objects() == 0


def test_a_place_that_the_engine_may_still_fill_is_given_to_nobody(pool, raw):
    raw.connected().say(wire.Save(SaveJob(1, (blocks(1, 40_000, "slow"),), 60_000)))
    slow = raw.hear(wire.Fill)
    raw.say(wire.Drop(1))
    raw.hear(wire.Saved)
    raw.say(wire.Save(SaveJob(2, (blocks(1, 20_000, "next"),), 60_000)))
    following = raw.hear(wire.Fill)
    assert following.offset >= slow.offset + 40_000
    os.pwrite(raw.ring.fd, b"n" * 20_000, following.offset)
    raw.say(wire.Filled(following.ticket, True))
    assert raw.hear(wire.Saved).done.stored == 1
    raw.say(wire.Filled(slow.ticket, False))  # now its place is free again
    raw.say(wire.Save(SaveJob(3, (blocks(1, RING_BYTES, "whole"),), 60_000)))
    assert raw.hear(wire.Fill).offset == 0


def test_a_place_that_the_engine_still_reads_is_given_to_nobody(pool, raw):
    port = AgentPort("neighbour", socket=pool.agent().path)
    memory = Memory(blocks=2, layers=1, piece_bytes=20_000).fill()  # 40,000 bytes a block
    assert Engine(port).connected().save(memory.group(chain(2), range(2))).stored == 2
    raw.connected().say(wire.Load(LoadJob(1, (blocks(1, 40_000),), 60_000)))
    first = raw.hear(wire.Take)
    assert raw.hear(wire.Loaded).done.loaded, "all of it is in the ring"
    raw.say(wire.Save(SaveJob(2, (blocks(1, 20_000, "next"),), 60_000)))
    assert raw.hear(wire.Fill).offset >= first.offset + 40_000
    assert os.pread(raw.ring.fd, 40_000, first.offset) == memory.block(0)
    port.close(0.0)
