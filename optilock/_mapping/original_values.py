"""The values of an object as its author read them: to compare with the row, and to merge.

**Compared values** are the mapping's half of
:class:`~optilock.tokens.compare_values.CompareValues`. The mixin calls :func:`compare_values` for
each class with that token. :func:`values_read` returns, for one object that a flush will write,
the attributes that must be stored as they were read.

**Copies of mutable values**: SQLAlchemy keeps no copy of a list, a dictionary or another mutable
value that a column returns. After ``page.tags.append("new")`` the loaded value would be lost, and a
three-way merge would have no original. So versioned classes with such columns copy these values
when they are loaded; other classes and columns pay nothing. The copy is kept pickled, which is
cheaper to make than a deep copy, and is opened only for a conflict. A copy is as old as the value
it was made from: it is dropped when the attribute is expired, and made again when the row is read
or written.
"""

from __future__ import annotations

import copy
import functools
import pickle
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from sqlalchemy import Connection, event, types
from sqlalchemy.orm import (
    NO_VALUE,
    Mapper,
    PassiveFlag,
    QueryContext,
    RelationshipDirection,
    Session,
)
from sqlalchemy.orm.attributes import instance_state

from optilock._mapped import Facts, State, facts
from optilock._mapping.checks import column_named
from optilock._mapping.tables import features_in_use
from optilock._undocumented.mappers import names_left_out
from optilock.errors import ConfigurationError
from optilock.serialize import is_expression
from optilock.tokens import CompareValues

Values = dict[str, Any]

_SEEN = "_optilock_values"
_WRITTEN = "_optilock_written"
#: Kept for an object whose stored values are unknown; recognised by identity.
_UNKNOWN: Values = {}
#: The classes whose values are compared.
_mappers: WeakSet[Mapper[Any]] = WeakSet()


def any_compared() -> bool:
    """Return whether any mapped class compares values."""
    return features_in_use.compared


def class_comparing(table: Any) -> Mapper[Any] | None:
    """Return a class that compares values and has its rows in ``table``."""
    # Equal, not the same: a statement of a class carries a copy of its table, with annotations.
    return next((mapper for mapper in _mappers if mapper.local_table == table), None)


def compare_values(
    mapper: Mapper[Any],
    cls: type[Any],
    rule: CompareValues,
    is_watched: Callable[[Session], bool],
) -> None:
    """Compare values of ``cls`` from now on, and refuse a session that would not do so."""
    for name in rule.names:
        _check_name(mapper, cls, name)
    _mappers.add(mapper)
    features_in_use.compared = True
    event.listen(cls, "refresh", _read_again, raw=True)
    if mapper.version_id_col is not None:
        return

    def refuse_unwatched(mapper: Mapper[Any], connection: Connection, target: Any) -> None:
        session = instance_state(target).session
        if session is None or is_watched(session):
            return
        if session.is_modified(target, include_collections=False) or target in session.deleted:
            raise _not_compared(type(target))

    event.listen(cls, "before_update", refuse_unwatched)
    event.listen(cls, "before_delete", refuse_unwatched)


def _not_compared(cls: type[Any]) -> ConfigurationError:
    return ConfigurationError(
        f"{cls.__name__} has no version column, only compared values (CompareValues), and this"
        " session compares none: the write could silently undo another one. Use optilock.watch()"
        " on the session factory, or a unit of work."
    )


def compared_names(
    mapper: Mapper[Any], *, changed: Collection[str], deleting: bool
) -> Collection[str]:
    """Return the attributes that a write of the ``changed`` ones compares.

    An attribute that belongs together with a changed one is compared like it.
    """
    record = facts(mapper)
    if record.rule is not None and record.rule.which == "changed" and not deleting:
        groups = [group for group in record.together if not group.isdisjoint(changed)]
        return record.comparable.intersection(set(changed).union(*groups) if groups else changed)
    return record.comparable


