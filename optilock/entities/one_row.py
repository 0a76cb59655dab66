"""One row written by its key, if it is in a version that its author has seen: one statement.

::

    written = write_row(session, Change(mapper, (7,), {"title": "New"}, versions=(3,)))
    written.version                  # 4

``UPDATE pages SET title = :title, version = :next WHERE id = :id AND version = :seen``, and the
row count is the answer. Of several versions it says ``version IN (…)``; without any, what is stored
is overwritten. What the session demands of its rows (:func:`optilock.demand`) stands in the WHERE
as well. The new version is made in Python, or comes back by RETURNING. Where neither can be (on
MariaDB, and on SQLite behind a trigger) a SELECT asks for it, in the same transaction.

Only if the statement found no row, one SELECT looks for it, without a lock: that tells a row which
is gone from one in another version, and brings what is stored now. On MariaDB it locks the row
against writers, because a plain read may show the row as it was when the transaction first read.

No transaction is needed: over a connection in AUTOCOMMIT mode the statement is one round trip. What
needs a SELECT afterwards is refused there, because that could tell another writer's version.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Mapper, Session

from optilock import events
from optilock.conditions.condition import Condition, demanded_of, explained
from optilock.conditions.condition import failed as failed_of
from optilock.conditions.write import Write
from optilock.dialects import database_of
from optilock.dialects.rows import native
from optilock.entities.one_form import EXPECTED, Change, Form, form_of, params_of
from optilock.errors import Action, NotFound, NotWritten, PreconditionFailed
from optilock.mapped import Identity, facts
from optilock.mapping.moves import not_moved
from optilock.watched.rows.entries import Attempt, entry_of
from optilock.watched.rows.stored import Values, read_stored, stored_key
from optilock.watched.session.connections import (
    autocommits,
    connection_to_write,
    refuse_autocommit,
    require_answer,
)
from optilock.watched.session.watched import demands_of, is_watched, watched
from optilock.watched.statements.bulk import follow
from optilock.watched.statements.call import flush_before
from optilock.watched.statements.rollback_effects import note
from optilock.watched.writes.send import require_row_counts, send

#: Told of a row that was not written, and of one that was, without more.
_MISSED, _NOTHING = object(), object()


class Written(NamedTuple):
    """A row that was written."""

    #: In the order of the mapper's primary key columns.
    identity: Identity
    #: The version that it has now; ``None`` for a row that was deleted.
    version: Any
    #: It has had it before: this very change was sent again, and nothing was written.
    again: bool = False


def write_row(session: Session, change: Change) -> Written:
    """Write the row, after what is pending in the session.

    Raises:
        NotFound: there is no such row.
        PreconditionFailed: it is in another version.
        NotWritten: a trigger, a rule or a policy of the database keeps it as it is.
        ConfigurationError: the version that it gets could not be told.
    """
    flush_before(session, {})
    mapper = change.mapper
    connection = connection_to_write(session, mapper)
    require_row_counts(connection.dialect)
    form = form_of(connection, change)
    write = Write(form.shape, params_of(form, change))
    if change.versions == ():  # no row can be in any of these
        _judge(connection, change, write)
    write = _noted(session, change, write)
    if form.asks:
        refuse_autocommit(connection, _what(change))
    told, key = _sent(connection, form, change, write)
    if told is _MISSED:
        _forget(session, write)
        ours = _judge(connection, change, write)
        if ours is not None:
            read_again(session, mapper, change.identity)
            return Written(change.identity, ours, again=True)
        write = _noted(session, change, write)
        told, key = _sent(connection, form, change, write)  # all is true of it again
    if told is _MISSED:
        _forget(session, write)
        raise _kept(change)
    version = _version(connection, change, form, write, told)
    change = _as_stored(session, connection, change, write, key)
    _tell_session(session, change, version)
    return Written(change.identity, version)


# -- sending it ------------------------------------------------------------------------------------


def _noted(session: Session, change: Change, write: Write) -> Write:
    """The write under what the session demands; it knows of it if the transaction is undone."""
    demands = demands_of(session)
    if demands is not None:
        write = demands.demanded(write, change.mapper)
    if not is_watched(session):
        return write
    known = watched(session)
    if known.conditions is not None:
        known.conditions.by_name = True  # if_match was given, "*" perhaps
    if change.versions is not None and len(change.versions) == 1:
        known.sent.append(write)
    else:
        note(session, change.mapper)
    return write


def _forget(session: Session, write: Write) -> None:
    """It has found no row."""
    if is_watched(session) and (sent := watched(session).sent) and sent[-1] is write:
        sent.pop()


def _sent(
    connection: Connection, form: Form, change: Change, write: Write
) -> tuple[Any, Identity | None]:
    """What the statement tells of the row, and its key, where it is asked for that."""
    commits = change.is_ours is None and autocommits(connection)  # or else it is known again
    try:
        return _told(connection, form, write)
    except DBAPIError as error:
        if commits:
            require_answer(error, change.mapper)
        raise


def _told(connection: Connection, form: Form, write: Write) -> tuple[Any, Identity | None]:
    if not write.shape.exact:
        return (_MISSED if send(connection, [write]) else _NOTHING), None
    result = native(connection, write.shape.statement, write.params)
    if form.returns or form.names:
        row = result.first()
        if row is None:
            return _MISSED, None
        key = tuple(row[1:] if form.returns else row) if form.names else None
        return (row[0] if form.returns else _NOTHING), key
    if not result.rowcount:
        return _MISSED, None
    return (result.lastrowid if form.tells else _NOTHING), None


def _as_stored(
    session: Session, connection: Connection, change: Change, write: Write, key: Identity | None
) -> Change:
    """The change under the key that the database gives back of the row."""
    if not change.respelled:
        return change
    if key is None and not change.deletes:
        key = stored_key(connection, change.mapper, change.identity)
    if key is None or key == change.identity:
        return change
    if is_watched(session) and change.versions is not None and len(change.versions) == 1:
        _forget(session, write)  # it is noted under a key that no object has
        note(session, change.mapper)
    return replace(change, identity=key, versions=None)  # an object of the row is read again


def _version(connection: Connection, change: Change, form: Form, write: Write, told: Any) -> Any:
    known = facts(change.mapper)
    if change.deletes:
        return None
    if form.makes and not form.shape.ignored_only:
        return write.params[known.version.key]
    if form.shape.ignored_only and form.makes:
        return write.params[EXPECTED]
    if told is _NOTHING:
        found = read_stored(
            connection, change.mapper, [change.identity], only=(known.token,), lock=False
        )
        told = next(iter(found.values()))[known.token]
    kind = known.kind
    if kind is not None and kind.has_trigger and change.versions == (told,):
        raise not_moved(change.mapper)
    return told


# -- a miss ----------------------------------------------------------------------------------------


def _judge(connection: Connection, change: Change, write: Write) -> Any:
    """Raise what is wrong with the row. Its version, if this very change has made that before;
    ``None``, if all is true of the row again."""
    stored, failed = look_at(connection, change.mapper, change.identity, write)
    if stored is None:
        raise NotFound(change.mapper.class_, change.identity)
    version = stored[facts(change.mapper).token]
    if change.is_ours is not None and change.is_ours(version):
        return version
    entry = entry_of(_attempt(change), stored, demanded=change.versions is not None)
    if change.versions is not None and version not in change.versions:
        events.emit(lambda: events.Conflict((entry,)))
        raise PreconditionFailed([entry])
    why = explained(failed, entry)
    if why is not None:
        raise why
    if failed:
        events.emit(lambda: events.Conflict((entry,)))
        raise PreconditionFailed([entry])
    return None


def look_at(
    connection: Connection,
    mapper: Mapper[Any],
    identity: Identity,
    write: Write | None = None,
    *,
    of_class: bool = True,
) -> tuple[Values | None, tuple[Condition, ...]]:
    """The row as it is stored, and which of the conditions of a write are not true of it.

    ``of_class``: a row of another class in the same table is none.
    """
    demanded = () if write is None else write.shape.demanded
    asked = [one for condition in demanded for one in condition.looks]
    also = {f"optilock {number}": one for number, one in enumerate(asked)}
    database = database_of(connection.dialect)
    share = database.locks_show_newer and not autocommits(connection)
    params = None if write is None else demanded_of(write.params)
    found = read_stored(
        connection, mapper, [identity], lock=False, share=share, also=also, params=params
    )
    stored = next(iter(found.values()), None)
    if stored is None or (of_class and not _is_of_class(mapper, stored)):
        return None, ()
    seen = [stored.pop(name) for name in also]
    return stored, () if write is None else failed_of(demanded, write.params, seen)


def _is_of_class(mapper: Mapper[Any], stored: Values) -> bool:
    if not mapper.single:
        return True
    name = facts(mapper).names[mapper.polymorphic_on]
    return any(stored[name] == one.polymorphic_identity for one in mapper.self_and_descendants)


def _attempt(change: Change) -> Attempt:
    """Our side: what the caller gave. What he had read besides the version is not known."""
    known = facts(change.mapper)
    seen = {
        name: value
        for name, value in zip(known.keys, change.identity, strict=True)
        if name in known.columns
    }
    if change.versions is not None and len(change.versions) == 1:
        seen[known.token] = change.versions[0]
    action: Action = "delete" if change.deletes else "update"
    values = dict(change.values)
    return Attempt(change.mapper, change.identity, action, seen, {**seen, **values}, values)


def _what(change: Change) -> str:
    return f"Writing a row of {change.mapper.class_.__name__} by its key, and reading its version,"


def _kept(change: Change) -> NotWritten:
    verb = "delete" if change.deletes else "update"
    table = facts(change.mapper).table
    return NotWritten(  # SQLAlchemy's own words come first
        f"{verb.upper()} statement on table '{table.description}' expected to {verb} 1 row(s); 0"
        f" were matched. The row of {change.mapper.class_.__name__} is there, in the version that"
        f" was demanded, so nobody else was first. A trigger, a rule or a policy of the database"
        f" (row-level security) prevents the {verb}: change that, or leave the row alone."
    )


# -- objects of the session ------------------------------------------------------------------------


def _tell_session(session: Session, change: Change, version: Any) -> None:
    """The object of the row, if the session has it, follows."""
    mapper, identity = change.mapper, change.identity
    key = mapper.identity_key_from_primary_key(identity)
    obj = session.identity_map.get(key) if session.identity_map else None
    if obj is None:
        return
    if change.deletes:
        session.expunge(obj)
        return
    known = facts(mapper)
    if change.versions is None or len(change.versions) > 1:
        read_again(session, mapper, identity)
        return
    values = {**change.values, known.token: version}
    follow(session, mapper, identity, change.versions[0], values)
    others = [
        name
        for name, column in known.columns.items()
        if name in change.computed
        or (name not in values and (column.onupdate is not None or column.server_onupdate))
    ]
    if others and obj.__dict__.get(known.token) == version:  # it was not older
        session.expire(obj, others)


def read_again(session: Session, mapper: Mapper[Any], identity: Identity) -> None:
    """Let the object of the row, if the session has it, be read when it is next used.

    Nobody knows in which version the statement found the row. A watched session remembers the one
    that the object was in: edits that were decided on before still conflict.
    """
    obj = session.identity_map.get(mapper.identity_key_from_primary_key(identity))
    if obj is not None:
        session.expire(obj)
