"""Autogenerate for versions: compare the mapping with the database, and write the operations.

Alembic has compared the tables already. Its operations on version columns are replaced by
optilock's, because a version column added to a table with rows has to be filled. Operations are
rendered as the Python of a migration script, with the imports that it needs.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any

from alembic.autogenerate import render
from alembic.autogenerate.api import AutogenContext
from alembic.operations import ops
from alembic.util import PriorityDispatchResult
from sqlalchemy import INTEGER, BigInteger, Column, Dialect
from sqlalchemy.types import TypeEngine

from optilock import tokens
from optilock._mapping.first_versions import with_first_version
from optilock._mapping.tables import versioned_tables
from optilock._versioned import ExpectedTable, expected_tables, is_made_by_mixin, is_version
from optilock._watched.session.record import warn_caller
from optilock.alembic import version_column as op
from optilock.alembic.autogenerate_triggers import Key, add_trigger_operations, key_of, tables_of
from optilock.alembic.operations import VersionOperation
from optilock.rollout.claim import PREFIX as CLAIM
from optilock.tables import VERSION_TABLE, table_sets
from optilock.tokens import Counter, Token
from optilock.tokens.base import kinds

#: The argument that a project adds in its env.py.
LINE = 'autogenerate_plugins=["alembic.autogenerate.*", "optilock"]'


def compare_tables(
    context: AutogenContext, upgrade: ops.UpgradeOps, schemas: set[str | None]
) -> PriorityDispatchResult:
    """Rewrite the operations of version columns."""
    wanted = _wanted(context)
    own = {VERSION_TABLE, *(n for one in table_sets().values() for n in one.table_names())}
    operations: list[Any] = []
    for operation in upgrade.ops:
        if _drops_one(operation, own):
            continue
        key = (getattr(operation, "schema", None), str(getattr(operation, "table_name", "")))
        if isinstance(operation, ops.CreateTableOp) and key in wanted:
            _give_default(context, operation, wanted[key])
        if not isinstance(operation, ops.ModifyTableOps):
            operations.append(operation)
            continue
        ours = version_operations(context, operation, wanted.get(key))
        if not operation.is_empty():
            operations.append(operation)
        operations += ours
    upgrade.ops[:] = operations
    add_trigger_operations(context, upgrade, wanted, schemas)
    return PriorityDispatchResult.CONTINUE


def _give_default(
    context: AutogenContext, operation: ops.CreateTableOp, wanted: ExpectedTable
) -> None:
    """Give the version of a new table the default that ``create_all()`` would give it."""
    assert context.dialect is not None
    operation.columns = [
        with_first_version(one, wanted.token, context.dialect) if one is wanted.column else one
        for one in operation.columns
    ]


def remind_of_line(
    context: AutogenContext, upgrade: ops.UpgradeOps, schemas: set[str | None]
) -> PriorityDispatchResult:
    """Warn if operations on versions are still Alembic's own, because env.py lacks the line.

    A NOT NULL column that is added without values fails on a table with rows, and Alembic creates
    no triggers.
    """
    plain = sorted(_plain(context, upgrade))
    if plain:
        warn_caller(
            f"autogenerate writes the version of {', '.join(plain)} as any other column: the"
            " migration fails on a table that has rows, and makes no triggers. env.py lacks a line:"
            f" context.configure(..., {LINE}). Write it, and generate the revision again.",
        )
    return PriorityDispatchResult.CONTINUE


def _plain(context: AutogenContext, upgrade: ops.UpgradeOps) -> Iterator[str]:
    """Yield tables whose versions or triggers still have no operation of optilock."""
    ours = any(isinstance(operation, VersionOperation) for operation in upgrade.ops)
    wanted = _wanted(context) if upgrade.ops else {}
    for operation in upgrade.ops:
        if not isinstance(operation, (ops.ModifyTableOps, ops.CreateTableOp)):
            continue
        found = wanted.get((operation.schema, str(operation.table_name)))
        if isinstance(operation, ops.ModifyTableOps):
            if _added(operation, found) is not None:
                yield str(operation.table_name)
        elif found is not None and not ours and (found.moves_by_trigger or found.guard):
            yield str(operation.table_name)


def compare_default(
    context: AutogenContext,
    operation: Any,
    schema: str | None,
    table: str,
    name: str,
    stored: Column[Any],
    mapped: Column[Any],
) -> PriorityDispatchResult:
    """Ignore a version's default in the database: the mapping has none.

    If the mapping has one (``RowVersion``), it is compared with the trigger.
    """
    if (mapped.server_default or stored.server_default) is not None and _is_version(mapped):
        return PriorityDispatchResult.STOP
    return PriorityDispatchResult.CONTINUE


def keep_default(
    context: AutogenContext,
    operation: Any,
    schema: str | None,
    table: str,
    name: str,
    stored: Column[Any],
    mapped: Column[Any],
) -> PriorityDispatchResult:
    """Keep the default that a version has in the database alone, also where env.py lacks the line.

    Alembic would drop it.
    """
    if mapped.server_default is None and _is_version(mapped):
        return PriorityDispatchResult.STOP
    return PriorityDispatchResult.CONTINUE


def _is_version(column: Column[Any]) -> bool:
    """Return whether it is the version of a class, or a copy of it (``to_metadata()``)."""
    name, table = column.name, column.table
    return is_version(column) or any(
        (one.name, one.schema, version.name) == (table.name, table.schema, name)
        for one, version in versioned_tables().items()
    )


def compare_type(
    context: AutogenContext,
    operation: Any,
    schema: str | None,
    table: str,
    name: str,
    stored: Column[Any],
    mapped: Column[Any],
) -> PriorityDispatchResult:
    """Keep an existing INTEGER for versions, unless a class declares the column's type.

    BIGINT would rewrite the table under a lock, for versions after two thousand million writes of a
    row.
    """
    if (
        isinstance(stored.type, INTEGER)
        and isinstance(mapped.type, BigInteger)
        and is_made_by_mixin(mapped)
    ):
        operation.existing_type = stored.type
        return PriorityDispatchResult.STOP
    return PriorityDispatchResult.CONTINUE


def _drops_one(operation: Any, own: Collection[str]) -> bool:
    """Return whether Alembic would drop optilock's own tables, or indexes, which have no model."""
    if isinstance(operation, ops.ModifyTableOps):
        drops = all(isinstance(one, ops.DropIndexOp) for one in operation.ops)
        return drops and operation.table_name in own
    if not isinstance(operation, ops.DropTableOp):
        return False
    return operation.table_name in own or operation.table_name.startswith(CLAIM)


