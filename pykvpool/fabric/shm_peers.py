"""The owner's view of a shm peer: which process it is, what it may still have mapped, and the evidence that it has not.

A map ends for one of three reasons, all evidence: the peer said `Unmapped` for it, it said `Goodbye`, or its process is
gone. A hung-up socket is none of them: the process may live on with its map.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Callable, Sequence

from pykvpool.errors import NotSupported, PoolError, Refused
from pykvpool.fabric.base import Peer
from pykvpool.fabric.packet_socket import PacketSocket
from pykvpool.fabric.shm_wire import Mapped, Message, encode
from pykvpool.model.ids import Generation

_CREDENTIALS = struct.Struct("iII")
#: Linux 6.5: a pidfd of exactly the process that connected. Python's socket module does not name it yet.
_SO_PEERPIDFD = 77


class PeerProcess:
    """The process at the other end of a UNIX socket, held by a pidfd, which cannot come to mean another process."""

    def __init__(self, pid: int, pidfd: int) -> None:
        self.pid = pid
        self._pidfd = pidfd
        self._loop: asyncio.AbstractEventLoop | None = None

    @classmethod
    def of(cls, sock: socket.socket) -> PeerProcess:
        """Raises `Refused` (another user), `NotSupported` (a process that cannot be watched from here)."""
        data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, uid, _ = _CREDENTIALS.unpack(data)
        if uid != os.getuid():
            raise Refused(f"shm is for processes of user {os.getuid()}, this one is of user {uid}")
        if pid == 0:
            raise NotSupported("shm needs to see the peer's process, which is in another pid namespace")
        try:
            with contextlib.suppress(OSError):
                return cls(pid, sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD))
            # If the process has died since and its number is taken, we wait for a stranger to end: late, never early.
            return cls(pid, os.pidfd_open(pid))
        except OSError as error:
            raise NotSupported(f"shm needs a pidfd of the peer's process: {error.strerror}") from error

    def watch(self, on_exit: Callable[[], None]) -> None:
        """Call back once when the process is gone."""
        self._loop = asyncio.get_running_loop()

        def gone() -> None:
            self.close()
            on_exit()

        self._loop.add_reader(self._pidfd, gone)

    def close(self) -> None:
        """Stop watching. Harmless twice."""
        if self._pidfd < 0:
            return
        if self._loop is not None:
            self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1


class ShmPeer:
    """One connection of one peer, which outlives its socket while its process may hold a map."""

    def __init__(
        self, peer: Peer, packets: PacketSocket, process: PeerProcess, on_gone: Callable[[ShmPeer], object]
    ) -> None:
        self.peer = peer
        self._packets = packets
        self._process = process
        #: Generations that it may have mapped, with who waits for the end of that.
        self._maps: dict[Generation, list[asyncio.Future[None]]] = {}
        #: Called once when it can hold no map any more and will ask for none.
        self._on_gone = on_gone
        process.watch(self._on_exit)

    def is_called(self, name: str, incarnation: int) -> bool:
        return self.peer.name == name and self.peer.incarnation == incarnation

    def maps(self, generation: Generation) -> bool:
        return generation in self._maps

    def tell(self, message: Message) -> None:
        """Send, if it still listens: one that does not is waited for by its process."""
        with contextlib.suppress(PoolError):
            self._packets.send(encode(message))

    def tell_mapped(self, message: Mapped, descriptors: Sequence[int]) -> None:
        """Hand the descriptors over; from now on the peer counts as having the map."""
        self._maps.setdefault(message.generation, [])
        self._packets.send(encode(message), descriptors)

    def release(self, generation: Generation) -> None:
        """Evidence that nothing of this peer can land in `generation`."""
        for future in self._maps.pop(generation, []):
            if not future.done():
                future.set_result(None)

    def release_all(self) -> None:
        """The same for everything: it said goodbye, or its process is gone."""
        for generation in list(self._maps):
            self.release(generation)
        self._process.close()
        self._on_gone(self)

    def hung_up(self) -> None:
        """Its socket is closed. Without maps that is the end of it; with maps only its process's end is."""
        if not self._maps:
            self.release_all()

    async def released(self, generation: Generation) -> None:
        """Wait for that evidence."""
        waiting = self._maps.get(generation)
        if waiting is None:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append(future)
        await future

    def close(self, reason: PoolError) -> None:
        """The server ends: hang up and stop watching."""
        self._packets.close(reason)
        self._process.close()
        for waiting in self._maps.values():
            for future in waiting:
                if not future.done():
                    future.set_exception(reason)

    def _on_exit(self) -> None:
        self._packets.close(Refused("the peer's process is gone"))
        self.release_all()
