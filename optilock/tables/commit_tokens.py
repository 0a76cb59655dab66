"""Which units of work have been committed: what makes a repeated unit harmless.

A unit that must be applied once writes its token into this table, in its own transaction. When the
connection is lost inside COMMIT, the unit is run again: if its token is there already, the first
attempt was stored. The primary key decides, and makes a second attempt wait for the first one to
end; a SELECT would see nothing of a COMMIT that is under way.

``token``       chosen by the caller (an idempotency key) or random; compared byte by byte
``result``      what the unit gave back, as text, if it is to be given back again
``created_at``  by the server's clock: old tokens go when nobody can repeat the unit any more
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, Index, MetaData, String, Table, Text
from sqlalchemy.dialects import mysql

from optilock.tables import Step, TableSet
from optilock.tokens.timestamp import ServerTime, UtcDateTime

_NAME = "optilock_commit_tokens"
_INDEX = "optilock_commit_tokens_created_at"
_metadata = MetaData()


def _token() -> String:
    """MariaDB's usual collations take 'a' for 'A' and for 'a ', which would be another's token."""
    exact = mysql.VARCHAR(200, charset="utf8mb4", collation="utf8mb4_nopad_bin")
    return String(200).with_variant(exact, "mysql", "mariadb")


commit_tokens = Table(
    _NAME,
    _metadata,
    Column("token", _token(), primary_key=True),
    Column("result", Text),
    Column("created_at", UtcDateTime(), nullable=False, default=ServerTime()),
    Index(_INDEX, "created_at"),
)


def _create(op: Any, schema: str | None) -> None:
    op.create_table(
        _NAME,
        Column("token", _token(), primary_key=True),
        Column("result", Text),
        Column("created_at", UtcDateTime(), nullable=False),
        schema=schema,
    )
    op.create_index(_INDEX, _NAME, ["created_at"], schema=schema)


def _drop(op: Any, schema: str | None) -> None:
    op.drop_table(_NAME, schema=schema)


SET = TableSet("commit_tokens", _metadata, (Step(_create, _drop),))
