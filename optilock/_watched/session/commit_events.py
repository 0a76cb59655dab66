"""Events after COMMIT: of each row that was written, and of a session outside of units.

Every way of writing calls :func:`note_row` for each row, or for a statement whose rows are unknown,
if something listens (``events.listeners_to_rows``). COMMIT publishes them; the rollback of a
savepoint drops its rows, and another transaction drops those of one that was closed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any
from weakref import ref

from sqlalchemy import Connection
from sqlalchemy.orm import Mapper, Session, SessionTransaction

from optilock import events
from optilock._mapped import Identity, facts
from optilock._watched.session.connections import is_autocommit
from optilock._watched.session.order import add_step
from optilock._watched.session.record import is_watched, session_record

#: An attribute of a session: the rows of its transaction.
WRITTEN = "_optilock_written_rows"


class WrittenRows:
    """The rows of one transaction, each with the savepoints around it."""

    def __init__(self, root: SessionTransaction | None) -> None:
        self._root = None if root is None else ref(root)
        self._rows: list[tuple[events.Written, frozenset[SessionTransaction]]] = []

    def is_of(self, root: SessionTransaction | None) -> bool:
        return root is not None and self._root is not None and self._root() is root

    def add(self, row: events.Written, savepoints: frozenset[SessionTransaction]) -> None:
        self._rows.append((row, savepoints))

    def drop(self, savepoint: SessionTransaction) -> None:
        self._rows = [one for one in self._rows if savepoint not in one[1]]

    def publish(self) -> None:
        """Give the rows to the listeners, once."""
        rows, self._rows = self._rows, []
        for row, _ in rows:
            events.emit(lambda row=row: row)  # type: ignore[misc]


def note_row(
    session: Session,
    mapper: Mapper[Any],
    action: Any,
    identity: Identity | None = None,
    *,
    before: Any = None,
    version: Any = None,
    columns: Iterable[str] = (),
    author: Any = None,
    rows: int | None = 1,
    connection: Connection | None = None,
) -> None:
    """Note a row that was written, or the rows of a statement.

    On a ``connection`` in AUTOCOMMIT mode it is stored, so it is published at once.
    """
    known = facts(mapper)
    names = tuple(name for name in columns if name != known.token)
    owner = session_record(session).owner if is_watched(session) else None
    row = events.Written(
        mapper.class_,
        known.name,
        action,
        identity,
        before,
        version,
        names,
        author,
        None if owner is None else owner.name,
        rows,
    )
    if connection is not None and is_autocommit(connection):
        events.emit(lambda: row)
        return
    _rows_of(session).add(row, frozenset(_savepoints(session)))


def author_of(mapper: Mapper[Any], values: Any) -> Any:
    """Return the author among the written values, by ``__version_author__``."""
    name = getattr(mapper.class_, "__version_author__", None)
    return None if name is None else values.get(name)


def rows_to_publish(session: Session) -> WrittenRows | None:
    """Return the rows of the running transaction, for a unit that may be found stored."""
    known: WrittenRows | None = session.__dict__.get(WRITTEN)
    return known if known is not None and known.is_of(session.get_transaction()) else None


def _rows_of(session: Session) -> WrittenRows:
    known = rows_to_publish(session)
    if known is None:
        known = session.__dict__[WRITTEN] = WrittenRows(session.get_transaction())
        add_step("written", WRITTEN, after_commit=_after_commit, after_soft_rollback=_undone)
    return known


def _savepoints(session: Session) -> Iterable[SessionTransaction]:
    running = session.get_nested_transaction()
    while running is not None and running.nested:
        yield running
        running = running.parent


def _after_commit(session: Session) -> None:
    if session.get_nested_transaction() is None and (known := rows_to_publish(session)) is not None:
        del session.__dict__[WRITTEN]
        known.publish()


def _undone(session: Session, ended: SessionTransaction) -> None:
    if ended.nested:
        session.__dict__[WRITTEN].drop(ended)
    elif ended.parent is None:
        del session.__dict__[WRITTEN]


def timed_commit(commit: Callable[..., None]) -> Callable[..., None]:
    """Return the COMMIT of a session outside of units, which is reported when it has succeeded."""

    def send(*args: Any, **options: Any) -> None:
        began = time.monotonic()
        commit(*args, **options)
        events.emit(lambda: events.SessionCommitted(time.monotonic() - began))

    return send
