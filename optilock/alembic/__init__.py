"""Migrations: versions on tables that have rows, and triggers for programs without optilock.

::

    import optilock.alembic
    from alembic import op
    from optilock.tokens import Counter

    def upgrade() -> None:
        op.add_version_column("accounts", Counter())

    def downgrade() -> None:
        op.drop_version_column("accounts", Counter())

Importing the module adds these operations to ``op``:

``add_version_column``, ``drop_version_column``, ``change_version_column``
    the column of a token, on a table that has rows
``roll_out_version_column``, ``roll_back_version_column``
    the same on a table while other programs write it, without stopping them
``create_guard_trigger``, ``drop_guard_trigger``
    the trigger that moves the version after a foreign UPDATE, or refuses that UPDATE
``create_version_trigger``, ``drop_version_trigger``
    the trigger that makes the versions of a ``RowVersion``
``create_scope_trigger``, ``drop_scope_trigger``
    the triggers that move scopes when other programs write rows
``add_change_notice``, ``drop_change_notice``
    the triggers that notify listeners of changed rows
``create_optilock_tables``, ``upgrade_…``, ``downgrade_…``, ``drop_optilock_tables``
    a set of optilock's own tables (:mod:`optilock.tables`)

========================  ==========================================================================
operations                the base of all operations; triggers, and sets of optilock's own tables
version_column            the column of a token
scope_triggers            the triggers that move scopes
change_notices            the triggers that notify of changed rows
roll_out                  the same column, while others write the table
waits                     the bounded wait for the lock of a table
plugin                    the module that Alembic loads whenever it is imported
autogenerate              comparison of tables and columns, and operations as Python
autogenerate_triggers     comparison of triggers
========================  ==========================================================================

Autogenerate writes them, with one line in ``env.py``::

    context.configure(..., autogenerate_plugins=["alembic.autogenerate.*", "optilock"])

Use them outside ``batch_alter_table``: they change each database in its own way. On SQLite,
``batch_alter_table`` makes a new table, which has no triggers; create them again after it
(autogenerate does).
"""

from optilock.alembic.change_notices import AddChangeNotice, DropChangeNotice
from optilock.alembic.operations import (
    CreateGuardTrigger,
    CreateOptilockTables,
    CreateVersionTrigger,
    DowngradeOptilockTables,
    DropGuardTrigger,
    DropOptilockTables,
    DropVersionTrigger,
    UpgradeOptilockTables,
)
from optilock.alembic.roll_out import RollBackVersionColumn, RollOutVersionColumn
from optilock.alembic.scope_triggers import CreateScopeTrigger, DropScopeTrigger
from optilock.alembic.version_column import AddVersionColumn, ChangeVersionColumn, DropVersionColumn

__all__ = [
    "AddChangeNotice",
    "AddVersionColumn",
    "ChangeVersionColumn",
    "CreateGuardTrigger",
    "CreateOptilockTables",
    "CreateScopeTrigger",
    "CreateVersionTrigger",
    "DowngradeOptilockTables",
    "DropChangeNotice",
    "DropGuardTrigger",
    "DropOptilockTables",
    "DropScopeTrigger",
    "DropVersionColumn",
    "DropVersionTrigger",
    "RollBackVersionColumn",
    "RollOutVersionColumn",
    "UpgradeOptilockTables",
]
