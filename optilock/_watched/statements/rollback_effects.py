"""The effects of a session's own statements, and how a rollback takes them back.

::

    session.execute(text("UPDATE pages SET n = 5, version = version + 1 WHERE id = 1"))
    page = session.get(Page, 1)      # version 2, which the rollback undoes
    session.rollback()               # and which the next writer will make again

The rows that a statement moved are unknown afterwards. If it is rolled back, an object that was
read after it may hold a version that was never stored, and a counter gives that number to the next
write of another transaction. So the versions that the session's objects held before are noted, and
other objects must be read again. A SQL text counts as such a statement if it names a versioned
table behind UPDATE, MERGE or REPLACE, or in an upsert. A text that calls a procedure may change any
row. Rows that the session inserts by a statement, and then reads, are treated in the same way:
after the rollback another transaction may insert them, in the same first version. Objects that it
had before are not theirs.

Rows that were promised (``expect``, ``verify``) and that the statement found in the promised
version are ours from then on, as rows that a flush has written. Objects whose rows it found in the
version that they held take over the one that it has made.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from sqlalchemy import Connection, Insert, TextClause
from sqlalchemy.orm import Mapper, Session

from optilock._mapped import Identity, State, facts, identity_of, place_of
from optilock._mapping.original_values import class_comparing
from optilock._mapping.tables import joined_tables, owner_of, versioned_tables
from optilock._undocumented.flushes import expire_with_savepoint
from optilock._undocumented.statements import upsert_of
from optilock._watched.rows.seen import follow_move, undo_of_move, version_seen
from optilock._watched.rows.stored import read_stored
from optilock._watched.session.record import session_record
from optilock._watched.session.values import Promise, SentStatement
from optilock._watched.statements.sql_text import calls_code, tables_added_to, tables_changed


def note_statement(session: Session, mapper: Mapper[Any], *, adds: bool = False) -> None:
    """Record a statement: if it is rolled back, rows that were read after it must be read again.

    The transaction must have begun. ``adds``: the statement changes no row that was stored.
    """
    record = session_record(session)
    tokens: dict[Mapper[Any], str] = {}
    held: dict[State, Any] = {}
    for state in objects_of(session, mapper).values():
        token = tokens.get(state.mapper)
        if token is None:
            token = tokens[state.mapper] = facts(state.mapper).token
        held[state] = version_seen(state, token) if token else None
    record.stated.append(SentStatement(facts(mapper).root, held, len(record.sent), adds))


def objects_of(session: Session, mapper: Mapper[Any]) -> dict[Identity, State]:
    """Return the session's objects for rows of the class, or of its hierarchy, by their keys."""
    base = facts(mapper).root
    related: dict[Mapper[Any], bool] = {}  # once for a class, not for an object
    found: dict[Identity, State] = {}
    for state in session.identity_map.all_states():
        if state.mapper not in related:
            related[state.mapper] = facts(state.mapper).root is base
        if related[state.mapper] and state.key is not None:
            found[tuple(state.key[1])] = state
    return found


# -- SQL text and upserts, whose rows are not read -------------------------------------------------


class UnseenRows(NamedTuple):
    """Classes whose rows a statement changes or adds without a read; mostly none."""

    #: Stored rows may be changed.
    changed: Collection[Mapper[Any]] = ()
    #: New rows come.
    added: Collection[Mapper[Any]] = ()


_NOTHING = UnseenRows()


def unseen_rows_of(statement: Any) -> UnseenRows:
    """Return the statement's effect on rows of versioned classes that are not read before it."""
    if isinstance(statement, TextClause):
        added = _classes_of(_named(tables_added_to(statement.text)))
        return UnseenRows(_classes_of(_changed_by(statement.text)), added)
    if isinstance(statement, Insert):
        classes = _classes_of([statement.table])
        return (
            UnseenRows(classes) if upsert_of(statement) is not None else UnseenRows(added=classes)
        )
    return _NOTHING


def note_unseen_rows(session: Session, unseen: UnseenRows) -> None:
    """Record a statement that is about to be sent, in the transaction that has begun."""
    record = session_record(session)
    for mapper in unseen.changed:
        note_statement(session, mapper)
    for mapper in unseen.added:
        if facts(mapper).root not in record.added_to:  # rows read since are in doubt already
            record.added_to.add(facts(mapper).root)
            note_statement(session, mapper, adds=True)


def _changed_by(sql: str) -> Iterable[Any]:
    if calls_code(sql):
        return {*versioned_tables(), *joined_tables()}
    return _named(tables_changed(sql))


def _named(names: Collection[str]) -> Iterable[Any]:
    tables = (*versioned_tables(), *joined_tables()) if names else ()
    return [table for table in tables if table.name.lower() in names]


def _classes_of(tables: Iterable[Any]) -> set[Mapper[Any]]:
    """Return the roots of the classes whose rows are in these tables."""
    found = (
        owner_of(table) or joined_tables().get(table) or class_comparing(table) for table in tables
    )
    return {facts(mapper).root for mapper in found if mapper is not None}


# -- promises --------------------------------------------------------------------------------------


def promised_rows(session: Session, mapper: Mapper[Any]) -> dict[Any, Promise]:
    """Return the transaction's promises about rows of the class, by key."""
    promises = session_record(session).promises
    if not promises:
        return {}
    promises.in_transaction(session.get_transaction())
    base = facts(mapper).root
    return {identity: promise for (of, identity), promise in promises.items() if of is base}


def keep_promises(
    session: Session, promised: Mapping[Any, Promise], found: Mapping[Any, Any]
) -> None:
    """Count rows that the statement moves in the promised version as ours from here on."""
    rows = session_record(session).stated[-1].rows
    for identity, promise in promised.items():
        if identity in found and found[identity] == promise.version:
            rows.add((facts(promise.mapper).root, identity))


# -- versions --------------------------------------------------------------------------------------


@contextmanager
def keep_versions(mapper: Mapper[Any], states: Iterable[State]) -> Iterator[None]:
    """Restore versions that SQLAlchemy expires, or moves, also where the object is older."""
    key = facts(mapper).token
    versions = [(state, state.dict[key]) for state in states if key in state.dict]
    yield
    for state, version in versions:
        state.dict[key] = version
        state.expired_attributes.discard(key)


def versions_after(
    connection: Connection,
    mapper: Mapper[Any],
    before: Iterable[tuple[State, Any]],
    *,
    certain: bool,
) -> dict[State, Any]:
    """Return the versions that a statement has made, read where they cannot be computed."""
    kind, key = facts(mapper).kind, facts(mapper).token
    if certain and kind is not None and kind.predictable:
        return {state: kind.next(version) for state, version in before}
    identities = {state: identity_of(state) for state, _ in before}
    stored = read_stored(connection, mapper, list(identities.values()), only=(key,), lock=False)
    return {state: stored.get(one, {}).get(key) for state, one in identities.items()}


def take_over_versions(
    session: Session,
    connection: Connection,
    mapper: Mapper[Any],
    matched: list[tuple[State, Any]],
    *,
    certain: bool,
) -> None:
    """Give the objects the statement's versions: the next ones, if ``certain``."""
    key = facts(mapper).token
    after = versions_after(connection, mapper, matched, certain=certain)
    record = session_record(session)
    for state, before in matched:
        if after[state] is not None:
            follow_move(state, key, before, after[state])
            record.move(place_of(state), before, undo_of_move(state, key, before, after[state]))
    expire_with_savepoint(session, [state for state, _ in matched])  # a savepoint expires them, too
