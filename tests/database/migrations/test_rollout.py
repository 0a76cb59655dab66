"""A version is put on a table that others are writing."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from sqlalchemy import Integer, MetaData, Table, create_engine, func, inspect, select, text
from sqlalchemy.exc import DBAPIError

from optilock import ConfigurationError, OptilockError
from optilock.dialects import database_of
from optilock.rollout import roll_out
from optilock.rollout.report import Silent
from optilock.tokens import CompareValues, Counter, Manual, RowVersion, Timestamp, Unique
from tests.support.migrating import each_token

pytestmark = [
    pytest.mark.engines("sqlite-wal", "postgresql", "mariadb"),
    pytest.mark.usually("postgresql"),
]


@pytest.fixture
def parcels(engine):
    """A table as it was before anybody thought of versions."""

    def parcels(rows: int, *, key: str = "id INTEGER NOT NULL", primary: str = "id") -> None:
        with engine.begin() as connection:
            connection.execute(
                text(
                    f"CREATE TABLE parcels ({key}, owner VARCHAR(20) NOT NULL,"
                    f" weight INTEGER NOT NULL DEFAULT 0 CHECK (weight >= 0),"
                    f" PRIMARY KEY ({primary}))"
                )
            )
            connection.execute(text("CREATE INDEX parcels_owner ON parcels (owner)"))
        with engine.begin() as connection:
            if rows:
                connection.execute(
                    text("INSERT INTO parcels (id, owner) VALUES (:id, :owner)"),
                    [{"id": n, "owner": f"owner {n}"} for n in range(rows)],
                )

    return parcels


def table(engine):
    return Table("parcels", MetaData(), autoload_with=engine)


def column(engine, name="version"):
    [found] = [c for c in inspect(engine).get_columns("parcels") if c["name"] == name]
    return found


def versions(engine, name="version"):
    parcels = table(engine)
    with engine.connect() as connection:
        return list(connection.scalars(select(parcels.c[name]).order_by(parcels.c.id)))


@each_token
def test_the_column_is_there_filled_and_required(engine, parcels, token):
    parcels(1200)
    report = roll_out(engine, "parcels", token=token)

    assert column(engine)["nullable"] is False
    assert None not in versions(engine)
    if not isinstance(token, Timestamp):  # whose clock may be a coarse one
        same = isinstance(token, (Counter, RowVersion))
        assert len(set(versions(engine))) == (1 if same else 1200)
    assert report.steps[0] == "add the column"
    if report.filled:
        assert report.filled == 1200


@each_token
def test_running_it_again_finds_nothing_to_do(engine, parcels, token):
    parcels(10)
    roll_out(engine, "parcels", token=token)
    before = versions(engine)

    assert roll_out(engine, "parcels", token=token).steps == ()
    assert versions(engine) == before


@each_token
def test_programs_that_know_of_no_version_go_on_inserting(engine, parcels, token):
    parcels(1)
    roll_out(engine, "parcels", token=token)
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO parcels (id, owner) VALUES (7, 'new')"))

    assert None not in versions(engine)


@each_token
def test_writers_that_know_of_no_version_move_it_from_then_on(engine, parcels, token):
    """By the token's own trigger, or by the guard trigger."""
    parcels(3)
    roll_out(engine, "parcels", token=token, guard=_guard_of(token))
    before = versions(engine)
    with engine.begin() as connection:
        connection.execute(text("UPDATE parcels SET owner = 'foreign' WHERE id = 1"))

    after = versions(engine)
    assert [old == new for old, new in zip(before, after, strict=True)] == [True, False, True]
    assert roll_out(engine, "parcels", token=token, guard=_guard_of(token)).steps == ()


def _guard_of(token):
    return None if isinstance(token, RowVersion) else "bump"