def _wanted(context: AutogenContext) -> dict[Key, ExpectedTable]:
    found = expected_tables(tables_of(context))
    return {key_of(context, table): wanted for table, wanted in found.items()}


def version_operations(
    context: AutogenContext, modify: ops.ModifyTableOps, wanted: ExpectedTable | None
) -> list[ops.MigrateOperation]:
    """Remove the version's operations from ``modify``, and return those that replace them."""
    assert context.dialect is not None
    dialect = context.dialect
    table, schema = str(modify.table_name), modify.schema
    added = _added(modify, wanted)
    dropped, old = _dropped(modify, dialect, replaced=added is not None)
    if wanted is not None and added is not None:
        modify.ops.remove(added)
        if dropped is None or old is None:
            return [op.AddVersionColumn(table, wanted.token, schema=schema)]
        modify.ops.remove(dropped)
        return [op.ChangeVersionColumn(table, old, wanted.token, schema=schema)]
    if dropped is not None and old is not None:
        modify.ops.remove(dropped)
        return [op.DropVersionColumn(table, old, schema=schema)]
    return _changed(modify, dialect, wanted)


def _added(modify: ops.ModifyTableOps, wanted: ExpectedTable | None) -> ops.AddColumnOp | None:
    if wanted is None:
        return None
    for operation in modify.ops:
        if isinstance(operation, ops.AddColumnOp) and operation.column.name == wanted.column.name:
            return operation
    return None


def _dropped(
    modify: ops.ModifyTableOps, dialect: Dialect, *, replaced: bool
) -> tuple[ops.DropColumnOp | None, Token | None]:
    """Return the dropped column that was a version, and its token.

    The database does not show it. If a new version is added, any NOT NULL column of a token's type
    was the old one; otherwise only a column with the default name of versions.
    """
    for operation in modify.ops:
        if not isinstance(operation, ops.DropColumnOp):
            continue
        column = operation.to_column()
        if column.nullable or not (replaced or column.name == Counter().name):
            continue
        token = _token_of(column.name, column.type, dialect)
        if token is not None:
            return operation, token
    return None, None


