"""What a session has to know of its own statements.

::

    session.execute(text("UPDATE pages SET n = 5, version = version + 1 WHERE id = 1"))
    page = session.get(Page, 1)      # version 2, which the rollback undoes
    session.rollback()               # and which the next writer will make again

Which rows a statement moved, nobody knows afterwards. If it is rolled back, an object that was read
after it may hold a version that never was, and a counter gives that number to somebody else's next
write. So what the session's objects held before is noted, and the others must be read again. Of a
SQL text it is enough that it names a versioned table behind UPDATE, MERGE or REPLACE, or in an
upsert; one that calls a procedure may change any row. So are rows that the session inserts by a
statement, and then reads: after the rollback somebody else may insert them, in the same first
version. Objects that it had before are not theirs.

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

from optilock.mapped import Identity, State, facts, identity_of, place_of
from optilock.mapping.compared import comparing
from optilock.mapping.tables import joined_tables, owner_of, versioned_tables
from optilock.undocumented.flushes import expire_with_savepoint
from optilock.undocumented.statements import upsert_of
from optilock.watched.rows.seen import moved_back, moved_by_us, version_seen
from optilock.watched.rows.stored import read_stored
from optilock.watched.session.records import Promise, Stated
from optilock.watched.session.watched import watched
from optilock.watched.statements.sql_text import calls_code, tables_added_to, tables_changed


def note(session: Session, mapper: Mapper[Any], *, adds: bool = False) -> None:
    """If the statement is rolled back, what was read after it has to be read again.

    The transaction must have begun. ``adds``: the statement changes no row that was stored.
    """
    known = watched(session)
    tokens: dict[Mapper[Any], str] = {}
    held: dict[State, Any] = {}
    for state in objects_of(session, mapper).values():
        token = tokens.get(state.mapper)
        if token is None:
            token = tokens[state.mapper] = facts(state.mapper).token
        held[state] = version_seen(state, token) if token else None
    known.stated.append(Stated(facts(mapper).root, held, len(known.sent), adds))


def objects_of(session: Session, mapper: Mapper[Any]) -> dict[Identity, State]:
    """Objects of the session for rows of the class, or of its hierarchy, by their keys."""
    base = facts(mapper).root
    related: dict[Mapper[Any], bool] = {}  # asked once a class, not once an object
    found: dict[Identity, State] = {}
    for state in session.identity_map.all_states():
        if state.mapper not in related:
            related[state.mapper] = facts(state.mapper).root is base
        if related[state.mapper] and state.key is not None:
            found[tuple(state.key[1])] = state
    return found


# -- SQL text and upserts: nobody looks at their rows ---------------------------------------------


class Unseen(NamedTuple):
    """Classes by what a statement does to their rows; mostly none."""

    #: Stored rows may be changed.
    changed: Collection[Mapper[Any]] = ()
    #: New rows come.
    added: Collection[Mapper[Any]] = ()


_NOTHING = Unseen()


def unseen_of(statement: Any) -> Unseen:
    """What the statement does to rows of versioned classes that nobody looks at."""
    if isinstance(statement, TextClause):
        added = _classes_of(_named(tables_added_to(statement.text)))
        return Unseen(_classes_of(_changed_by(statement.text)), added)
    if isinstance(statement, Insert):
        classes = _classes_of([statement.table])
        return Unseen(classes) if upsert_of(statement) is not None else Unseen(added=classes)
    return _NOTHING


def note_unseen(session: Session, unseen: Unseen) -> None:
    """The statement is about to be sent, in the transaction that has begun."""
    known = watched(session)
    for mapper in unseen.changed:
        note(session, mapper)
    for mapper in unseen.added:
        if facts(mapper).root not in known.added_to:  # whoever was read since is in doubt already
            known.added_to.add(facts(mapper).root)
            note(session, mapper, adds=True)


def _changed_by(sql: str) -> Iterable[Any]:
    if calls_code(sql):
        return {*versioned_tables(), *joined_tables()}
    return _named(tables_changed(sql))


def _named(names: Collection[str]) -> Iterable[Any]:
    tables = (*versioned_tables(), *joined_tables()) if names else ()
    return [table for table in tables if table.name.lower() in names]


def _classes_of(tables: Iterable[Any]) -> set[Mapper[Any]]:
    """The roots of the classes whose rows are in these tables."""
    found = (owner_of(table) or joined_tables().get(table) or comparing(table) for table in tables)
    return {facts(mapper).root for mapper in found if mapper is not None}


# -- promises -------------------------------------------------------------------------------------


def promised_rows(session: Session, mapper: Mapper[Any]) -> dict[Any, Promise]:
    """Key -> what the transaction has promised about rows of the class."""
    promises = watched(session).promises
    if not promises:
        return {}
    promises.in_transaction(session.get_transaction())
    base = facts(mapper).root
    return {identity: promise for (of, identity), promise in promises.items() if of is base}


def keep_promises(
    session: Session, promised: Mapping[Any, Promise], found: Mapping[Any, Any]
) -> None:
    """Rows that the statement moves in the version that was promised are ours from here on."""
    rows = watched(session).stated[-1].rows
    for identity, promise in promised.items():
        if identity in found and found[identity] == promise.version:
            rows.add((facts(promise.mapper).root, identity))


# -- versions -------------------------------------------------------------------------------------


@contextmanager
def versions_kept(mapper: Mapper[Any], states: Iterable[State]) -> Iterator[None]:
    """SQLAlchemy expires a version, or gives it the new value, also where the object is older."""
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
    """The versions that a statement has made, read where they cannot be told from those before."""
    kind, key = facts(mapper).kind, facts(mapper).token
    if certain and kind is not None and kind.predictable:
        return {state: kind.next(version) for state, version in before}
    identities = {state: identity_of(state) for state, _ in before}
    stored = read_stored(connection, mapper, list(identities.values()), only=(key,), lock=False)
    return {state: stored.get(one, {}).get(key) for state, one in identities.items()}


def take_over(
    session: Session,
    connection: Connection,
    mapper: Mapper[Any],
    matched: list[tuple[State, Any]],
    *,
    certain: bool,
) -> None:
    """Give the objects the versions that the statement has made: the next ones, if ``certain``."""
    key = facts(mapper).token
    after = versions_after(connection, mapper, matched, certain=certain)
    known = watched(session)
    for state, before in matched:
        if after[state] is not None:
            moved_by_us(state, key, before, after[state])
            known.move(place_of(state), before, moved_back(state, key, before, after[state]))
    expire_with_savepoint(session, [state for state, _ in matched])  # a savepoint expires them, too
