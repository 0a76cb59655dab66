"""What made the figures: the command, and the versions of everything that took part."""

from __future__ import annotations

import os
import platform
import sqlite3
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

from sqlalchemy import text

from benchmarks.servers import Place, opened

__all__ = ["facts"]

_COMPARED = ("django", "django-concurrency", "peewee", "etag", "pgqueuer", "procrastinate")


def facts(command: str, places: Iterable[Place]) -> dict[str, str]:
    """Name -> fact, to be printed under a table."""
    found = list(places)
    return {
        "command": f"`{command}`",
        "Python": f"{platform.python_version()}, {os.cpu_count()} cores",
        "load": _load(),
        "SQLAlchemy": version("sqlalchemy"),
        "other libraries": _libraries(),
        **_servers({place.direct for place in found if place.direct}),
        **{place.label: str(place.network.report()) for place in found if place.network},
    }


def _load() -> str:
    """What the machine had to do, ourselves included: figures of a busy one say little."""
    if not hasattr(os, "getloadavg"):
        return "not known"
    short, middle, _ = os.getloadavg()
    return f"{short:.1f} in the last minute, {middle:.1f} in the last five"


def _libraries() -> str:
    """Those that may be compared, where they are installed."""
    found = []
    for name in _COMPARED:
        with suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
    return ", ".join(found) or "none"


def _servers(urls: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for url in urls:
        with opened(url) as engine:
            if engine.dialect.name == "sqlite":
                found["SQLite"] = sqlite3.sqlite_version
                continue
            if engine.dialect.name == "mysql":
                with engine.connect() as connection:
                    found["MariaDB"] = str(connection.scalar(text("SELECT version()")))
                found["PyMySQL"] = version("pymysql")
                continue
            with engine.connect() as connection:
                found["PostgreSQL"] = str(connection.scalar(text("SHOW server_version")))
            found["psycopg"] = f"{version('psycopg')} ({_implementation()})"
    return dict(sorted(found.items()))


def _implementation() -> str:
    import psycopg

    return psycopg.pq.__impl__
