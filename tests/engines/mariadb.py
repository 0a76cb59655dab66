"""MariaDB: from a URL, from the ``mariadbd`` of this machine, or from a container.

Twice: with ``innodb_snapshot_isolation`` OFF (the default before 11.6.2) and ON. The URL says
which, so that programs which are only given a URL run with it, too.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from sqlalchemy import Connection, create_engine, make_url, text

from optilock.testing import servers
from tests.engines.target import Target
from tests.engines.urls import container, given

FAMILY = "mariadb"
NAMES = ("mariadb", "mariadb-snapshot")
_SNAPSHOT = {"mariadb": "OFF", "mariadb-snapshot": "ON"}
_CAN = {
    "mariadb": {"row-locks", "server", "resolves-in-place"},
    "mariadb-snapshot": {"row-locks", "server"},
}


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
    _empty(server)
    setting = f"SET SESSION innodb_snapshot_isolation = {_SNAPSHOT[name]}"
    url = make_url(server).update_query_dict({"init_command": setting})
    return Target(
        name=name,
        family=FAMILY,
        url=url.render_as_string(hide_password=False),
        capabilities=frozenset(_CAN[name]),
    )


def _empty(server: str) -> None:
    engine = create_engine(server)
    with engine.connect() as connection:
        _require_snapshot_isolation(connection)
        # Not the day that is the default, when a test has left a transaction open.
        connection.execute(text("SET SESSION lock_wait_timeout = 5, foreign_key_checks = 0"))
        for table in connection.scalars(text(_TABLES)).all():
            connection.exec_driver_sql(f"DROP TABLE `{table.replace('`', '``')}`")
        connection.invalidate()
    engine.dispose()


_TABLES = (
    "SELECT table_name FROM information_schema.tables"
    " WHERE table_schema = database() AND table_type = 'BASE TABLE'"
)


def _require_snapshot_isolation(connection: Connection) -> None:
    if not connection.execute(text("SHOW VARIABLES LIKE 'innodb_snapshot_isolation'")).all():
        raise servers.ServerMissing(
            "This server has no innodb_snapshot_isolation: use MariaDB 10.6.18, 10.11.8, 11.4.2 or"
            " newer"
        )
