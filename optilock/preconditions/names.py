"""What a client may name: the plain columns of a row, to change them or to say what it has seen.

Neither the key, nor the version, nor what says which class the row is. A name that is none of these
is the client's mistake, :class:`~optilock.http.errors.BadEntity`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from sqlalchemy.orm import Mapper

from optilock.http.errors import BadEntity
from optilock.mapped import facts
from optilock.rows.sides import detached
from optilock.rows.stored import Values
from optilock.undocumented.mappers import names_in_composite

__all__ = ["by_column", "check_names", "columns_of", "why_not"]


def check_names(mapper: Mapper[Any], given: Any, what: str) -> None:
    """Look at the names in ``given``, which is ``"changed"`` or ``"seen"``.

    Raises:
        BadEntity: one of them cannot be; or ``given`` is no mapping.
    """
    cls = mapper.class_.__name__
    if not isinstance(given, Mapping):
        raise BadEntity(
            f"What is {what} of {cls} comes as a mapping of attributes to values,"
            f" {{'title': 'New'}}, and not as {type(given).__name__}. Nothing was read.",
            detail="What was sent is no object of names and values.",
        )
    for name in given:
        reason = why_not(mapper, name)
        if reason is not None:
            raise BadEntity(
                f"{cls}.{name} cannot be {what}: {reason}. Nothing was read. Columns that can be:"
                f" {', '.join(sorted(_editable(mapper)))}.",
                (str(name),),
                detail="What was sent has a name that is unknown, or not to be written.",
            )


def _editable(mapper: Mapper[Any]) -> Iterable[str]:
    return (one.key for one in mapper.column_attrs if why_not(mapper, one.key) is None)


def why_not(mapper: Mapper[Any], name: Any) -> str | None:
    """Why a client cannot name the attribute; ``None`` if it can."""
    if isinstance(name, str) and name in facts(mapper).editable:
        return None
    if not isinstance(name, str) or name not in mapper.attrs:
        return "there is no such mapped attribute"
    if name in mapper.composites:
        return None
    if name in mapper.synonyms:
        return why_not(mapper, mapper.synonyms[name].name)
    if name not in mapper.column_attrs:
        return "it is a relationship, and other rows are edited with their own versions"
    columns = mapper.column_attrs[name].columns
    if not set(columns).isdisjoint(mapper.primary_key):
        return "it is the primary key, by which the row is found"
    if facts(mapper).version in {*columns}:
        return "it is the version, which moves by itself"
    if mapper.polymorphic_on in {*columns}:
        return "it says which class the row is"
    return "it is computed, and not written"


def columns_of(mapper: Mapper[Any], name: str) -> list[str]:
    """The attributes of the columns behind a name."""
    if name in facts(mapper).editable:
        return [name]
    if name in mapper.composites:
        return names_in_composite(mapper, name)
    return [mapper.synonyms[name].name if name in mapper.synonyms else name]


def by_column(mapper: Mapper[Any], given: Mapping[str, Any]) -> Values:
    """What was given, as an entry has it: attribute of a column -> a value of its own."""
    return {
        name: detached(value, name)
        for named, whole in given.items()
        for name, value in _parts(mapper, named, whole)
    }


def _parts(mapper: Mapper[Any], name: str, value: Any) -> Iterator[tuple[str, Any]]:
    names = columns_of(mapper, name)
    if name not in mapper.composites:
        yield names[0], value
    elif value is None:
        yield from ((one, None) for one in names)
    elif hasattr(value, "__composite_values__"):
        yield from zip(names, value.__composite_values__(), strict=False)
    elif is_dataclass(value):
        yield from zip(names, (getattr(value, one.name) for one in fields(value)), strict=False)
