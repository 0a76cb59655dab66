"""``alembic upgrade --sql``: the text, run by somebody else, makes what the operation makes."""

from __future__ import annotations

import sqlite3

import pytest
from sqlalchemy import MetaData, String, Table, inspect, select, text

from optilock import ConfigurationError
from optilock.alembic import (
    AddVersionColumn,
    ChangeVersionColumn,
    CreateGuardTrigger,
    CreateOptilockTables,
    CreateVersionTrigger,
    RollOutVersionColumn,
)
from optilock.tables import table_sets
from optilock.tokens import Counter, Manual, RowVersion, Timestamp, Unique
from optilock.tokens.guard_trigger import GuardTrigger
from tests.support.migrating import as_text, migrate, shape

pytestmark = pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")


@pytest.fixture
def parcels(engine):
    with engine.begin() as connection:
        connection.execute(
            text(
                "CREATE TABLE parcels (id INTEGER NOT NULL PRIMARY KEY, owner VARCHAR(20),"
                " weight BIGINT NOT NULL DEFAULT 0)"
            )
        )
        connection.execute(text("INSERT INTO parcels (id, owner) VALUES (1, 'Ada'), (2, 'Bob')"))


def everything(engine):
    return shape(engine, *sorted(inspect(engine).get_table_names()))


def rows(engine):
    """Without versions that differ each time they are made."""
    table = Table("parcels", MetaData(), autoload_with=engine)
    kept = [table.c[name] for name in ("id", "owner", "weight")]
    with engine.connect() as connection:
        return connection.execute(select(*kept).order_by(table.c.id)).all()


def run_text(engine, script):
    """As psql, the client of MariaDB, and sqlite3 do."""
    if engine.dialect.name == "sqlite":
        connection = sqlite3.connect(engine.url.database)
        connection.executescript(script)
        connection.close()
        return
    with engine.begin() as connection:
        cursor = connection.connection.cursor()
        for statement in statements(script) if engine.dialect.name == "mysql" else [script]:
            cursor.execute(statement)
        cursor.close()


def statements(script):
    """Cut at the delimiter, which the script may change."""
    delimiter, lines = ";", []
    for line in script.splitlines():
        if line.startswith("DELIMITER "):
            delimiter = line.split()[1]
            continue
        lines.append(line)
        if line.rstrip().endswith(delimiter):
            yield "\n".join(lines).rstrip().removesuffix(delimiter)
            lines = []
    assert not "".join(lines).strip()


COUNTER, VERSION = Counter(), RowVersion()
MANUAL = Manual(String(20))
OPERATIONS = {
    "counter": (AddVersionColumn("parcels", COUNTER), ()),
    "odd name": (AddVersionColumn("parcels", Counter(column="rev %no :x")), ()),
    "unique": (AddVersionColumn("parcels", Unique()), ()),
    "timestamp": (AddVersionColumn("parcels", Timestamp()), ()),
    "row version": (AddVersionColumn("parcels", VERSION), ()),
    "manual": (AddVersionColumn("parcels", MANUAL, fill="owner"), ()),
    "rename": (ChangeVersionColumn("parcels", COUNTER, Counter(name="rev")), (COUNTER,)),
    "counter to row version": (ChangeVersionColumn("parcels", COUNTER, VERSION), (COUNTER,)),
    "unique to counter": (
        ChangeVersionColumn("parcels", Unique(name="stamp"), COUNTER),
        (Unique(name="stamp"),),
    ),
    "counter to unique": (ChangeVersionColumn("parcels", COUNTER, Unique()), (COUNTER,)),
    "version trigger": (CreateVersionTrigger("parcels", VERSION), (VERSION,)),
    **{
        f"{policy} {'some' if ignore else 'all'}": (
            CreateGuardTrigger(
                GuardTrigger("parcels", COUNTER, policy, ignore, ("id", "weight") if ignore else ())
            ),
            (COUNTER,),
        )
        for policy in ("bump", "reject")
        for ignore in ((), ("owner",))
    },
    **{
        f"roll out {'some' if ignore else 'all'}": (  # D7
            RollOutVersionColumn(
                "parcels",
                COUNTER,
                guard="bump",
                ignore=ignore,
                columns=("id", "weight") if ignore else (),
            ),
            (),
        )
        for ignore in ((), ("owner",))
    },
    **{
        name: (CreateOptilockTables(name, tables.revision), ())
        for name, tables in table_sets().items()
    },
}


#: Where the table has to be made anew, from what it is.
NOT_ON_SQLITE = {"unique", "timestamp", "manual", "unique to counter", "counter to unique"}


@pytest.mark.engines("sqlite")
@pytest.mark.parametrize("name", sorted(NOT_ON_SQLITE))
def test_what_needs_the_table_at_hand_is_refused_as_text(engine, parcels, name):
    operation, _ = OPERATIONS[name]
    with pytest.raises(ConfigurationError, match="--sql"):
        as_text("sqlite", lambda op: [op.invoke(operation), op.invoke(operation.reverse())])


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.tenth
def test_the_text_makes_what_the_operation_makes(engine, parcels, name):
    if engine.dialect.name == "sqlite" and name in NOT_ON_SQLITE:
        pytest.skip("SQLite has to make the table anew")
    operation, there = OPERATIONS[name]
    migrate(engine, lambda op: [op.add_version_column("parcels", token) for token in there])
    before, kept = everything(engine), rows(engine)
    # Text is written for what the URL says; a server cannot be asked.
    dialect = engine.url.drivername.replace("mysql+", "mariadb+")
    up, down = (
        as_text(dialect, lambda op, which=which: op.invoke(which))
        for which in (operation, operation.reverse())
    )
    migrate(engine, lambda op: op.invoke(operation))
    after = everything(engine)
    migrate(engine, lambda op: op.invoke(operation.reverse()))

    run_text(engine, up)
    assert everything(engine) == after
    run_text(engine, down)
    assert everything(engine) == before
    assert rows(engine) == kept
