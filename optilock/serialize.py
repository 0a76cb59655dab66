"""Plain values: read-only mappings, JSON and its limits, and exact differences and sums.

``optilock.errors.Entry`` carries its sides as :class:`ReadOnly` mappings. ``as_dict()`` of entries,
conflicts and events, and the problem documents of :mod:`optilock.web`, show values by
:func:`as_json`; pages for people show the last change of a row by :func:`last_change`. What a
writer adds to a column (``__version_commutes__``) is a :func:`difference`. Stored JSON
is within :func:`limit_exceeded_by`, and is read by :func:`read_json`.
"""

from __future__ import annotations

import copy
import json
import re
import sys
from base64 import b64encode
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, Set, ValuesView
from datetime import UTC, date, datetime, time
from decimal import Context, Decimal, Inexact
from enum import Enum
from math import isfinite
from operator import is_
from types import NoneType
from typing import Any
from uuid import UUID

from sqlalchemy import ClauseElement, Column

#: Types of values that are no SQL, cannot be changed, and have no other values inside.
PLAIN = frozenset({str, int, float, bool, bytes, NoneType, Decimal, UUID, date, datetime, time})
#: In the place of a NaN, which equals nothing, itself included.
NAN: Any = object()
#: Python's own context rounds to 28 digits, and columns may have more.
_EXACTLY = Context(prec=10_000, traps=[Inexact])


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


def last_change(by: Any, at: Any, *, now: datetime | None = None) -> str:
    """Return "changed by Ada, 2 minutes ago", as much of it as is known; "" if nothing is.

    A time without a zone is taken for UTC. One that is ahead of ``now``, because two clocks differ,
    is "just now".
    """
    parts = ["changed" if by is None else f"changed by {as_json(by)}"]
    if at is not None:
        parts.append(_ago(at, now) if isinstance(at, datetime) else f"on {as_json(at)}")
    if by is None:
        return " ".join(parts) if at is not None else ""
    return ", ".join(parts)


def _ago(at: datetime, now: datetime | None) -> str:
    then, today = (_in_utc(one or datetime.now(UTC)) for one in (at, now))
    minutes = int((today - then).total_seconds() // 60)
    if minutes < 1:
        return "just now"
    for size, unit in ((60, "minute"), (24, "hour"), (30, "day")):
        if minutes < size:
            return f"{minutes} {unit}{'' if minutes == 1 else 's'} ago"
        minutes //= size
    return f"on {then.date().isoformat()}"


def _in_utc(at: datetime) -> datetime:
    return at.replace(tzinfo=UTC) if at.utcoffset() is None else at


# -- stored JSON -----------------------------------------------------------------------------------

#: The most lists and mappings inside one another, in stored JSON and in fingerprinted values.
#: ``json`` and ``copy`` use up to two of Python's 1000 calls for each.
DEEPEST = 200
#: The digits that ``int()`` reads, unless a program has raised the limit.
_DIGITS = 4_300
_TOO_DEEP = f"it has more than {DEEPEST} lists and dicts inside one another"
_TOO_WIDE = f"it has a number of more than {_DIGITS:,} digits"
_PARTS = re.compile(
    rf'"[^"\\]*(?:\\.[^"\\]*)*"|(?P<open>[\[{{])|(?P<close>[\]}}])|(?P<wide>\d{{{_DIGITS + 1}}})',
    re.S,
)


def limit_exceeded_by(text: str) -> str | None:
    """Return why a JSON text may be refused by a reader; ``None``: every reader can read it."""
    wide = sys.get_int_max_str_digits() != _DIGITS
    if not wide and text.count("[") + text.count("{") <= DEEPEST:
        return None
    depth = 0
    for part in _PARTS.finditer(text):
        depth += (part.lastgroup == "open") - (part.lastgroup == "close")
        if depth > DEEPEST:
            return _TOO_DEEP
        if part.lastgroup == "wide":
            return _TOO_WIDE
    return None


def is_too_deep(value: Any) -> bool:
    """Return whether a value has more than :data:`DEEPEST` collections inside one another."""
    if type(value) in PLAIN:  # to ask whether a value is a Mapping is slow
        return False
    level = [value]
    for _ in range(DEEPEST + 1):
        inside = {id(one): one for one in level if isinstance(one, (Mapping, list, tuple, Set))}
        level = [
            each
            for one in inside.values()
            for each in (one.values() if isinstance(one, Mapping) else one)
        ]
        if not inside:
            return False
    return True


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    return value if isfinite(value) else _refuse("a number outside of the range of floats")


_JSON = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)


