"""Databases that somebody else runs: named by the environment, or a container."""

from __future__ import annotations

import os
import warnings
from contextlib import ExitStack

__all__ = ["container", "given"]

_IMAGES = {"postgresql": "postgres:18-alpine", "mariadb": "mariadb:11.4"}


def given(variable: str) -> str | None:
    """The URL in an environment variable: a database that tests may empty."""
    return os.environ.get(variable) or None


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
    return str(stack.enter_context(made).get_connection_url())


def _docker_answers() -> bool:
    try:
        import docker
    except ImportError:
        return False
    try:
        client = docker.from_env()
    except docker.errors.DockerException:
        return False
    try:
        return bool(client.ping())
    except Exception:  # requests' errors come through as they are
        return False
    finally:
        client.close()
