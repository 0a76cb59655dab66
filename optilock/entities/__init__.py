"""Entity operations: one row by its key, in the version that a client has seen, in one statement.

::

    from optilock import entities

    stored = entities.insert(session, Page, 7, {"title": "Start"})
    stored = entities.merge(session, Page, 7, {"title": "Home"}, if_match=stored.etag)
    entities.delete(session, Page, 7, if_match=stored.etag)

No object is loaded. ``if_match`` is part of the statement's WHERE, so that two clients with one tag
never both write. With an ``AsyncSession``: ``await optilock.asyncio.merge(...)``.

==============  ====================================================================================
operations      the six operations
batches         several of them as one, also when they are sent again
tags            the versions that a client demands
bodies          the values that a client wants stored
idempotency     recognises a request that is sent again
row_writes      writes a row that is there
row_statements  the statements of these writes
row_inserts     inserts a row
==============  ====================================================================================
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
