"""Values that a client sends, checked against the type of their column.

A value that no column of the type can hold never reaches a driver, whose error would not show that
the client is wrong. A column of text takes texts alone. A database or a driver that accepts the
text of a number or of a moment goes on doing so, for texts that a form reads too
(:mod:`optilock._columns.kinds`). :class:`Limits` has the differences between databases, and
each has its own (:meth:`optilock.dialects.values.Values.limits`). The default holds on all of them.

Types of the application (``TypeDecorator``) and types that SQLAlchemy has for one database alone
are not checked: their conversion of values is unknown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime, time, timedelta
from decimal import ROUND_HALF_EVEN, Context, Decimal
from enum import Enum as PythonEnum
from math import isinf, isnan
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.types import TypeDecorator, TypeEngine

from optilock._columns.kinds import KINDS, find_value, row_of
from optilock._undocumented.connections import json_writer


@dataclass(frozen=True)
class Limits:
    """The differences between databases and their drivers; the defaults hold on all of them."""

    #: Bits of a small integer, an integer, and a big one.
    bits: tuple[int, int, int] = (16, 32, 64)
    #: Whether the text of a number or a time counts as that (:mod:`optilock._columns.kinds`).
    converts: bool = False
    #: Whether a Decimal counts as a whole number.
    decimals: bool = False
    #: Columns of numbers that take True for 1.
    bools: tuple[type[TypeEngine[Any]], ...] = ()
    no_bools: tuple[type[TypeEngine[Any]], ...] = ()
    nan: bool = False
    infinity: bool = False
    #: Digits, and those of the fraction, of a Numeric that names none; whether they are checked.
    digits: tuple[int, int] | None = None
    counts_digits: bool = True
    most_digits: int = 65
    #: The name of a float of single precision; None: there is none.
    single: str | None = None
    #: Whether the length of a text is checked.
    lengths: bool = True
    nul: bool = False
    #: How many bytes a column of this type holds.
    octets: Callable[[TypeEngine[Any], sa.Dialect], int | None] | None = None
    #: Whether a time's offset is accepted in a text.
    offsets: bool = False
    #: Whether a time must have a zone exactly if the column has one.
    zones: bool = False
    json_nan: bool = False
    json_surrogates: bool = False


STRICTEST = Limits()


_CERTAIN = replace(STRICTEST, digits=(10, 0), zones=True)


def can_hold(
    value: Any,
    kind: TypeEngine[Any],
    limits: Limits = STRICTEST,
    dialect: sa.Dialect | None = None,
) -> bool:
    """Return whether a column of this type can hold the value. NULL is not checked here."""
    if isinstance(kind, TypeDecorator) and not isinstance(kind, sa.Interval):
        return True
    check = row_of(_CHECKS, kind)
    if check is not None and not check(value, kind, limits, dialect):
        return False
    return dialect is None or _is_bound(value, kind, dialect)


def surely_holds(value: Any, kind: TypeEngine[Any]) -> bool:
    """Return whether a column of this type holds the value in every database."""
    if isinstance(kind, TypeDecorator) and not isinstance(kind, sa.Interval):
        return True
    check = _CHECKS.get(type(kind)) or row_of(_CHECKS, kind)
    return check is not None and check(value, kind, _CERTAIN, None)


def describe_accepted(kind: TypeEngine[Any]) -> str:
    """Return the values that a column of this type takes, in words for the client."""
    known, length = row_of(KINDS, kind), getattr(kind, "length", None)
    words = "another value" if known is None else known.words
    return words + (f" of at most {length} characters" if length else "")


def _is_bound(value: Any, kind: TypeEngine[Any], dialect: sa.Dialect) -> bool:
    """Return whether SQLAlchemy's own type hands it to the driver."""
    process = kind.dialect_impl(dialect).bind_processor(dialect)
    try:
        if process is not None:
            process(value)
    except Exception:
        return False
    return True


# -- numbers ---------------------------------------------------------------------------------------


def _integer(value: Any, kind: Any, limits: Limits, dialect: Any) -> bool:
    whole = value if type(value) is int else _as_number(value, kind, limits)
    if isinstance(whole, Decimal):
        if not whole.is_finite() or whole.adjusted() > 20 or whole != int(whole):
            return False
        whole = int(whole)
    return whole is not None and _in_range(whole, kind, limits)


