"""How the version of a row moves: by Python, by the database, or by the application.

Python's versions (``Counter``, ``Unique``) are in the statement. The database's (``Timestamp``,
``RowVersion``, any column with a default that is SQL) are known only when they are read back. The
application's (``Manual``) move when it assigns them, and not otherwise. What is made from values
moves with them.

SQLAlchemy leaves one thing undone for the database's versions: where only the columns of a joined
table change it writes the version as it is, and what the database would do by itself at an UPDATE
(``onupdate``) does not happen, or what a trigger does is not read back. :func:`move_with_joined`
sees to both.

It does another for all of them that are no trigger's: an UPDATE by primary key sets the version
that its row names, which is the one that was read, so that ``onupdate`` does nothing
(:func:`move_by_key`).

A ``RowVersion`` moves by a trigger. Where the trigger is missing every write would pass, and every
lost update too; so each UPDATE's version is compared with the one before it, which costs nothing:
both are here. SQLite's RETURNING shows the row before the trigger changed it
(https://sqlite.org/lang_returning.html, "Limitations And Caveats"), so there the version is read
again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from sqlalchemy import Column, ColumnElement, event, select
from sqlalchemy.orm import NO_VALUE, Mapper, PassiveFlag

from optilock.dialects import database_of
from optilock.errors import ConfigurationError
from optilock.mapped import State, facts
from optilock.tokens import Token
from optilock.undocumented.mappers import compare_by_key, mark_changed
from optilock.watched.session.connections import connection_to_write
from optilock.watched.session.watched import is_watched, stands_still

#: In the ``info`` of an object: the attribute that is written again as it is, and its value.
_AGAIN = "optilock_written_again"
_BEFORE = "optilock_version_before"
#: Equal to no version.
_MISSED = object()


def move_with_joined(mapper: Mapper[Any]) -> None:
    """Move the version also when only columns of the other tables of ``mapper`` change.

    A watched session leaves it where they are ignored, or the row is held still (``no_bump``).
    """
    touch, version = facts(mapper).touch, facts(mapper).version
    if len(mapper.tables) < 2 or not touch:
        return
    columns = _columns(mapper)
    beside = {name for name, some in columns.items() if _is_in(version.table, some)}
    elsewhere = columns.keys() - beside
    act: Callable[[State], None]
    act = functools.partial(_set_expressions, expressions=touch)
    if version not in touch:
        act = functools.partial(_write_again, name=_plain(mapper))

    @event.listens_for(mapper, "before_update", raw=True)
    def before_update(mapper: Mapper[Any], connection: Any, state: State) -> None:
        if _any_changed(state, beside) or not _any_changed(state, elsewhere):
            return
        session = state.session
        if session is not None and is_watched(session):
            ignored = facts(mapper).ignored
            counts = {name for name in elsewhere if not ignored.issuperset(columns[name])}
            if stands_still(session, state.obj()) or not _any_changed(state, counts):
                return
        act(state)


#: Somebody moves the versions of rows of which only columns of joined tables are written by key.
_seen_to: ContextVar[bool] = ContextVar("optilock_joined", default=False)


def move_by_key(mapper: Mapper[Any]) -> None:
    """Let UPDATEs by primary key move a version that the database makes in the statement.

    Also those of plain sessions. Where only columns of a joined table are written by key,
    SQLAlchemy writes the version as it is, whatever it is told: a plain session is refused there.
    So is whoever writes rows by key whose version is made from their values.
    """
    known, cls = facts(mapper), mapper.class_.__name__
    ask: Callable[[], None]
    if known.by_values:
        ask = functools.partial(_refuse_values, cls)
    elif not known.by_database or known.by_itself or known.version.system:
        return
    else:
        ask = functools.partial(_refuse_joined, cls) if len(mapper.tables) > 1 else _nothing
    compare_by_key(mapper, known.token, known.version.table, ask)


def _nothing() -> None:
    pass


def _refuse_values(cls: str) -> None:
    raise ConfigurationError(
        f"The UPDATE of {cls} by primary key would leave its version, which is made from the values"
        " of the row: the next writer would overwrite them unseen. Change the objects."
    )


def _refuse_joined(cls: str) -> None:
    if not _seen_to.get():
        raise ConfigurationError(
            f"The UPDATE of {cls} by primary key was sent by a session that nobody watches: where"
            " only columns of its joined table are written, the version would stay, and the next"
            " writer would overwrite them unseen. Use optilock.watch() on the session factory, or"
            " change the objects."
        )


@contextmanager
def moving_joined() -> Iterator[None]:
    """Whoever asks moves the versions of these rows by itself."""
    before = _seen_to.set(True)
    try:
        yield
    finally:
        _seen_to.reset(before)


def _is_in(table: Any, columns: list[Any]) -> bool:
    return any(isinstance(column, Column) and column.table is table for column in columns)


def _columns(mapper: Mapper[Any]) -> dict[str, list[Any]]:
    """Attribute -> its columns, one in each of joined tables."""
    found = ((p.key, getattr(p, "columns", ())) for p in mapper.iterate_properties)
    return {name: list(some) for name, some in found if some}


def _plain(mapper: Mapper[Any]) -> str:
    """An attribute that can be written again as it is; the key cannot, the tables share it."""
    version = facts(mapper).version
    for name, columns in _columns(mapper).items():
        match columns:
            case [Column(computed=None, primary_key=False) as column] if (
                column.table is version.table and column is not version
            ):
                return name
    raise ConfigurationError(
        f"{mapper.class_.__name__}: the table {version.table} has no column besides its key and"
        " xmin, so that nothing could be written for xmin to move: use RowVersion()."
    )


def _write_again(state: State, name: str) -> None:
    """Let the next UPDATE write an attribute as it is."""
    if name not in state.committed_state:
        value = _value(state, name)
        mark_changed(state, name, NO_VALUE)
        state.info[_AGAIN] = name, value


def _set_expressions(state: State, expressions: Mapping[Column[Any], ColumnElement[Any]]) -> None:
    """Let the next UPDATE of the object's row set these columns, without events."""
    for column, expression in expressions.items():
        name = facts(state.mapper).names[column]
        mark_changed(state, name, _value(state, name))
        state.dict[name] = expression


