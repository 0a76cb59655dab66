"""What the other database tests take for granted about the databases they run on."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from optilock_apps.servers import ServerMissing
from sqlalchemy import Engine, create_engine, inspect, text
from sqlalchemy.exc import DBAPIError

from optilock.dialects import database_of
from optilock.testing import interleave
from tests.engines import Target
from tests.engines.urls import container

pytestmark = pytest.mark.modes


def first(engine: Engine, question: str) -> object:
    with engine.connect() as connection:
        return connection.execute(text(question)).scalar()


@pytest.mark.parametrize("time", ["first", "second"])
def test_a_database_is_empty_when_a_test_begins(engine: Engine, time: str) -> None:
    """Twice with the same name: what the first run leaves, the second would find."""
    assert inspect(engine).get_table_names() == []
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE parents (id INTEGER PRIMARY KEY)"))
        connection.execute(
            text(
                "CREATE TABLE children (id INTEGER PRIMARY KEY, parent INTEGER, "
                "FOREIGN KEY (parent) REFERENCES parents (id))"
            )
        )


@pytest.mark.engines("postgresql")
@pytest.mark.parametrize("time", ["first", "second"])
def test_schemas_and_types_of_a_test_are_gone_in_the_next(engine: Engine, time: str) -> None:
    with engine.begin() as connection:
        connection.execute(text('CREATE SCHEMA "Other one"'))
        connection.execute(text("CREATE TYPE mood AS ENUM ('calm')"))


def test_every_engine_of_a_database_sees_the_same_rows(database: Target) -> None:
    one, another = database.engine(), database.engine()
    with one.begin() as connection:
        connection.execute(text("CREATE TABLE seen (id INTEGER)"))
        connection.execute(text("INSERT INTO seen VALUES (42)"))
    assert first(another, "SELECT id FROM seen") == 42
    one.dispose()
    another.dispose()


@pytest.mark.engines("sqlite")
def test_the_journal_is_the_one_of_the_name(engine: Engine, database: Target) -> None:
    mode = {"sqlite-journal": "delete", "sqlite-wal": "wal"}
    assert first(engine, "PRAGMA journal_mode") == mode[database.name]


@pytest.mark.engines("mariadb")
def test_snapshot_isolation_is_the_one_of_the_name_for_whoever_has_the_url(
    database: Target,
) -> None:
    on = {"mariadb": 0, "mariadb-snapshot": 1}
    plain = create_engine(database.url)
    assert first(plain, "SELECT @@SESSION.innodb_snapshot_isolation") == on[database.name]
    plain.dispose()


def test_two_writers_at_a_time_are_what_row_locks_mean(engine: Engine, database: Target) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE locked (id INTEGER PRIMARY KEY, v INTEGER)"))
        connection.execute(text("INSERT INTO locked VALUES (1, 0), (2, 0)"))
    with interleave(engine, "alice", "bob") as (alice, bob):
        alice.do(lambda session: session.execute(text("UPDATE locked SET v = 1 WHERE id = 1")))
        step = bob.start(lambda s: s.execute(text("UPDATE locked SET v = 1 WHERE id = 2")) and None)
        if "row-locks" in database.capabilities:
            step.result()
        else:
            with pytest.raises(DBAPIError, match="locked"):
                step.result()


@pytest.mark.full
@pytest.mark.parametrize("family", ["postgresql", "mariadb"])
def test_testcontainers_starts_the_database_where_docker_runs(family: str) -> None:
    with ExitStack() as stack:
        try:
            url = container(stack, family)
        except ServerMissing as error:
            pytest.skip(str(error))
        if url is None:
            pytest.skip("no Docker engine answers")
        engine = create_engine(url)
        stack.callback(engine.dispose)
        assert first(engine, "SELECT 42") == 42
        assert type(database_of(engine.dialect)).__name__.lower() == family
