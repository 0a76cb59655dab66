"""Entity operations: one row by its key, in the version that a client has seen, in one statement.

::

    from optilock import entities

    stored = entities.insert(session, Page, 7, {"title": "Start"})
    stored = entities.merge(session, Page, 7, {"title": "Home"}, if_match=stored.etag)
    entities.delete(session, Page, 7, if_match=stored.etag)

No object is loaded. ``if_match`` stands in the WHERE of the statement, so that two clients with one
tag never both write. :mod:`operations` has the operations, :mod:`batches` several of them as one,
:mod:`tags` reads what a client demands, :mod:`bodies` what it wants stored, and :mod:`classes`
refuses what cannot be written so. :mod:`idempotency` knows a request that is sent again, by the
:mod:`fingerprints` of its body, and :mod:`resent` knows a whole batch. With an ``AsyncSession``:
``await optilock.asyncio.merge(...)``.
"""

from optilock.entities.batches import Operation, transaction
from optilock.entities.idempotency import Idempotency
from optilock.entities.operations import (
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
