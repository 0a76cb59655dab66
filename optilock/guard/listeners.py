"""``after_update`` and ``after_delete`` listeners hear of a row when it was written, and only then.

SQLAlchemy calls them once it has handed over the statements of a table, and takes every row for
written. So they are asked for first: what is held is sent, and a row that missed is not told. If
its conflict is settled, it is told then, once, with what was written.

What asks is the mapper's own collection of listeners, so that every way to register and to remove
one works. A class without such listeners is not touched.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Mapper

from optilock.guard.ended import remember
from optilock.guard.pipeline import drain
from optilock.guard.records import DELETED, UPDATED, Flush
from optilock.mapped.keys import State
from optilock.session.watched import KNOWN
from optilock.undocumented import AskingListeners, ask_listeners

__all__ = ["listen", "listen_in"]


class _OfWrittenRows(AskingListeners):
    """The listeners of a mapper."""

    __slots__ = ()

    @staticmethod
    def ask(name: str, connection: Connection, state: State) -> bool:
        session = state.session
        known = session.__dict__.get(KNOWN) if session is not None else None
        flush: Flush | None = None if known is None else known.flush
        return flush is None or flush.uow is None or _is_written(flush, name, connection, state)


def listen(flush: Flush) -> None:
    """From now on in this flush, listeners are asked for before they are called."""
    if not flush.listening and flush.uow is not None:
        flush.listening = True
        listen_in(flush.uow.mappers)


def listen_in(mappers: Iterable[Mapper[Any]]) -> None:
    """Ask before the listeners of these classes are called, where they have any."""
    for mapper in mappers:
        for name in (UPDATED, DELETED):
            ask_listeners(mapper, name, _OfWrittenRows)


def _is_written(flush: Flush, name: str, connection: Connection, state: State) -> bool:
    if flush.settled:
        return True
    if connection in flush.waiting:
        try:
            drain(flush, connection)
        except DBAPIError:
            remember(flush)
            raise
    missed = flush.missed_states.get(state)
    if missed is None:
        return state not in flush.skipped  # gone before the flush
    if missed.written != name:
        return False
    missed.told = True
    return True
