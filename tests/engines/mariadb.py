"""MariaDB: from a URL, from the ``mariadbd`` of this machine, or from a container.

Twice: with ``innodb_snapshot_isolation`` OFF (the default before 11.6.2) and ON. The URL says
which, so that programs which are only given a URL run with it, too.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from optilock_apps import servers
from sqlalchemy import Connection, Engine, text

from tests.engines.target import Target
from tests.engines.urls import container, given, kept_open, look_for, own_database

FAMILY, TITLE = "mariadb", "MariaDB"
NAMES = ("mariadb", "mariadb-snapshot")
CAPABILITIES = {
    "mariadb": frozenset({"row-locks", "server", "resolves-in-place"}),
    "mariadb-snapshot": frozenset({"row-locks", "server"}),
}
VARIABLE = "OPTILOCK_TEST_MARIADB_URL"
_SNAPSHOT = {"mariadb": "OFF", "mariadb-snapshot": "ON"}


def look() -> None:
    look_for(VARIABLE, lambda: servers._program("mariadbd"))


def start(stack: ExitStack) -> Engine:
    # Not the day that is the default, when a test has left a transaction open.
    settings = "SET SESSION lock_wait_timeout = 5, foreign_key_checks = 0"
    server = kept_open(stack, _url(stack), settings)
    with server.connect() as connection:
        _require_snapshot_isolation(connection)
    return server


def _url(stack: ExitStack) -> str:
    url = given(VARIABLE)
    if url is not None:
        return own_database(stack, url, VARIABLE)
    try:
        return stack.enter_context(servers.mariadb()).url
    except servers.ServerMissing:
        url = container(stack, FAMILY)
        if url is None:
            raise
        return url


def target(name: str, server: Engine, folder: Path, module: Path | None) -> Target:
    with server.begin() as connection:
        for table in connection.scalars(text(_TABLES)).all():
            connection.exec_driver_sql(f"DROP TABLE `{table.replace('`', '``')}`")
    # Without the second one, optilock would end units with learned locks on a busy machine.
    setting = f"SET SESSION innodb_snapshot_isolation = {_SNAPSHOT[name]}"
    setting += ", SESSION idle_transaction_timeout = 600"
    # Without TLS, for which PyMySQL reads all certificates of the machine at each connect: 27 ms.
    url = server.url.update_query_dict({"init_command": setting, "ssl_disabled": "1"})
    return Target(
        name=name,
        family=FAMILY,
        url=url.render_as_string(hide_password=False),
        capabilities=CAPABILITIES[name],
        like=server,
    )


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
