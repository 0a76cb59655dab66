"""One row written by its key, if it is in a version that its author has seen: one statement.

::

    written = write_row(session, Change(mapper, (7,), {"title": "New"}, versions=(3,)))
    written.version                  # 4

``UPDATE pages SET title = :title, version = :next WHERE id = :id AND version = :seen``, and the row
count is the answer. For several versions the WHERE has ``version IN (…)``; for none the stored row
is overwritten. The WHERE also has the session's demands of its rows
(:func:`optilock.statements.demand`). Python makes the new version, or RETURNING has it. If neither
is possible (on MariaDB, and on SQLite behind a trigger) a SELECT reads it in the same transaction.

Only if the statement found no row, one SELECT reads it, without a lock: it distinguishes a missing
row from one in another version, and has the stored values. On MariaDB the SELECT locks the row
against writers, because a plain read may show the row as it was at the transaction's first read.

No transaction is needed: over a connection in AUTOCOMMIT mode the statement is one round trip. A
write that needs a SELECT afterwards is refused there, because the SELECT could read another
writer's version.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Mapper, Session

from optilock import events
from optilock._mapped import Identity, facts
from optilock._mapping.moves import trigger_missing_error
from optilock._watched.rows.entries import Attempt, entry_of
from optilock._watched.rows.stored import Values, read_stored, stored_key
from optilock._watched.scopes.transaction import note_moves
from optilock._watched.session.commit_events import author_of, note_row
from optilock._watched.session.connections import (
    connection_to_write,
    is_autocommit,
    refuse_autocommit,
    require_answer,
)
from optilock._watched.session.record import SessionRecord, is_watched, session_record
from optilock._watched.statements.bulk import follow_written_row
from optilock._watched.statements.call import flush_before
from optilock._watched.statements.rollback_effects import note_statement
from optilock._watched.statements.scopes import moves_of_rows
from optilock._watched.writes.send import require_row_counts, send
from optilock.conditions.condition import Condition, demanded_parameters, first_explanation
from optilock.conditions.condition import failed_conditions as failed_of
from optilock.conditions.write import Write
from optilock.dialects import database_of
from optilock.dialects.rows import execute_unguarded, not_written
from optilock.entities.row_statements import EXPECTED, Change, RowStatement, params_of, statement_of
from optilock.errors import Action, NotFound, OptilockError, PreconditionFailed

#: The answer for a row that was not written, and for a written row whose version is not known.
_MISSED, _NOTHING = object(), object()


class WrittenRow(NamedTuple):
    """A row that was written."""

    #: In the order of the mapper's primary key columns.
    identity: Identity
    #: The current version; ``None`` for a row that was deleted.
    version: Any
    #: This very change was stored before and was sent again: nothing was written.
    again: bool = False


def write_row(session: Session, change: Change) -> WrittenRow:
    """Flush the session, then write the row.

    Raises:
        NotFound: there is no such row.
        PreconditionFailed: it is in another version.
        NotWritten: a trigger, a rule or a policy of the database prevents the write.
        ConfigurationError: its new version could not be read.
    """
    flush_before(session, {})
    mapper = change.mapper
    connection = connection_to_write(session, mapper, writes=True)
    require_row_counts(connection.dialect)
    form = statement_of(connection, change)
    write = Write(form.shape, params_of(form, change))
    if change.changes_nothing:
        return _unchanged(session, connection, change, write)
    if change.versions == ():  # no row can be in any of these
        _explain_miss(connection, change, write)
    write = _with_demands(session, change, write)
    if form.needs_select:
        refuse_autocommit(connection, _what(change))
    given = {change.identity: {**change.values, **change.computed}}
    moves = moves_of_rows(session, mapper, given, deletes=change.deletes)
    told, key = _sent(connection, form, change, write)
    if told is _MISSED:
        _forget(session, write)
        ours = _explain_miss(connection, change, write)
        if ours is not None:
            read_again(session, mapper, change.identity)
            return WrittenRow(change.identity, ours, again=True)
        write = _with_demands(session, change, write)
        told, key = _sent(connection, form, change, write)  # its conditions hold again
    if told is _MISSED:
        _forget(session, write)
        raise _not_written(connection, change)
    if moves:
        note_moves(session, mapper, moves)
    version = _version(connection, change, form, write, told)
    before = change.only_version
    change = _as_stored(session, connection, change, write, key)
    _update_object(session, change, version)
    if events.listeners_to_rows:
        note_row(
            session,
            mapper,
            "delete" if change.deletes else "update",
            change.identity,
            before=before,
            version=version,
            columns=(*change.values, *change.computed),
            author=author_of(mapper, change.values),
            connection=connection,
        )
    return WrittenRow(change.identity, version)


# -- sending it ------------------------------------------------------------------------------------


def _with_demands(session: Session, change: Change, write: Write) -> Write:
    """Return the write under the session's demands, and record it in case of a rollback."""
    known = session_record(session) if is_watched(session) else None
    demands = SessionRecord.demands if known is None else known.demands
    if demands is not None:
        write = demands.with_demands(write, change.mapper)
    if known is None:
        return write
    if known.conditions is not None:
        known.conditions.by_name = True  # if_match was given, "*" perhaps
    if change.only_version is not None:
        known.sent.append(write)
    else:
        note_statement(session, change.mapper)
    return write


