"""Flushes in which nothing but columns of stored rows has changed: they need no plan.

SQLAlchemy plans every flush: which classes go first, which relationships move keys from one row to
another, what was inserted, moved and deleted. Where there are only changed columns there is nothing
to plan, and for each row it asks the same of the mapping again. That is most of what a flush costs
before its rows are sent.

So the guard works out what has changed, and sends SQLAlchemy's own statement, in the order in which
SQLAlchemy would. All that follows, from the connection to the answer, is the same. Where nobody but
the guard listens to flushes, SQLAlchemy's flush is not begun at all; otherwise the guard answers
for its plan. Whatever is not as simple is left to SQLAlchemy, for the whole flush: a new or a
deleted object, a relationship or a key that has changed, or a column that others refer to, an
expression, a class with listeners of its rows, with values that come from the database, in a
hierarchy, with a key that is not its table's, or with a column under two attributes. So is an error
while it looks at what has changed: SQLAlchemy meets it again, and ends the transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple
from weakref import ref

import sqlalchemy
from sqlalchemy import Column, Table, Update
from sqlalchemy.orm import Mapper, Session, UOWTransaction
from sqlalchemy.orm.exc import StaleDataError

from optilock.errors import ConfigurationError
from optilock.mapped import State, facts, is_expression
from optilock.mapping.compared import changed_names
from optilock.undocumented.flushes import (
    carry_out,
    changed_alone,
    columns_others_follow,
    comparison_of,
    connection_of_flush,
    followers_of,
    give_up,
    has_orphans,
    listeners_of_rows,
    listeners_of_values,
    order_of_class,
    order_of_rows,
    update_sent_for,
)
from optilock.undocumented.mappers import expire_attributes
from optilock.watched.guard.releases import has_own_flush, installed
from optilock.watched.session.order import nobody_listens
from optilock.watched.writes.shapes import compared_columns, is_shown

__all__ = ["answer_for", "flush_columns"]

#: Where a class keeps how its rows are written.
_WAY = "columns only"
#: In a mapper: nothing is to be seen for the first time.
_SEEN = "_optilock_seen_in_flush"
#: Values that are no expressions.
_VALUES = frozenset({int, str, float, bool, bytes, type(None)})

#: An object to write, and its new values by their parameters.
_Row = tuple[State, dict[str, Any]]
#: What the guard does before a flush, and after the rows were sent: which were not just written?
Before = Callable[[Session, UOWTransaction, None], None]
After = Callable[[Session, UOWTransaction], Collection[State]]


class _Way(NamedTuple):
    """How changed columns of a class are written."""

    statement: Update
    options: Mapping[str, Any]
    #: Attribute -> the parameter of its column, and what compares two of its values.
    columns: Mapping[str, tuple[str, Any]]
    #: The version: its attribute, the parameter that finds it, and the one that sets it.
    version: tuple[str, str, str]
    #: Attribute and parameter of each part of the key.
    keys: tuple[tuple[str, str], ...]
    #: Column -> attribute; columns that belong to no attribute are not there.
    names: Mapping[Any, str]
    #: Has the guard seen no statement of the class yet?
    is_first: bool
    #: What follows rows of the class in others, and how many there were: more may come any time.
    followers: Collection[Any]
    known_followers: int


_Changed = list[tuple[Mapper[Any], _Way, list[_Row]]]


def flush_columns(session: Session, before: Before, after: After) -> bool:
    """Flush the session; ``False``: nothing was done, and SQLAlchemy is to do it."""
    if not (installed.own_flush and has_own_flush(session)):
        return False
    states = changed_alone(session)
    if not states:
        return states is not None
    if not nobody_listens(session):
        return False
    by_mapper: dict[Mapper[Any], list[State]] = {}
    for state in states:
        by_mapper.setdefault(state.manager.mapper, []).append(state)
    if any(has_orphans(*of_class) for of_class in by_mapper.items()):
        return False
    try:
        changed = _changed(by_mapper)
    except BaseException:  # Ctrl-C, or a task that is cancelled: not to be met again
        give_up(session)
        raise
    if changed is None:
        return False
    carry_out(session, by_mapper, before, partial(_write_all, changed), after)
    return True


def answer_for(uow: UOWTransaction) -> None:
    """Let the flush be written without a plan, if it turns out to need none."""
    setattr(uow, "execute", partial(_execute, ref(uow)))  # noqa: B010


def _execute(running: ref[UOWTransaction]) -> None:
    uow = running()
    assert uow is not None
    deletes = any(other != (False, False) for other in uow.states.values())
    own = not deletes and installed.own_flush and has_own_flush(uow.session)
    changed = _changed(uow.mappers) if own else None
    if changed is None:
        first: list[Mapper[Any]] = []
        for mapper in uow.mappers:  # no call of Python, for every flush that is planned
            if _SEEN not in mapper.__dict__:
                first.append(mapper)
        versions = _versions_of(uow, first) if first else None
        UOWTransaction.execute(uow)
        if versions:
            _refuse_unshown(uow, versions)
    else:
        _write_all(changed, uow)


# -- the first flush of a class: does the guard see its statements? --------------------------------


def _versions_of(uow: UOWTransaction, mappers: Iterable[Mapper[Any]]) -> dict[State, Any]:
    """The stored objects of which the guard has seen no statement yet, and their versions."""
    found = {}
    for mapper in mappers:
        if is_shown(mapper) or not isinstance(facts(mapper).version, Column):
            mapper.__dict__[_SEEN] = True
            continue
        token = facts(mapper).token
        found.update({s: s.dict.get(token) for s in uow.mappers[mapper] if s.key is not None})
    return found


def _refuse_unshown(uow: UOWTransaction, versions: Mapping[State, Any]) -> None:
    """Refuse a flush whose rows were written without the guard.

    Raises:
        ConfigurationError: SQLAlchemy sends its statements in a way that the guard does not know.
    """
    for state, before in versions.items():
        mapper, (is_delete, listed) = state.mapper, uow.states.get(state, (False, True))
        moved = bool(changed_names(state)) and state.dict.get(facts(mapper).token) != before
        if not listed and (is_delete or moved) and not is_shown(mapper):
            raise _unshown(mapper)


def _unshown(mapper: Mapper[Any]) -> ConfigurationError:
    return ConfigurationError(
        f"SQLAlchemy {sqlalchemy.__version__} writes rows of {mapper.class_.__name__} in a way that"
        " optilock does not know, so no conflict of theirs would be noticed: install a release of"
        " SQLAlchemy that this release of optilock was tried with, or a newer optilock. The"
        " transaction is rolled back."
    )


# -- what has changed ------------------------------------------------------------------------------


def _changed(by_mapper: Mapping[Mapper[Any], Collection[State]]) -> _Changed | None:
    """The rows of each class, in SQLAlchemy's order; ``None``: there is something to plan."""
    found = []
    try:
        for mapper, states in by_mapper.items():
            way = _way_of(mapper)
            if way is None:
                return None
            if len(states) > 1:
                states = sorted(states, key=order_of_rows(mapper))
            rows: list[_Row] = []
            for state in states:
                changes = _changes(way, state)
                if changes is None:
                    return None
                if changes:
                    rows.append((state, changes))
            found.append((mapper, way, rows))
    except Exception:  # SQLAlchemy meets it as well, and says so
        return None
    if len(found) > 1:
        if any(mapper.relationships for mapper, _, _ in found):
            return None  # they may say which class goes first
        found.sort(key=lambda one: order_of_class(one[0]))
    return found


