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

from sqlalchemy import Connection
from sqlalchemy.orm import Mapper, Session, scoped_session
from sqlalchemy.orm.attributes import instance_state

from optilock import events
from optilock.conditions.condition import explained
from optilock.conditions.write import Lost, places_of
from optilock.errors import Action, Entry
from optilock.mapped import Identity, facts
from optilock.mapping.compared import values_moved
from optilock.rows.seen import moved_by_us, version_seen
from optilock.rows.sides import Attempt, entry_of, equal_to_stored, kept_by_database
from optilock.rows.stored import read_stored
from optilock.session.connections import connection_to_write, refuse_autocommit, session_given
from optilock.session.watched import demands_of, is_watched, watched
from optilock.statements.bulk_rows import Rows, rows_to_delete, rows_to_update
from optilock.statements.by_key import attempt_given
from optilock.statements.call import flush_before
from optilock.undocumented.sessions import expire_with_savepoint
from optilock.writes.answers import fill_in
from optilock.writes.send import look_again, send, send_again

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
    """What became of the rows."""

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
