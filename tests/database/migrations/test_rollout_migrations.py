"""A roll-out in a migration script; what it leaves is what the mapping asks for."""

from __future__ import annotations

from typing import Any

import pytest
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import String, inspect, select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from optilock import ConfigurationError, OptilockError, Versioned
from optilock.rollout import roll_out
from optilock.tokens import Counter, RowVersion, Timestamp, Unique
from tests.support.migrating import migrate, revise, shape
from tests.support.tens_token import Tens

pytestmark = pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")
TOKENS = [Counter(), Unique(), Timestamp(), RowVersion(), Tens()]
each_token = pytest.mark.parametrize("token", TOKENS, ids=lambda token: type(token).__name__)


def parcels(token: Any = None) -> type[Any]:
    """A class, before and after it became ``Versioned``."""

    class Base(DeclarativeBase):
        pass

    columns: dict[str, Any] = {
        "__tablename__": "parcels",
        "__annotations__": {"id": Mapped[int], "owner": Mapped[str], "views": Mapped[int]},
        "id": mapped_column(primary_key=True),
        "owner": mapped_column(String(20)),
        "views": mapped_column(),
    }
    if token is None:
        return type("Parcel", (Base,), columns)
    columns["__version_token__"] = token
    if not isinstance(token, RowVersion):
        columns |= {"__version_guard__": "bump", "__version_ignore__": ("views",)}
    return type("Parcel", (Versioned, Base), columns)


@each_token
def test_autogenerate_finds_nothing_to_do_after_a_roll_out(engine, token):
    parcels().metadata.create_all(engine)
    guard = {} if isinstance(token, RowVersion) else {"guard": "bump", "ignore": ["views"]}
    roll_out(engine, "parcels", token=token, **guard)

    mapped = parcels(token)  # held: a mapping that is collected asks for nothing
    assert revise(engine, mapped.metadata).lines == []


@pytest.fixture
def table(engine):
    """A table with rows, as it was before anybody thought of versions."""
    parcels().metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(
            text("INSERT INTO parcels (id, owner, views) VALUES (:id, 'Ada', 0)"),
            [{"id": n} for n in range(1, 6)],
        )


def options(token: Any) -> dict[str, Any]:
    return {} if isinstance(token, RowVersion) else {"guard": "bump", "ignore": ["views"]}


@each_token
def test_out_back_and_out_again_is_the_same_schema(engine, table, token):
    before = shape(engine, "parcels")
    migrate(engine, lambda op: op.roll_out_version_column("parcels", token, **options(token)))
    after = shape(engine, "parcels")
    mapped = parcels(token)
    assert revise(engine, mapped.metadata).lines == []

    migrate(engine, lambda op: op.roll_back_version_column("parcels", token, **options(token)))
    assert shape(engine, "parcels") == before
    with engine.begin() as connection:  # no trigger is left that misses the column
        connection.execute(text("UPDATE parcels SET views = 1"))

    migrate(engine, lambda op: op.roll_out_version_column("parcels", token, **options(token)))
    assert shape(engine, "parcels") == after != before


@each_token
def test_it_leaves_what_the_plain_operations_leave(engine, table, token):
    before = shape(engine, "parcels")
    migrate(engine, lambda op: op.roll_out_version_column("parcels", token))
    rolled = shape(engine, "parcels")
    migrate(engine, lambda op: op.roll_back_version_column("parcels", token))
    assert shape(engine, "parcels") == before

    def plainly(op):
        op.add_version_column("parcels", token)
        if isinstance(token, RowVersion):
            op.create_version_trigger("parcels", token)

    migrate(engine, plainly)
    assert shape(engine, "parcels") == rolled


def test_what_the_script_does_before_and_after_it_is_done(engine, table):
    def work(op):
        op.execute("UPDATE parcels SET views = 7")
        op.roll_out_version_column("parcels", Unique())
        op.execute("UPDATE parcels SET owner = 'Bob'")

    migrate(engine, work)
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT owner, views, version FROM parcels")).all()
    assert {(owner, views) for owner, views, _ in rows} == {("Bob", 7)}
    assert len({version for _, _, version in rows}) == 5


