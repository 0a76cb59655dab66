"""What differs between databases, as one class: each engine's file overrides what differs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, Protocol, TypeVar

from sqlalchemy import (
    URL,
    ColumnElement,
    Connection,
    Dialect,
    Insert,
    Table,
    types,
)

from optilock.conditions.write import Write
from optilock.dialects.causes import error_chain, raised_by
from optilock.dialects.locks import RowLocks
from optilock.dialects.messages import Messages, Place
from optilock.dialects.migrations import GuardTriggers, Names, TriggerDDL, Ways
from optilock.dialects.rows import EachAlone, LockAndLook
from optilock.dialects.values import Values
from optilock.errors import ConfigurationError
from optilock.http.limits import Limits
from optilock.mapped import Identity, key_in

#: The columns of a new row -> what an upsert makes of the row that is there: column -> value.
Changes = Callable[[Any], Mapping[str, Any]]

#: Nothing is certain, so little is refused.
_UNKNOWN = Limits(
    bits=(64, 64, 64),
    converts=True,
    as_text=(object,),
    bools=(types.Integer, types.Numeric, types.Float),
    decimals=True,
    decimal_text=True,
    nan=True,
    infinity=True,
    counts_digits=False,
    most_digits=1_000_000,
    lengths=False,
    nul=True,
    offsets=True,
    json_nan=True,
    json_surrogates=True,
)


class Weakness(NamedTuple):
    """Something that makes the check void (``severe``) or weaker."""

    code: str
    severe: bool
    message: str
    advice: str


class Form(Protocol):
    """A way to write many rows of one table at once."""

    def send(self, connection: Connection, writes: list[Write]) -> list[Write]:
        """Write the rows; return those that were changed by others or are gone."""


class Database(RowLocks, Values):
    """A database that optilock knows nothing special about."""

    #: SQLAlchemy dialect names this class answers for.
    names: tuple[str, ...] = ()

    # -- how rows are written (asked by optilock.guard) ----------------------------------------

    #: The most parameters one statement may carry. PostgreSQL and MariaDB take 65,535
    #: (https://www.postgresql.org/docs/current/limits.html); half of it leaves room for others.
    max_parameters: int = 30_000

    def keys_at_once(self, width: int) -> int:
        """How many keys of ``width`` columns one statement names."""
        return max(1, self.max_parameters // width)

    def at_keys(
        self, columns: Sequence[ColumnElement[Any]], keys: Sequence[Identity]
    ) -> ColumnElement[bool]:
        """``key IN (…)``, so that a lock takes these rows and no other."""
        return key_in(columns, keys)

    def form(self, writes: list[Write], dialect: Dialect) -> Form:
        """How these rows of one table, more than one, are best written."""
        return LockAndLook(self) if self.locks_rows(dialect) else EachAlone()

    # -- what a client sends ---------------------------------------------------------------------

    def limits(self, dialect: Dialect) -> Limits:
        """What its columns can hold of that, over this dialect."""
        return _UNKNOWN

    # -- one row by its key (asked by optilock.statements) ---------------------------------------

    def telling(self, value: ColumnElement[Any]) -> ColumnElement[Any] | None:
        """``value``, an integer, so that the answer to an UPDATE tells it (``lastrowid``).

        ``None`` where none does; where there is RETURNING nobody asks.
        """
        return None

    def insert_if_absent(self, table: Table) -> Insert | None:
        """An INSERT that leaves a row with the same key alone, of a table without other rules."""
        return self.insert_unless(table)

    def insert_unless(self, table: Table) -> Insert | None:
        """An INSERT that leaves a row with the same key alone, and says so by writing none.

        ``None``: there is no such thing, and a plain INSERT is an error then.
        """
        return None

    def upsert(self, table: Table, changes: Changes) -> Insert:
        """An INSERT that makes ``changes`` to the row if there is one with the same key.

        Raises:
            ConfigurationError: none is known.
        """
        raise ConfigurationError(
            f"An upsert of {table.description} is refused: optilock knows of no statement of this"
            " database that inserts a row, or else changes the one with the same key. Use insert(),"
            " and where it raises AlreadyExists, replace() or merge(). Nothing was sent."
        )

    #: Does an upsert change the row that has the same value in any unique column?
    upserts_by_any_key: bool = False

    # -- versions that the database makes (asked by optilock.mapping.triggers) -----------------

    #: Does RETURNING show the row as it was before an AFTER trigger changed it?
    returns_before_triggers: bool = False

    def version_trigger(self, names: Names) -> TriggerDDL | None:
        """The trigger that moves a version column; ``None`` where none is known."""
        return None

    # -- isolation (asked by optilock.isolation and the unit of work) --------------------------

    def level_options(self, level: str) -> dict[str, Any]:
        """Engine execution options with which every connection begins at ``level``."""
        return {"isolation_level": level}

    def read_only_options(self) -> dict[str, Any]:
        """Engine execution options with which every transaction begins read-only."""
        return {}

    def begin_at(self, connection: Connection, level: str, *, read_only: bool) -> None:
        """Bring the transaction that has just begun to ``level``, and ask whether it is there.

        Raises:
            ConfigurationError: the server says that another level is in force.
        """
        found = connection.get_isolation_level().upper()
        if found != level:
            raise ConfigurationError(
                f"the transaction should run at {level}, but {connection.dialect.name} says"
                f" {found}: something else sets the level of this connection (an event listener, or"
                " isolation_level in the execution options of the session); remove it."
            )

    def begin_read_only(self, connection: Connection) -> None:
        """Make the database refuse every write of the transaction that has just begun."""
        raise ConfigurationError(
            f"optilock does not know how to make a transaction of {connection.dialect.name}"
            " read-only: leave read_only=True out."
        )

    def begin_savepoints(self, connection: Connection) -> None:
        """See to it that a savepoint of this transaction never commits by itself."""

    #: May an error at a statement end the transaction, or leave one that only rolls back? Without
    #: it none of the next three is asked for.
    errors_end: bool = False

    def transaction_failed(self, connection: Connection) -> bool:
        """Would COMMIT silently roll back, because of an error earlier in the transaction?"""
        return False

    #: Does COMMIT roll back after an error earlier in the transaction, and say nothing?
    commits_in_silence: bool = False
    #: Does an error at RELEASE leave a transaction that goes nowhere but to ROLLBACK?
    release_may_fail_all: bool = False
    #: Is there an error with which the database rolls back the *whole* transaction, and takes the
    #: next statement as the first of another one?
    ends_transactions: bool = False

    def ends_transaction(self, error: BaseException) -> bool:
        """Is ``error`` such a one?"""
        return False

    # -- how a table is changed while it is written (asked by optilock.rollout) ------------------

    def complete(self, connection: Connection, table: Table) -> None:
        """Add to a reflected table what SQLAlchemy has not reflected."""

    #: How a table is guarded against writers that know of no version.
    guard_triggers: type[GuardTriggers] = GuardTriggers

    def announce_no_bump(self, connection: Connection, *, on: bool) -> None:
        """Tell the guard triggers, for this transaction alone, that versions are to stay."""
        raise ConfigurationError(
            f"no_bump() cannot write a class with __version_guard__ on {connection.dialect.name},"
            " which has no setting for one transaction: its guard trigger would move, or demand,"
            " the version all the same. Use __version_ignore__, or take __version_guard__ away."
            " Nothing was written."
        )

    def as_script(self, statement: str) -> str | None:
        """The statement for the database's own client, if that would cut it at a ``;``."""
        return None

    #: Does ``ALTER TABLE`` of Alembic's batch mode make the table anew, without its triggers?
    batch_makes_anew: bool = False

    #: How a version is put on a table that is alive.
    rollout: type[Ways] = Ways

    # -- queues (asked by optilock.queue) --------------------------------------------------------

    def messages(self, place: Place) -> Messages:
        """The statements of a queue.

        Raises:
            ConfigurationError: none are known.
        """
        raise ConfigurationError(
            "A queue works on PostgreSQL, MariaDB and SQLite: optilock knows of no statements for"
            " this database."
        )

    # -- what makes it weaker than it looks (asked by optilock.check) ----------------------------

    def missing_file(self, url: URL) -> str | None:
        """The file of a database that connecting would make; ``None`` if nothing would be made."""
        return None

    def weak_settings(self, connection: Connection) -> Iterator[Weakness]:
        """Settings of the connection or the server under which less is noticed."""
        return iter(())

    def weak_table(self, connection: Connection, table: Table) -> Iterator[Weakness]:
        """Properties of one table under which less is noticed."""
        return iter(())

    #: Do two names of columns that differ in case only name two columns?
    cased_columns: bool = True
    #: Does a column keep values of its own type only?
    keeps_types: bool = True

    def moves_by_itself(self, column: Mapping[str, Any]) -> bool:
        """Does the database change the column, as it was reflected, in every UPDATE?"""
        return False

    # -- who waits for whom (asked by optilock.testing) ------------------------------------------

    #: Whether a connection of the server waits for a lock; ``{}`` is its number there.
    lock_question: str | None = None
    #: Seconds between two questions, for an answer that is not the one of the question before.
    lock_question_pause: float = 0.005

    def number_of(self, connection: Any) -> int | None:
        """The number on its server of a driver's connection, if the driver knows it."""
        return None


D = TypeVar("D", bound=Database)
_known: list[type[Database]] = []


def register(kind: type[D]) -> type[D]:
    """Let ``kind`` answer for the databases of its ``names``, and the errors of its ``drivers``."""
    _known.append(kind)
    _by_name.cache_clear()
    return kind


@cache
def _by_name(name: str) -> Database:
    return next((known() for known in _known if name in known.names), Database())


def database_of(dialect: Dialect) -> Database:
    """The answers for the database behind ``dialect``."""
    return _by_name(dialect.name)


def database_of_error(error: BaseException | None) -> Database:
    """The answers for the database whose driver raised ``error`` (``DBAPIError.orig``).

    An error does not say which engine it came from, so its class's package decides, and then
    those of the errors it was raised from.
    """
    for one in error_chain(error):
        for known in _known:
            if raised_by(one, known.drivers):
                return _by_name(known.names[0])
    return Database()
