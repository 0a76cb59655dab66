"""The condition of a request, and the writes of a session while the request is served.

Two rules, for watched sessions (those of units are):

* A request carries a condition that was not compared (:mod:`optilock.conditions.request`), and the
  session has written versioned rows: COMMIT is refused. Until then it can still be compared. An
  object that was assigned its own value counts as well: its value was not seen.
* ``require_conditions(session)`` was called: a statement that changes stored versioned rows without
  naming a version is refused before it is sent. The unit checks objects before each flush
  (:mod:`optilock.unit.conditions`), and the guard checks statements that listeners send in one.

Both rules cover all that the session's connections send: rows of a flush, statements, bulk calls,
entities, SQL text. An engine gets one listener when the first such session begins on it, and keeps
it: to add and remove one for each transaction takes longer than all its calls.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any
from weakref import WeakSet, ref

from sqlalchemy import Connection, Delete, Dialect, Engine, Insert, Update, event
from sqlalchemy.orm import Session, SessionTransaction
from sqlalchemy.orm.attributes import instance_state

from optilock._mapped import facts
from optilock._mapping.tables import joined_tables, versioned_tables
from optilock._watched.session.order import add_step
from optilock._watched.session.record import is_watched, record_of
from optilock._watched.statements.refusals import changes_stored_rows
from optilock._watched.statements.sql_text import (
    sql_of,
    tables_added_to,
    tables_written,
    unversioned_writes,
)
from optilock._watched.statements.unguarded import (
    changes_executed,
    compares_version,
    version_of_table,
)
from optilock.conditions.request import Request, call_before_first, current_request
from optilock.conditions.write import is_checked
from optilock.errors import ConditionNotCompared, OptilockError, PreconditionRequired

#: An attribute of a session: its writes for a request whose condition was not compared.
_KEY = "_optilock_request"
#: An attribute of a connection: the :class:`Sent` of the sessions that it serves.
_SENT = "_optilock_sent"
_heard: WeakSet[Engine] = WeakSet()


class Sent:
    """The writes that one transaction of a session has sent, as far as conditions concern them."""

    def __init__(self, session: Session, request: Request | None) -> None:
        self._session, self._record, self._request = ref(session), record_of(session), request
        #: Tables, the savepoints that were open, and whether the condition was compared.
        self._written: list[tuple[str, tuple[SessionTransaction, ...], bool]] = []
        #: Tables of changed objects that the session has left.
        self._unflushed: dict[str, None] = {}
        self._is_gone = False
        if request is not None:
            request.writing.append(self)
        self._connections: list[Connection] = []
        self._committing = False
        #: The next statement overwrites the stored row, as its caller demanded.
        self.by_name = False

    def listen(self, connection: Connection) -> None:
        if connection not in self._connections:
            self._connections.append(connection)
            connection.__dict__[_SENT] = (*connection.__dict__.get(_SENT, ()), self)
            if connection.engine not in _heard:
                event.listen(connection.engine, "before_cursor_execute", _before_cursor_execute)
                _heard.add(connection.engine)

    def note(self, session: Session) -> None:
        """Record the objects that the session flushes."""
        if self.is_ignored:
            new = () if self._inserts_are_free else session.new
            for obj in (*new, *session.dirty, *session.deleted):
                class_facts = facts(instance_state(obj).mapper)
                if class_facts.guarded:
                    self._note(class_facts.table.name)

    def _note(self, table: str) -> None:
        session = self._session()
        savepoint, around = None if session is None else session.get_nested_transaction(), []
        while savepoint is not None and savepoint.nested:
            around.append(savepoint)
            savepoint = savepoint.parent
        self._written.append((table, tuple(around), self.is_ignored))

    def take_back(self, savepoint: SessionTransaction) -> None:
        """Forget the writes since the savepoint began, which is undone."""
        self._written = [one for one in self._written if savepoint not in one[1]]

    def over(self) -> None:
        """Look at no more statements: the transaction has ended."""
        if self._request is not None and self in self._request.writing:
            self._request.writing.remove(self)
        session = self._session()
        if session is not None:
            session.__dict__.pop(_KEY, None)
        for connection in self._connections:
            others = tuple(one for one in connection.__dict__.pop(_SENT, ()) if one is not self)
            if others:
                connection.__dict__[_SENT] = others
        self._connections = []

    # -- without a COMMIT --------------------------------------------------------------------------

    def tables(self) -> Collection[str]:
        """Return the versioned tables that the transaction has written, or is to write."""
        session = None if self._is_gone else self._session()
        if session is not None:
            self._note_unflushed(session)
        written = () if self._record.autocommitting else self._written
        found = {**self._unflushed, **dict.fromkeys(one[0] for one in written)}
        self._unflushed = {}
        return found

    def left(self, session: Session) -> None:
        """Note the changed objects that leave the session, which may be about to close."""
        if self._request is not None:
            self._note_unflushed(session)

    def _note_unflushed(self, session: Session) -> None:
        changed = (obj for obj in session.dirty if session.is_modified(obj))
        for obj in (*session.new, *changed, *session.deleted):
            class_facts = facts(instance_state(obj).mapper)
            if class_facts.guarded:
                self._unflushed[class_facts.table.name] = None

    def abandoned(self) -> None:
        """Note that the session was closed, or collected as garbage, without COMMIT or ROLLBACK."""
        if self._request is not None:
            self._is_gone = True
            self._request.lost += tuple(self.tables())

    @property
    def is_ignored(self) -> bool:
        """Return whether COMMIT would be refused, if a versioned row was written."""
        return self._request is not None and self._request.is_ignored

    def commit(self) -> None:
        """Check the writes before COMMIT: everything is flushed.

        Raises:
            ConditionNotCompared: versioned rows were written, and the request's condition was not
                compared.
        """
        self._refuse_ignored()
        self._committing = True  # a listener may write more

    def _refuse_ignored(self) -> None:
        tables = dict.fromkeys(table for table, _, ignored in self._written if ignored)
        if tables and self.is_ignored:
            assert self._request is not None
            raise not_compared_error(self._request, ", ".join(tables))

    def look_at(self, connection: Connection, sql: str, context: Any) -> None:
        """Note a statement that is to be sent, or refuse it."""
        for name, statement in _written(sql, context):
            adds = isinstance(statement, Insert) and not changes_stored_rows(statement)
            every_row = self._record.require_conditions
            if every_row and not adds and self._record.flush is None:
                self._require_version(statement, name, connection.dialect)
            if self._request is not None and not (adds and self._inserts_are_free):
                self._note(name)
        if self._committing or connection in self._record.autocommitting:
            self._refuse_ignored()

    def _require_version(self, statement: Any, name: str, dialect: Dialect) -> None:
        known = self.by_name or (not isinstance(statement, str) and is_checked(statement))
        if not (known or _names_version(statement, name, dialect)):
            raise unconditional_error(f"a statement that changes stored rows of {name}")
        self.by_name = False

    @property
    def _inserts_are_free(self) -> bool:
        return self._request is not None and self._request.forbids_change


def refuse_unconditional(statement: Any, dialect: Dialect) -> None:
    """Refuse a listener's statement in a flush after ``require_conditions(session)``.

    Raises:
        PreconditionRequired, ConditionNotCompared: it changes versioned rows, and names no version.
    """
    sql = statement if isinstance(statement, str) else sql_of(statement)
    if sql is not None:
        found = _tables_of_text(sql)
    elif isinstance(statement, (Update, Delete)) or (
        isinstance(statement, Insert) and changes_stored_rows(statement)
    ):
        found = _tables_of_core(statement)
    else:
        return
    for name, one in found:
        if not _names_version(one, name, dialect):
            raise unconditional_error(f"a statement that changes stored rows of {name}")


def watch_conditions(session: Session, connection: Connection) -> None:
    """Listen to a connection whose transaction has begun, if its session or request needs it."""
    record = record_of(session)
    sent: Sent | None = record.conditions
    if sent is None:
        required = record.require_conditions
        request = None if required is False else current_request()
        if request is not None and not request.sent:
            request = None
        if request is None and not required:
            return
        sent = Sent(session, request)
        record.note_conditions(sent)
        if request is not None:
            session.__dict__[_KEY] = sent
    sent.listen(connection)


def _before_flush(session: Session, uow: Any, objects: Any) -> None:
    session.__dict__[_KEY].note(session)


def _has_ignored_condition(session: Session) -> bool:
    """Return whether the session's commit is to be checked, even if it has sent nothing so far."""
    request = current_request()
    return request is not None and request.is_ignored and is_watched(session)


