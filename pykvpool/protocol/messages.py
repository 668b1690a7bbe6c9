"""The envelopes: everything that travels as one frame on a control connection.

Each is a msgpack array whose first element is its tag. The first messages make the handshake (`handshake` says who
sends which when), then requests, replies and instructions pass until one end says farewell or just closes. What is in
an envelope (commands, replies, instructions) is `pykvpool.model`'s; how envelopes become bytes is `codec`'s.

Two shapes never change, whatever the protocol version, so that versions that do not understand each other can still
say so: a hello begins ``["hello", "pykvpool", version, ...]``, a farewell is ``["farewell", code, message, parting]``.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from pykvpool.model.base import Tagged
from pykvpool.model.commands import Command
from pykvpool.model.ids import RequestId, SessionId
from pykvpool.model.instructions import Instruction
from pykvpool.model.replies import Reply, Welcome

#: What every hello begins with, so that another program's bytes are told apart.
MAGIC = "pykvpool"
#: Raised when an old peer could misunderstand a new one. Peers talk only to their own version.
PROTOCOL_VERSION = 1
#: Longest cluster, name or role, in characters.
MAX_NAME_CHARS = 256
#: Fresh random bytes from each end; 128 bits never repeat in practice.
NONCE_BYTES = 16
#: An HMAC-SHA256; empty where no token is configured.
PROOF_BYTES = 32
#: The most ids in one `RequestFrame.received`: more than a client may have in flight.
MAX_RECEIVED_IDS = 4_096

#: Largest id or incarnation: every language has a signed 64-bit integer.
MAX_NUMBER = (1 << 63) - 1
#: In `HelloFrame.resume`: a new session, please. The master counts sessions from 1.
NO_SESSION = SessionId(0)

Name = Annotated[str, Meta(max_length=MAX_NAME_CHARS)]
Nonce = Annotated[bytes, Meta(min_length=NONCE_BYTES, max_length=64)]
Proof = Annotated[bytes, Meta(max_length=PROOF_BYTES)]
#: Of a request that a client numbers: from 1, in a signed 64-bit integer.
WireRequestId = Annotated[RequestId, Meta(ge=1, le=MAX_NUMBER)]


class Parting(StrEnum):
    """Why a connection or session is over, for programs (the message beside it is for people)."""

    NONE = ""
    #: The master stops; the session may live on and be resumed when it is back.
    CLOSING = "closing"
    #: A newer connection of the same session took over; this one is of no more use.
    REPLACED = "replaced"
    #: The session lapsed: too long without a sign of life.
    EXPIRED = "expired"
    #: Another process took the session's name.
    SUPERSEDED = "superseded"
    #: The master restarted and no longer knows the session.
    RESTARTED = "restarted"


class _Envelope(Tagged, frozen=True, tag=True):
    """Base of everything that is a frame."""


class HelloFrame(_Envelope, frozen=True, tag="hello"):
    """Peer to master, first of all: who I am."""

    magic: Annotated[str, Meta(max_length=16)]
    version: int
    #: The cluster that the peer means to join; empty: whichever this is.
    cluster: Name
    name: Name
    role: Name
    incarnation: Annotated[int, Meta(ge=0, le=MAX_NUMBER)]
    nonce: Nonce
    #: Not 0: come back to exactly this session of the master's life `epoch`, or be refused; never open a new one.
    resume: SessionId = NO_SESSION
    epoch: int = 0


class ChallengeFrame(_Envelope, frozen=True, tag="challenge"):
    """Master to peer: who I am, and whether you must prove that you know the token."""

    version: int
    cluster: Name
    nonce: Nonce
    token_required: bool


class ProofFrame(_Envelope, frozen=True, tag="proof"):
    """Peer to master: the proof (empty where there is no token)."""

    proof: Proof


class AcceptedFrame(_Envelope, frozen=True, tag="accepted"):
    """Master to peer: the master's own proof, and the session."""

    proof: Proof
    welcome: Welcome


class RequestFrame(_Envelope, frozen=True, tag="request"):
    """A command. A repeat after a cut connection has the same id: it gets the answer and is not carried out twice."""

    request_id: WireRequestId
    #: All replies up to this request have arrived: the master may forget them.
    acknowledged: Annotated[RequestId, Meta(ge=0, le=MAX_NUMBER)]
    command: Command
    #: Replies above `acknowledged` that have arrived too, each told once (one slow request must not pin all the rest).
    received: Annotated[tuple[RequestId, ...], Meta(max_length=MAX_RECEIVED_IDS)] = ()


class ReplyFrame(_Envelope, frozen=True, tag="reply"):
    """The answer to one request. Answers come in any order."""

    request_id: RequestId
    reply: Reply


class InstructionFrame(_Envelope, frozen=True, tag="instruction"):
    """The master asks the session to do something; the answer is a command."""

    instruction: Instruction


class Farewell(_Envelope, frozen=True, tag="farewell"):
    """The last frame of a connection, from either end: an error's code and what it says."""

    code: int
    message: str
    parting: Parting = Parting.NONE


HandshakeFrame = HelloFrame | ChallengeFrame | ProofFrame | AcceptedFrame | Farewell
#: After the handshake.
ToMaster = RequestFrame | Farewell
FromMaster = ReplyFrame | InstructionFrame | Farewell
