"""The statements of a watched session: ``update(Model)``, ``delete(Model)``, and its connection.

::

    session.execute(update(Account).where(Account.owner == "Ada").values(balance=0))

The version of every row that such a statement changes moves: its column has an ``onupdate``, which
acts in plain sessions, on connections and for ``update(table)`` as well. A watched session does
three more things.

* Objects of these rows that the session holds get the new version, so that the next flush does not
  conflict with the session's own statement. Before the statement their rows are locked and read: an
  object that is older than its row keeps its version, and conflicts later. This is one SELECT, sent
  only when the session holds objects of the class. With ``synchronize_session=False`` none is sent,
  and the objects conflict until they are refreshed.
* Where the columns and the version are in different tables of one object, the version moves as
  well. An UPDATE of an alias is refused. (:mod:`optilock._watched.statements.version`)
* Where only ignored columns change, the version does not move.

Rows by primary key: :mod:`optilock._watched.statements.by_key`. An upsert has to move the version:
:mod:`optilock._watched.statements.refusals`.

Statements on ``session.connection()`` between flushes are the session's own, too. From the first
call of it to the end of the transaction, the connection handles UPDATE and DELETE as it does during
a flush (:mod:`optilock._watched.guard.connection`): the session's objects follow the statement
(:mod:`optilock._watched.statements.by_table`). A session that never uses its connection pays
nothing.

Two sessions on one connection are two authors, and the sender of a statement on it is unknown.
While both use it no object follows: an object that is older than its row conflicts, so no change is
lost.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, Delete, Insert, Select, StatementLambdaElement, Update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import FromStatement, Mapper, Session
from sqlalchemy.schema import DefaultGenerator

from optilock import events
from optilock._mapped import facts
from optilock._mapping.scopes import scoped_tables
from optilock._mapping.tables import owner_of
from optilock._undocumented.statements import MappersCache, lock_of, resolve_lambda, subject_of
from optilock._watched.rows.locked import LOCKED_ROWS, run_query
from optilock._watched.session.connections import ORIGINAL_KEY
from optilock._watched.session.record import (
    READS_KEY,
    RECORD_KEY,
    Reads,
    SessionRecord,
    is_strict,
    session_record,
)
from optilock._watched.statements.by_criteria import (
    delete_promised,
    update_by_criteria,
    update_with_children,
)
from optilock._watched.statements.by_key import refuse_compared, update_by_key
from optilock._watched.statements.by_table import (
    follow_statement,
    refuse_by_key_in_flush,
    send_in_flush,
    update_compared_rows,
    update_table,
)
from optilock._watched.statements.call import Call, Execute, mark_statement
from optilock._watched.statements.demand_checks import add_demands, add_demands_for_table
from optilock._watched.statements.given_versions import with_next_version
from optilock._watched.statements.refusals import (
    checked_upsert,
    inner_writes_of,
    refuse_inner_writes,
    refuse_insert,
    refuse_text,
    refuse_unchecked,
    refuse_unversioned_change,
    writes_rows,
)
from optilock._watched.statements.rollback_effects import (
    note_statement,
    note_unseen_rows,
    unseen_rows_of,
)
from optilock._watched.statements.scopes import (
    is_sent_for_mappers,
    send_call,
    send_on_connection,
)
from optilock._watched.statements.sql_text import text_writes_rows
from optilock._watched.statements.unguarded import (
    refuse_unguarded,
    refuse_unguarded_text,
)
from optilock._watched.statements.unguarded_warnings import warn_of_unguarded
from optilock._watched.statements.version import (
    keep_version_of_table,
    refuse_update_of_table,
    versioned_children,
)
from optilock._watched.statements.written_rows import note_statement_rows
from optilock._watched.writes.shapes import is_of_mappers
from optilock.dialects.transaction_ends import share_transaction
from optilock.dialects.transient import ended_by_conflict
from optilock.errors import ConfigurationError

#: An attribute of an error: listeners of events have got its conflict.
_REPORTED = "_optilock_reported"


def guarded_execute(original: Execute) -> Execute:
    """Replace ``execute``, ``scalar`` or ``scalars`` of a session."""

    @functools.wraps(original)
    def execute(self: Session, statement: Any, params: Any = None, **options: Any) -> Any:
        try:
            if type(statement) is not Select:
                call = Call(self, original, statement, params, options)
                result = send_call(call, _send_change) if scoped_tables else _send_change(call)
                if events.listeners_to_rows:
                    note_statement_rows(self, statement, params, result)
                return result
            demands = self.__dict__.get(RECORD_KEY, SessionRecord).demands
            if demands is not None:
                refuse_inner_writes(demands, statement)
            if is_strict(self):
                refuse_unversioned_change(statement)
                _refuse_unguarded(Call(self, original, statement, params, options))
            if scoped_tables and inner_writes_of(statement):
                return send_call(Call(self, original, statement, params, options), Call.send)
            reads: Reads | None = self.__dict__.get(READS_KEY)
            if reads is not None and lock_of(statement) is None:
                statement = reads.locked(self, statement, params, options)
            if lock_of(statement) is not None or LOCKED_ROWS in self.__dict__:
                return run_query(self, original, statement, params, options)
            return original(self, statement, params, **options)  # most are
        except DBAPIError as error:
            _report_conflict(self, error)
            raise

    setattr(execute, ORIGINAL_KEY, original)
    return execute


def _send_change(call: Call) -> Any:
    """Send a statement that may change rows."""
    if isinstance(call.statement, StatementLambdaElement):
        call = call.with_statement(_resolve(call.statement))
    if not (call.is_by_key and _mapper_of(call.statement)):  # there the version is that of before
        call = call.with_statement(with_next_version(call.statement, call.params))
    statement, demands = call.statement, session_record(call.session).demands
    record = session_record(call.session)
    record.note_other_statement()
    if writes_rows(statement):
        record.note_own_statement(statement)
    strict = is_strict(call.session)
    if strict:
        refuse_unversioned_change(statement)
    if strict is not False and (not call.is_by_key or _mapper_of(statement) is None):
        _judge_unguarded(call, strict)  # by key, it is compared row by row
    if isinstance(statement, (Update, Delete)):
        return _send_change_of_rows(call)
    if demands is not None:
        refuse_unchecked(demands, statement)
    if isinstance(statement, FromStatement):
        _refuse_from_statement(statement.element, call.params)
        _note_unseen(call, statement.element)
        return run_query(call.session, call.original, statement, call.params, dict(call.options))
    if isinstance(statement, Insert):
        refuse_insert(statement, call.params)
    _note_unseen(call, statement)
    return call.send()


def _report_conflict(session: Session, error: DBAPIError) -> None:
    """Report a conflict for which the database has ended the transaction of a session.

    A unit, and a flush, report theirs when they are rolled back, with the rows that have moved.
    """
    record: SessionRecord = session_record(session)
    if record.owner is not None or record.flush is not None or hasattr(error, _REPORTED):
        return
    if events.listeners and ended_by_conflict(error):
        setattr(error, _REPORTED, True)
        events.emit(lambda: events.Conflict(()))


def _refuse_unguarded(call: Call) -> None:
    refuse_unguarded(call.statement, call.params, dialect=lambda: call.dialect)


def _judge_unguarded(call: Call, strict: bool | None) -> None:
    if strict:
        _refuse_unguarded(call)
    elif not isinstance(call.statement, Insert):
        warn_of_unguarded(call.session, call.statement, call.params, dialect=lambda: call.dialect)


def _send_change_of_rows(call: Call) -> Any:
    """Send an UPDATE or DELETE."""
    mapper = _mapper_of(call.statement)
    if mapper is None:
        if isinstance(call.statement, Update):
            refuse_update_of_table(call.statement, call.params)
        return update_table(call)
    with mark_statement(call.session):
        call.refuse_elsewhere(mapper)
        demands = session_record(call.session).demands
        if demands is not None:
            call = add_demands(call, mapper, demands)
        flushing = session_record(call.session).flush is not None and facts(mapper).guarded
        if isinstance(call.statement, Update):
            return _update(call, mapper, flushing=flushing)
        return _delete(call, mapper, flushing=flushing)


def _delete(call: Call, mapper: Mapper[Any], *, flushing: bool) -> Any:
    if flushing:
        return send_in_flush(call, mapper)
    if session_record(call.session).promises:
        delete_promised(call, mapper)
    return call.send()


def _update(call: Call, mapper: Mapper[Any], *, flushing: bool) -> Any:
    by_key = call.is_by_key
    if by_key and flushing and session_record(call.session).is_writing:
        refuse_by_key_in_flush(mapper)
    if by_key:
        refuse_compared(mapper, f"an UPDATE of {mapper.class_.__name__} by primary key")
    if facts(mapper).guarded:
        _note(call, mapper)
    if not facts(mapper).token:
        return _update_without_version(call, mapper)
    if by_key:
        return update_by_key(call, mapper)
    if isinstance(call.params, list):
        return call.send()
    return update_by_criteria(call, mapper)


def _update_without_version(call: Call, mapper: Mapper[Any]) -> Any:
    """Send an UPDATE of a class without a version of its own."""
    children = versioned_children(mapper)
    if children:
        _note(call, mapper)
        return update_with_children(call, mapper, children)
    if facts(mapper).compares and call.synchronizes:
        return update_compared_rows(call, mapper)
    return call.send()


def _note(call: Call, mapper: Mapper[Any]) -> None:
    call.connection(mapper)  # begins the transaction
    note_statement(call.session, mapper)


def _note_unseen(call: Call, statement: Any) -> None:
    unseen = unseen_rows_of(statement)
    if any(unseen):  # the transaction begins, where the statement is sent
        call.with_statement(statement).connection()
        note_unseen_rows(call.session, unseen)


def _mapper_of(statement: Update | Delete) -> Mapper[Any] | None:
    """Return the class that ``update(Model)`` names; ``None`` for ``update(table)``."""
    subject = subject_of(statement)
    if getattr(subject, "is_aliased_class", False):
        return None
    mapper = getattr(subject, "mapper", None)
    return mapper if isinstance(mapper, Mapper) else None


def _resolve(statement: StatementLambdaElement) -> Any:
    """Return the statement that ``lambda_stmt`` makes, if it is a change; a query as it is."""
    made = resolve_lambda(statement)
    return made if isinstance(made, (Update, Delete, Insert, FromStatement)) else statement


def _refuse_from_statement(statement: Any, params: Any) -> None:
    """Refuse a change inside ``from_statement()`` that leaves objects or versions behind.

    Raises:
        ConfigurationError: it is an UPDATE, after which SQLAlchemy updates no object, or an upsert
            that does not move the version.
    """
    if isinstance(statement, Insert):
        refuse_insert(statement, params)
    mapper = _mapper_of(statement) if isinstance(statement, Update) else None
    if mapper is not None and facts(mapper).guarded:
        name = mapper.class_.__name__
        raise ConfigurationError(
            f"The UPDATE of {name} inside of from_statement() would leave the session's objects as"
            f" they were, and they would conflict with it. Write session.scalars(update({name})"
            f"....returning({name})), which keeps them right. Nothing was sent."
        )


_CHANGES = (Update, Delete)


def guarded_connection(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replace ``Session.connection``."""

    @functools.wraps(original)
    def connection(self: Session, *args: Any, **options: Any) -> Any:
        found = original(self, *args, **options)
        record = session_record(self)
        record.note_other_statement()
        if isinstance(found, Connection):
            share_transaction(found)
        if isinstance(found, Connection) and found not in record.followed:
            covers = record.followed[found] = _replacements_for(self, record, found)
            record.sends_on(found, following=True)
            for name, cover in covers.items():
                if name not in found.__dict__:  # the flush that is running gives it back
                    setattr(found, name, cover)
        return found

    setattr(connection, ORIGINAL_KEY, original)
    return connection