def read_json(text: str | bytes) -> Any:
    """Return the value of a stored JSON text; our own, without white space, takes half the time.

    Raises:
        ValueError: it is not JSON, not UTF-8, or too deep to read.
    """
    if not isinstance(text, str):
        text = text.decode()
    try:
        try:
            value, end = _JSON.raw_decode(text)
        except ValueError:  # perhaps only white space before it
            value, end = None, -1
        return value if end == len(text) else _JSON.decode(text)
    except RecursionError:
        if limit_exceeded_by(text) is None:
            raise  # the stack of the caller is full
        raise ValueError(_TOO_DEEP) from None


def without_handled(error: BaseException, handled: BaseException | None) -> BaseException:
    """``error`` for a log, without the error that was being handled when it was raised.

    That one is reported elsewhere, and a driver's error quotes the values of a statement.
    """
    one: BaseException | None = error
    while one is not None and one is not handled:
        if one.__context__ is handled:
            one.__context__ = None
        one = one.__cause__ or one.__context__
    return error


def difference(before: Any, now: Any) -> Any:
    """By how much ``now`` is more than ``before``, exactly; ``None`` where that is not known."""
    if type(before) is int and type(now) is int:
        return now - before
    if {type(before), type(now)} <= {int, Decimal}:
        return exact_sum(Decimal(now), Decimal(before).copy_negate())
    return None


def exact_sum(value: Any, more: Any) -> Any:
    """The sum, exactly; ``None`` where there is none."""
    if type(value) is int and type(more) is int:
        return value + more
    if not {type(value), type(more)} <= {int, Decimal}:
        return None
    try:
        found = _EXACTLY.add(Decimal(value), Decimal(more))
    except Inexact:
        return None
    return found if found.is_finite() else None


def describe_changes(
    names: Iterable[str],
    ours: Mapping[str, Any],
    original: Mapping[str, Any],
    stored: Mapping[str, Any],
) -> str:
    """Which side has changed which of the attributes that conflict, as far as that is known.

    Of a value that was never read it is unknown whether the other side has changed it. Of
    attributes that belong together one side may have changed one, and the other side another.
    """
    said: dict[str, list[str]] = {"both": [], "we": [], "they": [], "unknown": []}
    for name in sorted(names):
        if name not in ours:
            said["they"].append(name)
        elif name not in original:
            said["unknown"].append(name)
        else:
            same = name in stored and is_equal(original[name], stored[name])
            said["we" if same else "both"].append(name)
    both, mine, theirs, unknown = (", ".join(each) for each in said.values())
    parts = [f"both sides changed {both}"] if both else []
    parts += [f"we changed {mine}"] if mine else []
    parts += [f"the other side changed {theirs}, which belongs together with it"] if theirs else []
    if unknown:
        parts.append(f"we changed {unknown}, whose earlier value is unknown")
    return "; ".join(parts)


def is_expression(value: Any) -> bool:
    """Return whether the value is SQL, which the database evaluates."""
    return type(value) not in PLAIN and (
        isinstance(value, ClauseElement) or hasattr(value, "__clause_element__")
    )


def is_equal(a: Any, b: Any) -> bool:
    """Return whether an entry's values are equal. NaN equals itself; incomparable arrays do not."""
    try:
        return bool(mark_nan(a) == mark_nan(b))
    except Exception:  # whatever a type of the application raises
        return False


def mark_nan(value: Any) -> Any:
    """The value with :data:`NAN` for each NaN, also inside of lists and dicts; or itself."""
    match value:
        case float():
            return NAN if value != value else value
        case Decimal():
            return NAN if value.is_nan() else value
        case dict():
            found: Any = {name: mark_nan(one) for name, one in value.items()}
            same = all(found[name] is one for name, one in value.items())
        case list() | tuple() | set() | frozenset():
            found = [mark_nan(one) for one in value]
            same = all(map(is_, found, value))
            found = found if same or isinstance(value, list) else _of_kind(value, found)
        case _:
            return value
    return value if same else found


def _of_kind(value: Any, items: list[Any]) -> Any:
    return tuple(items) if isinstance(value, tuple) else set(items)


def is_same_value(columns: Mapping[str, Column[Any]], name: str, a: Any, b: Any) -> bool:
    """Return whether two values of an attribute are the same value; NaN is the same as NaN.

    Values that cannot be compared differ: then a conflict is reported, not the comparison's error.
    """
    column = columns[name]
    try:
        if column.type.compare_values(a, b) is True:
            return True
        if a is None or b is None or type(a) in _WITHOUT_NAN:
            return False
        plain = mark_nan(a)
        if plain is a or plain is NAN:
            return plain is NAN and mark_nan(b) is NAN
        return column.type.compare_values(plain, mark_nan(b)) is True
    except Exception:
        return False


#: Values of these types contain no NaN.
_WITHOUT_NAN = frozenset((int, str, bytes, bool, datetime, date, UUID))
