"""Objects as such: pin, remove, remove_all, list_keys."""

from __future__ import annotations

from fnmatch import translate
from re import Pattern
from re import compile as compile_pattern

from pykvpool.core.catalog import NONE, RESIDENT
from pykvpool.core.context import Context
from pykvpool.core.handlers.checks import check_batch, check_scope, check_scoped, key_error
from pykvpool.core.handlers.leasing import done
from pykvpool.core.handlers.lookup import find_rows
from pykvpool.core.jobs import Work
from pykvpool.core.sessions import Session
from pykvpool.errors import InvalidArgument, KeyNotFound, Leased, LimitExceeded, PoolError
from pykvpool.model.commands import MAX_BATCH_KEYS, MAX_SCOPES, ListKeys, Remove, RemoveAll, SetPin
from pykvpool.model.facts import PinChanged
from pykvpool.model.ids import RequestId, ScopeId
from pykvpool.model.keys import MAX_KEY_BYTES, key_text
from pykvpool.model.objects import Pin
from pykvpool.model.replies import Counted, ErrorInfo, KeyPage

#: Units of a slice (see `jobs`) that removing one object costs, pinning one, and matching one with a pattern.
REMOVE_UNITS = 10
PIN_UNITS = 4
LIST_UNITS = 2
#: Rows that list_keys looks at in one go.
LIST_ROWS = 64
#: Rows that one page of list_keys looks at, as a multiple of `slice_objects`: a rare pattern gives short pages.
PAGE_SLICES = 2


def set_pin(context: Context, session: Session, request_id: RequestId, command: SetPin) -> Work:
    check_scoped(context, command.scope, command.hashes)
    return _pin_batch(context, command)


def _pin_batch(context: Context, command: SetPin) -> Work:
    errors, work = list[ErrorInfo | None](), context.new_slice()
    for hash_ in command.hashes:
        if work.is_over:
            yield
        row = find_rows(context, command.scope, (hash_,))[0]
        errors.append(_not_found(hash_) if row == NONE else None)
        if row != NONE and context.state.catalog.pin[row] != command.pin:
            context.emit(PinChanged(command.scope, hash_, Pin(command.pin)))
        work.spend(PIN_UNITS)
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
    """Which rows a namespace (empty: all), a shell pattern over the keys' text and scopes (empty: all) name."""

    def __init__(self, context: Context, namespace: str, pattern: str, only: tuple[ScopeId, ...] = ()) -> None:
        if len(pattern) > MAX_KEY_BYTES:
            raise LimitExceeded(f"the pattern has {len(pattern)} characters: at most {MAX_KEY_BYTES} are allowed")
        self._catalog = context.state.catalog
        self._evictor = context.state.evictor
        self._scopes = context.state.scopes
        self._namespace = namespace
        self._only = frozenset[int](only)
        self._pattern: Pattern[str] | None = None if pattern == "*" else compile_pattern(translate(pattern))

    def matches(self, row: int) -> bool:
        catalog = self._catalog
        if catalog.state[row] != RESIDENT or self._evictor.is_hidden(row):
            return False
        if self._only and catalog.scope[row] not in self._only:
            return False
        if self._namespace and self._scopes[catalog.scope[row]].namespace != self._namespace:
            return False
        return self._pattern is None or self._pattern.match(key_text(catalog.hash_of(row))) is not None


def remove_all(context: Context, session: Session, request_id: RequestId, command: RemoveAll) -> Work:
    if command.scopes:
        check_batch("scopes", command.scopes, MAX_SCOPES)
    for scope in command.scopes:
        check_scope(context, scope)
    wanted = _Filter(context, command.namespace, command.pattern, command.scopes)
    return _remove_matching(context, wanted, command.force)


def _remove_matching(context: Context, wanted: _Filter, force: bool) -> Work:
    """By row number, so that what comes and goes between slices disturbs nothing."""
    removed = kept = 0
    work = context.new_slice()
    for row in range(len(context.state.catalog)):
        units = LIST_UNITS
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


def list_keys(context: Context, session: Session, request_id: RequestId, command: ListKeys) -> Work:
    """Keys that are there throughout are listed exactly once: a row does not move while its object lives."""
    if not 0 < command.limit <= MAX_BATCH_KEYS:
        raise InvalidArgument(f"limit {command.limit}: a page has 1 to {MAX_BATCH_KEYS} keys")
    check_batch("characters of a namespace", command.namespace)
    if command.cursor < 0:
        raise InvalidArgument("a cursor is 0, or the next_cursor of the page before")
    return _list_page(context, command, _Filter(context, command.namespace, command.pattern))


def _list_page(context: Context, command: ListKeys, wanted: _Filter) -> Work:
    """What is listed is read in the slice in which its row is looked at: later the row may be another's."""
    catalog, scopes, work = context.state.catalog, context.state.scopes, context.new_slice()
    namespaces, keys, sizes = list[str](), list[bytes](), list[int]()
    row, end = command.cursor, command.cursor + PAGE_SLICES * context.config.slice_objects
    while row < min(end, len(catalog)) and len(keys) < command.limit:
        if row % LIST_ROWS == LIST_ROWS - 1 and work.spend(LIST_UNITS * LIST_ROWS):
            yield
        if wanted.matches(row) and (not context.state.hides or context.state.is_visible(row)):
            namespaces.append(scopes[catalog.scope[row]].namespace)
            keys.append(catalog.hash_of(row))
            sizes.append(catalog.size[row])
        row += 1
    return KeyPage(tuple(namespaces), tuple(keys), tuple(sizes), row if row < len(catalog) else 0)
