"""``session.connection()``: what is sent on it between flushes is the session's own, too.

From the first time that somebody asks for it to the end of the transaction, the connection answers
for UPDATE and DELETE as it does during a flush (:mod:`optilock.guard.connection`): the objects of
the session learn what the statement has made of their rows (:mod:`optilock.statements.by_table`).
Whoever never asks for the connection pays nothing.

Two sessions on one connection are two authors, and nobody knows which of them sends a statement on
it. While both use it no object follows: one that is older than its row conflicts, so nothing is
lost.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, Delete, Update
from sqlalchemy.orm import Session

from optilock.session.connections import PLAIN
from optilock.session.watched import Watched, watched
from optilock.statements.by_table import by_table
from optilock.statements.own import note_unseen, unseen_of
from optilock.statements.version import unmoved_of_table

__all__ = ["guarded_connection"]

_CHANGES = (Update, Delete)


def guarded_connection(original: Callable[..., Any]) -> Callable[..., Any]:
    """``Session.connection``."""

    @functools.wraps(original)
    def connection(self: Session, *args: Any, **options: Any) -> Any:
        found = original(self, *args, **options)
        known = watched(self)
        if isinstance(found, Connection) and found not in known.followed:
            execute = _following(self, known, found)
            known.followed[found] = execute
            known.sends_on(found, following=True)
            if "execute" not in found.__dict__:  # the flush that is running gives it back
                setattr(found, "execute", execute)  # noqa: B010
        return found

    setattr(connection, PLAIN, original)
    return connection


def _following(session: Session, known: Watched, connection: Connection) -> Callable[..., Any]:
    native = type(connection).execute.__get__(connection)
    owner = weakref.ref(session)

    def execute(statement: Any, parameters: Any = None, **options: Any) -> Any:
        session = owner()
        if session is None or known.stating:
            return native(statement, parameters, **options)
        if type(statement) not in _CHANGES:
            note_unseen(session, unseen_of(statement))
            return native(statement, parameters, **options)
        bulk = "compiled_cache" in (options.get("execution_options") or ())  # seen to elsewhere
        if bulk or not known.follows(connection):
            return native(statement, parameters, **options)
        statement = unmoved_of_table(session, statement, parameters)
        send = functools.partial(native, statement, parameters, **options)
        return by_table(session, connection, statement, parameters, send)

    return execute
