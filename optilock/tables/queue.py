"""Messages of queues, their groups, and an archive: the tables of :mod:`optilock.queue`.

One set of tables can have several queues and several tenants.

``<table>``          a row for each message; ``optilock_message`` unless it is named otherwise
``<table>_group``    a row for each group that has messages: when its first one is to be had
``<table>_archive``  messages that were archived

A message:

``visible_at``   when it can be received. NULL: the message was deleted, and its deduplication key
                 is kept until ``expires_at``
``receipt``      needed to delete the message; messages received together have the same one
``receives``     how often it was received
``body``         JSON text, as it was sent
``group_key``    messages of a group are received in order, one at a time
``dedup_key``    there is one message with it

A receive looks for the first visible rows of a queue, so it needs an index in that order, and each
receive moves its rows in it: dead entries collect at its head. The migration therefore lets
PostgreSQL vacuum this table after one per cent of changes, not after a fifth. If you create the
tables from their metadata, set ``autovacuum_vacuum_scale_factor`` yourself.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import DDL, BigInteger, Column, Index, Integer, MetaData, Table, Text

from optilock._undocumented.connections import doubles_percents
from optilock.tables import ANY_UUID, Step, TableSet, exact_text
from optilock.tokens.guard_trigger import short_name
from optilock.tokens.timestamp import UtcDateTime

__all__ = ["NAME", "RECEIPT", "MessageTables", "message_tables"]

#: The default name of the tables.
NAME = "optilock_message"
#: The type of a receipt, which may be any UUID.
RECEIPT = ANY_UUID
#: The longest name of a tenant, a queue, a group, and the longest deduplication key.
LONGEST = 200
_NO_PARTIAL_INDEXES = ("mysql", "mariadb")


class MessageTables(NamedTuple):
    """The tables of one set."""

    messages: Table
    groups: Table
    archive: Table


def message_tables(
    metadata: MetaData | None = None, *, table: str = NAME, schema: str | None = None
) -> MessageTables:
    """Return the tables in a ``MetaData`` of your own, so that autogenerate creates them."""
    metadata = MetaData() if metadata is None else metadata
    messages = Table(
        table, metadata, *_message(), *_indexes(table), schema=schema, **_message_options()
    )
    groups = Table(_named(table, "_group"), metadata, *_group(), _group_index(table), schema=schema)
    archive = Table(_named(table, "_archive"), metadata, *_archived(), schema=schema)
    return MessageTables(messages, groups, archive)


def _named(table: str, suffix: str) -> str:
    """Return the name of a table or an index that belongs to the table of messages."""
    return short_name(table + suffix)


def _long() -> Text:
    """Return the type of JSON in ASCII, or of an error's text."""
    from sqlalchemy.dialects import mysql

    wide = mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin")
    return Text().with_variant(wide, "mysql", "mariadb")


def _number() -> BigInteger:
    """Return the type of a counted key: SQLite counts only in INTEGER columns."""
    return BigInteger().with_variant(Integer(), "sqlite")


def _content() -> list[Column[Any]]:
    return [
        Column("tenant", exact_text(LONGEST), nullable=False),
        Column("queue", exact_text(LONGEST), nullable=False),
        Column("group_key", exact_text(LONGEST)),
        Column("dedup_key", exact_text(LONGEST)),
        Column("sent_at", UtcDateTime(), nullable=False),
        Column("expires_at", UtcDateTime()),
        Column("receives", Integer(), nullable=False),
        Column("body", _long(), nullable=False),
        Column("headers", _long()),
        Column("last_error", _long()),
    ]


def _message() -> list[Column[Any]]:
    return [
        Column("id", _number(), primary_key=True),
        Column("visible_at", UtcDateTime()),
        Column("receipt", RECEIPT),
        *_content(),
    ]


def _message_options() -> dict[str, Any]:
    """Return options by which no id is ever used again."""
    return {"sqlite_autoincrement": True}


def _indexes(table: str) -> list[Index]:
    """Return the indexes. Partial ones keep rows of groups apart from the others."""
    return [
        _waiting(table).ddl_if(callable_=_has_partial_indexes),
        _waiting_in_all(table).ddl_if(callable_=_lacks_partial_indexes),
        _in_groups(table),
        _deduplicated(table),
    ]


