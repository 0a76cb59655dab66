"""What SQLite lets a table be, and how an engine of it may begin its transactions."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import create_engine, event, inspect, text

from optilock.rollout import abort, dry_run, roll_out
from optilock.rollout.report import Silent
from optilock.tokens import Unique
from tests.support.migrating import send

pytestmark = pytest.mark.engines("sqlite-wal")


def versions(engine, table):
    return [version for (version,) in send(engine, f"SELECT version FROM {table}")[0].all()]


@pytest.mark.parametrize("begin", ["BEGIN", "BEGIN IMMEDIATE"])
def test_an_engine_that_begins_by_a_listener(engine, begin):
    """As SQLAlchemy's manual has it; rows that refer to the table stay."""
    own = create_engine(engine.url)

    @event.listens_for(own, "connect")
    def connect(raw: Any, record: Any) -> None:
        raw.isolation_level = None
        raw.execute("PRAGMA foreign_keys = ON")

    event.listen(own, "begin", lambda connection: connection.exec_driver_sql(begin))
    send(
        own,
        "CREATE TABLE parcels (id INTEGER PRIMARY KEY)",
        "CREATE TABLE stamps (parcel INTEGER REFERENCES parcels (id) ON DELETE CASCADE)",
        "INSERT INTO parcels VALUES (1)",
        "INSERT INTO stamps VALUES (1)",
    )

    class Fails(Silent):
        def step(self, name: str, total: int | None = None) -> None:
            if name == "require it":
                raise RuntimeError(name)

    assert dry_run(own, "parcels", token=Unique())
    with pytest.raises(RuntimeError):
        roll_out(own, "parcels", token=Unique(), progress=Fails())
    assert "drop the column" in abort(own, "parcels", token=Unique())
    assert roll_out(own, "parcels", token=Unique()).filled == 1
    assert inspect(own).get_columns("parcels")[-1]["nullable"] is False
    assert send(own, "SELECT * FROM stamps", "PRAGMA foreign_keys")[0].all() == [(1,)]
    assert send(own, "PRAGMA foreign_keys")[0].scalar() == 1
    own.dispose()


KEYS = {
    "a time of another program": ("DATETIME", "'2020-01-01T00:00:0' || {} || 'Z'"),
    "uuid": ("UUID", "'a0eebc999c0b4ef8bb6d6bb9bd380a1' || {}"),
    "flag": ("BOOLEAN", "{}"),
    "json": ("JSON", "'[1,' || {} || ']'"),
    "number": ("NUMERIC", "'x' || {}"),
}


@pytest.mark.parametrize(("kind", "value"), KEYS.values(), ids=KEYS)
def test_a_key_that_is_not_what_its_type_says(engine, kind, value):
    send(engine, f"CREATE TABLE parcels (id {kind} NOT NULL PRIMARY KEY)")
    send(engine, *(f"INSERT INTO parcels VALUES ({value.format(n)})" for n in range(5)))
    report = roll_out(engine, "parcels", token=Unique(), batch=2, patience=1)
    assert (report.filled, report.batches) == (5, 3)
    assert len(set(versions(engine, "parcels"))) == 5


def test_a_key_that_is_null(engine):
    send(engine, "CREATE TABLE parcels (name TEXT PRIMARY KEY)")
    send(engine, "INSERT INTO parcels VALUES ('Ada'), (NULL), (NULL)")
    roll_out(engine, "parcels", token=Unique(), patience=1)
    assert len(set(versions(engine, "parcels")) - {None}) == 3


@pytest.mark.parametrize("name", ["a$b", "'old parcels'", "`odd``name`", "[of all]", "päckchen"])
def test_a_name_as_it_was_written(engine, name):
    send(engine, f"CREATE TABLE {name} (id INTEGER PRIMARY KEY)", f"INSERT INTO {name} VALUES (1)")
    [bare] = inspect(engine).get_table_names()
    assert roll_out(engine, bare, token=Unique()).filled == 1
    with engine.connect() as connection:
        assert connection.scalar(text(f"SELECT version FROM {name}"))
