"""The condition of a request, and what a session writes while the request is served.

Two rules, for watched sessions (those of units are):

* A request carries a condition that nothing has compared (:mod:`optilock.conditions.request`), and
  the session has written versioned rows: COMMIT is refused. Until then there is time to compare. An
  object that was assigned the value that it has counts as well: what it has was not seen.
* The unit has ``require_conditions=True``: a statement that changes stored versioned rows without
  naming a version is refused before it is sent. Of objects the unit asks before each flush
  (:mod:`optilock.unit.conditions`), and of what listeners send in one, the guard.

Both look at what goes over the session's connections: rows of a flush, statements, bulk calls,
entities, SQL text. They listen to connections of such sessions alone, and to none where no request
carries a condition.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import ref

from sqlalchemy import Connection, Delete, Insert, Update, event
from sqlalchemy.orm import Session, SessionTransaction
from sqlalchemy.orm.attributes import instance_state

from optilock.conditions.request import Request, before_first, current
from optilock.errors import ConditionNotCompared, OptilockError, PreconditionRequired
from optilock.mapped import facts
from optilock.mapping.tables import joined_tables, versioned_tables
from optilock.watched.session.order import at_step
from optilock.watched.session.watched import is_watched, known_of
from optilock.watched.statements.refusals import changes_stored_rows
from optilock.watched.statements.sql_text import (
    sql_of,
    tables_added_to,
    tables_written,
    written_unversioned,
)
from optilock.watched.statements.unguarded import compares

_CHANGES = (Update, Delete, Insert)
#: An attribute of a session: what it has sent for a request whose condition nothing has compared.
_KEY = "_optilock_request"


class Sent:
    """What one transaction of a session has sent, as far as conditions matter."""

    def __init__(self, session: Session, request: Request | None, *, every_row: bool) -> None:
        self._session, self._known, self._request = ref(session), known_of(session), request
        self._every_row = every_row
        #: Tables, and the savepoints that were open.
        self._written: list[tuple[str, tuple[SessionTransaction, ...]]] = []
        self._connections: list[Connection] = []
        self._committing = False
        #: The next statement overwrites what is stored, and its caller has said so.
        self.by_name = False

    def listen(self, connection: Connection) -> None:
        if connection not in self._connections:
            self._connections.append(connection)
            event.listen(connection, "before_cursor_execute", self._before_cursor_execute)

    def note(self, session: Session) -> None:
        """The session flushes these objects."""
        if self.is_ignored:
            new = () if self._inserts_are_free else session.new
            for obj in (*new, *session.dirty, *session.deleted):
                known = facts(instance_state(obj).mapper)
                if known.guarded:
                    self._note(known.table.name)

    def _note(self, table: str) -> None:
        session = self._session()
        savepoint, around = None if session is None else session.get_nested_transaction(), []
        while savepoint is not None and savepoint.nested:
            around.append(savepoint)
            savepoint = savepoint.parent
        self._written.append((table, tuple(around)))

    def take_back(self, savepoint: SessionTransaction) -> None:
        """What was written since it began is undone."""
        self._written = [one for one in self._written if savepoint not in one[1]]

    def over(self) -> None:
        """The transaction has ended."""
        session = self._session()
        if session is not None:
            session.__dict__.pop(_KEY, None)
        for connection in self._connections:
            event.remove(connection, "before_cursor_execute", self._before_cursor_execute)
        self._connections = []

    @property
    def is_ignored(self) -> bool:
        """Would COMMIT be refused, if a versioned row was written?"""
        return self._request is not None and self._request.is_ignored

    def commit(self) -> None:
        """COMMIT is next: everything is flushed.

        Raises:
            ConditionNotCompared: versioned rows were written, and the request's condition was not
                compared.
        """
        self._refuse_ignored()
        self._committing = True  # a listener may write more

    def _refuse_ignored(self) -> None:
        if self._written and self.is_ignored:
            assert self._request is not None
            tables = dict.fromkeys(table for table, _ in self._written)
            raise not_compared(self._request, ", ".join(tables))

    def _before_cursor_execute(
        self, connection: Any, cursor: Any, sql: str, parameters: Any, context: Any, many: bool
    ) -> None:
        for name, statement in _written(sql, context):
            adds = isinstance(statement, Insert) and not changes_stored_rows(statement)
            if self._every_row and not adds and self._known.flush is None:
                if not (self.by_name or _names_version(statement, name)):
                    raise unconditional(f"a statement that changes stored rows of {name}")
                self.by_name = False
            if self.is_ignored and not (adds and self._inserts_are_free):
                self._note(name)
        if self._committing or connection in self._known.autocommitting:
            self._refuse_ignored()

    @property
    def _inserts_are_free(self) -> bool:
        return self._request is not None and self._request.forbids_change


def refuse_unconditional(statement: Any) -> None:
    """What a listener sends in a flush of a unit with ``require_conditions=True``.

    Raises:
        PreconditionRequired, ConditionNotCompared: it changes versioned rows, and names no version.
    """
    sql = statement if isinstance(statement, str) else sql_of(statement)
    if sql is not None:
        found = _of_text(sql)
    elif isinstance(statement, (Update, Delete)) or (
        isinstance(statement, Insert) and changes_stored_rows(statement)
    ):
        found = _of_core(statement)
    else:
        return
    for name, one in found:
        if not _names_version(one, name):
            raise unconditional(f"a statement that changes stored rows of {name}")


def watch_conditions(session: Session, connection: Connection) -> None:
    """A transaction has begun on the connection: look at what is sent, if anything demands it."""
    known = known_of(session)
    sent: Sent | None = known.conditions
    if sent is None:
        asked = known.require_conditions
        request = None if asked is False else current()
        if request is not None and not request.sent:
            request = None
        if request is None and not asked:
            return
        sent = known.conditions = Sent(session, request, every_row=bool(asked))
        if request is not None:
            session.__dict__[_KEY] = sent
    sent.listen(connection)


def _before_flush(session: Session, uow: Any, objects: Any) -> None:
    session.__dict__[_KEY].note(session)


def _is_asked(session: Session) -> bool:
    """Is it to be looked at what the session commits? Also where it has sent nothing so far."""
    request = current()
    return request is not None and request.is_ignored and is_watched(session)


def _before_commit(session: Session) -> None:
    """Flush what may begin the transaction: SQLAlchemy would do so behind every look at COMMIT."""
    if not session.in_nested_transaction():
        session.flush()
        sent: Sent | None = known_of(session).conditions
        if sent is not None:
            sent.commit()


def _listen() -> None:
    at_step("request", _KEY, before_flush=_before_flush)
    at_step("unsent", _is_asked, before_commit=_before_commit)


before_first(_listen)


def _written(sql: str, context: Any) -> Iterator[tuple[str, Any]]:
    """The versioned tables that are written, each with its statement, or with the text."""
    compiled = getattr(context, "compiled", None)
    statement = None if compiled is None else compiled.statement
    for cte in getattr(compiled, "ctes", None) or ():
        if isinstance(cte.element, _CHANGES):
            yield from _of_core(cte.element)
    if isinstance(statement, _CHANGES):
        yield from _of_core(statement)
    elif statement is None or statement.__visit_name__ in ("textclause", "text"):
        yield from _of_text(sql)


def _of_text(sql: str) -> Iterator[tuple[str, Any]]:
    names = {table.name.lower() for table in (*versioned_tables(), *joined_tables())}
    for name in sorted({*tables_written(sql, names), *tables_added_to(sql)}):
        yield name, sql


def _of_core(statement: Any) -> Iterator[tuple[str, Any]]:
    table = _table_of(statement)
    if table in versioned_tables() or table in joined_tables():
        yield table.name, statement


def _table_of(statement: Any) -> Any:
    return getattr(statement.table, "element", statement.table)  # an alias of it


def _names_version(statement: Any, name: str) -> bool:
    if isinstance(statement, str):
        return name not in {table for table, _, _ in written_unversioned(statement)}
    if isinstance(statement, Insert):
        return False
    table = _table_of(statement)
    joined = joined_tables().get(table)
    version: Any = versioned_tables().get(table) if joined is None else joined.version_id_col
    return compares(statement, version)


# -- errors ----------------------------------------------------------------------------------------


def not_compared(request: Request, what: str) -> ConditionNotCompared:
    """The error of a request whose condition nobody has asked for."""
    return ConditionNotCompared(
        f"The {request.method} request carries {' and '.join(request.sent)}, nothing has compared"
        f" it, and versioned rows were written ({what}). Compare it with the row that the request"
        " is about: expect(obj, conditions.expected), or entities.replace(...,"
        " **conditions.demands); or call optilock.conditions.request.compared() if you compare it"
        " in your own way. For a unit that has nothing to do with the row, write"
        " require_conditions=False. Nothing was stored."
    )


def unconditional(what: str) -> OptilockError:
    """The error of ``require_conditions=True``."""
    request = current()
    then = (
        " Demand the version that its author has seen, expect(obj, ...) or if_match=..., or say"
        " overwrite(obj). Nothing was stored."
    )
    if request is not None and request.sent:
        return ConditionNotCompared(
            f"The {request.method} request carries {' and '.join(request.sent)}, and {what} was"
            f" to be written, for which nothing has compared it (require_conditions=True).{then}"
        )
    error = PreconditionRequired(
        f"The unit of work has require_conditions=True, and {what} was to be written without a"
        f" condition.{then}"
    )
    error.detail = "Send If-Match with the ETag that you have read."
    return error