def _waiting(table: str) -> Index:
    columns = ("tenant", "queue", "visible_at", "id")
    where = Column("group_key").is_(None)
    return Index(_named(table, "_waiting"), *columns, postgresql_where=where, sqlite_where=where)


def _waiting_in_all(table: str) -> Index:
    return Index(_named(table, "_waiting"), "tenant", "queue", "group_key", "visible_at", "id")


def _in_groups(table: str) -> Index:
    columns = ("tenant", "queue", "group_key", "id")
    where = Column("group_key").is_not(None)
    return Index(_named(table, "_in_groups"), *columns, postgresql_where=where, sqlite_where=where)


def _deduplicated(table: str) -> Index:
    columns = ("tenant", "queue", "dedup_key")
    where = Column("dedup_key").is_not(None)
    return Index(
        _named(table, "_deduplicated"),
        *columns,
        unique=True,
        postgresql_where=where,
        sqlite_where=where,
    )


def _has_partial_indexes(*_: Any, dialect: Any, **__: Any) -> bool:
    return dialect.name not in _NO_PARTIAL_INDEXES


def _lacks_partial_indexes(*_: Any, dialect: Any, **__: Any) -> bool:
    return dialect.name in _NO_PARTIAL_INDEXES


def _group() -> list[Column[Any]]:
    """Return the columns; ``holder`` is the id of the last received message that is not done."""
    return [
        Column("tenant", exact_text(LONGEST), primary_key=True),
        Column("queue", exact_text(LONGEST), primary_key=True),
        Column("group_key", exact_text(LONGEST), primary_key=True),
        Column("visible_at", UtcDateTime(), nullable=False),
        Column("holder", BigInteger()),
    ]


def _group_index(table: str) -> Index:
    return Index(_named(table, "_group_waiting"), "tenant", "queue", "visible_at")


def _archived() -> list[Column[Any]]:
    return [
        Column("id", BigInteger(), primary_key=True, autoincrement=False),
        Column("archived_at", UtcDateTime(), nullable=False),
        *_content(),
    ]


def _set(table: str) -> TableSet:
    metadata = MetaData()
    message_tables(metadata, table=table)

    def create(op: Any, schema: str | None) -> None:
        partial = op.get_context().dialect.name not in _NO_PARTIAL_INDEXES
        op.create_table(table, *_message(), schema=schema, **_message_options())
        waiting = _waiting if partial else _waiting_in_all
        for index in (waiting, _in_groups, _deduplicated):
            _create_index(op, index(table), table, schema)
        _clean_often(op, table, schema)
        op.create_table(_named(table, "_group"), *_group(), schema=schema)
        _create_index(op, _group_index(table), _named(table, "_group"), schema)
        op.create_table(_named(table, "_archive"), *_archived(), schema=schema)

    def drop(op: Any, schema: str | None) -> None:
        for name in (_named(table, "_archive"), _named(table, "_group"), table):
            op.drop_table(name, schema=schema)

    return TableSet("queue", metadata, (Step(create, drop),), named=_set)


def _clean_often(op: Any, table: str, schema: str | None) -> None:
    """Set the vacuum threshold by SQL: SQLAlchemy 2.0.20 has no such table option."""
    dialect = op.get_context().dialect
    if dialect.name == "postgresql":
        name = dialect.identifier_preparer.format_table(Table(table, MetaData(), schema=schema))
        name = name if doubles_percents(dialect) else name.replace("%", "%%")  # as DDL wants
        sql = f"ALTER TABLE {name} SET (autovacuum_vacuum_scale_factor = 0.01)"
        op.execute(DDL(sql))  # type: ignore[no-untyped-call]


def _create_index(op: Any, index: Index, table: str, schema: str | None) -> None:
    columns = [str(expression) for expression in index.expressions]
    op.create_index(index.name, table, columns, schema=schema, unique=index.unique, **index.kwargs)


SETS = (_set(NAME),)
