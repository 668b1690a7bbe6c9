"""Objects as such: pin, remove, remove_all, list_keys."""

from __future__ import annotations

from fnmatch import translate
from re import Pattern
from re import compile as compile_pattern

from pykvpool.core.catalog import NONE, RESIDENT
from pykvpool.core.context import Context
from pykvpool.core.handlers.checks import check_batch, check_scoped, key_error
from pykvpool.core.handlers.leasing import done
from pykvpool.core.handlers.lookup import find_rows
from pykvpool.core.jobs import Work
from pykvpool.core.sessions import Session
from pykvpool.errors import InvalidArgument, KeyNotFound, Leased, LimitExceeded, PoolError
from pykvpool.model.commands import MAX_BATCH_KEYS, ListKeys, Remove, RemoveAll, SetPin
from pykvpool.model.facts import PinChanged
from pykvpool.model.ids import RequestId
from pykvpool.model.keys import MAX_KEY_BYTES, key_text
from pykvpool.model.objects import Pin
from pykvpool.model.replies import Counted, Done, ErrorInfo, KeyPage

#: Units of a slice (see `jobs`) that removing one object costs.
REMOVE_UNITS = 10
#: Rows that one page of list_keys looks at, as a multiple of a slice: a rare pattern gives short pages, not long steps.
PAGE_SLICES = 2


def set_pin(context: Context, session: Session, request_id: RequestId, command: SetPin) -> Done:
    check_scoped(context, command.scope, command.hashes)
    errors: list[ErrorInfo | None] = []
    for row, hash_ in zip(find_rows(context, command.scope, command.hashes), command.hashes, strict=True):
        if row == NONE:
            errors.append(_not_found(hash_))
            continue
        errors.append(None)
        if context.state.catalog.pin[row] != command.pin:
            context.emit(PinChanged(command.scope, hash_, Pin(command.pin)))
    return done(errors)


def _not_found(hash_: bytes) -> ErrorInfo:
    error: PoolError = key_error(hash_) or KeyNotFound("no readable object under this key")
    return ErrorInfo.of(error)


def remove(context: Context, session: Session, request_id: RequestId, command: Remove) -> Work:
    check_scoped(context, command.scope, command.hashes)
    return _remove_batch(context, command)


def _remove_batch(context: Context, command: Remove) -> Work:
    errors, work = list[ErrorInfo | None](), context.new_slice()
    for hash_ in command.hashes:
        row = find_rows(context, command.scope, (hash_,))[0]
        if row == NONE:
            errors.append(_not_found(hash_))
        elif not command.force and (reason := _protection(context, row)):
            errors.append(ErrorInfo.of(Leased(f"the object is {reason}: it stays unless force is given")))
        else:
            context.remove_object(row, "removed")
            errors.append(None)
        if work.spend(REMOVE_UNITS):
            yield
    return done(errors)


def _protection(context: Context, row: int) -> str:
    """What refuses an unforced removal."""
    catalog = context.state.catalog
    if catalog.leases[row]:
        return f"under {catalog.leases[row]} leases"
    return "hard pinned" if catalog.pin[row] == Pin.HARD else ""


class _Filter:
    """Which rows a namespace (empty: all) and a shell pattern over the keys' text name."""

    def __init__(self, context: Context, namespace: str, pattern: str) -> None:
        if len(pattern) > MAX_KEY_BYTES:
            raise LimitExceeded(f"the pattern has {len(pattern)} characters: at most {MAX_KEY_BYTES} are allowed")
        self._catalog = context.state.catalog
        self._evictor = context.state.evictor
        self._scopes = context.state.scopes
        self._namespace = namespace
        self._pattern: Pattern[str] | None = None if pattern == "*" else compile_pattern(translate(pattern))

    def matches(self, row: int) -> bool:
        catalog = self._catalog
        if catalog.state[row] != RESIDENT or self._evictor.is_hidden(row):
            return False
        if self._namespace and self._scopes[catalog.scope[row]].namespace != self._namespace:
            return False
        return self._pattern is None or self._pattern.match(key_text(catalog.hash_of(row))) is not None


def remove_all(context: Context, session: Session, request_id: RequestId, command: RemoveAll) -> Work:
    return _remove_matching(context, _Filter(context, command.namespace, command.pattern), command.force)


def _remove_matching(context: Context, wanted: _Filter, force: bool) -> Work:
    """By row number, so that what comes and goes between slices disturbs nothing."""
    removed = kept = 0
    work = context.new_slice()
    for row in range(len(context.state.catalog)):
        units = 1
        if wanted.matches(row):
            if not force and _protection(context, row):
                kept += 1
            else:
                context.remove_object(row, "removed")
                removed += 1
                units = REMOVE_UNITS
        if work.spend(units):
            yield
    return Counted(removed, kept)


def list_keys(context: Context, session: Session, request_id: RequestId, command: ListKeys) -> KeyPage:
    """Keys that are there throughout are listed exactly once: a row does not move while its object lives."""
    if not 0 < command.limit <= MAX_BATCH_KEYS:
        raise InvalidArgument(f"limit {command.limit}: a page has 1 to {MAX_BATCH_KEYS} keys")
    check_batch("characters of a namespace", command.namespace)
    if command.cursor < 0:
        raise InvalidArgument("a cursor is 0, or the next_cursor of the page before")
    catalog, scopes = context.state.catalog, context.state.scopes
    wanted = _Filter(context, command.namespace, command.pattern)
    rows: list[int] = []
    row = command.cursor
    end = min(len(catalog), row + PAGE_SLICES * context.config.slice_objects)
    hidden = context.state.hides
    while row < end and len(rows) < command.limit:
        if wanted.matches(row) and not (hidden and not context.state.is_visible(row)):
            rows.append(row)
        row += 1
    return KeyPage(
        tuple(scopes[catalog.scope[row]].namespace for row in rows),
        tuple(catalog.hash_of(row) for row in rows),
        tuple(catalog.size[row] for row in rows),
        row if row < len(catalog) else 0,
    )
