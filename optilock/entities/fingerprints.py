"""The bytes of a body: the same for two requests that want the same stored, and for no others.

``{"title": "Home", "tags": ["a"]}`` is written with the names in their order, and each value with
its type and its length, so that no two bodies have the same bytes. What is written is the same in
every process and with every Python: nothing depends on the order of a dictionary or of a set, on
hashes, or on the context of decimal numbers. A type that promises no such text is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from optilock.errors import ConfigurationError
from optilock.http.errors import BadEntity
from optilock.http.texts import key_text

__all__ = ["body_bytes", "counted"]


def body_bytes(values: Mapping[str, Any], name: str) -> bytes:
    """The bytes of a body: attribute -> value of the class ``name``.

    Raises:
        BadEntity: a value is nested too deeply.
        ConfigurationError: a value is of a type without a text that stays the same.
    """
    try:
        return b"".join(
            counted(attribute) + _bytes(values[attribute], f"{name}.{attribute}")
            for attribute in sorted(values)
        )
    except RecursionError:
        raise BadEntity(
            f"A value of {name} is nested too deeply. Nothing was sent.",
            detail="A value that was sent is nested too deeply.",
        ) from None


def counted(*parts: str | bytes) -> bytes:
    """Each part with its length before it, so that parts in a row stay apart."""
    data = (one.encode("utf-8", "surrogatepass") if isinstance(one, str) else one for one in parts)
    return b"".join(b"%d:%b" % (len(one), one) for one in data)


def _bytes(value: Any, name: str) -> bytes:
    kind, text = _typed(value, name)
    return kind + counted(text)


def _typed(value: Any, name: str) -> tuple[bytes, str | bytes]:
    """The letter of its type, and its text."""
    match value:
        case None:
            return b"n", ""
        case Enum():
            return b"e", value.name or str(value.value)  # no flag at all has no name
        case bool():
            return b"b", key_text(value, name)
        case str():
            return b"s", str.__str__(value)
        case int():
            return b"i", int.__repr__(value)
        case float():
            return b"f", float.__repr__(value)
        case Decimal():
            return b"d", _decimal(value)
        case bytes() | bytearray() | memoryview():
            return b"y", bytes(value)
        case UUID():
            return b"u", key_text(value, name)
        case date() | time():  # a datetime is a date
            return b"t", key_text(value, name)
        case timedelta():
            return b"p", f"{value.days} {value.seconds} {value.microseconds}"
        case Mapping():
            pairs = ((_bytes(key, name), _bytes(one, name)) for key, one in value.items())
            return b"o", b"".join(key + one for key, one in sorted(pairs))
        case list() | tuple():
            return b"l", b"".join(_bytes(one, name) for one in value)
        case set() | frozenset():
            return b"m", b"".join(sorted(_bytes(one, name) for one in value))
    raise ConfigurationError(
        f"{name} was given a {type(value).__name__}, which has no text that is the same in every"
        " process, and a request that is sent again is known by its values: give plain values"
        " (text, numbers, bytes, UUIDs, dates, lists and dictionaries of these), or leave"
        " idempotency= away. Nothing was sent."
    )


def _decimal(value: Decimal) -> str:
    """``str(value)`` asks the context of the thread; this does not."""
    sign, digits, exponent = value.as_tuple()
    return f"{sign} {''.join(map(str, digits))} {exponent}"
