"""How a unit joins the running one, or stays separate from it: the same for both kinds of units.

Units join when they are opened on the same sessions. On another factory, or the engine itself, the
inner unit is a transaction of its own, though the program has not asked for that with
``propagation="independent"``. Its commit stays when the outer unit fails. If both write a row, the
inner unit waits for the outer unit's lock for ever, because the outer one waits for the inner one.
No database detects that: half of the circle is in the program. So the inner unit warns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, Self

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from optilock._watched.session.connections import binds_of_sessions
from optilock._watched.session.record import warn_caller
from optilock.errors import ConfigurationError, SeparateUnitWarning
from optilock.exactly_once.errors import AlreadyDone, KeyReused
from optilock.exactly_once.hooks import open_savepoints
from optilock.exactly_once.keys import KeyedCall, call_of_block
from optilock.exactly_once.units import claim, store_result
from optilock.unit import running_units
from optilock.unit.functions import unit_function
from optilock.unit.next_attempt import NextAttempt
from optilock.unit.options import Options, options_from
from optilock.unit.parts import leave_parts
from optilock.unit.retries import Policy
from optilock.unit.sessions import ReplacedSession, owner_of, same_database
from optilock.unit.transaction import OwnTransaction


class Transaction(Protocol):
    """The transaction that a unit of work opens and leaves."""

    def begin(self) -> None: ...
    def prepare(self) -> None: ...
    def complete(self, error: BaseException | None) -> None: ...


class Membership:
    """The transaction of a unit, and its entry in the units that run."""

    _sessions: Any
    _options: Options
    _transaction: Transaction
    #: Between the attempts of a function with a strategy that locks.
    _next_attempt: NextAttempt | None = None
    #: The call under a key that the unit is for.
    _call: KeyedCall | None = None
    #: How a decorated function runs again; None: no option of a retry is given.
    _policy: Policy | None = None
    #: It is an attempt of a decorated function, not a block.
    _is_attempt = False
    _used = False
    #: Its entry, for units inside it.
    _running: running_units.RunningUnit | None = None
    #: The registry of a scoped session, and the session that it had.
    _scope: tuple[Any, Any] | None = None

    def __init__(self, sessions: Any, options: Mapping[str, Any]) -> None:
        self._sessions = sessions
        self._policy, self._options = options_from(options)
        self._options.opened(sessions)

    @classmethod
    def from_checked(
        cls,
        sessions: Any,
        options: Options,
        next_attempt: NextAttempt | None = None,
        call: KeyedCall | None = None,
    ) -> Self:
        """Return an attempt, of options and sessions that were checked before."""
        unit = cls.__new__(cls)
        vars(unit).update(
            _sessions=sessions,
            _options=options,
            _next_attempt=next_attempt,
            _call=call,
            _is_attempt=True,
        )
        return unit

    def _function(self, function: Any, *, asynchronous: bool) -> Any:
        return unit_function(
            type(self),
            function,
            self._sessions,
            self._policy,
            self._options,
            asynchronous=asynchronous,
        )

    def require_block(self) -> None:
        """Refuse what only a decorated function can have, and take the key.

        Raises:
            ConfigurationError: an option is of a retry, or the key is a function.
        """
        if self._policy is not None:
            raise ConfigurationError(
                "a block (`with`) runs once, and this unit of work has an option of a retry"
                f" ({self._policy.given}): decorate a function with it, or give the option to"
                " @optilock.retry(...) on the function that has the block. Nothing was sent."
            )
        self._call = call_of_block(self._options.exactly_once)

    def _outer(self) -> OwnTransaction | None:
        """Return the running unit that this one joins."""
        if self._used:
            raise ConfigurationError(
                "this unit of work has already been entered: one object is one unit, so make a"
                " new one for each (or decorate a function with unit_of_work)."
            )
        self._used = True
        if not self._is_attempt:
            self.require_block()
        if not running_units.inside_unit():
            return None
        outer = None
        if self._options.propagation != "independent":
            outer = running_units.find_unit(self._sessions, OwnTransaction)
            if outer is None and not self._options.read_only:  # it would wait for no row
                warn_of_enclosing_units(self._sessions)
        if self._call is not None:
            self._require_own_key(self._call, outer)
        if outer is not None:
            self._options.require_room_in(outer.options)
            if self._options.exactly_once and self._call is None and outer.token is None:
                raise ConfigurationError(_NO_COMMIT)
        return outer

    def _require_own_key(self, call: KeyedCall, outer: OwnTransaction | None) -> None:
        """Refuse the key of a unit around this one, for whose end this one would wait."""
        for running in running_units.units_here():
            unit: Any = running.unit
            if not any(one.token == call.token for one in unit.calls):
                continue
            if unit is outer:
                raise ConfigurationError(_SAME_KEY)
            if call.wait is None and _share_database(self._sessions, running.key):
                raise ConfigurationError(_KEY_AROUND)

    def _join(self, outer: OwnTransaction) -> Transaction:
        place = SavepointPlace if self._options.propagation == "savepoint" else JoinedPlace
        return place(outer, self._call)

    @property
    def _stored(self) -> OwnTransaction | None:
        """The unit's own transaction, if functions are to be called now that it is stored."""
        own = self._transaction
        return own if isinstance(own, OwnTransaction) and own.hooks and own.is_stored else None

    def _announce(self, unit: OwnTransaction) -> None:
        """Let inner units and a scoped session's proxy find ``unit``."""
        self._running = running_units.enter_unit(self._sessions, unit)
        registry = getattr(self._sessions, "registry", None)  # of a scoped session
        if registry is not None:
            previous = registry() if registry.has() else None
            self._scope = registry, previous
            registry.set(unit.public)
            session = getattr(previous, "sync_session", previous)
            # Changes in the scope's own session are not the unit's. An outer unit stores its own.
            if session is not None and owner_of(session) is None:
                unit.replaced = ReplacedSession(session)

    def _over(self) -> None:
        """Take the unit from those that run, and put the scope's session back."""
        if self._running is not None:
            running_units.leave_unit(self._running)
        if self._scope is not None:
            registry, previous = self._scope
            if previous is None:
                registry.clear()
            else:
                registry.set(previous)
        if isinstance(own := self._transaction, OwnTransaction) and own.standing:
            leave_parts(own.standing, own.session)