def _before_commit(session: Session) -> None:
    """Flush changes that may begin the transaction, which SQLAlchemy does after all checks."""
    if not session.in_nested_transaction():
        session.flush()
        sent: Sent | None = record_of(session).conditions
        if sent is not None:
            sent.commit()


def _listen() -> None:
    add_step("request", _KEY, before_flush=_before_flush)
    add_step("unsent", _has_ignored_condition, before_commit=_before_commit)


call_before_first(_listen)


def _before_cursor_execute(
    connection: Any, cursor: Any, sql: str, parameters: Any, context: Any, many: bool
) -> None:
    for sent in connection.__dict__.get(_SENT, ()):
        sent.look_at(connection, sql, context)


def _written(sql: str, context: Any) -> Iterator[tuple[str, Any]]:
    """Yield the versioned tables that are written, each with its statement, or with the text."""
    for statement, _ in changes_executed(context):
        yield from _tables_of_text(sql) if statement is None else _tables_of_core(statement)


def _tables_of_text(sql: str) -> Iterator[tuple[str, Any]]:
    names = {table.name.lower() for table in (*versioned_tables(), *joined_tables())}
    for name in sorted({*tables_written(sql, names), *tables_added_to(sql)}):
        yield name, sql


def _tables_of_core(statement: Any) -> Iterator[tuple[str, Any]]:
    table = _table_of(statement)
    if table in versioned_tables() or table in joined_tables():
        yield table.name, statement


