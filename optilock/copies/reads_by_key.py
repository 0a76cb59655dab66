"""``Session.get()`` of a row that the session does not hold, with a query that is made once.

SQLAlchemy makes a query for each such reading, and works out how to find it in its cache: a tenth
of the processor time of a unit that reads one row, changes it and commits. Here the query belongs
to the class, and is the same in SQL. What is not plain goes SQLAlchemy's way: options, a key in
another form, an object that the session holds, a class mapped to a SELECT.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from sqlalchemy import Select
from sqlalchemy.orm import Mapper, Session

from optilock.mapped import Identity, facts
from optilock.undocumented import repeats

__all__ = ["asked_for", "read_by_key", "reads_plainly", "row_of"]

#: What a key, or its only part, is often made of.
_PLAIN = frozenset({tuple, int, str, bytes, UUID})


def read_by_key(
    original: Callable[..., Any], session: Session, entity: Any, ident: Any, options: Any
) -> Any:
    """``session.get()`` of a row that is not locked."""
    found = asked_for(entity, ident)
    if found is None or not reads_plainly(original, found[0], options):
        return original(session, entity, ident, **options)
    mapper, identity = found
    if mapper.identity_key_from_primary_key(identity) in session.identity_map:
        return original(session, entity, ident, **options)
    row = row_of(session, mapper, identity, facts(mapper).select_one)
    return None if row is None else row[0]


def asked_for(entity: Any, ident: Any) -> tuple[Mapper[Any], Identity] | None:
    """The class and the key, where both are given in the usual form."""
    mapper = getattr(entity, "__mapper__", None)
    if mapper is None or mapper.class_ is not entity or type(ident) not in _PLAIN:
        return None
    identity = ident if type(ident) is tuple else (ident,)
    if len(identity) != len(mapper.primary_key) or None in identity:
        return None
    return mapper, identity


def reads_plainly(original: Callable[..., Any], mapper: Mapper[Any], options: Any) -> bool:
    """Does the class's own query find what ``get()`` would find?"""
    return original is Session.get and facts(mapper).is_read_simply and not any(options.values())


def row_of(session: Session, mapper: Mapper[Any], identity: Identity, query: Select[Any]) -> Any:
    """What one of the class's own queries finds: the object, and what else it selects."""
    params = dict(zip(facts(mapper).key_parameters, identity, strict=True))
    result = session.execute(query, params)
    return (result.unique() if repeats(result) else result).one_or_none()
