"""A port whose work is done by the host's node; in the engine's process only a small thread copies bytes."""

from __future__ import annotations

from collections.abc import Callable

from pykvpool.host.agent.attaching import RING_BYTES, Where
from pykvpool.host.agent.rank import Rank
from pykvpool.host.thread_port import ThreadPort
from pykvpool.host.work import Emit
from pykvpool.node.socket_files import engine_sockets
from pykvpool.runtime import Runtime


class AgentPort(ThreadPort):
    """See `pykvpool.host.port.PoolPort`. It looks for the node at once, and again whenever it is gone."""

    def __init__(
        self,
        name: str,
        *,
        socket: str = "",
        masters: tuple[str, ...] = (),
        cluster: str = "",
        token: str | None = None,
        replicas: int = 1,
        ring_bytes: int = RING_BYTES,
        absent: str = "",
        prepare: Callable[[], None] | None = None,
    ) -> None:
        """
        Args:
            name: of this engine process, for people.
            socket: of the node; empty: wherever a node of this host and user is.
            masters: only a node of a pool with one of these addresses will do; empty: any.
            cluster, token: as for the pool.
            replicas: copies of each block.
            ring_bytes: memory through which blocks pass, taken as it is used; it grows for large blocks.
            absent: what to say, and to advise, where no node listens.
            prepare: called before every search, on the port's thread (to start the node).
        """

        def find() -> list[str]:
            if prepare is not None:
                prepare()
            return [socket] if socket else engine_sockets()

        def make(runtime: Runtime, emit: Emit) -> Rank:
            self._rank = Rank(Where(name, find, masters, cluster, token, replicas, ring_bytes, absent), runtime, emit)
            return self._rank

        super().__init__(name, make)

    def wait_attached(self, timeout_s: float) -> bool:
        """Wait for the end of the first search for a node, at most so long; True: one took us. For an engine's start,
        where nothing is served yet."""
        return self._rank.searched.wait(timeout_s) and self._rank.attached

    @property
    def placement(self) -> str:
        return f"the node {self._rank.node!r} of this host" if self._rank.node else "a node of this host, not found yet"
