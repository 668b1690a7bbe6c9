"""The handshake: two small machines, each driven by one table (`transitions`), that turn strangers into a session.

    peer -> master   hello      version, cluster, name, role, incarnation, a nonce
    master -> peer   challenge  version, cluster, a nonce, whether the token must be proved
    peer -> master   proof      HMAC-SHA256 of the conversation so far under the token (empty without one)
    master -> peer   accepted   the master's own proof, and the session

Both proofs cover the exact bytes of hello and challenge, so every announced field and both nonces are vouched for; each
carries its sender's label, so that one cannot be played back as the other. The peer proves first: whoever merely
connects learns nothing from which to guess the token. The token itself never travels and never appears in an error.

Every refusal has a reason that both ends get: the refusing end raises it and has a farewell to send, the other end
raises what that farewell says. A peer that has a token refuses a master that has none: it asked for a proof that this
master cannot give.

No I/O and no randomness here: frames and nonces are passed in. The machines decide who somebody is; which session they
get is decided by the master's core, between `proved` and `accept`.
"""

from __future__ import annotations

import hashlib
import hmac

from pykvpool.errors import InvalidArgument, PoolError, ProtocolError, Refused, from_code
from pykvpool.model.replies import Welcome
from pykvpool.protocol.codec import decode_handshake, encode, peek_version
from pykvpool.protocol.frames import HEADER
from pykvpool.protocol.identity import Identity, cluster_mismatch, printable, token_key, version_mismatch
from pykvpool.protocol.messages import (
    MAGIC,
    NONCE_BYTES,
    PROTOCOL_VERSION,
    AcceptedFrame,
    ChallengeFrame,
    Farewell,
    HandshakeFrame,
    HelloFrame,
    Parting,
    ProofFrame,
)
from pykvpool.protocol.transitions import CLIENT_TABLE, SERVER_TABLE, Seen, Stage, Table

#: What each end's proof begins with.
CLIENT_LABEL = b"pykvpool 1 client"
MASTER_LABEL = b"pykvpool 1 master"


class _Handshake:
    """What both ends share: the stage, the conversation so far, refusing."""

    def __init__(self, table: Table, nonce: bytes, token: str | None) -> None:
        if len(nonce) < NONCE_BYTES:
            raise InvalidArgument(f"a nonce has at least {NONCE_BYTES} bytes")
        self.stage = Stage.START
        #: After a refusal of ours: the frame to send before the connection is closed.
        self.farewell: bytes | None = None
        self._table = table
        self._nonce = nonce
        self._key = token_key(token)
        #: The bodies of hello and challenge, exactly as they travelled: what the proofs are over.
        self._hello = b""
        self._challenge = b""

    def farewell_for(self, error: PoolError) -> bytes | None:
        """What to send after `error` ended the handshake; None where it was the other end that refused."""
        if self.stage is not Stage.REFUSED:
            self._refuse(error)  # it came from the connection, which this machine does not see
        return self.farewell

    def _move(self, seen: Seen) -> None:
        """Follow the table; what has no place there is refused."""
        following = self._table.get((self.stage, seen))
        if following is None:
            raise self._refuse(ProtocolError(f"a {seen.value} has no place here ({self.stage.value})"))
        self.stage = following

    def _refuse(self, error: PoolError, parting: Parting = Parting.NONE) -> PoolError:
        """End it; returns the error to raise."""
        self.stage = self._table.get((self.stage, Seen.MISFIT), Stage.REFUSED)
        self.farewell = encode(Farewell(error.code, error.message, parting))
        return error

    def _decode(self, frame: bytes) -> HandshakeFrame:
        try:
            return decode_handshake(frame)
        except ProtocolError as error:
            raise self._refuse(error) from None

    def _proof(self, label: bytes) -> bytes:
        """HMAC-SHA256(token, label + length and body of hello + length and body of challenge); empty without token."""
        if self._key is None:
            return b""
        mac = hmac.new(self._key, label, hashlib.sha256)
        for body in (self._hello, self._challenge):
            mac.update(HEADER.pack(len(body)))
            mac.update(body)
        return mac.digest()


