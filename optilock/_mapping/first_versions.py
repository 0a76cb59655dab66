"""The default of a version in CREATE TABLE: rows of programs that know no version get one.

A migration that adds the column gives it this default (:mod:`optilock.alembic.version_column`), so
``metadata.create_all()``, and ``op.create_table`` as autogenerate writes it, do the same. The
mapping itself has none: SQLAlchemy takes a server default as a sign that the database makes the
versions, and asks for each of them with RETURNING. So the default is added when CREATE TABLE is
compiled.
"""

from __future__ import annotations

import copy
import functools
from typing import Any

from sqlalchemy import Column, DefaultClause, Dialect, Table, text
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateColumn

from optilock._mapped import facts
from optilock._mapping.tables import owner_of, versioned_tables
from optilock._undocumented.statements import compiler_of
from optilock.dialects import database_of
from optilock.tokens import Token


@functools.cache
def write_first_versions() -> None:
    """Write them into CREATE TABLE from now on. A program's own ``@compiles`` is kept below."""
    compile_as_before = compiler_of(CreateColumn)

    def create_column(element: CreateColumn, compiler: Any, **options: Any) -> Any:
        token = _token_of(element.element)
        if token is not None:
            element = CreateColumn(with_first_version(element.element, token, compiler.dialect))
        if compile_as_before is not None:
            return compile_as_before(element, compiler, **options)
        return compiler.visit_create_column(element, **options)

    compiles(CreateColumn)(create_column)


def with_first_version(column: Column[Any], token: Token, dialect: Dialect) -> Column[Any]:
    """Return a copy of a version with its default, or the column itself where there is none."""
    if column.server_default is not None or token.is_system:
        return column
    first = database_of(dialect).rollout().default_of(token)
    if first is None:
        return column
    column = copy.copy(column)
    column.server_default = DefaultClause(text(first))
    return column


def _token_of(column: Any) -> Token | None:
    """Return the token whose versions the column of a mapped table has."""
    table = getattr(column, "table", None)
    if not isinstance(table, Table) or versioned_tables().get(table) is not column:
        return None
    mapper = owner_of(table)
    return None if mapper is None else facts(mapper).kind
