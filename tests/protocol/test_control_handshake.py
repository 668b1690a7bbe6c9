"""Who may come in: version, cluster, name, token. Whoever is refused learns why, and so does the other end."""

from __future__ import annotations

from dataclasses import replace

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pykvpool.errors import InvalidArgument, Overloaded, PoolError, ProtocolError, Refused, SessionExpired
from pykvpool.model.ids import SessionId
from pykvpool.model.replies import Welcome
from pykvpool.protocol.codec import decode_handshake, encode
from pykvpool.protocol.handshake import ClientHandshake, MasterHandshake
from pykvpool.protocol.identity import Identity
from pykvpool.protocol.messages import AcceptedFrame, ChallengeFrame, Farewell, HelloFrame, Parting, ProofFrame
from pykvpool.protocol.transitions import CLIENT_TABLE, SERVER_TABLE, Stage, mermaid

ME = Identity("engine-0", "client", 42)
WELCOME = Welcome(SessionId(5), 10_000, 10_000, 99, False)
CLIENT_NONCE, MASTER_NONCE = b"c" * 16, b"m" * 16
TOKEN = "correct horse battery staple"


class Meeting:
    """A client and a master that shake hands; what each of them ended with."""

    def __init__(
        self,
        identity: Identity = ME,
        token: str | None = None,
        master_token: str | None = None,
        cluster: str = "",
        on_the_way: object = None,
    ) -> None:
        self.client = ClientHandshake(identity, CLIENT_NONCE, token)
        self.master = MasterHandshake(cluster, MASTER_NONCE, master_token)
        self.client_error: PoolError | None = None
        self.master_error: PoolError | None = None
        self._on_the_way = on_the_way or (lambda frame: frame)
        self._run()

    def _run(self) -> None:
        to_master: bytes | None = self.client.start()
        while to_master is not None:
            to_client = self._at_master(self._on_the_way(to_master))
            to_master = None if to_client is None else self._at_client(self._on_the_way(to_client))

    def _at_master(self, frame: bytes) -> bytes | None:
        if self.master_error is not None or self.master.stage is Stage.OPEN:
            return None  # it has closed its end, or the shell has taken over
        try:
            answer = self.master.receive(frame)
        except PoolError as error:
            self.master_error = error
            return self.master.farewell
        return self.master.accept(WELCOME) if self.master.proved else answer

    def _at_client(self, frame: bytes) -> bytes | None:
        if self.client_error is not None:
            return None
        try:
            return self.client.receive(frame)
        except PoolError as error:
            self.client_error = error
            return self.client.farewell

    @property
    def open(self) -> bool:
        return self.client.stage is Stage.OPEN and self.master.stage is Stage.OPEN

    def refused_at_both_ends_with(self, words: str) -> bool:
        both = (self.client_error, self.master_error)
        return all(isinstance(error, Refused) and words in error.message for error in both) and (
            self.client.stage is self.master.stage is Stage.REFUSED
        )


@pytest.mark.parametrize("token", [None, TOKEN])
@pytest.mark.parametrize(("asked", "served"), [("", ""), ("", "blue"), ("blue", "blue")])
def test_peers_that_fit_get_a_session(token: str | None, asked: str, served: str) -> None:
    meeting = Meeting(replace(ME, cluster=asked), token, token, served)
    assert meeting.open
    assert meeting.client.welcome == WELCOME
    assert meeting.client.cluster == served
    hello = meeting.master.hello
    assert hello is not None
    assert (hello.name, hello.role, hello.incarnation) == ("engine-0", "client", 42)


@pytest.mark.parametrize(("asked", "served"), [("blue", "red"), ("blue", ""), ("Blue", "blue")])
def test_another_cluster_is_refused(asked: str, served: str) -> None:
    meeting = Meeting(replace(ME, cluster=asked), cluster=served)
    assert meeting.refused_at_both_ends_with(f"cluster {asked!r} is not cluster {served!r}")


def test_another_token_is_refused() -> None:
    assert Meeting(token="wrong", master_token=TOKEN).refused_at_both_ends_with("the token does not match")


def test_a_peer_without_the_token_is_refused() -> None:
    meeting = Meeting(token=None, master_token=TOKEN)
    assert meeting.refused_at_both_ends_with("requires a token and none was given")


def test_a_peer_with_a_token_refuses_a_master_without_one() -> None:
    meeting = Meeting(token=TOKEN, master_token=None)
    assert meeting.refused_at_both_ends_with("this master has none")


