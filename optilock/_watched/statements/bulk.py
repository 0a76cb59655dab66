"""Many rows at once, each in the version that the caller has seen, with a report.

::

    result = bulk_update(session, Account, [
        {"id": 1, "version": 3, "balance": 10},
        {"id": 2, "version": 7, "owner": "Ada"},
    ])
    result.updated          # (Done(identity=(1,), version=4),)
    result.conflicts        # (Entry(...),): row 2 is in another version, or gone

No object is loaded. This is for imports, queues and APIs that carry keys, versions and values. The
rows of a table are sent as the guarded flush sends them, one statement on PostgreSQL, even where
the rows set different columns. Rows in another version are not written, and are returned as
entries, read with a lock. No error is raised for them: commit the other rows, or roll back, or
``raise ConcurrencyError(result.conflicts)``.

Pending changes of the session are flushed first. The session's objects of these rows get the new
values, unless they are older than the version that the row names. Objects of deleted rows leave the
session. With an ``AsyncSession``: ``await session.run_sync(bulk_update, Account, rows)``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import ClauseElement, Connection, Dialect, Integer, inspect
from sqlalchemy.orm import Mapper, Session, scoped_session
from sqlalchemy.orm.attributes import instance_state

from optilock import events
from optilock._columns.identities import identity_given
from optilock._mapped import HINT_ADD_TOKEN, Identity, facts
from optilock._mapping.original_values import values_moved
from optilock._undocumented.flushes import expire_with_savepoint
from optilock._watched.rows.entries import (
    HiddenRows,
    entry_of,
    equal_to_stored,
    error_if_kept_by_database,
)
from optilock._watched.rows.seen import follow_move, version_seen
from optilock._watched.rows.stored import read_stored
from optilock._watched.scopes.transaction import note_moves
from optilock._watched.session.commit_events import author_of, note_row
from optilock._watched.session.connections import (
    connection_to_write,
    given_session,
    refuse_autocommit,
)
from optilock._watched.session.record import demands_of, is_watched, session_record
from optilock._watched.statements.by_key import attempt_from_values, refuse_compared
from optilock._watched.statements.call import flush_before
from optilock._watched.statements.scopes import moves_of_rows
from optilock._watched.statements.silent_cascades import refuse_silent_delete
from optilock._watched.statements.version import VersionType
from optilock._watched.writes.answers import fill_in
from optilock._watched.writes.send import read_missed, resend, send
from optilock._watched.writes.shapes import shape_by_key
from optilock.conditions.condition import first_explanation
from optilock.conditions.demands import Demands
from optilock.conditions.write import Lost, Shape, Write, places_of
from optilock.errors import Action, ConfigurationError, Entry, NotFound

_IN_ASYNC_CODE = "await session.run_sync(optilock.{}, Model, rows)"


@dataclass(frozen=True)
class Done:
    """A row that was written."""

    #: The primary key, as a tuple in the order of the mapper's primary key columns.
    identity: Identity
    #: The version that it has now; ``None`` for a row that was deleted.
    version: Any = None


@dataclass(frozen=True)
class BulkResult:
    """The outcome of a bulk call: rows written, and rows in conflict."""

    updated: tuple[Done, ...] = ()
    deleted: tuple[Done, ...] = ()
    #: The rows that were in another version, or gone. They are as they were.
    conflicts: tuple[Entry[Any], ...] = ()


def bulk_update(
    session: Session | scoped_session[Any], model: type[Any], rows: Iterable[Mapping[str, Any]]
) -> BulkResult:
    """Update rows by key and version; each row sets what it names.

    Args:
        session: any session (a ``scoped_session`` too); its transaction is used.
        model: a versioned class.
        rows: mappings of attribute names: the primary key, the version that was seen, new values.

    Raises:
        ConfigurationError: the session is no sync session, or its connection is in AUTOCOMMIT mode;
            a row lacks its key or version, has a version of a type that no row can have, names an
            attribute that cannot be set, or appears twice; the class has no version, or the values
            are in several tables. Nothing was sent.
        NotFound: no row can have the key of one of them, such as " 7". Nothing was sent.
        NotWritten: a row is as it was read, and a trigger, a rule or a policy of the database keeps
            it so. Others may be written in this transaction, which is alive: roll back.
    """
    session = given_session(session, "bulk_update", _IN_ASYNC_CODE.format("bulk_update"))
    given = rows_to_update(model, rows)
    if not given.rows:
        return BulkResult()
    connection, lost = _send(session, given)
    versions = _versions(connection, given, lost)
    done = []
    for place, row in enumerate(given.rows):
        if place not in lost:
            made = versions[row.identity]
            values = {**row.values, **made}
            follow_written_row(session, given.mapper, row.identity, row.expected, values)
            done.append(Done(row.identity, next(iter(made.values()))))
            if events.listeners_to_rows:
                _note(session, given.mapper, "update", row, done[-1].version)
    return BulkResult(updated=tuple(done), conflicts=_conflicts(lost))


def bulk_delete(
    session: Session | scoped_session[Any], model: type[Any], rows: Iterable[Mapping[str, Any]]
) -> BulkResult:
    """Delete rows by key and version. The database treats their dependents by its own rules.

    Args and errors are those of :func:`bulk_update`, without values.
    """
    session = given_session(session, "bulk_delete", _IN_ASYNC_CODE.format("bulk_delete"))
    given = rows_to_delete(model, rows)
    if not given.rows:
        return BulkResult()
    refuse_silent_delete(session, given.mapper)
    _, lost = _send(session, given)
    gone = [row for place, row in enumerate(given.rows) if place not in lost]
    if events.listeners_to_rows:
        for row in gone:
            _note(session, given.mapper, "delete", row, None)
    deleted = [row.identity for row in gone]
    for identity in deleted:
        obj = session.identity_map.get(given.mapper.identity_key_from_primary_key(identity))
        if obj is not None:
            session.expunge(obj)
    return BulkResult(deleted=tuple(map(Done, deleted)), conflicts=_conflicts(lost))


def _note(session: Session, mapper: Mapper[Any], action: str, row: Row, version: Any) -> None:
    note_row(
        session,
        mapper,
        action,
        row.identity,
        before=row.expected,
        version=version,
        columns=row.values,
        author=author_of(mapper, row.values),
    )


def _send(session: Session, given: Rows) -> tuple[Connection, dict[int, Entry[Any]]]:
    """Flush, write the rows, and return the entries of those that missed, by their places."""
    flush_before(session, {})
    connection = connection_to_write(session, given.mapper, writes=True)
    refuse_autocommit(connection, "Writing many rows by key")
    rows = {row.identity: row.values for row in given.rows}
    moves = moves_of_rows(session, given.mapper, rows, deletes=given.deletes)
    demands = demands_of(session)
    writes = _writes(connection, given, demands)
    before = 0
    if is_watched(session):
        before = session_record(session).at()
        session_record(session).sent.extend(writes)
    missed = _missed(connection, given, writes)
    if moves and len(missed) < len(writes):
        note_moves(session, given.mapper, moves)
    if not missed:
        return connection, {}
    places = {id(write.params): place for place, write in enumerate(writes)}
    lost = resend(connection, read_missed(demands, connection, given.mapper, missed))
    if lost and is_watched(session):
        session_record(session).refused(places_of([one.write for one in lost]), before)
    by_place = [(places[id(one.write.params)], one) for one in lost]
    hidden = HiddenRows(connection)
    return connection, {
        n: _entry(connection, given, given.rows[n], one, hidden) for n, one in by_place
    }


def _writes(connection: Connection, given: Rows, demands: Demands | None) -> list[Write]:
    """Return the guarded writes of the rows, under the session's demands."""
    writes = given.writes(connection.dialect)
    if demands is not None:
        writes = [demands.with_demands(write, given.mapper) for write in writes]
    for write in writes:
        if write.shape.prefetch:
            fill_in(write, connection)
    return writes


