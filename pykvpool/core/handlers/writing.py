"""The life of a write: put_start, put_wait, put_forget, put_end, put_revoke."""

from __future__ import annotations

from pykvpool.core.catalog import NONE
from pykvpool.core.context import Context
from pykvpool.core.handlers.checks import check_batch, check_column, check_duration, check_scoped, key_error
from pykvpool.core.handlers.leasing import done
from pykvpool.core.jobs import Slice, Work
from pykvpool.core.placement import Wish
from pykvpool.core.puts import OpenPut
from pykvpool.core.refusal import refusal
from pykvpool.core.sessions import Session
from pykvpool.core.tickets import GRANT_UNITS, Entry
from pykvpool.errors import InvalidArgument, KeyConflict, NotOwner, PoolError, StalePut, TransferFailed
from pykvpool.model.commands import MAX_REPLICAS, PutEnd, PutForget, PutRevoke, PutStart, PutWait
from pykvpool.model.facts import PinChanged
from pykvpool.model.ids import PutId, RequestId, SessionId
from pykvpool.model.replies import ErrorInfo, Existing, Pending

#: xxh3-64 is an unsigned 64-bit number.
MAX_CHECKSUM = (1 << 64) - 1
#: Longest object, in bytes: what a column of the catalog and the wire hold. Far beyond any segment.
MAX_OBJECT_BYTES = (1 << 62) - 1


def put_start(context: Context, session: Session, request_id: RequestId, command: PutStart) -> Work:
    check_scoped(context, command.scope, command.hashes)
    check_column("sizes", command.sizes, command.hashes)
    check_column("parents", command.parents, command.hashes, optional=True)
    check_duration("wait_ms", command.wait_ms)
    if not 1 <= command.min_replicas <= command.replicas <= MAX_REPLICAS:
        raise InvalidArgument(
            f"replicas {command.replicas}, min_replicas {command.min_replicas}: "
            f"1 <= min_replicas <= replicas <= {MAX_REPLICAS} must hold"
        )
    if command.min_granted and not command.min_replicas <= command.min_granted <= command.replicas:
        raise InvalidArgument(
            f"min_granted {command.min_granted}: 0, or min_replicas ({command.min_replicas}) to replicas "
            f"({command.replicas}) is allowed"
        )
    return _start_all(context, session.id, command)


def _start_all(context: Context, session: SessionId, command: PutStart) -> Work:
    entries, work = list[Entry](), context.new_slice()
    parents = command.parents or (None,) * len(command.hashes)
    for hash_, size, parent in zip(command.hashes, command.sizes, parents, strict=True):
        wish = Wish(
            session, command.scope, hash_, size, parent, command.replicas, command.min_replicas,
            command.min_granted or command.min_replicas, command.preferred_node, command.pin, command.wait_ms,
        )  # fmt: skip
        while not wish.wait_ms and context.waiting.is_only_placing():
            yield
        try:
            entry = _start(context, wish, work)
        except PoolError as error:
            entry = refusal(error)
        if isinstance(entry, Pending) and not wish.wait_ms:
            entry = yield from context.waiting.outcome(session, entry.ticket)
        entries.append(entry)
        if work.spend(GRANT_UNITS):
            yield
    return context.waiting.started(tuple(entries))


def _start(context: Context, wish: Wish, work: Slice) -> Entry:
    _check_wish(wish)
    state, catalog = context.state, context.state.catalog
    row = catalog.find(wish.scope, wish.hash)
    if row != NONE and state.hides and not state.is_visible(row):
        # It is as good as gone, and the key can be written anew: its only copies go with their segments, or it is
        # about to be evicted; then the key queues behind whoever gets the room.
        if not state.evictor.is_hidden(row):
            context.remove_object(row, "replicas lost")
        row = NONE
    if row == NONE:
        return context.waiting.enter(wish, work)
    if catalog.size[row] != wish.size_bytes:
        raise KeyConflict(
            f"the key exists with {catalog.size[row]} bytes, not {wish.size_bytes}: content addressed keys never "
            "change their bytes",
            size_bytes=catalog.size[row],
            asked_bytes=wish.size_bytes,
        )
    context.counters["puts_existing_total"] += 1
    context.touch([row])
    if wish.pin > catalog.pin[row]:
        # Who puts with a pin counts on it, whoever wrote the bytes.
        context.emit(PinChanged(wish.scope, wish.hash, wish.pin))
    return Existing(PutId(catalog.put_id[row]))


def _check_wish(wish: Wish) -> None:
    error = key_error(wish.hash)
    if error is not None:
        raise error
    if wish.size_bytes == 0:
        raise InvalidArgument("size 0: an empty value cannot be stored, objects have 1 byte or more", size_bytes=0)
    if not 0 < wish.size_bytes <= MAX_OBJECT_BYTES:
        raise InvalidArgument(
            f"size {wish.size_bytes}: objects have 1 to {MAX_OBJECT_BYTES} bytes", limit_bytes=MAX_OBJECT_BYTES
        )
    if wish.parent is not None:
        parent_error = key_error(wish.parent)
        if parent_error is not None:
            raise InvalidArgument(f"the parent's key is wrong: {parent_error.message}")
        if wish.parent == wish.hash:
            raise InvalidArgument("a block cannot be its own parent")


def put_wait(context: Context, session: Session, request_id: RequestId, command: PutWait) -> None:
    """The answer comes from `waiting`, now or later."""
    check_batch("tickets", command.tickets)
    check_duration("timeout_ms", command.timeout_ms)
    deadline = context.now + min(command.timeout_ms, context.config.max_wait_ms)
    context.waiting.wait(session.id, request_id, command.tickets, deadline)


