"""Migrations: versions on tables that have rows, and triggers that keep foreign writers honest.

::

    import optilock.alembic
    from alembic import op
    from optilock.tokens import Counter

    def upgrade() -> None:
        op.add_version_column("accounts", Counter())

    def downgrade() -> None:
        op.drop_version_column("accounts", Counter())

Importing the module gives ``op`` these operations:

``add_version_column``, ``drop_version_column``, ``change_version_column``
    the column of a token, on a table that has rows
``roll_out_version_column``, ``roll_back_version_column``
    the same on a table that others are writing meanwhile, without stopping them
``create_guard_trigger``, ``drop_guard_trigger``
    the trigger that moves a version which a foreign UPDATE left alone, or refuses that UPDATE
``create_version_trigger``, ``drop_version_trigger``
    the trigger that makes the versions of a ``RowVersion``
``create_optilock_tables``, ``upgrade_…``, ``downgrade_…``, ``drop_optilock_tables``
    a set of optilock's own tables (:mod:`optilock.tables`)

========================  ==========================================================================
operation                 what all operations have: they run, are written as Python, are taken back
version_column            the column of a token
roll_out                  the same column, while others write the table
triggers                  the guard trigger, and the one of a ``RowVersion``
own_tables                the sets of optilock's own tables
plugin                    what Alembic loads, whenever it is imported
autogenerate              tables and columns compared, and operations as Python
autogenerate_triggers     triggers compared
========================  ==========================================================================

Autogenerate writes them, with one line in ``env.py``::

    context.configure(..., autogenerate_plugins=["alembic.autogenerate.*", "optilock"])

All of them stand outside ``batch_alter_table``: they know how each database is changed. On SQLite,
``batch_alter_table`` makes the table anew and thereby drops its triggers; create them again after
it (autogenerate does).
"""

from optilock.alembic.own_tables import (
    CreateOptilockTables,
    DowngradeOptilockTables,
    DropOptilockTables,
    UpgradeOptilockTables,
)
from optilock.alembic.roll_out import RollBackVersionColumn, RollOutVersionColumn
from optilock.alembic.triggers import (
    CreateGuardTrigger,
    CreateVersionTrigger,
    DropGuardTrigger,
    DropVersionTrigger,
)
from optilock.alembic.version_column import AddVersionColumn, ChangeVersionColumn, DropVersionColumn

__all__ = [
    "AddVersionColumn",
    "ChangeVersionColumn",
    "CreateGuardTrigger",
    "CreateOptilockTables",
    "CreateVersionTrigger",
    "DowngradeOptilockTables",
    "DropGuardTrigger",
    "DropOptilockTables",
    "DropVersionColumn",
    "DropVersionTrigger",
    "RollBackVersionColumn",
    "RollOutVersionColumn",
    "UpgradeOptilockTables",
]
