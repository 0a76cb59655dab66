"""Rows written by primary key through SQLAlchemy's own bulk calls, in a watched session.

::

    session.execute(update(Account), [{"id": 1, "version": 3, "owner": "Ada"}])
    session.bulk_update_mappings(Account, rows)
    session.bulk_save_objects(objects)

Every row must say its version. One that has moved is a ``ConcurrencyError`` with entries, as in a
flush; SQLAlchemy stops there, so other rows may be written already: roll back, or use
:func:`~optilock.bulk_update`, which writes all rows that are in their version and reports the rest.
A version that is given for a new row is refused where SQLAlchemy would store the first one instead.
So is a class whose values are compared (``CompareValues``): these calls compare none.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sqlalchemy import inspect
from sqlalchemy.engine import Connection
from sqlalchemy.orm import Mapper, Session
from sqlalchemy.orm.attributes import instance_state
from sqlalchemy.orm.exc import StaleDataError
from sqlalchemy.orm.state import InstanceState

from optilock import events
from optilock.conditions.keys import place_of
from optilock.entry import Entry
from optilock.errors import ConcurrencyError, ConfigurationError, OptilockError
from optilock.guard.autocommit import refuse_autocommit
from optilock.guard.statements.own import note, note_added
from optilock.mapping.checks import check_tokens
from optilock.mapping.columns import same
from optilock.mapping.compared import is_guarded
from optilock.mapping.facts import facts
from optilock.rows.seen import moved_back, recall, version_seen
from optilock.rows.sides import Attempt, Values, entry_of, read_stored
from optilock.session.connections import connection_to_write, engine_to_write
from optilock.session.watched import watched
from optilock.tokens import Counter
from optilock.undocumented import take_as_stored

__all__ = [
    "counts",
    "guarded_bulk_insert",
    "guarded_bulk_save",
    "guarded_bulk_update",
    "refuse_compared",
    "refuse_first_versions",
    "update_by_key",
]

State = InstanceState[Any]
Execute = Callable[..., Any]

_MANY = "Writing rows by primary key"


def update_by_key(
    session: Session, mapper: Mapper[Any], statement: Any, rows: list[Any], send: Execute
) -> Any:
    """``session.execute(update(Model), rows)``.

    Raises:
        ConfigurationError: a row has no version, or the statement has a WHERE of its own.
        ConcurrencyError: a row has moved.
    """
    if statement.whereclause is not None:
        raise ConfigurationError(
            f"The UPDATE of {mapper.class_.__name__} by primary key has a WHERE of its own, and"
            " then SQLAlchemy cannot check the versions of the rows: leave it out, use"
            " optilock.bulk_update(), or execute an update() for each row. Nothing was sent."
        )
    _refuse_system_column(mapper)
    _require_versions(mapper, rows)
    refuse_autocommit(connection_to_write(session, mapper), _MANY)
    with _telling(session, lambda: _attempts(mapper, rows)):
        return send()


def refuse_compared(mapper: Mapper[Any], call: str) -> None:
    """Refuse to write rows by key whose values are to be compared, and would not be.

    Raises:
        ConfigurationError: the class has ``CompareValues`` among its tokens.
    """
    if facts(mapper).compares:
        name = mapper.class_.__name__
        raise ConfigurationError(
            f"{name} compares values (CompareValues), and {call} would write its rows without"
            f" comparing any: change the objects in a session, or say update({name}).where(...)"
            " with the values that were read. Nothing was sent."
        )


def _refuse_assigned(state: State) -> None:
    """SQLAlchemy would compare the version that was assigned, not the one that was read."""
    mapper = state.mapper
    if facts(mapper).by_application and facts(mapper).token in state.committed_state:
        raise ConfigurationError(
            f"The version of {mapper.class_.__name__} is the application's (Manual), and"
            " bulk_save_objects() compares the one that was assigned with the stored one, which"
            " never is the same: flush the session instead. Nothing was sent."
        )


def _require_seen(state: State) -> None:
    """An object that a commit has expired is saved in the version that was seen.

    Raises:
        ConfigurationError: nobody has seen one.
    """
    token = facts(state.mapper).token
    recall(state)
    if token and state.dict.get(token) is None:
        raise ConfigurationError(
            f"{state.class_.__name__} {tuple(state.key[1]) if state.key else ()!r} cannot be saved"
            f" by bulk_save_objects(): its {token!r} was never read, and without it another"
            " writer's change would be overwritten. Read the row first. Nothing was sent."
        )


def _refuse_system_column(mapper: Mapper[Any]) -> None:
    """SQLAlchemy would set the version that a row names, and nobody can set ``xmin``."""
    column: Any = mapper.version_id_col
    if column.system:
        raise ConfigurationError(
            f"{mapper.class_.__name__}.{facts(mapper).token} is a column of the database"
            " itself, and SQLAlchemy's UPDATE by primary key would set it: use"
            " optilock.bulk_update(). Nothing was sent."
        )


def guarded_bulk_update(original: Execute) -> Execute:
    """``bulk_update_mappings``: rows without a version are refused before anything is sent."""

    @functools.wraps(original)
    def bulk_update_mappings(self: Session, mapper: Any, mappings: Iterable[Any]) -> None:
        rows = list(mappings)
        found = inspect(mapper, raiseerr=False)
        if isinstance(found, Mapper):
            refuse_compared(found, "bulk_update_mappings()")
        if not isinstance(found, Mapper) or not facts(found).token:
            original(self, mapper, rows)
            return
        _refuse_system_column(found)
        _require_versions(found, rows)
        refuse_autocommit(connection_to_write(self, found), _MANY)
        note(self, found, {})
        with _telling(self, lambda: _attempts(found, rows)):
            original(self, mapper, rows)

    return bulk_update_mappings


def guarded_bulk_insert(original: Execute) -> Execute:
    """``bulk_insert_mappings``: SQLAlchemy gives every row its first version."""

    @functools.wraps(original)
    def bulk_insert_mappings(
        self: Session, mapper: Any, mappings: Iterable[Any], *args: Any, **options: Any
    ) -> None:
        rows = list(mappings)
        found = inspect(mapper, raiseerr=False)
        if isinstance(found, Mapper):
            refuse_first_versions(found, rows)
            if is_guarded(found):
                note_added(self, found, {})
        original(self, mapper, rows, *args, **options)

    return bulk_insert_mappings


def guarded_bulk_save(original: Execute) -> Execute:
    """``bulk_save_objects``: the objects of stored rows know the version that they have then."""

    @functools.wraps(original)
    def bulk_save_objects(
        self: Session, objects: Iterable[Any], *args: Any, **options: Any
    ) -> None:
        saved = list(objects)
        all_columns = not options.get("update_changed_only", args[1] if args[1:] else True)
        states = [instance_state(obj) for obj in saved]
        written = [state for state in states if _is_saved(state, all_columns)]
        for state in written:
            if state.key is not None:
                refuse_compared(state.mapper, "bulk_save_objects()")
                _refuse_assigned(state)
                _require_seen(state)
        for mapper in {state.mapper for state in written if facts(state.mapper).guarded}:
            refuse_autocommit(connection_to_write(self, mapper), _MANY)
        for mapper in {state.mapper: None for state in written if state.key is not None}:
            if facts(mapper).token:
                note(self, mapper, {})
        for mapper in {state.mapper: None for state in written if state.key is None}:
            if is_guarded(mapper):
                note_added(self, mapper, {})
        with _telling(self, lambda: _attempts_of(written)):
            original(self, saved, *args, **options)
        _follow(self, states)

    return bulk_save_objects


def _is_saved(state: State, all_columns: bool) -> bool:
    """Is its row written? SQLAlchemy moves a version though nothing else has changed."""
    return state.modified or all_columns or bool(facts(state.mapper).token)


def counts(mapper: Mapper[Any]) -> bool:
    """Is the version one that Python counts up?"""
    cls = mapper.class_
    return hasattr(cls, "__version_token__") and isinstance(check_tokens(cls)[0], Counter)


def _follow(session: Session, states: Iterable[State]) -> None:
    """Objects of stored rows know the versions that they have now.

    A counted one is known; one that SQLAlchemy or the database has made is read, while the row is
    still ours: later it would be another writer's.
    """
    by_mapper: dict[Mapper[Any], list[State]] = {}
    for state in states:
        if state.key is not None and facts(state.mapper).token in state.dict:
            by_mapper.setdefault(state.mapper, []).append(state)
    known = watched(session)
    for mapper, some in by_mapper.items():
        key = facts(mapper).token
        following = _versions_after(session, mapper, some, key)
        for state in some:
            before, after = state.dict[key], following[state]
            state.dict[key] = after
            known.move(place_of(state), before, moved_back(state, key, before, after))
            take_as_stored(state)


def _versions_after(
    session: Session, mapper: Mapper[Any], states: list[State], key: str
) -> dict[State, Any]:
    following: Any = mapper.version_id_generator
    if facts(mapper).by_application:
        return {state: state.dict[key] for state in states}
    if counts(mapper):
        return {state: following(state.dict[key]) for state in states}
    identities = {state: tuple(state.key[1]) for state in states if state.key is not None}
    connection = connection_to_write(session, mapper)
    stored = read_stored(connection, mapper, list(identities.values()), only=(key,), lock=False)
    return {state: stored[identity][key] for state, identity in identities.items()}


# -- what is refused ------------------------------------------------------------------------------


def _require_versions(mapper: Mapper[Any], rows: list[Any]) -> None:
    key = facts(mapper).token
    names = facts(mapper).keys
    for number, row in enumerate(rows):
        if isinstance(row, Mapping) and row.get(key) is None:
            shown = ", ".join(f"{name}={row[name]!r}" for name in names if name in row)
            raise ConfigurationError(
                f"Row {number} ({shown}) of an UPDATE of {mapper.class_.__name__} by primary key"
                f" has no {key!r}: the version that was read says which row is meant, and without"
                f" it another writer's change would be overwritten. Add it to every row,"
                f" {{{names[0]!r}: ..., {key!r}: ..., ...}}. Nothing was sent."
            )


def refuse_first_versions(mapper: Mapper[Any], rows: Iterable[Any]) -> None:
    """Refuse new rows that say another version than the first one, which SQLAlchemy would store.

    Raises:
        ConfigurationError: there is such a row.
    """
    key, following = facts(mapper).token, mapper.version_id_generator
    if not key or not callable(following) or not hasattr(mapper.class_, "__version_token__"):
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


# -- rows that have moved -------------------------------------------------------------------------


@contextmanager
def _telling(session: Session, attempts: Callable[[], list[Attempt]]) -> Iterator[None]:
    """Tell of stale rows as a flush does, with entries."""
    try:
        yield
    except StaleDataError as error:
        if isinstance(error, OptilockError):
            raise
        found = _entries(session, attempts())
        if not found:
            raise  # nobody was first: a trigger, or a driver that does not count
        events.emit(lambda: events.Conflict(found))
        conflict = ConcurrencyError(found)
        conflict.args = (f"{error}\n{conflict.args[0]}",)
        if session.is_active:
            conflict.add_note(
                "optilock: other rows of the same call may be written in this transaction, which is"
                " alive: roll back, or send them with optilock.bulk_update(), which says which."
            )
        raise conflict from error


def _attempts(mapper: Mapper[Any], rows: Iterable[Any]) -> list[Attempt]:
    """Our side, as the rows say it. What their author had read besides is not known."""
    token = facts(mapper).token
    keys, known = facts(mapper).keys, facts(mapper).columns
    found = []
    for row in rows:
        if not isinstance(row, Mapping) or any(name not in row for name in keys):
            continue
        original = {name: row[name] for name in (*keys, token)}
        changes = {n: v for n, v in row.items() if n in known and n not in original}
        if facts(mapper).by_application:
            changes.pop(token, None)
        identity = tuple(row[name] for name in keys)
        current = {**original, **changes}
        found.append(Attempt(mapper, identity, "update", original, current, changes))
    return found


def _attempts_of(states: Iterable[State]) -> list[Attempt]:
    """Those of objects in the session have lost their edits by now: it is rolled back."""
    found = []
    for state in states:
        token = facts(state.mapper).token
        if state.key is None or not token:
            continue
        keys = facts(state.mapper).keys
        row = {name: state.dict[name] for name in state.committed_state if name in state.dict}
        row.update(zip(keys, state.key[1], strict=True))
        row[token] = version_seen(state, token)
        found += _attempts(state.mapper, [row])
    return found


def _entries(session: Session, attempts: list[Attempt]) -> tuple[Entry[Any], ...]:
    """The rows that are not as they were read. What this call has written itself is left out."""
    found: list[Entry[Any]] = []
    unsure: list[Entry[Any]] = []
    by_mapper: dict[Mapper[Any], list[Attempt]] = {}
    for attempt in attempts:
        by_mapper.setdefault(attempt.mapper, []).append(attempt)
    for mapper, some in by_mapper.items():
        token = facts(mapper).token
        with _connection(session, mapper) as connection:
            stored = read_stored(connection, mapper, [attempt.identity for attempt in some])
        for attempt in some:
            row = stored.get(attempt.identity)
            if row is not None and row[token] == attempt.original[token]:
                continue
            mine = session.is_active and row is not None and _is_what_we_wanted(attempt, row)
            (unsure if mine else found).append(entry_of(attempt, row))
    return tuple(found or unsure)


def _is_what_we_wanted(attempt: Attempt, stored: Values) -> bool:
    columns = facts(attempt.mapper).columns
    return all(
        same(columns[name], value, stored[name])
        for name, value in attempt.changes.items()
        if name in stored
    )


@contextmanager
def _connection(session: Session, mapper: Mapper[Any]) -> Iterator[Connection]:
    """The session's own; also after SQLAlchemy has rolled back and waits for ``rollback()``."""
    if session.is_active:
        yield connection_to_write(session, mapper)
        return
    engine = engine_to_write(session, mapper)
    held = next(c for c in watched(session).connections if c.engine is engine and not c.closed)
    inside = held.in_transaction()
    try:
        yield held
    finally:
        if not inside:
            held.rollback()