class ClientHandshake(_Handshake):
    """The peer's end: send `start()`, then feed frames to `receive` and send what it returns, until `welcome` is set.

    `receive` raises `Refused`, `SessionExpired` (the session to resume is over; its field `parting` says why), another
    error that the master gave, or `ProtocolError` (no master of ours). Then send `farewell_for(error)`, if that
    is something, and close.
    """

    def __init__(self, identity: Identity, nonce: bytes, token: str | None = None) -> None:
        super().__init__(CLIENT_TABLE, nonce, token)
        identity.check()
        self._identity = identity
        #: The cluster that the master serves, once it has said so.
        self.cluster = ""
        #: Set when the handshake has succeeded.
        self.welcome: Welcome | None = None

    def start(self) -> bytes:
        """The hello to send."""
        who = self._identity
        self._move(Seen.OPENED)
        hello = HelloFrame(
            MAGIC,
            PROTOCOL_VERSION,
            who.cluster,
            who.name,
            who.role,
            who.incarnation,
            self._nonce,
            who.resume,
            who.epoch,
        )
        self._hello = encode(hello)
        return self._hello

    def receive(self, frame: bytes) -> bytes | None:
        """Takes the master's next frame; returns ours, where it is our turn."""
        match self._decode(frame):
            case ChallengeFrame() as challenge:
                self._move(Seen.CHALLENGE)
                self._check(challenge)
                self._challenge = frame
                return encode(ProofFrame(self._proof(CLIENT_LABEL)))
            case AcceptedFrame(proof=proof, welcome=welcome):
                self._move(Seen.ACCEPTED)
                if not hmac.compare_digest(proof, self._proof(MASTER_LABEL)):
                    raise self._refuse(Refused("the master did not prove that it knows the token"))
                self.welcome = welcome
                return None
            case Farewell(code=code, message=message, parting=parting):
                self._move(Seen.FAREWELL)
                raise from_code(code, message, {"parting": parting.value})
            case _:
                raise self._refuse(ProtocolError("the other end speaks like a client, not like a master"))

    def _check(self, challenge: ChallengeFrame) -> None:
        if challenge.version != PROTOCOL_VERSION:
            raise self._refuse(version_mismatch(challenge.version, PROTOCOL_VERSION))
        self.cluster = challenge.cluster
        if self._identity.cluster not in ("", challenge.cluster):
            raise self._refuse(cluster_mismatch(challenge.cluster, self._identity.cluster))
        if challenge.token_required and self._key is None:
            raise self._refuse(Refused("this master requires a token and none was given"))
        if self._key is not None and not challenge.token_required:
            raise self._refuse(
                Refused("a token was given but this master has none, so it cannot prove that it is yours")
            )


class MasterHandshake(_Handshake):
    """The master's end: feed frames to `receive` and send what it returns, until `proved`; then have the core decide,
    and send what `accept` or `refuse` returns.

    `receive` raises `Refused`, `ProtocolError` or what the peer gave. Then send `farewell_for(error)`, if that
    is something, and close.
    """

    def __init__(self, cluster: str, nonce: bytes, token: str | None = None) -> None:
        super().__init__(SERVER_TABLE, nonce, token)
        self._cluster = cluster
        #: Who the peer says it is; to be believed once `proved`.
        self.hello: HelloFrame | None = None

    @property
    def proved(self) -> bool:
        return self.stage is Stage.PROVED

    def receive(self, frame: bytes) -> bytes | None:
        """Takes the peer's next frame; returns ours, where it is our turn."""
        if self.stage is Stage.START:
            # Before strict decoding: another version's hello may have other fields, and is told why it is refused.
            version = peek_version(frame)
            if version not in (None, PROTOCOL_VERSION):
                raise self._refuse(version_mismatch(PROTOCOL_VERSION, version or 0))
        match self._decode(frame):
            case HelloFrame() as hello:
                self._move(Seen.HELLO)
                self._check(hello)
                self.hello, self._hello = hello, frame
                challenge = ChallengeFrame(PROTOCOL_VERSION, self._cluster, self._nonce, self._key is not None)
                self._challenge = encode(challenge)
                return self._challenge
            case ProofFrame(proof=proof):
                self._move(Seen.PROOF)
                if not hmac.compare_digest(proof, self._proof(CLIENT_LABEL)):
                    raise self._refuse(Refused("the token does not match"))
                return None
            case Farewell(code=code, message=message):
                self._move(Seen.FAREWELL)
                raise from_code(code, f"it gave up: {printable(message)}")
            case _:
                raise self._refuse(ProtocolError("the other end speaks like a master, not like a client"))

    def accept(self, welcome: Welcome) -> bytes:
        """The core opened or resumed the session: the frame that says so."""
        self._move(Seen.ADMITTED)
        return encode(AcceptedFrame(self._proof(MASTER_LABEL), welcome))

    def refuse(self, error: PoolError, parting: Parting = Parting.NONE) -> PoolError:
        """The core or the shell does not want this peer: sets `farewell`, returns `error`."""
        return self._refuse(error, parting)

    def _check(self, hello: HelloFrame) -> None:
        if hello.magic != MAGIC:
            raise self._refuse(ProtocolError("a hello of another protocol"))
        if hello.cluster not in ("", self._cluster):
            raise self._refuse(cluster_mismatch(self._cluster, hello.cluster))
        try:
            Identity(hello.name, hello.role, hello.incarnation, hello.cluster).check()
        except InvalidArgument as error:
            raise self._refuse(Refused(error.message)) from None
