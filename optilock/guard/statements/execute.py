"""``update(Model)`` and ``delete(Model)`` through a watched session.

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
  well: :mod:`optilock.guard.statements.apart`. An UPDATE of an alias is refused.
* Where only ignored columns change, the version stays as it is.

Rows by primary key: :mod:`optilock.guard.statements.by_key`. An upsert has to move the version:
:mod:`optilock.guard.statements.upserts`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Delete, Insert, Select, Update
from sqlalchemy.orm import FromStatement, Mapper, Session
from sqlalchemy.orm.attributes import instance_state
from sqlalchemy.orm.state import InstanceState
from sqlalchemy.sql.lambdas import StatementLambdaElement

from optilock.errors import ConfigurationError
from optilock.guard.later_reads import run_query
from optilock.guard.statements.apart import (
    refuse_update_of_table,
    versioned_children,
)
from optilock.guard.statements.by_criteria import (
    by_criteria,
    matching,
    options_of,
    take_over,
    with_children,
)
from optilock.guard.statements.by_key import refuse_compared, update_by_key
from optilock.guard.statements.by_table import by_table, is_of_objects, of_values
from optilock.guard.statements.own import (
    binds_of,
    flush_before,
    keep_promises,
    note,
    note_unseen_on,
    promised_rows,
    refuse_elsewhere,
)
from optilock.guard.statements.unmoved import unmoved_of_table
from optilock.guard.statements.unseen import unseen_of
from optilock.guard.statements.upserts import refuse_insert
from optilock.guard.statements.while_flushing import in_flush, refuse_by_key_in_flush
from optilock.mapping.facts import facts
from optilock.rows.locked import LOCKED
from optilock.rows.seen import version_seen
from optilock.session.connections import own_connection
from optilock.session.watched import watched
from optilock.undocumented import (
    lock_of,
    resolved,
    subject_of,
)

__all__ = ["guarded_execute"]

State = InstanceState[Any]
Execute = Callable[..., Any]


def guarded_execute(original: Execute) -> Execute:
    """``execute``, ``scalar`` or ``scalars`` of a watched session."""

    @functools.wraps(original)
    def execute(self: Session, statement: Any, params: Any = None, **options: Any) -> Any:
        if type(statement) is Select:  # most are
            if lock_of(statement) is not None or LOCKED in self.__dict__:
                return run_query(self, original, statement, params, options)
            return original(self, statement, params, **options)
        if isinstance(statement, StatementLambdaElement):
            statement = _resolved(statement)
        if isinstance(statement, FromStatement):
            _refuse_inside(statement.element, params)
            _note_unseen(self, statement.element, options)
            return run_query(self, original, statement, params, options)
        if not isinstance(statement, (Update, Delete)):
            if isinstance(statement, Insert):
                refuse_insert(statement, params)
            _note_unseen(self, statement, options)
            return original(self, statement, params, **options)
        mapper = _mapper_of(statement)
        if mapper is None:
            if isinstance(statement, Update):
                refuse_update_of_table(statement, params)
            return _of_table(self, original, statement, params, options)
        with _stating(self):
            return of_class(self, mapper, statement, params, **options)

    def of_class(
        self: Session, mapper: Mapper[Any], statement: Any, params: Any, **options: Any
    ) -> Any:
        refuse_elsewhere(self, mapper, options_of(statement, options), options)
        flushing = watched(self).flush is not None and facts(mapper).guarded
        if isinstance(statement, Delete):
            if flushing:
                return in_flush(self, original, mapper, statement, params, options)
            if watched(self).promises:
                _delete_promised(self, statement, params, options)
            return original(self, statement, params, **options)
        by_key = _is_by_key(statement, params, options)
        if by_key and flushing and watched(self).is_writing:
            refuse_by_key_in_flush(mapper)
        if by_key:
            refuse_compared(mapper, f"an UPDATE of {mapper.class_.__name__} by primary key")
        if facts(mapper).guarded:
            note(self, mapper, options)
        if not facts(mapper).token:
            children = versioned_children(mapper)
            if children:
                note(self, mapper, options)
                return with_children(self, original, mapper, children, statement, params, options)
            if facts(mapper).compares and _synchronizes(statement, options):
                return _of_values(self, original, mapper, statement, params, options)
            return original(self, statement, params, **options)
        if by_key:
            run = functools.partial(original, self, statement, params, **options)
            chosen = options_of(statement, options)
            send = functools.partial(_by_key, self, run, mapper, params, chosen, options)
            return update_by_key(self, mapper, statement, params, send)
        if isinstance(params, list):
            return original(self, statement, params, **options)
        return by_criteria(self, original, mapper, statement, params, options)

    return execute


@contextmanager
def _stating(session: Session) -> Iterator[None]:
    """The statement is seen to here, and not once more where it reaches the connection."""
    known = watched(session)
    before, known.stating = known.stating, True
    try:
        yield
    finally:
        known.stating = before


def _of_table(
    session: Session,
    original: Execute,
    statement: Update | Delete,
    params: Any,
    options: Mapping[str, Any],
) -> Any:
    """``update(table)`` or ``delete(table)``; in a flush it is seen to where it is sent."""
    if watched(session).flush is None:
        statement = unmoved_of_table(session, statement, params)
    send = functools.partial(original, session, statement, params, **options)
    if watched(session).flush is not None or not is_of_objects(statement.table):
        return send()
    binds = {"clause": statement, **(options.get("bind_arguments") or {})}
    connection = own_connection(session, binds)
    watched(session).sends_on(connection)
    with _stating(session):
        return by_table(session, connection, statement, params, send)


def _note_unseen(session: Session, statement: Any, options: Mapping[str, Any]) -> None:
    unseen = unseen_of(statement)
    if any(unseen):  # the transaction begins, where the statement is sent
        own_connection(session, {"clause": statement, **(options.get("bind_arguments") or {})})
        note_unseen_on(session, unseen)


def _synchronizes(statement: Update, options: Mapping[str, Any]) -> bool:
    """Is the session to bring its objects up to date?"""
    return options_of(statement, options).get("synchronize_session", "auto") is not False


def _of_values(
    session: Session,
    original: Execute,
    mapper: Mapper[Any],
    statement: Update,
    params: Any,
    options: Mapping[str, Any],
) -> Any:
    """``update(Model)`` of rows whose values are compared."""
    if options_of(statement, options).get("autoflush", session.autoflush):
        session.flush()
    send = functools.partial(original, session, statement, params, **options)
    connection = own_connection(session, binds_of(mapper, options))
    return of_values(session, connection, mapper, statement, params, send)


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
    return made if isinstance(made, (Update, Insert, FromStatement)) else statement


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


def _is_by_key(statement: Update, params: Any, options: Mapping[str, Any]) -> bool:
    if not isinstance(params, list):
        return False
    return options_of(statement, options).get("dml_strategy", "auto") in ("auto", "bulk")


def _delete_promised(session: Session, statement: Delete, params: Any, options: Any) -> None:
    """Rows that we delete in the version that was promised are no conflict before COMMIT."""
    mapper = _mapper_of(statement)
    if mapper is None or not facts(mapper).token:
        return
    flush_before(session, {"autoflush": session.autoflush, **options_of(statement, options)})
    promised = promised_rows(session, mapper)
    if promised:
        note(session, mapper, options)
        binds = binds_of(mapper, options)
        found = matching(session, binds, mapper, statement, params, set(promised))
        keep_promises(session, promised, found)


def _by_key(
    session: Session,
    run: Callable[[], Any],
    mapper: Mapper[Any],
    rows: list[Any],
    chosen: Mapping[str, Any],
    options: dict[str, Any],
) -> Any:
    """The objects of these rows get the new version, if they hold the one that the row names."""
    flush_before(session, {"autoflush": session.autoflush, **chosen})
    key = facts(mapper).token
    held = _held_by(session, mapper, rows)
    versions = [(state, state.dict[key]) for state, _ in held if key in state.dict]
    result = run()
    for state, version in versions:  # SQLAlchemy gives it the one that the row names
        state.dict[key] = version
    matched = [(state, row[key]) for state, row in held if version_seen(state, key) == row[key]]
    promised = promised_rows(session, mapper)
    if promised:
        names = facts(mapper).keys
        versions_named = {tuple(row.get(name) for name in names): row[key] for row in rows}
        keep_promises(session, promised, versions_named)
    if matched and chosen.get("synchronize_session", "auto") is not False:
        binds = binds_of(mapper, options)
        connection = own_connection(session, binds)
        take_over(session, connection, mapper, matched, certain=True)
    return result


def _held_by(session: Session, mapper: Mapper[Any], rows: list[Any]) -> list[tuple[State, Any]]:
    """The objects of ``rows`` that the session holds, each with its row."""
    names = facts(mapper).keys
    found = []
    for row in rows if session.identity_map else ():
        key = mapper.identity_key_from_primary_key(tuple(row.get(name) for name in names))
        obj = session.identity_map.get(key)
        if obj is not None:
            found.append((instance_state(obj), row))
    return found
