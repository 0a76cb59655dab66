"""Rows of one table are written, or locked and compared.

:func:`send` writes rows, and returns exactly those that missed. One row is the native statement and
its count. More rows are sent in the form that the database does best (``optilock/dialects``): one
statement for all of them, or lock, read and ``executemany``. Only the row count shows a miss. A row
with our new version may still have missed: the counter of another writer may make the same one. So
a driver that counts no rows is refused.

:func:`read_missed` reads the stored rows of writes that missed. :func:`find_moved` returns objects
whose rows are not written yet and are in another version than the objects.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import chain
from typing import Any

from sqlalchemy import Connection, Dialect, select
from sqlalchemy.orm import Mapper, Session

from optilock._mapped import Identity, State, facts, identity_of
from optilock._mapping.original_values import is_written_by_flush, values_read
from optilock._undocumented.flushes import states_marked_deleted
from optilock._watched.rows.entries import Missed, attempt_of
from optilock._watched.rows.seen import version_seen
from optilock._watched.rows.stored import Values, read_stored
from optilock._watched.rows.unknown_versions import unknown_version_error
from optilock._watched.session.connections import binds_of_sessions, connection_to_write
from optilock._watched.session.record import session_record
from optilock.conditions.condition import Condition, failed_conditions, first_explanation
from optilock.conditions.demands import Demands
from optilock.conditions.write import Lost, Write
from optilock.dialects import database_of
from optilock.dialects.rows import LockAndLook, execute_unguarded
from optilock.errors import Action, ConfigurationError

#: Writes the rows of one table, and returns the ones that were changed or gone.
Send = Callable[[Connection, list[Write]], list[Write]]


def send(connection: Connection, writes: list[Write], *, locked: bool = False) -> list[Write]:
    """Write the rows of one table; return the ones that were changed or gone.

    ``locked``: the rows are locked already; their versions are still checked.
    """
    database, dialect = database_of(connection.dialect), connection.dialect
    shape = writes[0].shape
    if not shape.exact or (shape.sent_individually and len(writes) > 1):
        return LockAndLook(database).send(connection, writes)
    if len(writes) > 1:
        return database.forms.form(writes, dialect, locked=locked).send(connection, writes)
    result = execute_unguarded(connection, shape.statement, writes[0].params)
    return [] if result.rowcount else writes


def read_missed(
    demands: Demands | None,
    connection: Connection,
    mapper: Mapper[Any],
    writes: list[Write],
    *,
    briefly: bool = False,
) -> list[Lost]:
    """Lock the rows that these writes did not find, and return them with their failures."""
    identities = [write.shape.identity_of(write.params) for write in writes]
    deleting = writes[0].shape.deletes
    replaced = [key for write, key in zip(writes, identities, strict=True) if write.shape.replaces]
    stored, failed = read_demanded(
        demands,
        connection,
        mapper,
        identities,
        deleting=deleting,
        replaced=replaced,
        briefly=briefly,
    )
    found = []
    for write, identity in zip(writes, identities, strict=True):
        row = stored.get(identity)
        moved = () if row is None else write.moved(row)
        found.append(Lost(write, row, moved + failed.get(identity, ())))
    return found


def read_demanded(
    demands: Demands | None,
    connection: Connection,
    mapper: Mapper[Any],
    identities: list[Identity],
    names: tuple[str, ...] = (),
    *,
    deleting: bool = False,
    replaced: Collection[Identity] = (),
    briefly: bool = False,
) -> tuple[dict[Identity, Values], dict[Identity, tuple[Condition, ...]]]:
    """Lock the rows, and return them with the demands of the session that they fail.

    ``replaced`` are those that are deleted as well as updated.
    """
    conditions = () if demands is None else demands.conditions_for(mapper, deleting=deleting)
    plain = len(conditions)
    if demands is not None and replaced:
        conditions += demands.conditions_for(mapper, deleting=True)
    looks = [one for condition in conditions for one in condition.looks]
    also = {f"optilock {number}": one for number, one in enumerate(looks)}
    found = read_stored(
        connection,
        mapper,
        identities,
        only=names,
        deleting=deleting,
        also=also,
        params=demands.params if demands is not None and conditions else None,
        briefly=briefly,
        hidden=True,
    )
    if demands is None or not conditions:
        return found, {}
    return found, {
        key: failed_conditions(
            conditions if key in replaced else conditions[:plain],
            demands.values_of_row(mapper, key),
            [row.pop(name) for name in also],
        )
        for key, row in found.items()
    }


def resend(connection: Connection, lost: list[Lost], send: Send = send) -> list[Lost]:
    """Write the rows whose conditions hold again; return the others, and those that miss.

    Another transaction had moved such a row, and has put it back between the write and the lock.
    """
    return [one for one in lost if not one.stands or send(connection, [one.write])]


def require_row_counts(dialect: Dialect) -> None:
    """Raise ``ConfigurationError`` when the driver cannot count the matched rows."""
    if not dialect.supports_sane_rowcount:
        raise ConfigurationError(
            f"The driver {dialect.driver!r} cannot tell how many rows a statement matched, so a"
            " lost update could not be seen. Use a driver that counts rows (psycopg, asyncpg,"
            " sqlite3, pymysql); nothing was written."
        )


def require_row_counts_of(sessions: Any) -> None:
    """Check the engines of a session factory, or an engine, as far as they are known already."""
    for bind in binds_of_sessions(sessions):
        require_row_counts(bind.dialect)


# -- rows that are not written yet -----------------------------------------------------------------


def find_moved(session: Session, states: Iterable[State], *, deleting: bool) -> list[Missed]:
    """Lock the rows of objects, and return those that moved, or that fail a demand."""
    by_mapper: dict[Mapper[Any], list[State]] = {}
    demands = session_record(session).demands
    for state in states:
        guarded = facts(state.mapper).guarded or (
            demands is not None and demands.conditions_for(state.mapper)
        )
        if state.key is not None and guarded:
            by_mapper.setdefault(state.mapper, []).append(state)
    return [
        missed
        for mapper, some in by_mapper.items()
        for missed in _find_moved(session, mapper, some, deleting=deleting)
    ]


def _find_moved(
    session: Session, mapper: Mapper[Any], states: list[State], *, deleting: bool
) -> list[Missed]:
    connection, known = connection_to_write(session, mapper), facts(mapper)
    database_of(connection.dialect).locks.begin_writing(connection, known.table)
    read = {identity_of(state): _as_read(state, deleting=deleting) for state in states}
    names = tuple(dict.fromkeys((known.keys[0], *chain.from_iterable(read.values()))))
    demands = session_record(session).demands
    found, lost = read_demanded(demands, connection, mapper, [*read], names, deleting=deleting)
    moved = {
        key: state
        for state, (key, values) in zip(states, read.items(), strict=True)
        if lost.get(key) or not _is_unmoved(connection, state, values, found.get(key))
    }
    if not moved:
        return []
    stored = read_stored(connection, mapper, [*moved], deleting=deleting, hidden=True)
    return [
        _missed(session, connection, state, read[key], stored.get(key), lost.get(key, ()))
        for key, state in moved.items()
    ]


def _missed(
    session: Session,
    connection: Connection,
    state: State,
    read: Values,
    stored: Values | None,
    failed: Iterable[Condition],
) -> Missed:
    token = facts(state.mapper).token
    action: Action = "delete" if state in states_marked_deleted(session) else "update"
    attempt = attempt_of(state, action, read.get(token))
    missed = Missed(state, state.obj(), connection, attempt, stored)
    if token and read[token] is None and stored is not None:
        missed.problem = unknown_version_error(state, attempt.identity)
    else:
        missed.problem = first_explanation(failed, missed.entry)
    return missed


def _as_read(state: State, *, deleting: bool) -> Values:
    """Return the values that the row must still have: the version, and the compared ones."""
    values = values_read(state, deleting=deleting)
    token = facts(state.mapper).token
    return {token: expected_version(state, token), **values} if token else values


def _is_unmoved(connection: Connection, state: State, read: Values, row: Values | None) -> bool:
    """Return whether the row is as it was read, or as this session wrote it.

    A column may keep less than that: a fraction of a second, a fourth decimal place. The database
    computes the stored form of these.
    """
    known = facts(state.mapper)
    if row is None or read.get(known.token, 0) is None:
        return False
    other = {n: (value, row[n]) for n, value in read.items() if not known.same(n, value, row[n])}
    if not other:
        return True
    if known.token in other or not is_written_by_flush(state):
        return False
    if any(None in values for values in other.values()):
        return False
    return _are_kept(connection, state.mapper, other)


def _are_kept(
    connection: Connection, mapper: Mapper[Any], values: Mapping[str, tuple[Any, Any]]
) -> bool:
    """Return whether a column keeps each written value as the stored one: (written, stored)."""
    dialect = connection.dialect
    database, columns = database_of(dialect), facts(mapper).columns
    floats = {
        name: database.values.is_float_kept(columns[name].type, ours, theirs, dialect)
        for name, (ours, theirs) in values.items()
    }
    if False in floats.values():
        return False
    names = [name for name, kept in floats.items() if kept is None]
    if not names:
        return True
    stored_forms = (
        database.values.as_stored(columns[name].type, values[name][0], dialect) for name in names
    )
    kept = type(connection).execute(connection, select(*stored_forms)).one()
    same = facts(mapper).same
    return all(same(name, form, values[name][1]) for name, form in zip(names, kept, strict=True))


def expected_version(state: State, token: str) -> Any:
    """Return the version that a write of the object names, read now if the object is expired."""
    if token not in state.dict:
        state.attrs[token].load_history()
    return version_seen(state, token)  # None: the row was never read
