"""Many rows at once, each in the version that the caller has seen, with a report.

::

    result = bulk_update(session, Account, [
        {"id": 1, "version": 3, "balance": 10},
        {"id": 2, "version": 7, "owner": "Ada"},
    ])
    result.updated          # (Done(identity=(1,), version=4),)
    result.conflicts        # (Entry(...),): row 2 is in another version, or gone

No object is loaded: for imports, queues and APIs that carry keys, versions and values. The rows of
a table go out as the guarded flush sends them, one statement on PostgreSQL, whatever columns each
row sets; those that are not in their version are left alone and come back as entries, read with a
lock. Nothing is raised for them: commit what was written, or roll back, or
``raise ConcurrencyError(result.conflicts)``.

What is pending in the session is flushed first. Objects of these rows in the session get the new
values, unless they are older than the version that the row names; those of deleted rows leave the
session. With an ``AsyncSession``: ``await session.run_sync(bulk_update, Account, rows)``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ClauseElement, Connection, Dialect, Integer, inspect
from sqlalchemy.orm import Mapper, Session, scoped_session
from sqlalchemy.orm.attributes import instance_state

from optilock import events
from optilock.columns.identities import identity_given
from optilock.conditions.condition import explained
from optilock.conditions.write import Lost, Shape, Write, places_of
from optilock.errors import Action, ConfigurationError, Entry, NotFound
from optilock.mapped import GIVE_ONE, Identity, facts
from optilock.mapping.compared import values_moved
from optilock.undocumented.flushes import expire_with_savepoint
from optilock.watched.rows.entries import Attempt, entry_of, equal_to_stored, kept_by_database
from optilock.watched.rows.seen import moved_by_us, version_seen
from optilock.watched.rows.stored import read_stored
from optilock.watched.session.connections import (
    connection_to_write,
    refuse_autocommit,
    session_given,
)
from optilock.watched.session.watched import demands_of, is_watched, watched
from optilock.watched.statements.by_key import attempt_given, refuse_compared
from optilock.watched.statements.call import flush_before
from optilock.watched.statements.version import VersionType
from optilock.watched.writes.answers import fill_in
from optilock.watched.writes.send import look_again, send, send_again
from optilock.watched.writes.shapes import shape_by_key

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
        ConfigurationError: it is no sync session, or its connection is in AUTOCOMMIT mode; a row
            lacks its key or version, has a version of a type that no row can have, names what
            cannot be set, or appears twice; the class has no version, or the values are in several
            tables. Nothing was sent.
        NotFound: no row can have the key of one of them, such as " 7". Nothing was sent.
        NotWritten: a row is as it was read, and a trigger, a rule or a policy of the database keeps
            it so. Others may be written in this transaction, which is alive: roll back.
    """
    session = session_given(session, "bulk_update", _IN_ASYNC_CODE.format("bulk_update"))
    given = rows_to_update(model, rows)
    if not given.rows:
        return BulkResult()
    flush_before(session, {})
    connection = connection_to_write(session, given.mapper)
    lost = _send(session, connection, given)
    versions = _versions(connection, given, lost)
    done = []
    for place, identity in enumerate(given.identities):
        if place not in lost:
            values = {**given.values[place], **versions[identity]}
            follow(session, given.mapper, identity, given.expected[place], values)
            done.append(Done(identity, next(iter(versions[identity].values()))))
    return BulkResult(updated=tuple(done), conflicts=_conflicts(lost))


def bulk_delete(
    session: Session | scoped_session[Any], model: type[Any], rows: Iterable[Mapping[str, Any]]
) -> BulkResult:
    """Delete rows by key and version. What the database does to their dependents, it does.

    Args and errors are those of :func:`bulk_update`, without values.
    """
    session = session_given(session, "bulk_delete", _IN_ASYNC_CODE.format("bulk_delete"))
    given = rows_to_delete(model, rows)
    if not given.rows:
        return BulkResult()
    flush_before(session, {})
    connection = connection_to_write(session, given.mapper)
    lost = _send(session, connection, given)
    done = []
    for place, identity in enumerate(given.identities):
        if place not in lost:
            obj = session.identity_map.get(given.mapper.identity_key_from_primary_key(identity))
            if obj is not None:
                session.expunge(obj)
            done.append(Done(identity))
    return BulkResult(deleted=tuple(done), conflicts=_conflicts(lost))


