"""What clients do: everything the client's face offers, in random order, and they look at every byte they get.

Each function here is one turn of one client; `turns` says how its calls are recorded and judged, `program` who takes
it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

from pykvpool.client import Client, HeldLease, PutItem, View
from pykvpool.errors import LeaseExpired, PoolError
from pykvpool.model.keys import Scope
from pykvpool.model.objects import Pin
from pykvpool_sim.cluster.keys import SCOPES, value_of
from pykvpool_sim.cluster.meddling import meddle
from pykvpool_sim.cluster.turns import Turn


async def _put(turn: Turn, client: Client) -> None:
    draws, scope = turn.draws, turn.scope()
    keys, parents = turn.run_of_keys()
    if draws.chance(0.2):
        parents = [None] * len(keys)
    sources = []
    for key in keys:
        value = value_of(scope, key)
        source = turn.buffers.borrow(len(value))
        source[: len(value)] = value
        sources.append((source, memoryview(source)[: len(value)]))
    items = [PutItem(key, view, parent) for key, (_, view), parent in zip(keys, sources, parents, strict=True)]
    replicas = draws.between(1, 3) if draws.chance(0.2) else turn.copies_wanted()
    try:
        results = await turn.call(
            "put",
            client.put_batch(
                items,
                scope=scope,
                replicas=replicas,
                preferred_node=draws.choice(("", "node-0", "node-1")),
                pin=Pin.SOFT if draws.chance(0.1) else Pin.NONE,
                timeout_s=turn.timeout_s(),
            ),
            keys,
        )
    finally:
        for source, view in sources:
            view.release()
            turn.buffers.give_back(source)
    turn.judge("put", scope, results, keys)
    for key, result in zip(keys, results, strict=True):
        if not isinstance(result, PoolError):
            turn.check_copies(key, result, replicas)


async def _get(turn: Turn, client: Client) -> None:
    begun_ns = turn.now_ns()
    scope, keys = turn.scope(), turn.some_keys()
    results = await turn.call("get", client.get_batch(keys, scope=scope, timeout_s=turn.timeout_s()), keys)
    turn.judge("get", scope, results, keys)
    for key, result in zip(keys, results, strict=True):
        if not isinstance(result, PoolError):
            turn.check_bytes("get", scope, key, result, begun_ns)


async def _get_into(turn: Turn, client: Client) -> None:
    begun_ns = turn.now_ns()
    scope, (keys, _) = turn.scope(), turn.run_of_keys()
    targets = [turn.buffers.borrow(len(value_of(scope, key))) for key in keys]
    try:
        results = await turn.call(
            "get_into", client.get_into_batch(keys, targets, scope=scope, timeout_s=turn.timeout_s()), keys
        )
        turn.judge("get_into", scope, results, keys)
        for key, target, result in zip(keys, targets, results, strict=True):
            if not isinstance(result, PoolError):
                turn.check_bytes("get_into", scope, key, target[: result.size_bytes], begun_ns)
    finally:
        for target in targets:
            turn.buffers.give_back(target)


async def _match(turn: Turn, client: Client) -> None:
    """As a scheduler does: hold what matches, load it a while later."""
    draws, scope = turn.draws, turn.scope()
    keys, _ = turn.run_of_keys()
    hold = draws.chance(0.7)
    scopes = SCOPES if draws.chance(0.4) else [scope]
    match = await turn.call(
        "match_prefix", client.match_prefix(keys, scopes, hold=hold, timeout_s=turn.timeout_s()), keys
    )
    if match.hold is None:
        return
    async with match.hold as held:
        if draws.chance(0.6):
            held.keep_alive()
        await asyncio.sleep(draws.between(0, 3_000) / 1_000)
        matched = keys[: match.count]
        with contextlib.suppress(LeaseExpired):  # what is loaded then is loaded under a lease of its own
            await turn.recorded("hold", _checked(held), matched)
        begun_ns = turn.now_ns()
        if matched:
            results = await turn.call(
                "get", client.get_batch(matched, scope=scope, timeout_s=turn.timeout_s()), matched
            )
            turn.judge("get", scope, results, matched)
            for key, result in zip(matched, results, strict=True):
                if not isinstance(result, PoolError):
                    turn.check_bytes("get", scope, key, result, begun_ns)


async def _checked(held: HeldLease) -> None:
    """Does its holder believe in it still?"""
    held.check()


async def _view(turn: Turn, client: Client) -> None:
    begun_ns = turn.now_ns()
    scope, (key, *_) = turn.scope(), turn.some_keys()
    view = await turn.call("view", client.view(key, scope=scope, timeout_s=turn.timeout_s()), [key])
    with turn.cluster.views.watched(turn.host.life, key, view, value_of(scope, key)):
        await turn.recorded("look", _look(turn, view, scope, key, begun_ns), [key])


async def _look(turn: Turn, view: View, scope: Scope, key: bytes, begun_ns: int) -> None:
    """A copy once, what lies elsewhere for longer than its first lease."""
    async with view:
        for _ in range(turn.draws.between(2, 8) if view.zero_copy else 1):
            await asyncio.sleep(turn.draws.between(0, 1_000 if view.zero_copy else 500) / 1_000)
            turn.check_bytes("view", scope, key, view.data, begun_ns)
            turn.cluster.views.look(view)
        if view.zero_copy:
            # What it saw is worth something only if leaving says so.
            await asyncio.sleep(turn.draws.between(0, 1_000) / 1_000)
        lapsed = turn.cluster.views.lapsed(view)
    if lapsed:
        turn.cluster.views.left_silently(key)


async def _remove(turn: Turn, client: Client) -> None:
    scope, keys = turn.scope(), turn.some_keys()
    force = turn.draws.chance(0.3)
    results = await turn.call(
        "remove", client.remove_batch(keys, force=force, scope=scope, timeout_s=turn.timeout_s()), keys
    )
    turn.judge("remove", scope, results, keys)


async def _remove_all(turn: Turn, client: Client) -> None:
    scope = turn.scope()
    pattern = f"chain-{turn.draws.between(0, 5)}/*"
    await turn.call(
        "remove_all",
        client.remove_all(pattern, namespace=scope.namespace, timeout_s=turn.timeout_s()),
        [pattern.encode()],
    )


async def _pin(turn: Turn, client: Client) -> None:
    """Hard pins are taken back, sooner or later: a pool that is pinned full is full for good."""
    scope, keys = turn.scope(), turn.some_keys()[:2]
    await turn.call("pin", client.pin(keys, Pin.HARD, scope=scope, timeout_s=turn.timeout_s()), keys)
    await asyncio.sleep(turn.draws.between(0, 2_000) / 1_000)
    await turn.call("unpin", client.unpin(keys, scope=scope, timeout_s=turn.timeout_s()), keys)


async def _touch(turn: Turn, client: Client) -> None:
    scope, keys = turn.scope(), turn.some_keys()
    await turn.call("touch", client.touch(keys, scope=scope, timeout_s=turn.timeout_s()), keys)


async def _exists(turn: Turn, client: Client) -> None:
    scope, keys = turn.scope(), turn.some_keys()
    await turn.call("exists", client.exists(keys, scope=scope, timeout_s=turn.timeout_s()), keys)


async def _state(turn: Turn, client: Client) -> None:
    await turn.call("state", client.state(timeout_s=turn.timeout_s()))


async def _meddle(turn: Turn, client: Client) -> None:
    await meddle(turn)


Verb = Callable[[Turn, Client], Coroutine[Any, Any, None]]

#: What a client may do, and how often: each client draws one of the weights. Removals are rare, or the pool is never
#: full.
VERBS: dict[str, tuple[Verb, tuple[int, ...]]] = {
    "put": (_put, (2, 8, 16)),
    "get": (_get, (0, 2, 8)),
    "get_into": (_get_into, (0, 2, 8)),
    "match": (_match, (0, 2, 8)),
    "view": (_view, (0, 1, 2)),
    "remove": (_remove, (0, 0, 1)),
    "remove_all": (_remove_all, (0, 0, 0, 1)),
    "pin": (_pin, (0, 1)),
    "touch": (_touch, (0, 1)),
    "exists": (_exists, (0, 1)),
    "state": (_state, (0, 1)),
    "meddle": (_meddle, (0, 0, 1)),
}
