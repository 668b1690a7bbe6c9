"""The owner's end of the tcp fabric: serves reads and writes of exported memory straight to and from the wire.

One task per connection: handshake, then requests one after the other (the client may send several ahead). A write's
payload is received into its place in the segment; that of a refused write is received too, into a scrap buffer, so that
the connection stays in step. All receiving happens on the loop, so ending a connection ends its effects: `fence` and
`withdraw` return at once and exactly.

It knows generations, bounds, put_ids and peers; nothing of objects or leases.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

from pykvpool.errors import Closed, InvalidArgument, Overloaded, PoolError, ProtocolError, Refused, Unavailable
from pykvpool.fabric.addresses import HostPort
from pykvpool.fabric.base import Exported, Peer
from pykvpool.fabric.cursor import Cursor
from pykvpool.fabric.exports import ExportTable, gone
from pykvpool.fabric.handshake import HANDSHAKE_S, ServerHandshake, new_nonce, welcome_peer
from pykvpool.fabric.tcp_listen import Acceptor, advertised, open_listener
from pykvpool.fabric.tcp_parting import part, scrap
from pykvpool.fabric.tcp_socket import HandshakeStream, StreamSocket, tune
from pykvpool.fabric.tcp_wire import (
    OPERATION,
    REQUEST_HEADER,
    Kind,
    RequestHeader,
    WireOperation,
    decode_operations,
    decode_request_header,
    encode_response,
)
from pykvpool.model.ids import Generation
from pykvpool.runtime import Runtime, drain

_log = logging.getLogger("pykvpool.fabric.tcp")

SCHEME = "tcp"
#: Data connections at a time: engines of a large cluster, several each. More are refused with a reason.
MAX_CONNECTIONS = 4096
#: Connections over that number that may be in their handshake, to be told the reason; beyond, they are just closed.
MAX_STRANGERS = 256


class _Session:
    """One data connection."""

    __slots__ = ("ended", "generation", "peer", "stream", "task", "where")

    def __init__(self, stream: StreamSocket, where: str) -> None:
        self.stream = stream
        #: The other end's address, for messages.
        self.where = where
        #: None until the handshake is over.
        self.peer: Peer | None = None
        #: What the present request touches; None: nothing.
        self.generation: Generation | None = None
        self.task: asyncio.Task[None] | None = None
        #: We ended it: fence, withdraw or close.
        self.ended = False


class TcpServer:
    """Offers mounts over TCP.

    Args:
        listen: ``host:port``; port 0 takes any free one.
        advertise: ``host`` or ``host:port`` for descriptors, where it differs from `listen` (needed for a wildcard).
        token: the shared token that peers must prove to know; None: none.
    """

    scheme = SCHEME

    def __init__(
        self,
        runtime: Runtime,
        listen: str = "127.0.0.1:0",
        *,
        advertise: str = "",
        cluster: str = "",
        token: str | None = None,
    ) -> None:
        self._runtime = runtime
        self._listen = HostPort.parse(listen)
        self._advertise = advertise
        self.cluster = cluster
        self._token = token.encode() if token else None
        self._table = ExportTable()
        #: In order of arrival; values mean nothing.
        self._sessions: dict[_Session, None] = {}
        self._acceptor: Acceptor | None = None
        self._address: HostPort | None = None

    @property
    def endpoint(self) -> str:
        """The address that descriptors carry. Raises `Closed` before `start`."""
        if self._address is None:
            raise Closed("the tcp fabric server was not started")
        return self._address.endpoint

    @property
    def connections(self) -> int:
        """How many data connections are open now, those in their handshake included."""
        return len(self._sessions)

    async def start(self) -> None:
        """Listen. Raises `ConfigError`."""
        loop = asyncio.get_running_loop()
        sock = await open_listener(self._listen, loop)
        try:
            self._address = advertised(self._listen, self._advertise, sock.getsockname()[1])
        except PoolError:
            sock.close()
            raise
        self._acceptor = Acceptor(sock, loop, self._on_connection)

    def export(self, memory: Exported) -> str:
        endpoint = self.endpoint
        self._table.add(memory)
        return endpoint

    async def withdraw(self, generation: Generation) -> None:
        self._table.remove(generation)
        self._end(gone(generation), lambda session: session.generation == generation)

    async def fence(self, name: str, incarnation: int, generation: Generation, ban: bool) -> None:
        if ban:
            self._table.ban(name, incarnation)
        self._end(
            Refused(f"the session of {name!r} was fenced"),
            lambda session: (
                session.peer is not None and (session.peer.name, session.peer.incarnation) == (name, incarnation)
            ),
        )

    async def close(self) -> None:
        if self._acceptor is not None:
            self._acceptor.close()
            self._acceptor = None
        tasks = [session.task for session in self._sessions]
        self._end(Closed("the tcp fabric server is closed"), lambda _session: True)
        for task in tasks:
            if task is not None:
                await drain(task)
        for generation in self._table.generations():
            self._table.remove(generation)

    def _end(self, reason: PoolError, which: Callable[[_Session], bool]) -> None:
        """Destroy connections. When this returns nothing of theirs can land."""
        for session in self._sessions:
            if which(session):
                session.ended = True
                session.stream.abort(reason)

    def _on_connection(self, sock: socket.socket) -> None:
        where = _peer_name(sock)
        if len(self._sessions) >= MAX_CONNECTIONS + MAX_STRANGERS:
            _log.warning("data connection from %s refused: too many are open", where)
            sock.close()
            return
        tune(sock)
        session = _Session(StreamSocket(sock, asyncio.get_running_loop()), where)
        self._sessions[session] = None
        session.task = asyncio.ensure_future(self._run(session))

    async def _run(self, session: _Session) -> None:
        """The life of one connection; whatever goes wrong costs this connection only."""
        try:
            await self._handshake(session)
            while True:
                await self._serve_one(session)
                # Requests that are all here already never make this task wait: let the others have their turn.
                await asyncio.sleep(0)
        except Unavailable:
            session.stream.abort(Unavailable("the connection is closed"))
        except PoolError as error:
            # What we ended ourselves (fence, withdraw, close) is no news; what the peer did wrong is.
            level = logging.DEBUG if session.ended else logging.WARNING
            _log.log(level, "data connection from %s ended: %s", session.where, error)
            await part(session.stream)
        except Exception as error:  # noqa: BLE001  # a bug must not take other connections with it
            _log.exception("data connection from %s failed", session.where)
            session.stream.abort(Unavailable(f"the owner failed: {type(error).__name__}"))
        finally:
            session.stream.abort(Unavailable("the connection is closed"))
            del self._sessions[session]

    async def _handshake(self, session: _Session) -> None:
        handshake = ServerHandshake(self.cluster, self._token, new_nonce(self._runtime), self._admit)
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                session.peer = await welcome_peer(HandshakeStream(session.stream), handshake)
        except TimeoutError:
            raise ProtocolError(f"no handshake within {HANDSHAKE_S:g} s") from None

    def _admit(self, peer: Peer) -> PoolError | None:
        if self._table.is_banned(peer):
            return Refused(f"the session of {peer.name!r} is over")
        if len(self._sessions) > MAX_CONNECTIONS:
            return Overloaded(f"{MAX_CONNECTIONS} data connections are open")
        return None

    async def _serve_one(self, session: _Session) -> None:
        """Receive one request and answer it."""
        stream = session.stream
        header_data = await stream.receive_exactly(REQUEST_HEADER.size)
        try:
            header = decode_request_header(header_data)
            operations = decode_operations(await stream.receive_exactly(header.operations * OPERATION.size))
        except ProtocolError as error:
            await stream.send_bytes(encode_response(Kind.FAREWELL, 0, [error]))
            raise
        session.generation = header.generation
        if header.kind is Kind.WRITE:
            await self._serve_write(session, header, operations)
        else:
            await self._serve_read(session, header, operations)
        session.generation = None

    async def _serve_read(self, session: _Session, header: RequestHeader, operations: list[WireOperation]) -> None:
        errors: list[PoolError | None] = []
        found: list[memoryview] = []
        for entry in operations:
            try:
                export = self._table.find(header.generation)
            except PoolError as error:
                errors.append(error)
                continue
            refusal = export.refuse_range(entry.offset, entry.length)
            errors.append(refusal)
            if refusal is None:
                found.append(export.memory.view[entry.offset : entry.offset + entry.length])
        answer = Cursor()
        answer.add([memoryview(encode_response(Kind.READ, header.request_id, errors))])
        answer.add(found)
        await session.stream.send(answer)

    async def _serve_write(self, session: _Session, header: RequestHeader, operations: list[WireOperation]) -> None:
        errors: list[PoolError | None] = []
        payload = Cursor()
        for entry in operations:
            place = self._place(session, header.generation, entry)
            if isinstance(place, PoolError):
                errors.append(place)
                payload.add(scrap(entry.length))
            else:
                errors.append(None)
                payload.add([place])
        await session.stream.receive(payload)
        await session.stream.send_bytes(encode_response(Kind.WRITE, header.request_id, errors))

    def _place(self, session: _Session, generation: Generation, entry: WireOperation) -> memoryview | PoolError:
        """Where a write's bytes go, or why nowhere."""
        if session.peer is None:
            return InvalidArgument("a write before the handshake")
        try:
            export = self._table.find(generation)
        except PoolError as error:
            return error
        refusal = export.refuse_write(session.peer, entry.offset, entry.length, entry.put_id)
        return refusal or export.memory.view[entry.offset : entry.offset + entry.length]


def _peer_name(sock: socket.socket) -> str:
    try:
        address = sock.getpeername()
    except OSError:
        return "a peer that has gone"
    return str(HostPort(address[0], address[1]))