def _send(session: Session, connection: Connection, given: Rows) -> dict[int, Entry[Any]]:
    """Write the rows; those that missed, by their places."""
    refuse_autocommit(connection, "Writing many rows by key")
    writes = given.writes(connection.dialect)
    demands = demands_of(session)
    if demands is not None:
        writes = [demands.demanded(write, given.mapper) for write in writes]
    for write in writes:
        if write.shape.prefetch:
            fill_in(write, connection)
    before = 0
    if is_watched(session):
        before = watched(session).at()
        watched(session).sent.extend(writes)
    alone = [write for write in writes if given.alone(write)]
    together = [write for write in writes if not given.alone(write)]
    parts = [together, *([write] for write in alone)]
    missed = [write for some in parts if some for write in send(connection, some)]
    if not missed:
        return {}
    places = {id(write.params): place for place, write in enumerate(writes)}
    lost = send_again(connection, look_again(demands, connection, given.mapper, missed))
    if lost and is_watched(session):
        watched(session).refused(places_of([one.write for one in lost]), before)
    of = [(places[id(one.write.params)], one) for one in lost]
    return {place: _entry(connection, given, place, one) for place, one in of}


def _entry(connection: Connection, given: Rows, place: int, lost: Lost) -> Entry[Any]:
    attempt = _attempt(given, place)
    kept = kept_by_database(attempt, connection) if lost.stands else None
    if kept is not None:
        raise kept
    entry = entry_of(attempt, lost.stored, demanded=True)
    why = explained(lost.failed, entry)
    if why is not None:
        raise why  # what the session demands of its rows is no conflict to be reported
    return entry


def _versions(
    connection: Connection, given: Rows, lost: Collection[int]
) -> dict[Identity, dict[str, Any]]:
    """Row -> its new version, by attribute; read back where the database makes it."""
    token = facts(given.mapper).token
    if not facts(given.mapper).by_database:
        return {
            identity: {token: new}
            for identity, new in zip(given.identities, given.following, strict=True)
        }
    written = [i for place, i in enumerate(given.identities) if place not in lost]
    return read_stored(connection, given.mapper, written, only=(token,)) if written else {}


def follow(
    session: Session, mapper: Mapper[Any], identity: Identity, before: Any, values: dict[str, Any]
) -> None:
    """The object of the row, if the session has it, gets what is stored now.

    One that is older than the version that the caller gave has not seen what was stored in between:
    it stays as it is, and conflicts at its next flush.
    """
    obj = session.identity_map.get(mapper.identity_key_from_primary_key(identity))
    token = facts(mapper).token
    if obj is None or not token or version_seen(instance_state(obj), token) != before:
        return
    state = instance_state(obj)
    moved_by_us(state, token, before, values[token])
    values_moved(state, values)
    equal_to_stored(state, values)
    expire_with_savepoint(session, [state])  # a savepoint expires it, too
    session.expire(obj, [r.key for r in mapper.relationships if r.key in obj.__dict__])


def _conflicts(lost: Mapping[int, Entry[Any]]) -> tuple[Entry[Any], ...]:
    entries = tuple(lost[place] for place in sorted(lost))
    if entries:
        events.emit(lambda: events.Conflict(entries))
    return entries


def _attempt(given: Rows, place: int) -> Attempt:
    action: Action = "delete" if given.deletes else "update"
    identity, version = given.identities[place], given.expected[place]
    return attempt_given(given.mapper, identity, action, version, given.values[place])


# -- the rows of a bulk call -----------------------------------------------------------------------


