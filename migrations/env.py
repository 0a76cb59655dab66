"""Migrations of optilock's own tables, beside those of the application.

::

    python -m alembic -c migrations/alembic.ini -x url=postgresql+psycopg://me@host/db upgrade head
    OPTILOCK_DATABASE_URL=sqlite:///app.db python -m alembic -c migrations/alembic.ini upgrade head
    python -m alembic -c migrations/alembic.ini -x url=sqlite:// upgrade head --sql     # as text

What has been applied is written down in a table of optilock's own, so that an application whose
tables live in the same database keeps its ``alembic_version`` to itself.
"""

from __future__ import annotations

import os

from alembic import context
from alembic.util import CommandError
from sqlalchemy import URL, Connection, create_engine, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError
from sqlalchemy.pool import NullPool

import optilock.alembic  # noqa: F401  gives op the operations of the scripts
from optilock.tables import VERSION_TABLE

_VARIABLE = "OPTILOCK_DATABASE_URL"


def _url() -> URL:
    """The database asked for: ``-x url=`` first, then the environment."""
    text = context.get_x_argument(as_dictionary=True).get("url") or os.environ.get(_VARIABLE)
    if not text:
        raise CommandError(
            "No database is named: write -x url=postgresql+psycopg://user@host/database before the"
            f" command, or set {_VARIABLE}."
        )
    try:
        url = make_url(text)
        is_async = url.get_dialect().is_async
    except (ArgumentError, NoSuchModuleError, ValueError) as error:
        # The text may hold a password, so it is not repeated.
        raise CommandError(f"The database URL cannot be read: {type(error).__name__}.") from None
    if is_async:
        raise CommandError(
            f"{url.drivername} is an async driver: name a sync one for migrations, for example"
            " sqlite, postgresql+psycopg or mysql+pymysql."
        )
    return url


def _as_text(url: URL) -> None:
    """Print the SQL and send nothing."""
    context.configure(
        url=url,
        literal_binds=True,
        dialect_opts={"paramstyle": "named"},  # or every % would be written twice
        version_table=VERSION_TABLE,
    )
    with context.begin_transaction():
        context.run_migrations()


def _on(connection: Connection) -> None:
    context.configure(connection=connection, version_table=VERSION_TABLE)
    with context.begin_transaction():
        context.run_migrations()


if context.is_offline_mode():
    _as_text(_url())
else:
    _engine = create_engine(_url(), poolclass=NullPool)
    with _engine.connect() as _connection:
        _on(_connection)
