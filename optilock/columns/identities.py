"""Primary keys as a client or a program gives them, in one form for each row.

A URL has a key as text, a program has the value itself. A text is accepted if Python or ISO writes
the value so: ``7`` and not ``+7``, ``07``, ``7.0`` or ``" 7"``, which a database or a driver would
also treat as 7. So each row has one key and one ETag, and a row that is named twice is noticed.
Every other text, and a value of another type than the column's, is the key of no row
(:class:`~optilock.errors.NotFound`). For a new row it is the client's mistake
(:class:`~optilock.errors.BadEntity`).

The value of an application's type (``TypeDecorator``) is converted by the type and back. Types that
SQLAlchemy has for one database alone are not checked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum as PythonEnum
from math import isfinite
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.orm import Mapper
from sqlalchemy.types import TypeDecorator, TypeEngine

from optilock.columns.values import describe_accepted, has_places
from optilock.errors import BadEntity, ConfigurationError, NotFound
from optilock.mapped import Identity, facts
from optilock.undocumented.connections import variants_of
from optilock.undocumented.mappers import keep_with_mapping

#: Of these a database takes no two values for the same key that differ here.
_EXACT = (sa.Integer, sa.Numeric, sa.Float, sa.Boolean, sa.Enum, sa.Date, sa.Uuid)
#: Whole numbers of one database alone.
_NUMBERS = {"OID", "YEAR"}
_KEPT = "_optilock_key"
#: The dialect for types of the application while the database is unknown.
_ANY = DefaultDialect()


def identity_given(call: str, mapper: Mapper[Any], key: Any) -> Identity:
    """Return the key that the function ``call`` got, in the order of the key's columns.

    Raises:
        NotFound: no row has such a key.
        ConfigurationError: there are more values than columns, or fewer.
    """
    known = _key_of(mapper)
    if known.is_number and type(key) is int:
        return (key,)  # nearly always
    given = _parts(call, mapper, key)
    try:
        return tuple(map(_read, known.kinds, given))
    except ValueError:
        raise NotFound(mapper.class_, given) from None


def identity_of_new_row(call: str, mapper: Mapper[Any], key: Any) -> Identity:
    """Return the key of a new row.

    Raises:
        BadEntity: no row can have such a key.
        ConfigurationError: there are more values than columns, or fewer.
    """
    found = []
    for name, kind, value in zip(
        facts(mapper).keys, _key_of(mapper).kinds, _parts(call, mapper, key), strict=True
    ):
        try:
            found.append(_read(kind, value))
        except ValueError:
            raise BadEntity(
                f"{mapper.class_.__name__}.{name}, a part of the key, takes"
                f" {describe_accepted(kind)}, and something else was sent. Nothing was written.",
                (name,),
            ) from None
    return tuple(found)


def has_one_spelling(mapper: Mapper[Any]) -> bool:
    """Return whether a key that was read equals the key that the database returns of the row.

    Text need not be: a collation, or its type, may ignore case, blanks and more, and a type of the
    application, or of one database, may have one form of several.
    """
    return _key_of(mapper).has_one_spelling


def is_of_texts(mapper: Mapper[Any]) -> bool:
    """Return whether all key columns are exact or texts: equal ETags then mean equal keys."""
    return _key_of(mapper).are_all((*_EXACT, sa.String))


def _forms(kind: TypeEngine[Any]) -> list[TypeEngine[Any]]:
    return [kind, *variants_of(kind)]


def identity_in(mapper: Mapper[Any], identity: Identity, stored: Mapping[str, Any]) -> Identity:
    """Return the key as the database has returned it, from the ``stored`` values of the row."""
    keys = zip(facts(mapper).keys, identity, strict=True)
    return tuple(stored.get(name, value) for name, value in keys)


class _Key:
    """The columns of a primary key."""

    def __init__(self, mapper: Mapper[Any]) -> None:
        self.kinds = tuple(column.type for column in mapper.primary_key)
        #: It is one column of whole numbers, so an ``int`` is the identity.
        self.is_number = len(self.kinds) == 1 and isinstance(self.kinds[0], sa.Integer)
        self.has_one_spelling = self.are_all(_EXACT)

    def are_all(self, families: tuple[type[Any], ...]) -> bool:
        """Return whether all columns are of these types, with each database."""
        return all(isinstance(form, families) for kind in self.kinds for form in _forms(kind))


def _key_of(mapper: Mapper[Any]) -> _Key:
    record: _Key | None = mapper.__dict__.get(_KEPT)
    return keep_with_mapping(mapper, _KEPT, _Key(mapper)) if record is None else record


def _parts(call: str, mapper: Mapper[Any], key: Any) -> tuple[Any, ...]:
    names = facts(mapper).keys
    if isinstance(key, Mapping):
        given = tuple(key[name] for name in names) if set(key) == set(names) else ()
    else:
        given = tuple(key) if isinstance(key, (tuple, list)) else (key,)
    if len(given) != len(names) or any(value is None for value in given):
        raise ConfigurationError(
            f"{call}() got a primary key that {mapper.class_.__name__} cannot have: give"
            f" {' and '.join(names)}, each with a value, as session.get() takes them."
        )
    return given


def _read(kind: TypeEngine[Any], value: Any) -> Any:
    """The value as the column gives it back.

    Raises:
        ValueError: no row can have it.
    """
    if type(value) is int and isinstance(kind, sa.Integer):
        return value  # nearly always
    variants = variants_of(kind)
    for one in variants:  # the database is unknown
        with suppress(ValueError):
            return _read_as(one, value)
    return _read_as(kind, value)


def _read_as(kind: TypeEngine[Any], value: Any) -> Any:
    if isinstance(kind, TypeDecorator) and not isinstance(kind, sa.Interval):
        return _decorated(kind, value)
    for family, read in _FAMILIES:
        if isinstance(kind, family):
            return read(value, kind)
    if kind.__visit_name__ in _NUMBERS:
        return _integer(value, kind)
    if isinstance(value, str) and value != value.strip():
        raise ValueError  # which a database may leave out
    return value


def _decorated(kind: TypeDecorator[Any], value: Any) -> Any:
    """Return the value as the type writes and reads it."""
    if type(kind).bind_processor is not TypeDecorator.bind_processor:
        return value
    try:
        if type(kind).process_bind_param is not TypeDecorator.process_bind_param:
            value = kind.process_bind_param(value, _ANY)
        value = _read(kind.load_dialect_impl(_ANY), value)
        if type(kind).process_result_value is not TypeDecorator.process_result_value:
            value = kind.process_result_value(value, _ANY)
    except Exception as error:  # any error of the type for a foreign text
        raise ValueError from error
    return value


# -- numbers ---------------------------------------------------------------------------------------

_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,19}")
_DECIMAL = re.compile(r"-?(0|[1-9][0-9]{0,400})(\.[0-9]{1,400})?")


def _integer(value: Any, kind: Any) -> int:
    if isinstance(value, str):
        return int(_matched(_WHOLE, value))
    return int(_of(value, int, but=bool))


def _number(value: Any, kind: Any) -> Any:
    if isinstance(value, str):
        number = Decimal(_matched(_DECIMAL, value))
    else:
        plain = _of(value, (int, float, Decimal), but=bool)
        number = Decimal(repr(float(plain)) if isinstance(plain, float) else plain)
    if not number.is_finite():
        raise ValueError
    if not kind.asdecimal:
        as_float = float(number)
        return as_float if isfinite(as_float) else _refused()
    if kind.scale is not None and not has_places(number, kind.scale):
        raise ValueError  # it is stored as another number
    return number


def _boolean(value: Any, kind: Any) -> bool:
    return bool(value) if _of(value, int) in (0, 1) else _refused()


# -- text, bytes and names -------------------------------------------------------------------------


def _text(value: Any, kind: Any) -> str:
    if type(value) is int and abs(value) < 1 << 64:
        return str(value)  # MariaDB would take "7a" for 7
    return str.__str__(_of(value, str))


def _bytes(value: Any, kind: Any) -> bytes:
    return bytes(_of(value, (bytes, bytearray, memoryview)))


def _enum(value: Any, kind: Any) -> Any:
    members = kind.enum_class
    if members is not None and isinstance(value, members):
        return value
    if isinstance(value, PythonEnum) or _text(value, kind) not in kind.enums:
        raise ValueError
    if members is None:
        return str.__str__(value)
    return list(members.__members__.values())[kind.enums.index(value)]


def _uuid(value: Any, kind: Any) -> Any:
    if not isinstance(value, UUID):
        text = _text(value, kind)
        value = UUID(text)
        if text.lower() not in (str(value), value.hex):
            raise ValueError
    return value if kind.as_uuid else str(value)


# -- moments ---------------------------------------------------------------------------------------


def _date(value: Any, kind: Any) -> date:
    if not isinstance(value, str):
        return _of(value, date, but=datetime)  # type: ignore[no-any-return]
    found = date.fromisoformat(value)
    return found if found.isoformat() == value else _refused()


def _datetime(value: Any, kind: Any) -> datetime:
    found = value
    if isinstance(value, str):
        found = datetime.fromisoformat(value)
        written = value.removesuffix("Z") + "+00:00" if value.endswith("Z") else value
        if written not in (found.isoformat(), found.isoformat(" ")):
            raise ValueError
    if _of(found, datetime).tzinfo is not None and not kind.timezone:
        raise ValueError  # which of its times would be stored?
    return found  # type: ignore[no-any-return]


def _time(value: Any, kind: Any) -> time:
    if not isinstance(value, str):
        return _of(value, time)  # type: ignore[no-any-return]
    found = time.fromisoformat(value)
    return found if found.isoformat() == value else _refused()


def _interval(value: Any, kind: Any) -> timedelta:
    return _of(value, timedelta)  # type: ignore[no-any-return]


# -- what they share -------------------------------------------------------------------------------


def _matched(pattern: re.Pattern[str], text: str) -> str:
    return text if pattern.fullmatch(text) else _refused()


def _of(value: Any, kinds: Any, *, but: Any = ()) -> Any:
    return value if isinstance(value, kinds) and not isinstance(value, but) else _refused()


def _refused() -> Any:
    raise ValueError


#: The first one that a column's type is of; an Enum is a String to SQLAlchemy.
_FAMILIES: tuple[tuple[Any, Callable[[Any, Any], Any]], ...] = (
    (sa.Integer, _integer),
    ((sa.Numeric, sa.Float), _number),
    (sa.Boolean, _boolean),
    (sa.Enum, _enum),
    (sa.String, _text),
    (sa.Uuid, _uuid),
    (sa.DateTime, _datetime),
    (sa.Date, _date),
    (sa.Time, _time),
    (sa.Interval, _interval),
    ((sa.LargeBinary, sa.BINARY, sa.VARBINARY), _bytes),
)
