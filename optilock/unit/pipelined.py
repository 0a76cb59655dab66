"""``pipelined=True``: a unit of work in two round trips.

::

    with UnitOfWork(SessionLocal, pipelined=True) as session:
        session.get_one(Account, 42).owner = "Ada"
    # BEGIN and SELECT in one trip, UPDATE and COMMIT in another

The results stay as they are without it, and there are never more trips. How the driver is brought
to that is in :mod:`optilock.dialects.postgresql.line`; which writes go with COMMIT, in
:mod:`optilock.guard.last`, and when, in :mod:`optilock.unit.ending`.

Where something comes after the last flush, COMMIT goes by itself. BEGIN goes with the first
statement all the same; not so where a listener has begun the transaction, where the session is
bound to a ``Connection``, and in two phases.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from optilock.dialects import database_of
from optilock.session.watched import known_of
from optilock.undocumented.transactions import opened_by
from optilock.unit.ending import ask_drivers
from optilock.unit.parts import Part


class Pipelined(Part, option="pipelined"):
    """The part that lets BEGIN and COMMIT go with statements."""

    def opened(self, sessions: Any) -> None:
        ask_drivers(sessions, self.option, lambda asked, its: asked.refuse_pipeline(its))

    def connected(self, session: Session, connection: Connection) -> None:
        transaction, dialect = session.get_transaction(), connection.dialect
        database_of(dialect).refuse_pipeline(dialect)
        if session.twophase or transaction is None or not opened_by(transaction, connection):
            return
        ending = database_of(dialect).pipelined(connection, interruptible=dialect.is_async)
        known_of(session).ending = ending

    def after(self, session: Session, error: BaseException | None) -> None:
        known_of(session).ending = None
