"""What a watched session executes: ``update(Model)``, ``delete(Model)``, and its connection.

::

    session.execute(update(Account).where(Account.owner == "Ada").values(balance=0))

The version of every row that such a statement changes moves: its column has an ``onupdate``, so
this is true of plain sessions, of connections and of ``update(table)`` as well. A watched session
sees to three more things.

* Objects of these rows that the session holds get the new version, so that the next flush does not
  conflict with the session's own statement. Before the statement their rows are locked and looked
  at: an object that is older than its row keeps its version, and goes on to conflict. That look is
  one SELECT, and is sent only when the session holds objects of the class. With
  ``synchronize_session=False`` there is none, and the objects conflict until they are refreshed.
* Where the columns and the version are in different tables of one object, the version moves as
  well. An UPDATE of an alias is refused. (:mod:`optilock.watched.statements.version`)
* Where only ignored columns change, the version stays as it is.

Rows by primary key: :mod:`optilock.watched.statements.by_key`. An upsert has to move the version:
:mod:`optilock.watched.statements.refusals`.

What is sent on ``session.connection()`` between flushes is the session's own, too. From the first
time that somebody asks for it to the end of the transaction, the connection answers for UPDATE and
DELETE as it does during a flush (:mod:`optilock.watched.guard.connection`): the objects of the
session learn what the statement has made of their rows
(:mod:`optilock.watched.statements.by_table`). Whoever never asks for the connection pays nothing.

Two sessions on one connection are two authors, and nobody knows which of them sends a statement on
it. While both use it no object follows: one that is older than its row conflicts, so nothing is
lost.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, Delete, Insert, Select, StatementLambdaElement, Update
from sqlalchemy.orm import FromStatement, Mapper, Session
from sqlalchemy.schema import DefaultGenerator

from optilock.errors import ConfigurationError
from optilock.mapped import facts
from optilock.mapping.tables import owner_of
from optilock.undocumented.statements import MappersCache, lock_of, resolved, subject_of
from optilock.watched.rows.locked import LOCKED, run_query
from optilock.watched.session.connections import PLAIN
from optilock.watched.session.watched import KNOWN, READS, Reads, Watched, is_strict, watched
from optilock.watched.statements.by_criteria import by_criteria, delete_promised, with_children
from optilock.watched.statements.by_key import refuse_compared, update_by_key
from optilock.watched.statements.by_table import (
    by_table,
    in_flush,
    of_values,
    refuse_by_key_in_flush,
    update_table,
)
from optilock.watched.statements.call import Call, Execute, stating
from optilock.watched.statements.demand_checks import table_under_demands, under_demands
from optilock.watched.statements.refusals import (
    refuse_forgotten,
    refuse_insert,
    refuse_inside,
    refuse_text,
    refuse_unasked,
)
from optilock.watched.statements.rollback_effects import note, note_unseen, unseen_of
from optilock.watched.statements.version import (
    refuse_update_of_table,
    unmoved_of_table,
    versioned_children,
)
from optilock.watched.writes.shapes import is_of_mappers


def guarded_execute(original: Execute) -> Execute:
    """``execute``, ``scalar`` or ``scalars`` of a watched session."""

    @functools.wraps(original)
    def execute(self: Session, statement: Any, params: Any = None, **options: Any) -> Any:
        if type(statement) is not Select:
            return _changing(Call(self, original, statement, params, options))
        demands = self.__dict__.get(KNOWN, Watched).demands
        if demands is not None:
            refuse_inside(demands, statement)
        if is_strict(self):
            refuse_forgotten(statement)
        reads: Reads | None = self.__dict__.get(READS)
        if reads is not None and lock_of(statement) is None:
            statement = reads.locked(self, statement, params, options)
        if lock_of(statement) is not None or LOCKED in self.__dict__:
            return run_query(self, original, statement, params, options)
        return original(self, statement, params, **options)  # most are

    setattr(execute, PLAIN, original)
    return execute


def _changing(call: Call) -> Any:
    """A statement that may change rows."""
    watched(call.session).sent_more = True
    if isinstance(call.statement, StatementLambdaElement):
        call = call.with_statement(_resolved(call.statement))
    statement, demands = call.statement, watched(call.session).demands
    if is_strict(call.session):
        refuse_forgotten(statement)
    if isinstance(statement, (Update, Delete)):
        return _of_rows(call)
    if demands is not None:
        refuse_unasked(demands, statement)
    if isinstance(statement, FromStatement):
        _refuse_inside(statement.element, call.params)
        _note_unseen(call, statement.element)
        return run_query(call.session, call.original, statement, call.params, dict(call.options))
    if isinstance(statement, Insert):
        refuse_insert(statement, call.params)
    _note_unseen(call, statement)
    return call.send()


def _of_rows(call: Call) -> Any:
    """An UPDATE or DELETE."""
    mapper = _mapper_of(call.statement)
    if mapper is None:
        if isinstance(call.statement, Update):
            refuse_update_of_table(call.statement, call.params)
        return update_table(call)
    with stating(call.session):
        call.refuse_elsewhere(mapper)
        demands = watched(call.session).demands
        if demands is not None:
            call = under_demands(call, mapper, demands)
        flushing = watched(call.session).flush is not None and facts(mapper).guarded
        if isinstance(call.statement, Update):
            return _update(call, mapper, flushing=flushing)
        return _delete(call, mapper, flushing=flushing)


def _delete(call: Call, mapper: Mapper[Any], *, flushing: bool) -> Any:
    if flushing:
        return in_flush(call, mapper)
    if watched(call.session).promises:
        delete_promised(call, mapper)
    return call.send()


def _update(call: Call, mapper: Mapper[Any], *, flushing: bool) -> Any:
    by_key = call.is_by_key
    if by_key and flushing and watched(call.session).is_writing:
        refuse_by_key_in_flush(mapper)
    if by_key:
        refuse_compared(mapper, f"an UPDATE of {mapper.class_.__name__} by primary key")
    if facts(mapper).guarded:
        _note(call, mapper)
    if not facts(mapper).token:
        return _without_version(call, mapper)
    if by_key:
        return update_by_key(call, mapper)
    if isinstance(call.params, list):
        return call.send()
    return by_criteria(call, mapper)


def _without_version(call: Call, mapper: Mapper[Any]) -> Any:
    """An UPDATE of a class without a version of its own."""
    children = versioned_children(mapper)
    if children:
        _note(call, mapper)
        return with_children(call, mapper, children)
    if facts(mapper).compares and call.synchronizes:
        return of_values(call, mapper)
    return call.send()


def _note(call: Call, mapper: Mapper[Any]) -> None:
    call.connection(mapper)  # begins the transaction
    note(call.session, mapper)


def _note_unseen(call: Call, statement: Any) -> None:
    unseen = unseen_of(statement)
    if any(unseen):  # the transaction begins, where the statement is sent
        call.with_statement(statement).connection()
        note_unseen(call.session, unseen)


def _mapper_of(statement: Update | Delete) -> Mapper[Any] | None:
    """The class that ``update(Model)`` names; ``None`` for ``update(table)``."""
    subject = subject_of(statement)
    if getattr(subject, "is_aliased_class", False):
        return None
    mapper = getattr(subject, "mapper", None)
    return mapper if isinstance(mapper, Mapper) else None


def _resolved(statement: StatementLambdaElement) -> Any:
    """The statement that ``lambda_stmt`` makes, if it is a change; a query stays as it is."""
    made = resolved(statement)
    return made if isinstance(made, (Update, Delete, Insert, FromStatement)) else statement


def _refuse_inside(statement: Any, params: Any) -> None:
    """Refuse a change inside of ``from_statement()`` that leaves objects or versions behind.

    Raises:
        ConfigurationError: it is an UPDATE, after which SQLAlchemy brings no object up to date, or
            an upsert that does not move the version.
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
    """``Session.connection``."""

    @functools.wraps(original)
    def connection(self: Session, *args: Any, **options: Any) -> Any:
        found = original(self, *args, **options)
        known = watched(self)
        known.sent_more = True
        if isinstance(found, Connection) and found not in known.followed:
            covers = known.followed[found] = _following(self, known, found)
            known.sends_on(found, following=True)
            for name, cover in covers.items():
                if name not in found.__dict__:  # the flush that is running gives it back
                    setattr(found, name, cover)
        return found

    setattr(connection, PLAIN, original)
    return connection


