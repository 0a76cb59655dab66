"""Rows by their keys, so that MariaDB goes to these rows and reads no other.

InnoDB locks what it reads. A list of 1,000 values or more becomes a table of its own inside of the
server, after which the server may scan ours from its begin to its end, FORCE INDEX or not
(``in_predicate_conversion_threshold``; https://mariadb.com/kb/en/conversion-of-big-in-predicates-into-subqueries/).
Several shorter lists are one range of the primary key, in its order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Date, DateTime, Delete, Integer, Numeric, Table, delete, or_
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles

from optilock.dialects.keys import key_in, key_is_one_of
from optilock.dialects.mariadb.galera import number_of
from optilock.mapped import Identity

#: Through the primary key: a scan would lock every row that it reads.
BY_PRIMARY = "FORCE INDEX (PRIMARY)"
#: In the ``info`` of a table.
_WITHOUT = "optilock_without_primary"
#: ER_KEY_DOES_NOT_EXISTS
_NO_SUCH_KEY = 1176
#: In a row of values it compares these as a column is compared, and ASCII. It does not find 'Köln'
#: of a latin1 column there, because the row has the connection's character set.
_ALIKE = (Integer, Numeric, Date, DateTime)

#: A key of two columns counts as two.
_VALUES = 999


def at_keys(columns: Sequence[ColumnElement[Any]], keys: Sequence[Identity]) -> ColumnElement[bool]:
    """``key IN (…)``, or ``key IN (…) OR key IN (…)``."""
    if len(columns) > 1 and any(map(_differs, columns, zip(*keys, strict=True))):
        return key_is_one_of(columns, keys)
    step = _VALUES // len(columns)
    if len(keys) <= step:
        return key_in(columns, keys)
    return or_(*(key_in(columns, keys[n : n + step]) for n in range(0, len(keys), step)))


def _differs(column: ColumnElement[Any], values: tuple[Any, ...]) -> bool:
    """Are these perhaps compared in another way, where they are in rows of values?"""
    if isinstance(column.type, _ALIKE):
        return False
    return not all(isinstance(value, str) and value.isascii() for value in values)


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
    statement = delete(table).prefix_with(_Name(table))
    if has_primary(table):
        statement = statement.with_hint(BY_PRIMARY)
    return statement.where(at_keys(columns, keys))


def has_primary(table: Table) -> bool:
    """Is the key of the mapping that of the table, as far as is known?

    It may be a UNIQUE key alone, or the table may be a view: :data:`BY_PRIMARY` is refused then.
    """
    return _WITHOUT not in table.info


def forget_primary(table: Table, error: DBAPIError) -> bool:
    """Was a statement refused because it names the key? From here on none does."""
    if error.orig is None or number_of(error.orig) != _NO_SUCH_KEY or not has_primary(table):
        return False
    table.info[_WITHOUT] = True
    return True
