"""Three-way merge of JSON by member.

::

    merged, conflicts = merge(base, mine, theirs)

``base`` is what both sides began with. A member that one side has changed gets its value. Objects
in objects are merged in the same way. Lists and other values are whole: one that both sides changed
to different values is a conflict, and one that both changed to the same value is none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

__all__ = ["ABSENT", "Conflict", "Settle", "is_same", "merge", "patch_of"]


class _Absent(Enum):
    ABSENT = "ABSENT"

    def __repr__(self) -> str:
        return self.value


#: The value of a member that is not there.
ABSENT: Final = _Absent.ABSENT


@dataclass(frozen=True)
class Conflict:
    """A member that both sides changed differently; ``path`` leads to it from the root."""

    path: tuple[str, ...]
    base: Any
    mine: Any
    theirs: Any


#: Decides a conflict: returns the value, or ``ABSENT`` to remove the member.
Settle = Callable[[Conflict], Any]


def merge(
    base: Any, mine: Any, theirs: Any, settle: Settle | None = None
) -> tuple[Any, tuple[Conflict, ...]]:
    """Return the merged value, and the conflicts that ``settle`` has not decided.

    A member in conflict has their value. Without ``settle`` no conflict is decided.
    """
    conflicts: list[Conflict] = []

    def keep_theirs(conflict: Conflict) -> Any:
        conflicts.append(conflict)
        return conflict.theirs

    merged = _merged(Conflict((), base, mine, theirs), settle or keep_theirs)
    return merged, tuple(conflicts)


def _merged(sides: Conflict, settle: Settle) -> Any:
    base, mine, theirs = sides.base, sides.mine, sides.theirs
    if is_same(mine, base) or is_same(mine, theirs):
        return theirs
    if is_same(theirs, base):
        return mine
    if not all(isinstance(side, dict) for side in (base, mine, theirs)):
        return settle(sides)
    merged = {
        name: _merged(Conflict((*sides.path, name), *values), settle)
        for name in {**theirs, **mine}
        for values in [[side.get(name, ABSENT) for side in (base, mine, theirs)]]
    }
    return {name: value for name, value in merged.items() if value is not ABSENT}


def is_same(one: Any, other: Any) -> bool:
    """Return whether two values are the same JSON: ``1`` is ``1.0``, and ``True`` is not ``1``."""
    match one, other:
        case dict(), dict():
            return one.keys() == other.keys() and all(is_same(one[n], other[n]) for n in one)
        case list(), list():
            return len(one) == len(other) and all(map(is_same, one, other))
        case _:
            return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def patch_of(stored: Any, wanted: Any) -> dict[str, Any] | None:
    """Return the members to PATCH, with ``None`` for one to remove.

    Some servers replace whole members. Others merge objects in objects, and remove what is null
    (RFC 7396). The result is ``None`` if it would not mean the same to both kinds.
    """
    if not isinstance(stored, dict) or not isinstance(wanted, dict):
        return None
    patch = {
        name: wanted.get(name)
        for name in {**stored, **wanted}
        if not is_same(stored.get(name, ABSENT), wanted.get(name, ABSENT))
    }
    replaced = _without_null({**stored, **patch})
    return patch if is_same(replaced, _patched(stored, patch)) else None


def _patched(stored: Any, patch: Any) -> Any:
    """Apply a patch as RFC 7396 does."""
    if not isinstance(patch, dict):
        return patch
    whole = stored if isinstance(stored, dict) else {}
    merged = {name: _patched(whole.get(name), value) for name, value in patch.items()}
    return _without_null({**whole, **merged})


def _without_null(members: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value is not None}