@dataclass
class Rows:
    """Rows of one class, by place: key, expected version, new values."""

    mapper: Mapper[Any]
    deletes: bool
    rows: list[Mapping[str, Any]]
    identities: list[tuple[Any, ...]]
    expected: list[Any]
    #: Attribute -> new value.
    values: list[dict[str, Any]]
    #: The versions that the rows are to get; ``None`` where the database makes them.
    following: list[Any]

    def writes(self, dialect: Dialect) -> list[Write]:
        """The rows as the guard sends them."""
        columns, version = facts(self.mapper).columns, facts(self.mapper).version
        shapes: dict[tuple[str, ...], Shape] = {}
        writes = []
        for place, identity in enumerate(self.identities):
            values = self.values[place]
            names = tuple(values)
            if names not in shapes:
                shapes[names] = self._shape(names, dialect)
            shape = shapes[names]
            params = {columns[name].key: value for name, value in values.items()}
            if not self.deletes and self.following[place] is not None:
                params[version.key] = self.following[place]
            params.update(shape.found_by(identity, self.expected[place]))
            writes.append(Write(shape, params))
        return writes

    def _shape(self, names: Iterable[str], dialect: Dialect) -> Shape:
        known = facts(self.mapper)
        sets = None if self.deletes else [known.columns[name] for name in names]
        if sets is not None and callable(self.mapper.version_id_generator):
            sets.append(known.version)
        return shape_by_key(self.mapper, known.version.table, dialect, sets)

    def alone(self, write: Write) -> bool:
        """Must the row be sent by itself: order matters, or the database makes the version?"""
        return write.shape.alone or not (
            self.deletes or facts(self.mapper).version.key in write.shape.sets
        )


def rows_to_update(model: type[Any], rows: Iterable[Mapping[str, Any]]) -> Rows:
    """Checked rows that set something."""
    found = _rows(model, rows, "bulk_update", deletes=False)
    for place, values in enumerate(found.values):
        if not values:
            raise ConfigurationError(
                f"Row {place} of bulk_update({model.__name__}) sets nothing: leave it out, or name"
                " the values that it gets."
            )
    return found


def rows_to_delete(model: type[Any], rows: Iterable[Mapping[str, Any]]) -> Rows:
    """Checked rows with a key and a version, and nothing else."""
    found = _rows(model, rows, "bulk_delete", deletes=True)
    for place, values in enumerate(found.values):
        if values:
            raise ConfigurationError(
                f"Row {place} of bulk_delete({model.__name__}) has {_list(values)} beside its key"
                " and version: a row to delete needs no values."
            )
    if len(found.mapper.tables) > 1:
        raise ConfigurationError(
            f"bulk_delete({model.__name__}): its rows are in several tables (joined inheritance),"
            " which the objects' own delete takes apart. Use session.delete()."
        )
    return found


def _rows(model: type[Any], rows: Iterable[Mapping[str, Any]], call: str, *, deletes: bool) -> Rows:
    mapper = _mapper(model, call)
    token = facts(mapper).token
    keys = facts(mapper).keys
    found = Rows(mapper, deletes, list(rows), [], [], [], [])
    versions = VersionType(mapper)
    whole = all(isinstance(column.type, Integer) for column in mapper.primary_key)
    seen: dict[tuple[Any, ...], int] = {}
    for place, row in enumerate(found.rows):
        where = f"Row {place} of {call}({model.__name__})"
        _require(where, row, (*keys, token))
        if not versions.takes(row[token]):
            raise versions.refused(where, row[token])
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
        found.identities.append(identity)
        found.expected.append(row[token])
        found.values.append(values)
        following = mapper.version_id_generator
        found.following.append(following(row[token]) if callable(following) else None)
    return found


def _identity(where: str, mapper: Mapper[Any], call: str, given: Identity) -> Identity:
    """The key as whoever reads it from a URL reads it."""
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
            f" {GIVE_ONE}."
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
            f"{where} has no {_list(missing)}: a row says which one it is, and which version its"
            " author has seen."
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
                " update() with optilock.unchanged()."
            )


def _list(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))