_BITS = {"TINYINT": 8, "MEDIUMINT": 24}  # MariaDB


def _in_range(whole: int, kind: Any, limits: Limits) -> bool:
    small, bits, big = limits.bits
    if isinstance(kind, (sa.SmallInteger, sa.BigInteger)):
        bits = big if isinstance(kind, sa.BigInteger) else small
    bits = _BITS.get(kind.__visit_name__, bits)
    if getattr(kind, "unsigned", False):  # MariaDB
        return 0 <= whole < 1 << bits
    return -1 << (bits - 1) <= whole < 1 << (bits - 1)


def _as_number(value: Any, kind: Any, limits: Limits) -> Any:
    """The number that a driver makes of the value, as an int or a Decimal; ``None``: none."""
    whole = isinstance(kind, sa.Integer)
    match value:
        case bool():
            fits = isinstance(kind, limits.bools) and not isinstance(kind, limits.no_bools)
            return int(value) if fits else None
        case int():
            return value
        case float():
            return Decimal(repr(float(value))) if limits.converts or not whole else None
        case Decimal():
            return value if limits.decimals or not whole else None
        case "NaN" | "Infinity" | "-Infinity" if limits.converts and limits.nan and not whole:
            return Decimal(value)
        case str() if limits.converts:
            return find_value(value, kind if whole else _DECIMAL)
    return None


_DECIMAL: Any = sa.Numeric()


def _float(value: Any, kind: Any, limits: Limits, dialect: Any) -> bool:
    number = _as_number(value, kind, limits)
    try:
        found = None if number is None else float(number)
    except (OverflowError, ValueError):
        return False
    if found is None or isnan(found):
        return found is not None and limits.nan
    if isinf(found):
        return limits.infinity and not isinstance(number, int) and Decimal(number).is_infinite()
    return found == 0 or 1e-37 < abs(found) < 3.4e38 or _is_double(kind, limits, dialect)


def _is_double(kind: Any, limits: Limits, dialect: Any) -> bool:
    """Return whether a float of the type has double precision in this database."""
    if dialect is None or limits.single is None:
        return dialect is not None
    declared = kind.compile(dialect=dialect).upper()
    bits = re.fullmatch(r"FLOAT\((\d+)\)", declared)
    return not (declared == limits.single or (bits and int(bits[1]) <= 24))


def _numeric(value: Any, kind: Any, limits: Limits, dialect: Any) -> bool:
    number = _as_number(value, kind, limits)
    if number is None:
        return False
    number = Decimal(number)
    precision, scale = kind.precision, kind.scale
    if number.is_nan():
        return limits.nan
    if number.is_infinite():
        return limits.infinity and not (precision and limits.counts_digits)
    return _has_room(number, precision, scale, limits)


def _has_room(number: Decimal, precision: Any, scale: Any, limits: Limits) -> bool:
    if precision is None:
        precision, scale = limits.digits or (None, None)
    if precision is None or not limits.counts_digits:
        return number.adjusted() < limits.most_digits
    places = precision - (scale or 0)
    if number.adjusted() == places - 1:  # 999.995 is 1000.00
        number = number.quantize(Decimal(1).scaleb(-(scale or 0)), context=_EXACT)
    return number == 0 or number.adjusted() < places


#: For numbers of as many digits as a column may have; the context of the program has 28 of them.
_EXACT = Context(prec=2000, rounding=ROUND_HALF_EVEN)


def _boolean(value: Any, kind: Any, limits: Limits, dialect: Any) -> bool:
    return isinstance(value, (int, float, Decimal)) and value in (0, 1)


# -- text, bytes and names -------------------------------------------------------------------------


def _string(value: Any, kind: Any, limits: Limits, dialect: Any) -> bool:
    if not isinstance(value, str) or ("\0" in value and not limits.nul):
        return False
    try:
        octets = len(value.encode())
    except UnicodeEncodeError:  # half of a pair: it has no UTF-8
        return False
    length = _length(kind)
    if octets > 255 and not length and dialect is None:
        return False
    octets_at_most = limits.octets(kind, dialect) if octets > 255 and limits.octets else None
    if octets_at_most is not None:
        return octets <= octets_at_most
    return not (limits.lengths and length and len(value) > length)


