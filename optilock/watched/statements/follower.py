"""Objects of a session that follow its own statements.

::

    session.execute(update(Account).where(Account.owner == "Ada").values(balance=0))

A statement moves the versions of the rows that it changes. :func:`objects_follow` is the one way in
which the session's objects follow it, however it is sent. Before the statement their rows are
locked and read, with its own WHERE. Afterwards these rows are read again. An object that was as new
as its row gets the version and the values that the statement has made; SQLAlchemy's own update of
objects is turned off. An older object is not changed, and conflicts later. Where the session holds
no object of these rows nothing is read. For a statement that names one row by its key, only this
row is read.

Rows that were promised (``expect``, ``verify``) are locked with them. Those that the statement
found in the promised version are ours from then on, as rows that a flush has written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from sqlalchemy import Connection, Delete, Update
from sqlalchemy.orm import NO_VALUE, Mapper, Session
from sqlalchemy.orm.attributes import instance_state

from optilock.mapped import Identity, Place, State, facts
from optilock.mapping.original_values import (
    all_as_read,
    class_comparing,
    compared_names,
    values_moved,
)
from optilock.mapping.tables import owner_of
from optilock.undocumented.flushes import expire_with_savepoint, note_deleted_rows
from optilock.watched.rows.entries import equal_to_stored
from optilock.watched.rows.seen import follow_move, undo_of_move, version_seen
from optilock.watched.rows.stored import Values, read_stored
from optilock.watched.session.record import SessionRecord, session_record
from optilock.watched.session.values import Promise
from optilock.watched.statements.call import rows_found, single_key_of
from optilock.watched.statements.rollback_effects import (
    note_statement,
    objects_of,
)


class Running(Protocol):
    """The running flush, as far as a statement sent during it needs it."""

    uow: Any

    def skip(self, states: Iterable[State]) -> None:
        """Write nothing for these objects any more."""

    def find(self, mapper: Mapper[Any], identity: Identity) -> State | None:
        """Return the object of this flush with that key."""

    def states_of(self, root: Mapper[Any]) -> Mapping[Identity, State]:
        """Return the objects of this flush by the keys of their rows, of one hierarchy."""

    def is_delete(self, state: State) -> bool:
        """Return whether it deletes the object."""


def class_in_table(table: Any) -> Mapper[Any] | None:
    """Return the class whose rows are in the table, if their versions, or values, are compared."""
    return owner_of(table) or class_comparing(table)


@contextmanager
def objects_follow(
    session: Session,
    connection: Connection,
    statement: Update | Delete,
    params: Any,
    *,
    mapper: Mapper[Any] | None = None,
    flush: Running | None = None,
    held: bool = True,
) -> Iterator[None]:
    """Bring the session's objects of its rows up to date with the statement that is sent inside.

    Args:
        mapper: the class of the rows; without it, that of the table.
        flush: the running flush, if the statement is sent during one.
        held: whether objects follow; if not, promises about the rows are kept all the same.
    """
    mapper = mapper or class_in_table(statement.table)
    if mapper is None:
        yield
        return
    identity = single_key_of(mapper, statement, params)
    promised = _promised_rows(session, mapper)
    objects = _objects_concerned(session, mapper, identity, flush) if held else {}
    moves = isinstance(statement, Update)
    if promised or (moves and identity is None):
        note_statement(session, mapper)
    elif moves and identity is not None and not objects:
        session_record(session).move((facts(mapper).root, identity), None)
    wanted = {*objects, *promised} if identity is None else {identity} & {*objects, *promised}
    found = _lock_found(connection, mapper, statement, params, wanted)
    _keep_promises(session, mapper, promised, found)
    as_new = _objects_as_new(session, objects, found)
    yield
    if as_new and moves:
        _follow(session, connection, as_new, found)
    elif as_new:
        _follow_delete(session, connection, as_new, flush)


@contextmanager
def objects_follow_rows(
    session: Session,
    connection: Connection,
    mapper: Mapper[Any],
    rows: Iterable[Mapping[str, Any]],
    objects: Mapping[Identity, State] | None = None,
) -> Iterator[None]:
    """Bring objects of rows by key up to date: the write compares the versions that they name.

    A row that has moved raises, so no row is locked before. ``objects`` are those that follow;
    without it, all of the session.
    """
    token, keys = facts(mapper).token, facts(mapper).keys
    found: dict[Identity, Values] = {}
    for row in rows:
        if isinstance(row, Mapping):  # SQLAlchemy raises for others
            found.setdefault(tuple(row.get(name) for name in keys), {token: row[token]})
    note_statement(session, mapper)
    if objects is None:
        identities = found if session.identity_map else ()
        some = [_objects_concerned(session, mapper, one, None) for one in identities]
        objects = {identity: state for held in some for identity, state in held.items()}
    as_new = _objects_as_new(session, objects, found)
    yield
    _keep_promises(session, mapper, _promised_rows(session, mapper), found)
    if as_new:
        _follow(session, connection, as_new, found)


def _promised_rows(session: Session, mapper: Mapper[Any]) -> dict[Any, Promise]:
    """Return the transaction's promises about rows of the class, by key."""
    promises = session_record(session).promises
    if not promises:
        return {}
    promises.in_transaction(session.get_transaction())
    base = facts(mapper).root
    return {identity: promise for (of, identity), promise in promises.items() if of is base}


def _keep_promises(
    session: Session,
    mapper: Mapper[Any],
    promised: Mapping[Any, Promise],
    found: Mapping[Identity, Values],
) -> None:
    """Count rows that the statement moves in the promised version as ours from here on."""
    token = facts(mapper).token
    for identity, promise in promised.items() if token else ():
        if identity in found and found[identity][token] == promise.version:
            session_record(session).stated[-1].rows.add((facts(promise.mapper).root, identity))


