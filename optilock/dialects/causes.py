"""Why a database ended a statement or a transaction, in one word for every engine.

The driver determines the database, and then only its codes count (:class:`ErrorCodes`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from types import MappingProxyType

from sqlalchemy.exc import DBAPIError, IntegrityError

from optilock._undocumented.connections import is_raised_while_connecting


class Cause(Enum):
    """The effect of a driver's error on its transaction."""

    #: The change that another transaction committed ended ours: it read what is no longer true.
    CONFLICT = "conflict"
    #: Transactions waited for each other, and ours was chosen to give way.
    DEADLOCK = "deadlock"
    #: Another transaction held the lock for longer than the wait allowed.
    LOCK_TIMEOUT = "lock timeout"
    #: There is no connection any more. Before COMMIT was sent that is a rollback.
    CONNECTION_LOST = "connection lost"
    #: A table was altered after the driver, or the snapshot, had looked at it: look again.
    ALTERED_TABLE = "altered table"
    #: The database itself reports that it does not know whether the work is stored.
    UNKNOWN_OUTCOME = "unknown outcome"
    #: Anything else: running the same work again would end the same way.
    OTHER = "other"


def by_code(*rows: tuple[Cause, tuple[str | int, ...]]) -> Mapping[str | int, Cause]:
    """Return code -> cause, from a table that has the codes of each cause; its order is kept."""
    return MappingProxyType({code: cause for cause, codes in rows for code in codes})


def error_chain(error: BaseException | None) -> Iterator[BaseException]:
    """The driver's error and what it was raised from.

    SQLAlchemy's async adapters raise an error of their own ``from`` the driver's.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        yield error
        seen.add(id(error))
        error = error.__cause__


def is_raised_by(error: BaseException, drivers: tuple[str, ...]) -> bool:
    """Return whether one of these packages defines the error's class, or a base of it."""
    return any(
        kind.__module__ == driver or kind.__module__.startswith(driver + ".")
        for kind in type(error).__mro__
        for driver in drivers
    )


class ErrorCodes:
    """The causes of one engine's errors, by their codes."""

    #: Packages of the drivers whose errors this class answers for.
    drivers: tuple[str, ...] = ()
    #: Code -> cause. These two are the standard's own (ISO/IEC 9075-2, class 40).
    causes: Mapping[str | int, Cause] = MappingProxyType(
        {"40001": Cause.CONFLICT, "40003": Cause.UNKNOWN_OUTCOME}
    )
    #: Codes that mean something else when COMMIT raises them.
    causes_at_commit: Mapping[str | int, Cause] = MappingProxyType({})
    #: Codes of a lost connection which prove that no COMMIT was carried out on it.
    lost_before_commit: frozenset[str | int] = frozenset()
    #: Codes of a connection that the server has ended because its program paused in a transaction.
    paused: frozenset[str | int] = frozenset()
    #: Codes of an interrupt that may come after COMMIT was carried out, if COMMIT raises them.
    interrupts_commit: frozenset[str | int] = frozenset()

    def codes(self, error: BaseException) -> Iterator[str | int]:
        """The codes in one error of the driver, the most exact first; none if it has none."""
        sqlstate = getattr(error, "sqlstate", None)
        if isinstance(sqlstate, str):
            yield sqlstate

    def classify(self, error: DBAPIError, *, at_commit: bool = False) -> Cause:
        """Why the database refused, decided by its codes alone."""
        codes = self._codes(error)
        known = {**self.causes, **self.causes_at_commit} if at_commit else self.causes
        cause = next((known[code] for code in codes if code in known), None)
        if cause is not None:
            return cause
        lost = error.connection_invalidated or (not codes and self._connects_later(error))
        return Cause.CONNECTION_LOST if lost else Cause.OTHER

    def _connects_later(self, error: DBAPIError) -> bool:
        return is_raised_while_connecting(error) and any(
            map(self.connect_may_pass, error_chain(error.orig))
        )

    def connect_may_pass(self, error: BaseException) -> bool:
        """Return whether a connect that failed without a code may succeed later."""
        return isinstance(error, OSError)

    def unwrapped(self) -> tuple[type[Exception], ...]:
        """Return an installed driver's errors of a failed connect that SQLAlchemy does not wrap."""
        return ()

    def rolled_back(self, error: DBAPIError) -> bool:
        """Return whether this error of COMMIT proves that nothing was stored.

        Only an answer of the database does. Silence does not: a lost connection looks the same
        whether the work was stored or not.
        """
        codes = self._codes(error)
        if is_raised_while_connecting(error) or not self.lost_before_commit.isdisjoint(codes):
            return True
        interrupted = not self.interrupts_commit.isdisjoint(codes)
        if error.connection_invalidated or (interrupted and error.statement is None):
            return False
        cause = self.classify(error, at_commit=True)
        answered = bool(codes) or isinstance(error, IntegrityError)
        return answered and cause not in (Cause.CONNECTION_LOST, Cause.UNKNOWN_OUTCOME)

    def ended_pause(self, error: DBAPIError) -> bool | None:
        """Return whether the server ended a pause; None if no code of the error can tell."""
        codes = self._codes(error)
        return not self.paused.isdisjoint(codes) if codes and self.paused else None

    def has_old_plans(self, error: BaseException) -> bool:
        """Return whether the error means that a table was altered after a statement was prepared.

        Each of the pool's connections has prepared it, and would say so once.
        """
        return False

    def _codes(self, error: DBAPIError) -> list[str | int]:
        chain = error_chain(error.orig)
        ours = (one for one in chain if not self.drivers or is_raised_by(one, self.drivers))
        return [code for one in ours for code in self.codes(one)]
