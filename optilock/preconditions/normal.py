"""What a form sends, as the column has it: before anything of it is compared.

A form sends texts. An untouched field comes back with CR and LF where LF is stored, as ``"2"``
where 2 is, and as ``""`` where NULL is: nobody has changed it. So each value is brought to the type
of its column first, and compared then; a value that is the same is the one that is there. A text
that differs gets the line ends of the stored one (:mod:`optilock.resolvers.diff3`).

What is no text of such a value is left as it is: :mod:`optilock.preconditions.names` refuses it.
So are values of the application's own types, and JSON, in which a text is a text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Date,
    DateTime,
    Enum,
    Float,
    Integer,
    Numeric,
    String,
    Time,
    Uuid,
)
from sqlalchemy.orm import Mapper
from sqlalchemy.types import TypeEngine

from optilock.mapped import facts
from optilock.resolvers.diff3 import in_style_of, plain
from optilock.watched.rows.stored import Values

__all__ = ["normal_values"]

_NOTHING: Any = object()


def normal_values(
    mapper: Mapper[Any], given: Values, stored: Values, seen: Values | None = None
) -> Values:
    """The values of ``given``, attribute of a column -> value, as the columns have them.

    Args:
        stored: what the row has, or what the client had loaded of it.
        seen: what the client had loaded, where that is known: a text that comes back empty was
            NULL then, and is no change.
    """
    columns = facts(mapper).columns
    return {
        name: _normal(columns[name], value, stored.get(name), (seen or {}).get(name, _NOTHING))
        if name in columns and isinstance(value, str)
        else value
        for name, value in given.items()
    }


def _normal(column: Column[Any], text: str, stored: Any, seen: Any) -> Any:
    if isinstance(column.type, JSON):
        return text
    known = stored if seen is _NOTHING else seen
    if text == "" and seen is None and isinstance(column.type, String):
        return None
    found = _typed(column, text, known)
    if found is not text:
        return known if type(found) is type(known) and found == known else found
    if isinstance(known, str):
        if plain(text) == plain(known):
            return known
        return in_style_of(text, stored if isinstance(stored, str) else "", known)
    return plain(text) if isinstance(column.type, String) else text


# -- types -----------------------------------------------------------------------------------------

_WHOLE = re.compile(r"[+-]?\d{1,64}", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d{1,400}(\.\d{0,400})?|\.\d{1,400})(e[+-]?\d{1,4})?", re.I | re.ASCII)
_BOOLEANS = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}


def _typed(column: Column[Any], text: str, known: Any) -> Any:
    """The value that a text stands for; the text itself where it stands for none."""
    kind = column.type
    read = next((read for cls, read in _READ.items() if isinstance(kind, cls)), None)
    if read is None:
        return text
    word = text.strip()
    if not word:
        return None if column.nullable and text not in getattr(kind, "enums", ()) else text
    try:
        found = read(word, kind, known)
    except (ValueError, ArithmeticError):
        return text
    return text if found is None else found


def _integer(word: str, kind: Any, known: Any) -> Any:
    return int(word) if _WHOLE.fullmatch(word) else None


def _number(word: str, kind: Any, known: Any) -> Any:
    if not _NUMBER.fullmatch(word):
        return None
    return Decimal(word) if kind.asdecimal else float(word)


def _boolean(word: str, kind: Any, known: Any) -> Any:
    return _BOOLEANS.get(word.lower())


def _enum(word: str, kind: Any, known: Any) -> Any:
    if kind.enum_class is None or word not in kind.enums:
        return None
    return kind.enum_class.__members__.get(word)


def _uuid(word: str, kind: Any, known: Any) -> Any:
    return (
        UUID(word) if kind.as_uuid and word.lower() in (str(UUID(word)), UUID(word).hex) else None
    )


_TIME = re.compile(r"\d\d:\d\d(:\d\d(\.\d{1,6})?)?", re.ASCII)
_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_MOMENT = re.compile(rf"{_DAY.pattern}[T ]{_TIME.pattern}(Z|[+-]\d\d:\d\d)?", re.ASCII)


def _date(word: str, kind: Any, known: Any) -> Any:
    return date.fromisoformat(word) if _DAY.fullmatch(word) else None


def _datetime(word: str, kind: Any, known: Any) -> Any:
    found = datetime.fromisoformat(word) if _MOMENT.fullmatch(word) else None
    if found is None or not isinstance(known, datetime):
        return found if found is None or bool(kind.timezone) is bool(found.tzinfo) else None
    if (found.tzinfo is None) is not (known.tzinfo is None):
        return None
    return _as_exact(found, known, word)


def _time(word: str, kind: Any, known: Any) -> Any:
    found = time.fromisoformat(word) if _TIME.fullmatch(word) else None
    return found if found is None or not isinstance(known, time) else _as_exact(found, known, word)


def _as_exact(found: Any, known: Any, word: str) -> Any:
    """The one that is known, if a field that shows less of it than is stored would say the same."""
    clock = re.search(_TIME.pattern, word)
    shown = "" if clock is None else clock[0]
    places = len(shown.partition(".")[2])
    micro = known.microsecond - known.microsecond % 10 ** (6 - places)
    less = known.replace(microsecond=micro)
    if shown.count(":") == 1:
        less = known.replace(second=0, microsecond=0)
    return known if found == less else found


#: An Enum stands first: to SQLAlchemy it is a String.
_READ: dict[type[TypeEngine[Any]], Callable[[str, Any, Any], Any]] = {
    Enum: _enum,
    Boolean: _boolean,
    Integer: _integer,
    Float: _number,
    Numeric: _number,
    Uuid: _uuid,
    DateTime: _datetime,
    Date: _date,
    Time: _time,
}
