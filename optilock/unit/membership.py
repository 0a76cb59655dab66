"""Does a unit join the one that runs already? The same for both kinds of units."""

from __future__ import annotations

from contextlib import ExitStack
from functools import cached_property
from typing import Any

from sqlalchemy.orm import Session

from optilock.errors import ConfigurationError
from optilock.unit import running
from optilock.unit.around import tell_of_units_around
from optilock.unit.beside import Beside
from optilock.unit.options import Options
from optilock.unit.sessions import owner_of
from optilock.unit.transaction import Joined, OwnTransaction, Savepoint, Transaction

__all__ = ["Membership"]


class Membership:
    """Which transaction a unit has, and that others find it while it runs."""

    def __init__(self, sessions: Any, options: Options) -> None:
        self.sessions = sessions
        self.options = options
        self._used = False
        self._running: running.Running | None = None

    @cached_property
    def _cleanup(self) -> ExitStack:
        """What is put back when the unit is over; most units have changed nothing."""
        return ExitStack()

    def outer(self) -> OwnTransaction | None:
        """The running unit that this one joins."""
        if self._used:
            self._refuse_second_use()
        self._used = True
        if self.options.independent or not running.inside_unit():
            return None
        outer = running.find(self.sessions, OwnTransaction)
        if outer is None:
            if not self.options.read_only:  # it would wait for no row
                tell_of_units_around(self.sessions)
        else:
            self.options.require_room_in(outer.options)
        return outer

    def join(self, outer: OwnTransaction) -> Transaction:
        return Savepoint(outer) if self.options.savepoint else Joined(outer)

    def announce(self, unit: OwnTransaction) -> None:
        """Let inner units, and a scoped session's proxy, find ``unit``."""
        self._running = running.enter(self.sessions, unit)
        registry = getattr(self.sessions, "registry", None)  # of a scoped session
        if registry is not None:
            previous = registry() if registry.has() else None
            self._cleanup.callback(_put_back, registry, previous)
            registry.set(unit.public)
            if previous is not None:
                self._watch(getattr(previous, "sync_session", previous), unit)

    def _watch(self, previous: Session, unit: OwnTransaction) -> None:
        """What is changed in the scope's own session meanwhile is not the unit's."""
        if owner_of(previous) is None:  # the unit around this one stores its own changes
            unit.beside = Beside(previous)
            self._cleanup.callback(unit.beside.over)

    def over(self) -> None:
        try:
            if "_cleanup" in self.__dict__:
                self._cleanup.close()
        finally:
            if self._running is not None:
                running.leave(self._running)

    def _refuse_second_use(self) -> None:
        raise ConfigurationError(
            "this unit of work has already been entered: one object is one unit, so make a"
            " new one for each (or decorate a function with unit_of_work)."
        )


def _put_back(registry: Any, previous: Any) -> None:
    if previous is None:
        registry.clear()
    else:
        registry.set(previous)