def make_from_values(mapper: Mapper[Any], token: Token) -> None:
    """Make the version of ``mapper``'s rows from their values, when these are written.

    A watched session leaves it where the row is held still (``no_bump``).
    """
    names = {name for name in token.reads if name in mapper.columns}

    @event.listens_for(mapper, "before_insert", raw=True)
    def before_insert(mapper: Mapper[Any], connection: Any, state: State) -> None:
        _assign(state, NO_VALUE, facts(mapper).made_from(state.dict))

    @event.listens_for(mapper, "before_update", raw=True)
    def before_update(mapper: Mapper[Any], connection: Any, state: State) -> None:
        session = state.session
        still = session and is_watched(session) and stands_still(session, state.obj())
        if _any_changed(state, names) and not still:
            loaded = _value(state, facts(mapper).token)
            made = facts(mapper).made_from({name: _value(state, name) for name in names})
            if made != loaded:
                _assign(state, loaded, made)


def _assign(state: State, before: Any, version: Any) -> None:
    """Let SQLAlchemy write this version: it writes an assigned one as it is."""
    token = facts(state.mapper).token
    if token not in state.committed_state:
        mark_changed(state, token, before)
    state.dict[token] = version


def _value(state: State, name: str) -> Any:
    """The attribute's value, read now if it is expired."""
    return state.manager[name].impl.get(state, state.dict)


def touch_state(state: State) -> None:
    """Let the next flush move the version of a persistent object, by one step."""
    mapper, known = state.mapper, facts(state.mapper)
    if known.token in state.committed_state:
        return  # touched already
    following: Any = mapper.version_id_generator
    if following:
        loaded = _value(state, known.token)
        _assign(state, loaded, following(loaded))
    elif known.touch and known.version not in known.touch:
        _write_again(state, _plain(mapper))
    else:
        _set_expressions(state, known.touch)


def untouched(state: State, columns: Iterable[Column[Any]]) -> None:
    """Take back what was set for the version's sake alone: the row was not written."""
    again, value = state.info.pop(_AGAIN, (None, None))
    if again is not None and state.committed_state.get(again) is NO_VALUE:
        if state.dict.get(again) == value:
            del state.committed_state[again]
        else:
            state.committed_state[again] = value
    for column in columns:
        name = facts(state.mapper).names[column]
        if name in state.committed_state:
            state.dict[name] = state.committed_state.pop(name)


