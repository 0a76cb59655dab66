"""The locks of tables that operations wait for: briefly, again and again, for a limited time.

::

    context.configure(..., optilock_lock_timeout=0.1, optilock_patience=60)   # in env.py

Every reader of a table queues behind a statement that waits for its lock. ``optilock_lock_timeout``
is the number of seconds that others may queue (MariaDB waits whole seconds). Then the statement
gives up, rests, and is tried again until ``optilock_patience`` seconds have passed; the tables that
the migration has changed before stay locked in the meantime. A limit that the application has set
itself stays as it is, and the error of the database is raised. On a Galera cluster nothing is
limited.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Any

from alembic.operations import Operations
from sqlalchemy import Connection, Select
from sqlalchemy.exc import DBAPIError

from optilock.dialects import database_of
from optilock.dialects.causes import Cause
from optilock.errors import OptilockError
from optilock.rollout.attempts import LOCK_TIMEOUT, PATIENCE
from optilock.unit.durations import in_seconds

_TIMEOUT, _PATIENCE = "optilock_lock_timeout", "optilock_patience"
#: After a wait it rests this many times as long, in seconds at most.
_REST, _LONGEST_REST = 9, 2.0


@contextmanager
def short_waits(operations: Operations) -> Iterator[None]:
    """Limit the wait of each statement in this block.

    Raises:
        OptilockError: a lock was not available in this time.
    """
    context = operations.get_context()
    if context.as_sql:
        yield
        return
    connection: Any = operations.get_bind()
    ways = database_of(context.dialect).rollout()
    options = context.opts
    wait = in_seconds(_TIMEOUT, options.get(_TIMEOUT, LOCK_TIMEOUT))
    patience = in_seconds(_PATIENCE, options.get(_PATIENCE, PATIENCE))
    with ways.waits_at_most(connection, wait) as is_limited:
        if not is_limited:
            yield
            return
        before = connection.__dict__.get("execute")
        until = monotonic() + patience
        connection.execute = _Repeating(connection, connection.execute, wait, until)
        try:
            yield
        finally:
            del connection.execute
            if before is not None:
                connection.execute = before


class _Repeating:
    """The ``execute`` of a connection, which repeats a statement that has got no lock."""

    def __init__(self, connection: Connection, execute: Any, wait: float, until: float) -> None:
        self._connection, self._execute = connection, execute
        self._wait, self._until = wait, until
        self._in_savepoint = False

    def __call__(self, statement: Any, *given: Any, **options: Any) -> Any:
        if self._in_savepoint or isinstance(statement, Select):
            return self._execute(statement, *given, **options)
        while True:
            try:
                return self._once(statement, *given, **options)
            except DBAPIError as error:
                database = database_of(self._connection.dialect)
                if database.classify(error) is not Cause.LOCK_TIMEOUT:
                    raise
                if monotonic() >= self._until:
                    raise OptilockError(
                        f"A lock of a table was not available within {self._wait:g} seconds, in"
                        " several attempts: another transaction holds it. This statement changed"
                        " nothing. Run the migration again when that transaction is over, or set"
                        " optilock_lock_timeout= and optilock_patience= in context.configure()."
                    ) from error
                sleep(min(_REST * self._wait, _LONGEST_REST))

    def _once(self, statement: Any, *given: Any, **options: Any) -> Any:
        """In a savepoint, if the database changes tables in transactions."""
        connection = self._connection
        if database_of(connection.dialect).rollout().commits_each_step or _autocommits(connection):
            return self._execute(statement, *given, **options)
        self._in_savepoint = True  # which SQLAlchemy executes as well
        try:
            with connection.begin_nested():
                return self._execute(statement, *given, **options)
        finally:
            self._in_savepoint = False


def _autocommits(connection: Connection) -> bool:
    return connection.get_isolation_level() == "AUTOCOMMIT"
