"""A Hypothesis strategy for any value of a message type, read off the type: a new message or field is covered."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st
from msgspec import inspect

#: What msgpack can carry.
MIN_INTEGER, MAX_INTEGER = -(1 << 63), (1 << 64) - 1
#: Columns and texts stay short: size is no property of a codec.
MAX_ITEMS = 4


def any_message(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a struct type, or of a union of them."""
    return _of(inspect.type_info(kind))


def _of(info: inspect.Type) -> st.SearchStrategy[Any]:
    match info:
        case inspect.StructType(cls=cls, fields=fields):
            return st.builds(cls, **{field.name: _of(field.type) for field in fields})
        case inspect.UnionType(types=types):
            return st.one_of(*map(_of, types))
        case inspect.VarTupleType(item_type=item):
            return st.lists(_of(item), max_size=MAX_ITEMS).map(tuple)
        case inspect.DictType(key_type=key, value_type=value):
            return st.dictionaries(_of(key), _of(value), max_size=MAX_ITEMS)
        case inspect.IntType(ge=least, le=most):
            return st.integers(MIN_INTEGER if least is None else least, MAX_INTEGER if most is None else most)
        case inspect.BytesType(min_length=least, max_length=most):
            least = least or 0
            return st.binary(min_size=least, max_size=min(least + MAX_ITEMS, most or least + MAX_ITEMS))
        case inspect.StrType(max_length=most):
            return st.text(max_size=min(MAX_ITEMS, most or MAX_ITEMS))
        case inspect.EnumType(cls=cls):
            return st.sampled_from(list(cls))
        case inspect.BoolType():
            return st.booleans()
        case inspect.FloatType():
            return st.floats(allow_nan=False)
        case inspect.NoneType():
            return st.none()
    raise TypeError(f"no strategy for {info}: add one here")


def tags_of(union: Any) -> set[str]:
    """The tags of a union of messages."""
    return {kind.__struct_config__.tag for kind in union.__args__ if issubclass(kind, msgspec.Struct)}