def _following(
    session: Session, known: Watched, connection: Connection
) -> dict[str, Callable[..., Any]]:
    """What covers the methods of the connection."""
    native = type(connection).execute.__get__(connection)
    owner = weakref.ref(session)

    def execute(statement: Any, parameters: Any = None, **options: Any) -> Any:
        session = owner()
        if session is None or known.stating:
            return native(statement, parameters, **options)
        if is_strict(session):
            refuse_forgotten(statement)
        if type(statement) not in _CHANGES:
            if known.demands is not None:
                refuse_unasked(known.demands, statement)
            note_unseen(session, unseen_of(statement))
            return native(statement, parameters, **options)
        cache = (options.get("execution_options") or {}).get("compiled_cache")
        bulk = type(cache) is MappersCache or is_of_mappers(  # seen to elsewhere
            statement, parameters, cache, (owner_of(statement.table),)
        )
        if not bulk and type(statement) is Update:
            refuse_update_of_table(statement, parameters)
        if bulk or not known.follows(connection):
            return native(statement, parameters, **options)
        if known.demands is not None and not known.asked:
            statement = table_under_demands(
                session, connection, statement, parameters, known.demands
            )
        statement = unmoved_of_table(session, statement, parameters)
        send = functools.partial(native, statement, parameters, **options)
        return by_table(session, connection, statement, parameters, send)

    def scalar(statement: Any, parameters: Any = None, **options: Any) -> Any:
        if isinstance(statement, DefaultGenerator):  # a sequence, which is no statement
            return type(connection).scalar(connection, statement, parameters, **options)
        return connection.execute(statement, parameters, **options).scalar()

    def exec_driver_sql(statement: str, *args: Any, **options: Any) -> Any:
        if known.demands is not None and owner() is not None:
            refuse_text(known.demands, statement)
        return type(connection).exec_driver_sql(connection, statement, *args, **options)

    return {"execute": execute, "scalar": scalar, "exec_driver_sql": exec_driver_sql}
