"""Writes under ``no_bump``: the version is compared, and written as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy.orm import Mapper, Session
from sqlalchemy.orm.attributes import instance_state

from optilock.conditions.write import Write
from optilock.dialects import database_of
from optilock.errors import ConfigurationError
from optilock.mapped.facts import facts
from optilock.session.connections import connection_to_write
from optilock.session.watched import stands_still, watched

if TYPE_CHECKING:
    from optilock.guard.records import Flush

__all__ = ["refuse_moving", "unmoved", "withdraw"]


def unmoved(flush: Flush, write: Write) -> Write:
    """The write, with the old version as the new one where a block says so."""
    shape, params = write
    if shape.deletes:
        return write
    if not stands_still(flush.session, flush.state_of(write).obj()):
        return write
    return Write(shape, {**params, shape.token.column.key: params[shape.token.parameter]})


def refuse_moving(session: Session) -> None:
    """Refuse, before anything is sent, rows whose version the database moves whatever we write.

    A guard trigger (``__version_guard__``) is told to let the version stay, where it can be.

    Raises:
        ConfigurationError: there is one among the changed objects that a block covers.
    """
    guarded: dict[Mapper[Any], None] = {}
    for obj in session.dirty:
        mapper = instance_state(obj).mapper
        guards = getattr(mapper.class_, "__version_guard__", None) is not None
        if guards and stands_still(session, obj) and session.is_modified(obj):
            guarded[mapper] = None
        if facts(mapper).by_itself and stands_still(session, obj) and session.is_modified(obj):
            raise ConfigurationError(
                f"{mapper.class_.__name__} is changed under no_bump(), and the database moves its"
                " version at every write (RowVersion): write it outside of the block, or give the"
                " class another token. Nothing was written."
            )
    for mapper in guarded:
        _announce(session, mapper)


def _announce(session: Session, mapper: Mapper[Any]) -> None:
    connection = connection_to_write(session, mapper)
    announced = watched(session).announced
    if connection not in announced:
        database_of(connection.dialect).announce_no_bump(connection, on=True)
        watched(session).announced = (*announced, connection)


def withdraw(session: Session) -> None:
    """At the end of the flush: the guard triggers stand on guard again."""
    known = watched(session)
    announced, known.announced = known.announced, ()
    for connection in announced:
        database_of(connection.dialect).announce_no_bump(connection, on=False)