@each_token
def test_the_triggers_are_there_before_the_rows_are_filled(engine, parcels, token):
    parcels(3)
    written = []

    class Foreign(Silent):
        """Writes a row that has its version, and one that has none yet."""

        def step(self, name: str, total: int | None = None) -> None:
            if name == "require it":
                written.append(versions(engine))
            if name in ("fill", "require it"):
                with engine.begin() as connection:
                    connection.execute(text("UPDATE parcels SET weight = weight + 1 WHERE id = 2"))

    report = roll_out(engine, "parcels", token=token, guard=_guard_of(token), progress=Foreign())
    assert None not in versions(engine)
    if "fill" in report.steps:
        trigger, fill = report.steps.index("fill") - 1, report.steps.index("fill")
        assert "trigger" in report.steps[trigger]
        assert fill == 2
        [before] = written
        after = versions(engine)
        assert [old == new for old, new in zip(before, after, strict=True)] == [True, True, False]


def test_a_guard_trigger_may_refuse_and_may_ignore_columns(engine, parcels):
    parcels(2)
    roll_out(engine, "parcels", guard="reject", ignore=["weight"])
    with engine.begin() as connection:
        connection.execute(text("UPDATE parcels SET weight = 3"))
    with pytest.raises(DBAPIError, match="optilock"), engine.begin() as connection:
        connection.execute(text("UPDATE parcels SET owner = 'foreign'"))
    assert roll_out(engine, "parcels", guard="reject", ignore=["weight"]).steps == ()

    report = roll_out(engine, "parcels", guard="bump")
    assert report.steps == ("create the guard trigger",)
    with engine.begin() as connection:
        connection.execute(text("UPDATE parcels SET owner = 'foreign' WHERE id = 1"))
    assert versions(engine) == [1, 2]


@each_token
def test_a_trigger_that_somebody_dropped_comes_back(engine, parcels, token):
    parcels(2)
    roll_out(engine, "parcels", token=token, guard=_guard_of(token))
    [trigger] = {row[0] for row in _triggers(engine)}
    _drop_trigger(engine, trigger)
    report = roll_out(engine, "parcels", token=token, guard=_guard_of(token))

    assert len(report.steps) == 1
    assert {row[0] for row in _triggers(engine)} == {trigger}


def _triggers(engine):
    triggers = database_of(engine.dialect).guard_triggers(engine.dialect)
    with engine.connect() as connection:
        return [(one.name, one.source) for one in triggers.found(connection, None)]


def _drop_trigger(engine, name):
    on = " ON parcels" if engine.dialect.name == "postgresql" else ""
    with engine.begin() as connection:
        connection.execute(text(f"DROP TRIGGER {name}{on}"))


def test_a_column_that_was_begun_is_filled_from_where_it_stands(engine, parcels):
    parcels(300)
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE parcels ADD COLUMN version BIGINT"))
        connection.execute(text("UPDATE parcels SET version = 5 WHERE id < 100"))
    report = roll_out(engine, "parcels")

    assert report.filled == 200
    assert versions(engine) == [5] * 100 + [1] * 200
    assert column(engine)["nullable"] is False


def test_nothing_else_of_the_table_changes(engine, parcels):
    parcels(3)
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE parcels ADD COLUMN version BIGINT"))
    before = _shape(engine)
    roll_out(engine, "parcels")

    assert _shape(engine) == before
    with pytest.raises(DBAPIError), engine.begin() as connection:
        connection.execute(text("UPDATE parcels SET weight = -1"))


def _shape(engine) -> Any:
    seen = inspect(engine)
    columns = [(c["name"], str(c["type"])) for c in seen.get_columns("parcels")]
    return columns, seen.get_pk_constraint("parcels"), seen.get_indexes("parcels")


def test_a_key_of_several_columns_is_gone_through_in_order(engine, parcels):
    parcels(0, key="area VARCHAR(5) NOT NULL, id INTEGER NOT NULL", primary="area, id")
    with engine.begin() as connection:
        for area in "abc":
            connection.execute(
                text("INSERT INTO parcels (area, id, owner) VALUES (:area, :id, 'x')"),
                [{"area": area, "id": n} for n in range(60)],
            )
        connection.execute(text("ALTER TABLE parcels ADD COLUMN version BIGINT"))
    report = roll_out(engine, "parcels", rate=2000)

    assert report.filled == 180
    assert report.batches > 1 or report.filled < 500
    assert set(versions(engine)) == {1}


