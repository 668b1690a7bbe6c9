"""How values are read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykvpool.config import HostPort, parse_host_port, parse_size
from pykvpool.config.kinds import Address, Advertised, DataListen, Listen, Switch
from pykvpool.config.quantities import Duration, Ratio, Size, Whole
from pykvpool.config.schema import KEYS


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("4096", 4096),
        ("1b", 1),
        ("1kb", 1024),
        ("1 KiB", 1024),
        ("512MiB", 512 * 1024**2),
        ("512m", 512 * 1024**2),
        ("80GB", 80 * 1024**3),
        ("1.5 GB", 1_610_612_736),
        ("2TB", 2 * 1024**4),
        ("1PiB", 1024**5),
    ],
)
def test_sizes_are_binary_as_in_mooncakes_files(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "GB", "-1", "1.5", "1.0000001KB", "1e3", "1 G B", "0x10", "1,5GB", "９GB", "9" * 200]
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a size"):
        parse_size(text)


@given(st.integers(0, 10**6), st.sampled_from(["", "B", "K", "MB", "GiB"]))
def test_text_and_number_mean_the_same_size(number: int, unit: str) -> None:
    assert Size(0).parse(f"{number}{unit}") == number * parse_size(f"1{unit}")


MILLISECONDS, SECONDS = Duration(1, 86_400_000, 1), Duration(0.001, 86_400.0, 1_000)


@pytest.mark.parametrize(
    ("kind", "raw", "value"),
    [
        (MILLISECONDS, 10, 10),
        (MILLISECONDS, 10.0, 10),
        (MILLISECONDS, "10", 10),
        (MILLISECONDS, "10s", 10_000),
        (MILLISECONDS, "1.5s", 1500),
        (MILLISECONDS, "500 ms", 500),
        (MILLISECONDS, "24h", 86_400_000),
        (SECONDS, 30, 30.0),
        (SECONDS, "30", 30.0),
        (SECONDS, "500ms", 0.5),
        (SECONDS, "2min", 120.0),
    ],
)
def test_durations_come_in_the_keys_unit(kind, raw, value) -> None:
    assert kind.parse(raw) == value
    assert type(kind.parse(raw)) is type(value)


@pytest.mark.parametrize("raw", [0, -1, 1.5, "0.5ms", "25h", "x", "1d", True, None, float("nan"), float("inf"), [1]])
def test_what_is_no_duration_is_refused(raw) -> None:
    with pytest.raises(ValueError, match="expected a time of 1 to"):
        MILLISECONDS.parse(raw)


@pytest.mark.parametrize("text", ["1", " 1 ", "1_000", "100"])
def test_whole_numbers_in_text(text: str) -> None:
    assert Whole(1, 1000).parse_text(text) == int(text)


@pytest.mark.parametrize("text", ["", "0", "1001", "1.0", "one", "９", "9" * 5000])
def test_what_is_no_whole_number_in_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="from 1 to 1,000"):
        Whole(1, 1000).parse_text(text)


@pytest.mark.parametrize("text", ["0", "-1", "1.1", "nan", "x"])
def test_a_ratio_is_above_zero_and_at_most_one(text: str) -> None:
    assert Ratio().parse_text("0.5") == 0.5
    assert Ratio().parse(1) == 1.0
    with pytest.raises(ValueError, match="above 0 and at most 1"):
        Ratio().parse_text(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7080", HostPort("127.0.0.1", 7080)),
        (":7080", HostPort("127.0.0.1", 7080)),
        ("0", HostPort("127.0.0.1", 0)),
        ("0.0.0.0:80", HostPort("0.0.0.0", 80)),
        ("node-1.example:80", HostPort("node-1.example", 80)),
        ("[::1]:80", HostPort("::1", 80)),
        ("[fe80::1%eth0]:80", HostPort("fe80::1%eth0", 80)),
    ],
)
def test_hosts_and_ports_are_taken_apart(text: str, expected: HostPort) -> None:
    assert parse_host_port(text) == expected
    assert parse_host_port(Listen().parse_text(text)) == expected


@pytest.mark.parametrize(
    "text", ["", "host", "host:", "host:65536", "::1:80", "[::1]", "a b:80", "http://a:80", "a:-1"]
)
def test_what_is_no_host_and_port_is_refused(text: str) -> None:
    """IPv6 addresses split at ":" are a classic (Mooncake#470)."""
    with pytest.raises(ValueError, match="expected 'host:port'"):
        parse_host_port(text)


def test_a_server_may_be_left_out_and_a_port_may_be_a_number() -> None:
    assert Listen().parse_text("") == ""
    assert Listen().parse(7080) == "127.0.0.1:7080"
    with pytest.raises(ValueError, match="or nothing for no server"):
        Listen().parse(True)


@pytest.mark.parametrize("text", ["tcp://a:1", "unix:///x", "inproc://", "sim+x://a"])
def test_addresses_have_a_scheme(text: str) -> None:
    assert Address().parse_text(f" {text} ") == text


@pytest.mark.parametrize("raw", ["", "a 1", "tcp://", "://a", "TCP://a", 1])
def test_what_is_no_address_is_refused(raw) -> None:
    with pytest.raises(ValueError, match="expected an address like"):
        Address().parse(raw)
    assert Address(may_be_empty=True).parse("") == ""


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("0.0.0.0:7001", "tcp://0.0.0.0:7001"),
        ("tcp://host:0", "tcp://host:0"),
        ("tcp://[::1]:7", "tcp://[::1]:7"),
        ("[::]:7", "tcp://[::]:7"),
    ],
)
def test_where_data_is_served_may_be_given_with_its_scheme_or_without(given: str, meant: str) -> None:
    assert DataListen().parse_text(given) == meant


