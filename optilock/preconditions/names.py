"""Names, keys and values that a client sends, checked before a database sees them.

A client names plain columns of a row, to change them or to say which values it has seen. The
primary key, the version and the discriminator are refused, as is any other name, with
:class:`~optilock.errors.BadEntity`. The same error refuses a value that its column cannot hold
(:mod:`optilock.columns.values`; the database of the session adds its own limits). A key that no
row can have is treated as the key of a missing row, without a question to the database.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from sqlalchemy.orm import Mapper, Session
from sqlalchemy.types import TypeEngine

from optilock.columns.identities import identity_given
from optilock.columns.values import holds, surely_holds, takes
from optilock.dialects import database_of
from optilock.errors import BadEntity, NotFound
from optilock.mapped import Identity, facts
from optilock.undocumented.connections import type_on
from optilock.undocumented.mappers import names_in_composite
from optilock.watched.rows.entries import detached
from optilock.watched.rows.stored import Values
from optilock.watched.session.connections import engine_to_write

__all__ = [
    "by_column",
    "check_names",
    "columns_of",
    "key_of_row",
    "refuse_impossible_key",
    "refuse_unfit",
    "refuse_unfit_key",
    "why_not",
]


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


# -- keys and values -------------------------------------------------------------------------------


def refuse_unfit(session: Session, mapper: Mapper[Any], name: str, value: Any) -> None:
    """Refuse a value that the column of the attribute cannot hold.

    Raises:
        BadEntity: it cannot.
    """
    column = facts(mapper).columns[name]
    kind = column.type
    if value is None:
        if not column.nullable and not kind.should_evaluate_none:
            raise BadEntity(
                f"{mapper.class_.__name__}.{name} cannot be null. Nothing was written.",
                (name,),
                detail="A value that was sent is null, and cannot be.",
            )
        return
    if surely_holds(value, kind) or _holds(session, mapper, value, kind):
        return
    raise BadEntity(
        f"{mapper.class_.__name__}.{name} takes {takes(kind)}, and something else was sent: a"
        f" value of type {type(value).__name__} that the column cannot hold. Nothing was written.",
        (name,),
        detail="A value that was sent is of another kind, too long, or out of range.",
    )


def key_of_row(session: Session, call: str, mapper: Mapper[Any], key: Any) -> Identity:
    """The key that the function ``call`` was given, of a row that there may be.

    Raises:
        NotFound: no row of the class can have it.
        ConfigurationError: there are more values than columns, or fewer.
    """
    identity = identity_given(call, mapper, key)
    refuse_impossible_key(session, mapper, identity)
    return identity


def refuse_impossible_key(session: Session, mapper: Mapper[Any], identity: Identity) -> None:
    """Ask the database for no key that no row of it can have.

    Raises:
        NotFound: it is one.
    """
    if _unfit(session, mapper, identity) is not None:
        raise NotFound(mapper.class_, identity)


def refuse_unfit_key(session: Session, mapper: Mapper[Any], identity: Identity | None) -> None:
    """Refuse the key of a new row that none can have; ``None`` is made by the database.

    Raises:
        BadEntity: none can.
    """
    name = None if identity is None else _unfit(session, mapper, identity)
    if name is not None:
        raise BadEntity(
            f"{mapper.class_.__name__}.{name}, a part of the key, takes"
            f" {takes(facts(mapper).columns[name].type)}, and something else was sent. Nothing was"
            " written.",
            (name,),
            detail="A key that was sent is none that this can have.",
        )


def _unfit(session: Session, mapper: Mapper[Any], identity: Identity) -> str | None:
    for column, value in zip(mapper.primary_key, identity, strict=True):
        kind = column.type
        if not surely_holds(value, kind) and not _holds(session, mapper, value, kind):
            return facts(mapper).names[column]
    return None


def _holds(session: Session, mapper: Mapper[Any], value: Any, kind: TypeEngine[Any]) -> bool:
    dialect = engine_to_write(session, mapper).dialect
    kind = type_on(kind, dialect)
    return holds(value, kind, database_of(dialect).limits(dialect), dialect)
