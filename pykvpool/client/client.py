"""The asynchronous client: what an engine, a connector or a script holds to use the pool.

    async with await Client.connect("tcp://master:7000") as client:
        await client.put("key", b"bytes")
        assert await client.get("key") == b"bytes"

This file is the face: it checks arguments, cuts batches to size and turns keys into scopes and hashes. What happens to
the bytes is in `writer` and `reader`; what is said to the master goes through `link`.

Every verb has a batch form with one result per key, in order, a value or a `PoolError`: one bad key never costs the
others their result. A batch method raises only where nothing could be said about any key (no master, closed client).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pykvpool.client.base import chunked, decided, value_of
from pykvpool.client.fabrics import Fabrics
from pykvpool.client.held import HeldLease
from pykvpool.client.hooks import SessionHooks
from pykvpool.client.jobs import check_replicas, get_job, put_job
from pykvpool.client.link import MasterLink
from pykvpool.client.memory import MemoryVerbs
from pykvpool.client.reader import Destination, GetJob, Reader, Window
from pykvpool.client.types import Data, GetResult, Key, PutItem, PutOptions, PutResult, RangeItem
from pykvpool.client.views import View
from pykvpool.client.writer import Writer
from pykvpool.errors import InvalidArgument, PoolError
from pykvpool.fabric.base import FabricClient, Peer
from pykvpool.fabric.device_mover import DeviceMover
from pykvpool.fabric.rdma.settings import DEFAULT_SETTINGS, RdmaSettings
from pykvpool.fabric.registry import DEFAULT_FABRICS, ClientSettings, build_available, build_client
from pykvpool.fabric.router import Router
from pykvpool.memory.buffers import BufferRegistry, as_pieces
from pykvpool.memory.cuda import GpuMemory
from pykvpool.memory.fresh import fresh_bytes
from pykvpool.model.keys import DEFAULT_NAMESPACE, Scope, key_bytes
from pykvpool.model.objects import Pin, Vouch
from pykvpool.model.replies import ErrorInfo, Located
from pykvpool.runtime import Runtime, real_runtime
from pykvpool.transport.control import ControlSession
from pykvpool.transport.registry import TransportRegistry

#: Keys per PutStart and per GetReplicas. A step of the master over so many keys takes a few milliseconds, and the two
#: requests around a group of this size are lost in the transfer.
WRITE_CHUNK_KEYS = 512
READ_CHUNK_KEYS = 1_024

DEFAULT_TIMEOUT_S = 30.0
#: How far GPU memory is let past the CPU, see `Client.connect`.
VERIFY_MODES = ("auto", "staged")


class Client(MemoryVerbs):
    """One session with a pool. Make it with `Client.connect`; close it with `close` or ``async with``."""

    def __init__(
        self,
        link: MasterLink,
        fabrics: Fabrics,
        namespace: str,
        options: PutOptions,
        timeout_s: float,
        registered: BufferRegistry,
        gpu: GpuMemory,
    ) -> None:
        super().__init__(link, fabrics, namespace, timeout_s, registered, gpu)
        self._options = options
        self._writer = Writer(link, fabrics, self._statistics)
        self._reader = Reader(link, fabrics, self._statistics)

    @classmethod
    async def connect(
        cls,
        master: str | Sequence[str],
        *,
        name: str | None = None,
        role: str = "client",
        token: str | None = None,
        cluster: str = "",
        namespace: str = DEFAULT_NAMESPACE,
        replicas: int = 1,
        min_replicas: int | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        connect_timeout_s: float = 5.0,
        fabrics: Sequence[str] = DEFAULT_FABRICS,
        verify: str = "auto",
        rdma: RdmaSettings = DEFAULT_SETTINGS,
        runtime: Runtime | None = None,
        transports: TransportRegistry | None = None,
        make_fabric: Callable[[str, ClientSettings], FabricClient] = build_client,
        gpu: GpuMemory | None = None,
    ) -> Client:
        """Open a session with the master at `master` (one address or several, tried in turn).

        Args:
            name: of the session; one of the same name supersedes it. None: a random one.
            role: "client", or "reader" for one that may not write.
            token: the shared token, where the cluster has one.
            cluster: refuse a master of another cluster (empty: any).
            replicas, min_replicas: defaults of every put, see `PutOptions`.
            namespace: where its keys are; not empty.
            timeout_s: default deadline of every call.
            fabrics: schemes this client may move bytes over; the cheapest that reaches is taken.
            verify: "staged" has GPU memory pass the host, so that the CPU sums every byte; "auto" lets a NIC that
                reaches it move it alone.
            rdma: which devices, and how, where `fabrics` names rdma.
            runtime, transports, make_fabric, gpu: the outside world; a simulator or a test brings its own.

        Raises:
            Unavailable: nobody answered; the message lists what was tried.
            Refused: the handshake failed, with the reason.
            NotSupported: a fabric that this host or installation does not offer, and no other one is named.
        """
        runtime = runtime or real_runtime()
        check_replicas(replicas, min_replicas)
        if timeout_s <= 0:
            raise InvalidArgument(f"timeout_s is {timeout_s}: it must be positive")
        if not namespace:  # in `list_keys` and `remove_all` it would mean every namespace
            raise InvalidArgument("the namespace is empty: a client has one of its own")
        addresses = [master] if isinstance(master, str) else list(master)
        if verify not in VERIFY_MODES:
            raise InvalidArgument(f"verify is {verify!r}: {' and '.join(VERIFY_MODES)} are allowed")
        name = name or f"client-{runtime.new_incarnation():016x}"
        hooks = SessionHooks()
        registered = BufferRegistry()
        gpu = gpu or GpuMemory(runtime.offload, registered)
        session = await ControlSession.connect(
            addresses,
            name=name,
            role=role,
            runtime=runtime,
            token=token,
            cluster=cluster,
            connect_timeout_s=connect_timeout_s,
            on_instruction=hooks.instruction,
            on_orphan_reply=hooks.orphan_reply,
            transports=transports,
        )
        try:

            def make_router() -> Router:
                peer = Peer(name, session.incarnation, writable=role != "reader")
                settings = ClientSettings(
                    peer, runtime, cluster=session.cluster, token=token, rdma=rdma, buffers=registered, gpu=gpu
                )
                mover = DeviceMover(gpu, runtime.offload, staged_only=verify == "staged")
                return Router(
                    build_available(fabrics, lambda scheme: make_fabric(scheme, settings)), runtime.clock, mover
                )

            reach = Fabrics(make_router)
        except BaseException:
            await session.close()
            raise
        link = MasterLink(session, runtime)
        hooks.link = link
        return cls(link, reach, namespace, PutOptions(replicas, min_replicas), timeout_s, registered, gpu)

    # -- put -------------------------------------------------------------------------------------------------------

    async def put(
        self,
        key: Key,
        data: Data,
        *,
        parent: Key | None = None,
        scope: Scope | None = None,
        replicas: int | None = None,
        min_replicas: int | None = None,
        preferred_node: str = "",
        pin: Pin = Pin.NONE,
        wait: bool = True,
        timeout_s: float | None = None,
    ) -> PutResult:
        """Store one object. A key that exists with the same size is success without a transfer (`existed`).

        `data` must not change until the call is over; then it is the caller's again, however the call ended.

        Raises:
            InvalidArgument: bad key, no bytes, a size beyond every segment.
            KeyConflict: the key exists with another size.
            PoolFull: no room within the deadline; the message says why nothing could go.
            TooFewNodes, TransferFailed, DeadlineExceeded.
        """
        [result] = await self.put_batch(
            [PutItem(key, data, parent)],
            scope=scope,
            replicas=replicas,
            min_replicas=min_replicas,
            preferred_node=preferred_node,
            pin=pin,
            wait=wait,
            timeout_s=timeout_s,
        )
        return value_of(result)

    async def put_batch(
        self,
        items: Sequence[PutItem],
        *,
        scope: Scope | None = None,
        replicas: int | None = None,
        min_replicas: int | None = None,
        preferred_node: str = "",
        pin: Pin = Pin.NONE,
        wait: bool = True,
        timeout_s: float | None = None,
    ) -> list[PutResult | PoolError]:
        """Store many objects; one result per item, in order. See `put`.

        What finds room is written and committed first; the rest waits for room in the order of the pool's queue, or is
        refused at once where `wait` is False.
        """
        deadline_ms = self._begin(timeout_s)
        defaults = self._options
        options = PutOptions(
            defaults.replicas if replicas is None else replicas,
            # A caller who names replicas speaks of this put alone: the client's default minimum is not meant.
            defaults.min_replicas if replicas is None and min_replicas is None else min_replicas,
            preferred_node,
            pin,
            wait,
        )
        check_replicas(options.replicas, options.min_replicas)
        jobs = [put_job(item) for item in items]

        async def run() -> None:
            for chunk in chunked(jobs, WRITE_CHUNK_KEYS):
                scope_id = await self._link.scope_id(scope or self._plain, deadline_ms)
                await self._writer.put(scope_id, chunk, options, deadline_ms)

        await self._in_session(run)
        results: list[PutResult | PoolError] = [decided(job.result) for job in jobs]
        self._count_puts(results)
        return results

    #: `put` reads straight from the caller's buffer or pieces: no copy but the fabric's. The field's name for that.
    put_from = put

    # -- get -------------------------------------------------------------------------------------------------------

    async def get(self, key: Key, *, scope: Scope | None = None, timeout_s: float | None = None) -> bytes:
        """The whole object. Raises `KeyNotFound`, `TransferFailed`, `ChecksumMismatch`, `DeadlineExceeded`."""
        [result] = await self.get_batch([key], scope=scope, timeout_s=timeout_s)
        return value_of(result)

    async def get_batch(
        self, keys: Sequence[Key], *, scope: Scope | None = None, timeout_s: float | None = None
    ) -> list[bytes | PoolError]:
        """The whole objects, one result per key, in order. `get_into_batch` saves the allocation."""
        values: list[bytes] = [b""] * len(keys)

        def allocate(position: int, size_bytes: int) -> memoryview:
            values[position], view = fresh_bytes(size_bytes)
            return view

        results = await self.get_into_new(keys, allocate, scope=scope, timeout_s=timeout_s)
        return [
            result if isinstance(result, PoolError) else value for result, value in zip(results, values, strict=True)
        ]

    async def get_into_new(
        self,
        keys: Sequence[Key],
        allocate: Callable[[int, int], Data],
        *,
        scope: Scope | None = None,
        timeout_s: float | None = None,
    ) -> list[GetResult | PoolError]:
        """Read many objects, each into what ``allocate(position in keys, size in bytes)`` gives once its size is known.

        `allocate` runs on the loop, and again for the same position where a get has to be tried anew.
        """

        def destination(position: int) -> Destination:
            return lambda size_bytes: as_pieces(allocate(position, size_bytes), writable=True)

        jobs = [get_job(key, destination(position)) for position, key in enumerate(keys)]
        return await self._get(jobs, scope, timeout_s)

    async def get_into(
        self, key: Key, buffer: Data, *, scope: Scope | None = None, timeout_s: float | None = None
    ) -> GetResult:
        """Read one object into the caller's writable buffer or pieces, which must hold at least its size.

        On failure the buffer's contents are undefined, and nothing writes to it any more.
        """
        [result] = await self.get_into_batch([key], [buffer], scope=scope, timeout_s=timeout_s)
        return value_of(result)

    async def get_into_batch(
        self,
        keys: Sequence[Key],
        buffers: Sequence[Data],
        *,
        scope: Scope | None = None,
        timeout_s: float | None = None,
    ) -> list[GetResult | PoolError]:
        """Read many objects, ``keys[i]`` into ``buffers[i]``; one result per key, in order. See `get_into`."""
        if len(keys) != len(buffers):
            raise InvalidArgument(f"{len(keys)} keys but {len(buffers)} buffers: one buffer per key is needed")

        def destination(buffer: Data) -> Destination:
            return lambda size_bytes: as_pieces(buffer, writable=True)

        jobs = [get_job(key, destination(buffer)) for key, buffer in zip(keys, buffers, strict=True)]
        return await self._get(jobs, scope, timeout_s)

    async def get_ranges_into(
        self, ranges: Sequence[RangeItem], *, scope: Scope | None = None, timeout_s: float | None = None
    ) -> list[GetResult | PoolError]:
        """Read parts of objects, each into its own buffer; one result per range, in order.

        Only the parts are moved. A checksum is of a whole object, so the lease alone vouches for a part. A range that
        does not lie within its object is an `InvalidArgument`, one of no bytes is fine.
        """

        def destination(buffer: Data) -> Destination:
            return lambda size_bytes: as_pieces(buffer, writable=True)

        jobs = [get_job(item.key, destination(item.buffer), Window(item.offset, item.length)) for item in ranges]
        return await self._get(jobs, scope, timeout_s)

    async def _get(
        self, jobs: Sequence[GetJob], scope: Scope | None, timeout_s: float | None
    ) -> list[GetResult | PoolError]:
        deadline_ms = self._begin(timeout_s)

        async def run() -> None:
            for chunk in chunked(jobs, READ_CHUNK_KEYS):
                scope_id = await self._link.scope_id(scope or self._plain, deadline_ms)
                await self._reader.get(scope_id, chunk, deadline_ms)

        await self._in_session(run)
        return [decided(job.result) for job in jobs]

    async def view(self, key: Key, *, scope: Scope | None = None, timeout_s: float | None = None) -> View:
        """Read an object where it lies: ``async with await client.view(key) as view: use(view.data)``.

        Zero-copy where its owner's memory can be mapped (shm, inproc), else a private copy. See `View`.
        """
        deadline_ms = self._begin(timeout_s)
        hash_ = key_bytes(key)

        async def locate() -> tuple[Located, HeldLease]:
            scope_id = await self._link.scope_id(scope or self._plain, deadline_ms)
            return await self._reader.locate(scope_id, [hash_], deadline_ms)

        located, held = await self._in_session(locate)
        try:
            [found] = located.objects
            if isinstance(found, ErrorInfo):
                raise found.error(hash_)
            places = [(self._link.segment(extent.segment), extent) for extent in found.extents]
            for segment, extent in places:
                mapped = await self._fabrics.router.map_view(segment, extent.offset, extent.length)
                if mapped is not None:
                    held.check()
                    return View(mapped.data, held, Vouch.LEASE, mapped.scheme, segment.node)
        except BaseException:
            held.release()
            raise
        held.release()
        copy = bytearray(found.size_bytes)
        result = await self.get_into(key, copy, scope=scope, timeout_s=timeout_s)
        return View(memoryview(copy)[: result.size_bytes], None, result.vouch, result.scheme, result.node)

    def _count_puts(self, results: Sequence[PutResult | PoolError]) -> None:
        counts = self._statistics
        for result in results:
            if isinstance(result, PoolError):
                counts.puts_failed += 1
            else:
                counts.puts += 1
                counts.puts_existing += result.existed
                counts.puts_degraded += result.degraded