def put_forget(context: Context, session: Session, request_id: RequestId, command: PutForget) -> Work:
    check_batch("tickets", command.tickets)
    return _forget_all(context, session.id, command)


def _forget_all(context: Context, session: SessionId, command: PutForget) -> Work:
    yield from context.waiting.give_up(session, command.tickets, context.new_slice())
    return done([])


def put_end(context: Context, session: Session, request_id: RequestId, command: PutEnd) -> Work:
    check_batch("puts", command.puts)
    check_column("checksums", command.checksums, command.puts)
    check_column("landed masks", command.landed, command.puts)
    check_column("uncertain masks", command.uncertain, command.puts, optional=True)
    return _end_all(context, session.id, command)


def _end_all(context: Context, session: SessionId, command: PutEnd) -> Work:
    errors, degraded, unsummed = list[ErrorInfo | None](), list[int](), list[PutId]()
    work = context.new_slice()
    masks = zip(command.checksums, command.landed, command.uncertain or (0,) * len(command.puts), strict=True)
    for position, (put_id, (checksum, landed, uncertain)) in enumerate(zip(command.puts, masks, strict=True)):
        while _comes_below_what_goes(context, put_id):
            yield
        try:
            put = _own_put(context, session, put_id, uncertain)
            if put is not None:
                if _end(context, put, checksum, landed, uncertain):
                    degraded.append(position)
                if checksum is None:
                    unsummed.append(put_id)
            errors.append(None)
        except PoolError as error:
            errors.append(refusal(error))
        if work.spend(GRANT_UNITS):
            yield
    yield from context.hash_requests.ask(unsummed, work)
    return done(errors, tuple(degraded))


def _comes_below_what_goes(context: Context, put_id: PutId) -> bool:
    """Is the parent of the put just being evicted? A child that came now would be left an orphan by that."""
    state = context.state
    put = state.puts.by_id.get(put_id) if state.evictor.sealed else None
    if put is None or put.parent is None:
        return False
    row = state.catalog.find(put.scope, put.parent)
    return row != NONE and state.evictor.is_hidden(row)


def _own_put(context: Context, session: SessionId, put_id: PutId, uncertain: int) -> OpenPut | None:
    """The session's open put; None: it is committed already, by this session, and lives.

    Raises `NotOwner`, or `StalePut` for one that is over; then the writer's word still frees what it had quarantined.
    """
    state = context.state
    put = state.puts.by_id.get(put_id)
    if put is not None:
        if put.session != session:
            raise NotOwner(f"put {put_id} belongs to another session")
        return put
    context.fences.drained(session, put_id, uncertain)
    row = state.catalog.by_put.get(put_id)
    if row != NONE:
        if state.catalog.owner[row] != session:
            raise NotOwner(f"put {put_id} belongs to another session")
        return None
    raise StalePut(f"put {put_id} is not open any more: revoked, out of time, taken over, or its object is gone")


def _end(context: Context, put: OpenPut, checksum: int | None, landed: int, uncertain: int) -> bool:
    """Commit or close; True: on fewer replicas than granted. Raises `TransferFailed`, `InvalidArgument`."""
    if checksum is not None and not 0 <= checksum <= MAX_CHECKSUM:
        raise InvalidArgument(f"checksum {checksum} is not an unsigned 64-bit number")
    if (landed | uncertain) >> len(put.extents) or landed < 0 or uncertain < 0:
        raise InvalidArgument(f"a mask names replicas beyond the {len(put.extents)} that put {put.put_id} was granted")
    alive = context.live_extents(put)
    stray = tuple(extent for i, extent in enumerate(put.extents) if uncertain >> i & 1 and extent in alive)
    good = tuple(
        extent for i, extent in enumerate(put.extents) if landed >> i & 1 and not uncertain >> i & 1 and extent in alive
    )
    if stray:
        context.fences.give_up(put.put_id)
    if len(good) < put.min_replicas:
        context.close_put(put, stray, "failed")
        raise TransferFailed(
            f"put {put.put_id} landed on {len(good)} replicas, {put.min_replicas} are required: it is closed",
            landed=len(good),
            required=put.min_replicas,
        )
    context.commit_put(put, checksum, good, stray)
    if len(good) == len(put.extents):
        return False
    context.counters["puts_degraded_total"] += 1
    return True


def put_revoke(context: Context, session: Session, request_id: RequestId, command: PutRevoke) -> Work:
    check_batch("puts", command.puts)
    check_column("uncertain masks", command.uncertain, command.puts, optional=True)
    return _revoke_all(context, session.id, command)


def _revoke_all(context: Context, session: SessionId, command: PutRevoke) -> Work:
    errors, work = list[ErrorInfo | None](), context.new_slice()
    masks = command.uncertain or (0,) * len(command.puts)
    for put_id, uncertain in zip(command.puts, masks, strict=True):
        try:
            put = _own_put(context, session, put_id, uncertain)
            if put is None:
                raise StalePut(f"put {put_id} is committed: it cannot be revoked, the object can be removed")
            if uncertain < 0 or uncertain >> len(put.extents):
                raise InvalidArgument(f"a mask names replicas beyond the {len(put.extents)} of put {put_id}")
            alive = context.live_extents(put)
            stray = tuple(extent for i, extent in enumerate(put.extents) if uncertain >> i & 1 and extent in alive)
            if stray:
                context.fences.give_up(put_id)
            context.close_put(put, stray, "revoked")
            errors.append(None)
        except PoolError as error:
            errors.append(refusal(error))
        if work.spend(GRANT_UNITS):
            yield
    return done(errors)