def _objects_as_new(
    session: Session, held: Mapping[Identity, State], found: Mapping[Identity, Values]
) -> dict[Identity, State]:
    """Return the objects that are as new as their rows."""
    record = session_record(session)
    return {
        key: held[key]
        for key, row in found.items()
        if key in held and _is_as_new(record, held[key], row)
    }


# -- before it is sent -----------------------------------------------------------------------------


def _objects_concerned(
    session: Session, mapper: Mapper[Any], identity: Identity | None, flush: Running | None
) -> dict[Identity, State]:
    """Return the objects of the session that the statement may concern, by their keys."""
    if identity is not None:
        obj = session.identity_map.get(mapper.identity_key_from_primary_key(identity))
        state = None if obj is None else instance_state(obj)
        if state is None and flush is not None:
            state = flush.find(mapper, identity)
        return {} if state is None else {identity: state}
    held = objects_of(session, mapper)
    if flush is not None:
        held |= flush.states_of(facts(mapper).root)
    return held


def _lock_found(
    connection: Connection,
    mapper: Mapper[Any],
    statement: Update | Delete,
    params: Any,
    wanted: Iterable[Identity],
) -> dict[Identity, Values]:
    """Lock the rows that it will find, and return the values that show how new an object is."""
    if not wanted:
        return {}
    token, table = facts(mapper).token, facts(mapper).table
    names = compared_names(mapper, changed=(), deleting=True)
    judged = [*([token] if token else ()), *names]
    keys, looks = (
        [getattr(mapper.class_, n) for n in some] for some in (facts(mapper).keys, judged)
    )
    found = rows_found(connection, statement, params, table, keys, looks, wanted)
    return {key: dict(zip(judged, row, strict=True)) for key, row in found.items()}


def _is_as_new(record: SessionRecord, state: State, row: Values) -> bool:
    class_facts = facts(state.mapper)
    token = class_facts.token
    if token and not _holds_version(record, state, token, row[token]):
        return False
    if not class_facts.compares:
        return True
    read = all_as_read(state, [name for name in row if name != token])
    return bool(read) and all(class_facts.same(name, one, row[name]) for name, one in read.items())


def _holds_version(record: SessionRecord, state: State, token: str, version: Any) -> bool:
    """Return whether the object was read in that version, or this transaction has written it."""
    if version_seen(state, token) == version:
        return True
    return (  # SQLAlchemy has written it, and not yet marked the object clean
        token in state.committed_state
        and state.dict.get(token) == version
        and record.has_flushed(_place(state))
    )


def _place(state: State) -> Place:
    key = state.key or state.mapper.identity_key_from_instance(state.obj())
    return facts(state.mapper).root, tuple(key[1])


# -- afterwards ------------------------------------------------------------------------------------


def _follow(
    session: Session,
    connection: Connection,
    states: Mapping[Identity, State],
    before: Mapping[Identity, Values],
) -> None:
    """Give the objects the values that are stored now."""
    by_mapper: dict[Mapper[Any], dict[Identity, State]] = {}
    for key, state in states.items():
        by_mapper.setdefault(state.mapper, {})[key] = state
    for mapper, some in by_mapper.items():
        token = facts(mapper).token
        loaded = {n for n in facts(mapper).columns if any(n in s.dict for s in some.values())}
        judged = compared_names(mapper, changed=(), deleting=True)
        names = tuple({*loaded, *judged, *([token] if token else ())})
        after = read_stored(connection, mapper, list(some), only=names, lock=False)
        for key, state in some.items():
            if key in after:
                _take_values(session_record(session), state, before[key], after[key])
    expire_with_savepoint(session, [state for state in states.values() if state.key])


def _take_values(record: SessionRecord, state: State, before: Values, after: Values) -> None:
    class_facts = facts(state.mapper)
    token = class_facts.token
    if token and before[token] != after[token]:
        back = undo_of_move(state, token, before[token], after[token])
        record.move(_place(state), before[token], back)
        _take_version(state, token, before[token], after[token])
    values_moved(state, after)
    values = {
        name: value
        for name, value in after.items()
        if name != token
        and name in state.dict
        and name not in state.committed_state
        and not class_facts.same(name, state.dict[name], value)
    }
    if values:
        equal_to_stored(state, values)


def _take_version(state: State, token: str, before: Any, after: Any) -> None:
    if state.committed_state.get(token, NO_VALUE) == before:  # touched, and not yet written
        state.committed_state[token] = after
        following: Any = state.mapper.version_id_generator
        if following:
            state.dict[token] = following(after)
    elif token in state.committed_state:  # written, and not yet marked clean
        state.dict[token] = after
    else:
        follow_move(state, token, before, after)


def _follow_delete(
    session: Session,
    connection: Connection,
    states: Mapping[Identity, State],
    flush: Running | None,
) -> None:
    """Forget objects whose rows are gone: nothing is left to write, or to delete."""
    mapper = facts(next(iter(states.values())).mapper).root
    key = (facts(mapper).keys[0],)
    left = read_stored(connection, mapper, list(states), only=key, lock=False)
    gone = [state for identity, state in states.items() if identity not in left]
    if flush is None:
        note_deleted_rows(session, gone)
        return
    parts = flush.uow.states if flush.uow is not None else {}
    # an edit of it is not dropped without a word: its UPDATE will miss the row
    note_deleted_rows(
        session, [state for state in gone if state not in parts and not state.modified]
    )
    flush.skip(state for state in gone if flush.is_delete(state))