def test_where_the_version_has_been_rolled_out_it_finds_nothing_to_do(engine, table):
    roll_out(engine, "parcels", token=Unique())
    with engine.connect() as connection:
        before = connection.execute(text("SELECT id, version FROM parcels ORDER BY id")).all()
    migrate(engine, lambda op: op.roll_out_version_column("parcels", Unique()))
    with engine.connect() as connection:
        after = connection.execute(text("SELECT id, version FROM parcels ORDER BY id")).all()
    assert after == before


def test_it_is_run_again_where_a_lock_was_not_to_be_had(engine, table):
    with engine.connect() as holder:
        holder.execute(text("UPDATE parcels SET views = 3"))
        with pytest.raises(OptilockError, match=r"run the\s+roll-out again"):
            migrate(
                engine, lambda op: op.roll_out_version_column("parcels", Unique(), patience=0.2)
            )
    migrate(engine, lambda op: op.roll_out_version_column("parcels", Unique()))
    assert "version" in [column["name"] for column in inspect(engine).get_columns("parcels")]


def test_inside_somebody_else_s_transaction_it_is_refused(engine, table):
    before = shape(engine, "parcels")
    with engine.connect() as connection:
        connection.execute(select(1))
        op = Operations(MigrationContext.configure(connection))
        with pytest.raises(ConfigurationError, match=r"commit in env\.py"):
            op.roll_out_version_column("parcels", Counter())
    assert shape(engine, "parcels") == before


def test_a_guard_trigger_that_is_not_named_keeps_the_column(engine, table):
    migrate(engine, lambda op: op.roll_out_version_column("parcels", Counter(), guard="bump"))
    before = shape(engine, "parcels")
    with pytest.raises(ConfigurationError, match="drop_guard_trigger"):
        migrate(engine, lambda op: op.roll_back_version_column("parcels", Counter()))
    assert shape(engine, "parcels") == before


@pytest.mark.engines("postgresql")
def test_it_works_in_the_schema_in_which_the_migration_works(engine, table):
    with engine.begin() as connection:
        connection.execute(text("CREATE SCHEMA tenant"))
        connection.execute(text("CREATE TABLE tenant.parcels (id INT PRIMARY KEY, owner TEXT)"))
    try:
        with engine.connect() as connection:
            connection.execute(text("SET search_path TO tenant"))
            connection.commit()
            context = MigrationContext.configure(connection)
            with context.begin_transaction():
                Operations(context).roll_out_version_column("parcels", RowVersion())
            connection.invalidate()
        seen = inspect(engine)
        assert "version" in [c["name"] for c in seen.get_columns("parcels", schema="tenant")]
        assert "version" not in [c["name"] for c in seen.get_columns("parcels")]
    finally:
        with engine.begin() as connection:
            connection.execute(text("DROP SCHEMA tenant CASCADE"))


# -- columns for a script --------------------------------------------------------------------------

GUARDED = {"guard": "bump", "ignore": ["views"], "columns": ["id", "owner"]}


def test_columns_that_are_not_those_of_the_table_are_refused(engine, table):
    """D7: as the script would make another trigger than the roll-out."""
    for wrong in (["id"], ["id", "owner", "views"], ["id", "title"]):
        with pytest.raises(ConfigurationError, match="Nothing was changed"):
            migrate(
                engine,
                lambda op, wrong=wrong: op.roll_out_version_column(
                    "parcels", Counter(), **{**GUARDED, "columns": wrong}
                ),
            )
    assert "version" not in {one["name"] for one in inspect(engine).get_columns("parcels")}
    migrate(engine, lambda op: op.roll_out_version_column("parcels", Counter(), **GUARDED))
