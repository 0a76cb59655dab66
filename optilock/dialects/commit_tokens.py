"""The rows of commit tokens, and what goes in one trip with COMMIT (:mod:`optilock.exactly_once`).

A token is inserted right before COMMIT. Where the driver can send both in one trip, its ``commit``
is covered for the length of one transaction (:func:`~optilock.dialects.connections.cover_commit`);
elsewhere the INSERT is a statement of its own. It is always a plain INSERT: a token that is there
already is an error, after which COMMIT is not carried out. The INSERT that *asks* for a token
returns whether there was one.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from sqlalchemy import (
    Connection,
    MetaData,
    bindparam,
    delete,
    false,
    insert,
    not_,
    select,
)
from sqlalchemy.exc import DBAPIError

from optilock._undocumented.statements import RETAIN_SCHEMA
from optilock.dialects.causes import Cause
from optilock.dialects.one_row import OneRow
from optilock.dialects.rows import execute_unguarded
from optilock.dialects.values import quoted_name
from optilock.dialects.waits import Wait, Waits
from optilock.errors import ConfigurationError
from optilock.tables.names import commit_tokens
from optilock.tokens.sql_functions import StatementTime, add_milliseconds

if TYPE_CHECKING:
    from sqlalchemy.sql.dml import ReturningInsert

#: The fingerprint of a row that stands for no unit: it keeps a late COMMIT from being carried out.
FENCE = "fence"
#: The first character of random tokens.
RANDOM = "~"


class StoredToken(NamedTuple):
    """A token that was found: a unit's, or a fence."""

    result: str | None
    fingerprint: str | None


class _InSchema:
    """The statements for the table in one schema."""

    def __init__(self, schema: str | None) -> None:
        table = commit_tokens.to_metadata(MetaData(), schema=schema or RETAIN_SCHEMA)
        self.table, self.columns = table, table.c
        self.insert = insert(table)
        #: By the class of the database: the INSERT that returns a row if there was none.
        self.insert_unless: dict[object, ReturningInsert[Any]] = {}
        self.result = (
            table.update()
            .where(table.c.token == bindparam("of"))
            .values(result=bindparam("becomes"))
        )
        self.fenced = table.update().where(table.c.fingerprint == FENCE)
        self.read = select(table.c.result, table.c.fingerprint)
        self.look = select(table.c.token, table.c.fingerprint).where(false())


@functools.lru_cache(maxsize=64)
def _in_schema(schema: str | None) -> _InSchema:
    return _InSchema(schema)


def _of(connection: Connection) -> _InSchema:
    """Return the statements for the one table that all connections of the engine share.

    It is in the schema in which a new connection creates tables. A listener may set
    ``search_path``, or ``USE`` another database, and the question after a lost COMMIT, on another
    connection, must meet the row of the unit.
    """
    return _in_schema(connection.dialect.default_schema_name)


def name_of_table(connection: Connection) -> str:
    """Return the quoted name of that table with its schema."""
    return quoted_name(connection.dialect, _of(connection).table)


class _Asked(Protocol):
    """The methods of a database's class that the statements need."""

    @property
    def one_row(self) -> OneRow: ...
    def classify(self, error: DBAPIError) -> Cause: ...
    def codes(self, error: BaseException) -> Iterator[str | int]: ...
    @property
    def waits(self) -> Waits: ...


