"""What is refused because the session demands something of rows that nobody can look at before.

A SQL text, an upsert of a row that may be there, and a statement inside of another one say too
little about the rows that they write. :mod:`optilock.statements.demanded` asks the rows of all
others.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Delete, Insert, Table, TextClause, Update
from sqlalchemy.sql import visitors

from optilock.conditions.demands import Demands
from optilock.errors import ConfigurationError
from optilock.mapping.tables import all_mappers, classes_over
from optilock.statements.sql_text import may_write, sql_of, tables_written
from optilock.statements.upserts import changes_stored_rows
from optilock.undocumented import names_set_by

__all__ = ["refuse_inside", "refuse_others", "refuse_text", "refuse_unasked"]


def refuse_unasked(demands: Demands, statement: Any) -> None:
    """Refuse what may write rows of which something is demanded, and that nobody can look at.

    Raises:
        ConfigurationError: it is a SQL text that changes such a table, or an upsert of one, or has
            a statement that writes one inside (``from_statement()``, a CTE of PostgreSQL).
    """
    if isinstance(statement, Insert) and changes_stored_rows(statement):
        for cls in _demanded_classes(demands, statement.table):
            raise _upsert(cls, statement.table)
    sql = sql_of(statement)
    if sql is not None:
        refuse_text(demands, sql)
    else:
        refuse_inside(demands, statement)


def refuse_inside(demands: Demands, statement: Any) -> None:
    for one in visitors.iterate(statement):
        if one is statement or not isinstance(one, (Update, Delete, Insert, TextClause)):
            continue
        if isinstance(one, (Insert, TextClause)):
            refuse_unasked(demands, one)
        else:
            for cls in _demanded_classes(demands, one.table):
                raise _inside(cls)


def refuse_text(demands: Demands, sql: str) -> None:
    """The same of a SQL text that is no statement of SQLAlchemy's."""
    if not may_write(sql):
        return
    known = {
        table.name.lower(): mapper.class_.__name__
        for mapper in all_mappers()
        if demands.on(mapper)
        for table in mapper.tables
        if isinstance(table, Table)
    }
    for name in sorted(tables_written(sql, known)):
        cls = known[name]
        raise ConfigurationError(
            f"The SQL text writes the table {name!r}, and the session demands something of each row"
            f" of {cls} that it writes, which nobody can ask of the rows of a text. Write"
            f" update({cls}).where(...) or delete({cls}).where(...), or change the objects; rows of"
            " which nothing is to be demanded are written by a session without the demand. Nothing"
            " was sent."
        )


def refuse_others(demands: Demands, statement: Any, tables: set[Any]) -> None:
    """Refuse a statement that writes an alias, or one more table (MariaDB).

    Raises:
        ConfigurationError: something is demanded of those rows.
    """
    written = {one for one in visitors.iterate(statement.table) if isinstance(one, Table)}
    if isinstance(statement.table, Table):
        written = set()
    if isinstance(statement, Update):
        set_in = map(_table_of, names_set_by(statement))
        written |= {table for table in set_in if table is not None}
    for table in written - tables:
        for cls in _demanded_classes(demands, table):
            raise ConfigurationError(
                f"The statement names an alias of {table.description}, or several tables, and the"
                f" session demands something of each row of {cls} that it writes: name"
                f" {table.description} itself, in a statement of its own. Nothing was sent."
            )


def _table_of(named: Any) -> Any:
    """The table of a column, or of an attribute, that a statement sets; a name has none."""
    column = named.__clause_element__() if hasattr(named, "__clause_element__") else named
    return getattr(column, "table", None)


def _demanded_classes(demands: Demands, table: Any) -> list[str]:
    return [one.class_.__name__ for one in classes_over(table) if demands.on(one)]


def _inside(cls: str) -> ConfigurationError:
    return ConfigurationError(
        f"A statement that writes rows of {cls} is inside of another one, and the session demands"
        " something of each of these rows, which nobody can ask there: execute it by itself, with"
        " returning() if its rows are wanted. Nothing was sent."
    )


def _upsert(cls: str, table: Any) -> ConfigurationError:
    return ConfigurationError(
        f"The upsert of {table.description} may change a stored row, and the session demands"
        f" something of each row of {cls} that it changes, which nobody can ask of it. Insert what"
        f" is new (ON CONFLICT DO NOTHING), and write update({cls}).where(...) for what is stored."
        " Nothing was sent."
    )
