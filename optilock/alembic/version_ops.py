"""Alembic's operations on one table, with those on its version replaced by ours."""

from __future__ import annotations

import re
from typing import Any

from alembic.autogenerate.api import AutogenContext
from alembic.operations.ops import (
    AddColumnOp,
    AlterColumnOp,
    DropColumnOp,
    MigrateOperation,
    ModifyTableOps,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeEngine

from optilock.alembic.version_column import (
    AddVersionColumn,
    ChangeVersionColumn,
    DropVersionColumn,
)
from optilock.schema import Expected
from optilock.tokens import Counter, Timestamp, Token, Unique

__all__ = ["version_operations"]

#: Kinds that a column can be told to be by its type.
_KINDS: tuple[type[Token], ...] = (Counter, Unique, Timestamp)


def version_operations(
    context: AutogenContext, modify: ModifyTableOps, wanted: Expected | None
) -> list[MigrateOperation]:
    """Take what is about the version out of ``modify``; the operations to do in its place."""
    assert context.dialect is not None
    dialect = context.dialect
    table, schema = str(modify.table_name), modify.schema
    added = _added(modify, wanted)
    dropped, old = _dropped(modify, dialect, replaced=added is not None)
    if wanted is not None and added is not None:
        modify.ops.remove(added)
        if dropped is None or old is None:
            return [AddVersionColumn(table, wanted.token, schema=schema)]
        modify.ops.remove(dropped)
        return [ChangeVersionColumn(table, old, wanted.token, schema=schema)]
    if dropped is not None and old is not None:
        modify.ops.remove(dropped)
        return [DropVersionColumn(table, old, schema=schema)]
    return _changed(modify, dialect, wanted)


def _added(modify: ModifyTableOps, wanted: Expected | None) -> AddColumnOp | None:
    if wanted is None:
        return None
    for operation in modify.ops:
        if isinstance(operation, AddColumnOp) and operation.column.name == wanted.column.name:
            return operation
    return None


def _dropped(
    modify: ModifyTableOps, dialect: Dialect, *, replaced: bool
) -> tuple[DropColumnOp | None, Token | None]:
    """A column that was a version, and of which token.

    Nothing in the database says so. Beside a new version any NOT NULL column of a token's type was
    the old one; alone, one that has the name that versions have unless told otherwise.
    """
    for operation in modify.ops:
        if not isinstance(operation, DropColumnOp):
            continue
        column = operation.to_column()
        if column.nullable or not (replaced or column.name == Counter().name):
            continue
        token = _token_of(column.name, column.type, dialect)
        if token is not None:
            return operation, token
    return None, None


def _changed(
    modify: ModifyTableOps, dialect: Dialect, wanted: Expected | None
) -> list[MigrateOperation]:
    """The column keeps its name and gets another type."""
    for operation in modify.ops:
        if (
            wanted is None
            or not isinstance(operation, AlterColumnOp)
            or operation.column_name != wanted.column.name
            or operation.modify_type is None
        ):
            continue
        old = _token_of(wanted.column.name, operation.existing_type, dialect)
        if old is None or type(old) is type(wanted.token):
            continue  # a wider integer, a longer text: the versions stay
        modify.ops.remove(operation)
        return [
            ChangeVersionColumn(
                str(modify.table_name), _named_as(wanted, old), wanted.token, schema=modify.schema
            )
        ]
    return []


def _named_as(wanted: Expected, old: Token) -> Token:
    return type(old)(name=wanted.token.name, column=wanted.token.column)


def _token_of(name: str, kind: Any, dialect: Dialect) -> Token | None:
    """The token whose column this can have been."""
    for possible in _KINDS:
        token = possible() if name == Counter().name else _named(possible, name)
        if isinstance(kind, TypeEngine) and _same(kind, token.type(), dialect):
            return token
    return None


def _named(kind: type[Token], column: str) -> Token:
    return kind(name=column) if column.isidentifier() else kind(column=column)


def _same(stored: TypeEngine[Any], wanted: TypeEngine[Any], dialect: Dialect) -> bool:
    return _text(stored, dialect) == _text(wanted, dialect)


def _text(kind: TypeEngine[Any], dialect: Dialect) -> str:
    """The type as SQL, without what does not make it another one: BIGINT(20) is BIGINT."""
    text = kind.compile(dialect).upper()
    return re.sub(r"(?<=BIGINT)\(\d+\)| (CHARACTER SET|COLLATE) \w+", "", text)