class CommitTokens:
    """The statements of one database; a file of its folder overrides what differs."""

    def __init__(self, database: _Asked) -> None:
        self.database = database

    def require_table(self, connection: Connection) -> None:
        """Raise ``ConfigurationError`` if there is no table, or no column for fingerprints."""
        try:
            execute_unguarded(connection, _of(connection).look).close()
        except DBAPIError as error:
            if self.database.classify(error) is not Cause.OTHER:
                raise
            raise ConfigurationError(_NO_TABLE.format(name_of_table(connection))) from error

    # -- asked before the unit, or after its COMMIT was lost ---------------------------------------

    def insert(
        self, connection: Connection, token: str, fingerprint: str, wait: Wait | None = None
    ) -> bool:
        """Insert the token; ``False`` if it is there already.

        It waits for a transaction that has inserted it and has not ended, for so long at most.
        """
        made, kind = _of(connection), type(self.database)
        statement = made.insert_unless.get(kind)
        if statement is None:
            plain = self.database.one_row.insert_unless(made.table)
            if plain is None:
                raise ConfigurationError(_NO_DATABASE)
            statement = made.insert_unless[kind] = plain.returning(made.columns.token)
        row = {"token": token, "fingerprint": fingerprint}
        with self.database.waits.waiting(connection, wait or Wait()):
            return execute_unguarded(connection, statement, row).first() is not None

    def read(self, connection: Connection, token: str) -> StoredToken | None:
        """Return the row of the token."""
        made = _of(connection)
        query = self._newest(made.read.where(made.columns.token == token))
        row = execute_unguarded(connection, query).first()
        return None if row is None else StoredToken(*row)

    def take_fence(self, connection: Connection, token: str, fingerprint: str) -> bool:
        """Make a key's row of a fence; ``False``: there is no fence."""
        made = _of(connection)
        taken = made.fenced.where(made.columns.token == token).values(fingerprint=fingerprint)
        return bool(execute_unguarded(connection, taken).rowcount)

    def drop_fence(self, connection: Connection, token: str) -> None:
        """Delete a fence."""
        made = _of(connection)
        fence = (made.columns.token == token, made.columns.fingerprint == FENCE)
        execute_unguarded(connection, delete(made.table).where(*fence))

    def _newest(self, query: Any) -> Any:
        """The query, so that it shows what an INSERT has met."""
        return query

    # -- with COMMIT -------------------------------------------------------------------------------

    def add(self, connection: Connection, token: str) -> None:
        """Store a random token with COMMIT, which comes next."""
        execute_unguarded(connection, _of(connection).insert, {"token": token})

    def set_result(self, connection: Connection, token: str, result: str) -> None:
        """Store the result of a token's unit with COMMIT, which comes next."""
        self.set_result_now(connection, token, result)

    def set_result_now(self, connection: Connection, token: str, result: str) -> None:
        """Store the result, by a statement of its own."""
        execute_unguarded(connection, _of(connection).result, {"of": token, "becomes": result})

    # -- later -------------------------------------------------------------------------------------

    def purge(self, connection: Connection, *, random: bool, older: int, most: int) -> int:
        """Delete up to ``most`` tokens, keys or ``random`` ones, of ``older`` milliseconds."""
        table, columns = _of(connection).table, _of(connection).columns
        named = columns.token.startswith(RANDOM)
        old = select(columns.token).where(
            named if random else not_(named),
            columns.created_at < add_milliseconds(StatementTime(), -older),
        )
        old = old.order_by(columns.created_at).limit(most).with_for_update(skip_locked=True)
        found = execute_unguarded(connection, old).scalars().all()
        if found:
            execute_unguarded(connection, delete(table).where(columns.token.in_(found)))
        return len(found)


_NO_TABLE = (
    "exactly_once= needs the table {} with its column fingerprint, in the schema in which the"
    " engine's connections create tables, and this connection cannot read them: run optilock's"
    ' migrations up to 0005, or in one of your own op.create_optilock_tables("commit_tokens",'
    " revision=2), or, where the table is there already,"
    ' op.upgrade_optilock_tables("commit_tokens", to=2). The user needs SELECT, INSERT, UPDATE and'
    " DELETE. Nothing was stored by this call."
)
_NO_DATABASE = (
    "exactly_once= works on PostgreSQL, MariaDB and SQLite: optilock knows of no INSERT for this"
    " database that finds out whether a token is there. Nothing was sent."
)
