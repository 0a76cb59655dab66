"""The connection that listens to notices of PostgreSQL, with psycopg: one for each process.

A pooler in transaction mode takes LISTEN and delivers nothing, without an error. So a
listener has a DSN of its own, and :func:`listen` sends a notice to itself by a second connection
before it returns.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any
from uuid import uuid4

import sqlalchemy as sa

from optilock.dialects.change_notices import CHANNEL
from optilock.errors import ConfigurationError
from optilock.errors.base import extra

with extra("postgresql"):
    import psycopg

#: Seconds in which a notice must arrive when the listener is tested.
_PATIENCE = 5.0
#: A line that is cut without a word is noticed within a minute.
_KEEPALIVES = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}

Connection = psycopg.AsyncConnection[Any]
#: Sends a notice with this payload, and returns whether it could.
Notify = Callable[[str], Awaitable[bool]]


async def listen(dsn: str | sa.URL, *, notify: Notify | None = None) -> Connection:
    """Return a connection that listens, tested by a notice of ``notify``.

    Raises:
        ConfigurationError: the notice does not arrive.
        psycopg.Error: the server does not answer.
    """
    connection = await _connect(dsn)
    try:
        await connection.execute(f"LISTEN {CHANNEL}")
        if notify is not None and not await _hears(connection, dsn, notify):
            raise ConfigurationError(
                "Changes(dsn=...) gets no notices: it listens, and a NOTIFY did not arrive. A"
                " pooler in transaction mode does that, or dsn= names another database than the"
                " sessions have. Name their database itself, or leave dsn= out: the rows are then"
                " asked for every poll= seconds."
            )
    except BaseException:
        await connection.close()
        raise
    return connection


async def _hears(connection: Connection, dsn: str | sa.URL, notify: Notify) -> bool:
    payload = json.dumps({"test": uuid4().hex})
    if not await notify(payload):
        async with await _connect(dsn) as other:
            await other.execute("SELECT pg_notify(%s, %s)", (CHANNEL, payload))
    async with aclosing(connection.notifies(timeout=_PATIENCE)) as notices:
        async for notice in notices:
            if notice.payload == payload:
                return True
    return False


async def _connect(dsn: str | sa.URL) -> Connection:
    """Connect, also by a URL as SQLAlchemy writes it."""
    if isinstance(dsn, sa.URL) or "+" in dsn.partition("://")[0]:
        url = sa.make_url(dsn).set(drivername="postgresql+psycopg")
        given = url.get_dialect()().create_connect_args(url)[1]
    else:
        given = psycopg.conninfo.conninfo_to_dict(dsn)
    whole = psycopg.conninfo.make_conninfo("", **{**_KEEPALIVES, **given})
    return await psycopg.AsyncConnection.connect(whole, autocommit=True)
