"""Is the flush of a session guarded, and does it leave the version of a row where it is?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

__all__ = ["GUARDED", "KNOWN", "Still", "is_watched", "stands_still"]

#: An attribute of a session class: :func:`~optilock.guard.watching.watch` was told of it.
GUARDED = "_optilock_guarded"
#: An attribute of a session: a :class:`~optilock.guard.state.Watched`, once there is something.
KNOWN = "_optilock_watched"


@dataclass(frozen=True, eq=False)
class Still:
    """Rows whose version is not moved: of these classes, or these objects; without any, all."""

    classes: tuple[type[Any], ...] = ()
    objects: tuple[object, ...] = ()

    def covers(self, obj: object) -> bool:
        if not (self.classes or self.objects):
            return True
        return isinstance(obj, self.classes) or any(obj is one for one in self.objects)


def is_watched(session: Session) -> bool:
    """Does the guard see this session's flushes?"""
    return hasattr(type(session), GUARDED)


def stands_still(session: Session, obj: object) -> bool:
    """Is there a ``no_bump`` block open for the object's row?"""
    known = session.__dict__.get(KNOWN)
    return known is not None and any(still.covers(obj) for still in known.still)