@pytest.mark.engines("postgresql", "mariadb")
def test_a_row_that_somebody_holds_is_left_for_later(engine, parcels):
    parcels(50)
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE parcels ADD COLUMN version BIGINT"))
        connection.execute(text("ALTER TABLE parcels ALTER COLUMN version SET DEFAULT 1"))
    holder = engine.connect()
    holder.execute(text("UPDATE parcels SET owner = 'held' WHERE id = 20"))

    class LetGo(Silent):
        def waiting(self, why: str) -> None:
            if holder.in_transaction():
                with engine.connect() as other:
                    filled = other.scalar(text("SELECT count(version) FROM parcels"))
                assert filled == 49
                holder.commit()

    report = roll_out(engine, "parcels", progress=LetGo())
    holder.close()

    assert report.filled == 50
    assert versions(engine) == [1] * 50
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT owner FROM parcels WHERE id = 20")) == "held"


def test_a_table_that_somebody_holds_is_left_alone_after_a_while(engine, parcels):
    parcels(2)
    with engine.connect() as holder:
        holder.execute(text("UPDATE parcels SET weight = 3"))
        with pytest.raises(OptilockError, match=r"run the\s+roll-out again"):
            roll_out(engine, "parcels", patience=0.3)
    roll_out(engine, "parcels")
    assert versions(engine) == [1, 1]


def test_two_at_once_are_refused(engine, parcels):
    parcels(2)
    inside, over = threading.Event(), threading.Event()

    class Stops(Silent):
        def step(self, name: str, total: int | None = None) -> None:
            inside.set()
            over.wait(60)

    first = threading.Thread(
        target=roll_out, args=(engine, "parcels"), kwargs={"progress": Stops()}
    )
    first.start()
    assert inside.wait(60)
    try:
        with pytest.raises(OptilockError, match="Another roll-out"):
            roll_out(engine, "parcels")
    finally:
        over.set()
        first.join(60)
    assert versions(engine) == [1, 1]


# -- bad input ------------------------------------------------------------------------------------


@pytest.mark.engines("postgresql", "mariadb")
def test_an_engine_with_one_connection_is_told_so(engine, parcels):
    parcels(1)
    narrow = create_engine(engine.url, pool_size=1, max_overflow=0, pool_timeout=0.1)
    with pytest.raises(ConfigurationError, match="takes two connections"):
        roll_out(narrow, "parcels")
    narrow.dispose()


def test_an_unknown_table_is_refused(engine):
    with pytest.raises(ConfigurationError, match="no table 'nothing'"):
        roll_out(engine, "nothing")


def test_a_table_without_a_key_is_refused(engine):
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE heap (a INTEGER)"))
    with pytest.raises(ConfigurationError, match="no primary key"):
        roll_out(engine, "heap")


def test_a_column_of_another_type_is_refused(engine, parcels):
    parcels(1)
    with pytest.raises(ConfigurationError, match="cannot use"):
        roll_out(engine, "parcels", token=Counter(name="owner"))
    assert versions(engine, "owner") == ["owner 0"]


def test_xmin_needs_no_roll_out(engine, parcels):
    parcels(1)
    with pytest.raises(ConfigurationError, match="nothing has to be rolled out"):
        roll_out(engine, "parcels", token=RowVersion(xmin=True))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"token": Manual(Integer())}, "cannot be rolled out"),
        ({"token": CompareValues.all()}, "has no column"),
        ({"guard": "sometimes"}, "'bump'"),
        ({"guard": "bump", "token": RowVersion()}, "trigger of its own"),
        ({"guard": "bump", "ignore": "weight"}, "not a collection"),
        ({"guard": "bump", "ignore": ["nothing"]}, "names the column 'nothing'"),
        ({"ignore": ["weight"]}, "without guard="),
    ],
)
def test_what_makes_no_sense_is_refused_and_nothing_is_changed(engine, parcels, options, says):
    parcels(1)
    before = _shape(engine)
    with pytest.raises(ConfigurationError, match=says):
        roll_out(engine, "parcels", **options)
    assert _shape(engine) == before
    assert _triggers(engine) == []


