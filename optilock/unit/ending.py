"""Units whose last writes go together with the end of the transaction.

That is what ``pipelined=True`` and ``short=True`` have in common. What is pending is flushed inside
of ``session.commit()``, after the listeners of ``before_commit``, so that nothing but the end comes
after the flush; and which writes those are is said in :mod:`optilock.guard.last`.

Where something else does come after it, the unit flushes as ever: parts that hear of
``before_commit``, promises (``expect``, ``verify``) of rows that are not locked, and the
application's listeners of ``before_commit``, ``after_flush``, ``after_flush_postexec``, and of rows
that were inserted or deleted (``pending_to_persistent``, ``persistent_to_deleted``), who may add
others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from sqlalchemy import Dialect
from sqlalchemy.orm import Session

from optilock.dialects import Database, database_of
from optilock.guard.promises import hold_by_locks
from optilock.session.connections import binds_of_sessions
from optilock.session.watched import known_of
from optilock.undocumented.sessions import listeners_of
from optilock.unit.parts import Part

#: Whoever hears of these may send something after the last flush.
_AFTER_WRITES = (
    "before_commit",
    "after_flush",
    "after_flush_postexec",
    "pending_to_persistent",
    "persistent_to_deleted",
)
_OUR_OWN = f"{__name__.partition('.')[0]}."


def flushes_at_commit(session: Session, parts: Iterable[Part]) -> bool:
    """Is what is pending to be flushed inside of ``session.commit()``? It is noted, then."""
    known = known_of(session)
    if known.ending is None or len(known.connections) != 1 or not hold_by_locks(session):
        return False
    if known.conditions is not None and known.conditions.is_ignored:
        return False
    for part in parts:
        if type(part).before_commit is not Part.before_commit:
            return False
    for name in _AFTER_WRITES:
        for listener in listeners_of(session, name):
            if not str(listener.__module__).startswith(_OUR_OWN):
                return False
    known.ending_now = True
    return True


#: The beginning of an attribute of what units were opened with: no driver of it is refused.
_NOT_REFUSED = "_optilock_ending_"


def ask_drivers(sessions: Any, option: str, refuse: Callable[[Database, Dialect], None]) -> None:
    """Ask the databases of a session factory, or of an engine, whether they ``refuse`` an option.

    Asked for every unit, and looked at once: engines that it does not name, or is given later, are
    asked when they connect.

    Raises:
        ConfigurationError: one of them does.
    """
    name = _NOT_REFUSED + option
    if hasattr(sessions, name):
        return
    for bind in binds_of_sessions(sessions):
        refuse(database_of(bind.dialect), bind.dialect)
    with suppress(AttributeError):  # an AsyncEngine takes none
        setattr(sessions, name, True)
