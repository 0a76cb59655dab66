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
_OUR_OWN = "optilock."


class Pipelined(Part, option="pipelined"):
    """The part that lets BEGIN and COMMIT go with statements."""

    def connected(self, session: Session, connection: Connection) -> None:
        known, transaction = known_of(session), session.get_transaction()
        database = database_of(connection.dialect)
        database.refuse_pipeline(connection.dialect)
        if session.twophase or transaction is None or not opened_by(transaction, connection):
            return
        interruptible = bool(connection.dialect.is_async)
        known.ending = database.pipelined(connection, interruptible=interruptible)

    def after(self, session: Session, error: BaseException | None) -> None:
        known_of(session).ending = None


def refuse_pipeline_of(sessions: Any) -> None:
    """Refuse a session factory, or an engine, of a driver that cannot do that.

    Raises:
        ConfigurationError: so it is; engines that it does not name are asked when they connect.
    """
    for bind in binds_of_sessions(sessions):
        database_of(bind.dialect).refuse_pipeline(bind.dialect)


def flushes_at_commit(session: Session, parts: Iterable[Part]) -> bool:
    """Is what is pending to be flushed inside of ``session.commit()``? It is noted, then."""
    known = known_of(session)
    if known.ending is None or known.promises or len(known.connections) != 1:
        return False
    if any(type(part).before_commit is not Part.before_commit for part in parts):
        return False
    if any(_is_heard_of(session, name) for name in _AFTER_WRITES):
        return False
    known.ending_now = True
    return True


def _is_heard_of(session: Session, event: str) -> bool:
    """Has the application a listener for it?"""
    listeners = listeners_of(session, event)
    return any(not str(one.__module__).startswith(_OUR_OWN) for one in listeners)
