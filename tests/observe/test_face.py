"""The HTTP face answers for its process, whatever state that is in."""

import asyncio
import signal
import socket

import httpx
import pytest
from prometheus_client import CollectorRegistry

from pykvpool import __version__
from pykvpool.errors import ConfigError, PoolFull, Unavailable
from pykvpool.metrics import Metrics
from pykvpool.model.ids import SegmentId, SessionId
from pykvpool.model.replies import SegmentState, SessionState, State
from pykvpool.observe import app as app_module
from pykvpool.observe.app import build_app
from pykvpool.observe.serve import serve_http
from pykvpool.observe.source import Health

STATE = State(
    segments=(SegmentState(SegmentId(1), "<b>a</b>", 100, 40, 50, 10, ("tcp://a:1",), False),),
    sessions=(SessionState(SessionId(1), "a", "node", True, 3, 0, 0, 0),),
    objects=7,
    object_bytes=50,
    leases=2,
    open_puts=1,
    waiting=3,
    scopes=4,
    counters={"puts_committed_total": 12},
)


class FakeSource:
    """A process whose health and state a test chooses."""

    role = "master"
    node: str | None = None

    def __init__(self) -> None:
        self.registry: CollectorRegistry = Metrics("master", "0.0").registry
        self.reasons: tuple[str, ...] = ()
        self.problem: Exception | None = None
        #: Set: the state does not come until then.
        self.hold = asyncio.Event()
        self.hold.set()

    def health(self) -> Health:
        return Health(self.reasons)

    async def state(self) -> State:
        await self.hold.wait()
        if self.problem is not None:
            raise self.problem
        return STATE


@pytest.fixture
def source() -> FakeSource:
    return FakeSource()


@pytest.fixture
async def http(source: FakeSource):
    transport = httpx.ASGITransport(build_app(source))
    async with httpx.AsyncClient(transport=transport, base_url="http://face") as client:
        yield client


async def test_health_says_ok_or_why_not(http, source) -> None:
    answer = await http.get("/health")
    assert answer.status_code == 200
    assert answer.json()["status"] == "ok"
    assert answer.json()["build"]["version"] == __version__
    source.reasons = ("the master does not answer",)
    answer = await http.get("/health")
    assert answer.status_code == 503
    assert answer.json()["reasons"] == ["the master does not answer"]


async def test_metrics_join_the_process_and_the_pool(http) -> None:
    answer = await http.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    assert "pykvpool_build_info{" in answer.text
    assert "pykvpool_objects 7.0" in answer.text
    assert "pykvpool_master_puts_committed_total 12.0" in answer.text


async def test_a_node_shows_its_own_segments_and_leaves_the_pools_numbers_to_the_master(http, source) -> None:
    source.node = "<b>a</b>"
    own = (await http.get("/metrics")).text
    assert 'pykvpool_segment_used_bytes{node="<b>a</b>",segment="1"} 50.0' in own
    assert "pykvpool_build_info{" in own
    for pools in ("pykvpool_objects", "pykvpool_sessions", "pykvpool_leases", "pykvpool_master_"):
        assert pools not in own
    source.node = "another"
    assert "pykvpool_segment_used_bytes{" not in (await http.get("/metrics")).text
    assert len((await http.get("/api/state")).json()["state"]["segments"]) == 1


async def test_the_state_comes_by_field_names(http) -> None:
    answer = await http.get("/api/state")
    assert answer.status_code == 200
    state = answer.json()["state"]
    assert state["segments"][0]["quarantined_bytes"] == 10
    assert state["segments"][0]["endpoints"] == ["tcp://a:1"]
    assert state["sessions"][0] == {
        "session": 1,
        "name": "a",
        "role": "node",
        "connected": True,
        "idle_ms": 3,
        "leases": 0,
        "puts": 0,
        "waiting": 0,
    }
    assert state["counters"] == {"puts_committed_total": 12}


