"""Kinds of columns, and the one reader of each: a text, or the value itself, becomes its value.

A key in a URL, a field of a form, a version in an ETag and a value of a JSON body are read by
:data:`KINDS`, one row for each kind. What differs is in its columns:

==========  =======================================  =====================  ====================
kind        a text that is read                      as a key in a URL      a field of a form
==========  =======================================  =====================  ====================
integer     ``+7``, ``007``                          ``7`` alone            yes
number      ``+7.50``, ``.5``, ``1e3``               ``7.50`` alone         yes
boolean     ``true``, ``on``, ``1``, ``yes``, ...    no text                yes
enum        as its column stores it                  the same               yes
text        every text                               the same               yes
UUID        with its hyphens or without              the same               yes
date        ``2026-01-02``                           the same               yes
moment      with or without seconds, ``T`` or blank  with seconds           yes
time        with or without seconds                  with seconds           if it has no offset
bytes       in hexadecimal                           no text                no
interval    none                                     no text                no
==========  =======================================  =====================  ====================

A version in an ETag is a text that is read, and that its value is written as
(:func:`optilock._columns.texts.version_in`). A JSON body has values, which no reader changes: a
database that converts texts takes those that are read here (:mod:`optilock._columns.values`).

The types of the application (``TypeDecorator``) and those of one database alone are of no kind.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from math import isfinite
from typing import Any, TypeVar
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.types import TypeEngine

T = TypeVar("T")
#: The dialect where the database is unknown.
ANY = DefaultDialect()
_WHOLE = re.compile(r"[+-]?\d{1,64}", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d{1,400}(\.\d{0,400})?|\.\d{1,400})(e[+-]?\d{1,4})?", re.I | re.ASCII)
_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_ZONE = r"(Z|[+-]\d\d:\d\d)?"
TIME = re.compile(r"\d\d:\d\d(:\d\d(\.\d{1,6})?)?", re.ASCII)
_ZONED_TIME = re.compile(TIME.pattern + _ZONE, re.ASCII)
_MOMENT = re.compile(f"{_DAY.pattern}[T ]{_ZONED_TIME.pattern}", re.ASCII)
#: As Python writes it.
_EXACT_TIME = rf"\d\d:\d\d:\d\d(\.(?!0{{6}})\d{{6}})?(?!-00:00){_ZONE}"


# -- the value of a text ---------------------------------------------------------------------------


def _reader(pattern: re.Pattern[str], read: Callable[[str], Any]) -> Callable[[str, Any], Any]:
    return lambda text, _: read(text) if pattern.fullmatch(text) else _refused()


def _refused() -> Any:
    raise ValueError


_decimal = _reader(_NUMBER, Decimal)


def _number(text: str, kind: Any) -> Any:
    number = _decimal(text, kind)
    return number if kind.asdecimal else _finite(float(number))


def _finite(number: float) -> float:
    return number if isfinite(number) else _refused()


_TRUE, _FALSE = ("true", "on", "1", "yes", "y", "t"), ("false", "off", "0", "no", "n", "f")
_BOOLEANS = {**dict.fromkeys(_TRUE, True), **dict.fromkeys(_FALSE, False)}


def _boolean(text: str, kind: Any) -> bool:
    found = _BOOLEANS.get(text.lower())
    return _refused() if found is None else found


def _enum(text: str, kind: Any) -> Any:
    found = str.__str__(text) if text in kind.enums and not isinstance(text, Enum) else _refused()
    return kind.result_processor(ANY, None)(found)


def stored_name(member: Enum, kind: TypeEngine[Any]) -> str:
    """Return the text as which a column stores the member of an enum; its name elsewhere."""
    if not isinstance(member, getattr(kind, "enum_class", None) or ()):
        return member.name
    process = kind.bind_processor(ANY)
    return member.name if process is None else str(process(member))


def _uuid(text: str, kind: Any) -> Any:
    value = UUID(text)
    if text.lower() not in (str(value), value.hex):
        raise ValueError
    return value if kind.as_uuid else str(value)


def _time(text: str, kind: Any) -> time:
    found = time.fromisoformat(text) if _ZONED_TIME.fullmatch(text) else _refused()
    return found if found.tzinfo is None or kind.timezone else _refused()


# -- the value itself, as a program gives it: as the column gives it back --------------------------


def _plain_number(value: Any, kind: Any) -> Any:
    number = Decimal(repr(float(value)) if isinstance(value, float) else value)
    if not number.is_finite():
        raise ValueError
    if not kind.asdecimal:
        return _finite(float(number))
    if kind.scale is not None and not has_places(number, kind.scale):
        raise ValueError  # it is stored as another number
    return number


def has_places(number: Decimal, scale: int) -> bool:
    """Return whether the finite number has no more decimal places than these."""
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    return not any(digits[exponent + scale :]) if exponent < -scale else True


def _plain_boolean(value: Any, kind: Any) -> bool:
    return bool(value) if value in (0, 1) else _refused()


def _plain_enum(value: Any, kind: Any) -> Any:
    return value if isinstance(value, kind.enum_class or str) else _refused()


def _plain_text(value: Any, kind: Any) -> str:
    if isinstance(value, str):
        return str.__str__(value)
    is_number = type(value) is int and abs(value) < 1 << 64
    return str(value) if is_number else _refused()  # MariaDB would take "7a" for 7


def _plain_uuid(value: Any, kind: Any) -> Any:
    return value if kind.as_uuid else str(value)


def _plain_moment(value: datetime, kind: Any) -> datetime:
    # Which of its times would be stored?
    return _refused() if value.tzinfo is not None and not kind.timezone else value


# -- the table -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """How the values of a column are given."""

    #: The values, in words for a client.
    words: str
    #: The types of values that a program gives, and those of them that are none.
    values: Any = ()
    no_values: Any = ()
    #: The value of a text; ``ValueError`` if it has none. None: no value has a text.
    read: Callable[[str, Any], Any] | None = None
    #: The texts that are keys; None: a key is no text.
    key: str | None = None
    #: A value that is given, as the column gives it back; ``ValueError`` if it has no such value.
    plain: Callable[[Any, Any], Any] = lambda value, _: value
    #: The kind of field that HTML has for its values; None: they have no text for people.
    field: str | None = "text"


_EVERY = r"(?s:.*)"
_NUMERIC = Kind(
    "a number that it has room for",
    (int, float, Decimal),
    bool,
    _number,
    r"-?(0|[1-9]\d{0,400})(\.\d{1,400})?",
    _plain_number,
    field="number",
)
_BYTES = Kind(
    "bytes",
    (bytes, bytearray, memoryview),
    read=lambda text, _: bytes.fromhex(text),
    plain=lambda value, _: bytes(value),
    field=None,
)

#: An Enum is a String to SQLAlchemy, so the first of a type's bases that stands here has its kind.
KINDS: Mapping[type[Any], Kind] = {
    sa.Integer: Kind(
        "a whole number that it has room for",
        int,
        bool,
        _reader(_WHOLE, int),
        r"0|-?[1-9]\d{0,19}",
        lambda value, _: int(value),
        field="number",
    ),
    sa.Numeric: _NUMERIC,
    sa.Float: _NUMERIC,
    sa.Boolean: Kind("true or false", int, read=_boolean, plain=_plain_boolean, field="select"),
    sa.Enum: Kind("one of its names", (str, Enum), (), _enum, _EVERY, _plain_enum, field="select"),
    sa.String: Kind("a text", (str, int), bool, lambda text, _: text, _EVERY, _plain_text),
    sa.Uuid: Kind("a UUID", (UUID, str), (), _uuid, _EVERY, _plain_uuid),
    sa.DateTime: Kind(
        "a date and a time",
        datetime,
        (),
        _reader(_MOMENT, datetime.fromisoformat),
        f"{_DAY.pattern}[T ]{_EXACT_TIME}",
        _plain_moment,
        field="datetime-local",
    ),
    sa.Date: Kind(
        "a date", date, datetime, _reader(_DAY, date.fromisoformat), _EVERY, field="date"
    ),
    sa.Time: Kind("a time", time, (), _time, _EXACT_TIME, field="time"),
    sa.Interval: Kind("a length of time", timedelta, field=None),
    sa.LargeBinary: _BYTES,
    sa.BINARY: _BYTES,
    sa.VARBINARY: _BYTES,
    sa.ARRAY: Kind("a list", field=None),
    sa.JSON: Kind("what JSON can say", field=None),
}


def row_of(table: Mapping[type[Any], T], kind: TypeEngine[Any]) -> T | None:
    """Return the row of a table of types for this type, or for its nearest base there."""
    return next((table[cls] for cls in type(kind).__mro__ if cls in table), None)


def find_value(text: str, kind: TypeEngine[Any]) -> Any:
    """Return the value of a text; ``None`` if no value of the column has it."""
    known = row_of(KINDS, kind)
    try:
        return None if known is None or known.read is None else known.read(text, kind)
    except (ValueError, ArithmeticError):
        return None


def read_key(value: Any, kind: Any) -> Any:
    """Return the value of a key, which came as a text or as it is.

    Raises:
        ValueError: no row can have it.
    """
    known = row_of(KINDS, kind)
    if known is None or not known.values:
        if isinstance(value, str) and value != value.strip():
            raise ValueError  # which a database may leave out
        return value
    members = getattr(kind, "enum_class", None) or ()
    if isinstance(value, str) and not isinstance(value, members):
        if known.key is None or not re.fullmatch(known.key, value, re.ASCII):
            raise ValueError
        value = find_value(value, kind)
    if not isinstance(value, known.values) or isinstance(value, known.no_values):
        raise ValueError
    return known.plain(value, kind)
