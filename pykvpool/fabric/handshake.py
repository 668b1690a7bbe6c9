"""How a data connection begins: who is there, is it the same cluster, do both know the token. Without I/O.

    client                                   server
      HELLO      nonce, cluster, name, ...  ->
                                            <-  CHALLENGE  nonce, proof     (only where a token is configured)
      PROOF                                 ->
                                            <-  WELCOME  or  REFUSED(code, message)

A proof is HMAC-SHA256 under the token over the prover's side, the whole HELLO and the server's nonce, so that it binds
every announced field, both nonces, and one direction. The server proves first; a client without the right token learns
nothing from that but a digest. The same frames open tcp and shm connections.

A frame is magic, version, body length (little-endian), then a msgpack body. The header is the same in every version,
so that two versions can tell each other apart. Nonces are passed in: there is no randomness here.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from pykvpool.errors import PoolError, ProtocolError, Refused, from_code
from pykvpool.fabric.base import Peer
from pykvpool.model.base import Tagged
from pykvpool.runtime import Runtime

#: Major version of the data plane, tcp and shm alike. Both ends must speak the same one.
DATA_VERSION = 1
MAGIC = b"KVPD"
#: magic, version, body length.
HEADER = struct.Struct("<4sHH")
#: Largest body: four names of the longest kind; a stranger cannot make us hold more.
MAX_BODY_BYTES = 2048
#: Longest peer or cluster name, in bytes of UTF-8.
MAX_NAME_BYTES = 256
NONCE_BYTES = 32
#: A handshake that takes longer is given up: it is two round trips.
HANDSHAKE_S = 5.0


class Hello(Tagged, frozen=True, tag="hello"):
    version: int
    nonce: bytes
    cluster: str
    name: str
    incarnation: int
    writable: bool
    has_token: bool


class Challenge(Tagged, frozen=True, tag="challenge"):
    nonce: bytes
    proof: bytes


class Proof(Tagged, frozen=True, tag="proof"):
    proof: bytes


class Welcome(Tagged, frozen=True, tag="welcome"):
    cluster: str


class Refusal(Tagged, frozen=True, tag="refused"):
    code: int
    message: str


Body = Hello | Challenge | Proof | Welcome | Refusal
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Body)


def encode(body: Body) -> bytes:
    data = _encoder.encode(body)
    return HEADER.pack(MAGIC, DATA_VERSION, len(data)) + data


def body_bytes(header: bytes) -> int:
    """Length of the body that follows. Raises `ProtocolError` (not ours, oversized) or `Refused` (other version)."""
    if len(header) != HEADER.size:
        raise ProtocolError("a truncated handshake message")
    magic, version, length = HEADER.unpack(header)
    if magic != MAGIC:
        raise ProtocolError("this is not a pykvpool data connection: the handshake does not begin with its magic")
    if version != DATA_VERSION:
        raise Refused(f"data plane version {version} was offered, version {DATA_VERSION} is spoken here")
    if not 0 < length <= MAX_BODY_BYTES:
        raise ProtocolError(f"a handshake message of {length} bytes: allowed are 1 to {MAX_BODY_BYTES}")
    return int(length)


def decode(message: bytes) -> Body:
    """A whole message. Raises as `body_bytes`, and `ProtocolError` for a body that is no message."""
    length = body_bytes(message[: HEADER.size])
    if len(message) != HEADER.size + length:
        raise ProtocolError(f"a handshake message says {length} bytes and has {len(message) - HEADER.size}")
    try:
        return _decoder.decode(message[HEADER.size :])
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"a malformed handshake message: {error}") from error


def _proof(token: bytes, side: bytes, hello: bytes, server_nonce: bytes) -> bytes:
    return hmac.digest(token, b"pykvpool data " + side + server_nonce + hello, hashlib.sha256)


class ServerHandshake:
    """The owner's end. `admit` may refuse a peer (banned); it is asked last, when the peer has proved itself."""

    def __init__(
        self, cluster: str, token: bytes | None, nonce: bytes, admit: Callable[[Peer], PoolError | None]
    ) -> None:
        self._cluster = cluster
        self._token = token
        self._nonce = nonce
        self._admit = admit
        #: The encoded HELLO that the proofs cover; None: not arrived.
        self._hello: bytes | None = None
        self._claimed: Peer | None = None
        #: Set when the handshake is over and the peer is welcome.
        self.peer: Peer | None = None

    def receive(self, message: bytes) -> bytes:
        """The answer to a message. Raises `Refused` or `ProtocolError`: tell the peer (`refusal`), then hang up."""
        body = decode(message)
        if self._hello is None and isinstance(body, Hello):
            return self._on_hello(body, message)
        if self._hello is not None and self._token is not None and isinstance(body, Proof):
            if not hmac.compare_digest(body.proof, _proof(self._token, b"client", self._hello, self._nonce)):
                raise Refused("the token does not match")
            return self._welcome()
        if isinstance(body, Refusal):
            raise from_code(body.code, f"the peer refused: {body.message}")
        raise ProtocolError(f"an unexpected {type(body).__name__} in the handshake")

    def _on_hello(self, hello: Hello, message: bytes) -> bytes:
        if len(hello.nonce) != NONCE_BYTES:
            raise ProtocolError(f"a nonce of {len(hello.nonce)} bytes: {NONCE_BYTES} are due")
        if max(len(hello.name.encode()), len(hello.cluster.encode())) > MAX_NAME_BYTES or not hello.name:
            raise ProtocolError(f"a name must have 1 to {MAX_NAME_BYTES} bytes")
        if hello.cluster and hello.cluster != self._cluster:
            raise Refused(f"cluster {hello.cluster!r} is not cluster {self._cluster!r}")
        if hello.has_token and self._token is None:
            raise Refused("a token was given, but none is configured here")
        if not hello.has_token and self._token is not None:
            raise Refused("a token is asked for here, and none was given")
        self._hello = message
        self._claimed = Peer(hello.name, hello.incarnation, hello.writable)
        if self._token is None:
            return self._welcome()
        return encode(Challenge(self._nonce, _proof(self._token, b"server", message, self._nonce)))

    def _welcome(self) -> bytes:
        if self._claimed is None:
            raise ProtocolError("a proof before the hello")
        refusal = self._admit(self._claimed)
        if refusal is not None:
            raise refusal
        self.peer = self._claimed
        return encode(Welcome(self._cluster))


