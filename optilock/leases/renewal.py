"""Renewal of a lease or a handle while a ``with`` block runs.

It is one UPDATE that commits itself, on a connection of its own, so a process that is stopped
leaves no lock. It waits for no lock either: while another transaction has locked the row, perhaps
the holder's own, it is tried again later. It does not wait for a server that does not answer. When
the time of the last answer is over, by our own clock, the lease or handle counts as lost.

Lost is lost: once the holder has learned it, from ``on_lost=``, ``held.check()``, ``held.lost`` or
an error of a unit under it, the lease is not renewed any more. No unit begins under it, and no
transaction under it is committed.

A thread renews it (:mod:`optilock.leases.threads`), or a task (:mod:`optilock.leases.tasks`). Each
attempt has a thread or a task of its own. One that waits for a server that does not answer is left
behind, so the holder learns of it in time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import StatementError
from sqlalchemy.orm import Session, SessionTransaction
from sqlalchemy.pool import SingletonThreadPool, StaticPool

from optilock import events
from optilock._coroutines import result_of
from optilock._watched.session.order import add_step
from optilock.dialects import database_of
from optilock.errors import ConfigurationError, OptilockError
from optilock.unit.parts import Part

E = TypeVar("E", bound=OptilockError)

_log = logging.getLogger("optilock")
#: Called once, with the error, by the thread that renews, or by the event loop.
OnLost = Callable[[Any], object]

#: Parts of its length: from one renewal to the next, and to another attempt.
_RENEWED_AFTER, _AGAIN_AFTER = 1 / 3, 1 / 20
#: Seconds: the longest wait for another attempt, and the longest end of a block.
_LONGEST, PATIENCE = 1.0, 2.0


class RenewedPart(Part, Generic[E]):
    """A lease or a handle of a ``with`` block; a part of the units that write under it."""

    #: "lease", or "handle".
    kind: ClassVar[str]
    #: The error that is raised after it is lost.
    lost_as: type[E]

    def __init__(self, what: str, length: float, on_lost: OnLost | None, began: float) -> None:
        #: For messages.
        self.what, self.length = what, length
        self.on_lost = on_lost
        #: By our own clock: when it is lost without another renewal.
        self._until = began + length
        self._error: E | None = None
        #: The last failure that was logged: the same one is not logged again and again.
        self._logged = ""
        #: The block has ended, so the local clock no longer counts.
        self._over = False
        #: It is lost, or it is renewed: one thread decides that.
        self._settling = threading.Lock()
        self._renewing = threading.Lock()
        #: Sleeps for seconds; a task replaces it.
        self.pause: Callable[[float], object] = time.sleep

    # -- in a lease, or a handle -------------------------------------------------------------------

    def renew(self, engine: Engine) -> bool:
        """Renew it; return ``False`` if another transaction has locked it.

        Raises:
            OptilockError: it is lost.
        """
        raise NotImplementedError

    def end(self, engine: Engine) -> bool:
        """End it; return ``False`` if another transaction has locked it.

        Raises:
            OptilockError: it was lost before.
        """
        raise NotImplementedError

    def silence(self) -> E:
        """Return the error for a lease or handle that was not renewed until its end."""
        raise NotImplementedError

    def renew_on(self, connection: Connection) -> None:
        """Renew it in a transaction of the holder.

        Raises:
            OptilockError: it is lost.
        """
        raise NotImplementedError

    def use(self, session: Session) -> None:
        """Let a watched session write under it from here on."""
        raise NotImplementedError

    def begin(self, session: Session) -> None:
        self.use(session)

    def before_flush(self, session: Session) -> None:
        self.check()

    def after(self, session: Session, error: BaseException | None) -> None:
        if isinstance(error, self.lost_as) and self.is_mine(error):
            self.note_lost(error)

    def is_mine(self, error: E) -> bool:
        """Return whether the error of a write is about this lease or handle."""
        raise NotImplementedError

    def refuse_commits_of(self, session: Session) -> None:
        """From here on, refuse to commit what the session has written once this is lost."""
        holds = session.__dict__.setdefault(_HELD, {})
        for one in [one for one in holds if one.ended_in_time]:
            del holds[one]
        holds[self] = None
        add_step("held", _HELD, before_commit=_refuse_lost)

    @property
    def ended_in_time(self) -> bool:
        """Whether its block is over, and it was not lost."""
        return self._over and self._error is None

    def note_renewed(self, began: float) -> None:
        """Note that it lasts for a whole length again, from ``began`` by our own clock.

        Raises:
            LeaseLost, HandleLost: it is lost.
        """
        with self._settling:
            if self._error is None and time.monotonic() < self._until:
                self._until = began + self.length
                return
        raise self.note_lost(self.silence())

    def note_lost(self, error: E) -> E:
        """Note that it is lost; return the first error that has said so."""
        with self._settling:
            if self._error is not None:
                return self._error
            self._error = error
        events.emit(lambda: events.Lost(self.kind, self.what, error))
        return error

    # -- for its holder ----------------------------------------------------------------------------

    @property
    def lost(self) -> E | None:
        """The error, once it is lost. It stays lost."""
        if self._error is None and not self._over and self.left <= 0:
            return self.note_lost(self.silence())
        return self._error

    def check(self) -> None:
        """Raise if it is lost. Call it before an action that cannot be undone.

        Raises:
            LeaseLost, HandleLost: it is lost, as far as is known here.
        """
        error = self.lost
        if error is None and self.left <= 0:
            error = self.silence()
        if error is not None:
            raise error

    def refuse_lost(self) -> None:
        """Raise if the holder has learned that it is lost. Before that, a transaction that was
        written in time can be committed.

        Raises:
            LeaseLost, HandleLost: it is lost.
        """
        if self._error is not None:
            raise self._error

    # -- a unit that reads a snapshot --------------------------------------------------------------

    def connected(self, session: Session, connection: Connection) -> None:
        """Renew it with the first statement of a transaction that reads a snapshot.

        The database would end such a transaction if the row changed between its begin and its own
        write of it. So the row is locked from its begin, and is not renewed before its end. It does
        not begin during a renewal, whose COMMIT would come after the snapshot.
        """
        if not database_of(connection.dialect).isolation.reads_snapshot(connection):
            return
        began = time.monotonic()
        ours = self._wait_for_renewal(began + PATIENCE)
        try:
            self.renew_on(connection)
        finally:
            if ours:
                self._renewing.release()
        self.note_renewed(began)

    def _wait_for_renewal(self, until: float) -> bool:
        """Keep the thread or task from renewing; return ``False`` if it takes too long."""
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
        """Seconds until it is lost without another renewal."""
        return self._until - time.monotonic()

    def renew_once(self, engine: Engine) -> float:
        """Renew it, if that is possible at once; return the seconds until the next attempt.

        Raises:
            LeaseLost, HandleLost: it is lost.
        """
        self.check()
        began = time.monotonic()
        if not self._renewing.acquire(blocking=False):
            return self.soon  # a unit of the holder is renewing it
        try:
            if not self.renew(engine):
                self.check()
                return self.soon
            self.note_renewed(began)
            self._logged = ""
            return self.first_wait
        except self.lost_as:
            raise
        except Exception as error:
            _hide_parameters(error)
            lost = self.lost
            if lost is not None:
                raise lost from error
            self._log_failure(_text_of(error))
            return self.soon
        finally:
            self._renewing.release()

    def _log_failure(self, text: str) -> None:
        if text != self._logged:
            _log.warning("Renewing %s has failed, and is tried again: %s", self.what, text)
        self._logged = text

    def lose(self, error: Any) -> None:
        """Note that it is lost, and call ``on_lost``."""
        error = self.note_lost(error)
        if self.on_lost is not None:
            try:
                self.on_lost(error)
            except Exception:
                _log.exception("on_lost= of %s has raised", self.what)

    # -- the end -----------------------------------------------------------------------------------

    def end_once(self, engine: Engine) -> bool:
        """End it; return ``False`` if it is locked: then it ends by itself, unless tried again.

        One that is lost by our own clock may be in force in the database: it is ended, too.
        """
        try:
            return self.end(engine)
        except self.lost_as as error:
            self.note_lost(error)
        except Exception as error:
            self.not_ended(_text_of(error))
        return True

    def not_ended(self, why: str) -> None:
        """Log that it was not ended in time."""
        if self._error is None:
            _log.warning("Ending %s has failed, so it ends by itself: %s", self.what, why)

    def conclude(self, error: BaseException | None) -> None:
        """Raise the error that it was lost, or add it as a note to the error of the block.

        Raises:
            LeaseLost, HandleLost: it was lost before the end of the block.
        """
        self._over = True
        if self._error is None:
            return
        if error is None:
            raise self._error
        if error is not self._error:
            error.add_note(f"optilock: {self._error}")


#: In ``session.__dict__``: what the session writes under.
_HELD = "_optilock_held"


def _refuse_lost(session: Session) -> None:
    """Before COMMIT: raise if what the session writes under is known to be lost.

    One transaction is refused. A later one cannot write under it: its UPDATE would find no row.
    """
    holds: dict[Any, SessionTransaction | None] = session.__dict__[_HELD]
    running = session.get_transaction()
    for held, refused in list(holds.items()):
        if refused is not None and refused is not running:
            del holds[held]
            continue
        holds[held] = running
        held.refuse_lost()
        holds[held] = None


def _hide_parameters(error: Exception) -> None:
    """Keep the id out of the message: it is the holder's secret."""
    if isinstance(error, StatementError):
        error.hide_parameters = True


