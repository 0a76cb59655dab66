"""The differences between databases, as one class: each engine's file overrides its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import sqlalchemy as sa

from optilock.conditions.write import Params, Write
from optilock.dialects.catalogue import Catalogue, Weakness
from optilock.dialects.causes import ErrorCodes
from optilock.dialects.commit_tokens import CommitTokens
from optilock.dialects.ends import Ends
from optilock.dialects.isolation import IsolationLevels
from optilock.dialects.keys import RowKeys
from optilock.dialects.locks import RowLocks
from optilock.dialects.migrations import GuardTriggers, Names, TriggerDDL, Ways
from optilock.dialects.rows import EachAlone, LockAndLook
from optilock.dialects.scope_rows import ScopeRows
from optilock.dialects.scope_triggers import ScopeTriggers
from optilock.dialects.values import Values
from optilock.dialects.waits import Waits
from optilock.dialects.watching import Watching
from optilock.errors import ConfigurationError

if TYPE_CHECKING:
    from optilock.dialects.queue_sql import Messages, Place

#: The columns of a new row -> what an upsert makes of the row that is there: column -> value.
Changes = Callable[[Any], Mapping[str, Any]]
#: Takes the seconds of a trip, and those of the process on its processors in that time.
NoteTrip = Callable[[float, float], None]


class Cascade(NamedTuple):
    """A foreign key by which the database changes rows without firing a trigger."""

    table: str
    column: str
    #: The table that it refers to.
    parent: str
    #: ``ON UPDATE CASCADE``
    does: str


class Form(Protocol):
    """A way to write many rows of one table at once."""

    def send(self, connection: sa.Connection, writes: list[Write]) -> list[Write]:
        """Write the rows; return those that were changed by others or are gone."""


class Database(ErrorCodes):
    """A database that optilock knows nothing special about."""

    #: SQLAlchemy dialect names this class answers for.
    names: tuple[str, ...] = ()

    locks = cached_property(RowLocks)
    waits = cached_property(Waits)
    keys = cached_property(RowKeys)
    isolation = cached_property(IsolationLevels)
    ends = cached_property(Ends)
    watching = cached_property(Watching)
    values = cached_property(Values)

    # -- how rows are written (asked by optilock.watched.guard) ------------------------------------

    def form(self, writes: list[Write], dialect: sa.Dialect, *, locked: bool = False) -> Form:
        """Return the form for two or more rows of one table, which may be ``locked`` already."""
        return LockAndLook(self) if self.locks.locks_rows(dialect) else EachAlone()

    def all_or_error(self, writes: list[Write], dialect: sa.Dialect) -> tuple[Any, Params] | None:
        """One statement that writes all of these rows of a table, or raises an error.

        ``None`` where there is none.
        """
        return None

    def found_or_error(self, query: sa.Select[Any], rows: int) -> Any:
        """Return a statement that raises the same error unless the query finds so many rows."""
        return None

    # -- one row by its key (asked by optilock.watched.statements) ---------------------------------

    #: Whether an UPDATE with RETURNING is stored even if its rows are not read.
    stores_before_rows_are_read: bool = True

    def telling(self, value: sa.ColumnElement[Any]) -> sa.ColumnElement[Any] | None:
        """Return SQL of an integer that the answer to an UPDATE carries (``lastrowid``).

        ``None``: there is none. It is not used where there is RETURNING.
        """
        return None

    def insert_if_absent(self, table: sa.Table) -> sa.Insert | None:
        """An INSERT that leaves a row with the same key alone, of a table without other rules."""
        return self.insert_unless(table)

    def insert_unless(self, table: sa.Table) -> sa.Insert | None:
        """An INSERT that writes nothing if a row with the same key exists.

        ``None``: there is no such thing, and a plain INSERT is an error then.
        """
        return None

    def upsert(self, table: sa.Table, changes: Changes) -> sa.Insert:
        """An INSERT that makes ``changes`` to the row if there is one with the same key.

        Raises:
            ConfigurationError: none is known.
        """
        raise ConfigurationError(
            f"An upsert of {table.description} is refused: optilock knows of no statement of this"
            " database that inserts a row, or else changes the one with the same key. Use insert(),"
            " and where it raises AlreadyExists, replace() or merge(). Nothing was sent."
        )

    #: Whether an upsert changes the row with the same value in any unique column.
    upserts_by_any_key: bool = False

    # -- versions that the database makes (asked by optilock.mapping.triggers) -----------------

    #: Whether RETURNING shows the row from before an AFTER trigger changed it.
    returns_before_triggers: bool = False

    def version_trigger(self, names: Names) -> TriggerDDL | None:
        """The trigger that moves a version column; ``None`` where none is known."""
        return None

    # -- isolation (asked by optilock.isolation and the unit of work) --------------------------

    def describe_once(self, dialect: sa.Dialect) -> None:
        """Let the driver describe the results of optilock's own queries once, if that is slow."""

    def pipelined(
        self,
        connection: sa.Connection,
        *,
        interruptible: bool,
        note_trip: NoteTrip | None = None,
    ) -> Any:
        """BEGIN goes with the first statement; what sends COMMIT with the last writes.

        ``None``: the transaction has begun already. An ``interruptible`` unit may be cancelled at
        any time, but not while it waits for these. With ``note_trip``, which gets the time of a
        trip, COMMIT goes along only where a plain unit would store the same. Asked if the driver is
        not refused.
        """
        return None

    def refuse_pipeline(self, dialect: sa.Dialect) -> None:
        """Raise ``ConfigurationError`` when its driver cannot do that."""
        raise ConfigurationError(cannot_pipeline(dialect))

    # -- several servers that write the same rows --------------------------------------------------

    def locks_are_local(self, connection: sa.Connection) -> bool:
        """Return whether a row that is locked here is free on other servers that write it.

        COMMIT then reports a conflict with them. This is checked once for an engine.
        """
        return False

    def is_out(self, connection: sa.Connection, error: BaseException) -> bool:
        """Return whether this server cannot do that, and another one may.

        A node that has lost its cluster; a standby that is asked to write.
        """
        return False

    def see_all(self, connection: sa.Connection) -> None:
        """Let the reads that follow show what was committed before them on any of the servers."""

    # -- how a table is changed while it is written (asked by optilock.rollout) ------------------

    def name_reflected(self, found: str) -> str:
        """Return a column's name, from that of SQLAlchemy's inspector."""
        return found

    def complete(self, connection: sa.Connection, table: sa.Table) -> None:
        """Add to a reflected table what SQLAlchemy has not reflected."""

    #: How a table is guarded against writers that know of no version.
    guard_triggers: type[GuardTriggers] = GuardTriggers
    #: How other programs' writes move scopes.
    scope_triggers: type[ScopeTriggers] = ScopeTriggers
    #: Whether triggers fire for rows that a foreign key changes (``ON DELETE SET NULL``).
    cascades_fire_triggers: bool = True

    def announce_no_bump(self, connection: sa.Connection, *, on: bool) -> None:
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

    #: Whether ``ALTER TABLE`` of Alembic's batch mode rebuilds the table, without its triggers.
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

    # -- tokens of units (asked by optilock.exactly_once) ----------------------------------------

    def commit_tokens(self) -> CommitTokens:
        """Return the statements of commit tokens."""
        return CommitTokens(self)

    # -- versions of scopes (asked by optilock.watched.scopes) -------------------------------------

    @cached_property
    def scope_rows(self) -> ScopeRows:
        """The statements of scopes."""
        return ScopeRows(self)

    # -- what makes it weaker than it looks (asked by optilock.check) ----------------------------

    def missing_file(self, url: sa.URL) -> str | None:
        """The file of a database that connecting would make; ``None`` if nothing would be made."""
        return None

    def weak_settings(self, connection: sa.Connection) -> Iterator[Weakness]:
        """Settings of the connection or the server under which less is noticed."""
        return iter(())

    def silent_cascades(self, connection: sa.Connection, schema: str | None) -> list[Cascade]:
        """Foreign keys of a schema that change rows behind the back of the row's triggers."""
        return []

    #: Whether names that only differ in case are names of two columns.
    cased_columns: bool = True
    #: Whether a column only keeps values of its own type.
    keeps_types: bool = True

    def catalogue(self, connection: sa.Connection, schema: str | None) -> Catalogue:
        """Return a schema's catalogue; without one, that of the schemas where names are found."""
        return Catalogue(connection, schema, self.cased_columns)


