"""Who makes the next version of a row: Python, the database, or the application.

Python's versions (``Counter``, ``Unique``) are in the statement. The database's (``Timestamp``,
``RowVersion``, any column with a default that is SQL) are known only when they are read back. The
application's (``Manual``) move when it assigns them, and not otherwise.

SQLAlchemy leaves one thing undone for the database's versions: where only the columns of a joined
table change it writes the version as it is, and what the database would do by itself at an UPDATE
(``onupdate``) does not happen, or what a trigger does is not read back. :func:`move_with_joined`
sees to both.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sqlalchemy import Column, ColumnElement, event
from sqlalchemy.orm import Mapper, PassiveFlag
from sqlalchemy.orm.base import NO_VALUE
from sqlalchemy.orm.state import InstanceState

from optilock.errors import ConfigurationError
from optilock.mapped.facts import facts
from optilock.session.watched import is_watched, stands_still
from optilock.tokens import Token
from optilock.undocumented import mark_changed

__all__ = [
    "any_changed",
    "check_post_update",
    "make_from_values",
    "move_with_joined",
    "set_expressions",
    "touch_state",
    "untouched",
]


#: In the ``info`` of an object: the attribute that is written again as it is, and its value.
_AGAIN = "optilock_written_again"


def move_with_joined(mapper: Mapper[Any], column: Column[Any]) -> None:
    """Move the version also when only columns of the other tables of ``mapper`` change.

    A watched session leaves it where they are ignored, or the row is held still (``no_bump``).
    """
    touch = facts(mapper).touch
    if len(mapper.tables) < 2 or not touch:
        return
    beside, elsewhere = _attributes(mapper, column)
    act: Callable[[InstanceState[Any]], None]
    act = functools.partial(set_expressions, expressions=touch)
    if column not in touch:
        act = functools.partial(_write_again, name=_plain(mapper, column))

    @event.listens_for(mapper, "before_update", raw=True)
    def before_update(mapper: Mapper[Any], connection: Any, state: InstanceState[Any]) -> None:
        if any_changed(state, beside) or not any_changed(state, elsewhere):
            return
        session = state.session
        if session is not None and is_watched(session):
            ignored = facts(mapper).ignored
            counts = {name for name in elsewhere if not ignored.issuperset(_columns(mapper, name))}
            if stands_still(session, state.obj()) or not any_changed(state, counts):
                return
        act(state)


def _columns(mapper: Mapper[Any], name: str) -> Iterable[Any]:
    columns: Iterable[Any] = mapper.get_property(name).columns
    return columns


def _plain(mapper: Mapper[Any], version: Column[Any]) -> str:
    """An attribute that can be written again as it is; the key cannot, the tables share it."""
    for prop in mapper.iterate_properties:
        match getattr(prop, "columns", None):
            case [Column(computed=None, primary_key=False) as column] if (
                column.table is version.table and column is not version
            ):
                return str(prop.key)
    raise ConfigurationError(
        f"{mapper.class_.__name__}: the table {version.table} has no column besides its key and"
        " xmin, so that nothing could be written for xmin to move: use RowVersion()."
    )


def _write_again(state: InstanceState[Any], name: str) -> None:
    """Let the next UPDATE write an attribute as it is."""
    if name in state.committed_state:
        return
    value = state.manager[name].impl.get(state, state.dict)
    mark_changed(state, name, NO_VALUE)
    state.info[_AGAIN] = name, value


def set_expressions(
    state: InstanceState[Any], expressions: Mapping[Column[Any], ColumnElement[Any]]
) -> None:
    """Let the next UPDATE of the object's row set these columns, without events."""
    for column, expression in expressions.items():
        name = facts(state.mapper).names[column]
        loaded = state.manager[name].impl.get(state, state.dict)  # read now if it is expired
        mark_changed(state, name, loaded)
        state.dict[name] = expression


def make_from_values(mapper: Mapper[Any], token: Token) -> None:
    """Make the version of ``mapper``'s rows from their values, when these are written.

    A watched session leaves it where the row is held still (``no_bump``).
    """
    names = {name for name in token.reads if name in mapper.columns}

    @event.listens_for(mapper, "before_insert", raw=True)
    def before_insert(mapper: Mapper[Any], connection: Any, state: InstanceState[Any]) -> None:
        _assign(state, facts(mapper).token, NO_VALUE, facts(mapper).made_from(state.dict))

    @event.listens_for(mapper, "before_update", raw=True)
    def before_update(mapper: Mapper[Any], connection: Any, state: InstanceState[Any]) -> None:
        session, key = state.session, facts(mapper).token
        if not any_changed(state, names) or (
            session is not None and is_watched(session) and stands_still(session, state.obj())
        ):
            return
        values = {name: state.manager[name].impl.get(state, state.dict) for name in names}
        made = facts(mapper).made_from(values)
        loaded = state.manager[key].impl.get(state, state.dict)
        if made != loaded:
            _assign(state, key, loaded, made)


def _assign(state: InstanceState[Any], key: str, before: Any, version: Any) -> None:
    """Let SQLAlchemy write this version: it writes an assigned one as it is."""
    if key not in state.committed_state:
        mark_changed(state, key, before)
    state.dict[key] = version


def touch_state(state: InstanceState[Any]) -> None:
    """Let the next flush move the version of a persistent object, by one step."""
    mapper = state.mapper
    token, touch = facts(mapper).token, facts(mapper).touch
    if token in state.committed_state:
        return  # touched already
    following: Any = mapper.version_id_generator
    if not following:
        if touch and mapper.version_id_col not in touch:
            _write_again(state, _plain(mapper, facts(mapper).version))
        else:
            set_expressions(state, touch)
        return
    loaded = state.manager[token].impl.get(state, state.dict)
    _assign(state, token, loaded, following(loaded))


def untouched(state: InstanceState[Any], columns: Iterable[Column[Any]]) -> None:
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


def _attributes(mapper: Mapper[Any], version: Column[Any]) -> tuple[set[str], set[str]]:
    """The attributes with a column in the version's table, and the others."""
    beside: set[str] = set()
    elsewhere: set[str] = set()
    for name, columns in (
        (p.key, p.columns) for p in mapper.iterate_properties if hasattr(p, "columns")
    ):
        tables = [column.table for column in columns if isinstance(column, Column)]
        (beside if version.table in tables else elsewhere).add(name)
    return beside, elsewhere


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


def any_changed(state: InstanceState[Any], names: set[str]) -> bool:
    """Does one of these attributes hold another value than the one that was read?"""
    return any(
        state.manager[name]
        .impl.get_history(state, state.dict, PassiveFlag.PASSIVE_NO_INITIALIZE)
        .added
        for name in names.intersection(state.committed_state)
    )
