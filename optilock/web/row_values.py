"""The values of a row that a problem document shows: those that the class declares to be shown.

``__problem_fields__`` lists fields; a conflict shows up to three values of each;
``__version_author__`` and ``__version_time__`` name the author and the time of its last change.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, time
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from optilock.errors import Entry
from optilock.serialize import as_json

__all__ = ["shown_of"]


def shown_of(entry: Entry[Any]) -> dict[str, Any]:
    """Return the members of a problem document that have values of the row."""
    last = {"changed_by": entry.changed_by, "changed_at": entry.changed_at}
    found = {name: as_json(value) for name, value in last.items() if _can_be_shown(value)}
    return {"conflicts": _values_of(entry), **found}


def _values_of(entry: Entry[Any]) -> dict[str, dict[str, Any]] | None:
    """Return the values of the fields that the class lists; ``None`` if it lists none."""
    listed: Iterable[str] = getattr(entry.model, "__problem_fields__", ())
    wanted = {n: v for n, v in entry.current.items() if n in entry.changes or n in entry.original}
    sides = {"original": entry.original, "current": wanted, "database": entry.database}
    found = {
        name: {
            side: as_json(values[name])
            for side, values in sides.items()
            if values is not None and name in values and _can_be_shown(values[name])
        }
        for name in listed
        if _is_in_conflict(entry, name)
    }
    return {name: values for name, values in found.items() if values} or None


def _is_in_conflict(entry: Entry[Any], name: str) -> bool:
    """Return ``False`` if the stored value is the one that was seen, and the one that is wanted."""
    stored = entry.database
    if stored is None or name not in entry.current:
        return True
    sides = [side for side in (entry.original, entry.current) if name in side]
    if any(side[name] != stored.get(name) for side in sides):
        return True
    return name not in entry.original and name not in entry.changes and _is_older(entry)


def _is_older(entry: Entry[Any]) -> bool:
    """Return whether the client has seen another version of this row, with unknown values."""
    token, stored = entry.token or "", entry.database or {}
    seen, now = entry.original.get(token), stored.get(token)
    return type(seen) is type(now) and seen != now


def _can_be_shown(value: Any) -> bool:
    return value is None or isinstance(value, _SHOWN)


_SHOWN = (str, int, float, Decimal, UUID, Enum, date, time, bytes, dict, list, tuple)
