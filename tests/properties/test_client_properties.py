"""The client against a dictionary: several clients of one small pool, always full, so that blocks go all the time.

The dictionary knows, for each key, the bytes that were committed last. A key may be gone, if the pool evicted something
or somebody removed it; what is got is never anything but those bytes, whichever client asks and by whichever way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pykvpool.client import Client, PutItem, PutResult
from pykvpool.client.views import View
from pykvpool.embedded import EmbeddedPool
from pykvpool.errors import KeyConflict, KeyNotFound, NotReady
from pykvpool.model.objects import Vouch
from tests.properties.budgets import budget

T = TypeVar("T")

NODES, NODE_BYTES = 2, 16 * 4_096
#: Half of the pool at most lies under views, so that there is always something to evict.
MAX_VIEWS = 2
CLIENTS = 3
KEYS = tuple(f"key-{number}" for number in range(12))
#: A few fill a node; one is not whole pages, one is smaller than the alignment.
SIZES = (1, 4_097, 9_000, 16_384)

keys = st.sampled_from(KEYS)
clients = st.integers(0, CLIENTS - 1)
sizes = st.sampled_from(SIZES)


class ClientsAgainstDictionary(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        #: What each key's bytes are, if it is readable.
        self.committed: dict[str, bytes] = {}
        #: Never the same bytes twice: other bytes under a key are noticed, older ones too.
        self.versions = 0
        #: Keys that were found gone and that nobody had removed.
        self.misses = 0
        self.views: list[tuple[View, bytes]] = []
        self.clients: list[Client] = []
        self.pool: EmbeddedPool | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    @initialize()
    def begin(self) -> None:
        async def start() -> None:
            self.pool = EmbeddedPool(nodes=NODES, size_bytes=NODE_BYTES)
            await self.pool.start()
            self.clients = [await self.pool.connect() for _ in range(CLIENTS)]

        self.run(start())

    def value(self, size: int) -> bytes:
        self.versions += 1
        stamp = self.versions.to_bytes(4, "big") if size >= 4 else b""
        return (
            (stamp + self.versions.to_bytes(4, "big") * (size // 4 + 1))[:size]
            if stamp
            else bytes([self.versions % 251])
        )

    def was_put(self, key: str, value: bytes, result: object) -> None:
        """A put came back: it changed the key's bytes, or says that there were some."""
        if isinstance(result, KeyConflict):
            assert len(self.committed[key]) != len(value)
            return
        assert isinstance(result, PutResult), result
        if result.existed:
            assert len(self.committed[key]) == len(value)
        else:
            self.committed[key] = value

    def was_got(self, key: str, got: object) -> None:
        if isinstance(got, KeyNotFound):
            if self.committed.pop(key, None) is not None:
                self.misses += 1
        else:
            assert got == self.committed[key], f"{key} has other bytes"

    # -- one client at a time ----------------------------------------------------------------------------------------

    @rule(client=clients, key=keys, size=sizes)
    def put(self, client: int, key: str, size: int) -> None:
        self.put_batch(client, [(key, size)], 1)

    @rule(
        client=clients,
        items=st.lists(st.tuples(keys, sizes), min_size=1, max_size=3, unique_by=lambda item: item[0]),
        replicas=st.integers(1, 2),
    )
    def put_batch(self, client: int, items: list[tuple[str, int]], replicas: int) -> None:
        values = [(key, self.value(size)) for key, size in items]
        puts = [PutItem(key, value) for key, value in values]
        results = self.run(self.clients[client].put_batch(puts, replicas=replicas, min_replicas=1))
        for (key, value), result in zip(values, results, strict=True):
            self.was_put(key, value, result)

    @rule(client=clients, chosen=st.lists(keys, min_size=1, max_size=4))
    def get_batch(self, client: int, chosen: list[str]) -> None:
        for key, got in zip(chosen, self.run(self.clients[client].get_batch(chosen)), strict=True):
            self.was_got(key, got)

    @rule(client=clients, key=keys, piece=st.integers(1_000, 20_000))
    def get_into_pieces(self, client: int, key: str, piece: int) -> None:
        """What lies beyond the object in the caller's buffers is left alone."""
        buffer = bytearray(b"\xee" * 20_000)
        pieces = [memoryview(buffer)[start : start + piece] for start in range(0, len(buffer), piece)]
        try:
            result = self.run(self.clients[client].get_into(key, pieces))
        except KeyNotFound as error:
            self.was_got(key, error)
            return
        assert result.vouch is Vouch.CHECKSUM
        self.was_got(key, bytes(buffer[: result.size_bytes]))
        assert buffer[result.size_bytes :] == b"\xee" * (len(buffer) - result.size_bytes)

    @rule(client=clients, key=keys)
    def remove(self, client: int, key: str) -> None:
        """By force: also from under those who look at it."""
        try:
            self.run(self.clients[client].remove(key, force=True))
            del self.committed[key]
        except KeyNotFound as error:
            self.was_got(key, error)

    @rule(client=clients)
    def which_exist(self, client: int) -> None:
        for key, there in zip(KEYS, self.run(self.clients[client].exists(KEYS)), strict=True):
            if there:
                assert key in self.committed
            else:
                self.was_got(key, KeyNotFound("it is not there"))

    # -- views that stay open ----------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.views) < MAX_VIEWS)
    @rule(client=clients, key=keys)
    def open_a_view(self, client: int, key: str) -> None:
        async def opened() -> View:
            return await (await self.clients[client].view(key)).__aenter__()

        try:
            view = self.run(opened())
        except KeyNotFound as error:
            self.was_got(key, error)
            return
        assert view.zero_copy
        self.views.append((view, self.committed[key]))

    @precondition(lambda self: self.views)
    @rule(number=st.integers(0, MAX_VIEWS))
    def leave_a_view(self, number: int) -> None:
        view, value = self.views.pop(number % len(self.views))
        assert view.data == value
        self.run(view.__aexit__(None, None, None))

    # -- several at once ---------------------------------------------------------------------------------------------

    @rule(key=keys, size=sizes)
    def all_put_the_same_key(self, key: str, size: int) -> None:
        """One of them writes, and the others learn that it did."""
        values = [self.value(size) for _ in self.clients]

        async def race() -> list[object]:
            puts = (client.put(key, value) for client, value in zip(self.clients, values, strict=True))
            return await asyncio.gather(*puts, return_exceptions=True)

        results = self.run(race())
        wrote = [
            value for value, result in zip(values, results, strict=True) if getattr(result, "existed", True) is False
        ]
        if wrote:
            # What was there before had gone; with three writers in a small pool nothing can go again in between.
            assert len(wrote) == 1
            self.committed[key] = wrote[0]
        for value, result in zip(values, results, strict=True):
            if value not in wrote:
                self.was_put(key, value, result)

    @rule(
        written=st.lists(keys, min_size=1, max_size=3, unique=True),
        read=st.lists(keys, min_size=1, max_size=3),
        size=sizes,
    )
    def some_get_while_others_put(self, written: list[str], read: list[str], size: int) -> None:
        """A reader gets the bytes from before or from after, whole."""
        values = {key: self.value(size) for key in written}
        before = dict(self.committed)

        async def together() -> tuple[list[Any], list[Any]]:
            puts = self.clients[0].put_batch([PutItem(key, value) for key, value in values.items()])
            return tuple(await asyncio.gather(puts, self.clients[1].get_batch(read)))

        results, got = self.run(together())
        for (key, value), result in zip(values.items(), results, strict=True):
            self.was_put(key, value, result)
        for key, found in zip(read, got, strict=True):
            if not isinstance(found, KeyNotFound | NotReady):
                assert found in (before.get(key), self.committed.get(key)), f"{key} has other bytes"

    # -- what holds --------------------------------------------------------------------------------------------------

    @invariant()
    def open_views_show_what_they_showed(self) -> None:
        for view, value in self.views:
            assert view.data == value

    @invariant()
    def whatever_is_missing_was_evicted(self) -> None:
        if self.pool is not None:
            assert self.misses <= self.pool.core.counters["objects_evicted_total"]

    def teardown(self) -> None:
        async def end() -> None:
            for view, value in self.views:
                assert view.data == value
                await view.__aexit__(None, None, None)
            for client in self.clients:
                await client.close()
            if self.pool is not None:
                self.pool.core.validate()
                await self.pool.stop()

        self.run(end())
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()


TestClientsAgainstDictionary = ClientsAgainstDictionary.TestCase
TestClientsAgainstDictionary.settings = budget(40, steps=30)
