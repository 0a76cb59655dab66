"""Databases that somebody else runs: named by the environment, or a container."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from optilock_apps.servers import ServerMissing
from sqlalchemy import Engine, create_engine, event

__all__ = ["container", "given", "kept_open", "look_for"]

_IMAGES = {"postgresql": "postgres:18-alpine", "mariadb": "mariadb:11.4"}


def given(variable: str) -> str | None:
    """The URL in an environment variable: a database that tests may empty."""
    return os.environ.get(variable) or None


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