def _changes(way: _Way, state: State) -> dict[str, Any] | None:
    """The new values and the key; ``None``: something else has changed, or is not known."""
    values, columns = state.dict, way.columns
    if state.key is None or values.get(way.version[0]) is None:
        return None
    changes = {}
    for name, before in state.committed_state.items():
        if name not in columns:
            return None
        value = values[name]
        if type(value) not in _VALUES and is_expression(value):
            return None
        parameter, is_same = columns[name]
        if is_same(value, before) is not True:
            changes[parameter] = value
    if not changes:  # SQLAlchemy reads a key that is not there
        return changes if all(name in values for name, _ in way.keys) else None
    for name, parameter in way.keys:
        if name not in values:
            return None
        changes[parameter] = values[name]
    return changes


def _way_of(mapper: Mapper[Any]) -> _Way | None:
    """How its rows are written; ``None`` where there is more to do, or for the first time."""
    shapes = facts(mapper).shapes
    if _WAY not in shapes:
        if not _is_simple(mapper):
            shapes[_WAY] = None
        else:
            sent = update_sent_for(mapper)
            if sent is None:
                return None
            made = _made(mapper, *sent)
            if made.is_first:  # made once more when it was seen
                return None if any(listeners_of_rows(mapper)) else made
            shapes[_WAY] = made
    way: _Way | None = shapes[_WAY]
    if way is None or any(listeners_of_rows(mapper)):
        return None
    if len(way.followers) != way.known_followers:
        del shapes[_WAY]
        return None
    return way


