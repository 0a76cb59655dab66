"""Sessions that work inside a unit, next to its own: an audit trail, a second session of a test.

If a unit has locked a row only because the row is hot, a second session inside it may wait for that
row, and so for the unit that waits for it. A program that ends while its rows are cold would hang
once they are hot. So a statement of another connection to the same database, inside a unit that has
learned locks, is not sent if it may wait for a row: it raises
:class:`~optilock.errors.SelfDeadlock`. The unit then runs again without these locks, also if the
program catches that error. From then on no unit of this name is locked by learning.

*Inside* are the thread or task of the unit, and threads and tasks that have a copy of its context.
For a session that is not seen (another thread, another program, the driver's own cursor), the
server ends the transaction that pauses (``bound_locks`` of the database).

The listener is registered when a unit first finds a hot row. It is one for all engines, because the
second session may have one of its own.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Engine, event

from optilock._undocumented.connections import only_looks
from optilock._undocumented.statements import waits_for_rows
from optilock._watched.session.record import READS_KEY
from optilock.dialects import database_of
from optilock.errors import SelfDeadlock
from optilock.unit.heat import MEMORY
from optilock.unit.running_units import units_around
from optilock.unit.sessions import same_database

#: The class Engine, once its statements are looked at.
_watching: list[type[Engine]] = []


def watch_statements() -> None:
    """Look at every statement from here on."""
    if not _watching:
        _watching.append(Engine)
        event.listen(Engine, "before_cursor_execute", _before_cursor_execute, retval=True)


@only_looks
def _before_cursor_execute(
    connection: Connection, cursor: Any, statement: str, parameters: Any, context: Any, many: bool
) -> tuple[str, Any]:
    units = units_around()
    if units and _may_wait(connection, context):
        for unit in units:
            _look(unit, connection)
    return statement, parameters


def _may_wait(connection: Connection, context: Any) -> bool:
    query = getattr(context.compiled, "statement", None)
    return waits_for_rows(query) or database_of(connection.dialect).isolation.reads_wait(connection)


def _look(unit: Any, connection: Connection) -> None:
    """Refuse a statement that is sent inside a unit on another connection of the same database.

    Raises:
        SelfDeadlock: the unit has learned locks, for which the statement might wait.
    """
    reading = unit.session.__dict__.get(READS_KEY)
    if reading is None or not reading.has_learned_locks or connection in unit.connections:
        return
    if not any(_is_beside(one, connection) for one in unit.connections):
        return
    MEMORY.accompanied.add(unit.name)
    holder, waiter = _named(unit), _name_of(connection)
    error = SelfDeadlock(_HELD.format(holder=holder, waiter=waiter))
    error.holder, error.waiter = holder, waiter
    unit.doom(error)
    raise error


def _is_beside(own: Connection, other: Connection) -> bool:
    """Return whether these are two open transactions of one database."""
    if own.closed or own.invalidated or not own.in_transaction():
        return False
    if own.connection.dbapi_connection is other.connection.dbapi_connection:
        return False  # of a pool with one connection for all
    return same_database(own.engine, other.engine)


def _named(unit: Any) -> str:
    return "a unit of work" if unit.name is None else f"the unit {unit.name}()"


def _name_of(connection: Connection) -> str:
    owners = (one for one in units_around() if connection in getattr(one, "connections", ()))
    return next(map(_named, owners), "another session")


_HELD = (
    "{waiter} sends a statement inside {holder}, which has locked rows of the same database because"
    " units of this process conflict on them. It might wait for such a row, and {holder} goes on"
    " only after it. Nothing was sent. {holder} is rolled back, and runs again without these locks"
    ' if it has attempts left; strategy="optimistic" takes none.'
)
