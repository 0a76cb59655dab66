"""Faults of a database and its network, at a place that the test chooses.

::

    from optilock.testing import Faults

    def test_an_order_is_stored_once(engine):
        with Faults(engine) as faults:
            with faults.commit_lost(stored=True):
                place_order(42)
        assert orders() == [42]

==========================  ========================================================================
``commit_lost(stored=…)``   the connection is lost at COMMIT, after it was carried out or before
``cut(statement=3)``        the connection is lost at the third statement
``conflict(Page, 1)``       another transaction changes the row just before it is written
``deadlock()``              the database ends the transaction at its next write: a deadlock
==========================  ========================================================================

Each method arms a fault at once, for the next statement that it suits. As a context manager it is
withdrawn at the end of the block. A fault that was not met raises :class:`FaultNotMet` there, or at
the end of ``with Faults``: a test whose fault never happens proves nothing. ``times=2`` is for two
in succession, such as two attempts. (An adaptive unit locks the row of a ``conflict`` in its second
attempt, so it needs ``strategy="optimistic"`` to meet a second one.)

**They are real.** Each connection to a server goes by way of this process
(:mod:`optilock.testing.lines`), which ends it, or has the server itself refuse. So the driver's own
error comes out, and its connection is gone. On SQLite the connection is closed, and a deadlock is
the answer that SQLite gives in place of one ("database is locked"). A write outside of a
transaction commits itself, and counts as COMMIT.

The engine may be in use. Its pool connects again when it is next asked for a connection. SQLite in
memory, an engine that connects by ``creator=``, and connections that demand TLS are refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine, event
from sqlalchemy.exc import DisconnectionError

from optilock.errors import ConfigurationError, OptilockError
from optilock.testing.by_way_of import Route, route_of
from optilock.testing.lines import Action
from optilock.testing.other_writers import change_of, mapper_of
from optilock.testing.sql_texts import Statement, changes_or_locks, is_write

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

__all__ = ["Fault", "FaultNotMet", "Faults"]

_LINE = "optilock_testing_line"


class FaultNotMet(OptilockError, AssertionError):
    """An armed fault did not happen, or not as often as the test demands."""


class Fault:
    """An armed fault; as a context manager it is withdrawn at the end of the block."""

    def __init__(
        self,
        call: str,
        action: Action,
        times: int,
        suits: Callable[[Statement], bool],
        withdraw: Callable[[Fault], None],
        change: Callable[[], None] | None = None,
    ) -> None:
        _require_count(call, "times", times)
        self.action = action
        #: How often it has happened.
        self.met = 0
        self._call, self._times, self._suits, self._withdraw = call, times, suits, withdraw
        self._claimed = 0
        self._last: object = None
        self._change = change
        self._failure: Exception | None = None

    def __repr__(self) -> str:
        return f"<Fault {self._call}, met {self.met} of {self._times} times>"

    def __enter__(self) -> Fault:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.withdraw()
        if error is None:
            self.require_met()

    def withdraw(self) -> None:
        """Disarm it; whether it was met is not asked any more."""
        self._withdraw(self)

    def require_met(self) -> None:
        """Raise ``FaultNotMet`` unless it has happened as often as was demanded."""
        if self._failure is not None:
            raise FaultNotMet(f"{self._call} could not happen. {self._failure}") from self._failure
        if self.met < self._times:
            raise FaultNotMet(
                f"{self._call} happened {self.met} of {self._times} times while it was armed. No"
                " (further) statement that it suits was sent over the engine of Faults(). Check"
                " that the code under test uses this engine, and that it gets as far as the fault."
            )

    # -- called by the lines -----------------------------------------------------------------------

    def claim(self, statement: Statement) -> bool:
        """Return whether it happens to this statement; then the statement has it for itself."""
        if not self._suits(statement):
            return False
        if self._change is not None and statement.transaction is self._last:
            return False
        self._last = statement.transaction
        return self.claim_once()

    def claim_once(self) -> bool:
        """Return whether it may happen once more, and note that it does."""
        if self._claimed >= self._times:
            return False
        self._claimed += 1
        return True

    def give_back(self) -> None:
        self._claimed -= 1

    def happened(self) -> None:
        self.met += 1

    def write(self) -> None:
        """Do the other transaction's write."""
        assert self._change is not None
        try:
            self._change()
        except Exception as error:
            self._failure = error
        else:
            self.happened()