def values_read(state: State, *, deleting: bool) -> Values:
    """Return the values as read of all attributes that the write of ``state`` compares.

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
        value = value_as_read(state, name)
        if value is not NO_VALUE:
            found[name] = value
        elif rule.which == "named" or name in changed or values_are_unknown(state):
            raise _never_read(state, name)
    return found


def remember_values(state: State) -> None:
    """Remember the values of an object before they, or some of them, are expired.

    An edit that comes before the row is read again is compared with them.
    """
    remembered = state.__dict__.get(_SEEN)
    if remembered is _UNKNOWN:
        return
    seen: Values = {}
    for name in facts(state.mapper).columns:
        value = _loaded(state, name)
        if value is not NO_VALUE:
            seen[name] = copy.deepcopy(value)
    state.__dict__[_SEEN] = {**seen, **(remembered or {})}


def remembered_values(state: State) -> Values | None:
    """Return the values that the author of an expired object had read, if any are remembered."""
    return state.__dict__.get(_SEEN)


def values_seen(state: State, values: Values) -> None:
    """Note that the author of the object has seen ``values``, not values that were read since."""
    state.__dict__[_SEEN] = values


@contextmanager
def values_in_mind(state: State) -> Iterator[None]:
    """Keep the values that the author of a delete has seen while this block reads others."""
    seen = state.__dict__.get(_SEEN)
    yield
    if seen is not None:
        state.__dict__[_SEEN] = seen


def values_unknown(state: State) -> None:
    """Note that the object's values were never stored: read its row before it is edited."""
    state.__dict__[_SEEN] = _UNKNOWN


def forget_values(state: State) -> None:
    """Drop the remembered values."""
    state.__dict__.pop(_SEEN, None)


def values_written(state: State) -> None:
    """Note that the row was written: it has the object's values, as far as its columns can."""
    forget_values(state)
    state.__dict__[_WRITTEN] = True


def nulls_stored(state: State) -> None:
    """After an INSERT, set to NULL the attributes without a value and without a default."""
    for name, column in facts(state.mapper).columns.items():
        made = (column.default, column.server_default, column.computed, column.identity)
        if name not in state.dict and not any(one is not None for one in made):
            state.dict[name] = None


def is_written_by_flush(state: State) -> bool:
    """Return whether a flush wrote the object, so its values may be finer than the stored ones."""
    return _WRITTEN in state.__dict__


def values_moved(state: State, values: Values) -> None:
    """Count ``values`` as read, after a statement of this session stored them."""
    seen = state.__dict__.get(_SEEN)
    if seen:
        seen.update((name, value) for name, value in values.items() if name in seen)


def value_as_read(state: State, name: str) -> Any:
    """Return the attribute as its author saw it, without a query; ``NO_VALUE`` if never."""
    seen = state.__dict__.get(_SEEN)
    if seen is not None:
        return seen.get(name, NO_VALUE)
    return _loaded(state, name)


def all_as_read(state: State, names: Iterable[str]) -> Values:
    """Return the same of several attributes; those that were never read are missing."""
    seen = state.__dict__.get(_SEEN)
    if seen is not None:
        found = {name: seen.get(name, NO_VALUE) for name in names}
    else:
        before, held, kept = state.committed_state, state.dict, state.info.get(_COPIES) or _NONE
        found = {
            name: kept[name]() if name in kept else before.get(name, held.get(name, NO_VALUE))
            for name in names
        }
    return {name: value for name, value in found.items() if value is not NO_VALUE}


def _loaded(state: State, name: str) -> Any:
    value = state.committed_state.get(name, state.dict.get(name, NO_VALUE))
    return original_of(state, name, value)


def _read_again(state: State, context: Any, attrs: Collection[str] | None) -> None:
    """Forget remembered values after a refresh, unless edits made before it are still pending."""
    if attrs is None and isinstance(context, QueryContext):
        for name in names_left_out(state, context):
            del state.dict[name]  # deferred: it may be a value of an edit that the query drops
    if _SEEN not in state.__dict__:
        return
    edited = any(name in state.mapper.column_attrs for name in state.committed_state)
    session = state.session
    doomed = session is not None and session.deleted and state.obj() in session.deleted
    if not edited and not doomed:
        forget_values(state)


def changed_names(state: State) -> set[str]:
    """Return the column attributes whose value differs from the one that was read."""
    record, held = facts(state.mapper), state.dict
    return {
        name
        for name in state.committed_state
        if name in record.columns and name in held and not _unchanged(record, state, name)
    }


def changes_only(state: State, columns: Collection[Any]) -> bool:
    """Return whether nothing but these columns has changed, in any of the object's tables."""
    changed = (state.mapper.column_attrs[name].columns for name in changed_names(state))
    return all(column in columns for some in changed for column in some)


def edit_that_counts(state: State) -> str | None:
    """Return an attribute whose edit moves the version with the next flush; reads nothing.

    Columns of ``__version_ignore__`` do not, nor do relationships that write only such columns, or
    none.
    """
    columns, ignored = state.mapper.columns, facts(state.mapper).ignored
    for name in changed_names(state):
        if columns[name] not in ignored:
            return name
    for one in state.mapper.relationships:
        if (
            one.key in state.committed_state
            and one.direction is RelationshipDirection.MANYTOONE
            and not one.local_columns <= ignored
            and state.get_history(one.key, PassiveFlag.PASSIVE_NO_INITIALIZE).has_changes()
        ):
            return one.key
    return None