def _replacements_for(
    session: Session, record: SessionRecord, connection: Connection
) -> dict[str, Callable[..., Any]]:
    """Return the functions that replace the methods of the connection."""
    native = type(connection).execute.__get__(connection)
    owner = weakref.ref(session)

    def execute(statement: Any, parameters: Any = None, **options: Any) -> Any:
        session = owner()
        if session is None or record.in_statement:
            return native(statement, parameters, **options)
        if writes_rows(statement):
            record.note_own_statement(statement)
        if is_strict(session):
            refuse_unversioned_change(statement)
        if scoped_tables and not is_sent_for_mappers(options):
            send = functools.partial(_execute, session, connection, native)
            again = functools.partial(send, statement, parameters, options)
            return send_on_connection(session, connection, statement, parameters, again)
        return _execute(session, connection, native, statement, parameters, options)

    def scalar(statement: Any, parameters: Any = None, **options: Any) -> Any:
        if isinstance(statement, DefaultGenerator):  # a sequence, which is no statement
            return type(connection).scalar(connection, statement, parameters, **options)
        return connection.execute(statement, parameters, **options).scalar()

    def exec_driver_sql(statement: str, *args: Any, **options: Any) -> Any:
        session = owner()
        if text_writes_rows(statement):
            record.note_own_statement(statement)
        if session is not None and (strict := is_strict(session)) is not False:
            if strict:
                refuse_unguarded_text(statement, connection.dialect)
            else:
                warn_of_unguarded(session, statement, dialect=lambda: connection.dialect)
        if record.demands is not None and session is not None:
            refuse_text(record.demands, statement)
        send = functools.partial(type(connection).exec_driver_sql, connection, statement, *args)
        if not scoped_tables or session is None:
            return send(**options)
        again = functools.partial(send, **options)
        return send_on_connection(session, connection, statement, None, again)

    return {"execute": execute, "scalar": scalar, "exec_driver_sql": exec_driver_sql}


