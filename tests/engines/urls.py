"""Databases that somebody else runs: named by the environment, or a container."""

from __future__ import annotations

import functools
import os
import secrets
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from optilock_apps.servers import ServerMissing
from sqlalchemy import Engine, create_engine, event, make_url
from sqlalchemy.exc import DBAPIError

__all__ = ["container", "given", "kept_open", "look_for", "own_database"]

_IMAGES = {"postgresql": "postgres:18-alpine", "mariadb": "mariadb:11.4"}


def given(variable: str) -> str | None:
    """The URL in an environment variable: a server on which tests may make databases."""
    return os.environ.get(variable) or None


def own_database(stack: ExitStack, url: str, variable: str) -> str:
    """The URL of a new database on that server, for this process alone, which ends with it.

    Several processes run tests at the same time, and each drops all that it finds.
    """
    there = make_url(url)
    name = f"{there.database or 'optilock'}_{os.getpid()}_{secrets.token_hex(3)}"
    engine = create_engine(there, isolation_level="AUTOCOMMIT", pool_size=1)
    stack.callback(engine.dispose)
    quoted = engine.dialect.identifier_preparer.quote_identifier(name)
    force = " WITH (FORCE)" if engine.dialect.name == "postgresql" else ""

    def send(statement: str) -> None:
        with engine.connect() as connection:
            connection.exec_driver_sql(statement)

    try:
        send(f"CREATE DATABASE {quoted}")
    except DBAPIError as error:
        raise ServerMissing(
            f"The user of {variable} cannot make a database for each process ({error.orig})"
        ) from error
    stack.callback(send, f"DROP DATABASE {quoted}{force}")
    return there.set(database=name).render_as_string(hide_password=False)


def look_for(variable: str, program: Callable[[], object]) -> None:
    """Raises ``ServerMissing`` where neither a URL nor Docker is there, nor the program."""
    try:
        program()
    except ServerMissing:
        if given(variable) is None and not _docker_answers():
            raise


def kept_open(stack: ExitStack, url: str, settings: str) -> Engine:
    """An engine that empties the database before each test, by one connection that stays open."""
    engine = create_engine(
        url, query_cache_size=3_000, pool_size=1, max_overflow=0, pool_pre_ping=True
    )
    stack.callback(engine.dispose)

    @event.listens_for(engine, "connect")
    def set_up(connection: Any, record: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute(settings)
        connection.commit()

    return engine


def container(stack: ExitStack, family: str) -> str | None:
    """The URL of a new container, or ``None`` where no Docker engine answers."""
    if not _docker_answers():
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # testcontainers' own, when it is imported
        from testcontainers.mysql import MySqlContainer
        from testcontainers.postgres import PostgresContainer
    made = (
        PostgresContainer(_IMAGES[family], driver="psycopg")
        if family == "postgresql"
        else MySqlContainer(_IMAGES[family], dialect="pymysql", username="root")
    )
    try:
        return str(stack.enter_context(made).get_connection_url())
    except Exception as error:  # no image, no network, no room: whatever Docker or its client says
        raise ServerMissing(f"Docker could not start {_IMAGES[family]}: {error}") from error


@functools.cache
def _docker_answers() -> bool:
    """Asked once, and in a process of its own: docker leaves sockets open where nobody answers."""
    ask = "import docker; docker.from_env(timeout=10).ping()"
    try:
        asked = subprocess.run([sys.executable, "-c", ask], capture_output=True, timeout=30)
    except subprocess.TimeoutExpired:
        return False
    return asked.returncode == 0
