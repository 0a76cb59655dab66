"""Autogenerate: what the mapping says of versions, beside what the database has.

Alembic has compared the tables already. Its operations on version columns are replaced by those
that know what a version is: a column added to a table with rows has to be filled.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from alembic.autogenerate.api import AutogenContext
from alembic.operations.ops import DropIndexOp, DropTableOp, ModifyTableOps, UpgradeOps
from alembic.util import PriorityDispatchResult
from sqlalchemy import Column

from optilock.alembic import rendering as rendering  # operations can be written from here on
from optilock.alembic.trigger_ops import add_trigger_operations, tables_of
from optilock.alembic.version_ops import version_operations
from optilock.schema import Expected, expected, is_version
from optilock.tables import VERSION_TABLE, table_sets

__all__ = ["compare_default", "compare_tables"]

#: A table as Alembic names it: the default schema is None.
Key = tuple[str | None, str]


def compare_tables(
    context: AutogenContext, upgrade: UpgradeOps, schemas: set[str | None]
) -> PriorityDispatchResult:
    """Rewrite the operations of version columns."""
    wanted = _wanted(context)
    own = {VERSION_TABLE, *(n for one in table_sets().values() for n in one.table_names())}
    operations: list[Any] = []
    for operation in upgrade.ops:
        if _drops_one(operation, own):
            continue
        if not isinstance(operation, ModifyTableOps):
            operations.append(operation)
            continue
        key = (operation.schema, str(operation.table_name))
        ours = version_operations(context, operation, wanted.get(key))
        if not operation.is_empty():
            operations.append(operation)
        operations += ours
    upgrade.ops[:] = operations
    add_trigger_operations(context, upgrade, wanted, schemas)
    return PriorityDispatchResult.CONTINUE


def compare_default(
    context: AutogenContext,
    operation: Any,
    schema: str | None,
    table: str,
    name: str,
    stored: Column[Any],
    mapped: Column[Any],
) -> PriorityDispatchResult:
    """A version's default in the database is no difference: the mapping cannot have one.

    Where the mapping has one (``RowVersion``), it is looked at with the trigger.
    """
    if (mapped.server_default or stored.server_default) is not None and is_version(mapped):
        return PriorityDispatchResult.STOP
    return PriorityDispatchResult.CONTINUE


def _drops_one(operation: Any, own: Collection[str]) -> bool:
    """Alembic would drop optilock's own tables, and their indexes: no model mentions them."""
    if isinstance(operation, ModifyTableOps):
        drops = all(isinstance(one, DropIndexOp) for one in operation.ops)
        return drops and operation.table_name in own
    return isinstance(operation, DropTableOp) and operation.table_name in own


def _wanted(context: AutogenContext) -> dict[Key, Expected]:
    assert context.dialect is not None
    default = context.dialect.default_schema_name
    return {
        (None if table.schema == default else table.schema, table.name): found
        for table, found in expected(tables_of(context)).items()
    }
