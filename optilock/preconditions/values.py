"""Keys and values that a client has sent: can the columns hold them?

:mod:`optilock.http.columns` knows what a column can hold, and the database of the session what it
takes besides. A value that its column cannot hold is :class:`~optilock.http.errors.BadEntity`. A
key that no row can have is a key that no row has, as a tag that no row can have is that of another
version: nobody asks the database for it.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Mapper, Session
from sqlalchemy.types import TypeEngine

from optilock.dialects import database_of
from optilock.http.columns import holds, surely_holds, takes
from optilock.http.errors import BadEntity, NotFound
from optilock.http.identities import identity_given
from optilock.mapped import Identity, facts
from optilock.session.connections import engine_to_write
from optilock.undocumented.dialects import type_on

__all__ = ["key_of_row", "refuse_impossible_key", "refuse_unfit", "refuse_unfit_key"]


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
