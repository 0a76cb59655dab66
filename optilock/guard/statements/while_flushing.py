"""``update(Model)`` and ``delete(Model)`` that a listener sends while the session is flushing.

SQLAlchemy would bring objects up to date that the flush has written and not yet marked clean, or
is yet to write. So it is told to leave them alone, and they are followed as with a statement of
the table (:mod:`optilock.guard.statements.by_table`), after what the flush holds was sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from sqlalchemy import Delete, Update
from sqlalchemy.orm import Mapper, Session

from optilock.errors import ConfigurationError
from optilock.guard.statements.own import binds_of
from optilock.session.connections import own_connection
from optilock.session.watched import watched

__all__ = ["in_flush", "refuse_apart_in_flush", "refuse_by_key_in_flush"]


def in_flush(
    session: Session,
    original: Callable[..., Any],
    mapper: Mapper[Any],
    statement: Update | Delete,
    params: Any,
    options: dict[str, Any],
) -> Any:
    """Send the statement, and let the objects follow it."""
    known = watched(session)
    assert known.flush is not None
    chosen = {**(options.get("execution_options") or {}), "synchronize_session": False}
    options = {**options, "execution_options": chosen}
    connection = own_connection(session, binds_of(mapper, options))

    def native(statement: Any, params: Any) -> Any:
        return original(session, statement, params, **options)

    stating, known.stating = known.stating, False  # seen to by what is called now
    try:
        return known.flush.by_hand(known.flush, connection, native, statement, params, {})
    finally:
        known.stating = stating


def refuse_apart_in_flush(mapper: Mapper[Any]) -> NoReturn:
    """Refuse an UPDATE of one table that has to move versions in another one.

    Raises:
        ConfigurationError: always.
    """
    raise ConfigurationError(
        f"The UPDATE of {mapper.class_.__name__} is sent by a listener while the session is"
        " flushing, and the versions of its rows are in another table than the columns: objects"
        " that the flush is writing would not know of it. Change the objects in a before_flush"
        " listener, or send the statement after the flush. Nothing was sent."
    )


def refuse_by_key_in_flush(mapper: Mapper[Any]) -> NoReturn:
    """Refuse ``update(Model)`` with rows by key: SQLAlchemy sends them as a flush sends its own.

    Raises:
        ConfigurationError: always.
    """
    name = mapper.class_.__name__
    raise ConfigurationError(
        f"The UPDATE of {name} by primary key is sent by a listener while the session is flushing,"
        f" and its rows could not be told from those of the flush. Write update({name}).where(...),"
        " or change the objects in a before_flush listener. Nothing was sent."
    )
