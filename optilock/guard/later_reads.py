"""What is read later of a row that the transaction has read with a lock.

::

    page = session.get_one(Page, 1, with_for_update=True)   # the newest row, and its version
    page.body                                               # deferred: of the same row

On MariaDB at REPEATABLE READ the second read would show the row of the snapshot. It is sent with a
shared lock, which the transaction's own lock covers. So are a ``refresh()``, columns of a joined
child, expired attributes, and what ``selectin_polymorphic()`` adds. Attributes that another plain
query has filled in are expired, and read this way when they are asked for. The parts of an
aggregate whose root is locked are read so as well: its version stands for them.

An object that a resolver has made equal to its stored row reads on where that row was read, which
is the primary where plain reads go to a replica.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sqlalchemy.engine import Connection
from sqlalchemy.orm import Mapper, Session
from sqlalchemy.orm.attributes import instance_state

from optilock.dialects import database_of
from optilock.rows.locked import LockedRows, locked_rows, note_locking
from optilock.session.connections import bind_to_write, connection_to_write
from optilock.session.watched import watched
from optilock.undocumented import (
    lazily_loaded_by,
    locks_rows,
    next_run,
    refreshed_by,
    subject_of,
    with_shared_lock,
)

__all__ = ["run_query"]

Execute = Callable[..., Any]
_LOCKING = re.compile(r"\bFOR\s+(UPDATE|SHARE)\b|\bLOCK\s+IN\s+SHARE\s+MODE\b", re.IGNORECASE)


def run_query(
    session: Session, original: Execute, statement: Any, params: Any, options: dict[str, Any]
) -> Any:
    """Execute a query that locks rows, or that may read again what was locked."""
    since = next_run()
    if _is_locking(statement):
        result = original(session, statement, params, **options)
        if any(_show_newer(connection) for connection in watched(session).connections):
            note_locking(session, since)
        return result
    mapper = _read_again(session, statement, params, options)
    if mapper is None:
        return original(session, statement, params, **options)
    if _show_newer(connection_to_write(session, mapper)):
        statement = with_shared_lock(statement)
    given = options.pop("bind_arguments", None) or {}
    given = {"bind": session.get_bind(**bind_to_write(mapper)), **given}
    result = original(session, statement, params, bind_arguments=given, **options)
    note_locking(session, since)
    return result


def _is_locking(statement: Any) -> bool:
    if locks_rows(statement):
        return True
    inside = getattr(statement, "element", None)  # from_statement(), of a text with columns or not
    text = getattr(getattr(inside, "element", inside), "text", None)
    return isinstance(text, str) and _LOCKING.search(text) is not None


def _show_newer(connection: Connection) -> bool:
    return database_of(connection.dialect).locks_show_newer


def _read_again(
    session: Session, statement: Any, params: Any, options: Mapping[str, Any]
) -> Mapper[Any] | None:
    """The class of a locked row that the query reads again, for an object which holds it."""
    rows = locked_rows(session)
    if rows is None:
        return None
    state = refreshed_by(options.get("execution_options"))
    if state is not None:
        return state.mapper if state in rows else None
    mapper = getattr(subject_of(statement), "mapper", None)
    if not isinstance(mapper, Mapper):
        return None
    root = lazily_loaded_by(options.get("execution_options"))
    if root is not None:
        return root.mapper if root in rows and root.mapper in _roots_of(mapper) else None
    keys = params.get("primary_keys") if isinstance(params, Mapping) else None
    return _held_among(session, rows, mapper, keys) if keys else None


def _held_among(
    session: Session, rows: LockedRows, mapper: Mapper[Any], keys: Iterable[Any]
) -> Mapper[Any] | None:
    """``selectin_polymorphic()`` and ``selectinload()`` name the objects that they complete."""
    for completed in (mapper, *_roots_of(mapper)):
        if any(_is_held(session, rows, completed, key) for key in keys):
            return completed
    return None


def _roots_of(mapper: Mapper[Any]) -> tuple[Mapper[Any], ...]:
    """The classes of roots whose version stands for rows of ``mapper``."""
    return tuple(
        root
        for root in mapper.registry.mappers
        if any(
            name in root.relationships and mapper.isa(root.relationships[name].mapper)
            for name in getattr(root.class_, "__version_root_of__", ())
        )
    )


def _is_held(session: Session, rows: LockedRows, mapper: Mapper[Any], key: Any) -> bool:
    identity = key if isinstance(key, tuple) else (key,)
    obj = session.identity_map.get(mapper.identity_key_from_primary_key(identity))
    return obj is not None and instance_state(obj) in rows
