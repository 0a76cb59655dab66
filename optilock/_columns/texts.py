"""Versions and keys in characters that a tag can hold, and versions back from them.

RFC 9110 section 8.8.3 allows a tag more than is used here, the comma and the backslash among them,
and there are programs that split at the one and unescape the other.

A text comes from a client, so it is no version before it has been proved one: :func:`version_in`
takes what :func:`text_of` would write and what the column can hold, and nothing else. So no driver
ever sees a number that is too large for it, a UUID that is none, or a NUL.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from hashlib import sha256
from typing import Any
from urllib.parse import quote, unquote
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.types import TypeDecorator

from optilock._columns.kinds import KINDS, find_value, row_of
from optilock._columns.values import can_hold
from optilock.errors import ConfigurationError
from optilock.tokens.row_version import TransactionId

#: Digits of a number before its point, and after it, that are written out.
_MOST = 1000


def text_of(version: Any, name: str) -> str:
    """The text of a version of the class ``name``."""
    if _has_text(version):
        return quote(key_text(version, name), safe=":+=@")
    raise ConfigurationError(
        f"The version of {name} is of type {type(version).__name__}, which has no agreed text: use"
        " a number, a UUID, bytes, a datetime or a string as the version."
    )


def _has_text(version: Any) -> bool:
    kinds = (UUID, int, float, Decimal, bytes, datetime, str)
    return isinstance(version, kinds) and not isinstance(version, bool)


def key_text(value: Any, name: str) -> str:
    """The text of a value of the primary key of the class ``name``.

    Values that a column takes for the same have the same text: 7 and "7", 1 and 1.0, a moment in
    two time zones.
    """
    match value:
        case None:
            return "\0"
        case bool():
            return str(int(value))
        case int() if value.bit_length() > _MOST:
            return hex(value)  # no row has it, and Python writes no more than 4300 digits
        case str():
            return str.__str__(value)
        case UUID():
            return value.hex
        case Enum():
            return value.name
        case Decimal():
            return _number_text(value)
        case float() if value.is_integer():
            return str(int(value))
        case bytes() | bytearray() | memoryview():
            return bytes(value).hex()
        case datetime() if value.tzinfo is not None:
            return value.astimezone(UTC).isoformat()
        case date() | time():
            return value.isoformat()
    kind: Any = type(value)
    if kind.__str__ is object.__str__ and kind.__repr__ is object.__repr__:
        raise ConfigurationError(
            f"The key of {name} is of type {kind.__name__}, which has no text that is the same in"
            " every process: give the type a __str__."
        )
    return str(value)


def _number_text(value: Decimal) -> str:
    """Return the same text for equal numbers and for no others, in every decimal context.

    1.5 for 1.50, and 100 for 1E+2, as for the number 100; but no thousands of zeros.
    """
    sign, digits, exponent = value.as_tuple()
    if not value or not isinstance(exponent, int):
        return f"{value:f}" if value else "0"  # NaN, infinities; -0 is 0
    text = "".join(map(str, digits)).rstrip("0")
    exponent += len(digits) - len(text)
    if abs(exponent) > _MOST:
        return f"{'-' * sign}{text}E{exponent}"
    plain = f"{value:f}"
    return plain.rstrip("0").rstrip(".") if "." in plain else plain


# -- and back --------------------------------------------------------------------------------------


def version_in(text: str, kind: Any) -> Any:
    """The version that has this text, in a column of this type; ``None`` where none has."""
    if isinstance(kind, TransactionId):
        number = version_in(text, _BY_PYTHON[int])
        return number if number is not None and 0 <= number < 1 << 32 else None
    if isinstance(kind, TypeDecorator):
        return version_in(text, kind.impl_instance)
    is_known, read_as = row_of(KINDS, kind) is not None, kind
    if not is_known:
        with suppress(NotImplementedError, KeyError):
            read_as = _BY_PYTHON[kind.python_type]
    try:
        version = find_value(unquote(text, errors="strict"), read_as)
        if not _has_text(version) or text_of(version, "") != text:
            return None
    except (ValueError, ArithmeticError):  # no UTF-8; a moment that UTC does not have
        return None
    if not is_known:
        return version  # what such a column can hold is unknown
    if isinstance(version, datetime) and bool(kind.timezone) is (version.tzinfo is None):
        if not kind.timezone:
            return None
        # SQLite and MariaDB give a moment back without its zone, and drop it of what they are sent.
        version = version.replace(tzinfo=UTC)
    return version if can_hold(version, kind) else None


#: The kinds of types that a program has made itself (``UserDefinedType``).
_BY_PYTHON: dict[type, Any] = {
    **{int: sa.BigInteger(), float: sa.Float(), Decimal: sa.Numeric(), UUID: sa.Uuid()},
    **{bytes: sa.LargeBinary(), datetime: sa.DateTime(), str: sa.String()},
}


# -- values of columns as JSON, and back, each in the type that it had -----------------------------
#
# A value that JSON has no form for is an object with one empty name, ``{"": ["decimal", "1.50"]}``.

_PLAIN = (type(None), bool, int, float, str)
_MARK = ""


def dump_values(values: Mapping[str, Any]) -> str:
    """The text of these values.

    Raises:
        TypeError: one of them is of a type that has none.
    """
    found = {name: _written(value) for name, value in values.items()}
    return json.dumps(found, separators=(",", ":"), ensure_ascii=False)


@dataclass(frozen=True)
class Digest:
    """The digest of a value that is too long to be carried."""

    text: str

    @classmethod
    def of(cls, value: Any) -> Digest:
        """Return the digest of a value that :func:`dump_values` can write."""
        text = dump_values({"": value}).encode("utf-8", "surrogatepass")
        return cls(b64encode(sha256(text).digest()[:15]).decode())

    def is_of(self, value: Any) -> bool:
        """Return whether it is the digest of this value."""
        return self == Digest.of(value)


def load_values(text: str, enums: Callable[[str], Any]) -> dict[str, Any]:
    """The values of this text; ``enums`` gives the class of an attribute's names.

    Raises:
        ValueError, TypeError, LookupError: it is none of :func:`dump_values`.
    """
    found = json.loads(text)
    return {name: _read(value, enums(name)) for name, value in found.items()}


def _written(value: Any) -> Any:
    if type(value) in _PLAIN:
        return value
    if isinstance(value, list):
        return [_written(one) for one in value]
    if isinstance(value, dict):
        if _MARK not in value and all(type(key) is str for key in value):
            return {key: _written(one) for key, one in value.items()}
        return {_MARK: ["dict", [[_written(k), _written(v)] for k, v in value.items()]]}
    if isinstance(value, Enum):
        return {_MARK: ["enum", value.name]}
    if type(value) not in _TYPES:
        raise TypeError(type(value).__name__)
    name, text, _ = _TYPES[type(value)]
    return {_MARK: [name, text(value)]}


def _read(data: Any, enum: Any) -> Any:
    if isinstance(data, list):
        return [_read(one, enum) for one in data]
    if not isinstance(data, dict):
        return data
    if _MARK not in data:
        return {key: _read(one, enum) for key, one in data.items()}
    name, text = data[_MARK]
    if name == "dict":
        return {_read(key, enum): _read(one, enum) for key, one in text}
    if name == "enum":
        return enum[text]
    return _BY_NAME[name](text)


def _members(value: Any) -> list[Any]:
    return [_written(one) for one in value]


def _collected(kind: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda data: kind(_read(one, None) for one in data)


#: Type -> its name, its text, and back.
_TYPES: dict[type, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {
    Decimal: ("decimal", str, Decimal),
    UUID: ("uuid", str, UUID),
    bytes: ("bytes", bytes.hex, bytes.fromhex),
    datetime: ("datetime", datetime.isoformat, datetime.fromisoformat),
    date: ("date", date.isoformat, date.fromisoformat),
    time: ("time", time.isoformat, time.fromisoformat),
    timedelta: (
        "timedelta",
        lambda value: [value.days, value.seconds, value.microseconds],
        lambda data: timedelta(*data),
    ),
    set: ("set", _members, _collected(set)),
    frozenset: ("frozenset", _members, _collected(frozenset)),
    tuple: ("tuple", _members, _collected(tuple)),
    Digest: ("digest", lambda digest: digest.text, Digest),
}
_BY_NAME = {name: back for name, _, back in _TYPES.values()}
