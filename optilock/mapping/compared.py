"""Which values of an object are compared when it is written, and what they were.

The mapping's half of :class:`~optilock.tokens.compare_values.CompareValues`. :func:`compare` is
told of each class that has the token; :func:`values_read` tells, for one object that is to be
written, the attributes that must be stored as they were read.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

from sqlalchemy import Connection, event
from sqlalchemy.orm import NO_VALUE, Mapper, QueryContext
from sqlalchemy.orm.attributes import instance_state

from optilock.errors import ConfigurationError
from optilock.mapped import Facts, State, facts, is_expression, there_are
from optilock.mapping.checks import column_named
from optilock.mapping.originals import original_of
from optilock.tokens import CompareValues
from optilock.undocumented.mappers import left_out
from optilock.watched.session.watched import is_watched

Values = dict[str, Any]

_SEEN = "_optilock_values"
_WRITTEN = "_optilock_written"
#: Kept where nobody knows: compared by identity.
_UNKNOWN: Values = {}
#: The classes whose values are compared.
_mappers: WeakSet[Mapper[Any]] = WeakSet()


def any_compared() -> bool:
    """Is there any class whose values are compared?"""
    return there_are.compared


def comparing(table: Any) -> Mapper[Any] | None:
    """A class that compares values, and whose rows are in ``table``."""
    # Equal, not the same: a statement of a class carries a copy of its table, with annotations.
    return next((mapper for mapper in _mappers if mapper.local_table == table), None)


def compare(mapper: Mapper[Any], cls: type[Any], rule: CompareValues) -> None:
    """From here on values of ``cls`` are compared; a session that would not do so is refused."""
    for name in rule.names:
        _check_name(mapper, cls, name)
    _mappers.add(mapper)
    there_are.compared = True
    event.listen(cls, "refresh", _read_again, raw=True)
    if mapper.version_id_col is None:
        event.listen(cls, "before_update", _refuse_unwatched)
        event.listen(cls, "before_delete", _refuse_unwatched)


def compared_names(
    mapper: Mapper[Any], *, changed: Collection[str], deleting: bool
) -> Collection[str]:
    """The attributes that a write of ``changed`` ones compares.

    What belongs together with a changed one is compared like it.
    """
    known = facts(mapper)
    if known.rule is not None and known.rule.which == "changed" and not deleting:
        groups = [group for group in known.together if not group.isdisjoint(changed)]
        return known.comparable.intersection(set(changed).union(*groups) if groups else changed)
    return known.comparable


def values_read(state: State, *, deleting: bool) -> Values:
    """Attribute -> value as it was read, for all that the write of ``state`` compares.

    Raises:
        ConfigurationError: a value that must be compared was never read.
    """
    mapper = state.mapper
    rule = facts(mapper).rule
    if rule is None:
        return {}
    changed = changed_names(state)
    found: Values = {}
    for name in compared_names(mapper, changed=changed, deleting=deleting):
        value = as_read(state, name)
        if value is not NO_VALUE:
            found[name] = value
        elif rule.which == "named" or name in changed or values_are_unknown(state):
            raise _never_read(state, name)
    return found


def remember_values(state: State) -> None:
    """What the object has read will be expired, or some of it.

    An edit that comes before the row is read again is compared with this.
    """
    known = state.__dict__.get(_SEEN)
    if known is _UNKNOWN:
        return
    seen: Values = {}
    for name in facts(state.mapper).columns:
        value = _loaded(state, name)
        if value is not NO_VALUE:
            seen[name] = copy.deepcopy(value)
    state.__dict__[_SEEN] = {**seen, **(known or {})}


def remembered_values(state: State) -> Values | None:
    """What the author of the expired object had read, if anything was remembered of it."""
    return state.__dict__.get(_SEEN)


def values_seen(state: State, values: Values) -> None:
    """The author of the object has seen these, whatever was read since."""
    state.__dict__[_SEEN] = values


@contextmanager
def values_in_mind(state: State) -> Iterator[None]:
    """What is read meanwhile is not what the author of the delete has seen."""
    seen = state.__dict__.get(_SEEN)
    yield
    if seen is not None:
        state.__dict__[_SEEN] = seen


def values_unknown(state: State) -> None:
    """What the object holds was never stored: its row has to be read before it is edited."""
    state.__dict__[_SEEN] = _UNKNOWN


def forget_values(state: State) -> None:
    """What was remembered counts no more."""
    state.__dict__.pop(_SEEN, None)


def values_written(state: State) -> None:
    """The row was written: it is what the object holds, as far as its columns can keep that."""
    forget_values(state)
    state.__dict__[_WRITTEN] = True


def nulls_stored(state: State) -> None:
    """A new row was inserted: what nobody has set, and no default fills, is NULL."""
    for name, column in facts(state.mapper).columns.items():
        made = (column.default, column.server_default, column.computed, column.identity)
        if name not in state.dict and not any(one is not None for one in made):
            state.dict[name] = None


def written_by_us(state: State) -> bool:
    """Has a flush written the object, so that its values may be finer than what is stored?"""
    return _WRITTEN in state.__dict__


def values_moved(state: State, values: Values) -> None:
    """A statement of this session has stored ``values``: they count as read."""
    seen = state.__dict__.get(_SEEN)
    if seen:
        seen.update((name, value) for name, value in values.items() if name in seen)


def as_read(state: State, name: str) -> Any:
    """The attribute as its author saw it, without reading anything; ``NO_VALUE`` if never."""
    seen = state.__dict__.get(_SEEN)
    if seen is not None:
        return seen.get(name, NO_VALUE)
    return _loaded(state, name)


def _loaded(state: State, name: str) -> Any:
    value = state.committed_state.get(name, state.dict.get(name, NO_VALUE))
    return original_of(state, name, value)


def _read_again(state: State, context: Any, attrs: Collection[str] | None) -> None:
    """The author of later edits has seen this; the author of earlier ones has not."""
    if attrs is None and isinstance(context, QueryContext):
        for name in left_out(state, context):
            del state.dict[name]  # deferred: it may be a value of an edit that the query drops
    if _SEEN not in state.__dict__:
        return
    edited = any(name in state.mapper.column_attrs for name in state.committed_state)
    session = state.session
    doomed = session is not None and session.deleted and state.obj() in session.deleted
    if not edited and not doomed:
        forget_values(state)


def changed_names(state: State) -> set[str]:
    """Column attributes that hold another value than the one that was read."""
    known = facts(state.mapper)
    return {
        name
        for name in state.committed_state
        if name in known.columns and name in state.dict and not _unchanged(known, state, name)
    }


def _unchanged(known: Facts, state: State, name: str) -> bool:
    now, before = state.dict[name], as_read(state, name)
    return before is not NO_VALUE and not is_expression(now) and known.same(name, now, before)


def values_are_unknown(state: State) -> bool:
    """Was what the object holds never stored?"""
    return state.__dict__.get(_SEEN) is _UNKNOWN


def _check_name(mapper: Mapper[Any], cls: type[Any], name: str) -> None:
    what = f"{cls.__name__}.__version_token__ compares {name!r}, which is"
    column_named(mapper, name, what)
    if name in cls.__version_ignore__:
        raise ConfigurationError(
            f"{what} in __version_ignore__ as well: a column is either compared or ignored."
            " Remove it from one of them."
        )
    if getattr(mapper.get_property(name), "deferred", False):
        raise ConfigurationError(
            f"{what} deferred: a value that is not loaded with its row cannot be compared. Remove"
            " deferred=True, or compare another column."
        )


def _never_read(state: State, name: str) -> ConfigurationError:
    cls, key = state.class_.__name__, state.key[1] if state.key else ()
    return ConfigurationError(
        f"{cls} {tuple(key)!r} cannot be written: its {name!r} was never read, so there is nothing"
        " to compare the stored value with. Read the row before you change it (a commit expires"
        " what was read: session.refresh(), or expire_on_commit=False). Nothing was written."
    )


def _refuse_unwatched(mapper: Mapper[Any], connection: Connection, target: Any) -> None:
    session = instance_state(target).session
    if session is None or is_watched(session):
        return
    if not session.is_modified(target, include_collections=False) and target not in session.deleted:
        return
    raise ConfigurationError(
        f"{type(target).__name__} has no version column, only compared values (CompareValues), and"
        " this session compares none: the write could silently undo another one. Use"
        " optilock.watch() on the session factory, or a UnitOfWork."
    )