def _missed(connection: Connection, given: Rows, writes: list[Write]) -> list[Write]:
    """Send the writes, most of them together, and return those that found no row."""
    individual = [write for write in writes if given.is_sent_individually(write)]
    together = [write for write in writes if not given.is_sent_individually(write)]
    parts = [together, *([write] for write in individual)]
    return [write for some in parts if some for write in send(connection, some)]


def _entry(
    connection: Connection, given: Rows, row: Row, lost: Lost, hidden: HiddenRows
) -> Entry[Any]:
    action: Action = "delete" if given.deletes else "update"
    attempt = attempt_from_values(given.mapper, row.identity, action, row.expected, row.values)
    kept = error_if_kept_by_database(attempt, connection) if lost.stands else None
    if kept is not None:
        raise kept
    entry = entry_of(attempt, lost.stored, demanded=True, hidden=hidden)
    why = first_explanation(lost.failed, entry)
    if why is not None:
        raise why  # a failed demand of the session is no conflict to report
    return entry


def _versions(
    connection: Connection, given: Rows, lost: Collection[int]
) -> dict[Identity, dict[str, Any]]:
    """Return the new versions by row, as attributes; read back where the database makes them."""
    token = facts(given.mapper).token
    if not facts(given.mapper).by_database:
        return {row.identity: {token: row.following} for row in given.rows}
    written = [row.identity for place, row in enumerate(given.rows) if place not in lost]
    return read_stored(connection, given.mapper, written, only=(token,)) if written else {}