class ClientHandshake:
    """The peer's end. An empty `cluster` accepts any."""

    def __init__(self, peer: Peer, cluster: str, token: bytes | None, nonce: bytes) -> None:
        self._token = token
        self._challenged = False
        self.done = False
        self.hello = encode(
            Hello(DATA_VERSION, nonce, cluster, peer.name, peer.incarnation, peer.writable, token is not None)
        )

    def receive(self, message: bytes) -> bytes | None:
        """What to send next, None: nothing (see `done`). Raises `Refused` or `ProtocolError`."""
        body = decode(message)
        if isinstance(body, Refusal):
            raise from_code(body.code, f"refused: {body.message}")
        if isinstance(body, Challenge) and self._token is not None and not self._challenged:
            if not hmac.compare_digest(body.proof, _proof(self._token, b"server", self.hello, body.nonce)):
                raise Refused("the token does not match: the node could not prove that it knows ours")
            self._challenged = True
            return encode(Proof(_proof(self._token, b"client", self.hello, body.nonce)))
        if isinstance(body, Welcome) and self._challenged == (self._token is not None):
            self.done = True
            return None
        raise ProtocolError(f"an unexpected {type(body).__name__} in the handshake")


@dataclass(frozen=True, slots=True)
class Identity:
    """What a client announces and proves on every data connection."""

    peer: Peer
    cluster: str = ""
    token: bytes | None = field(default=None, repr=False)

    def handshake(self, runtime: Runtime) -> ClientHandshake:
        return ClientHandshake(self.peer, self.cluster, self.token, new_nonce(runtime))


def new_nonce(runtime: Runtime) -> bytes:
    return runtime.random.getrandbits(8 * NONCE_BYTES).to_bytes(NONCE_BYTES, "little")


def refusal(error: PoolError) -> bytes:
    """What to tell the peer before hanging up."""
    text = error.message.encode()[: MAX_BODY_BYTES // 2].decode(errors="ignore")
    return encode(Refusal(error.code, text))


class Channel(Protocol):
    """A connection that carries whole handshake messages."""

    async def send_message(self, message: bytes) -> None: ...

    async def receive_message(self, header_bytes: int, body_bytes: Callable[[bytes], int]) -> bytes:
        """One message; `body_bytes(header)` is the length of its body and refuses bad headers."""
        ...


async def welcome_peer(channel: Channel, handshake: ServerHandshake) -> Peer:
    """Carry out the owner's end. Raises what the handshake or the channel raises, after telling the peer the reason."""
    try:
        while handshake.peer is None:
            message = await channel.receive_message(HEADER.size, body_bytes)
            await channel.send_message(handshake.receive(message))
    except PoolError as error:
        await _tell(channel, error)
        raise
    return handshake.peer


async def introduce(channel: Channel, handshake: ClientHandshake) -> None:
    """Carry out the peer's end. Raises `Refused` with the reason, `ProtocolError`, or what the channel raises."""
    await channel.send_message(handshake.hello)
    while not handshake.done:
        message = await channel.receive_message(HEADER.size, body_bytes)
        try:
            answer = handshake.receive(message)
        except PoolError as error:
            await _tell(channel, error)
            raise
        if answer is not None:
            await channel.send_message(answer)


async def _tell(channel: Channel, error: PoolError) -> None:
    """Give the peer the reason, if it still listens."""
    with contextlib.suppress(PoolError):
        await channel.send_message(refusal(error))
