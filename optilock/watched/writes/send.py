"""Rows of one table are sent, or locked and looked at.

:func:`send` writes rows, and exactly those that missed come back. One row is the native statement
and its count; more go out in the form that the database does best (``optilock/dialects``): one
statement for all of them, or lock, look and ``executemany``. Never is a miss concluded from "which
rows do not carry our new number": another writer's counter may carry the same one. Row counts are
the answer to every guarded write, so a driver that has none is refused.

:func:`look_again` asks of rows that missed what is stored, and :func:`look` of objects whose rows
nobody has written yet: which of these are in another version than they hold?
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, Dialect, select
from sqlalchemy.orm import Mapper, Session

from optilock.conditions.condition import Condition, explained, failed
from optilock.conditions.demands import Demands
from optilock.conditions.write import Lost, Write
from optilock.dialects import database_of
from optilock.dialects.rows import LockAndLook, native
from optilock.errors import ConfigurationError
from optilock.mapped import Identity, State, facts
from optilock.mapping.compared import values_read, written_by_us
from optilock.undocumented.flushes import marked_deleted
from optilock.watched.rows.entries import Missed, attempt_of
from optilock.watched.rows.stored import Values, read_stored
from optilock.watched.rows.unknown_versions import never_read, never_seen, no_version
from optilock.watched.session.connections import binds_of_sessions, connection_to_write
from optilock.watched.session.watched import watched


def send(connection: Connection, writes: list[Write], *, locked: bool = False) -> list[Write]:
    """Write the rows of one table; return the ones that were changed or gone.

    Are they ``locked`` already? That alone does not say in which version.
    """
    database, dialect = database_of(connection.dialect), connection.dialect
    shape = writes[0].shape
    if not shape.exact or (shape.alone and len(writes) > 1):
        return LockAndLook(database).send(connection, writes)
    if len(writes) > 1:
        return database.form(writes, dialect, locked=locked).send(connection, writes)
    result = native(connection, shape.statement, writes[0].params)
    return [] if result.rowcount else writes


def look_again(
    demands: Demands | None, connection: Connection, mapper: Mapper[Any], writes: list[Write]
) -> list[Lost]:
    """What is stored of rows that these writes did not find, locked, and what is not true of it."""
    identities = [write.shape.identity_of(write.params) for write in writes]
    stored, failed = read_demanded(
        demands, connection, mapper, identities, deleting=writes[0].shape.deletes
    )
    found = []
    for write, identity in zip(writes, identities, strict=True):
        row = stored.get(identity)
        moved = () if row is None else write.moved(row)
        found.append(Lost(write, row, (*moved, *failed.get(identity, ()))))
    return found


def read_demanded(
    demands: Demands | None,
    connection: Connection,
    mapper: Mapper[Any],
    identities: list[Identity],
    names: tuple[str, ...] = (),
    *,
    deleting: bool = False,
) -> tuple[dict[Identity, Values], dict[Identity, tuple[Condition, ...]]]:
    """The rows, locked, and what the session demands and is not true of them."""
    conditions = () if demands is None else demands.on(mapper, deleting=deleting)
    if demands is None or not conditions:
        found = read_stored(
            connection, mapper, identities, only=names, deleting=deleting, hidden=True
        )
        return found, {}
    asked = [one for condition in conditions for one in condition.looks]
    also = {f"optilock {number}": one for number, one in enumerate(asked)}
    found = read_stored(
        connection,
        mapper,
        identities,
        only=names,
        deleting=deleting,
        also=also,
        params=demands.params,
        hidden=True,
    )
    return found, {
        key: failed(conditions, demands.of_row(mapper, key), [row.pop(name) for name in also])
        for key, row in found.items()
    }


def send_again(connection: Connection, lost: list[Lost]) -> list[Lost]:
    """Write the rows of which all conditions are true again; return the others, and what misses.

    Somebody had moved such a row, and has put it back since the write, before it was locked.
    """
    return [one for one in lost if not one.stands or send(connection, [one.write])]


def require_row_counts(dialect: Dialect) -> None:
    """Raise ``ConfigurationError`` when the driver cannot tell how many rows were matched."""
    if not dialect.supports_sane_rowcount:
        raise ConfigurationError(
            f"The driver {dialect.driver!r} cannot tell how many rows a statement matched, so a"
            " lost update could not be seen. Use a driver that counts rows (psycopg, asyncpg,"
            " sqlite3, pymysql); nothing was written."
        )


def require_row_counts_of(sessions: Any) -> None:
    """The same for the engines of a session factory, or an engine, as far as known already."""
    for bind in binds_of_sessions(sessions):
        require_row_counts(bind.dialect)


# -- rows that nobody has written yet -------------------------------------------------------------


def look(session: Session, states: Iterable[State], *, deleting: bool) -> list[Missed]:
    """Lock the rows of objects, and return those that moved, or are not as the session demands."""
    by_mapper: dict[Mapper[Any], list[State]] = {}
    demands = watched(session).demands
    for state in states:
        guarded = facts(state.mapper).guarded or (demands is not None and demands.on(state.mapper))
        if state.key is not None and guarded:
            by_mapper.setdefault(state.mapper, []).append(state)
    return [
        missed
        for mapper, some in by_mapper.items()
        for missed in _look(session, mapper, some, deleting=deleting)
    ]


def _look(
    session: Session, mapper: Mapper[Any], states: list[State], *, deleting: bool
) -> list[Missed]:
    connection = connection_to_write(session, mapper)
    database_of(connection.dialect).begin_writing(connection, facts(mapper).table)
    read = {state: _as_read(state, deleting=deleting) for state in states}
    key = facts(mapper).keys[0]
    names = tuple(dict.fromkeys((key, *(name for values in read.values() for name in values))))
    identities = [_identity(state) for state in states]
    demands = watched(session).demands
    found, lost = read_demanded(demands, connection, mapper, identities, names, deleting=deleting)
    moved = [s for s in states if not _is_as_read(mapper, read[s], found.get(_identity(s)))]
    gone = {s for s in moved if not _is_as_written(connection, s, read[s], found)}
    moved = [s for s in states if s in gone or lost.get(_identity(s))]
    if not moved:
        return []
    token = facts(mapper).token
    identities = [_identity(state) for state in moved]
    stored = read_stored(connection, mapper, identities, deleting=deleting, hidden=True)
    missed = [
        Missed(
            state,
            state.obj(),
            connection,
            attempt_of(
                state,
                "delete" if state in marked_deleted(session) else "update",
                read[state].get(token) if token else None,
            ),
            stored.get(_identity(state)),
            problem=_problem(mapper, state, read[state], stored),
        )
        for state in moved
    ]
    for one in missed:
        one.problem = one.problem or explained(lost.get(_identity(one.state), ()), one.entry)
    return missed


def _as_read(state: State, *, deleting: bool) -> Values:
    """What the row must still be: the version, and the values that are compared."""
    values = values_read(state, deleting=deleting)
    token = facts(state.mapper).token
    return {token: expected_version(state, token), **values} if token else values


def _is_as_read(mapper: Mapper[Any], read: Values, stored: Values | None) -> bool:
    if stored is None or read.get(facts(mapper).token, 0) is None:
        return False
    same = facts(mapper).same
    return all(same(name, value, stored[name]) for name, value in read.items())


def _is_as_written(
    connection: Connection, state: State, read: Values, stored: Mapping[Any, Values]
) -> bool:
    """Do the values differ only because a column keeps less than this session has written?

    A fraction of a second, a fourth decimal place: the database is asked what it makes of them.
    """
    row = stored.get(_identity(state))
    token = facts(state.mapper).token
    if row is None or not written_by_us(state) or (token and read[token] != row[token]):
        return False
    known, database = facts(state.mapper), database_of(connection.dialect)
    columns = known.columns
    names = [n for n, v in read.items() if n != token and not known.same(n, v, row[n])]
    if any(read[name] is None or row[name] is None for name in names):
        return False
    floats = {
        n: database.is_float_kept(columns[n].type, read[n], row[n], connection.dialect)
        for n in names
    }
    names = [n for n in names if floats[n] is None]
    if False in floats.values() or not names:
        return False not in floats.values()
    asked = (database.as_stored(columns[n].type, read[n], connection.dialect) for n in names)
    kept = type(connection).execute(connection, select(*asked)).one()
    return all(known.same(n, v, row[n]) for n, v in zip(names, kept, strict=True))


def _problem(
    mapper: Mapper[Any], state: State, read: Values, stored: Mapping[Any, Values]
) -> Exception | None:
    identity = _identity(state)
    token = facts(mapper).token
    if token and read[token] is None and identity in stored:
        return (never_seen if never_read(state) else no_version)(mapper, identity)
    return None


def _identity(state: State) -> tuple[Any, ...]:
    assert state.key is not None
    return tuple(state.key[1])


def expected_version(state: State, token: str) -> Any:
    """The version that a write of the object names, read now if the object is expired."""
    if token not in state.dict:
        history: Any = state.attrs[token].load_history()
        return history.unchanged[0] if history.unchanged else None  # nobody has read the row
    return state.committed_state.get(token, state.dict[token])