def _forget(session: Session, write: Write) -> None:
    """Forget a write that found no row."""
    if is_watched(session) and (sent := session_record(session).sent) and sent[-1] is write:
        sent.pop()


def _sent(
    connection: Connection, form: RowStatement, change: Change, write: Write
) -> tuple[Any, Identity | None]:
    """Return the answer of the statement, and the row's key if RETURNING has it."""
    commits = change.is_ours is None and is_autocommit(connection)  # or it is recognised later
    try:
        return _answer(connection, form, write)
    except DBAPIError as error:
        if commits:
            require_answer(error, change.mapper)
        raise


def _answer(
    connection: Connection, form: RowStatement, write: Write
) -> tuple[Any, Identity | None]:
    if not write.shape.exact:
        return (_MISSED if send(connection, [write]) else _NOTHING), None
    result = execute_unguarded(connection, write.shape.statement, write.params)
    if form.returns or form.returns_key:
        row = result.first()
        if row is None:
            return _MISSED, None
        key = tuple(row[1:] if form.returns else row) if form.returns_key else None
        return (row[0] if form.returns else _NOTHING), key
    if not result.rowcount:
        return _MISSED, None
    return (result.lastrowid if form.by_lastrowid else _NOTHING), None


def _as_stored(
    session: Session, connection: Connection, change: Change, write: Write, key: Identity | None
) -> Change:
    """Return the change under the key as the database stores it."""
    if not change.respelled:
        return change
    if key is None and not change.deletes:
        key = stored_key(connection, change.mapper, change.identity)
    if key is None or key == change.identity:
        return change
    if is_watched(session) and change.only_version is not None:
        _forget(session, write)  # it is recorded under a key that no object has
        note_statement(session, change.mapper)
    return replace(change, identity=key, versions=None)  # an object of the row is read again


def _version(
    connection: Connection, change: Change, form: RowStatement, write: Write, told: Any
) -> Any:
    known = facts(change.mapper)
    if change.deletes:
        return None
    if form.makes:
        return write.params[EXPECTED if form.shape.ignored_only else known.version.key]
    if told is _NOTHING:
        found = read_stored(
            connection, change.mapper, [change.identity], only=(known.token,), lock=False
        )
        told = next(iter(found.values()))[known.token]
    kind = known.kind
    if kind is not None and kind.has_trigger and change.versions == (told,):
        raise trigger_missing_error(change.mapper)
    return told


def _unchanged(
    session: Session, connection: Connection, change: Change, write: Write
) -> WrittenRow:
    """Return the row as it is, if the conditions of a write hold for it."""
    write = _with_demands(session, change, write)
    _forget(session, write)
    version = _explain_miss(connection, change, write)
    if change.respelled:
        key = stored_key(connection, change.mapper, change.identity)
        change = replace(change, identity=key or change.identity)
    return WrittenRow(change.identity, version)


# -- a miss ----------------------------------------------------------------------------------------


