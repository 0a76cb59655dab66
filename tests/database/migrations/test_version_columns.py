"""A migration puts a version on a table with rows, changes it, and takes it away."""

from __future__ import annotations

import pytest
from sqlalchemy import MetaData, String, Table, inspect, select, text
from sqlalchemy.exc import DBAPIError

from optilock import ConfigurationError, OptilockError
from optilock.alembic import waits
from optilock.tokens import CompareValues, Counter, Manual, RowVersion, Timestamp, Unique
from tests.support.migrating import migrate, shape

pytestmark = pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")
COUNTER, UNIQUE, TIMESTAMP = Counter(), Unique(), Timestamp()
each_token = pytest.mark.parametrize(
    "token", [COUNTER, UNIQUE, TIMESTAMP], ids=["counter", "unique", "timestamp"]
)


@pytest.fixture
def parcels(engine):
    """A table as it was before anybody thought of versions."""
    with engine.begin() as connection:
        connection.execute(
            text(
                "CREATE TABLE parcels (id INTEGER NOT NULL PRIMARY KEY, owner VARCHAR(20) NOT NULL"
                " UNIQUE, weight INTEGER NOT NULL DEFAULT 0 CHECK (weight >= 0))"
            )
        )
        connection.execute(text("CREATE INDEX parcels_weight ON parcels (weight)"))
    with engine.begin() as connection:
        connection.execute(
            text("INSERT INTO parcels (id, owner) VALUES (:id, :owner)"),
            [{"id": n, "owner": f"owner {n}"} for n in range(5)],
        )


def versions(engine, name="version"):
    table = Table("parcels", MetaData(), autoload_with=engine)
    with engine.connect() as connection:
        return list(connection.scalars(select(table.c[name]).order_by(table.c.id)))


def column(engine, name="version"):
    [found] = [c for c in inspect(engine).get_columns("parcels") if c["name"] == name]
    return found


@each_token
def test_rows_that_are_there_and_rows_that_come_have_a_version(engine, parcels, token):
    migrate(engine, lambda op: op.add_version_column("parcels", token))
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO parcels (id, owner) VALUES (7, 'a foreign program')"))

    assert column(engine)["nullable"] is False
    found = versions(engine)
    assert len(found) == 6
    assert None not in found
    if token is not TIMESTAMP:
        assert len(set(found)) == (1 if token is COUNTER else 6)


@each_token
def test_up_down_and_up_again_is_the_same_schema(engine, parcels, token):
    before = shape(engine, "parcels")
    migrate(engine, lambda op: op.add_version_column("parcels", token))
    after = shape(engine, "parcels")
    migrate(engine, lambda op: op.drop_version_column("parcels", token))
    assert shape(engine, "parcels") == before
    migrate(engine, lambda op: op.add_version_column("parcels", token))
    assert shape(engine, "parcels") == after != before


@each_token
def test_nothing_else_of_the_table_changes(engine, parcels, token):
    before = shape(engine, "parcels")["parcels"]
    migrate(engine, lambda op: op.add_version_column("parcels", token))
    after = shape(engine, "parcels")["parcels"]

    assert {**after, "columns": after["columns"][:-1]} == before
    with pytest.raises(DBAPIError), engine.begin() as connection:
        connection.execute(text("UPDATE parcels SET weight = -1"))


def test_a_counter_becomes_a_unique_one_and_back(engine, parcels):
    migrate(engine, lambda op: op.add_version_column("parcels", COUNTER))
    before = shape(engine, "parcels")
    migrate(engine, lambda op: op.change_version_column("parcels", COUNTER, UNIQUE))
    assert len(set(versions(engine))) == 5
    migrate(engine, lambda op: op.change_version_column("parcels", UNIQUE, COUNTER))
    assert shape(engine, "parcels") == before
    assert versions(engine) == [1] * 5


def test_another_name_keeps_the_versions(engine, parcels):
    migrate(engine, lambda op: op.add_version_column("parcels", COUNTER))
    with engine.begin() as connection:
        connection.execute(text("UPDATE parcels SET version = 9 WHERE id = 0"))
    renamed = Counter(name="revision")
    migrate(engine, lambda op: op.change_version_column("parcels", COUNTER, renamed))
    assert versions(engine, "revision") == [9, 1, 1, 1, 1]


def test_numbers_go_on_when_the_database_is_to_make_them(engine, parcels):
    """Begun anew, a number that somebody has seen would come again."""
    migrate(engine, lambda op: op.add_version_column("parcels", COUNTER))
    before = shape(engine, "parcels")["parcels"]["columns"]
    with engine.begin() as connection:
        connection.execute(text("UPDATE parcels SET version = 9 WHERE id = 0"))
    migrate(engine, lambda op: op.change_version_column("parcels", COUNTER, RowVersion()))
    assert versions(engine) == [9, 1, 1, 1, 1]
    assert shape(engine, "parcels")["parcels"]["columns"] == before


def test_the_first_version_may_be_an_expression(engine, parcels):
    migrate(engine, lambda op: op.add_version_column("parcels", COUNTER, fill="id + 10"))
    assert versions(engine) == [10, 11, 12, 13, 14]
    assert column(engine)["nullable"] is False


def test_a_version_of_the_applications_needs_an_expression(engine, parcels):
    manual = Manual(String(20))
    with pytest.raises(ConfigurationError, match="fill="):
        migrate(engine, lambda op: op.add_version_column("parcels", manual))
    migrate(engine, lambda op: op.add_version_column("parcels", manual, fill="owner"))
    assert versions(engine)[0] == "owner 0"
    assert column(engine)["nullable"] is False
    assert column(engine)["default"] is None


