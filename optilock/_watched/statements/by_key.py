"""Rows written by primary key through SQLAlchemy, in a watched session.

::

    session.execute(update(Account), [{"id": 1, "version": 3, "owner": "Ada"}])
    session.bulk_update_mappings(Account, rows)       # optilock._watched.statements.legacy_bulk
    session.bulk_save_objects(objects)

Every row must name its version, which the write moves. A row that has moved raises
``ConcurrencyError`` with entries, as in a flush. SQLAlchemy stops there, so other rows may be
written already: roll back, or use :func:`~optilock.bulk_update`, which writes all rows that are in
their version and reports the others.
A version that is given for a new row is refused where SQLAlchemy would store the first one instead.
So is a class whose values are compared (``CompareValues``): these calls compare none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, bindparam
from sqlalchemy.orm import Mapper, Session
from sqlalchemy.orm.attributes import instance_state
from sqlalchemy.orm.exc import StaleDataError

from optilock import events
from optilock._mapped import Identity, State, facts
from optilock._mapping.moves import declare_joined_moves
from optilock._watched.rows.entries import Attempt, HiddenRows, entry_of, has_moved
from optilock._watched.rows.seen import version_seen
from optilock._watched.rows.stored import Values, read_stored
from optilock._watched.session.connections import (
    connection_to_write,
    engine_to_write,
    refuse_autocommit,
)
from optilock._watched.session.record import session_record
from optilock._watched.statements.call import Call
from optilock._watched.statements.rollback_effects import (
    keep_promises,
    keep_versions,
    promised_rows,
    take_over_versions,
)
from optilock._watched.statements.version import VersionType, column_in, columns_set
from optilock.errors import (
    Action,
    ConcurrencyError,
    ConfigurationError,
    Entry,
    OptilockError,
    prepend_line,
)

WRITING_BY_KEY = "Writing rows by primary key"


def update_by_key(call: Call, mapper: Mapper[Any]) -> Any:
    """Send ``session.execute(update(Model), rows)``.

    Raises:
        ConfigurationError: a row has no version, or the statement has a WHERE of its own.
        ConcurrencyError: a row has moved.
    """
    if call.statement.whereclause is not None:
        raise ConfigurationError(
            f"The UPDATE of {mapper.class_.__name__} by primary key has a WHERE of its own, and"
            " then SQLAlchemy cannot check the versions of the rows: leave it out, use"
            " optilock.bulk_update(), or execute an update() for each row. Nothing was sent."
        )
    refuse_assigned(mapper, "an UPDATE by primary key")
    refuse_unversioned(mapper, call.params)
    refuse_autocommit(call.connection(mapper), WRITING_BY_KEY)
    with report_stale_rows(call.session, lambda: attempts_of(mapper, call.params)):
        return _send(call, mapper)


def _send(call: Call, mapper: Mapper[Any]) -> Any:
    """Send the rows; objects that hold the version named by their row get the new one."""
    call.flush_before()
    session, rows = call.session, call.params
    key = facts(mapper).token
    held = _objects_of_rows(session, mapper, rows)
    with keep_versions(mapper, [state for state, _ in held]), declare_joined_moves():
        result = call.send()
    if leaves_versions(mapper):
        columns = columns_set(mapper, call.statement, None)
        set_by_all = {name: None for name, one in facts(mapper).columns.items() if one in columns}
        move_left_versions(call.connection(mapper), mapper, [{**set_by_all, **row} for row in rows])
    matched = [(state, row[key]) for state, row in held if version_seen(state, key) == row[key]]
    promised = promised_rows(session, mapper)
    if promised:
        names = facts(mapper).keys
        named = {tuple(row.get(name) for name in names): row[key] for row in rows}
        keep_promises(session, promised, named)
    if matched and call.synchronizes:
        take_over_versions(session, call.connection(mapper), mapper, matched, certain=True)
    return result


def leaves_versions(mapper: Mapper[Any]) -> bool:
    """Return whether a row may be written by key without a column of its version's table."""
    class_facts = facts(mapper)
    return len(mapper.tables) > 1 and class_facts.by_database and not class_facts.by_itself


