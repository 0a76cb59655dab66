"""Rows by their keys, so that MariaDB goes to these rows and reads no other.

InnoDB locks what it reads. A list of 1,000 values or more becomes a table of its own inside of the
server, after which the server may scan ours from its begin to its end, FORCE INDEX or not
(``in_predicate_conversion_threshold``; https://mariadb.com/kb/en/conversion-of-big-in-predicates-into-subqueries/).
Several shorter lists are one range of the primary key, in its order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Delete, Table, delete, or_
from sqlalchemy.ext.compiler import compiles

from optilock.mapped import Identity, key_in

#: A key of two columns counts as two.
_VALUES = 999


def at_keys(columns: Sequence[ColumnElement[Any]], keys: Sequence[Identity]) -> ColumnElement[bool]:
    """``key IN (…)``, or ``key IN (…) OR key IN (…)``."""
    step = _VALUES // len(columns)
    if len(keys) <= step:
        return key_in(columns, keys)
    return or_(*(key_in(columns, keys[n : n + step]) for n in range(0, len(keys), step)))


class _Name(ColumnElement[Any]):
    """The name of a table; a text could not have every name."""

    inherit_cache = True  # the statement has the table in its key

    def __init__(self, table: Table) -> None:
        self.named = table


@compiles(_Name, "mysql", "mariadb")
def _name(element: _Name, compiler: Any, **options: Any) -> str:
    return str(compiler.preparer.format_table(element.named))


def delete_at(
    table: Table, columns: Sequence[ColumnElement[Any]], keys: Sequence[Identity]
) -> Delete:
    """``DELETE t FROM t FORCE INDEX (PRIMARY) WHERE key IN (…)``."""
    statement = delete(table).prefix_with(_Name(table)).with_hint("FORCE INDEX (PRIMARY)")
    return statement.where(at_keys(columns, keys))