def test_a_peer_of_another_version_is_told_both_versions_whatever_its_hello_holds() -> None:
    def aged(frame: bytes) -> bytes:
        message = msgpack.unpackb(frame)
        return msgpack.packb(["hello", "pykvpool", 2, {"new": "fields"}]) if message[0] == "hello" else frame

    assert Meeting(on_the_way=aged).refused_at_both_ends_with("this master speaks version 1, you speak 2")


def test_a_master_of_another_version_is_refused_by_the_peer() -> None:
    def aged(frame: bytes) -> bytes:
        message = msgpack.unpackb(frame)
        return msgpack.packb(["challenge", 3, *message[2:]]) if message[0] == "challenge" else frame

    assert Meeting(on_the_way=aged).refused_at_both_ends_with("this master speaks version 3, you speak 1")


@pytest.mark.parametrize("changed", ["name", "role", "incarnation", "cluster", "resume"])
def test_an_announced_field_that_is_changed_on_the_way_spoils_the_proof(changed: str) -> None:
    other = {"name": "other", "role": "node", "incarnation": 43, "cluster": "", "resume": 9}

    def forged(frame: bytes) -> bytes:
        message = decode_handshake(frame)
        if not isinstance(message, HelloFrame):
            return frame
        fields = {name: getattr(message, name) for name in HelloFrame.__struct_fields__} | {changed: other[changed]}
        return encode(HelloFrame(**fields))

    meeting = Meeting(replace(ME, cluster="blue"), TOKEN, TOKEN, "blue", on_the_way=forged)
    assert meeting.refused_at_both_ends_with("the token does not match")


def test_a_master_that_does_not_know_the_token_cannot_pretend() -> None:
    def impostor(frame: bytes) -> bytes:
        message = decode_handshake(frame)
        return encode(AcceptedFrame(b"\x00" * 32, WELCOME)) if isinstance(message, AcceptedFrame) else frame

    meeting = Meeting(token=TOKEN, master_token=TOKEN, on_the_way=impostor)
    assert isinstance(meeting.client_error, Refused)
    assert "did not prove" in meeting.client_error.message
    assert meeting.client.welcome is None


def test_a_proof_cannot_be_played_back_to_its_sender() -> None:
    proofs: list[bytes] = []

    def mirror(frame: bytes) -> bytes:
        message = decode_handshake(frame)
        if isinstance(message, ProofFrame):
            proofs.append(message.proof)
        return encode(AcceptedFrame(proofs[0], WELCOME)) if isinstance(message, AcceptedFrame) else frame

    assert isinstance(Meeting(token=TOKEN, master_token=TOKEN, on_the_way=mirror).client_error, Refused)


def test_a_recorded_conversation_is_worth_nothing_under_a_fresh_nonce() -> None:
    recorded: list[bytes] = []
    Meeting(token=TOKEN, master_token=TOKEN, on_the_way=lambda frame: recorded.append(frame) or frame)
    hello, proof = recorded[0], recorded[2]
    master = MasterHandshake("", b"another nonce 16", TOKEN)
    master.receive(hello)
    with pytest.raises(Refused, match="the token does not match"):
        master.receive(proof)


def test_a_challenge_without_token_cannot_talk_a_peer_out_of_its_proof() -> None:
    def weakened(frame: bytes) -> bytes:
        message = decode_handshake(frame)
        if not isinstance(message, ChallengeFrame):
            return frame
        return encode(ChallengeFrame(message.version, message.cluster, message.nonce, False))

    assert not Meeting(token=TOKEN, master_token=TOKEN, on_the_way=weakened).open


def test_the_token_is_in_no_frame_and_no_error() -> None:
    frames: list[bytes] = []
    for theirs in (TOKEN, "another", None):
        meeting = Meeting(token=TOKEN, master_token=theirs, on_the_way=lambda frame: frames.append(frame) or frame)
        for error in (meeting.client_error, meeting.master_error):
            assert TOKEN not in f"{error!r} {getattr(error, 'fields', None)}"
    assert len(frames) > 8
    assert not any(TOKEN.encode() in frame for frame in frames)


def test_the_core_can_refuse_a_peer_that_proved_itself_and_the_peer_gets_kind_and_reason() -> None:
    client = ClientHandshake(replace(ME, resume=SessionId(7), epoch=1), CLIENT_NONCE)
    master = MasterHandshake("", MASTER_NONCE)
    proof = client.receive(master.receive(client.start()))
    assert master.receive(proof) is None
    assert master.proved
    master.refuse(SessionExpired("the master has restarted"), Parting.RESTARTED)
    with pytest.raises(SessionExpired, match="has restarted") as caught:
        client.receive(master.farewell)
    assert caught.value.fields["parting"] == "restarted"