def cannot_pipeline(dialect: sa.Dialect) -> str:
    """The message for a driver that waits for the answer to every statement."""
    return (
        "pipelined=True sends BEGIN and COMMIT together with statements, which only psycopg 3 can"
        f" do (postgresql+psycopg://). This engine has {dialect.name} over {dialect.driver}, which"
        ' waits for the answer to each: use psycopg; or write pipelined="auto", which is a plain'
        " unit here. Nothing was sent."
    )


class _Promised(IsolationLevels):
    """The levels that an engine known by its codes promises."""

    database: KnownByCodes

    def level_options(self, level: str) -> dict[str, Any]:
        """Or transactions would run at something that has the level's name and keeps less."""
        levels, name = self.database.levels, self.database.names[0]
        if level in levels:
            return super().level_options(level)
        kept = " or ".join(f"Isolation.{one.replace(' ', '_')}" for one in levels)
        raise ConfigurationError(
            f"optilock knows {name} by the codes of its errors alone, and cannot promise"
            f" {level} there: {f'write isolation={kept}, or ' if kept else ''}leave isolation= out,"
            " and give the rows versions. verify() checks what was only read."
        )


class KnownByCodes(Database):
    """An engine known by its error codes: features that were not tested raise an error."""

    #: Levels of isolation that the engine keeps as the SQL standard, and optilock, mean them.
    levels: tuple[str, ...] = ("READ COMMITTED",)

    isolation = cached_property(_Promised)
