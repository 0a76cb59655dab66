"""Does a unit join the one that runs already? The same for both kinds of units."""

from __future__ import annotations

from typing import Any, Self

from optilock.errors import ConfigurationError
from optilock.unit import running
from optilock.unit.beside import Beside, tell_of_units_around
from optilock.unit.next_attempt import Relay
from optilock.unit.options import Options
from optilock.unit.sessions import owner_of
from optilock.unit.transaction import Joined, OwnTransaction, Savepoint, Transaction


class Membership:
    """Which transaction a unit has, and that others find it while it runs."""

    _sessions: Any
    _options: Options
    #: Between the attempts of a function with a strategy that locks.
    _relay: Relay | None = None
    _used = False
    #: Its entry, for units inside of it.
    _running: running.Running | None = None
    #: The registry of a scoped session, and the session that it had.
    _scope: tuple[Any, Any] | None = None

    @classmethod
    def checked(cls, sessions: Any, options: Options, relay: Relay | None = None) -> Self:
        """A unit of options and sessions that were checked before."""
        unit = cls.__new__(cls)
        vars(unit).update(_sessions=sessions, _options=options, _relay=relay)
        return unit

    def _outer(self) -> OwnTransaction | None:
        """The running unit that this one joins."""
        if self._used:
            raise ConfigurationError(
                "this unit of work has already been entered: one object is one unit, so make a"
                " new one for each (or decorate a function with unit_of_work)."
            )
        self._used = True
        if self._options.independent or not running.inside_unit():
            return None
        outer = running.find(self._sessions, OwnTransaction)
        if outer is None:
            if not self._options.read_only:  # it would wait for no row
                tell_of_units_around(self._sessions)
        else:
            self._options.require_room_in(outer.options)
        return outer

    def _join(self, outer: OwnTransaction) -> Transaction:
        return Savepoint(outer) if self._options.savepoint else Joined(outer)

    def _announce(self, unit: OwnTransaction) -> None:
        """Let inner units, and a scoped session's proxy, find ``unit``."""
        self._running = running.enter(self._sessions, unit)
        registry = getattr(self._sessions, "registry", None)  # of a scoped session
        if registry is not None:
            previous = registry() if registry.has() else None
            self._scope = registry, previous
            registry.set(unit.public)
            session = getattr(previous, "sync_session", previous)
            # What is changed in the scope's own session meanwhile is not the unit's. The unit
            # around this one stores its own changes.
            if session is not None and owner_of(session) is None:
                unit.beside = Beside(session)

    def _over(self) -> None:
        """The unit has ended: nobody finds it any more, and what it replaced is put back."""
        if self._running is not None:
            running.leave(self._running)
        if self._scope is not None:
            registry, previous = self._scope
            if previous is None:
                registry.clear()
            else:
                registry.set(previous)
