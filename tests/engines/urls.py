"""Databases that somebody else runs: named by the environment, or a container."""

from __future__ import annotations

import os
from contextlib import ExitStack

__all__ = ["container", "given"]

_IMAGES = {"postgresql": "postgres:18-alpine", "mariadb": "mariadb:11.4"}


def given(variable: str) -> str | None:
    """The URL in an environment variable: a database that tests may empty."""
    return os.environ.get(variable) or None


def container(stack: ExitStack, family: str) -> str | None:
    """The URL of a new container, or ``None`` where no Docker engine answers."""
    import docker
    from docker.errors import DockerException

    try:
        docker.from_env().ping()
    except DockerException:
        return None
    if family == "postgresql":
        from testcontainers.postgres import PostgresContainer

        postgres = stack.enter_context(PostgresContainer(_IMAGES[family], driver="psycopg"))
        return str(postgres.get_connection_url())
    from testcontainers.mysql import MySqlContainer

    maria = stack.enter_context(MySqlContainer(_IMAGES[family], dialect="pymysql"))
    return str(maria.get_connection_url())