def check_post_update(mapper: Mapper[Any], cls: type[Any]) -> None:
    """Refuse a second UPDATE of a row whose version SQLAlchemy would not read back after it.

    Without the refusal the next write of the same object would conflict with its own.
    """
    for relationship in mapper.relationships:
        if not relationship.post_update:
            continue
        written = {pair[1].table for pair in relationship.synchronize_pairs}
        for row in (mapper, relationship.mapper):
            if facts(row).by_database and facts(row).table_if_any in written:
                raise ConfigurationError(
                    f"{cls.__name__}.{relationship.key} has post_update=True, which writes rows of"
                    f" {row.class_.__name__} a second time, and SQLAlchemy does not read back the"
                    " version that the database makes then. Use Counter() or Unique(), or remove"
                    " post_update=."
                )


def _any_changed(state: State, names: set[str]) -> bool:
    """Does one of these attributes hold another value than the one that was read?"""
    return any(
        state.manager[name]
        .impl.get_history(state, state.dict, PassiveFlag.PASSIVE_NO_INITIALIZE)
        .added
        for name in names.intersection(state.committed_state)
    )


# -- does it really move? -----------------------------------------------------------------------


def require_moves(mapper: Mapper[Any], token: Token) -> None:
    """Read the version of ``mapper``'s rows as the trigger leaves it; refuse one that stays."""
    key = facts(mapper).token
    if token.is_system:

        def before_insert(mapper: Mapper[Any], connection: Any, state: State) -> None:
            state.dict.pop(key, None)  # of the row that the object stood for before

        event.listen(mapper, "before_insert", before_insert, raw=True)
        return
    names = _columns(mapper).keys() - {key}

    def before_update(mapper: Mapper[Any], connection: Any, state: State) -> None:
        loaded = _value(state, key)
        state.info[_BEFORE] = state.committed_state.get(key, loaded)

    def refresh_flush(state: State, uow: Any, attributes: Iterable[str]) -> None:
        if key in attributes:
            _read_again(state, uow.session)

    def after_update(mapper: Mapper[Any], connection: Any, state: State) -> None:
        before = state.info.pop(_BEFORE, _MISSED)
        if state.dict.get(key) == before and _any_changed(state, names):
            raise not_moved(mapper)

    event.listen(mapper, "before_update", before_update, raw=True)
    event.listen(mapper, "after_update", after_update, raw=True)
    event.listen(mapper.class_, "refresh_flush", refresh_flush, raw=True)


def does_not_move(state: State) -> None:
    """The row was found to be another one than was read: nothing is written for the object."""
    state.info.pop(_BEFORE, None)


def _read_again(state: State, session: Any) -> None:
    """After an UPDATE on SQLite; an INSERT's RETURNING is right."""
    mapper, known = state.mapper, facts(state.mapper)
    connection = connection_to_write(session, mapper)
    if not database_of(connection.dialect).returns_before_triggers:
        return
    identity = mapper.identity_key_from_instance(state.obj())
    if state.key is None and identity not in session.identity_map:  # otherwise a row switch
        return
    keys = tuple(known.version.table.primary_key) or mapper.primary_key
    where = (key == state.dict[known.names[key]] for key in keys)
    statement = select(known.version).where(*where)
    state.dict[known.token] = type(connection).execute(connection, statement).scalar_one()


def not_moved(mapper: Mapper[Any]) -> ConfigurationError:
    cls, column = mapper.class_.__name__, facts(mapper).version
    return ConfigurationError(
        f"{cls}.{facts(mapper).token} did not move when a row was updated: the trigger of"
        f" {column.table}.{column.name} is missing, and lost updates would not be noticed. The"
        " transaction is rolled back. metadata.create_all() makes the trigger with the table; for"
        " a table that exists, op.create_version_trigger() of optilock.alembic does, or run the"
        " statements that optilock.mapping.triggers.trigger_ddl("
        f"{cls}.__table__, {cls}.__table__.c.{column.key}, engine.dialect).create gives."
    )
