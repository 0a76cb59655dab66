"""Tables that stay for the next test of a module have no rows and no changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, insert, inspect, text

from tests.engines import Targets, postgresql
from tests.engines.kept import Kept
from tests.engines.kept_tables import KeptTables

pytestmark = [pytest.mark.engines("postgresql")]

HERE = Path(__file__)
ROWS = Table("kt_rows", MetaData(), Column("id", Integer, primary_key=True), Column("a", String(9)))
CHANGES = [
    "ALTER TABLE kt_rows ADD b integer",
    "ALTER TABLE kt_rows ALTER a SET NOT NULL",
    "ALTER TABLE kt_rows ALTER a SET DEFAULT 'x'",
    "ALTER TABLE kt_rows RENAME a TO c",
    "ALTER TABLE kt_rows ADD CHECK (id < 100)",
    "ALTER SEQUENCE kt_rows_id_seq INCREMENT 5",
    "CREATE INDEX kt_index ON kt_rows (a)",
    "CREATE TABLE kt_more (id integer)",
    "CREATE TYPE kt_kind AS ENUM ('a')",
    "CREATE SCHEMA kt_other",
    "CREATE VIEW kt_view AS SELECT 1 AS one",
    "CREATE FUNCTION kt_call() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'",
    "CREATE TRIGGER kt_call BEFORE UPDATE ON kt_rows FOR EACH ROW"
    " EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    "DROP TABLE kt_rows",
]


@pytest.fixture
def kept() -> KeptTables:
    return KeptTables(postgresql._drop)


@pytest.fixture
def begin(kept: KeptTables, targets: Targets, engine: Engine) -> Callable[..., list[str]]:
    """Begin another test, and give the tables that it finds."""

    def begin(module: Path | None = HERE) -> list[str]:
        engine.dispose()
        kept.begin(targets._server(postgresql), module)
        return inspect(engine).get_table_names()

    return begin


def test_the_next_test_finds_the_tables_without_rows(
    kept: KeptTables, begin: Callable[..., list[str]], engine: Engine
) -> None:
    begin()
    for _ in range(2):
        kept.create(engine, [ROWS])
        with engine.begin() as connection:
            assert connection.execute(insert(ROWS)).inserted_primary_key == (1,)
            assert connection.execute(ROWS.select()).all() == [(1, None)]
        assert begin() == ["kt_rows"]


def test_a_test_of_another_module_finds_no_table(
    kept: KeptTables, begin: Callable[..., list[str]], engine: Engine
) -> None:
    for module in (Path("another"), None):
        begin()
        kept.create(engine, [ROWS])
        assert begin(module) == []


def test_nothing_stays_after_a_test_that_changed_the_schema(
    kept: KeptTables, begin: Callable[..., list[str]], engine: Engine
) -> None:
    for change in CHANGES:
        begin()
        kept.create(engine, [ROWS])
        with engine.begin() as connection:
            connection.execute(text(change))
        assert begin() == [], change


def test_nor_if_the_fixture_creates_a_table_after_the_change(
    kept: KeptTables, begin: Callable[..., list[str]], engine: Engine
) -> None:
    begin()
    kept.create(engine, [ROWS])
    with engine.begin() as connection:
        connection.execute(text(CHANGES[0]))
    kept.create(engine, [Table("kt_late", MetaData(), Column("id", Integer, primary_key=True))])
    assert begin() == []


def test_another_table_of_the_same_name_is_created_in_its_place(
    kept: KeptTables, begin: Callable[..., list[str]], engine: Engine
) -> None:
    begin()
    kept.create(engine, [ROWS])
    begin()
    kept.create(engine, [Table("kt_rows", MetaData(), Column("other", Integer, primary_key=True))])
    assert [column["name"] for column in inspect(engine).get_columns("kt_rows")] == ["other"]


def test_the_next_test_reads_no_notification_of_the_last(engine: Engine) -> None:
    kept, (_, named) = Kept(), engine.dialect.create_connect_args(engine.url)
    listener = kept.connect(**named, autocommit=True)
    listener.execute("LISTEN kt_news")
    with engine.begin() as sender:
        sender.execute(text("NOTIFY kt_news"))
    listener.execute("SELECT 1")  # the notification comes with the answer
    listener.close()
    assert kept.connect(**named, autocommit=True) is listener
    left = [*listener.notifies(timeout=0)]
    listener.close()
    kept.close()
    assert left == []
