"""Leases of names: one row for each name that was ever leased, and it is never deleted.

A lease of a row is columns of that row. A name has no row of its own, so it gets one here, which
stays when the lease has ended: whoever acquires it next waits for the same row, and its fencing
number goes on growing.

``name``        chosen by the application; compared byte by byte
``lease_...``   as :mod:`optilock.leases.columns` has them
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Column, MetaData, String, Table, Uuid
from sqlalchemy.dialects import mysql

from optilock.tables import Step, TableSet
from optilock.tokens.timestamp import UtcDateTime

_NAME = "optilock_leases"
_metadata = MetaData()


def _columns() -> list[Column[Any]]:
    exact = mysql.VARCHAR(200, charset="utf8mb4", collation="utf8mb4_nopad_bin")
    return [
        Column("name", String(200).with_variant(exact, "mysql", "mariadb"), primary_key=True),
        # MariaDB's own type takes the 128 bits of a UUID of some versions only
        Column("lease_id", Uuid().with_variant(Uuid(native_uuid=False), "mysql", "mariadb")),
        Column("lease_since", UtcDateTime()),
        Column("lease_until", UtcDateTime()),
        Column("lease_length", BigInteger()),
        Column("lease_fence", BigInteger(), nullable=False, server_default="0"),
    ]


leases = Table(_NAME, _metadata, *_columns())


def _create(op: Any, schema: str | None) -> None:
    op.create_table(_NAME, *_columns(), schema=schema)


def _drop(op: Any, schema: str | None) -> None:
    op.drop_table(_NAME, schema=schema)


SET = TableSet("leases", _metadata, (Step(_create, _drop),))