def _changed(
    modify: ops.ModifyTableOps, dialect: Dialect, wanted: ExpectedTable | None
) -> list[ops.MigrateOperation]:
    """Replace the operation that gives a version of the same name another type."""
    for operation in modify.ops:
        if (
            wanted is None
            or not isinstance(operation, ops.AlterColumnOp)
            or operation.column_name != wanted.column.name
            or operation.modify_type is None
        ):
            continue
        old = _token_of(wanted.column.name, operation.existing_type, dialect)
        if old is None or type(old) is type(wanted.token):
            continue  # a wider integer, a longer text: the versions stay
        modify.ops.remove(operation)
        return [
            op.ChangeVersionColumn(
                str(modify.table_name), _named_as(wanted, old), wanted.token, schema=modify.schema
            )
        ]
    return []


def _named_as(wanted: ExpectedTable, old: Token) -> Token:
    return type(old)(name=wanted.token.name, column=wanted.token.column)


def _token_of(name: str, kind: Any, dialect: Dialect) -> Token | None:
    """Return the token whose column this may have been."""
    for possible in kinds():
        if not possible.told_by_type:
            continue
        token = possible.in_column(name)
        if isinstance(kind, TypeEngine) and _same(kind, token.type(), dialect):
            return token
    return None


def _same(stored: TypeEngine[Any], wanted: TypeEngine[Any], dialect: Dialect) -> bool:
    return _text(stored, dialect) == _text(wanted, dialect)


def _text(kind: TypeEngine[Any], dialect: Dialect) -> str:
    """Return the type as SQL, without parts that do not matter: BIGINT(20) is BIGINT."""
    text = kind.compile(dialect).upper()
    return re.sub(r"(?<=BIGINT)\(\d+\)| (CHARACTER SET|COLLATE) \w+", "", text)


@render.renderers.dispatch_for(VersionOperation)
def render_operation(context: AutogenContext, operation: VersionOperation) -> str:
    """Return the operation as a line of a migration script."""
    context.imports.add("import optilock.alembic")
    call = operation.call()
    words = [_written(context, argument) for argument in call.arguments]
    words += [
        f"{option}={_written(context, value)}"
        for option, value in call.options.items()
        if value is not None and value != ()
    ]
    return f"op.{call.name}({', '.join(words)})"


_render_table = render.renderers.dispatch(ops.CreateTableOp)


@render.renderers.dispatch_for(ops.CreateTableOp, replace=True)
def _with_imports(context: AutogenContext, operation: ops.CreateTableOp) -> str:
    """Import optilock's types, which Alembic renders by their full names only."""
    text = str(_render_table(context, operation))
    for column in operation.columns:
        kind = type(getattr(column, "type", None))
        if kind.__module__.startswith("optilock."):
            context.imports.add(f"import {_public_module(kind)}")
            text = _by_public_path(kind, text)
    return text


def _written(context: AutogenContext, value: Any) -> str:
    if isinstance(value, Token):
        return _token(context, value)
    if isinstance(value, TypeEngine):
        return _type(context, value)
    return repr(str(value)) if isinstance(value, str) else repr(value)


def _token(context: AutogenContext, token: Token) -> str:
    """Return the call that makes an equal token, without default arguments."""
    kind = type(token)
    context.imports.add(f"import {_public_module(kind)}")
    given, named = token.arguments()
    words = [_written(context, value) for value in given]
    words += [f"{name}={_written(context, value)}" for name, value in named.items()]
    return f"{_public_module(kind)}.{kind.__qualname__}({', '.join(words)})"


def _type(context: AutogenContext, kind: TypeEngine[Any]) -> str:
    module = _public_module(type(kind))
    if not module.startswith("sqlalchemy."):
        context.imports.add(f"import {module}")
    return _by_public_path(type(kind), str(render._repr_type(kind, context)))


def _public_module(kind: type[Any]) -> str:
    """Return the public module of a type: files of the library may move, and a revision stays."""
    return tokens.__name__ if getattr(tokens, kind.__name__, None) is kind else kind.__module__


def _by_public_path(kind: type[Any], text: str) -> str:
    name = kind.__qualname__
    return text.replace(f"{kind.__module__}.{name}(", f"{_public_module(kind)}.{name}(")