def test_any_refusal_keeps_its_kind() -> None:
    client = ClientHandshake(ME, CLIENT_NONCE)
    client.start()
    master = MasterHandshake("", MASTER_NONCE)
    master.refuse(Overloaded("too many"))
    with pytest.raises(Overloaded, match="too many"):
        client.receive(master.farewell)


@pytest.mark.parametrize(
    ("identity", "words"),
    [
        (replace(ME, name=""), "name is empty"),
        (replace(ME, name="a\nb"), "printable"),
        (replace(ME, name="x" * 257), "256"),
        (replace(ME, role="king"), "client, reader, node"),
        (replace(ME, incarnation=-1), "63 bits"),
    ],
)
def test_a_peer_that_nobody_would_take_is_told_before_it_connects(identity: Identity, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        ClientHandshake(identity, CLIENT_NONCE)


@pytest.mark.parametrize(("name", "role"), [("", "client"), ("a\nb", "client"), ("n", "king")])
def test_a_master_refuses_names_and_roles_that_make_no_sense(name: str, role: str) -> None:
    master = MasterHandshake("", MASTER_NONCE)
    with pytest.raises(Refused):
        master.receive(encode(HelloFrame("pykvpool", 1, "", name, role, 1, CLIENT_NONCE)))
    assert master.farewell is not None


def test_an_empty_token_is_refused_because_it_would_protect_nothing() -> None:
    with pytest.raises(InvalidArgument, match="empty"):
        MasterHandshake("", MASTER_NONCE, "")


def test_a_short_nonce_is_refused_at_both_ends() -> None:
    with pytest.raises(InvalidArgument):
        ClientHandshake(ME, b"short")
    master = MasterHandshake("", MASTER_NONCE)
    with pytest.raises(ProtocolError, match="nonce"):
        master.receive(encode(HelloFrame("pykvpool", 1, "", "n", "client", 1, b"short")))


@pytest.mark.parametrize(
    "frame",
    [
        encode(ProofFrame(b"")),
        encode(AcceptedFrame(b"", WELCOME)),
        encode(ChallengeFrame(1, "", MASTER_NONCE, False)),
        msgpack.packb(["hello", "other", 1, "", "n", "client", 1, CLIENT_NONCE]),
        msgpack.packb(["request", 1, 0, ["heartbeat"]]),
        b"",
        b"\xc1",
    ],
)
def test_p12_a_message_out_of_place_ends_the_handshake_with_a_reason(frame: bytes) -> None:
    master = MasterHandshake("", MASTER_NONCE)
    with pytest.raises(ProtocolError):
        master.receive(frame)
    assert master.stage is Stage.REFUSED
    assert master.farewell is not None


def test_nothing_is_taken_twice() -> None:
    client = ClientHandshake(ME, CLIENT_NONCE)
    master = MasterHandshake("", MASTER_NONCE)
    hello = client.start()
    challenge = master.receive(hello)
    client.receive(challenge)
    with pytest.raises(ProtocolError, match="has no place"):
        client.receive(challenge)
    with pytest.raises(ProtocolError, match="has no place"):
        master.receive(hello)


@settings(max_examples=200, derandomize=True)
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=3))
def test_p12_garbage_never_opens_a_session(frames: list[bytes]) -> None:
    master = MasterHandshake("", MASTER_NONCE, TOKEN)
    for frame in frames:
        with pytest.raises(ProtocolError):
            master.receive(frame)
    assert not master.proved


def test_a_stranger_cannot_write_lines_of_its_own_into_a_log() -> None:
    master = MasterHandshake("", MASTER_NONCE)
    with pytest.raises(PoolError) as caught:
        master.receive(encode(Farewell(-1, "bye\nERROR all is lost")))
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("table", [CLIENT_TABLE, SERVER_TABLE])
def test_the_diagram_shows_every_transition_of_the_table_and_every_stage_can_end(table: dict) -> None:
    text = mermaid(table)
    assert text.startswith("stateDiagram-v2\n")
    for (stage, seen), to in table.items():
        arrow = f"{stage.value.replace(' ', '_')} --> {to.value.replace(' ', '_')}: {seen.value}"
        assert text.count(arrow) == 1
    sources = {stage for stage, _ in table}
    assert {stage for stage in table.values() if stage not in sources} == {Stage.OPEN, Stage.REFUSED}
    for source in sources:
        assert reachable(table, source) >= {Stage.OPEN, Stage.REFUSED}


def reachable(table: dict, start: Stage) -> set[Stage]:
    found, todo = {start}, [start]
    while todo:
        here = todo.pop()
        for (stage, _), to in table.items():
            if stage is here and to not in found:
                found.add(to)
                todo.append(to)
    return found