@pytest.mark.parametrize(
    "options",
    [{"rate": 0}, {"rate": float("inf")}, {"rate": float("nan")}, {"batch": 0}, {"share": 2.0}],
    ids=str,
)
def test_a_pace_that_makes_no_sense_is_refused_and_nothing_is_changed(engine, parcels, options):
    parcels(1)
    before = _shape(engine)
    with pytest.raises(ConfigurationError, match=f"^{next(iter(options))}="):
        roll_out(engine, "parcels", **options)
    assert _shape(engine) == before
    assert inspect(engine).get_table_names() == ["parcels"]


@pytest.mark.engines("postgresql", "mariadb")
@pytest.mark.parametrize("name", ["v" * 65, "ü" * 65], ids=["long", "bytes"])
def test_a_name_that_the_database_would_cut_is_refused_and_nothing_is_changed(
    engine, parcels, name
):
    parcels(1)
    before = _shape(engine)
    with pytest.raises(ConfigurationError, match="cannot be called"):
        roll_out(engine, "parcels", token=Unique(column=name))
    assert _shape(engine) == before
    assert inspect(engine).get_table_names() == ["parcels"]


@pytest.mark.parametrize("name", ["v" * 63, "ü" * 31])
def test_the_longest_name_that_it_takes(engine, parcels, name):
    roll_out_of(engine, parcels, name)


def roll_out_of(engine, parcels, name):
    parcels(1)
    roll_out(engine, "parcels", token=Unique(column=name))
    assert column(engine, name)["nullable"] is False


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        ("BIGINT NOT NULL, CONSTRAINT one_each UNIQUE (other)", "it is unique"),
        ("BIGINT REFERENCES areas (id)", "it refers to another table"),
        ("BIGINT DEFAULT 0", "its default is"),
        ("BIGINT NOT NULL DEFAULT 7", "its default is"),
        ("BIGINT GENERATED ALWAYS AS (id + 1) STORED", "the database makes its values"),
        ("BIGINT", "it has values and no default"),
    ],
)
def test_a_column_of_another_meaning_is_refused_and_nothing_is_changed(engine, declared, says):
    mariadb, sqlite = (engine.dialect.name == name for name in ("mysql", "sqlite"))
    if mariadb and "REFERENCES" in declared:
        declared = "BIGINT, FOREIGN KEY (other) REFERENCES areas (id)"
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE areas (id BIGINT PRIMARY KEY)"))
        connection.execute(text(f"CREATE TABLE parcels (id BIGINT PRIMARY KEY, other {declared})"))
        if "GENERATED" in declared:
            connection.execute(text("INSERT INTO parcels (id) VALUES (1)"))
        else:
            connection.execute(text("INSERT INTO areas VALUES (5)"))
            connection.execute(text("INSERT INTO parcels VALUES (1, 5)"))
    before = _shape(engine)
    token = Counter(column="other")
    if sqlite and declared == "BIGINT":  # has no step that sets a default, so nothing can be told
        assert roll_out(engine, "parcels", token=token).filled == 0
        return
    with pytest.raises(ConfigurationError, match=f"is no version: {says}"):
        roll_out(engine, "parcels", token=token)
    assert _shape(engine) == before
    with engine.connect() as connection:
        assert "optilock" not in str(inspect(connection).get_table_names())


def test_the_key_is_no_version(engine, parcels):
    parcels(1)
    with pytest.raises(ConfigurationError, match="belongs to the primary key"):
        roll_out(engine, "parcels", token=Counter(column="id"))


def test_a_share_and_a_batch_make_it_faster(engine, parcels):
    parcels(3000)
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE parcels ADD COLUMN version BIGINT"))
    report = roll_out(engine, "parcels", batch=1000, share=1)
    assert (report.filled, report.batches) == (3000, 3)


def test_rows_are_counted_once_more(engine, parcels):
    parcels(5)
    roll_out(engine, "parcels")
    with engine.connect() as connection:
        assert connection.scalar(select(func.count()).select_from(table(engine))) == 5
