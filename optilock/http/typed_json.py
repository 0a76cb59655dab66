"""Values of columns as JSON, and back: each comes back in the type that it had.

What JSON has no word for is an object with one empty name, ``{"": ["decimal", "1.50"]}``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

__all__ = ["read", "written"]

_PLAIN = (type(None), bool, int, float, str)
_MARK = ""


def written(values: Mapping[str, Any]) -> str:
    """The text of these values.

    Raises:
        TypeError: one of them is of a type that has none.
    """
    found = {name: _written(value) for name, value in values.items()}
    return json.dumps(found, separators=(",", ":"))


def read(text: str, enums: Callable[[str], Any]) -> dict[str, Any]:
    """The values of this text; ``enums`` gives the class of an attribute's names.

    Raises:
        ValueError, TypeError, LookupError: it is none of :func:`written`.
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
    for kind, (name, text, _) in _TYPES.items():
        if type(value) is kind:
            return {_MARK: [name, text(value)]}
    raise TypeError(type(value).__name__)


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
}
_BY_NAME = {name: back for name, _, back in _TYPES.values()}
