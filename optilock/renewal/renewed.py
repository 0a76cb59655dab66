"""Something that is held, and ends unless it is renewed; what a thread and a task have in common.

It is renewed on a connection of its own, for as long as one UPDATE takes, and waits for nobody:
while somebody has the row locked, perhaps the holder's own transaction, that is left for later. A
server that does not answer is not waited for either: once the time is over in which it was heard of
last, by our own clock, it counts as lost.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from sqlalchemy import Connection, Engine, Select, Table
from sqlalchemy.exc import StatementError
from sqlalchemy.orm import Session
from sqlalchemy.pool import SingletonThreadPool, StaticPool

from optilock.dialects import database_of
from optilock.errors import ConfigurationError, OptilockError
from optilock.unit.parts import Part
from optilock.watched.session.connections import connection_apart

__all__ = ["PATIENCE", "OnLost", "Renewed", "at_once", "require_own_connections"]

_log = logging.getLogger("optilock")
#: Called once, with the error, by whoever renews: a thread, or the event loop.
OnLost = Callable[[Any], object]

#: Of its length: when it is renewed, and when that is tried again.
_RENEWED_AFTER, _AGAIN_AFTER = 1 / 3, 1 / 20
#: Seconds: the longest wait for another attempt, and for all that is left to do at the end.
_LONGEST, PATIENCE = 1.0, 2.0


class Renewed(Part):
    """What a ``with`` block holds; a part of the units that write under it."""

    #: What is raised once it is lost.
    lost_as: type[OptilockError]

    def __init__(self, what: str, length: float, on_lost: OnLost | None, began: float) -> None:
        #: For messages.
        self.what, self.length = what, length
        self.on_lost = on_lost
        #: By our own clock: it is over if nothing has been heard of it since.
        self._until = began + length
        self._error: Any = None
        self._renewing = threading.Lock()
        #: How to wait without keeping others from going on: an event loop has its own way.
        self.pause: Callable[[float], object] = time.sleep

    # -- what a lease, or a handle, says -----------------------------------------------------------

    def renew(self, engine: Engine) -> bool:
        """Renew it, unless somebody has locked it: ``False``.

        Raises:
            OptilockError: it is lost.
        """
        raise NotImplementedError

    def end(self, engine: Engine) -> bool:
        """End it, unless somebody has locked it: ``False``.

        Raises:
            OptilockError: it was lost before.
        """
        raise NotImplementedError

    def silence(self) -> OptilockError:
        """What there is to say where nothing has been heard of it until its end."""
        raise NotImplementedError

    def renew_on(self, connection: Connection) -> None:
        """Renew it in a transaction of the holder's.

        Raises:
            OptilockError: it is lost.
        """
        raise NotImplementedError

    def heard(self, began: float) -> None:
        """It lasts for a whole length again, from ``began`` by our own clock."""
        self._until = began + self.length

    # -- what its holder asks ----------------------------------------------------------------------

    def check(self) -> None:
        """Raise if it is lost: to be called before what cannot be taken back.

        Raises:
            LeaseLost, HandleLost: so it is, by what was last heard of it.
        """
        if self._error is not None:
            raise self._error
        if time.monotonic() >= self._until:
            raise self.silence()

    # -- a unit that reads a snapshot --------------------------------------------------------------

    def connected(self, session: Session, connection: Connection) -> None:
        """A snapshot must hold the row as it will be when the unit writes under it.

        It begins with this statement, and not while a renewal is under way, whose COMMIT would come
        after it.
        """
        if not database_of(connection.dialect).reads_snapshot(connection):
            return
        began = time.monotonic()
        ours = self._wait_for_renewal(began + PATIENCE)
        try:
            self.renew_on(connection)
        finally:
            if ours:
                self._renewing.release()
        self.heard(began)

    def _wait_for_renewal(self, until: float) -> bool:
        """Keep others from renewing; ``False``: one of them takes too long."""
        while not self._renewing.acquire(blocking=False):
            if time.monotonic() >= until:
                return False
            self.pause(0.005)
        return True

    # -- renewal -----------------------------------------------------------------------------------

    @property
    def soon(self) -> float:
        """Seconds until another attempt."""
        return min(_LONGEST, self.length * _AGAIN_AFTER)

    @property
    def first_wait(self) -> float:
        """Seconds from one renewal to the next."""
        return self.length * _RENEWED_AFTER

    @property
    def left(self) -> float:
        """Seconds until it is over, if nothing more is heard of it."""
        return self._until - time.monotonic()

    def renew_once(self, engine: Engine) -> float:
        """Renew it, if that is possible at once; the seconds until the next attempt.

        Raises:
            LeaseLost, HandleLost: it is lost.
        """
        began = time.monotonic()
        if not self._renewing.acquire(blocking=False):
            return self.soon  # a unit of the holder's does
        try:
            if not self.renew(engine):
                if self.left <= 0:
                    raise self.silence()
                return self.soon
        except self.lost_as:
            raise
        except Exception as error:
            _hide_parameters(error)
            if self.left <= 0:
                raise self.silence() from error
            _log.warning("Renewing %s has failed, and is tried again: %s", self.what, _said(error))
            return self.soon
        finally:
            self._renewing.release()
        self.heard(began)
        return self.first_wait

    def lose(self, error: OptilockError) -> None:
        """It is lost: tell the holder."""
        self._error = error
        if self.on_lost is not None:
            try:
                self.on_lost(error)
            except Exception:
                _log.exception("on_lost= of %s has raised", self.what)

    # -- the end -----------------------------------------------------------------------------------

    @property
    def is_lost(self) -> bool:
        return self._error is not None

    def end_once(self, engine: Engine) -> bool:
        """End it; ``False``: somebody has locked it, so it ends by itself unless tried again."""
        if self._error is not None:
            return True
        try:
            return self.end(engine)
        except self.lost_as as error:
            self._error = error
        except Exception as error:
            self.not_ended(_said(error))
        return True

    def not_ended(self, why: str) -> None:
        """It was not ended in time."""
        _log.warning("Ending %s has failed, so it ends by itself: %s", self.what, why)

    def conclude(self, error: BaseException | None) -> None:
        """Raise what the holder has to know; where another error leaves the block, beside it.

        Raises:
            LeaseLost, HandleLost: it was lost before the end of the block.
        """
        if self._error is None:
            return
        if error is None:
            raise self._error
        if error is not self._error:
            error.add_note(f"optilock: {self._error}")


def at_once(
    engine: Engine,
    here: Select[Any],
    table: Table,
    do: Callable[[Connection], object],
    look: Callable[[Connection], Exception | None],
) -> bool:
    """Do it with the row of ``here``, on a connection of its own; ``False``: somebody has it.

    Raises:
        Exception: what ``look`` says of a row that somebody has, or that is gone.
    """
    with connection_apart(engine) as connection, connection.begin():
        if database_of(connection.dialect).lock_at_once(connection, here, table):
            do(connection)
            return True
    with connection_apart(engine) as connection:
        why = look(connection)
    if why is not None:
        raise why
    return False


def _hide_parameters(error: Exception) -> None:
    """An id is among them, and whoever knows it is the holder."""
    if isinstance(error, StatementError):
        error.hide_parameters = True


def _said(error: Exception) -> str:
    """Of an error of the driver, without the statement and its parameters."""
    cause = getattr(error, "orig", None) or error
    text = ""
    with suppress(Exception):
        text = " ".join(str(cause).split())
    return f"{type(cause).__name__}: {text[:300]}"


def require_own_connections(engine: Engine, call: str, otherwise: str) -> None:
    """Refuse an engine whose connections are all the same one.

    Raises:
        ConfigurationError: renewal would be part of the holder's own transaction.
    """
    if isinstance(engine.pool, (StaticPool, SingletonThreadPool)):
        raise ConfigurationError(
            f"{call}() renews on a connection of its own, and this engine has one for all"
            f" ({type(engine.pool).__name__}): use a database in a file or on a server, or"
            f" {otherwise} by yourself."
        )