def move_left_versions(connection: Connection, mapper: Mapper[Any], rows: list[Any]) -> None:
    """Move the versions that SQLAlchemy left: it wrote no other column of their table.

    SQLAlchemy has compared them, so the rows are locked.
    """
    class_facts = facts(mapper)
    token, table = class_facts.version, class_facts.version.table
    own = {name for name, column in class_facts.columns.items() if column.table is table}
    key_and_version = {*class_facts.keys, class_facts.token}
    sets = [(row, row.keys() - key_and_version) for row in rows]
    left = [row for row, names in sets if names and own.isdisjoint(names)]
    if not left:
        return
    keys = [column_in(mapper, key, table) for key in mapper.primary_key]
    made = [token == bindparam("optilock_expected", type_=token.type)]
    made += [one == bindparam(f"optilock_key_{n}", type_=one.type) for n, one in enumerate(keys)]
    moved = token.onupdate.arg if token.onupdate.is_clause_element else token
    statement = table.update().where(*made).values({token: moved})
    for row in left:
        named = {f"optilock_key_{n}": row[name] for n, name in enumerate(class_facts.keys)}
        params = {**named, "optilock_expected": row[class_facts.token]}
        type(connection).execute(connection, statement, params)


def _objects_of_rows(
    session: Session, mapper: Mapper[Any], rows: list[Any]
) -> list[tuple[State, Any]]:
    """Return the objects of ``rows`` that the session holds, each with its row."""
    names = facts(mapper).keys
    found = []
    for row in rows if session.identity_map else ():
        key = mapper.identity_key_from_primary_key(tuple(row.get(name) for name in names))
        obj = session.identity_map.get(key)
        if obj is not None:
            found.append((instance_state(obj), row))
    return found


# -- refusals --------------------------------------------------------------------------------------


def refuse_unversioned(mapper: Mapper[Any], rows: list[Any]) -> None:
    """Refuse rows without a version, with one that no row has, or whose version is ``xmin``.

    Raises:
        ConfigurationError: there is such a row.
    """
    column = facts(mapper).version
    key = facts(mapper).token
    if column.system:
        raise ConfigurationError(
            f"{mapper.class_.__name__}.{key} is a column of the database itself, and SQLAlchemy's"
            " UPDATE by primary key would set it: use optilock.bulk_update(). Nothing was sent."
        )
    names, versions = facts(mapper).keys, VersionType(mapper)
    for number, row in enumerate(rows):
        version = row.get(key) if isinstance(row, Mapping) else _NO_ROW
        if version is _NO_ROW or (version is not None and versions.takes(version)):
            continue
        shown = ", ".join(f"{name}={row[name]!r}" for name in names if name in row)
        what = f"Row {number} ({shown}) of an UPDATE of {mapper.class_.__name__} by primary key"
        if version is not None:
            raise versions.refused(what, version)
        raise ConfigurationError(
            f"{what} has no {key!r}: without the version that was read, the UPDATE would overwrite"
            f" another writer's change. Add it to every row,"
            f" {{{names[0]!r}: ..., {key!r}: ..., ...}}. Nothing was sent."
        )


_NO_ROW = object()


def refuse_assigned(mapper: Mapper[Any], call: str) -> None:
    """Refuse to write rows by key whose next version only the program can make.

    Raises:
        ConfigurationError: the version is the application's (``Manual``).
    """
    if facts(mapper).by_application:
        raise ConfigurationError(
            f"Your program makes the versions of {mapper.class_.__name__} (Manual), and {call} has"
            " no place for the next one: the rows would change under a version that others have"
            " read. Change the objects instead. Nothing was sent."
        )


def refuse_compared(mapper: Mapper[Any], call: str) -> None:
    """Refuse to write rows by key whose values are to be compared, or make the version.

    Raises:
        ConfigurationError: the class has ``CompareValues`` among its tokens, or a version that is
            made from values.
    """
    if facts(mapper).by_values:
        raise ConfigurationError(
            f"The version of {mapper.class_.__name__} is made from the values of a row, and {call}"
            " knows some of them only: change the objects in a session. Nothing was sent."
        )
    if facts(mapper).compares:
        name = mapper.class_.__name__
        raise ConfigurationError(
            f"{name} compares values (CompareValues), and {call} would write its rows without"
            f" comparing any: change the objects in a session, or say update({name}).where(...)"
            " with the values that were read. Nothing was sent."
        )