@pytest.mark.parametrize("given", ["unix:///run/x.sock", "tcp://", "host", "tcp://host:99999", "inproc://x", "", 7001])
def test_where_data_cannot_be_served_is_refused(given: object) -> None:
    with pytest.raises(ValueError, match="host:port"):
        DataListen().parse(given)


@pytest.mark.parametrize("given", ["", "host", "a.b-c.d:7", "10.0.0.1", "fe80::1", "[fe80::1]", "[::1]:99"])
def test_an_advertised_host_is_taken_as_it_is(given: str) -> None:
    assert Advertised().parse_text(given) == given


@pytest.mark.parametrize("given", ["bad host", "tcp://host", "host:port", "a/b", "host:1:2,", 5])
def test_a_host_that_nobody_could_reach_is_refused(given: object) -> None:
    with pytest.raises(ValueError, match="a host name or IP address"):
        Advertised().parse(given)


@pytest.mark.parametrize(
    ("text", "suggested"),
    [
        ("localhost", "tcp://localhost"),
        ("127.0.0.1:7000", "tcp://127.0.0.1:7000"),
        ("[::1]:7000", "tcp://[::1]:7000"),
        ("/run/pool.sock", "unix:///run/pool.sock"),
    ],
)
def test_an_address_without_a_scheme_is_refused_with_the_one_that_is_meant(text: str, suggested: str) -> None:
    with pytest.raises(ValueError, match="has no scheme") as refusal:
        Address().parse_text(text)
    assert str(refusal.value).endswith(f": write {suggested}")


@pytest.mark.parametrize("path", ["node.fabrics", "client.fabrics"])
def test_rdma_is_used_where_it_is_asked_for_and_only_there(path: str) -> None:
    assert "rdma" not in KEYS[path].default  # type: ignore[operator]
    assert KEYS[path].kind.parse_text("rdma,tcp") == ("rdma", "tcp")


def test_a_node_that_is_a_process_of_its_own_is_told_that_nobody_shares_it() -> None:
    with pytest.raises(ValueError, match="shares it with nobody"):
        KEYS["node.fabrics"].kind.parse_text("inproc,tcp")


def test_where_a_node_agrees_on_queue_pairs_may_be_left_open() -> None:
    kind = KEYS["node.rdma_listen"].kind
    assert (kind.parse_text(""), kind.parse_text("10.0.0.2:7009")) == ("", "tcp://10.0.0.2:7009")
    with pytest.raises(ValueError, match="'host:port'"):
        KEYS["node.data_listen"].kind.parse_text("")


def test_a_switch_is_true_or_false_and_nothing_else() -> None:
    assert (Switch().parse(True), Switch().parse_text(" FALSE "), Switch().parse_text("true")) == (True, False, True)
    for raw in (1, "true", None):
        with pytest.raises(ValueError, match="expected true or false"):
            Switch().parse(raw)
    with pytest.raises(ValueError, match="expected true or false"):
        Switch().parse_text("yes")