def _text_of(error: Exception) -> str:
    """Return the text of an error of the driver, without the statement and its parameters."""
    cause = getattr(error, "orig", None) or error
    text = ""
    with suppress(Exception):
        text = " ".join(str(cause).split())
    return f"{type(cause).__name__}: {text[:300]}"


def require_own_connections(engine: Engine, call: str, otherwise: str) -> None:
    """Raise if the engine has one connection for all callers.

    Raises:
        ConfigurationError: renewal would be part of the holder's own transaction.
    """
    if isinstance(engine.pool, (StaticPool, SingletonThreadPool)):
        raise ConfigurationError(
            f"{call}() renews on a connection of its own, and this engine has one for all"
            f" ({type(engine.pool).__name__}): use a database in a file or on a server, or"
            f" call {otherwise} yourself."
        )


# -- the loop --------------------------------------------------------------------------------------


class Attempt(Protocol):
    """A call in a thread or a task of its own. A task's methods return awaitables."""

    def is_done(self, seconds: float) -> Any:
        """Wait so long for it; return whether it is done."""

    def result(self) -> Any:
        """Return its result, or raise its error; it must be done."""

    def leave(self) -> None:
        """Do not wait for it any more."""


class Renewal:
    """The renewal of what a block holds, until its end."""

    def __init__(
        self,
        held: RenewedPart[Any],
        engine: Engine,
        *,
        attempt: Callable[[Callable[[], Any]], Attempt],
        over: Any,
        over_within: Callable[[float], Any],
        pause: Callable[[float], Any],
    ) -> None:
        """``over`` is set at the end of the block; ``over_within(seconds)`` waits for that."""
        self._held, self._engine = held, engine
        self._attempt, self._over, self._pause = attempt, over, pause
        self._over_within = over_within
        self._ending = False
        events.emit(lambda: events.Acquired(held.kind, held.what))

    async def renew(self, on_lost: Callable[[], object] = lambda: None) -> None:
        """Renew it until the block is over, or it is lost."""
        held = self._held
        wait = held.first_wait
        while not await result_of(self._over_within(min(wait, max(held.left, 0.001)))):
            attempt = self._attempt(lambda: held.renew_once(self._engine))
            done = await result_of(attempt.is_done(max(held.left, 0.001)))
            while not done and held.left > 0:  # a unit of the holder has renewed it
                done = await result_of(attempt.is_done(held.left))
            try:
                if not done:
                    attempt.leave()
                    raise held.silence()
                wait = attempt.result()
            except OptilockError as error:
                if not self._over.is_set():
                    held.lose(error)
                    on_lost()
                    await self.end(time.monotonic() + PATIENCE)
                return

    async def end(self, until: float) -> None:
        """End it. If the holder's own open transaction has locked the row, do not wait for it."""
        if self._ending:
            return
        self._ending, held = True, self._held
        soon = min(until, time.monotonic() + min(PATIENCE, held.length) / 4)
        while True:
            attempt = self._attempt(lambda: held.end_once(self._engine))
            if not await result_of(attempt.is_done(max(until - time.monotonic(), 0.001))):
                attempt.leave()
                held.not_ended("the server does not answer")
                return
            if attempt.result() or time.monotonic() >= soon:
                return
            await result_of(self._pause(0.05))
