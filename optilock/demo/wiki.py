"""The wiki: its pages, the three tables that they are stored in, and the database behind them.

The pages are Python's own reference topics, as they come with every Python. Their text is from
``pydoc_data.topics``, generated from the Python documentation.
Copyright (c) Python Software Foundation, used under the PSF License Version 2.

>>> from optilock.demo.wiki import hot_pages
>>> list(hot_pages(2))
['with', 'try']

Each page is stored as most programs have it, with the mixin of a version, and with that of a lease
as well: a text, a counter and a set of tags, each of which wants to be merged in another way.

The database is a temporary SQLite file, or the one behind ``--url``. A URL that cannot work is
refused before any editor starts, in one sentence that never holds the password. Every editor opens
its own engine with :func:`open_engine`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from sqlalchemy import JSON, URL, Engine, String, Text, create_engine, make_url
from sqlalchemy.dialects.mysql import MEDIUMTEXT
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from optilock import Versioned
from optilock.errors import ConfigurationError
from optilock.leases import Leasable

CREDIT = (
    "Pages: pydoc_data.topics from the Python documentation,"
    " (c) Python Software Foundation, PSF License Version 2."
)

#: Pages of a few thousand characters, which everybody has an opinion on, come first.
_FAVOURITES = ("with", "try", "class", "function", "import", "naming", "strings", "for")

#: How many pages there are (they differ a little between Python versions).
MOST = len(topics)


def hot_pages(count: int) -> dict[str, str]:
    """Name -> text of the first ``count`` pages, favourites first."""
    favourites = [name for name in _FAVOURITES if name in topics]
    others = sorted(set(topics) - set(favourites))
    return {name: topics[name] for name in (favourites + others)[:count]}


#: MariaDB's TEXT ends at 64 KB, and its default character set need not hold every page.
_LONG_TEXT = Text().with_variant(MEDIUMTEXT(), "mysql", "mariadb")
_CHARSET = {"mysql_charset": "utf8mb4", "mariadb_charset": "utf8mb4"}


class Base(DeclarativeBase):
    """The tables of the demo, all named ``optilock_demo_…``."""


class Page(Base):
    """What the kinds of page have in common."""

    __abstract__ = True

    name: Mapped[str] = mapped_column(String(100), primary_key=True)
    body: Mapped[str] = mapped_column(_LONG_TEXT)
    views: Mapped[int] = mapped_column(default=0)
    tags: Mapped[list[str]] = mapped_column(JSON, default=list)


class PlainWikiPage(Page):
    """A page without a version: what is written last stays."""

    __tablename__ = "optilock_demo_plain_pages"
    __table_args__ = _CHARSET


class WikiPage(Versioned, Page):
    """The same page with the mixin; that is all the difference."""

    __tablename__ = "optilock_demo_pages"
    __table_args__ = _CHARSET


class LeasedWikiPage(Leasable, Versioned, Page):
    """And one that an editor can have for himself for a while."""

    __tablename__ = "optilock_demo_leased_pages"
    __table_args__ = _CHARSET


_BACKENDS = ("postgresql", "sqlite", "mysql", "mariadb")
_EXAMPLES = "postgresql+psycopg://user@host/name, mysql+pymysql://user@host/name, sqlite:///file"
#: Seconds. Longer than the whole demo takes: nobody gives up because others were quicker.
_WAIT_FOR_LOCK = 60


@contextmanager
def database_url(asked: str | None) -> Iterator[str]:
    """A URL that answers; without one, that of a SQLite file which is removed afterwards."""
    if asked is not None:
        yield checked_url(asked)
        return
    with tempfile.TemporaryDirectory(prefix="optilock-demo-") as folder:
        url = f"sqlite:///{Path(folder) / 'wiki.db'}"
        _set_write_ahead_log(url)
        yield url


def open_engine(url: str) -> Engine:
    """An engine with one connection, as one editor needs it.

    READ COMMITTED is what last writer wins and the optimistic strategies are about; a server
    whose own default is stricter would otherwise refuse some of the writes.
    """
    options: dict[str, Any] = {"pool_size": 1, "max_overflow": 1}
    if make_url(url).get_backend_name() == "sqlite":
        return create_engine(url, connect_args={"timeout": _WAIT_FOR_LOCK}, **options)
    return create_engine(url, isolation_level="READ COMMITTED", **options)


def checked_url(asked: str) -> str:
    """The URL again, when a connection can be opened; else :exc:`ConfigurationError`."""
    url = _parsed(asked)
    shown = url.render_as_string(hide_password=True)
    try:
        engine = open_engine(asked)
        with engine.connect():
            pass
    except NoSuchModuleError:
        raise ConfigurationError(
            f"SQLAlchemy knows no driver {url.drivername!r}: write one of {_EXAMPLES}."
        ) from None
    except ImportError as missing:
        raise ConfigurationError(
            f"The driver of {shown} is not installed ({missing.name}): name one that is, such as"
            ' postgresql+psycopg:// or mysql+pymysql:// (pip install "optilock[demo]" has both).'
        ) from None
    except (SQLAlchemyError, UnicodeError, OSError) as error:
        raise ConfigurationError(f"Cannot connect to {shown}: {reason(error, url)}") from None
    engine.dispose()
    return asked


def _parsed(asked: str) -> URL:
    try:
        url = make_url(asked)
    except (ArgumentError, ValueError):
        # The text is not repeated: a URL that cannot be read may still hold a password.
        raise ConfigurationError(
            f"The --url given is not a database URL: write one of {_EXAMPLES}."
        ) from None
    if url.get_backend_name() not in _BACKENDS:
        raise ConfigurationError(
            f"The demo does not know {url.get_backend_name()!r}: write one of {_EXAMPLES}."
        )
    _refuse_async(url)
    _refuse_memory(url)
    return url


def _refuse_async(url: URL) -> None:
    try:
        asynchronous = url.get_dialect().is_async
    except (ImportError, NoSuchModuleError):
        return
    if asynchronous:
        raise ConfigurationError(
            f"The editors of the demo are not async and cannot use {url.drivername!r}:"
            f" write one of {_EXAMPLES}."
        )


def _refuse_memory(url: URL) -> None:
    if url.get_backend_name() != "sqlite":
        return
    if url.database in (None, "", ":memory:") or "mode=memory" in str(url):
        raise ConfigurationError(
            "Several processes cannot share a SQLite database in memory: name a file"
            " (sqlite:///wiki.db), or leave --url away."
        )


def reason(error: Exception, url: URL) -> str:
    """The driver's first line, without the password if the driver repeats it."""
    cause = getattr(error, "orig", None) or error
    text = str(cause.args[-1] if cause.args else cause)
    if url.password:
        text = text.replace(str(url.password), "***")
    return " ".join(text.strip().split("\n")[0].split())


def _set_write_ahead_log(url: str) -> None:
    """Readers and the one writer of a SQLite file do not wait for each other in this mode."""
    engine = open_engine(url)
    with engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA journal_mode=WAL")
    engine.dispose()
