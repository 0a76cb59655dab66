"""Values for other programs and for logs: mappings that nobody changes, and what JSON can take.

``optilock.errors.Entry`` carries its sides as :class:`ReadOnly` mappings. ``as_dict()`` of entries,
conflicts and events, and the problem documents of :mod:`optilock.web`, show values by
:func:`as_json`.
"""

from __future__ import annotations

import copy
from base64 import b64encode
from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from datetime import date, time
from decimal import Decimal
from enum import Enum
from math import isfinite
from operator import is_
from typing import Any

__all__ = ["NAN", "ReadOnly", "alone", "as_json", "named_nan"]

#: In the place of a NaN, which equals nothing, itself included.
NAN: Any = object()


class ReadOnly(Mapping[str, Any]):
    """A mapping that cannot be changed. It keeps the dict that it gets; its copy is a dict.

    ``types.MappingProxyType`` would do if it could be copied: ``dataclasses.asdict`` copies.
    """

    __slots__ = ("_values",)

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def keys(self) -> KeysView[str]:
        return self._values.keys()

    def values(self) -> ValuesView[Any]:
        return self._values.values()

    def items(self) -> ItemsView[str, Any]:
        return self._values.items()

    def __or__(self, other: Mapping[str, Any]) -> dict[str, Any]:
        return {**self._values, **other}

    def __ror__(self, other: Mapping[str, Any]) -> dict[str, Any]:
        return {**other, **self._values}

    def __repr__(self) -> str:
        return repr(self._values)

    def __copy__(self) -> dict[str, Any]:
        return dict(self._values)

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        return copy.deepcopy(self._values, memo)

    def __reduce__(self) -> tuple[Any, ...]:
        return (ReadOnly, (self._values,))


def as_json(value: Any) -> Any:
    """The value as ``json.dumps`` takes it; what JSON has no word for is text."""
    match value:
        case Enum():
            return value.name
        case float() if not isfinite(value):
            return str(value)
        case None | str() | bool() | int() | float():
            return value
        case date() | time():
            return value.isoformat()
        case bytes() | bytearray() | memoryview():
            return b64encode(value).decode()
        case Mapping():
            return {str(name): as_json(each) for name, each in value.items()}
        case list() | tuple():
            return [as_json(each) for each in value]
        case set() | frozenset():
            return sorted((as_json(each) for each in value), key=str)
    return str(value)


def alone(error: BaseException, handled: BaseException | None) -> BaseException:
    """``error`` for a log, without the error that was being handled when it was raised.

    That one is told elsewhere, and where it is a driver's it quotes the values of a statement.
    """
    one: BaseException | None = error
    while one is not None and one is not handled:
        if one.__context__ is handled:
            one.__context__ = None
        one = one.__cause__ or one.__context__
    return error


def named_nan(value: Any) -> Any:
    """The value with :data:`NAN` for each NaN, also inside of lists and dicts; or itself."""
    match value:
        case float():
            return NAN if value != value else value
        case Decimal():
            return NAN if value.is_nan() else value
        case dict():
            found: Any = {name: named_nan(one) for name, one in value.items()}
            same = all(found[name] is one for name, one in value.items())
        case list() | tuple() | set() | frozenset():
            found = [named_nan(one) for one in value]
            same = all(map(is_, found, value))
            found = found if same or isinstance(value, list) else _of_kind(value, found)
        case _:
            return value
    return value if same else found


def _of_kind(value: Any, items: list[Any]) -> Any:
    return tuple(items) if isinstance(value, tuple) else set(items)