def _is_simple(mapper: Mapper[Any]) -> bool:
    """Is there one table, whose every value Python knows before it is written?"""
    table, version = mapper.persist_selectable, facts(mapper).version
    return (
        isinstance(table, Table)
        and isinstance(version, Column)
        and callable(mapper.version_id_generator)
        and not facts(mapper).is_read_back
        and facts(mapper).is_alone
        and mapper.polymorphic_on is None
        and mapper.batch
        and mapper.eager_defaults is not True
        and {*mapper.primary_key} == {*table.primary_key}
        and all(other.mapper is not mapper for other in mapper.relationships)
        and all(
            len(attribute.columns) == 1
            and attribute.columns[0] in table.columns.values()
            and facts(mapper).names[attribute.columns[0]] == attribute.key
            for attribute in mapper.column_attrs
        )
    )


def _made(mapper: Mapper[Any], statement: Update, cache: Any) -> _Way:
    known = facts(mapper)
    parameters: Mapping[Any, str] = compared_columns(statement) or {}
    version, fixed = known.version, {known.version, *mapper.primary_key}
    fixed |= columns_others_follow(mapper)
    return _Way(
        statement,
        {"compiled_cache": cache},
        {
            name: (column.key, comparison_of(mapper, name))
            for name, column in known.columns.items()
            if column not in fixed
        },
        (known.token, parameters[version], version.key),
        tuple((known.names[key], parameters[key]) for key in mapper.primary_key),
        {column: name for name, column in known.columns.items()},
        not is_shown(mapper),
        followers_of(mapper),
        len(followers_of(mapper)),
    )


# -- and how it is written -------------------------------------------------------------------------


def _write_all(changed: _Changed, uow: UOWTransaction) -> None:
    for mapper, way, rows in changed:
        _write(uow, mapper, way, rows)


def _write(uow: UOWTransaction, mapper: Mapper[Any], way: _Way, rows: list[_Row]) -> None:
    statement, options, (token, expected, new) = way.statement, way.options, way.version
    make_next: Any = mapper.version_id_generator
    send, hear = connection_of_flush(uow, mapper).execute, listeners_of_values(mapper)
    for state, params in rows:
        values = state.dict
        params[expected] = before = values[token]
        params[new] = make_next(before)
        result: Any = send(statement, params, execution_options=options)
        if not result.rowcount:  # nobody has answered for the row
            raise StaleDataError(
                f"UPDATE statement on table '{statement.table.description}' expected to"
                " update 1 row(s); 0 were matched."
            )
        context = result.context
        compiled, (written, *_) = context.compiled, context.compiled_parameters
        if new in written:  # not where the version stays
            values[token] = written[new]
        if hear or compiled.prefetch or compiled.postfetch:
            filled_in = _fill_in(way, state, compiled, written)
            if hear and filled_in:
                hear(state, uow, filled_in)
            if compiled.postfetch:  # what the database has made is read later
                made = [way.names[c] for c in compiled.postfetch if c in way.names]
                expire_attributes(state, made)
    if way.is_first and rows and not is_shown(mapper):
        raise _unshown(mapper)


def _fill_in(way: _Way, state: State, compiled: Any, written: Mapping[str, Any]) -> list[str]:
    """What Python has made of columns at the write."""
    filled_in = []
    for column in compiled.prefetch:
        if column in way.names and column.key in written:
            name = way.names[column]
            filled_in.append(name)
            state.dict[name] = written[column.key]
            state.committed_state.pop(name, None)
    token, _, new = way.version
    return [*filled_in, token] if new in written else filled_in