def follow_written_row(
    session: Session, mapper: Mapper[Any], identity: Identity, before: Any, values: dict[str, Any]
) -> None:
    """Give the session's object of the row, if there is one, the stored values.

    An object that is older than the version given by the caller has not seen the values stored in
    between. It is not changed, and conflicts at its next flush.
    """
    obj = session.identity_map.get(mapper.identity_key_from_primary_key(identity))
    token = facts(mapper).token
    if obj is None or not token or version_seen(instance_state(obj), token) != before:
        return
    state = instance_state(obj)
    follow_move(state, token, before, values[token])
    values_moved(state, values)
    equal_to_stored(state, values)
    expire_with_savepoint(session, [state])  # a savepoint expires it, too
    session.expire(obj, [r.key for r in mapper.relationships if r.key in obj.__dict__])


def _conflicts(lost: Mapping[int, Entry[Any]]) -> tuple[Entry[Any], ...]:
    entries = tuple(lost[place] for place in sorted(lost))
    if entries:
        events.emit(lambda: events.Conflict(entries))
    return entries


# -- the rows of a bulk call -----------------------------------------------------------------------


class Row(NamedTuple):
    """A checked row of a bulk call."""

    identity: Identity
    #: The version that the caller has seen.
    expected: Any
    #: Attribute -> new value.
    values: dict[str, Any]
    #: The version that the row is to get; ``None`` where the database makes it.
    following: Any


@dataclass(frozen=True)
class Rows:
    """Checked rows of one class, in their order."""

    mapper: Mapper[Any]
    deletes: bool
    rows: list[Row]

    def writes(self, dialect: Dialect) -> list[Write]:
        """Return the rows as guarded writes."""
        columns, version = facts(self.mapper).columns, facts(self.mapper).version
        shapes: dict[tuple[str, ...], Shape] = {}
        writes = []
        for row in self.rows:
            names = tuple(row.values)
            if names not in shapes:
                shapes[names] = self._shape(names, dialect)
            shape = shapes[names]
            params = {columns[name].key: value for name, value in row.values.items()}
            if not self.deletes and row.following is not None:
                params[version.key] = row.following
            params.update(shape.found_by(row.identity, row.expected))
            writes.append(Write(shape, params))
        return writes

    def _shape(self, names: Iterable[str], dialect: Dialect) -> Shape:
        class_facts = facts(self.mapper)
        sets = None if self.deletes else [class_facts.columns[name] for name in names]
        if sets is not None and callable(self.mapper.version_id_generator):
            sets.append(class_facts.version)
        return shape_by_key(self.mapper, class_facts.version.table, dialect, sets)

    def is_sent_individually(self, write: Write) -> bool:
        """Return whether the row needs a statement of its own, for its order or for its version."""
        return write.shape.sent_individually or not (
            self.deletes or facts(self.mapper).version.key in write.shape.sets
        )


def rows_to_update(model: type[Any], rows: Iterable[Mapping[str, Any]]) -> Rows:
    """Return checked rows that set at least one column."""
    found = _rows(model, rows, "bulk_update", deletes=False)
    for place, row in enumerate(found.rows):
        if not row.values:
            raise ConfigurationError(
                f"bulk_update({model.__name__}): row {place} sets no column. Add a value or remove"
                " the row."
            )
    return found