async def test_a_missing_state_costs_only_what_needs_it(http, source) -> None:
    source.problem = Unavailable("nobody answers\nat tcp://a:1", tried=1)
    answer = await http.get("/api/state")
    assert answer.status_code == 503
    assert answer.json()["error"] == {
        "kind": "Unavailable",
        "code": -900,
        "message": "nobody answers\nat tcp://a:1",
        "fields": {"tried": 1},
    }
    answer = await http.get("/metrics")
    assert answer.status_code == 200
    assert "pykvpool_build_info{" in answer.text
    assert answer.text.endswith("# the pool's state is missing: Unavailable: nobody answers at tcp://a:1\n")
    assert (await http.get("/health")).status_code == 200


async def test_a_state_that_does_not_come_is_given_up(http, source, monkeypatch) -> None:
    monkeypatch.setattr(app_module, "STATE_DEADLINE_S", 0.0)
    source.hold.clear()
    answer = await http.get("/api/state")
    assert answer.status_code == 503
    assert answer.json()["error"]["kind"] == "DeadlineExceeded"


async def test_the_page_stands_alone(http) -> None:
    """It works without a network, and names that clients choose cannot become markup."""
    answer = await http.get("/")
    assert answer.status_code == 200
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "//" not in answer.text.replace("// Everything", "")
    assert "innerHTML" not in answer.text
    assert 'fetch("api/state")' in answer.text


@pytest.mark.parametrize("path", ["/api/state", "/metrics", "/health", "/"])
async def test_the_face_only_reads(http, path) -> None:
    assert (await http.post(path)).status_code == 405
    assert (await http.delete(path)).status_code == 405


async def test_there_is_nothing_else(http) -> None:
    assert (await http.get("/api/other")).status_code == 404


# -- a real socket -----------------------------------------------------------------------------------------------


async def test_it_is_served_from_the_moment_serve_http_returns_until_close(source) -> None:
    server = await serve_http(build_app(source), "127.0.0.1", 0)
    async with httpx.AsyncClient() as client:
        assert (await client.get(f"{server.url}/health")).status_code == 200
    await server.close()
    await server.close()
    with pytest.raises(OSError, match="onnect"):
        await asyncio.open_connection(server.host, server.port)


async def test_a_connection_that_is_kept_open_does_not_hold_up_the_end(source) -> None:
    async with await serve_http(build_app(source), "127.0.0.1", 0) as server:
        reader, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: face\r\n\r\n")
        assert b"200 OK" in await reader.readline()
    answer = await reader.read()
    assert answer.endswith(b"}")
    assert reader.at_eof()
    writer.close()


async def test_a_taken_port_is_an_error_that_names_the_flag(source) -> None:
    async with await serve_http(build_app(source), "127.0.0.1", 0) as server:
        with pytest.raises(ConfigError, match=rf"port {server.port} of 127.0.0.1 is taken: name another with --http"):
            await serve_http(build_app(source), "127.0.0.1", server.port)


@pytest.mark.parametrize("host", ["a" * 100, "203.0.113.1"])
async def test_an_impossible_host_is_an_error_that_names_the_flag(source, host) -> None:
    with pytest.raises(ConfigError, match="--http"):
        await serve_http(build_app(source), host, 0)


async def test_an_unknown_host_is_an_error_that_names_the_flag(source, monkeypatch) -> None:
    def unknown(*_args: object, **_kwargs: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(ConfigError, match="--http nowhere:80: no such host: Name or service not known"):
        await serve_http(build_app(source), "nowhere", 80)


async def test_signals_stay_with_the_process(source) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    async with await serve_http(build_app(source), "127.0.0.1", 0):
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


async def test_a_bug_in_an_answer_costs_that_answer(source, caplog) -> None:
    async with await serve_http(build_app(source), "127.0.0.1", 0) as server, httpx.AsyncClient() as client:
        source.problem = ZeroDivisionError("a bug")
        assert (await client.get(f"{server.url}/api/state")).status_code == 500
        source.problem = PoolFull("full")
        assert (await client.get(f"{server.url}/api/state")).status_code == 503
    assert "ZeroDivisionError" in caplog.text
