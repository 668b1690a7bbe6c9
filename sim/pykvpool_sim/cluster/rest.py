"""When it is calm again, the pool has to come to rest, and then to work as new.

A pool that never hands out a wrong byte because it hands out none would pass every other check. So: within a bound of
virtual time nothing is left over (no open put, no lease, no waiter, nothing in quarantine, every node mounted), and
every key can be written and read again.
"""

from __future__ import annotations

import asyncio

from pykvpool.client import Client, PutItem
from pykvpool.errors import ChecksumMismatch, PoolError
from pykvpool.model.keys import Scope
from pykvpool.model.objects import Pin
from pykvpool.model.replies import State
from pykvpool_sim.cluster.cluster import Cluster
from pykvpool_sim.cluster.keys import SCOPES, value_of
from pykvpool_sim.history import Outcome
from pykvpool_sim.host import Host

#: Within this long after the last fault all is at rest. The longest chain is: a fence that waits for a suspended
#: client's session to expire (5 s), after a put that ran out of time (6 s), after a call's deadline (8 s) and its
#: clean-up (5 s), with a node's pauses between two tries (5 s) in between.
REST_MS = 60_000
#: How often it is looked at.
_LOOK_EVERY_S = 0.5
#: Keys written and read at once: far less than the smallest segment.
_BATCH = 2
#: One call of the probe: everything is in order, so this is generous.
_PROBE_TIMEOUT_S = 10.0


async def come_to_rest(cluster: Cluster, probe: Host) -> None:
    """Judge the calm; called in no host's life."""
    client = await probe.run(_connect(cluster, probe))
    if client is None or not await _settles(cluster, probe, client):
        return
    # What was done to a client that is over must not be done to who comes after it under its name.
    heir = next((client.name for client in cluster.shape.clients if client.named), None)
    worker = await probe.run(_connect(cluster, probe, heir))
    if worker is not None:
        await probe.run(_works_as_new(cluster, worker))


async def _connect(cluster: Cluster, probe: Host, name: str | None = None) -> Client | None:
    trouble = ""
    for _ in range(int(REST_MS / 1_000 / _LOOK_EVERY_S)):
        try:
            return await cluster.connect(probe, name=name, timeout_s=_PROBE_TIMEOUT_S)
        except PoolError as error:
            trouble = str(error)
            await asyncio.sleep(_LOOK_EVERY_S)
    cluster.verdicts.add("calm", f"nobody can connect {REST_MS} ms after the last fault: {trouble}")
    return None


async def _settles(cluster: Cluster, probe: Host, client: Client) -> bool:
    left = "nothing was answered"
    deadline_ns = cluster.world.loop.now_ns + REST_MS * 1_000_000
    while cluster.world.loop.now_ns < deadline_ns:
        if cluster.verdicts.found:
            return False
        try:
            left = _left_over(await probe.run(client.state()), cluster) or _calls_under_way(cluster)
        except PoolError as error:
            left = f"the master answers {error}"
        if not left:
            return True
        await asyncio.sleep(_LOOK_EVERY_S)
    cluster.verdicts.add("calm", f"{REST_MS} ms after the last fault there is still: {left}")
    return False


def _left_over(state: State, cluster: Cluster) -> str:
    """What is not at rest, for people; empty: all is."""
    nodes = sorted(segment.node for segment in state.segments)
    quarantined = sum(segment.quarantined_bytes for segment in state.segments)
    left = {
        "open puts": state.open_puts,
        "leases": state.leases,
        "waiting": state.waiting,
        "quarantined bytes": quarantined,
        f"nodes mounted {nodes} of {list(cluster.shape.nodes)}": nodes != sorted(cluster.shape.nodes),
        "suspect segments": sum(segment.suspect for segment in state.segments),
        "sessions that are not connected": sum(not session.connected for session in state.sessions),
    }
    return ", ".join(f"{what}: {count}" for what, count in left.items() if count)


def _calls_under_way(cluster: Cluster) -> str:
    """Of clients that live; those of dead ones never return."""
    living = {host.life.name for host in cluster.world.hosts.values()}
    return ", ".join(
        f"{operation.process} waits for its {operation.name} {operation.arguments}"
        for operation in cluster.world.history.operations
        if operation.outcome is Outcome.OPEN and operation.process in living
    )


async def _works_as_new(cluster: Cluster, client: Client) -> None:
    """Every key is written and read; first the pool is emptied of what somebody left pinned."""
    keys = cluster.shape.keys.all()
    try:
        for scope in SCOPES:
            await client.unpin(keys, scope=scope)
            await client.remove_all(namespace=scope.namespace, force=True)
        for scope in SCOPES:
            for first in range(0, len(keys), _BATCH):
                await _write_and_read(cluster, client, scope, keys[first : first + _BATCH])
        await client.state()  # its numbers are checked against the facts
        await client.close()
    except PoolError as error:
        cluster.verdicts.add("calm", f"with everything at rest, a call gave {error.kind}: {error}")


async def _write_and_read(cluster: Cluster, client: Client, scope: Scope, keys: list[bytes]) -> None:
    items = [PutItem(key, value_of(scope, key)) for key in keys]
    for put in await client.put_batch(items, scope=scope, pin=Pin.NONE):
        if isinstance(put, PoolError):
            raise put
    results = await client.get_batch(keys, scope=scope)
    decayed = [key for key, result in zip(keys, results, strict=True) if isinstance(result, ChecksumMismatch)]
    if decayed and cluster.shape.decay:
        # The checksum did its work. What a person would do: remove it, and write it again.
        await client.remove_batch(decayed, force=True, scope=scope)
        await client.put_batch([PutItem(key, value_of(scope, key)) for key in decayed], scope=scope)
        results = await client.get_batch(keys, scope=scope)
    for key, result in zip(keys, results, strict=True):
        if isinstance(result, PoolError):
            raise result
        if result != value_of(scope, key):
            cluster.verdicts.add("P1", f"at rest, other bytes were read for {key!r}", key=key)