def refuse_first_versions(mapper: Mapper[Any], rows: Iterable[Any]) -> None:
    """Refuse new rows that name another version than the first one, which SQLAlchemy would store.

    Raises:
        ConfigurationError: there is such a row.
    """
    key, following = facts(mapper).token, mapper.version_id_generator
    if facts(mapper).kind is None or not callable(following):
        return
    for number, row in enumerate(rows):
        given = row.get(key) if isinstance(row, Mapping) else None
        if given is not None and given != following(None):
            name = mapper.class_.__name__
            raise ConfigurationError(
                f"Row {number} of an INSERT of {name} in bulk gives {key!r}, and SQLAlchemy would"
                " store the first version instead. Leave it out; or, to copy rows with the versions"
                f" that they have, insert({name}.__table__), or insert({name}).values(rows)."
                " Nothing was sent."
            )


# -- rows that have moved --------------------------------------------------------------------------


@contextmanager
def report_stale_rows(session: Session, attempts: Callable[[], list[Attempt]]) -> Iterator[None]:
    """Raise stale rows as a conflict with entries, as a flush does."""
    try:
        yield
    except StaleDataError as error:
        if isinstance(error, OptilockError):
            raise
        found = _entries(session, attempts())
        if not found:
            raise  # no conflict: a trigger, or a driver that does not count rows
        conflict = events.report(prepend_line(ConcurrencyError(found), error))
        if session.is_active:
            conflict.add_note(
                "optilock: other rows of the same call may be written in this transaction, which"
                " goes on: roll back, or send them with optilock.bulk_update(), which names them."
            )
        raise conflict from error


def attempts_of(mapper: Mapper[Any], rows: Iterable[Any]) -> list[Attempt]:
    """Return our side of the rows, as they give it."""
    class_facts = facts(mapper)
    token, keys = class_facts.token, class_facts.keys
    found = []
    for row in rows:
        if not isinstance(row, Mapping) or any(name not in row for name in keys):
            continue
        changes = {
            n: v for n, v in row.items() if n in class_facts.columns and n not in (*keys, token)
        }
        identity = tuple(row[name] for name in keys)
        found.append(attempt_from_values(mapper, identity, "update", row[token], changes))
    return found


def attempt_from_values(
    mapper: Mapper[Any], identity: Identity, action: Action, version: Any, changes: Values
) -> Attempt:
    """Return our side, as the caller gives it. Other values that were read are unknown."""
    class_facts = facts(mapper)
    keys = {
        n: v for n, v in zip(class_facts.keys, identity, strict=True) if n in class_facts.columns
    }
    original = {**keys, class_facts.token: version}
    return Attempt(mapper, identity, action, original, {**original, **changes}, changes)


def _entries(session: Session, attempts: list[Attempt]) -> tuple[Entry[Any], ...]:
    """Return entries of rows that are not as they were read, without those that this call wrote."""
    found: list[Entry[Any]] = []
    unsure: list[Entry[Any]] = []
    by_mapper: dict[Mapper[Any], list[Attempt]] = {}
    for attempt in attempts:
        by_mapper.setdefault(attempt.mapper, []).append(attempt)
    for mapper, some in by_mapper.items():
        with _connection(session, mapper) as connection:
            stored = read_stored(connection, mapper, [attempt.identity for attempt in some])
            hidden = HiddenRows(connection)
            for attempt in some:
                row = stored.get(attempt.identity)
                if not has_moved(attempt, row):
                    continue
                mine = session.is_active and row is not None and _is_what_we_wanted(attempt, row)
                entry = entry_of(attempt, row, demanded=True, hidden=hidden)
                (unsure if mine else found).append(entry)
    return tuple(found or unsure)


def _is_what_we_wanted(attempt: Attempt, stored: Values) -> bool:
    class_facts = facts(attempt.mapper)
    return all(
        class_facts.same(name, value, stored[name])
        for name, value in attempt.changes.items()
        if name in stored
    )


@contextmanager
def _connection(session: Session, mapper: Mapper[Any]) -> Iterator[Connection]:
    """Yield the session's connection, also while SQLAlchemy waits for ``rollback()``."""
    if session.is_active:
        yield connection_to_write(session, mapper)
        return
    engine = engine_to_write(session, mapper)
    held = next(
        c for c in session_record(session).connections if c.engine is engine and not c.closed
    )
    inside = held.in_transaction()
    try:
        yield held
    finally:
        if not inside:
            held.rollback()
