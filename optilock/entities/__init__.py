"""Entity operations: one row by its key, in the version that a client has seen, in one statement.

::

    from optilock import entities

    stored = entities.insert(session, Page, 7, {"title": "Start"})
    stored = entities.merge(session, Page, 7, {"title": "Home"}, if_match=stored.etag)
    entities.delete(session, Page, 7, if_match=stored.etag)

No object is loaded. ``if_match`` is part of the statement's WHERE, so that two clients with one tag
never both write. With an ``AsyncSession``: ``await optilock.asyncio.merge(...)``.

:mod:`~optilock.entities.operations` has the six operations, :mod:`~optilock.entities.batches`
several of them as one, also when they are sent again.
:mod:`~optilock.entities.tags` reads the versions that a client demands, and
:mod:`~optilock.entities.bodies` the values that it wants stored.
:mod:`~optilock.entities.idempotency` recognises a request that is sent again.
:mod:`~optilock.entities.row_writes` writes a row that is there, in the statements of
:mod:`~optilock.entities.row_statements`, and :mod:`~optilock.entities.row_inserts` inserts one.
"""

from optilock.entities.batches import Operation, transaction
from optilock.entities.idempotency import Idempotency
from optilock.entities.operations import (
    Arguments,
    ArgumentsWithValues,
    Stored,
    delete,
    insert,
    insert_or_merge,
    insert_or_replace,
    merge,
    replace,
)
from optilock.entities.tags import Version

__all__ = [
    "Arguments",
    "ArgumentsWithValues",
    "Idempotency",
    "Operation",
    "Stored",
    "Version",
    "delete",
    "insert",
    "insert_or_merge",
    "insert_or_replace",
    "merge",
    "replace",
    "transaction",
]
