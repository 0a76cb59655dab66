"""MariaDB: from a URL, from the ``mariadbd`` on PATH, or from a container.

Twice: with ``innodb_snapshot_isolation`` OFF (the default before 11.6.2) and ON.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from optilock.testing import servers
from tests.engines.target import Target
from tests.engines.urls import container, given

FAMILY = "mariadb"
NAMES = ("mariadb", "mariadb-snapshot")
_SNAPSHOT = {"mariadb": "OFF", "mariadb-snapshot": "ON"}


def start(stack: ExitStack) -> str:
    url = given("OPTILOCK_TEST_MARIADB_URL")
    if url is not None:
        return url
    try:
        return stack.enter_context(servers.mariadb()).url
    except servers.ServerMissing:
        url = container(stack, "mariadb")
        if url is None:
            raise
        return url


def target(name: str, server: str, folder: Path) -> Target:
    can = {"row-locks"} | ({"resolves-in-place"} if name == "mariadb" else set())
    found = Target(
        name=name,
        family=FAMILY,
        url=server,
        async_url=None,
        on_connect=(f"SET SESSION innodb_snapshot_isolation = {_SNAPSHOT[name]}",),
        capabilities=frozenset(can),
    )
    found.empty()
    return found
