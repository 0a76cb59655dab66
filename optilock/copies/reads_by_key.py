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
from sqlalchemy.orm import Session

from optilock.mapped import Facts, Identity, facts
from optilock.rows.locked import run_locking
from optilock.session.connections import PLAIN
from optilock.undocumented.queries import repeats

__all__ = ["asked_for", "read_by_key", "reads_plainly", "sent", "the_one"]

#: What a key, or its only part, is often made of.
_PLAIN = frozenset({tuple, int, str, bytes, UUID})


def read_by_key(
    original: Callable[..., Any], session: Session, entity: Any, ident: Any, options: Any
) -> Any:
    """``session.get()`` of a row that is not locked."""
    found = asked_for(entity, ident)
    if found is None or not reads_plainly(original, found[0], options):
        return original(session, entity, ident, **options)
    known, identity = found
    if known.mapper.identity_key_from_primary_key(identity) in session.identity_map:
        return original(session, entity, ident, **options)
    return the_one(sent(session, known, identity, known.select_one))


def asked_for(entity: Any, ident: Any) -> tuple[Facts, Identity] | None:
    """What is known of the class, and the key, where both are given in the usual form."""
    mapper = getattr(entity, "__mapper__", None)
    if mapper is None or mapper.class_ is not entity or type(ident) not in _PLAIN:
        return None
    identity = ident if type(ident) is tuple else (ident,)
    if len(identity) != len(mapper.primary_key) or None in identity:
        return None
    return facts(mapper), identity


def reads_plainly(original: Callable[..., Any], known: Facts, options: Any) -> bool:
    """Does the class's own query find what ``get()`` would find?"""
    return original is Session.get and known.is_read_simply and not any(options.values())


def sent(session: Session, known: Facts, identity: Identity, query: Select[Any]) -> Any:
    """The result of one of the class's own queries; no object is made of it yet.

    What the guard asks of every other query is known of these.
    """
    params = dict(zip(known.key_parameters, identity, strict=True))
    execute = session.execute
    if getattr(execute, PLAIN, None) is not Session.execute:  # the application's own
        return execute(query, params)
    if query is known.select_one:
        return Session.execute(session, query, params)
    return run_locking(session, Session.execute, query, params, {})


def the_one(result: Any) -> Any:
    """The object, or None."""
    return (result.unique() if repeats(result) else result).scalar_one_or_none()