def _unchanged(record: Facts, state: State, name: str) -> bool:
    now, before = state.dict[name], value_as_read(state, name)
    return before is not NO_VALUE and not is_expression(now) and record.same(name, now, before)


def values_are_unknown(state: State) -> bool:
    """Return whether the object's values were never stored."""
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


# -- copies of mutable values ----------------------------------------------------------------------

_COPIES = "optilock.mapping.originals"  # as older releases pickled it
_NONE: Mapping[str, Any] = MappingProxyType({})
#: The values of these types cannot be changed in place.
_PLAIN_TYPES = (
    types.String,
    types.Integer,
    types.Numeric,
    types.Float,
    types.Boolean,
    types.Date,
    types.DateTime,
    types.Time,
    types.Interval,
    types.LargeBinary,
    types.Uuid,
)
_PLAIN_VALUES = (str, bytes, int, float, bool, type(None))
_names: WeakKeyDictionary[Mapper[Any], tuple[str, ...]] = WeakKeyDictionary()


def kept_names(mapper: Mapper[Any]) -> tuple[str, ...]:
    """Return the attributes whose values are copied when they are loaded."""
    return _names.get(mapper, ())


def keep_originals(mapper: Mapper[Any], cls: type[Any]) -> None:
    """Copy the mutable values that objects of ``cls`` load, from now on."""
    names = tuple(
        name for name, column in mapper.columns.items() if not isinstance(column.type, _PLAIN_TYPES)
    )
    if not names:
        return
    _names[mapper] = names
    features_in_use.kept = True

    def load(state: State, context: Any) -> None:
        _keep(state, names)

    def refresh(state: State, context: Any, attrs: Iterable[str] | None) -> None:
        _keep(state, names if attrs is None else [name for name in names if name in attrs])

    def expire(state: State, attrs: Iterable[str] | None) -> None:
        copies = state.info.get(_COPIES, {})
        for name in names if attrs is None else attrs:
            copies.pop(name, None)

    event.listen(cls, "load", load, raw=True)
    event.listen(cls, "refresh", refresh, raw=True)
    event.listen(cls, "refresh_flush", refresh, raw=True)
    event.listen(cls, "expire", expire, raw=True)


def follow_committed(mapper: Mapper[Any]) -> None:
    """Copy values set by ``set_committed_value()``: it calls no listener, and they count as loaded.

    The attribute's implementation gets a subclass of its own class for that.
    """
    for name in kept_names(mapper):
        impl: Any = mapper.class_manager[name].impl
        if not isinstance(impl, _Following):
            impl.__class__ = _following(type(impl))  # type: ignore[arg-type]


class _Following:
    """An attribute that keeps a copy of a value that is set as loaded."""

    __slots__ = ()

    def set_committed_value(self, state: State, dict_: Any, value: Any) -> Any:
        result = super().set_committed_value(state, dict_, value)  # type: ignore[misc]
        _keep(state, (self.key,))  # type: ignore[attr-defined]
        return result


@functools.cache
def _following(kind: type[Any]) -> type[Any]:
    return type(kind.__name__, (_Following, kind), {"__slots__": ()})


def copy_written(
    flushed: Mapping[Mapper[Any], Iterable[State]],
    *,
    except_for: Collection[State],
) -> None:
    """Copy the values that this flush stored: they are the originals from now on.

    Call it before SQLAlchemy marks the objects clean. A value changed in place and not flagged was
    not stored, so the copy of the loaded value stays.
    """
    for mapper, states in flushed.items():
        names = _names.get(mapper)
        for state in states if names else ():
            if state in except_for:
                continue
            new = state.key is None
            _keep(state, [n for n in names or () if new or n in state.committed_state])


def original_of(state: State, name: str, otherwise: Any) -> Any:
    """Return the loaded value, or ``otherwise`` if no copy was kept."""
    kept: dict[str, Callable[[], Any]] | None = state.info.get(_COPIES)
    return kept[name]() if kept and name in kept else otherwise


def _keep(state: State, names: Iterable[str]) -> None:
    copies = state.info.setdefault(_COPIES, {})
    for name in names:
        value = state.dict.get(name)
        if isinstance(value, _PLAIN_VALUES):
            copies.pop(name, None)
        else:
            copies[name] = _copy_of(value)


def _copy_of(value: Any) -> Callable[[], Any]:
    """Return a function that returns a copy of the value as it is now."""
    try:
        return functools.partial(pickle.loads, pickle.dumps(value, pickle.HIGHEST_PROTOCOL))
    except Exception:  # whatever an application's type raises
        return functools.partial(copy.deepcopy, copy.deepcopy(value))
