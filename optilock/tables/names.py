"""Tables with one row for each name: leases, shares, tokens of committed units, scopes.

**Commit tokens** make a repeated unit of work harmless (:mod:`optilock.exactly_once`). A unit that
must be applied once writes its token in its own transaction. If the connection is lost inside
COMMIT, the same token is inserted once more: if it is there already, the unit was stored. The
primary key decides, and waits for a transaction that has not ended. A SELECT would not see a COMMIT
that is under way.

``token``        the caller's key, or a random one, which begins with ``~``; compared byte by byte
``result``       of a key: the result of its unit, as JSON; without one the unit was not done
``created_at``   by the server's clock; delete old tokens once their unit cannot be repeated
``fingerprint``  of a key: a hash of the function and its arguments; of a row that only keeps a late
                 COMMIT from being carried out: ``fence``

**Leases** of names: one row for each name that was ever leased; it is never deleted. A lease of a
row is columns of that row. A name has no row of its own, so it gets one here, which stays when the
lease has ended. So the next process waits for the same row, and the fencing number keeps growing.

``name``        chosen by the application; compared byte by byte
``lease_...``   the columns of :mod:`optilock.leases.columns`

**Shares** are names that several programs have open, and their handles (:mod:`optilock.shares`). A
name's row is made when the name is first opened, and stays. Every process that opens, closes or
deletes the name locks this row, so none decides on an outdated read. A column has whether the name
exists for its users.

``optilock_share_names``     ``name``, compared byte by byte; whether it is ``there``; its
                             ``delete_pending`` and ``read_only``; and how often it was ``moved``:
                             opened, closed or changed
``optilock_share_handles``   a row for each open handle: its ``access`` and ``share`` as bits (R 1,
                             W 2, D 4), its ``owner``'s label, and ``until`` when it is open without
                             another heartbeat; ``length`` in milliseconds

**Scopes** are versions of predicates (:mod:`optilock._watched.scopes`). A scope's row is made with
its first change or check, and stays: a deleted row would let old ETags match again. No row is the
version 0.

``scope``     the key (:mod:`optilock._mapping.scopes`); compared byte by byte
``version``   moves with each transaction that changes a row of the scope
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from optilock.tables import ANY_UUID, Step, TableSet, exact_text
from optilock.tokens.timestamp import ServerTime, UtcDateTime

# -- tokens of committed units ---------------------------------------------------------------------

_TOKENS = "optilock_commit_tokens"
_TOKENS_INDEX = "optilock_commit_tokens_created_at"
_token_metadata = sa.MetaData()

commit_tokens = sa.Table(
    _TOKENS,
    _token_metadata,
    sa.Column("token", exact_text(), primary_key=True),
    sa.Column("result", sa.Text),
    sa.Column("created_at", UtcDateTime(), nullable=False, default=ServerTime()),
    sa.Column("fingerprint", sa.String(64)),
    sa.Index(_TOKENS_INDEX, "created_at"),
)


def _create_tokens(op: Any, schema: str | None) -> None:
    op.create_table(
        _TOKENS,
        sa.Column("token", exact_text(), primary_key=True),
        sa.Column("result", sa.Text),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        schema=schema,
    )
    op.create_index(_TOKENS_INDEX, _TOKENS, ["created_at"], schema=schema)


def _drop_tokens(op: Any, schema: str | None) -> None:
    op.drop_table(_TOKENS, schema=schema)


def _add_fingerprint(op: Any, schema: str | None) -> None:
    op.add_column(_TOKENS, sa.Column("fingerprint", sa.String(64)), schema=schema)


def _drop_fingerprint(op: Any, schema: str | None) -> None:
    op.drop_column(_TOKENS, "fingerprint", schema=schema)


COMMIT_TOKENS = TableSet(
    "commit_tokens",
    _token_metadata,
    (Step(_create_tokens, _drop_tokens), Step(_add_fingerprint, _drop_fingerprint)),
)

# -- leases ----------------------------------------------------------------------------------------

_LEASES = "optilock_leases"
_lease_metadata = sa.MetaData()


def _of_leases() -> list[sa.Column[Any]]:
    return [
        sa.Column("name", exact_text(), primary_key=True),
        sa.Column("lease_id", ANY_UUID),
        sa.Column("lease_since", UtcDateTime()),
        sa.Column("lease_until", UtcDateTime()),
        sa.Column("lease_length", sa.BigInteger()),
        sa.Column("lease_fence", sa.BigInteger(), nullable=False, server_default="0"),
    ]


def _label() -> sa.Column[Any]:
    return sa.Column("lease_holder", exact_text())


leases = sa.Table(_LEASES, _lease_metadata, *_of_leases(), _label())


def _create_leases(op: Any, schema: str | None) -> None:
    op.create_table(_LEASES, *_of_leases(), schema=schema)


def _drop_leases(op: Any, schema: str | None) -> None:
    op.drop_table(_LEASES, schema=schema)


def _add_label(op: Any, schema: str | None) -> None:
    op.add_column(_LEASES, _label(), schema=schema)


def _drop_label(op: Any, schema: str | None) -> None:
    op.drop_column(_LEASES, "lease_holder", schema=schema)


LEASES = TableSet(
    "leases",
    _lease_metadata,
    (Step(_create_leases, _drop_leases), Step(_add_label, _drop_label)),
)

# -- shares ----------------------------------------------------------------------------------------

_SHARES, _HANDLES = "optilock_share_names", "optilock_share_handles"
_share_metadata = sa.MetaData()


def _of_names() -> list[sa.Column[Any]]:
    return [
        sa.Column("name", exact_text(), primary_key=True),
        sa.Column("there", sa.Boolean(), nullable=False),
        sa.Column("delete_pending", sa.Boolean(), nullable=False),
        sa.Column("read_only", sa.Boolean(), nullable=False),
        sa.Column("moved", sa.BigInteger(), nullable=False),
    ]


def _of_handles() -> list[sa.Column[Any]]:
    return [
        sa.Column("name", exact_text(), primary_key=True),
        sa.Column("id", ANY_UUID, primary_key=True),
        sa.Column("owner", sa.String(200)),
        sa.Column("access", sa.SmallInteger(), nullable=False),
        sa.Column("share", sa.SmallInteger(), nullable=False),
        sa.Column("delete_on_close", sa.Boolean(), nullable=False),
        sa.Column("length", sa.BigInteger(), nullable=False),
        sa.Column("since", UtcDateTime(), nullable=False),
        sa.Column("until", UtcDateTime(), nullable=False),
    ]


share_names = sa.Table(_SHARES, _share_metadata, *_of_names())
share_handles = sa.Table(_HANDLES, _share_metadata, *_of_handles())


def _create_shares(op: Any, schema: str | None) -> None:
    op.create_table(_SHARES, *_of_names(), schema=schema)
    op.create_table(_HANDLES, *_of_handles(), schema=schema)


def _drop_shares(op: Any, schema: str | None) -> None:
    op.drop_table(_HANDLES, schema=schema)
    op.drop_table(_SHARES, schema=schema)


SHARES = TableSet("shares", _share_metadata, (Step(_create_shares, _drop_shares),))

# -- scopes ----------------------------------------------------------------------------------------

_SCOPES = "optilock_scopes"
_scope_metadata = sa.MetaData()


def _of_scopes() -> list[sa.Column[Any]]:
    # PostgreSQL's other collations sort in another order than Python.
    key = exact_text(700).with_variant(sa.String(700, collation="C"), "postgresql")
    return [
        sa.Column("scope", key, primary_key=True),
        sa.Column("version", sa.BigInteger(), nullable=False),
    ]


scopes = sa.Table(_SCOPES, _scope_metadata, *_of_scopes())


def _create_scopes(op: Any, schema: str | None) -> None:
    op.create_table(_SCOPES, *_of_scopes(), schema=schema)


def _drop_scopes(op: Any, schema: str | None) -> None:
    op.drop_table(_SCOPES, schema=schema)


SCOPES = TableSet("scopes", _scope_metadata, (Step(_create_scopes, _drop_scopes),))

SETS = (COMMIT_TOKENS, LEASES, SHARES, SCOPES)
