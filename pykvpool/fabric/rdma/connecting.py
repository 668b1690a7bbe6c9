"""From two lists of rails to lanes that work: which rail talks to which, over which addresses, and the proof.

Every rail of either side gets a partner, one of its own subnet if there is one, and several queue pairs. Whether two
addresses really reach each other shows in two places: a queue pair cannot be made ready with them, or it can and
nothing comes back. So a new lane reads a few bytes before it counts, and where that fails the next pair of addresses
is tried, then the next rail of the owner. What worked is remembered for the next time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pykvpool.errors import Closed, PoolError, ProtocolError, Refused, SegmentGone, Unavailable
from pykvpool.fabric.rdma.completions import Completions
from pykvpool.fabric.rdma.gids import GidPair, pairs
from pykvpool.fabric.rdma.lane import MAX_PIECES, SEND_DEPTH, Lane, Progress, RemoteMemory
from pykvpool.fabric.rdma.local_memory import LocalMemory
from pykvpool.fabric.rdma.rails import Device, Rail
from pykvpool.fabric.rdma.session import Session
from pykvpool.fabric.rdma.wire import Connect, Offer, WireRail
from pykvpool.fabric.rdma.wire_checks import check_connected, check_offer
from pykvpool.fabric.verbs import (
    Access,
    Completion,
    Gid,
    Path,
    QueuePair,
    QueuePairLimits,
    RemoteQueuePair,
    Retries,
    VerbsError,
)
from pykvpool.fabric.verbs.model import MAX_24_BITS
from pykvpool.model.ids import Generation
from pykvpool.runtime import Runtime

log = logging.getLogger("pykvpool.fabric.rdma")

#: Pairs of addresses tried between two rails. A port has some four to eight addresses, of which most do not fit.
MAX_GID_TRIES = 8
#: How long the first read of a lane may take. A queue pair gives up by itself within a second or two; this is for a
#: card that says nothing at all.
PROBE_S = 4.0
#: When a queue pair gives a silent peer up: after about half a second (real cards take up to four times that). Not
#: seven times, the most there is: Soft-RoCE takes that for ever.
RETRIES = Retries(timeout_exponent=14, count=6)
#: What no other address or rail can mend.
_FINAL = (SegmentGone, Refused, ProtocolError, Closed)


@dataclass(frozen=True, slots=True)
class RemoteRail:
    """A rail of the owner."""

    wire: WireRail
    gids: tuple[Gid, ...]
    memory: RemoteMemory

    @property
    def name(self) -> str:
        return self.wire.name


@dataclass(frozen=True, slots=True)
class Ends:
    """Between which rails a lane is meant to be. Rails are told apart by identity: one of a device that was opened anew
    is another."""

    rail: Rail
    remote_name: str


@dataclass(frozen=True, slots=True)
class Route:
    """One lane to have: a rail of ours, and the owner's, the preferred one first."""

    rail: Rail
    remotes: tuple[RemoteRail, ...]

    @property
    def ends(self) -> Ends:
        return Ends(self.rail, self.remotes[0].name)


def remote_rails(offer: Offer) -> list[RemoteRail]:
    """What an owner offers. Raises `ProtocolError` where it makes no sense, `Unavailable` where it is nothing."""
    if not offer.rails:
        raise Unavailable("the owner has no rdma port that is up")
    check_offer(offer)
    rails = []
    for wire in offer.rails:
        memory = RemoteMemory(offer.address, offer.size_bytes, offer.chunk_bytes, wire.rkeys)
        rails.append(RemoteRail(wire, tuple(entry.gid() for entry in wire.gids), memory))
    return rails


def plan(rails: Sequence[Rail], remotes: Sequence[RemoteRail], queue_pairs: int) -> list[Route]:
    """The lanes to have. With four rails here and two there each of theirs is used twice, and the other way round."""
    routes = []
    taken = dict.fromkeys((remote.name for remote in remotes), 0)
    for number in range(max(len(rails), len(remotes))):
        rail = rails[number % len(rails)]

        def cost(remote: RemoteRail, rail: Rail = rail, number: int = number) -> tuple[bool, int, int]:
            near = any(pair.is_near for pair in pairs(rail.gids, remote.gids))
            return not near, taken[remote.name], (remotes.index(remote) - number) % len(remotes)

        order = tuple(sorted(remotes, key=cost))
        taken[order[0].name] += 1
        routes += [Route(rail, order)] * queue_pairs
    return routes


