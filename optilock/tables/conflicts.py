"""Conflicts as rows: the table of :mod:`optilock.telemetry.conflict_log`.

``occurred_at``        by the clock of the process that met the conflict
``table_name``         as in metrics: the table with the version, or the base table
``model, identity``    the class, and the primary key as a JSON list
``action, kind``       our attempt (update, delete, verify), and their change (updated, deleted)
``reason``             ``race`` of two transactions, or ``precondition``, a client's stale version
``unit, attempt``      the name of the unit, and the number of its attempt, from 1
``conflicting``        the attributes that both sides changed, as a JSON list
``original_version``   the version that we had read; ``database_version``: the stored one
``author``             ours, and ``changed_by`` theirs, by ``__version_author__``
``outcome``            ``resolved`` by the ``resolver``; ``raised`` or ``returned`` to the program;
                       ``failed`` with this attempt of its unit, even if it was settled
``column_values``      of chosen columns the three values, as JSON
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from optilock.tables import Step, TableSet, exact_text
from optilock.tokens.timestamp import UtcDateTime

_CONFLICTS = "optilock_conflicts"
_INDEX = "optilock_conflicts_occurred_at"
#: The longest text in a row: of a key, a version, an author.
LONGEST = 200
_metadata = sa.MetaData()


def _columns() -> list[sa.Column[Any]]:
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")  # which counts only in INTEGER
    required = ("table_name", "model", "identity", "action", "kind", "reason", "outcome")
    names = ("unit", "original_version", "database_version", "author", "changed_by", "resolver")
    return [
        sa.Column("id", number, primary_key=True),
        sa.Column("occurred_at", UtcDateTime(), nullable=False),
        *(sa.Column(name, exact_text(LONGEST), nullable=False) for name in required),
        *(sa.Column(name, exact_text(LONGEST)) for name in names),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("conflicting", sa.JSON(), nullable=False),
        sa.Column("column_values", sa.JSON(none_as_null=True)),
    ]


conflicts = sa.Table(_CONFLICTS, _metadata, *_columns(), sa.Index(_INDEX, "occurred_at"))


def _create(op: Any, schema: str | None) -> None:
    op.create_table(_CONFLICTS, *_columns(), schema=schema)
    op.create_index(_INDEX, _CONFLICTS, ["occurred_at"], schema=schema)


def _drop(op: Any, schema: str | None) -> None:
    op.drop_table(_CONFLICTS, schema=schema)


CONFLICTS = TableSet("conflicts", _metadata, (Step(_create, _drop),))

SETS = (CONFLICTS,)
