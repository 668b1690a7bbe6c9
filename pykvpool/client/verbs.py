"""The verbs that move no block bytes: questions about keys and the pool, pins, touches, removals."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

from pykvpool.client.base import ClientBase, chunked
from pykvpool.client.held import HeldLease
from pykvpool.client.link import OnRemoved
from pykvpool.client.types import Key, ListedKey, PrefixMatch, RemovedCount
from pykvpool.errors import LimitExceeded, PoolError
from pykvpool.model.commands import (
    MAX_BATCH_KEYS,
    MAX_SCOPES,
    ClusterState,
    Command,
    Exists,
    ListKeys,
    MatchPrefix,
    Remove,
    RemoveAll,
    SetPin,
    Stat,
    Touch,
)
from pykvpool.model.ids import ScopeId
from pykvpool.model.keys import Scope, key_bytes
from pykvpool.model.objects import Pin
from pykvpool.model.replies import Counted, Done, ErrorInfo, Flags, KeyPage, Matched, ObjectStat, State, Stats

#: Keys per request of these verbs: each key costs the master well under a microsecond or two.
LIGHT_CHUNK_KEYS = 4_096


class Verbs(ClientBase):
    """See the module. All are batches; a batch method raises only where nothing could be said about any key."""

    # -- questions -------------------------------------------------------------------------------------------------

    async def exists(
        self, keys: Sequence[Key], *, scope: Scope | None = None, timeout_s: float | None = None
    ) -> list[bool]:
        """Which keys are readable? No lease, no touch."""
        return await self._flags(Exists, keys, scope, timeout_s)

    async def touch(
        self, keys: Sequence[Key], *, scope: Scope | None = None, timeout_s: float | None = None
    ) -> list[bool]:
        """Mark as just used; says which were there."""
        return await self._flags(Touch, keys, scope, timeout_s)

    async def match_prefix(
        self,
        hashes: Sequence[Key],
        scopes: Sequence[Scope] | None = None,
        *,
        presence: Sequence[int] = (),
        hold: bool = False,
        timeout_s: float | None = None,
    ) -> PrefixMatch:
        """How many of the first `hashes` are readable in every scope of `scopes` (default: the client's own)?

        Args:
            presence: positions in `scopes` that are answered hash by hash instead of being counted.
            hold: lease what matched, so that it stays until it is loaded or given up.
        """
        deadline_ms = self._begin(timeout_s)
        if len(hashes) > MAX_BATCH_KEYS:
            raise LimitExceeded(
                f"{len(hashes)} hashes in one match_prefix: at most {MAX_BATCH_KEYS} are allowed", limit=MAX_BATCH_KEYS
            )
        raw = tuple(key_bytes(key) for key in hashes)

        async def run() -> PrefixMatch:
            ids = await self._link.scope_ids(scopes or (self._plain,), deadline_ms)
            asked_at_ms = self._link.now_ms()
            command = MatchPrefix(raw, tuple(ids), tuple(presence), hold)
            reply = await self._link.call(command, Matched, deadline_ms)
            held = HeldLease(self._link, reply.lease, reply.lease_ms, asked_at_ms) if hold else None
            return PrefixMatch(reply.count, tuple(tuple(map(bool, flags)) for flags in reply.presence), held)

        return await self._in_session(run)

    async def stat(
        self, keys: Sequence[Key], *, scope: Scope | None = None, timeout_s: float | None = None
    ) -> list[ObjectStat | PoolError]:
        """Facts about objects, without a lease or a touch; one result per key."""
        deadline_ms = self._begin(timeout_s)
        raw = [key_bytes(key) for key in keys]

        async def run() -> list[ObjectStat | PoolError]:
            results: list[ObjectStat | PoolError] = []
            for chunk in chunked(raw, LIGHT_CHUNK_KEYS):
                scope_id = await self._link.scope_id(scope or self._plain, deadline_ms)
                reply = await self._link.call(Stat(scope_id, tuple(chunk)), Stats, deadline_ms)
                self._link.learn(reply.segments)
                results += [
                    entry.error(key) if isinstance(entry, ErrorInfo) else entry
                    for key, entry in zip(chunk, reply.objects, strict=True)
                ]
            return results

        return await self._in_session(run)

    async def watch(self, scopes: Sequence[Scope], on_removed: OnRemoved) -> None:
        """Be told on the loop of keys that leave these scopes, beside those named before; `on_removed` replaces the one
        before. With an empty tuple of keys: the session was lost meanwhile, anything may have gone.

        No promise: what goes while the connection is cut is not told.
        """
        self._check_open()
        self._link.on_removed = on_removed
        self._link.watched.update(dict.fromkeys(scopes))
        await self._in_session(lambda: self._link.watch(tuple(scopes)))

    def node_of(self, segment: int) -> str:
        """Name of the node that lent a segment named by an earlier reply, for people."""
        return self._link.node_name(segment)

    async def state(self, *, timeout_s: float | None = None) -> State:
        """The whole pool in numbers."""
        deadline_ms = self._begin(timeout_s)
        return await self._in_session(lambda: self._link.call(ClusterState(), State, deadline_ms))

    async def list_keys(
        self, pattern: str = "*", *, namespace: str | None = None, timeout_s: float | None = None
    ) -> AsyncIterator[ListedKey]:
        """Keys whose text matches the shell pattern, page by page. `namespace`: None the client's own, "" all."""
        cursor = 0
        where = self.namespace if namespace is None else namespace
        while True:
            deadline_ms = self._begin(timeout_s)
            page = await self._link.call(ListKeys(where, pattern, cursor), KeyPage, deadline_ms)
            for name, key, size_bytes in zip(page.namespaces, page.keys, page.sizes, strict=True):
                yield ListedKey(name, key, size_bytes)
            cursor = page.next_cursor
            if not cursor:
                return

    # -- changes ---------------------------------------------------------------------------------------------------

    async def remove(
        self, key: Key, *, force: bool = False, scope: Scope | None = None, timeout_s: float | None = None
    ) -> None:
        """Unlink one object. Raises `KeyNotFound`; `Leased` where someone reads it or it is hard pinned (unless
        `force`: then the key goes at once and its bytes when the leases end)."""
        [error] = await self.remove_batch([key], force=force, scope=scope, timeout_s=timeout_s)
        if error is not None:
            raise error

    async def remove_batch(
        self, keys: Sequence[Key], *, force: bool = False, scope: Scope | None = None, timeout_s: float | None = None
    ) -> list[PoolError | None]:
        """Unlink many objects; None or an error per key."""
        return await self._done(lambda scope_id, raw: Remove(scope_id, raw, force), keys, scope, timeout_s)

    async def remove_all(
        self, pattern: str = "*", *, namespace: str | None = None, force: bool = False, timeout_s: float | None = None
    ) -> RemovedCount:
        """Unlink every object whose key text matches the shell pattern. `namespace`: None the client's own, "" all."""
        deadline_ms = self._begin(timeout_s)
        command = RemoveAll(self.namespace if namespace is None else namespace, pattern, force)
        reply = await self._in_session(lambda: self._link.call(command, Counted, deadline_ms))
        return RemovedCount(reply.count, reply.kept)

    async def remove_scopes(
        self, scopes: Sequence[Scope], *, force: bool = False, timeout_s: float | None = None
    ) -> RemovedCount:
        """Unlink every object of these scopes, whatever namespaces they are in."""
        deadline_ms = self._begin(timeout_s)

        async def run() -> RemovedCount:
            removed = kept = 0
            for chunk in chunked(scopes, MAX_SCOPES):
                life = self._link.life
                ids = await self._link.scope_ids(chunk, deadline_ms)
                reply = await self._link.call(RemoveAll(force=force, scopes=tuple(ids)), Counted, deadline_ms, life)
                removed, kept = removed + reply.count, kept + reply.kept
            return RemovedCount(removed, kept)

        return await self._in_session(run)

    async def pin(
        self, keys: Sequence[Key], pin: Pin = Pin.HARD, *, scope: Scope | None = None, timeout_s: float | None = None
    ) -> list[PoolError | None]:
        """Guard objects from eviction: `Pin.HARD` always, `Pin.SOFT` as long as anything else could go."""
        return await self._done(lambda scope_id, raw: SetPin(scope_id, raw, pin), keys, scope, timeout_s)

    async def unpin(
        self, keys: Sequence[Key], *, scope: Scope | None = None, timeout_s: float | None = None
    ) -> list[PoolError | None]:
        """Let objects be evicted again."""
        return await self.pin(keys, Pin.NONE, scope=scope, timeout_s=timeout_s)

    async def _flags(
        self, command: type[Exists | Touch], keys: Sequence[Key], scope: Scope | None, timeout_s: float | None
    ) -> list[bool]:
        deadline_ms = self._begin(timeout_s)
        raw = [key_bytes(key) for key in keys]

        async def run() -> list[bool]:
            flags = b""
            for chunk in chunked(raw, LIGHT_CHUNK_KEYS):
                scope_id = await self._link.scope_id(scope or self._plain, deadline_ms)
                flags += (await self._link.call(command(scope_id, tuple(chunk)), Flags, deadline_ms)).flags
            return list(map(bool, flags))

        return await self._in_session(run)

    async def _done(
        self,
        command: Callable[[ScopeId, tuple[bytes, ...]], Command],
        keys: Sequence[Key],
        scope: Scope | None,
        timeout_s: float | None,
    ) -> list[PoolError | None]:
        deadline_ms = self._begin(timeout_s)
        raw = [key_bytes(key) for key in keys]

        async def run() -> list[PoolError | None]:
            results: list[PoolError | None] = []
            for chunk in chunked(raw, LIGHT_CHUNK_KEYS):
                scope_id = await self._link.scope_id(scope or self._plain, deadline_ms)
                reply = await self._link.call(command(scope_id, tuple(chunk)), Done, deadline_ms)
                errors = reply.errors or (None,) * len(chunk)
                results += [
                    None if error is None else error.error(key) for key, error in zip(chunk, errors, strict=True)
                ]
            return results

        return await self._in_session(run)
