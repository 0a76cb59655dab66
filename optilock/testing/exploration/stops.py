"""The stops of units: listeners to the engine, for as long as an exploration runs.

A unit stops before each statement, and before COMMIT and ROLLBACK of a transaction that has locked
or changed something. SAVEPOINT, RELEASE, SET, SHOW and PRAGMA are no stops. Statements of other
engines and of other threads cannot be put in order: they are found and named.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from sqlalchemy import Connection, Engine, ExceptionContext, Table, event

from optilock.dialects import database_of
from optilock.dialects.causes import Cause
from optilock.errors import ConfigurationError
from optilock.testing.exploration.dependence import Transaction, is_quiet
from optilock.testing.exploration.statement_texts import readable_text
from optilock.testing.exploration.touches import Known
from optilock.testing.exploration.turns import RUNNING, Abandoned, Step, Unit

#: In ``connection.info``: it has the settings of an exploration.
_SET = "optilock.explored"


class Stops:
    """The stops of all units on one engine; a context manager."""

    def __init__(self, engine: Engine, threads: set[int]) -> None:
        self.engine = engine
        self.database = database_of(engine.dialect)
        #: The keys of the rows that ``reset`` stores.
        self.known: Known = {}
        #: The tables of the statements so far, by name.
        self.tables: dict[str, Table] = {}
        self.deadlocks = 0
        #: Threads that are no unit's and may send statements.
        self._threads = threads
        self._fault: str | None = None
        self._error: Exception | None = None
        self._leave: list[Callable[[], None]] = []

    def __enter__(self) -> Stops:
        self._listen(Engine, "before_cursor_execute", self._before_any)
        self._listen(self.engine, "checkout", self._checked_out)
        self._listen(self.engine, "engine_connect", self._connected)
        self._listen(self.engine, "before_cursor_execute", self._before_statement)
        self._listen(self.engine, "after_cursor_execute", self._after_statement)
        self._listen(self.engine, "handle_error", self._failed)
        self._listen(self.engine, "commit", self._before_commit)
        self._listen(self.engine, "rollback", self._before_rollback)
        self._listen(self.engine, "prepare_twophase", self._before_prepare)
        if self.database.watching.refuses_when_busy:
            self._listen(self.engine, "do_execute", self._do_execute, insert=True)
            self._listen(self.engine, "do_executemany", self._do_executemany, insert=True)
            self._cover_commit()
        return self

    def __exit__(self, *_: object) -> None:
        for leave in reversed(self._leave):
            leave()

    def _listen(self, target: Any, name: str, listener: Any, *, insert: bool = False) -> None:
        event.listen(target, name, listener, insert=insert)
        self._leave.append(lambda: event.remove(target, name, listener))

    def refuse(self, reason: str) -> Abandoned:
        """Note that orders cannot be trusted, and return what ends the unit."""
        self._fault = self._fault or reason
        return Abandoned()

    def check(self) -> None:
        """Raise ``ConfigurationError`` if orders cannot be trusted."""
        if self._error is not None:
            raise self._error
        if self._fault is not None:
            raise ConfigurationError(f"{self._fault} No order was judged.")

    # -- connections -------------------------------------------------------------------------------

    def _checked_out(self, driver_connection: Any, record: Any, proxy: Any) -> None:
        if (unit := RUNNING.unit) is not None:
            unit.unwrapped += 1

    def _connected(self, connection: Connection) -> None:
        if _SET not in connection.info:
            self._set(connection)
            connection.info[_SET] = True
        if (unit := RUNNING.unit) is not None:
            unit.unwrapped -= 1
            unit.transactions[connection] = Transaction(self.database, self.known)

    def _set(self, connection: Connection) -> None:
        """Make the settings, as far as the account may; they go with the driver's connection."""
        driver: Any = connection.connection.dbapi_connection
        for statement in self.database.watching.watched_settings:
            cursor = driver.cursor()
            try:
                with suppress(self.engine.dialect.loaded_dbapi.Error):
                    cursor.execute(statement)
                    driver.commit()
            finally:
                cursor.close()
            driver.rollback()

    def _transaction(self, unit: Unit, connection: Connection) -> Transaction:
        known = unit.transactions.get(connection)
        if known is None:
            raise self.refuse(
                f"{unit.name} uses a session or connection that was opened outside of it. Open it"
                " in the unit: one from outside keeps its objects from order to order."
            )
        if unit.unwrapped > 0:
            raise self.refuse(
                f"{unit.name} uses a connection of the driver (raw_connection()), whose statements"
                " cannot be put in order. Use a session or a Connection."
            )
        return known

    # -- statements --------------------------------------------------------------------------------

    def _before_any(self, connection: Connection, *_: Any) -> None:
        unit = RUNNING.unit
        if unit is not None and connection.engine.pool is not self.engine.pool:
            raise self.refuse(
                f"{unit.name} uses another engine ({connection.dialect.name}) than sessions=, and"
                " its statements cannot be put in order. Let all units use one engine."
            )
        ours = unit is not None or connection.engine.pool is not self.engine.pool
        if not ours and threading.get_ident() not in self._threads:
            raise self.refuse(
                f"The thread {threading.current_thread().name!r} sends statements while units run,"
                " and cannot be put in order. Let units work in their own thread."
            )

    def _before_statement(
        self, connection: Connection, cursor: Any, text: str, values: Any, context: Any, many: bool
    ) -> None:
        unit = RUNNING.unit
        if unit is None:
            return
        if unit.abandoned:
            raise Abandoned
        transaction = self._transaction(unit, connection)
        driver = connection.connection.driver_connection
        if self.database.ends.has_open_pipeline(driver):
            raise self.refuse(
                f"{unit.name} sends statements in a pipeline, which run at any time until it is"
                " synchronized: they cannot be put in order. Leave pipelined=True out."
            )
        if is_quiet(text):
            transaction.note(text)
            return
        try:
            touches, named = transaction.statement(connection, text, context, self.tables)
            step = Step(unit.number, text, readable_text(text, values), touches, named)
        except Exception as error:  # ours, and no result of the unit
            self._error = error
            raise Abandoned from error
        unit.stop(step, self.database.watching.number_of(driver))

    def _after_statement(self, connection: Connection, *_: Any) -> None:
        unit = RUNNING.unit
        if unit is None or unit.abandoned:
            return
        unit.calls = None
        driver = connection.connection.driver_connection
        if self.database.ends.open_transactions(driver)() is False:
            unit.let_go += self._transaction(unit, connection).end()

    def _failed(self, context: ExceptionContext) -> None:
        unit, error = RUNNING.unit, context.sqlalchemy_exception
        if unit is None or unit.abandoned or context.connection is None or error is None:
            return
        unit.calls = None
        transaction = unit.transactions.get(context.connection)
        if transaction is not None:
            ended = self.database.ends.ended_by(error)
            unit.let_go += transaction.failed(whole=ended or self.database.ends.fails_whole)
        if self.database.classify(error) is Cause.DEADLOCK:  # type: ignore[arg-type]
            self.deadlocks += 1

    # -- the ends of transactions ------------------------------------------------------------------

    def _before_commit(self, connection: Connection) -> None:
        self._before_end(connection, "COMMIT")

    def _before_rollback(self, connection: Connection) -> None:
        self._before_end(connection, "ROLLBACK")

    def _before_end(self, connection: Connection, text: str) -> None:
        unit = RUNNING.unit
        if unit is None or unit.abandoned:
            return
        touches = self._transaction(unit, connection).end()
        if touches:
            number = self.database.watching.number_of(connection.connection.driver_connection)
            unit.stop(Step(unit.number, text, text, touches, is_end=True), number)

    def _before_prepare(self, connection: Connection, xid: Any) -> None:
        if (unit := RUNNING.unit) is not None:
            raise self.refuse(
                f"{unit.name} prepares a transaction in two phases, which is not explored."
            )

    # -- databases that refuse at once -------------------------------------------------------------

    def _do_execute(self, cursor: Any, text: str, values: Any, context: Any) -> bool | None:
        send = context.dialect.do_execute
        return self._until_free(lambda: send(cursor, text, values, context))

    def _do_executemany(self, cursor: Any, text: str, values: Any, context: Any) -> bool | None:
        def send() -> None:
            for listener in context.dialect.dispatch.do_executemany:
                if listener != self._do_executemany and listener(cursor, text, values, context):
                    return
            context.dialect.do_executemany(cursor, text, values, context)

        return self._until_free(send)

    def _until_free(self, send: Callable[[], object]) -> bool | None:
        """Send again each time that another unit has moved, as long as the database is busy."""
        unit = RUNNING.unit
        if unit is None or unit.abandoned:
            return None
        while True:
            try:
                send()
            except Exception as error:
                if not self.database.watching.is_busy(error) or not unit.wait():
                    raise
            else:
                return True

    def _cover_commit(self) -> None:
        dialect: Any = self.engine.dialect
        send = dialect.do_commit

        def do_commit(connection: Any) -> None:
            if not self._until_free(lambda: send(connection)):
                send(connection)

        def uncover() -> None:
            if dialect.do_commit is do_commit:  # or it has been covered once more, and stays
                dialect.do_commit = send

        dialect.do_commit = do_commit
        self._leave.append(uncover)
