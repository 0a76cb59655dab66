"""Checks of scopes: the table of their versions, and changes of rows that move none."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from sqlalchemy import Connection, Table, inspect
from sqlalchemy.exc import NoSuchTableError
from sqlalchemy.orm import Mapper

from optilock._mapping.scope_triggers import has_triggers, scope_trigger_of
from optilock._mapping.scopes import rules_of
from optilock.check.findings import Finding, error, warning
from optilock.dialects import database_of
from optilock.tables.names import scopes

_BY_ITSELF = ("CASCADE", "SET NULL", "SET DEFAULT")


def check_scopes(connection: Connection, mappers: Collection[Mapper[Any]]) -> Iterator[Finding]:
    """Find what keeps versions of scopes from moving, where a class has scopes."""
    roots = {rules.mapper: None for mapper in mappers if (rules := rules_of(mapper)).rules}
    if not roots:
        return
    name = scopes.name
    if name not in database_of(connection.dialect).catalogue(connection, None).tables({name}):
        yield error(
            "no-scopes",
            name,
            "A class has __version_scopes__, and the database has no table for their versions:"
            " each COMMIT of such rows is refused.",
            'Create it in a migration: op.create_optilock_tables("scopes", revision=1).',
        )
    for root in roots:
        table = root.local_table
        if isinstance(table, Table):
            yield from _triggers(connection, root, table)
            yield from _cascades(connection, root, table)


def _triggers(connection: Connection, root: Mapper[Any], table: Table) -> Iterator[Finding]:
    """Find missing triggers of classes that other programs write."""
    wanted = scope_trigger_of(root)
    if wanted is None:
        return
    database, dialect = database_of(connection.dialect), connection.dialect
    found = database.guard_triggers(dialect).found(connection, table.schema)
    there = [one for one in found if one.table == table.name]
    if not database.scope_triggers(dialect).is_made(wanted, there):
        yield error(
            "scope-not-moved",
            root.class_.__name__,
            "Triggers move the versions of rows that other programs write, and those of"
            " __version_scopes__ are missing, switched off or others: verify() and a list's ETag"
            " miss these programs' changes.",
            "Create them in a migration: op.create_scope_trigger, which autogenerate writes.",
        )


def _cascades(connection: Connection, root: Mapper[Any], table: Table) -> Iterator[Finding]:
    """Find foreign keys by which the database changes rows that no session sees."""
    database = database_of(connection.dialect)
    if has_triggers(root) and database.guard_triggers.fire_after_cascades:
        return
    try:
        keys = inspect(connection).get_foreign_keys(table.name, schema=table.schema)
    except NoSuchTableError:
        return
    for key in keys:
        does = [
            f"ON {when.removeprefix('on').upper()} {rule}"
            for when, rule in key.get("options", {}).items()
            if when in ("ondelete", "onupdate") and str(rule).upper() in _BY_ITSELF
        ]
        if does:
            yield warning(
                "scope-cascade",
                f"{table.fullname}.{', '.join(key['constrained_columns'])}",
                f"A change of {key['referred_table']} changes rows by itself ({', '.join(does)}),"
                f" and moves no scope of {root.class_.__name__}: verify() and a list's ETag miss"
                " it.",
                "Leave it to the program (ON DELETE RESTRICT, ON UPDATE RESTRICT;"
                " passive_deletes and passive_updates=False of the relationship).",
            )
