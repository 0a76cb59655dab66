"""Columns that belong together: a rule joins them, so they conflict as one.

::

    class Booking(Versioned, Base):
        __merge_together__ = (("start", "end"),)            # start <= end

    unit_of_work(SessionLocal, on_conflict=merge_fields(together=[("start", "end")]))

We move the start of a booking from 1 to 10 to 9, and another transaction moves the end to 2. Each
change keeps the rule, and a merge of the columns would store 9 to 2. Here both columns are in
``entry.conflicting``, and `merge_fields` refuses. It is a conflict if the merge would join one of
our columns with one of theirs, in a combination that neither side has written. A column that we
have not loaded counts as changed by the other side.

A group is a collection of names of columns, composites or synonyms. The columns of a composite are
one value, and always belong together. Subclasses add groups. Groups that overlap are one.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Protocol

from sqlalchemy import Column
from sqlalchemy.orm import CompositeProperty, Mapper, SynonymProperty

from optilock._mapped import facts
from optilock.errors import Computed, ConfigurationError, Entry

GroupNames = Collection[Collection[str]]
Groups = tuple[frozenset[str], ...]


class Sides(Protocol):
    """Our side of a conflict."""

    @property
    def original(self) -> Mapping[str, Any]: ...
    @property
    def current(self) -> Mapping[str, Any]: ...
    @property
    def changes(self) -> Mapping[str, Any]: ...


def conflicting_together(
    groups: Iterable[frozenset[str]],
    sides: Sides,
    stored: Mapping[str, Any],
    same: Callable[[str, Any, Any], bool],
    remade: Collection[str] = (),
) -> frozenset[str]:
    """Return the columns of the groups that cannot be merged: each side has changed some of them.

    ``remade`` are columns that both sides changed, and whose new value is that of neither side.
    """

    def equal(name: str, values: Mapping[str, Any]) -> bool:
        value = values.get(name, Computed(name))
        return not isinstance(value, Computed) and same(name, value, stored[name])

    def theirs_in(group: frozenset[str]) -> Iterator[str]:
        for name in group.intersection(stored):
            mine = equal(name, sides.original) or equal(name, sides.current)
            if name in remade or not mine:
                yield name

    changed = (n for n in sides.changes if n in stored)
    ours = {n for n in changed if n in remade or not equal(n, sides.changes)}
    found: set[str] = set()
    for group in groups:
        if not group.isdisjoint(ours):
            theirs = set(theirs_in(group))
            found |= theirs | (group & ours) if theirs else theirs
    return frozenset(found)


def groups_in(entry: Entry[Any], together: GroupNames) -> Iterator[list[str]]:
    """Yield the groups, as attributes that a row of the entry's class has.

    Raises:
        ConfigurationError: the class has one name of a group, and no class of its hierarchy has
            another one.
    """
    mapper = getattr(entry.model, "__mapper__", None)
    for group in together:
        found = {name: _behind(mapper, entry, name) for name in group}
        if any(found.values()):
            for name, columns in found.items():
                if not columns and mapper is not None:
                    _check_line(mapper, f"together={[*group]!r}", name)
            yield [one for columns in found.values() for one in columns]


def _behind(mapper: Mapper[Any] | None, entry: Entry[Any], name: str) -> list[str]:
    if mapper is not None:
        return facts(mapper).behind(name)
    return [name] if name in (entry.database or entry.original) else []


def _check_line(mapper: Mapper[Any], what: str, name: str) -> None:
    reasons = [reason_not_merged(one, name) for one in mapper.base_mapper.self_and_descendants]
    if None not in reasons:
        raise _never(mapper, what, name, str(reasons[0]))


# -- refused values --------------------------------------------------------------------------------


def check_together(value: Any, what: str) -> tuple[tuple[str, ...], ...]:
    """Return the groups in ``value``; raise ``ConfigurationError`` if it does not hold groups."""
    if _is_collection(value) and all(_is_group(group) for group in value):
        return tuple(tuple(group) for group in value)
    raise ConfigurationError(
        f"{what} is {value!r}: write groups of two or more names of attributes, as texts in tuples"
        f" in a tuple, for example {what.rpartition('.')[2]} = (('start', 'end'),)."
    )


def _is_group(value: Any) -> bool:
    named = _is_collection(value) and all(isinstance(name, str) for name in value)
    return named and len(set(value)) > 1


def _is_collection(value: Any) -> bool:
    return isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping)


def check_declared(mapper: Mapper[Any], cls: type[Any], ignored: Collection[str] = ()) -> None:
    """Refuse a ``__merge_together__`` with a name that no merge of ``cls`` can meet.

    The declarations of a mapped class above it were checked there.
    """
    for declaring in cls.__mro__:
        own = vars(declaring)
        if "__merge_together__" not in own or ("__mapper__" in own and declaring is not cls):
            continue
        what = f"{cls.__name__}.__merge_together__"
        for group in check_together(own["__merge_together__"], what):
            for name in group:
                _check_name(mapper, name, what, ignored)


def _check_name(mapper: Mapper[Any], name: str, what: str, ignored: Collection[str]) -> None:
    why = reason_not_merged(mapper, name, ignored)
    if why is not None:
        raise _never(mapper, what, name, why)


def reason_not_merged(mapper: Mapper[Any], name: str, ignored: Collection[str] = ()) -> str | None:
    """Return the reason why no merge can meet the attribute; ``None`` if it can."""
    attribute: Any = mapper.get_property(name) if mapper.has_property(name) else None
    if isinstance(attribute, SynonymProperty):
        return reason_not_merged(mapper, attribute.name, ignored)
    if isinstance(attribute, CompositeProperty):
        return None
    column = next(iter(getattr(attribute, "columns", ())), None)
    if not isinstance(column, Column):
        return f"no attribute of a column of {mapper.class_.__name__}"
    if column is mapper.version_id_col:
        return "the version itself"
    if column in mapper.primary_key:
        return "the primary key, by which a row is found"
    if column.computed is not None:
        return "computed by the database"
    return "in __version_ignore__, so it never conflicts" if name in ignored else None


def _never(mapper: Mapper[Any], what: str, name: str, why: str) -> ConfigurationError:
    # column_attrs would configure all mappers, too early
    columns = mapper.columns.items()
    known = sorted(other for other, _ in columns if reason_not_merged(mapper, other) is None)
    meant = difflib.get_close_matches(name, known, 1)
    guess = f" {meant[0]!r} was probably meant." if meant else ""
    return ConfigurationError(
        f"{what} names {name!r}, which is {why}.{guess} It has: {', '.join(known)}."
    )