def rows_to_delete(model: type[Any], rows: Iterable[Mapping[str, Any]]) -> Rows:
    """Return checked rows with a key and a version, and nothing else."""
    found = _rows(model, rows, "bulk_delete", deletes=True)
    for place, row in enumerate(found.rows):
        if row.values:
            raise ConfigurationError(
                f"Row {place} of bulk_delete({model.__name__}) has {_list(row.values)} besides its"
                " key and version: a row to delete needs no values."
            )
    if len(found.mapper.tables) > 1:
        raise ConfigurationError(
            f"bulk_delete({model.__name__}): its rows are in several tables (joined inheritance),"
            " which the objects' own delete takes apart. Use session.delete()."
        )
    return found


def _rows(model: type[Any], rows: Iterable[Mapping[str, Any]], call: str, *, deletes: bool) -> Rows:
    mapper = _mapper(model, call)
    token, keys = facts(mapper).token, facts(mapper).keys
    versions, following = VersionType(mapper), mapper.version_id_generator
    whole = all(isinstance(column.type, Integer) for column in mapper.primary_key)
    found: list[Row] = []
    seen: dict[Identity, int] = {}
    for place, row in enumerate(rows):
        where = f"Row {place} of {call}({model.__name__})"
        _require(where, row, (*keys, token))
        expected = row[token]
        if not versions.takes(expected):
            raise versions.refused(where, expected)
        identity = tuple(row[name] for name in keys)
        if not (whole and all(type(value) is int for value in identity)):
            identity = _identity(where, mapper, call, identity)
        if identity in seen:
            raise ConfigurationError(
                f"{where} has the same key as row {seen[identity]}: {identity!r}. Give each row"
                " once."
            )
        seen[identity] = place
        values = {name: value for name, value in row.items() if name not in (*keys, token)}
        _check_values(where, mapper, values)
        next_version = following(expected) if callable(following) else None
        found.append(Row(identity, expected, values, next_version))
    return Rows(mapper, deletes, found)


def _identity(where: str, mapper: Mapper[Any], call: str, given: Identity) -> Identity:
    """Return the key with the values that a key in a URL would have."""
    try:
        return identity_given(call, mapper, given)
    except NotFound as error:
        error.add_note(f"optilock: {where} has this key, so nothing of the call was sent.")
        raise


def _mapper(model: Any, call: str) -> Mapper[Any]:
    mapper = inspect(model, raiseerr=False)
    if not isinstance(mapper, Mapper):
        raise ConfigurationError(f"{call}() takes a mapped class, not {model!r}.")
    if not facts(mapper).token:
        raise ConfigurationError(
            f"{call}({model.__name__}): the class has no version, so nothing could be checked:"
            f" {HINT_ADD_TOKEN}."
        )
    refuse_compared(mapper, f"{call}()")
    if facts(mapper).by_application:
        raise ConfigurationError(
            f"{call}({model.__name__}): your program makes the versions of the class (Manual), and"
            " a bulk row has no place for the next one. Change the objects instead."
        )
    if facts(mapper).table_if_any is None:
        raise ConfigurationError(f"{call}({model.__name__}): its version is in no table.")
    return mapper


def _require(where: str, row: Any, names: Iterable[str]) -> None:
    if not isinstance(row, Mapping):
        raise ConfigurationError(
            f"{where} is of type {type(row).__name__}: write a mapping of attribute names to"
            " values."
        )
    missing = [name for name in names if row.get(name) is None]
    if missing:
        raise ConfigurationError(
            f"{where} has no {_list(missing)}: a row needs its key, and the version that its author"
            " has seen."
        )


def _check_values(where: str, mapper: Mapper[Any], values: Mapping[str, Any]) -> None:
    version = facts(mapper).version
    columns = facts(mapper).columns
    for name, value in values.items():
        if name not in columns:
            raise ConfigurationError(
                f"{where} names {name!r}, which is not a column attribute. There are:"
                f" {', '.join(sorted(columns))}."
            )
        if columns[name].table is not version.table:
            raise ConfigurationError(
                f"{where} sets {name!r}, which is in another table than the version (joined"
                " inheritance): change the object instead."
            )
        if isinstance(value, ClauseElement) or hasattr(value, "__clause_element__"):
            raise ConfigurationError(
                f"{where} sets {name!r} to a SQL expression: rows in bulk carry values. Use"
                " update() with optilock.statements.unchanged()."
            )


def _list(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))
