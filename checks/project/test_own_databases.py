"""Test processes that share a server have a database each, which ends with them."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from optilock_apps.servers import ServerMissing
from sqlalchemy import create_engine, inspect, text
from sqlalchemy.exc import DBAPIError

from tests.engines.urls import own_database

pytestmark = [
    pytest.mark.engines("postgresql", "mariadb"),
    pytest.mark.usually("postgresql", "mariadb"),
]


def test_what_one_process_drops_is_not_the_others(database):
    with ExitStack() as first, ExitStack() as second:
        url, other = own_database(first, database.url, "X"), own_database(second, database.url, "X")
        assert url != other
        ours, theirs = create_engine(url), create_engine(other)
        for engine in (ours, theirs):
            with engine.begin() as connection:
                connection.execute(text("CREATE TABLE things (id INTEGER)"))
        with ours.begin() as connection:
            connection.execute(text("DROP TABLE things"))
        assert inspect(theirs).has_table("things")
        ours.dispose()
        theirs.dispose()
        second.close()
        with pytest.raises(DBAPIError):
            theirs.connect()


def test_a_user_without_the_right_gets_the_reason(database):
    make, drop = "CREATE USER IF NOT EXISTS poor", "DROP USER IF EXISTS poor"
    if database.family == "postgresql":
        make, drop = "CREATE ROLE poor LOGIN", "DROP ROLE IF EXISTS poor"
    engine = database.engine()
    with engine.begin() as connection:
        connection.execute(text(drop))
        connection.execute(text(make))
        if database.family == "mariadb":
            connection.execute(text(f"GRANT SELECT ON {engine.url.database}.* TO poor"))
    url = engine.url.set(username="poor", password=None).render_as_string(hide_password=False)
    try:
        with ExitStack() as stack, pytest.raises(ServerMissing, match="The user of X cannot make"):
            own_database(stack, url, "X")
    finally:
        with engine.begin() as connection:
            connection.execute(text(drop))
        engine.dispose()