def _table_of(statement: Any) -> Any:
    return getattr(statement.table, "element", statement.table)  # an alias of it


def _names_version(statement: Any, name: str, dialect: Dialect) -> bool:
    if isinstance(statement, str):
        return name not in {table for table, _, _ in unversioned_writes(statement, dialect)}
    if isinstance(statement, Insert):
        return False
    return compares_version(statement, statement.table, version_of_table(_table_of(statement)))


# -- errors ----------------------------------------------------------------------------------------


def not_compared_error(request: Request, what: str) -> ConditionNotCompared:
    """Return the error of a request whose condition was not compared."""
    return ConditionNotCompared(
        f"The {request.method} request carries {' and '.join(request.sent)}, nothing has compared"
        f" it, and versioned rows were written ({what}). Compare it with the row that the request"
        " is about: expect(obj, conditions.expected), or entities.replace(...,"
        " **conditions.demands); or call optilock.conditions.request.compared() if you compare it"
        " in your own way. In a unit that has nothing to do with the row, call"
        " optilock.unit.ignore_conditions(session) before its first statement. Nothing was stored."
    )


def unconditional_error(what: str) -> OptilockError:
    """Return the error of ``require_conditions(session)``."""
    request = current_request()
    then = (
        " Demand the version that its author has seen, expect(obj, ...) or if_match=..., or say"
        " overwrite(obj). Nothing was stored."
    )
    if request is not None and request.sent:
        return ConditionNotCompared(
            f"The {request.method} request carries {' and '.join(request.sent)}, and {what} was"
            f" to be written, for which nothing has compared it (require_conditions).{then}"
        )
    error = PreconditionRequired(
        f"The session requires conditions (require_conditions), and {what} was to be written"
        f" without one.{then}"
    )
    error.detail = "Send If-Match with the ETag that you have read."
    return error