class Faults:
    """Faults of one engine; a context manager.

    Raises ``ConfigurationError`` for an engine whose connections cannot be led through this
    process.
    """

    def __init__(self, engine: Engine | AsyncEngine) -> None:
        found = getattr(engine, "sync_engine", engine)
        if not isinstance(found, Engine):
            raise ConfigurationError(
                f"Faults() got {type(engine).__name__!r}. Pass the Engine or AsyncEngine that the"
                " sessions are bound to."
            )
        self._engine = found
        self._route: Route = route_of(found)
        self._lock = threading.Lock()
        self._armed: list[Fault] = []
        #: Faults of the n-th statement.
        self._numbered: dict[Fault, _Count] = {}
        self._open = False

    def __repr__(self) -> str:
        return f"<Faults of {self._engine.url.get_backend_name()}, {len(self._armed)} armed>"

    def __enter__(self) -> Faults:
        self._open = True
        for target, name, listener in self._listeners():
            event.listen(target, name, listener)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for target, name, listener in self._listeners():
            event.remove(target, name, listener)
        self._open = False
        with self._lock:
            armed, self._armed = self._armed, []
        if error is None:
            for fault in armed:
                fault.require_met()

    def _listeners(self) -> list[tuple[Any, str, Callable[..., Any]]]:
        engine = self._engine
        return [
            (engine, "do_connect", self._do_connect),
            (engine, "checkout", self._checkout),
            (engine, "before_cursor_execute", self._before_cursor_execute),
        ]

    # -- the faults --------------------------------------------------------------------------------

    def commit_lost(self, *, stored: bool, times: int = 1) -> Fault:
        """Lose the connection at the next COMMIT: after it was carried out, or before.

        Not met are the COMMIT of a transaction that has only read, and one that the database
        refuses: its answer is passed on.
        """
        if not isinstance(stored, bool):
            raise ConfigurationError(
                f"commit_lost(stored={stored!r}): write True for a COMMIT that is carried out, or"
                " False for one that never arrives."
            )
        action = Action.LOSE_ANSWER if stored else Action.LOSE
        return self._arm(f"commit_lost(stored={stored})", action, times, _stores)

    def cut(self, *, statement: int = 1, times: int = 1) -> Fault:
        """Lose the connection at the n-th statement from now, which is not carried out.

        They are counted over all connections, as :func:`~optilock.testing.count_statements` counts.
        """
        call = f"cut(statement={statement!r})"
        _require_count(call, "statement", statement)
        return self._arm(call, Action.LOSE, times, lambda _: False, number=statement)

    def deadlock(self, *, times: int = 1) -> Fault:
        """Let the database end the transaction at its next write, as it ends a deadlock."""
        return self._arm("deadlock()", Action.DEADLOCK, times, lambda one: is_write(one.text))

    def conflict(
        self,
        cls: type[Any],
        key: object,
        /,
        *,
        times: int = 1,
        at_write: int = 1,
        **values: object,
    ) -> Fault:
        """Let another transaction change a row just before the next one changes or locks it.

        It sets ``values``; without any it moves the version. It happens once in a transaction, at
        its first statement that changes, deletes or locks rows of the table. With ``at_write=3`` it
        happens at the third such statement from now. They are counted over all connections, as
        :func:`~optilock.testing.count_statements` counts.
        """
        call = f"conflict({getattr(cls, '__name__', cls)!s}, {key!r})"
        _require_count(call, "at_write", at_write)
        change = change_of(call, cls, key, values)
        tables = tuple(str(getattr(one, "name", "")) for one in mapper_of(call, cls).tables)
        write = partial(self._route.write, change)
        arm = partial(self._arm, call, Action.WRITE_FIRST, times, change=write)
        if at_write == 1:
            return arm(lambda one: one.changes_or_locks(tables))
        counts = partial(changes_or_locks, tables=tables)
        return arm(lambda _: False, number=at_write, counts=counts)

    def _arm(
        self,
        call: str,
        action: Action,
        times: int,
        suits: Callable[[Statement], bool],
        *,
        number: int | None = None,
        counts: Callable[[str], bool] = bool,
        change: Callable[[], None] | None = None,
    ) -> Fault:
        if not self._open:
            raise ConfigurationError(
                f"{call} needs an open Faults: write `with Faults(engine) as faults:` around it, or"
                " use the fixture optilock_faults."
            )
        fault = Fault(call, action, times, suits, self._withdraw, change)
        with self._lock:
            self._armed.append(fault)
            if number is not None:
                self._numbered[fault] = _Count(number, counts)
        return fault

    def _withdraw(self, fault: Fault) -> None:
        with self._lock:
            self._numbered.pop(fault, None)
            if fault in self._armed:
                self._armed.remove(fault)

    # -- the engine --------------------------------------------------------------------------------

    def choose(self, statement: Statement) -> Fault | None:
        """Return the first armed fault that happens to this statement."""
        with self._lock:
            return next((fault for fault in self._armed if fault.claim(statement)), None)

    def _do_connect(self, dialect: Any, record: Any, positional: Any, named: Any) -> None:
        try:
            record.info[_LINE] = self, self._route.lead(self.choose, positional, named)
        except OSError:  # the server is away: the driver reports it
            record.record_info.pop(_LINE, None)

    def _checkout(self, driver_connection: Any, record: Any, proxy: Any) -> None:
        if record.info.get(_LINE, (None,))[0] is self:
            return
        if record.record_info.get(_LINE) is self:
            raise ConfigurationError(
                "Faults() cannot lead a connection of this engine through the process, because"
                " something else connects it: creator=, or a listener to do_connect. Give the"
                " engine a URL and connect_args."
            )
        record.record_info[_LINE] = self
        raise DisconnectionError("made before Faults()")  # the pool opens a new connection

    def _before_cursor_execute(
        self, connection: Any, cursor: Any, text: str, parameters: Any, context: Any, many: bool
    ) -> None:
        with self._lock:
            for fault, count in self._numbered.items():
                if count.is_reached(text) and fault.claim_once():
                    count.passed = 0
                    connection.info[_LINE][1].due = fault
                    return


@dataclass
class _Count:
    """The statements of a fault that happens at the n-th one, and how many have passed."""

    number: int
    counts: Callable[[str], bool]
    passed: int = 0

    def is_reached(self, text: str) -> bool:
        """Count a statement, and return whether it is the n-th one."""
        self.passed += self.counts(text)
        return self.counts(text) and self.passed == self.number


def _stores(statement: Statement) -> bool:
    return statement.stores


def _require_count(call: str, name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigurationError(f"{call}: {name}={value!r} must be a number, 1 or more.")