# -- units on other sessions ----------------------------------------------------------------------


def warn_of_enclosing_units(sessions: Any) -> None:
    """Warn if a unit on other sessions of the same database runs here already."""
    around = [one.key for one in running_units.units_here() if one.key is not sessions]
    if any(_share_database(sessions, one) for one in around):
        warn_caller(
            "this unit of work does not join the one that runs already, because it was opened on"
            " other sessions of the same database: it commits on its own, and where both write a"
            " row it waits for ever for the unit around it. Open both on one sessionmaker, or give"
            ' the inner one propagation="independent" if two transactions are meant.',
            SeparateUnitWarning,
        )


def _share_database(sessions: Any, around: Any) -> bool:
    """Return whether units on these sessions would be two transactions of one database."""
    ours, theirs = binds_of_sessions(sessions), binds_of_sessions(around)
    return any(same_database(one, other) for one in ours for other in theirs)


def find_unit_around(engine: Engine) -> OwnTransaction | None:
    """Return the innermost unit that runs here, writes, and is on the same database."""
    for running in reversed(running_units.units_here()):
        unit = running.unit
        binds = binds_of_sessions(running.key)
        if (
            isinstance(unit, OwnTransaction)
            and not unit.options.read_only
            and any(same_database(engine, bind) for bind in binds)
        ):
            return unit
    return None


# -- places in the outer unit ---------------------------------------------------------------------


class JoinedPlace:
    """A place in the outer unit: it commits nothing, and an error dooms the outer unit.

    Inside a savepoint the error dooms that alone: once it is rolled back, nothing is left of this.
    """

    def __init__(self, outer: OwnTransaction, call: KeyedCall | None) -> None:
        self.outer, self.call = outer, call

    def begin(self) -> None:
        if self.call is not None:
            try:
                claim(self.outer.session, self.call)
                self.outer.calls.append(self.call)
            except (AlreadyDone, KeyReused):  # nothing was written
                raise
            except BaseException as error:
                self._doom(error)
                raise
        self.outer.joined += 1

    def prepare(self) -> None:
        if self.call is not None:
            store_result(self.outer.session, self.call)

    def complete(self, error: BaseException | None) -> None:
        self.outer.joined -= 1
        if self.call is not None:
            self.outer.calls.remove(self.call)
        if error is not None:
            self._doom(error)

    def _doom(self, error: BaseException) -> None:
        self.outer.doom(error, open_savepoints(self.outer.session))


class SavepointPlace:
    """A place in the outer unit that can be undone alone."""

    def __init__(self, outer: OwnTransaction, call: KeyedCall | None) -> None:
        self.outer, self.call = outer, call

    def begin(self) -> None:
        self._nested = self.outer.session.begin_nested()
        if self.call is not None:
            try:
                claim(self.outer.session, self.call)
            except BaseException as error:
                self._end(error)
                raise
            self.outer.calls.append(self.call)
        self.outer.joined += 1

    def prepare(self) -> None:
        self.outer.refuse_doomed(self._nested)
        self.outer.session.flush()
        if self.call is not None:
            store_result(self.outer.session, self.call)

    def complete(self, error: BaseException | None) -> None:
        self.outer.joined -= 1
        if self.call is not None:
            self.outer.calls.remove(self.call)
        self._end(error)

    def _end(self, error: BaseException | None) -> None:
        if error is None:
            try:
                self._nested.commit()
            except BaseException as failed:
                self._undo(failed)
                raise
        elif self._is_open():
            self._undo(error)

    def _is_open(self) -> bool:
        """Return whether the session still has the savepoint, as it does after a failed flush."""
        transaction = self.outer.session.get_nested_transaction()
        while transaction is not None and transaction is not self._nested:
            transaction = transaction.parent
        return transaction is not None

    def _undo(self, error: BaseException) -> None:
        try:
            self._nested.rollback()
        except Exception as broken:
            self.outer.doom(error)
            if isinstance(broken, DBAPIError):
                self.outer.broken_by = self.outer.broken_by or broken


_SAME_KEY = (
    "this unit has the key of a unit that is open around it, under which nothing is stored yet:"
    " give it a key of its own, or none to join without one."
)
_KEY_AROUND = (
    "this unit has the key of a unit that is open around it, in a transaction of its own, which"
    " would wait for ever: the unit around it ends only after this one. Give it a key of its own,"
    " or exactly_once=Once(key, wait=seconds). Nothing of this unit was sent."
)
_NO_COMMIT = (
    "exactly_once=True finds out what became of a unit's own COMMIT, and this unit joins one that"
    ' has begun without it: give exactly_once=True to the outer unit, or propagation="independent"'
    " to this one; or give a key, which is stored or undone with the outer unit."
)
