"""Names that several programs have open, and their handles (:mod:`optilock.shares`).

A name's row is made when somebody first opens it, and stays: it is what everybody locks who opens,
closes or deletes the name, so that nobody is let in by a look that is out of date. Whether the name
is there, for those who ask, is a column.

``optilock_share_names``     ``name``, compared byte by byte; is it ``there``; is its
                             ``delete_pending``; is it ``read_only``; and how often it was
                             ``moved``: opened, closed or changed
``optilock_share_handles``   a row for each open handle: its ``access`` and ``share`` as bits (R 1,
                             W 2, D 4), its ``owner``'s label, and ``until`` when it is open without
                             another heartbeat; ``length`` in milliseconds
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Boolean, Column, MetaData, SmallInteger, String, Table, Uuid
from sqlalchemy.dialects import mysql

from optilock.tables import Step, TableSet
from optilock.tokens.timestamp import UtcDateTime

#: MariaDB's own type takes only those UUIDs that it knows of.
HANDLE_ID = Uuid().with_variant(Uuid(native_uuid=False), "mysql", "mariadb")
_NAMES, _HANDLES = "optilock_share_names", "optilock_share_handles"
_metadata = MetaData()


def _exact() -> String:
    """MariaDB's usual collations take 'a' for 'A' and for 'a ', which would be another name."""
    exact = mysql.VARCHAR(200, charset="utf8mb4", collation="utf8mb4_nopad_bin")
    return String(200).with_variant(exact, "mysql", "mariadb")


def _of_names() -> list[Column[Any]]:
    return [
        Column("name", _exact(), primary_key=True),
        Column("there", Boolean(), nullable=False),
        Column("delete_pending", Boolean(), nullable=False),
        Column("read_only", Boolean(), nullable=False),
        Column("moved", BigInteger(), nullable=False),
    ]


def _of_handles() -> list[Column[Any]]:
    return [
        Column("name", _exact(), primary_key=True),
        Column("id", HANDLE_ID, primary_key=True),
        Column("owner", String(200)),
        Column("access", SmallInteger(), nullable=False),
        Column("share", SmallInteger(), nullable=False),
        Column("delete_on_close", Boolean(), nullable=False),
        Column("length", BigInteger(), nullable=False),
        Column("since", UtcDateTime(), nullable=False),
        Column("until", UtcDateTime(), nullable=False),
    ]


names = Table(_NAMES, _metadata, *_of_names())
handles = Table(_HANDLES, _metadata, *_of_handles())


def _create(op: Any, schema: str | None) -> None:
    op.create_table(_NAMES, *_of_names(), schema=schema)
    op.create_table(_HANDLES, *_of_handles(), schema=schema)


def _drop(op: Any, schema: str | None) -> None:
    op.drop_table(_HANDLES, schema=schema)
    op.drop_table(_NAMES, schema=schema)


SET = TableSet("shares", _metadata, (Step(_create, _drop),))
