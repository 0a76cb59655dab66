"""Statements that a program sends itself, and versions that move without an edit.

::

    from optilock.statements import bulk_update, guard_statements, unchanged

    guard_statements(engine, "forbid")                       # raise for SQL that bypasses versions
    session.execute(update(Account).where(unchanged(account)).values(balance=0))
    result = bulk_update(session, Account, [{"id": 1, "version": 3, "balance": 10}])

``demand`` adds a condition to every row that a session writes. ``touch`` moves the version of a
row that does not change, and ``no_bump`` keeps the version of rows that do. ``trigger_ddl`` returns
the statements that create and drop the trigger of a ``RowVersion``.
"""

from optilock._mapping.triggers import trigger_ddl
from optilock._watched.guard.no_bump import no_bump
from optilock._watched.rows.touch import touch
from optilock._watched.session.record import demand
from optilock._watched.statements.bulk import BulkResult, bulk_delete, bulk_update
from optilock._watched.statements.unguarded import guard_statements
from optilock._watched.statements.version import unchanged

__all__ = [
    "BulkResult",
    "bulk_delete",
    "bulk_update",
    "demand",
    "guard_statements",
    "no_bump",
    "touch",
    "trigger_ddl",
    "unchanged",
]
