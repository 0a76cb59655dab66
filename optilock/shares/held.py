"""A handle whose heartbeats are sent for its owner, until he is done with it or has lost it.

:mod:`optilock.renewal` has how. While somebody has the handle's row locked (on MariaDB whoever has
checked the name, or written the row, and is still in his transaction) a heartbeat is left for
later. A handle that has ended is closed, and stays so.

A transaction that reads a snapshot would be ended by the database if the handle changed between its
begin and its own write. So a unit with ``parts=[held]`` sends a heartbeat with its first statement,
and nobody sends another one before it is over.
"""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, Select, literal_column, select
from sqlalchemy.orm import Session

from optilock.dialects.rows import native
from optilock.renewal.renewed import OnLost, Renewed, at_once, require_own_connections
from optilock.shares.errors import HandleLost
from optilock.shares.guard import use
from optilock.shares.locked import Handle, connection_of, own
from optilock.shares.operations import State, close_on, heartbeat_on, open

__all__ = ["Opened", "opened_from"]


class Opened(Renewed):
    """The handle of a ``with`` block; a part of the units that write its row."""

    lost_as = HandleLost

    def __init__(self, handle: Handle, on_lost: OnLost | None, began: float) -> None:
        assert handle.seconds is not None
        super().__init__(f"the handle of {handle.name!r}", handle.seconds, on_lost, began)
        self._handle = handle
        #: What has become of the name at the end of the block; ``None`` before.
        self.state: State | None = None

    @property
    def handle(self) -> Handle:
        """As it was after the last heartbeat."""
        return self._handle

    @property
    def lost(self) -> HandleLost | None:
        """What there is to say once the handle is lost."""
        error: HandleLost | None = self._error
        return error

    def use(self, session: Session) -> None:
        """From here on a watched session writes the row through the handle:
        :func:`optilock.shares.use`."""
        use(session, self._handle)

    def begin(self, session: Session) -> None:
        self.use(session)

    # -- how ---------------------------------------------------------------------------------------

    def renew(self, engine: Engine) -> bool:
        handle = self._handle
        table = handle.within.handles
        here = _one().select_from(table).where(own(handle.within, handle.id, handle.name))
        return at_once(engine, here, table, self.renew_on, self._gone)

    def end(self, engine: Engine) -> bool:
        names = self._handle.within.names
        here = _one().select_from(names).where(names.c.name == self._handle.name)
        return at_once(engine, here, names, self._close_on, lambda one: None)

    def silence(self) -> HandleLost:
        return HandleLost(self._handle.name)

    def renew_on(self, connection: Connection) -> None:
        self._handle = heartbeat_on(connection, self._handle)

    def _close_on(self, connection: Connection) -> None:
        """A handle whose time was over is closed by this look at the name, and was lost."""
        alive = self._is_there(connection, self._handle.within.clock)
        self.state = close_on(connection, self._handle)
        if not alive:
            self._error = self.silence()

    def _gone(self, connection: Connection) -> HandleLost | None:
        """Was it closed? Whether its time is over, only whoever has it locked may know."""
        return None if self._is_there(connection) else self.silence()

    def _is_there(self, connection: Connection, now: ColumnElement[Any] | None = None) -> bool:
        """By a look that waits for nobody: is it stored, and does it last longer than ``now``?"""
        within = self._handle.within
        found = _one().where(own(within, self._handle.id, self._handle.name))
        if now is not None:
            found = found.where(within.handles.c.until > now)
        return native(connection, found).first() is not None


def opened_from(
    session: Session, name: Any, access: str, share: str, on_lost: OnLost | None, **options: Any
) -> tuple[Opened, Engine]:
    """Open it in the session's transaction; and the engine by which heartbeats are sent."""
    began = time.monotonic()
    engine = connection_of(session, "opened", options["within"]).engine
    require_own_connections(engine, "shares.opened", "open() and heartbeat()")
    return Opened(open(session, name, access, share, **options), on_lost, began), engine


def _one() -> Select[tuple[int]]:
    return select(literal_column("1"))
