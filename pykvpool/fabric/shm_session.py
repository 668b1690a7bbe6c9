"""A peer's connection to one owner over shm: asks for maps, keeps them, and gives them up when the owner says so."""

from __future__ import annotations

import asyncio
import contextlib
import socket

from pykvpool.errors import Closed, PoolError, ProtocolError, Unavailable, from_code
from pykvpool.fabric.addresses import ShmAddress
from pykvpool.fabric.exports import gone
from pykvpool.fabric.handshake import HANDSHAKE_S, Identity, introduce
from pykvpool.fabric.packet_socket import Packet, PacketSocket
from pykvpool.fabric.shm_map import ShmMap
from pykvpool.fabric.shm_wire import Goodbye, Mapped, MapRefused, MapRequest, Unmap, Unmapped, decode, encode
from pykvpool.model.ids import Generation
from pykvpool.runtime import Runtime, drain


class ShmSession:
    """Open while `failure` is None. One map per generation."""

    def __init__(self, packets: PacketSocket, identity: Identity) -> None:
        self._packets = packets
        self._identity = identity
        self._maps: dict[Generation, ShmMap] = {}
        #: Maps asked for and not answered yet.
        self._asked: dict[Generation, asyncio.Future[ShmMap]] = {}
        #: Maps on their way out; the same generation is not asked for again before the owner was told.
        self._retiring: dict[Generation, asyncio.Task[None]] = {}
        self._reader = asyncio.ensure_future(self._read())

    @classmethod
    async def connect(cls, endpoint: str, identity: Identity, runtime: Runtime) -> ShmSession:
        """Raises `Unavailable`, `Refused` or `ProtocolError`."""
        path = ShmAddress.parse(endpoint).path
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, path)
        except OSError as error:
            sock.close()
            raise Unavailable(f"{endpoint}: {error.strerror}") from error
        except BaseException:
            sock.close()
            raise
        packets = PacketSocket(sock, asyncio.get_running_loop())
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                await introduce(packets, identity.handshake(runtime))
        except BaseException as error:
            packets.close(Unavailable("the handshake did not end"))
            if isinstance(error, TimeoutError):
                raise Unavailable(f"{endpoint}: no handshake within {HANDSHAKE_S:g} s") from error
            if isinstance(error, PoolError):
                raise type(error)(f"{endpoint}: {error.message}") from error
            raise
        return cls(packets, identity)

    @property
    def failure(self) -> PoolError | None:
        return self._packets.failure

    async def map(self, generation: Generation) -> ShmMap:
        """The map of a generation, asked for if need be. Raises `SegmentGone`, `Refused`, `Unavailable`."""
        while (retiring := self._retiring.get(generation)) is not None:
            await asyncio.wait([retiring])
        known = self._maps.get(generation)
        if known is not None:
            return known
        asked = self._asked.get(generation)
        if asked is None:
            self._packets.send(encode(MapRequest(generation)))
            asked = self._asked[generation] = asyncio.get_running_loop().create_future()
        # Shared with other callers: one that is cancelled must not take the answer from them.
        return await asyncio.shield(asked)

    async def close(self) -> None:
        """End copies, drop all maps, then tell the owner that this is the end. Harmless twice."""
        self._reader.cancel()
        await drain(self._reader)
        await self._end_all(Closed("the shm fabric client is closed"))
        if self.failure is None:
            with contextlib.suppress(Unavailable):  # it hung up first: our process's end is its evidence then
                self._packets.send(encode(Goodbye()))
            self._packets.close(Closed("the shm fabric client is closed"))

    async def _read(self) -> None:
        """Follow the owner's messages until the connection ends, then give everything up."""
        try:
            while True:
                packet = await self._packets.receive()
                self._on_packet(packet)
        except PoolError as error:
            self._packets.close(error)
            # The owner is gone, or this is not it: its memory may mean anything from now on.
            await self._end_all(Unavailable(f"the owner's shm connection ended: {error.message}"))

    def _on_packet(self, packet: Packet) -> None:
        message = decode(packet.data)
        if isinstance(message, Mapped):
            self._on_mapped(message, packet)
            return
        packet.close_descriptors()
        if isinstance(message, MapRefused):
            asked = self._asked.pop(message.generation, None)
            if asked is not None and not asked.done():
                asked.set_exception(from_code(message.code, message.message))
                asked.exception()  # every caller may have given up by now
        elif isinstance(message, Unmap):
            self._on_unmap(message)
        else:
            raise ProtocolError(f"an unexpected {type(message).__name__} from the owner")

    def _on_mapped(self, message: Mapped, packet: Packet) -> None:
        asked = self._asked.pop(message.generation, None)
        if asked is None:
            packet.close_descriptors()
            raise ProtocolError("a map came that was not asked for")
        try:
            mapped = ShmMap.of(message, packet, self._identity.peer)
        except PoolError as error:
            asked.set_exception(error)
            asked.exception()
            raise
        self._maps[message.generation] = mapped
        asked.set_result(mapped)

    def _on_unmap(self, message: Unmap) -> None:
        mapped = self._maps.pop(message.generation, None)
        if mapped is not None:
            reason = gone(message.generation) if message.gone else Unavailable("the owner fenced this session")
            task = asyncio.ensure_future(self._retire(mapped, reason))
            self._retiring[message.generation] = task

    async def _retire(self, mapped: ShmMap, reason: PoolError) -> None:
        try:
            await mapped.retire(reason)
            if self.failure is None:
                self._packets.send(encode(Unmapped(mapped.generation)))
        except Unavailable:
            pass  # the owner hung up: `_read` sees it as well
        finally:
            del self._retiring[mapped.generation]

    async def _end_all(self, reason: PoolError) -> None:
        for asked in self._asked.values():
            if not asked.done():
                asked.set_exception(reason)
                asked.exception()
        self._asked.clear()
        maps, self._maps = list(self._maps.values()), {}
        for mapped in maps:
            await mapped.retire(reason)
        for task in list(self._retiring.values()):
            await drain(task)
