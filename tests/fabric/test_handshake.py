"""P12: who may open a data connection, and that both ends learn why not. The rules first, without any socket."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykvpool.errors import PoolError, ProtocolError, Refused
from pykvpool.fabric.base import Peer
from pykvpool.fabric.handshake import (
    DATA_VERSION,
    HEADER,
    MAGIC,
    MAX_BODY_BYTES,
    NONCE_BYTES,
    Challenge,
    ClientHandshake,
    Hello,
    Proof,
    ServerHandshake,
    Welcome,
    decode,
    encode,
    refusal,
)

PEER = Peer("engine-0", 17)
NONCE_A, NONCE_B = b"a" * NONCE_BYTES, b"b" * NONCE_BYTES


def shake(
    client_cluster: str = "",
    client_token: bytes | None = None,
    server_cluster: str = "prod",
    server_token: bytes | None = None,
    admit: PoolError | None = None,
    peer: Peer = PEER,
) -> Peer | None:
    """Run both ends against each other; who the owner then thinks is there. Raises what the client raises."""
    client = ClientHandshake(peer, client_cluster, client_token, NONCE_A)
    server = ServerHandshake(server_cluster, server_token, NONCE_B, lambda _peer: admit)
    message: bytes | None = client.hello
    while message is not None:
        try:
            answer = server.receive(message)
        except (Refused, ProtocolError) as error:
            answer = refusal(error)
        message = client.receive(answer)
    assert client.done
    return server.peer


@pytest.mark.parametrize("token", [None, b"open sesame"])
@pytest.mark.parametrize("cluster", ["", "prod"])
def test_ends_that_agree_know_each_other(cluster: str, token: bytes | None) -> None:
    assert shake(client_cluster=cluster, client_token=token, server_token=token) == PEER
    reader = Peer("reader", 3, writable=False)
    assert shake(peer=reader, client_token=token, server_token=token) == reader


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"client_cluster": "test"}, "cluster 'test' is not cluster 'prod'"),
        ({"client_token": b"a", "server_token": b"b"}, "token does not match"),
        ({"server_token": b"b"}, "a token is asked for here, and none was given"),
        ({"client_token": b"a"}, "a token was given, but none is configured here"),
        ({"admit": Refused("the session of 'engine-0' is over")}, "is over"),
    ],
)
def test_ends_that_disagree_both_learn_the_reason(settings: dict[str, object], reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        shake(**settings)  # type: ignore[arg-type]


def test_another_version_is_refused_by_number() -> None:
    message = bytearray(ClientHandshake(PEER, "", None, NONCE_A).hello)
    message[4:6] = (DATA_VERSION + 1).to_bytes(2, "little")
    with pytest.raises(Refused, match=f"version {DATA_VERSION + 1} was offered, version {DATA_VERSION} is spoken"):
        decode(bytes(message))


def test_a_proof_is_worth_nothing_in_another_connection_or_for_another_peer() -> None:
    token = b"open sesame"
    client = ClientHandshake(PEER, "", token, NONCE_A)
    server = ServerHandshake("prod", token, NONCE_B, lambda _peer: None)
    proof = client.receive(server.receive(client.hello))
    assert proof is not None
    for other_hello, other_nonce in (
        (client.hello, b"c" * NONCE_BYTES),
        (ClientHandshake(Peer("engine-1", 17), "", token, NONCE_A).hello, NONCE_B),
        (ClientHandshake(Peer("engine-0", 18), "", token, NONCE_A).hello, NONCE_B),
    ):
        other = ServerHandshake("prod", token, other_nonce, lambda _peer: None)
        other.receive(other_hello)
        with pytest.raises(Refused):
            other.receive(proof)
        assert other.peer is None


def test_an_owner_that_cannot_prove_the_token_learns_no_proof_of_ours() -> None:
    client = ClientHandshake(PEER, "", b"open sesame", NONCE_A)
    for fake in (encode(Challenge(NONCE_B, bytes(32))), encode(Welcome("prod"))):
        with pytest.raises((Refused, ProtocolError)):
            client.receive(fake)
    assert not client.done


def test_a_reflected_proof_is_no_proof() -> None:
    token = b"open sesame"
    server = ServerHandshake("prod", token, NONCE_B, lambda _peer: None)
    challenge = decode(server.receive(ClientHandshake(PEER, "", token, NONCE_A).hello))
    assert isinstance(challenge, Challenge)
    with pytest.raises(Refused):
        server.receive(encode(Proof(challenge.proof)))
    assert server.peer is None


@pytest.mark.parametrize(
    "body",
    [
        Hello(1, b"short", "", "name", 1, True, False),
        Hello(1, NONCE_A, "", "", 1, True, False),
        Hello(1, NONCE_A, "", "n" * 257, 1, True, False),
        Hello(1, NONCE_A, "c" * 257, "name", 1, True, False),
        Proof(bytes(32)),
        Welcome("prod"),
    ],
)
def test_a_message_out_of_place_or_range_is_refused(body: Hello | Proof | Welcome) -> None:
    server = ServerHandshake("prod", None, NONCE_B, lambda _peer: None)
    with pytest.raises(ProtocolError):
        server.receive(encode(body))
    assert server.peer is None


@given(st.binary(max_size=100), st.integers(0, 1 << 20))
def test_whatever_bytes_come_the_answer_is_an_error_of_ours(data: bytes, seed: int) -> None:
    hello = bytearray(ClientHandshake(PEER, "", None, NONCE_A).hello)
    at = seed % len(hello)
    framed = HEADER.pack(MAGIC, DATA_VERSION, len(data)) + data
    for message in (data, framed, bytes(hello[:at]), bytes(hello[:at]) + data + bytes(hello[at + len(data) :])):
        server = ServerHandshake("prod", None, NONCE_B, lambda _peer: None)
        try:
            server.receive(message)
        except (ProtocolError, Refused):
            assert server.peer is None


def test_a_body_over_the_limit_is_refused_before_it_is_read() -> None:
    with pytest.raises(ProtocolError, match=str(MAX_BODY_BYTES)):
        decode(HEADER.pack(MAGIC, DATA_VERSION, MAX_BODY_BYTES + 1))


def test_a_long_reason_is_clipped_to_what_a_message_holds() -> None:
    assert len(refusal(Refused("\N{SNOWMAN}" * 5000))) <= MAX_BODY_BYTES
