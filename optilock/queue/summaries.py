"""All queues of a database: :func:`queues`."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

from sqlalchemy import Connection, Engine

from optilock._undocumented.connections import set_options
from optilock.dialects import database_of
from optilock.dialects.queue_sql import Place
from optilock.errors import ConfigurationError, describe
from optilock.queue.connections import AUTOCOMMIT, require_tables
from optilock.queue.messages import check_text
from optilock.tables.queue import NAME, MessageTables, message_tables

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine


@dataclass(frozen=True)
class QueueSummary:
    """The numbers of one queue, all of one moment."""

    name: str
    tenant: str
    #: Messages that wait for a receiver, delayed ones included.
    depth: int
    #: Messages that receivers have.
    held: int
    #: Messages of the queue with this name and ``.dead``, where dead letters go by default.
    dead: int
    #: Seconds since the first message that can be received became visible; 0.0 if there is none.
    oldest: float
    #: Rows that only keep the deduplication key of a deleted message.
    keys: int = 0


@overload
def queues(
    engine: Engine, *, tenant: str | None = ..., table: str = ..., schema: str | None = ...
) -> list[QueueSummary]: ...
@overload
def queues(
    engine: AsyncEngine, *, tenant: str | None = ..., table: str = ..., schema: str | None = ...
) -> Awaitable[list[QueueSummary]]: ...
def queues(
    engine: Any, *, tenant: str | None = None, table: str = NAME, schema: str | None = None
) -> Any:
    """Return the queues that have messages, of one tenant or of all; ``await`` it in asyncio.

    A queue is in the list while it has messages, dead letters or deduplication keys; so are queues
    of dead letters. One statement reads all messages.

    Raises:
        ConfigurationError: this is no engine, or a name is not one.
        QueueNotFound: the tables are not in the database.
    """
    sync = getattr(engine, "sync_engine", engine)
    if not isinstance(sync, Engine):
        raise ConfigurationError(
            f"queues() takes an Engine or an AsyncEngine, not {describe(engine)}."
        )
    if tenant is not None:
        check_text("tenant", tenant, empty=True)
    tables = message_tables(table=check_text("table", table), schema=schema)
    if sync is not engine:
        return _read_async(engine, tables, tenant)
    with engine.connect() as connection:
        return _read(connection, tables, tenant)


async def _read_async(
    engine: AsyncEngine, tables: MessageTables, tenant: str | None
) -> list[QueueSummary]:
    async with engine.connect() as connection:
        return await connection.run_sync(_read, tables, tenant)


def _read(connection: Connection, tables: MessageTables, tenant: str | None) -> list[QueueSummary]:
    set_options(connection, AUTOCOMMIT)
    store = database_of(connection.dialect).messages(Place(tables, tenant or "", ""))
    with require_tables(connection, tables):
        rows = store.summaries(connection, tenant)
    found = {(row.tenant, row.queue): row for row in rows}
    names = {*found}
    names |= {(tenant, name.removesuffix(".dead")) for tenant, name in found if name != ".dead"}
    return [_summary(name, tenant, found) for tenant, name in sorted(names)]


def _summary(name: str, tenant: str, found: dict[tuple[str, str], Any]) -> QueueSummary:
    row, dead = found.get((tenant, name)), found.get((tenant, f"{name}.dead"))
    oldest = 0.0
    if row is not None and row.oldest is not None:
        oldest = max(0.0, (row.now - row.oldest).total_seconds())
    held = 0 if row is None else int(row.held)
    depth = 0 if row is None else int(row.there) - held
    keys = 0 if row is None else int(row.kept)
    buried = 0 if dead is None else int(dead.there)
    return QueueSummary(name, tenant, depth, held, buried, oldest, keys)
