"""Scopes of tables that other programs write: triggers move their versions.

A class that lets a trigger care for the versions of its rows (``__version_guard__``,
``RowVersion()``) has triggers for its scopes too. ``metadata.create_all()`` makes them with the
table, and a migration by ``op.create_scope_trigger``. They fire for all writes, ours too: a setting
that switches them off would also hide statements that a program sends past optilock. So a session
that verifies such a scope locks its row at once, and all moves until COMMIT are its own
(:func:`optilock._watched.scopes.transaction.verify_version`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.orm import Mapper

from optilock._mapped import facts
from optilock._mapping.scopes import rules_of
from optilock.dialects import database_of
from optilock.dialects.scope_triggers import ScopeTrigger
from optilock.dialects.values import plain_ddl


def has_triggers(mapper: Mapper[Any]) -> bool:
    """Return whether triggers move the scopes of the class."""
    root = facts(mapper).root
    token = facts(root).kind
    guarded = getattr(root.class_, "__version_guard__", None) is not None
    return bool(rules_of(root).rules) and (guarded or (token is not None and token.has_trigger))


def scope_trigger_of(mapper: Mapper[Any]) -> ScopeTrigger | None:
    """Return what the triggers of the class's table do; ``None`` if it has none."""
    root = facts(mapper).root
    table = root.local_table
    if not has_triggers(root) or not isinstance(table, sa.Table):
        return None
    without = facts(root).ignored
    ignore = tuple(one.name for one in table.columns if one in without or one.computed is not None)
    return ScopeTrigger(
        table.name,
        tuple(tuple(column.name for column in rule.columns) for rule in rules_of(root)),
        ignore,
        tuple(one.name for one in table.columns if one.name not in ignore) if ignore else (),
        tuple(one.name for one in rules_of(root).columns if isinstance(one.type, sa.Uuid)),
        table.schema,
    )


def create_with_table(mapper: Mapper[Any], table: sa.Table) -> None:
    """Make the triggers when ``table`` is created, and drop them before the table is."""

    def run(kind: str, made: sa.Table, connection: Any) -> None:
        wanted = scope_trigger_of(mapper)
        if wanted is None:
            return
        schema = getattr(connection, "schema_for_object", lambda one: one.schema)(made)
        wanted = replace(wanted, table=made.name, schema=schema)
        dialect = connection.dialect
        triggers = database_of(dialect).scope_triggers(dialect)
        for statement in getattr(triggers, kind)(wanted):
            connection.execute(plain_ddl(statement))

    event.listen(table, "after_create", lambda made, c, **_: run("create", made, c))
    event.listen(table, "before_drop", lambda made, c, **_: run("drop", made, c))
