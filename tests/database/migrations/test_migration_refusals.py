"""A migration that cannot be done says why, and leaves the table as it was."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from sqlalchemy import MetaData, String, Table, create_engine, insert, inspect, select, text
from sqlalchemy.exc import DBAPIError

from optilock import ConfigurationError, OptilockError
from optilock.tokens import Counter, Manual, RowVersion, Unique
from tests.support.migrating import migrate, shape

pytestmark = pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")


@pytest.fixture
def parcels(engine):
    """Rows that have a version already."""
    with engine.begin() as connection:
        connection.execute(
            text(
                "CREATE TABLE parcels (id INTEGER NOT NULL PRIMARY KEY, owner VARCHAR(20),"
                " weight BIGINT NOT NULL DEFAULT 0, version BIGINT NOT NULL DEFAULT 1)"
            )
        )
        connection.execute(
            text("INSERT INTO parcels (id, owner, version) VALUES (:id, :owner, :id)"),
            [{"id": n, "owner": f"owner {n}"} for n in range(1, 5)],
        )


def everything(engine):
    """All tables with all rows."""
    names = sorted(inspect(engine).get_table_names())
    with engine.connect() as connection:
        rows = {
            name: connection.execute(select(Table(name, MetaData(), autoload_with=engine))).all()
            for name in names
        }
    return shape(engine, *names), rows


@contextmanager
def nothing_lost(engine, error, match=None):
    before = everything(engine)
    with pytest.raises(error, match=match):
        yield
    assert everything(engine) == before
    with engine.begin() as connection:  # and it can be used
        connection.execute(text("UPDATE parcels SET weight = 7, version = version + 1"))
        assert connection.scalar(text("SELECT max(version) FROM parcels")) == 5


class TestAChange:
    def test_to_a_name_that_is_taken(self, engine, parcels):
        with nothing_lost(engine, ConfigurationError, "parcels.owner exists"):
            migrate(
                engine,
                lambda op: op.change_version_column("parcels", Counter(), Unique(column="owner")),
            )

    def test_of_the_name_alone_to_one_that_is_taken(self, engine, parcels):
        with nothing_lost(engine, ConfigurationError, "parcels.weight exists"):
            migrate(
                engine,
                lambda op: op.change_version_column("parcels", Counter(), Counter(column="weight")),
            )

    def test_to_a_token_that_cannot_make_a_first_version(self, engine, parcels):
        with nothing_lost(engine, ConfigurationError, "fill="):
            migrate(
                engine,
                lambda op: op.change_version_column("parcels", Counter(), Manual(String(20))),
            )

    @pytest.mark.parametrize("name", ["version", "stamp"])
    def test_with_a_first_version_that_cannot_be_computed(self, engine, parcels, name):
        with nothing_lost(engine, DBAPIError):
            migrate(
                engine,
                lambda op: op.change_version_column(
                    "parcels", Counter(), Manual(String(20), name=name), fill="nothing_of_that_name"
                ),
            )

    @pytest.mark.engines("postgresql", "mariadb")
    def test_with_a_first_version_that_is_too_long_in_one_row(self, engine, parcels):
        fill = "CASE WHEN id = 3 THEN 'far too long' ELSE 'x' END"
        with nothing_lost(engine, DBAPIError):
            migrate(
                engine,
                lambda op: op.change_version_column(
                    "parcels", Counter(), Manual(String(2)), fill=fill
                ),
            )

    def test_may_take_the_first_version_from_the_old_one(self, engine, parcels):
        fill = "owner" if engine.dialect.name == "sqlite" else "concat('v', version)"
        migrate(
            engine,
            lambda op: op.change_version_column(
                "parcels", Counter(), Manual(String(20)), fill=fill
            ),
        )
        with engine.connect() as connection:
            found = connection.scalars(text("SELECT version FROM parcels ORDER BY id")).all()
        assert found == [("owner " if fill == "owner" else "v") + str(n) for n in range(1, 5)]


class TestAnAddition:
    def test_with_a_first_version_that_cannot_be_computed(self, engine, parcels):
        with nothing_lost(engine, DBAPIError):
            migrate(
                engine,
                lambda op: op.add_version_column(
                    "parcels", Unique(name="stamp"), fill="nothing_of_that_name"
                ),
            )

    @pytest.mark.engines("postgresql", "mariadb")
    def test_with_rows_that_get_no_first_version(self, engine, parcels):
        with nothing_lost(engine, DBAPIError):
            migrate(
                engine,
                lambda op: op.add_version_column(
                    "parcels", Manual(String(20), name="stamp"), fill="NULLIF(owner, 'owner 2')"
                ),
            )

    def test_in_a_schema_that_is_not_there(self, engine, parcels):
        with nothing_lost(engine, ConfigurationError, "no schema 'nowhere'"):
            migrate(
                engine, lambda op: op.add_version_column("parcels", Counter(), schema="nowhere")
            )

    def test_to_a_view(self, engine, parcels):
        with engine.begin() as connection:
            connection.execute(text("CREATE VIEW heavy AS SELECT * FROM parcels"))
        try:
            with nothing_lost(engine, ConfigurationError, "heavy"):
                migrate(engine, lambda op: op.add_version_column("heavy", Unique(name="stamp")))
        finally:
            with engine.begin() as connection:
                connection.execute(text("DROP VIEW heavy"))


TRIGGERS = {
    "guard, no table": lambda op: op.create_guard_trigger("parcel", Counter(), "bump"),
    "guard, no column": lambda op: op.create_guard_trigger(
        "parcels", Counter(name="revision"), "bump"
    ),
    "guard, another type": lambda op: op.create_guard_trigger(
        "parcels", Counter(column="owner"), "bump"
    ),
    "guard, no such ignored column": lambda op: op.create_guard_trigger(
        "parcels", Counter(), "bump", ignore=["views"]
    ),
    "guard, no such policy": lambda op: op.create_guard_trigger("parcels", Counter(), "drop"),
    "guard, no token": lambda op: op.create_guard_trigger("parcels", RowVersion(), "bump"),
    "version, no table": lambda op: op.create_version_trigger("parcel", RowVersion()),
    "version, no column": lambda op: op.create_version_trigger(
        "parcels", RowVersion(column="revision")
    ),
    "version, another type": lambda op: op.create_version_trigger(
        "parcels", RowVersion(column="owner")
    ),
    "version, no trigger": lambda op: op.create_version_trigger("parcels", Counter()),
    "drop version, no table": lambda op: op.drop_version_trigger("parcel", RowVersion()),
}


@pytest.mark.parametrize("work", TRIGGERS.values(), ids=TRIGGERS)
def test_a_trigger_on_what_is_not_there(engine, parcels, work):
    with nothing_lost(engine, ConfigurationError):
        migrate(engine, work)


def test_dropping_a_trigger_that_is_not_there_is_no_error(engine, parcels):
    """So that a revision can be taken back that was done in part."""
    before = everything(engine)
    migrate(engine, lambda op: op.drop_guard_trigger("parcels", Counter(), "bump"))
    migrate(engine, lambda op: op.drop_version_trigger("parcels", RowVersion()))
    assert everything(engine) == before


@pytest.mark.parametrize(
    "work",
    [
        lambda op: op.drop_version_column("parcels", RowVersion()),
        lambda op: op.change_version_column("parcels", RowVersion(), Unique()),
        lambda op: op.change_version_column("parcels", RowVersion(), Counter(name="revision")),
    ],
    ids=["drop", "change", "rename"],
)
def test_a_version_that_a_trigger_moves_is_not_dropped(engine, parcels, work):
    """Every UPDATE would fail at the trigger."""
    migrate(engine, lambda op: op.create_version_trigger("parcels", RowVersion()))
    with nothing_lost(engine, ConfigurationError, "drop_version_trigger"):
        migrate(engine, work)


@pytest.mark.engines("postgresql", "mariadb")
class TestARightThatIsMissing:
    """A real user of the server, who may change the table and not create triggers."""

    @pytest.fixture
    def user(self, engine, parcels):
        with engine.begin() as connection:
            if engine.dialect.name == "postgresql":
                # May log in, owns the table, and may create nothing in the schema: no function.
                for statement in (
                    "DROP ROLE IF EXISTS optilock_owner",
                    "CREATE ROLE optilock_owner LOGIN PASSWORD 'w'",
                    "REVOKE CREATE ON SCHEMA public FROM PUBLIC",
                    "GRANT USAGE, CREATE ON SCHEMA public TO optilock_owner",
                    "ALTER TABLE parcels OWNER TO optilock_owner",
                    "REVOKE CREATE ON SCHEMA public FROM optilock_owner",
                ):
                    connection.execute(text(statement))
            else:
                connection.execute(text("CREATE OR REPLACE USER optilock_owner IDENTIFIED BY 'w'"))
                rights = "SELECT, INSERT, UPDATE, DELETE, ALTER, CREATE, DROP, INDEX"
                connection.execute(
                    text(f"GRANT {rights} ON `{engine.url.database}`.* TO optilock_owner")
                )
        made = create_engine(engine.url.set(username="optilock_owner", password="w"))
        yield made
        made.dispose()
        with engine.begin() as connection:
            if engine.dialect.name == "postgresql":
                connection.execute(text("ALTER TABLE parcels OWNER TO CURRENT_USER"))
                connection.execute(text("DROP OWNED BY optilock_owner"))
                connection.execute(text("DROP ROLE optilock_owner"))
            else:
                connection.execute(text("DROP USER optilock_owner"))

    @pytest.mark.parametrize(
        "work",
        [
            lambda op: op.create_guard_trigger("parcels", Counter(), "bump"),
            lambda op: op.create_guard_trigger("parcels", Counter(), "reject", ignore=["weight"]),
            lambda op: op.create_version_trigger("parcels", RowVersion()),
        ],
        ids=["bump", "reject", "version"],
    )
    def test_the_user_is_told(self, engine, user, work):
        with nothing_lost(engine, OptilockError, "may not create triggers on parcels"):
            migrate(user, work)

    def test_a_revision_that_stops_there_can_be_gone_on_with(self, engine, user):
        moves = RowVersion(column="moves")

        def both(op):
            op.add_version_column("parcels", moves)
            op.create_version_trigger("parcels", moves)

        before = everything(engine)
        with pytest.raises(OptilockError, match="may not create triggers") as caught:
            migrate(user, both)
        stays = "Earlier operations of the same revision are stored"
        if engine.dialect.name == "postgresql":
            assert everything(engine) == before
            assert stays not in str(caught.value)
            migrate(engine, both)
        else:
            assert stays in str(caught.value)
            with engine.begin() as connection:  # programs that know of no version go on
                connection.execute(text("INSERT INTO parcels (id, owner) VALUES (9, 'Eve')"))
            migrate(engine, lambda op: op.create_version_trigger("parcels", moves))
        with engine.begin() as connection:
            connection.execute(text("UPDATE parcels SET weight = 1"))
            assert set(connection.scalars(text("SELECT moves FROM parcels"))) == {2}


def test_rows_that_come_while_a_column_is_refused_are_kept(engine, parcels):
    table = Table("parcels", MetaData(), autoload_with=engine)
    with pytest.raises(ConfigurationError):
        migrate(
            engine,
            lambda op: (
                op.execute(insert(table).values(id=8, owner="Dan", weight=1, version=1)),
                op.add_version_column("parcels", Counter()),
            ),
        )
    with engine.connect() as connection:
        assert connection.scalar(select(table.c.version).where(table.c.id == 1)) == 1