def _length(kind: Any) -> int:
    """Of a column that has one; that of a TEXT is a hint."""
    return (kind.length or 0) if kind.__visit_name__ not in _TEXTS else 0


_TEXTS = {"text", "unicode_text", "TEXT"}


def _bytes(value: Any, kind: Any, limits: Limits, dialect: Any) -> bool:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        return False
    size = memoryview(value).nbytes
    if dialect is None and size > 255:
        return False
    most = limits.octets(kind, dialect) if limits.octets is not None and size > 255 else None
    if most is None and limits.lengths and not isinstance(kind, sa.LargeBinary):
        most = kind.length
    return most is None or size <= most


def _enum(value: Any, kind: Any, limits: Limits, dialect: Any) -> bool:
    if isinstance(value, PythonEnum) and kind.enum_class is not None:
        return isinstance(value, kind.enum_class)
    return isinstance(value, str) and value in kind.enums


def _uuid(value: Any, kind: Any, limits: Limits, dialect: Any) -> bool:
    if isinstance(value, UUID):
        return kind.as_uuid or limits.converts
    is_read = isinstance(value, str) and (limits.converts or not kind.as_uuid)
    return is_read and find_value(value, kind) is not None


def _json(value: Any, kind: Any, limits: Limits, dialect: Any) -> bool:
    binary = kind.__visit_name__ == "JSONB"  # it keeps texts, and not what was written
    try:
        text = json_writer(dialect)(value)
        text = text.decode() if isinstance(text, bytes) else text
        read = json.loads(text, parse_constant=None if limits.json_nan else _refuse)
        if "\\u" in text and (binary or not limits.json_surrogates):
            json.dumps(read, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError):
        return False
    return not binary or "\\u0000" not in text


def _refuse(constant: str) -> None:
    raise ValueError(constant)


# -- moments ---------------------------------------------------------------------------------------


def _date(value: Any, kind: Any, limits: Limits, dialect: Any) -> bool:
    return _moment(value, limits) is not None


def _datetime(value: Any, kind: Any, limits: Limits, dialect: Any) -> bool:
    found = _moment(value, limits)
    if limits.zones and not isinstance(value, datetime):
        return False
    if limits.zones or limits.offsets:  # or it would be a moment of the server's session
        return found is not None and bool(kind.timezone) is bool(getattr(found, "tzinfo", None))
    return found is not None


def _moment(value: Any, limits: Limits) -> Any:
    """The day or the moment that a database makes of a value; ``None``: it makes none."""
    if not isinstance(value, str) or not limits.converts:
        return value if isinstance(value, date) else None
    found = find_value(value, _DAY) or find_value(value, _MOMENT)
    return found if limits.offsets or not getattr(found, "tzinfo", None) else None


_DAY, _MOMENT = sa.Date(), sa.DateTime()


def _time(value: Any, kind: Any, limits: Limits, dialect: Any) -> bool:
    if isinstance(value, str):
        found = find_value(value, kind) if limits.converts else None
        return found is not None and (limits.offsets or found.tzinfo is None)
    return isinstance(value, time)


def _interval(value: Any, kind: Any, limits: Limits, dialect: Any) -> bool:
    if not isinstance(value, timedelta):
        return False
    return dialect is not None or -700_000 < value.days < 2_900_000  # or a moment since 1970


def _array(value: Any, kind: Any, limits: Limits, dialect: Any) -> bool:
    """A text is none: a driver may write one element for each of its characters."""
    if dialect is None and limits is _CERTAIN:
        return False  # the database is asked
    return isinstance(value, (list, tuple, set, frozenset))


_CHECKS: Mapping[type[Any], Callable[[Any, Any, Limits, Any], bool]] = {
    sa.ARRAY: _array,
    sa.Interval: _interval,
    sa.Enum: _enum,
    sa.Boolean: _boolean,
    sa.Integer: _integer,
    sa.Float: _float,
    sa.Numeric: _numeric,
    sa.String: _string,
    sa.Uuid: _uuid,
    sa.DateTime: _datetime,
    sa.Date: _date,
    sa.Time: _time,
    sa.LargeBinary: _bytes,
    sa.BINARY: _bytes,
    sa.VARBINARY: _bytes,
    sa.JSON: _json,
}
