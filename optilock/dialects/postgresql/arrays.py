"""Values of columns in PostgreSQL's arrays.

A type that an array cannot carry exactly (``varchar(n)[]`` would cut silently) is sent as its plain
carrier and is assigned, as a parameter would be.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Dialect, TypeDecorator, cast, types
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.types import TypeEngine

from optilock._undocumented.connections import has_bind_expression

#: Types that an array carries as they are.
_PLAIN = (
    types.BigInteger,
    types.SmallInteger,
    types.Integer,
    types.Boolean,
    types.Date,
    types.LargeBinary,
    types.Uuid,
)


@dataclass(frozen=True)
class Carrier:
    """The form in which an array carries the values of a column."""

    type: TypeEngine[Any]
    #: Applied to each value before the carrier's own type.
    prepare: Callable[[Any], Any] | None = None
    #: Assigned only after a cast to the column's own type.
    cast_to: TypeEngine[Any] | None = None

    def values(self, values: list[Any]) -> list[Any]:
        if self.prepare is None:
            return values
        return [self.prepare(value) for value in values]

    def restored(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        return column if self.cast_to is None else cast(column, self.cast_to)


def carrier_of(kind: TypeEngine[Any], dialect: Dialect) -> Carrier | None:
    """Return the carrier of a column type; ``None``: an array cannot hold its values."""
    if has_bind_expression(kind):
        return None
    for family, carrier in _FAMILIES:
        if isinstance(kind, family):
            return carrier(kind, dialect)
    return Carrier(kind) if isinstance(kind, _PLAIN) else None


def _decorated(kind: TypeDecorator[Any], dialect: Dialect) -> Carrier | None:
    if type(kind).bind_processor is not TypeDecorator.bind_processor:
        return None
    inner = carrier_of(kind.load_dialect_impl(dialect), dialect)
    if inner is None:
        return None
    outer, deeper = kind.process_bind_param, inner.prepare
    if type(kind).process_bind_param is TypeDecorator.process_bind_param:
        return inner

    def prepare(value: Any) -> Any:
        value = outer(value, dialect)
        return value if deeper is None else deeper(value)

    return Carrier(inner.type, prepare, inner.cast_to)


def _as_text(kind: types.Enum, dialect: Dialect) -> Carrier | None:
    if kind.native_enum:
        return None
    return Carrier(types.Text(), kind.dialect_impl(dialect).bind_processor(dialect))


def _as_json(kind: types.JSON, dialect: Dialect) -> Carrier:
    return Carrier(types.Text(), _json_text(kind, dialect), cast_to=kind)


def _json_text(kind: Any, dialect: Dialect) -> Callable[[Any], Any]:
    """The generic serializer: drivers wrap JSON in objects of their own, which arrays refuse."""
    processor: Callable[[Any], Any] | None
    processor = types.JSON.bind_processor(kind, dialect)  # type: ignore[no-untyped-call]
    if processor is not None:
        return processor

    def text(value: Any) -> str | None:
        """SQLAlchemy 2.1 leaves it to the driver, which does the same."""
        if value is None and kind.none_as_null:
            return None
        return json.dumps(None if value is types.JSON.NULL else value)

    return text


def _string(kind: types.String, dialect: Dialect) -> Carrier | None:
    return Carrier(types.Text()) if type(kind).__module__.startswith("sqlalchemy.") else None


def _interval(kind: types.Interval, dialect: Dialect) -> Carrier | None:
    return Carrier(types.Interval()) if type(kind) is types.Interval else None


#: The first one that a column's type is of; an Enum is a String to SQLAlchemy.
_FAMILIES: tuple[tuple[type[TypeEngine[Any]], Callable[[Any, Dialect], Carrier | None]], ...] = (
    (TypeDecorator, _decorated),
    (types.Enum, _as_text),
    (types.JSON, _as_json),
    (types.String, _string),
    (types.Float, lambda kind, dialect: Carrier(types.Double())),
    (types.Numeric, lambda kind, dialect: Carrier(types.Numeric())),
    (types.DateTime, lambda kind, dialect: Carrier(types.DateTime(timezone=kind.timezone))),
    (types.Time, lambda kind, dialect: Carrier(types.Time(timezone=kind.timezone))),
    (types.Interval, _interval),
)


def is_padded(kind: TypeEngine[Any], dialect: Dialect) -> bool:
    """Return whether it is ``char(n)``, which text and a parameter do not compare alike."""
    if isinstance(kind, TypeDecorator):
        return is_padded(kind.load_dialect_impl(dialect), dialect)
    return isinstance(kind, types.CHAR)


class _Uuids(TypeDecorator[Any]):
    """``uuid[]`` in one text: a driver would write the elements one by one, in Python."""

    impl = types.Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str:
        return f"{{{','.join(['NULL' if one is None else one.hex for one in value])}}}"

    def bind_expression(self, bindvalue: Any) -> ColumnElement[Any]:
        return cast(bindvalue, ARRAY(types.Uuid()))


def array_of(kind: TypeEngine[Any]) -> TypeEngine[Any]:
    """Return the type that carries the row parameters of a demanded condition."""
    return _Uuids() if isinstance(kind, types.Uuid) and kind.as_uuid else ARRAY(kind)
