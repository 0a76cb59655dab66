"""What values that can be changed in place were when they were loaded.

Of a list, a dictionary or another value of its own that a column gives, SQLAlchemy keeps no copy:
after ``page.tags.append("new")`` nobody knows what was loaded, and a three-way merge has no
original. So such values are copied when they are loaded, for versioned classes that have such
columns; other classes and columns pay nothing. The copy is kept pickled, which is cheaper to make
than a deep copy, and is only opened when there is a conflict.

A copy is as old as the value that it is a copy of: it goes when the attribute is expired, and is
made anew when the row is read or written.
"""

from __future__ import annotations

import copy
import functools
import pickle
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import event, types
from sqlalchemy.orm import Mapper

from optilock.mapped import State, there_are

_KEY = "optilock.mapping.originals"
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
    """The attributes whose values are copied when they are loaded."""
    return _names.get(mapper, ())


def keep_originals(mapper: Mapper[Any], cls: type[Any]) -> None:
    """From here on, keep copies of the mutable values that objects of ``cls`` load."""
    names = tuple(
        name for name, column in mapper.columns.items() if not isinstance(column.type, _PLAIN_TYPES)
    )
    if not names:
        return
    _names[mapper] = names
    there_are.kept = True

    def load(state: State, context: Any) -> None:
        _keep(state, names)

    def refresh(state: State, context: Any, attrs: Iterable[str] | None) -> None:
        _keep(state, names if attrs is None else [name for name in names if name in attrs])

    def expire(state: State, attrs: Iterable[str] | None) -> None:
        known = state.info.get(_KEY, {})
        for name in names if attrs is None else attrs:
            known.pop(name, None)

    event.listen(cls, "load", load, raw=True)
    event.listen(cls, "refresh", refresh, raw=True)
    event.listen(cls, "refresh_flush", refresh, raw=True)
    event.listen(cls, "expire", expire, raw=True)


def follow_committed(mapper: Mapper[Any]) -> None:
    """``set_committed_value()`` calls no listener, and what it sets counts as loaded."""
    for name in kept_names(mapper):
        impl: Any = mapper.class_manager[name].impl
        if not isinstance(impl, _Following):
            impl.__class__ = _following(type(impl))  # type: ignore[arg-type]


class _Following:
    """An attribute that keeps a copy of what is set as loaded."""

    __slots__ = ()

    def set_committed_value(self, state: State, dict_: Any, value: Any) -> Any:
        result = super().set_committed_value(state, dict_, value)  # type: ignore[misc]
        _keep(state, (self.key,))  # type: ignore[attr-defined]
        return result


@functools.cache
def _following(kind: type[Any]) -> type[Any]:
    return type(kind.__name__, (_Following, kind), {"__slots__": ()})


def written(
    flushed: Mapping[Mapper[Any], Iterable[State]],
    *,
    except_for: Collection[State],
) -> None:
    """What this flush has stored is what is known of the row from now on.

    To be called before SQLAlchemy marks the objects clean: what was changed behind its back, and
    not flagged, was not stored, and the copy of what was loaded stays.
    """
    for mapper, states in flushed.items():
        names = _names.get(mapper)
        for state in states if names else ():
            if state in except_for:
                continue
            new = state.key is None
            _keep(state, [n for n in names or () if new or n in state.committed_state])


def original_of(state: State, name: str, otherwise: Any) -> Any:
    """The value that was loaded, or ``otherwise`` where no copy was kept."""
    kept: dict[str, Callable[[], Any]] | None = state.info.get(_KEY)
    return kept[name]() if kept and name in kept else otherwise


def _keep(state: State, names: Iterable[str]) -> None:
    known = state.info.setdefault(_KEY, {})
    for name in names:
        value = state.dict.get(name)
        if isinstance(value, _PLAIN_VALUES):
            known.pop(name, None)
        else:
            known[name] = _copy_of(value)


def _copy_of(value: Any) -> Callable[[], Any]:
    """What gives a copy of the value as it is now, made when it is asked for."""
    try:
        return functools.partial(pickle.loads, pickle.dumps(value, pickle.HIGHEST_PROTOCOL))
    except Exception:  # whatever an application's type raises
        return functools.partial(copy.deepcopy, copy.deepcopy(value))