def test_a_name_that_needs_quotes_is_quoted(engine, parcels):
    odd = Counter(column="_version%id :x")
    migrate(engine, lambda op: op.add_version_column("parcels", odd))
    assert versions(engine, "_version%id :x") == [1] * 5
    migrate(engine, lambda op: op.change_version_column("parcels", odd, COUNTER))
    assert versions(engine) == [1] * 5


@pytest.mark.engines("sqlite-wal")
def test_triggers_and_rows_that_refer_to_the_table_stay(engine, parcels):
    """SQLite makes the table anew, and dropping the old one would delete them."""
    with engine.begin() as connection:
        connection.execute(text("PRAGMA foreign_keys = ON"))
        connection.execute(
            text(
                "CREATE TABLE stamps (id INTEGER PRIMARY KEY, parcel INTEGER NOT NULL"
                " REFERENCES parcels (id) ON DELETE CASCADE)"
            )
        )
        connection.execute(text("INSERT INTO stamps VALUES (1, 1)"))
        connection.execute(
            text(
                "CREATE TRIGGER mine AFTER UPDATE ON parcels BEGIN"
                " UPDATE parcels SET weight = 7 WHERE id = 4; END"
            )
        )
    with engine.connect() as connection:
        assert connection.scalar(text("PRAGMA foreign_keys")) == 1
    before = shape(engine, "stamps")
    migrate(engine, lambda op: op.add_version_column("parcels", UNIQUE))

    assert shape(engine, "stamps") == before
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM stamps")) == 1
        assert connection.scalar(text("PRAGMA foreign_keys")) == 1


@pytest.mark.engines("sqlite-wal")
class TestSqliteMakesTheTableAnew:
    def test_foreign_keys_that_cannot_be_turned_off_are_a_reason_to_stop(self, engine, parcels):
        with engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA foreign_keys = ON")
        before = shape(engine, "parcels")

        def work(op):
            op.execute("UPDATE parcels SET weight = 1")
            op.add_version_column("parcels", UNIQUE)

        with pytest.raises(ConfigurationError, match="foreign_keys"):
            migrate(engine, work)
        assert shape(engine, "parcels") == before
        with engine.connect() as connection:
            assert connection.scalar(text("SELECT sum(weight) FROM parcels")) == 0

    def test_a_migration_that_fails_later_leaves_the_table_as_it_was(self, engine, parcels):
        before = shape(engine, "parcels")

        def work(op):
            op.add_version_column("parcels", UNIQUE)
            op.change_version_column("parcels", UNIQUE, COUNTER)
            op.execute("SELECT nothing FROM nowhere")

        with pytest.raises(DBAPIError):
            migrate(engine, work)
        assert shape(engine, "parcels") == before


class TestBadInput:
    """Each is refused before anything is changed."""

    def refused(self, engine, work, *words):
        before = shape(engine, *inspect(engine).get_table_names())
        with pytest.raises(ConfigurationError) as caught:
            migrate(engine, work)
        assert shape(engine, *inspect(engine).get_table_names()) == before
        for word in words:
            assert word in str(caught.value)

    def test_an_unknown_table(self, engine, parcels):
        self.refused(
            engine, lambda op: op.add_version_column("parcel", COUNTER), "no table", "parcel"
        )

    def test_a_table_without_a_primary_key(self, engine):
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE logs (line VARCHAR(20))"))
        self.refused(engine, lambda op: op.add_version_column("logs", COUNTER), "no primary key")

    @each_token
    def test_a_column_of_that_name_with_another_type(self, engine, parcels, token):
        text_column = type(token)(column="owner")
        for work in (
            lambda op: op.add_version_column("parcels", text_column),
            lambda op: op.drop_version_column("parcels", text_column),
            lambda op: op.change_version_column("parcels", COUNTER, text_column),
        ):
            self.refused(engine, work, "parcels.")

    def test_a_version_that_is_there(self, engine, parcels):
        migrate(engine, lambda op: op.add_version_column("parcels", COUNTER))
        self.refused(engine, lambda op: op.add_version_column("parcels", COUNTER), "exists already")

    def test_a_version_that_is_not_there(self, engine, parcels):
        self.refused(
            engine,
            lambda op: op.drop_version_column("parcels", COUNTER),
            "no column parcels.version",
            "owner",
        )

    def test_a_token_without_a_column(self, engine, parcels):
        self.refused(
            engine,
            lambda op: op.add_version_column("parcels", CompareValues.all()),
            "has no column",
        )

    def test_what_is_no_token(self, engine, parcels):
        self.refused(engine, lambda op: op.add_version_column("parcels", String()), "no column")


@pytest.mark.engines("postgresql", "mariadb")
@pytest.mark.parametrize("ends", [True, False])
def test_a_table_that_is_locked_is_waited_for_briefly_and_again(engine, parcels, monkeypatch, ends):
    """Readers queue behind a waiting ALTER TABLE, so it gives up, and tries again for some time."""
    rests = []
    with engine.connect() as holder:
        holder.execute(text("UPDATE parcels SET weight = 1 WHERE id = 1"))

        def rest(seconds: float) -> None:
            rests.append(seconds)
            if ends:
                holder.rollback()

        monkeypatch.setattr(waits, "sleep", rest)
        clock = iter(range(100))
        monkeypatch.setattr(waits, "monotonic", lambda: 25 * next(clock))
        if ends:
            migrate(engine, lambda op: op.add_version_column("parcels", COUNTER))
        else:
            with pytest.raises(
                OptilockError, match=r"lock of a table was not available within 0\.1"
            ):
                migrate(engine, lambda op: op.add_version_column("parcels", COUNTER))
    assert len(rests) == (1 if ends else 2)
    assert ("version" in {c["name"] for c in inspect(engine).get_columns("parcels")}) is ends