def _explain_miss(connection: Connection, change: Change, write: Write) -> Any:
    """Raise the error of a row that was not written.

    Return the row's version if this very change made it before, or changes nothing; ``None`` if all
    conditions hold again.
    """
    stored, failed = look_at(connection, change.mapper, change.identity, write)
    if stored is None:
        raise NotFound(change.mapper.class_, change.identity)
    version = stored[facts(change.mapper).token]
    if change.is_ours is not None and change.is_ours(version):
        return version
    entry = entry_of(_attempt(change), stored, demanded=change.versions is not None)
    if change.versions is not None and version not in change.versions:
        raise events.report(PreconditionFailed([entry]))
    why = first_explanation(failed, entry)
    if why is not None:
        raise why
    if failed:
        raise events.report(PreconditionFailed([entry]))
    return version if change.changes_nothing else None


def look_at(
    connection: Connection,
    mapper: Mapper[Any],
    identity: Identity,
    write: Write | None = None,
    *,
    of_class: bool = True,
) -> tuple[Values | None, tuple[Condition, ...]]:
    """Return the stored row, and the conditions of a write that do not hold for it.

    ``of_class``: a row of another class in the same table counts as missing.
    """
    demanded, params = ((), {}) if write is None else (write.shape.demanded, write.params)
    asked = [one for condition in demanded for one in condition.looks]
    also = {f"optilock {number}": one for number, one in enumerate(asked)}
    database = database_of(connection.dialect)
    share = database.isolation.locks_show_newer and not is_autocommit(connection)
    given = demanded_parameters(params) or None
    found = read_stored(
        connection, mapper, [identity], lock=False, share=share, also=also, params=given
    )
    stored = next(iter(found.values()), None)
    if stored is None or (of_class and not _is_of_class(mapper, stored)):
        return None, ()
    seen = [stored.pop(name) for name in also]
    return stored, failed_of(demanded, params, seen)


def _is_of_class(mapper: Mapper[Any], stored: Values) -> bool:
    if not mapper.single:
        return True
    name = facts(mapper).names[mapper.polymorphic_on]
    return any(stored[name] == one.polymorphic_identity for one in mapper.self_and_descendants)


def _attempt(change: Change) -> Attempt:
    """Return our side; of the values that the caller had read, only the version is known."""
    known = facts(change.mapper)
    seen = {
        name: value
        for name, value in zip(known.keys, change.identity, strict=True)
        if name in known.columns
    }
    if change.only_version is not None:
        seen[known.token] = change.only_version
    action: Action = "delete" if change.deletes else "update"
    values = dict(change.values)
    return Attempt(change.mapper, change.identity, action, seen, {**seen, **values}, values)


def _what(change: Change) -> str:
    return f"Writing a row of {change.mapper.class_.__name__} by its key, and reading its version,"


def _not_written(connection: Connection, change: Change) -> OptilockError:
    verb = "delete" if change.deletes else "update"
    table = facts(change.mapper).table
    return not_written(  # SQLAlchemy's own words come first
        connection,
        f"{verb.upper()} statement on table '{table.description}' expected to {verb} 1 row(s); 0"
        f" were matched. The row of {change.mapper.class_.__name__} is there, in the version that"
        " was demanded, so this is no conflict.",
        verb,
    )


# -- objects of the session ------------------------------------------------------------------------


def _update_object(session: Session, change: Change, version: Any) -> None:
    """Bring the session's object of the row, if there is one, up to date."""
    if not session.identity_map:
        return
    mapper, identity = change.mapper, change.identity
    obj = session.identity_map.get(mapper.identity_key_from_primary_key(identity))
    if obj is None:
        return
    if change.deletes:
        session.expunge(obj)
        return
    known = facts(mapper)
    if change.only_version is None:
        read_again(session, mapper, identity)
        return
    values = {**change.values, known.token: version}
    follow_written_row(session, mapper, identity, change.only_version, values)
    others = _set_by_sql(change, values)
    if others and obj.__dict__.get(known.token) == version:  # it was not older
        session.expire(obj, others)


def _set_by_sql(change: Change, values: Values) -> list[str]:
    """Return the attributes that got a value which Python does not know."""
    return [
        name
        for name, column in facts(change.mapper).columns.items()
        if name in change.computed
        or (name not in values and (column.onupdate is not None or column.server_onupdate))
    ]


def read_again(session: Session, mapper: Mapper[Any], identity: Identity) -> None:
    """Expire the session's object of the row, if there is one.

    The version in which the statement found the row is unknown. A watched session remembers the
    object's version: edits that were decided on before still conflict.
    """
    obj = session.identity_map.get(mapper.identity_key_from_primary_key(identity))
    if obj is not None:
        session.expire(obj)
