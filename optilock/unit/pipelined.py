"""``pipelined=True``: a unit of work in two round trips.

::

    with UnitOfWork(SessionLocal, pipelined=True) as session:
        session.get_one(Account, 42).owner = "Ada"
    # BEGIN and SELECT in one trip, UPDATE and COMMIT in another

The results stay as they are without it, and there are never more trips. How the driver is brought
to that is in :mod:`optilock.dialects.postgresql.line`; which writes go with COMMIT, in
:mod:`optilock.guard.last`. Here is the one thing that the unit does otherwise: what is pending is
flushed inside of ``session.commit()``, after the listeners of ``before_commit``, so that nothing
but COMMIT comes after the flush.

Where something else does come after it, the unit flushes as ever, and COMMIT goes by itself: parts
that hear of ``before_commit``, promises (``expect``, ``verify``), and the application's listeners
of ``before_commit``, ``after_flush`` and ``after_flush_postexec``. BEGIN goes with the first
statement all the same; not so where a listener has begun the transaction, where the session is
bound to a ``Connection``, and in two phases.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from optilock.dialects import database_of
from optilock.session.connections import binds_of_sessions
from optilock.session.watched import known_of
from optilock.undocumented import listeners_of, opened_by
from optilock.unit.parts import Part

#: Whoever hears of these may send something after the last flush.
_AFTER_WRITES = ("before_commit", "after_flush", "after_flush_postexec")
_OUR_OWN = f"{__name__.partition('.')[0]}."


class Pipelined(Part, option="pipelined"):
    """The part that lets BEGIN and COMMIT go with statements."""

    def connected(self, session: Session, connection: Connection) -> None:
        transaction, dialect = session.get_transaction(), connection.dialect
        database_of(dialect).refuse_pipeline(dialect)
        if session.twophase or transaction is None or not opened_by(transaction, connection):
            return
        ending = database_of(dialect).pipelined(connection, interruptible=dialect.is_async)
        known_of(session).ending = ending

    def after(self, session: Session, error: BaseException | None) -> None:
        known_of(session).ending = None


#: An attribute of what units were opened with: none of its drivers is refused.
_NOT_REFUSED = "_optilock_pipelined"


def refuse_pipeline_of(sessions: Any) -> None:
    """Refuse a session factory, or an engine, of a driver that cannot do that.

    Asked for every unit, and looked at once: engines that it does not name, or is given later, are
    asked when they connect.

    Raises:
        ConfigurationError: so it is.
    """
    if hasattr(sessions, _NOT_REFUSED):
        return
    for bind in binds_of_sessions(sessions):
        database_of(bind.dialect).refuse_pipeline(bind.dialect)
    with suppress(AttributeError):  # an AsyncEngine takes none
        setattr(sessions, _NOT_REFUSED, True)


def flushes_at_commit(session: Session, parts: Iterable[Part]) -> bool:
    """Is what is pending to be flushed inside of ``session.commit()``? It is noted, then."""
    known = known_of(session)
    if known.ending is None or known.promises or len(known.connections) != 1:
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