class Connector:
    """Makes lanes for one client."""

    def __init__(self, memory: LocalMemory, runtime: Runtime, on_broken: Callable[[Device, PoolError], None]) -> None:
        self._memory = memory
        self._runtime = runtime
        self._on_broken = on_broken
        self._queues: dict[Device, list[Completions]] = {}
        #: Lanes that nobody wants and that could not be closed; values mean nothing.
        self._left: dict[Lane, None] = {}
        #: (endpoint, our rail, the owner's rail) -> the pair of addresses that worked last.
        self._worked: dict[tuple[str, str, str], GidPair] = {}

    async def connect(self, route: Route, session: Session, generation: Generation) -> Lane:
        """A lane that has proved itself. Raises `Unavailable` with all that was tried, or what is final."""
        self._clear_away()
        reasons = []
        for remote in route.remotes:
            for pair in self._candidates(route.rail, remote, session.endpoint):
                if not route.rail.active:
                    raise Unavailable(f"{route.rail.name}: {route.rail.idle_reason}")
                try:
                    lane = await self._attempt(route.rail, remote, pair, session, generation)
                except _FINAL:
                    raise
                except PoolError as error:
                    if session.failure is not None:
                        raise
                    reasons.append(f"{pair}: {error.message}")
                    log.info("rdma: %s cannot reach %s over %s: %s", route.rail.name, remote.name, pair, error)
                else:
                    key = (session.endpoint, route.rail.name, remote.name)
                    if self._worked.get(key) != pair:
                        self._worked[key] = pair
                        log.info(
                            "rdma: %s reaches %s of %s over %s", route.rail.name, remote.name, session.endpoint, pair
                        )
                    return lane
        tried = "; ".join(reasons) or "no address of theirs fits one of ours"
        raise Unavailable(f"{route.rail.name} reaches no rdma port of {session.endpoint} ({tried})")

    def discard(self, lane: Lane) -> None:
        """Close a lane on which nothing is under way. Where its device refuses, it is tried again later."""
        try:
            lane.close()
        except VerbsError as error:
            log.warning("rdma: %s stays for now: %s", lane, error)
            self._left[lane] = None

    def drop(self, device: Device) -> None:
        """Close what lanes needed on a device. Raises `VerbsError` where one is left there."""
        self._clear_away()
        queues = self._queues.get(device, [])
        while queues:
            queues[-1].close()
            queues.pop()
        self._queues.pop(device, None)

    def _clear_away(self) -> None:
        left, self._left = self._left, {}
        for lane in left:
            self.discard(lane)

    def close(self) -> None:
        """As `drop`, for every device; what is left stays until the process ends, which is logged."""
        for device in list(self._queues):
            try:
                self.drop(device)
            except VerbsError as error:
                log.warning("rdma: completions of %s stay: %s", device.name, error)

    def _candidates(self, rail: Rail, remote: RemoteRail, endpoint: str) -> list[GidPair]:
        found = pairs(rail.gids, remote.gids)
        worked = self._worked.get((endpoint, rail.name, remote.name))
        if worked in found:
            found.remove(worked)
            found.insert(0, worked)
        return found[:MAX_GID_TRIES]

    async def _attempt(
        self, rail: Rail, remote: RemoteRail, pair: GidPair, session: Session, generation: Generation
    ) -> Lane:
        """One queue pair over one pair of addresses. Raises `PoolError`; nothing is left here then, nor there."""
        lane, queue_pair = self._make(rail, remote)
        try:
            queue_pair.to_init(rail.number, Access.NONE)
            read_depth = min(rail.device.read_depth, remote.wire.read_depth)
            psn = self._runtime.random.getrandbits(24) & MAX_24_BITS
            port = rail.port
            ask = Connect(
                session.next_number(), generation, remote.name, pair.remote.index,
                queue_pair.number, psn, pair.local.address, port.lid, port.active_mtu_bytes, read_depth,
            )  # fmt: skip
            answer = await session.connect_pair(ask)
            check_connected(answer)
            lane.handle = answer.handle
            path = Path(rail.number, pair.local.index, port.active_mtu_bytes, read_depth=read_depth)
            there = RemoteQueuePair(
                answer.number, answer.psn, pair.remote.address, remote.wire.lid, remote.wire.mtu_bytes
            )
            queue_pair.to_ready_to_receive(there, path)
            queue_pair.to_ready_to_send(psn, path, RETRIES)
            await _prove(lane)
        except BaseException:
            self.discard(lane)
            if lane.handle >= 0:
                session.forget(lane.handle)
            raise
        return lane

    def _make(self, rail: Rail, remote: RemoteRail) -> tuple[Lane, QueuePair]:
        """A lane that is not connected."""
        device = rail.device
        depth = min(SEND_DEPTH, device.limits.max_qp_wr)
        domain = self._memory.domain(device)
        queue = self._queue(device, depth)
        try:
            limits = QueuePairLimits(depth, min(MAX_PIECES, device.limits.max_sge))
            queue_pair = domain.queue_pair(queue.queue, limits)
        except VerbsError:
            queue.give_back(depth)
            raise
        return Lane(rail, queue_pair, queue, self._memory, remote.memory, remote.name, depth), queue_pair

    def _queue(self, device: Device, depth: int) -> Completions:
        """A completion queue with room for one more lane."""
        queues = self._queues.setdefault(device, [])
        for queue in queues:
            if queue.reserve(depth):
                return queue
        queue = Completions(device, self._on_broken)
        queues.append(queue)
        if not queue.reserve(depth):
            raise Unavailable(f"{device.name} has completion queues of {queue.queue.depth}: too few for a queue pair")
        return queue


async def _prove(lane: Lane) -> None:
    """Read a few bytes. Raises `Unavailable` where nothing comes back."""
    proved: asyncio.Future[Progress] = asyncio.get_running_loop().create_future()

    def on_completions(completions: list[Completion]) -> None:
        progress = lane.take(completions)
        if not proved.done():
            proved.set_result(progress)

    lane.join(on_completions)
    lane.probe()
    try:
        async with asyncio.timeout(PROBE_S):
            failure = (await proved).failure
    except TimeoutError:
        raise Unavailable(f"nothing came back within {PROBE_S:g} s") from None
    if failure is not None:
        raise Unavailable(f"the first read failed: {failure.status}")
