"""``short=True``: reads outside of a transaction, and one guarded statement that commits itself.

::

    with UnitOfWork(SessionLocal, short=True) as session:
        session.get_one(Account, 42).owner = "Ada"
    # SELECT, and an UPDATE that is stored when it is answered: no BEGIN, no COMMIT

For the length of the unit the driver's connection is in its autocommit mode. Plain SELECTs go out
in it, and so does what the unit writes, if that is exactly one guarded statement, and the last
thing that it does. Before anything else the mode is left, and what comes then belongs to one
transaction, which COMMIT ends: rows of a second table, an INSERT, a DELETE, link rows, a flush in
the body, a savepoint, a row that is locked, promises (``verify``, ``expect``), a SQL text that may
write. So nothing is ever half.

A row that has moved is written by nobody: the statement matches no row and stores nothing. The
transaction begins then, and the conflict goes its usual way.

What is given up: each SELECT sees what is stored at its own moment, so two of them may show
different states. The rows that are *written* are as they were read, or there is a conflict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from sqlalchemy import Connection, CursorResult, Dialect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from optilock.conditions.write import Alone, Write
from optilock.dialects import Database, database_of
from optilock.dialects.base import Switch
from optilock.dialects.rows import native
from optilock.dialects.switch import Interposed
from optilock.dialects.transient import answer_unknown
from optilock.errors import ConfigurationError
from optilock.undocumented.connections import level_on_connect
from optilock.undocumented.flushes import listeners_of, opened_by
from optilock.unit.parts import Part
from optilock.watched.guard.promises import hold_by_locks
from optilock.watched.session.connections import binds_of_sessions
from optilock.watched.session.watched import known_of


class Short(Part, option="short"):
    """The part that leaves the transaction out where one statement is all that is written."""

    def opened(self, sessions: Any) -> None:
        ask_drivers(sessions, self.option, lambda asked, its: asked.refuse_short(its))

    def connected(self, session: Session, connection: Connection) -> None:
        known, transaction = known_of(session), session.get_transaction()
        database = database_of(connection.dialect)
        database.refuse_short(connection.dialect)
        _refuse_level(connection)
        if session.twophase or transaction is None or not opened_by(transaction, connection):
            return
        switch = database.without_transaction(connection)
        if switch is None:  # a listener has begun it, and perhaps written in it
            return
        known.ending = OneStatement(switch)
        known.autocommitting = tuple(one for one in known.autocommitting if one is not connection)

    def after(self, session: Session, error: BaseException | None) -> None:
        known_of(session).ending = None


class OneStatement:
    """Sends the last writes of a unit without a transaction, or begins one."""

    def __init__(self, switch: Switch) -> None:
        self.unanswered = self._stored = False
        self._switch = switch

    @property
    def stored(self) -> bool:
        """Was the write carried out, so that nothing may come after it?"""
        return self._stored or self._switch.stored

    def send(
        self,
        connection: Connection,
        together: Sequence[list[Write]],
        database: Database,
        alone: Alone | None = None,
        *,
        locked: bool = False,
    ) -> list[Write] | None:
        """Write these rows in one statement, which commits itself; or return those that missed.

        None: nothing was written, and a transaction begins with what is sent next.
        """
        if self._switch.begun or len(together) != 1 or self._switch.has_spoken():
            return None
        (writes,) = together
        try:
            return (
                self._one(connection, writes[0], alone)
                if len(writes) == 1
                else self._all(connection, writes, database)
            )
        except Interposed:
            return None

    def _one(self, connection: Connection, write: Write, alone: Alone | None) -> list[Write]:
        if self._alone(connection, alone or Alone.of(write), write.shape.token.parameter):
            return []
        self._switch.begin()
        return [write]

    def _all(
        self, connection: Connection, writes: list[Write], database: Database
    ) -> list[Write] | None:
        raising = database.all_or_error(writes, connection.dialect)
        if raising is None:
            return None
        statement, params = raising
        try:
            self._alone(connection, Alone(statement, params, _all_or_error), next(iter(params)))
        except DBAPIError as error:
            if error.orig is None or not database.is_miss(error.orig):
                raise
            self.unanswered = False
            return None
        return []

    def _alone(self, connection: Connection, alone: Alone, parameter: str) -> bool:
        self._switch.let_through(alone.statement, parameter)
        try:
            result = native(connection, alone.statement, alone.params)
            written = alone.written(result)
            result.close()
            return written
        except BaseException as error:
            self.unanswered = answer_unknown(error)
            if isinstance(error, DBAPIError) or self.unanswered:
                self._switch.stored = False
            else:  # perhaps of a hook that comes after it
                self._switch.stored = self._switch.carried_out()
            raise

    def over(self) -> None:
        """The unit has ended: who uses the connection from here on does not belong to it."""
        self._stored, self._switch.stored = self.stored, False


def _all_or_error(result: CursorResult[Any]) -> bool:
    """A miss is an error of this statement, so an answer means that all rows are written."""
    return True


def _refuse_level(connection: Connection) -> None:
    """Refuse an engine at a level that promises one picture of the data.

    Raises:
        ConfigurationError: it has been asked for with ``isolation_level``.
    """
    asked = connection.get_execution_options().get("isolation_level")
    level = str(asked or level_on_connect(connection.dialect)).replace("_", " ").upper()
    if level in ("REPEATABLE READ", "SERIALIZABLE"):
        raise ConfigurationError(
            f"this engine has isolation_level={level!r}, which is for transactions: with short=True"
            " each SELECT has a moment of its own. Give the unit an engine without it, or leave"
            " short=True out. Nothing was sent."
        )


# -- ``pipelined=True``: a unit of work in two round trips -----------------------------------------
#
# ::
#
#     with UnitOfWork(SessionLocal, pipelined=True) as session:
#         session.get_one(Account, 42).owner = "Ada"
#     # BEGIN and SELECT in one trip, UPDATE and COMMIT in another
#
# The results stay as they are without it, and there are never more trips. How the driver is
# brought to that is in :mod:`optilock.dialects.postgresql.line`; which writes go with COMMIT, in
# :mod:`optilock.watched.guard.writes_with_commit`, and when, in :mod:`optilock.unit.short`.
#
# Where something comes after the last flush, COMMIT goes by itself. BEGIN goes with the first
# statement all the same; not so where a listener has begun the transaction, where the session is
# bound to a ``Connection``, and in two phases.


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


# -- the last writes go together with the end of the transaction -----------------------------------
#
# That is what ``pipelined=True`` and ``short=True`` have in common. What is pending is flushed
# inside of ``session.commit()``, after the listeners of ``before_commit``, so that nothing but the
# end comes after the flush; and which writes those are is said in
# :mod:`optilock.watched.guard.writes_with_commit`.
#
# Where something else does come after it, the unit flushes as ever: parts that hear of
# ``before_commit``, promises (``expect``, ``verify``) of rows that are not locked, and the
# application's listeners of ``before_commit``, ``after_flush``, ``after_flush_postexec``, and of
# rows that were inserted or deleted (``pending_to_persistent``, ``persistent_to_deleted``), who
# may add others.

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