def _execute(
    session: Session,
    connection: Connection,
    native: Callable[..., Any],
    statement: Any,
    parameters: Any,
    options: dict[str, Any],
) -> Any:
    """Send a statement on a connection of the session."""
    record = session_record(session)
    if type(statement) in _CHANGES:
        return _execute_change(session, connection, native, statement, parameters, options)
    statement = checked_upsert(statement, parameters)
    if (strict := is_strict(session)) is not False:
        judge = refuse_unguarded if strict else functools.partial(warn_of_unguarded, session)
        judge(statement, dialect=lambda: connection.dialect)
    if record.demands is not None:
        refuse_unchecked(record.demands, statement)
    note_unseen_rows(session, unseen_rows_of(statement))
    return native(statement, parameters, **options)


def _execute_change(
    session: Session,
    connection: Connection,
    native: Callable[..., Any],
    statement: Update | Delete,
    parameters: Any,
    options: dict[str, Any],
) -> Any:
    """Send an UPDATE or DELETE on a connection of the session, and let its objects follow."""
    record = session_record(session)
    cache = (options.get("execution_options") or {}).get("compiled_cache")
    bulk = type(cache) is MappersCache or is_of_mappers(  # handled in another module
        statement, parameters, cache, (owner_of(statement.table),)
    )
    if not bulk:
        statement = with_next_version(statement, parameters)
    if not bulk and (strict := is_strict(session)) is not False:
        judge = refuse_unguarded if strict else functools.partial(warn_of_unguarded, session)
        judge(statement, parameters, dialect=lambda: connection.dialect)
    if not bulk and type(statement) is Update:
        refuse_update_of_table(statement, parameters)
    if bulk or not record.follows(connection):
        return native(statement, parameters, **options)
    if record.demands is not None and not record.demands_checked:
        statement = add_demands_for_table(
            session, connection, statement, parameters, record.demands
        )
    statement = keep_version_of_table(session, statement, parameters)
    send = functools.partial(native, statement, parameters, **options)
    result = follow_statement(session, connection, statement, parameters, send)
    if events.listeners_to_rows:
        note_statement_rows(session, statement, parameters, result)
    return result
