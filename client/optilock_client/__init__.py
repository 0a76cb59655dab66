"""A client of HTTP APIs with ETags: no edit of another client is overwritten.

::

    import httpx2
    from optilock_client import Client

    with Client(httpx2.Client(base_url="https://wiki.example")) as client:
        page = client.get("/pages/1")
        client.edit("/pages/1", lambda page: {**page, "title": "Home"})
        client.once("/orders", {"goods": "tea"})
        client.delete("/pages/1")

``edit`` reads, changes and writes with ``If-Match``. If another client was first, it merges both
changes by member and sends again. ``AsyncClient`` has the same calls.

=============  ===================================================================
file           what is in it
=============  ===================================================================
calls          what each call sends, waits for and decides; the two clients run it
clients        Client and AsyncClient
errors         the errors, in one tree
memory         the representations that were read last
merging        the three-way merge of JSON, and the body of a PATCH
waits          Retry-After, and waits that grow by chance
=============  ===================================================================
"""

from optilock_client.clients import AsyncClient, Client
from optilock_client.errors import (
    ClientError,
    ConditionIgnored,
    MergeConflict,
    NoAnswer,
    NoETag,
    UnexpectedAnswer,
)
from optilock_client.merging import ABSENT, Conflict, merge

__all__ = [
    "ABSENT",
    "AsyncClient",
    "Client",
    "ClientError",
    "ConditionIgnored",
    "Conflict",
    "MergeConflict",
    "NoAnswer",
    "NoETag",
    "UnexpectedAnswer",
    "merge",
]
