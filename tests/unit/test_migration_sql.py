"""Migrations as text: what ``alembic upgrade --sql`` prints, and what a script says."""

from __future__ import annotations

from datetime import timedelta

import pytest
from alembic.autogenerate.api import AutogenContext
from alembic.autogenerate.render import render_op_text
from alembic.migration import MigrationContext
from alembic.operations.ops import CreateTableOp
from sqlalchemy import Column

from optilock import ConfigurationError
from optilock.alembic import AddVersionColumn, ChangeVersionColumn, DropVersionColumn
from optilock.alembic.roll_out import RollBackVersionColumn, RollOutVersionColumn
from optilock.tokens import Counter, RowVersion, Unique, UtcDateTime
from optilock.tokens.guard_trigger import GuardTrigger, read_mark
from tests.support.hash_token import Hash
from tests.support.migrating import as_text, plugins

ADDED = {
    ("postgresql", Counter()): "ALTER TABLE pages ADD COLUMN version BIGINT DEFAULT 1 NOT NULL;",
    ("mysql", Counter()): "ALTER TABLE pages ADD COLUMN version BIGINT NOT NULL DEFAULT 1;",
    ("sqlite", Counter()): "ALTER TABLE pages ADD COLUMN version BIGINT DEFAULT 1 NOT NULL;",
    ("postgresql", Unique()): (
        "ALTER TABLE pages ADD COLUMN version UUID DEFAULT gen_random_uuid() NOT NULL;"
    ),
}


@pytest.mark.parametrize(("dialect", "token"), ADDED, ids=str)
def test_a_version_is_added_in_one_statement(dialect, token):
    written = as_text(dialect, lambda op: op.add_version_column("pages", token))
    assert written == ADDED[dialect, token]


def test_mysql_writes_a_random_first_version_without_dashes():
    written = as_text("mysql", lambda op: op.add_version_column("pages", Unique()))
    assert "CHAR(32) NOT NULL DEFAULT (replace(uuid(), '-', ''))" in written


def test_the_schema_and_the_names_are_quoted():
    written = as_text(
        "postgresql",
        lambda op: op.add_version_column("my pages", Counter(column="rev no"), schema="Wiki"),
    )
    assert written.startswith('ALTER TABLE "Wiki"."my pages" ADD COLUMN "rev no" BIGINT')


def test_the_first_versions_may_come_from_an_expression():
    written = as_text(
        "postgresql", lambda op: op.add_version_column("pages", Counter(), fill="edits + 1")
    )
    assert [line for line in written.splitlines() if line] == [
        "ALTER TABLE pages ADD COLUMN version BIGINT;",
        "UPDATE pages SET version=edits + 1;",
        "ALTER TABLE pages ALTER COLUMN version SET NOT NULL;",
        "ALTER TABLE pages ALTER COLUMN version SET DEFAULT 1;",
    ]


def test_what_sqlite_can_only_do_with_the_table_at_hand_is_refused_as_text():
    with pytest.raises(ConfigurationError, match="--sql"):
        as_text("sqlite", lambda op: op.add_version_column("pages", Unique()))


@pytest.mark.parametrize("dialect", ["postgresql", "mysql", "sqlite"])
def test_another_name_is_a_rename(dialect):
    new = Counter(name="revision")
    written = as_text(dialect, lambda op: op.change_version_column("pages", Counter(), new))
    assert written == "ALTER TABLE pages RENAME COLUMN version TO revision;"


OPERATIONS = {
    AddVersionColumn("pages", Counter()): (
        "op.add_version_column('pages', optilock.tokens.Counter())"
    ),
    AddVersionColumn("pages", Counter("rev", "rev no"), fill="n", schema="w"): (
        "op.add_version_column('pages', optilock.tokens.Counter(name='rev',"
        " column='rev no'), fill='n', schema='w')"
    ),
    AddVersionColumn("pages", Hash("name", "price", column="seal"), fill="'-'"): (
        "op.add_version_column('pages', tests.support.hash_token.Hash('name', 'price',"
        " column='seal'), fill=\"'-'\")"
    ),
    DropVersionColumn("pages", Unique()): (
        "op.drop_version_column('pages', optilock.tokens.Unique())"
    ),
    ChangeVersionColumn("pages", Unique(), Counter()): (
        "op.change_version_column('pages', optilock.tokens.Unique(), optilock.tokens.Counter())"
    ),
    RollOutVersionColumn("pages", Counter()): (
        "op.roll_out_version_column('pages', optilock.tokens.Counter())"
    ),
    RollOutVersionColumn(
        "pages", Counter(), guard="bump", ignore=["views"], rate=9, patience=timedelta(hours=1)
    ): (
        "op.roll_out_version_column('pages', optilock.tokens.Counter(), guard='bump',"
        " ignore=['views'], rate=9, patience=3600.0)"
    ),
    RollOutVersionColumn("pages", Counter(), guard="bump", ignore=["b"], columns=["c", "a"]): (
        "op.roll_out_version_column('pages', optilock.tokens.Counter(), guard='bump',"
        " ignore=['b'], columns=['a', 'c'])"
    ),
    RollOutVersionColumn("pages", Counter(), nodes=["db1:3306", "db2:3306"]): (
        "op.roll_out_version_column('pages', optilock.tokens.Counter(),"
        " nodes=['db1:3306', 'db2:3306'])"
    ),
    RollBackVersionColumn("pages", RowVersion(), schema="w"): (
        "op.roll_back_version_column('pages', optilock.tokens.RowVersion(), schema='w')"
    ),
}


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: type(one).__name__)
def test_an_operation_is_written_as_the_call_that_does_it(operation):
    context = AutogenContext(MigrationContext.configure(dialect_name="postgresql"))
    assert render_op_text(context, operation) == OPERATIONS[operation]
    assert "import optilock.alembic" in context.imports
    names_token = "optilock.tokens." in OPERATIONS[operation]
    assert ("import optilock.tokens" in context.imports) is names_token


def test_a_table_names_the_type_of_its_version_by_the_public_path():
    prefixes = {"sqlalchemy_module_prefix": "sa.", "user_module_prefix": None}
    options = {"alembic_module_prefix": "op.", "render_item": None, **prefixes}
    migration = MigrationContext.configure(dialect_name="postgresql")
    context = AutogenContext(migration, opts=options)
    table = CreateTableOp("pages", [Column("changed", UtcDateTime(), nullable=False)])

    assert "optilock.tokens.UtcDateTime()" in render_op_text(context, table)
    assert "import optilock.tokens" in context.imports


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: type(one).__name__)
def test_taken_back_twice_is_the_operation_itself(operation):
    if isinstance(operation, ChangeVersionColumn):
        assert operation.reverse().to_diff_tuple() != operation.to_diff_tuple()
    assert operation.reverse().reverse().to_diff_tuple() == operation.to_diff_tuple()


def test_the_plug_in_is_one_module_for_every_release_of_alembic():
    """Alembic before 1.19.1 goes over the entry point, later ones take it as it is."""
    from types import ModuleType

    from optilock.alembic import plugin

    assert isinstance(plugin, ModuleType)
    assert list(plugin) == [plugin]
    assert "optilock" in plugins._all_plugins


def test_mariadb_s_client_is_told_where_the_trigger_ends():
    guard = as_text("mysql", lambda op: op.create_guard_trigger("pages", Counter(), "reject"))
    assert guard.startswith("DELIMITER //\nCREATE OR REPLACE TRIGGER optilock_guard_pages")
    assert guard.endswith("//\nDELIMITER ;")


@pytest.mark.parametrize("dialect", ["mysql", "sqlite", "postgresql"])
def test_ignored_columns_without_a_database_need_the_others(dialect):
    def work(op, **options):
        op.create_guard_trigger("pages", Counter(), "bump", ignore=["views"], **options)

    with pytest.raises(ConfigurationError, match="columns="):
        as_text(dialect, work)
    assert "body" in as_text(dialect, lambda op: work(op, columns=["id", "body"]))


def test_a_roll_out_as_text_is_the_plain_way_to_the_same_table_and_says_so():
    rolled = as_text("postgresql", lambda op: op.roll_out_version_column("pages", RowVersion()))
    assert rolled.startswith("-- As text this is no roll-out")
    assert "ADD COLUMN version BIGINT DEFAULT 1 NOT NULL" in rolled
    assert "CREATE TRIGGER pages_version_moves" in rolled


@pytest.mark.parametrize("dialect", ["postgresql", "mysql"])
def test_a_guarded_roll_out_as_text_names_what_counts(dialect):
    """D7: or it would make another trigger than on a connection; it says so, and writes nothing."""

    def guarded(op, **options):
        op.roll_out_version_column("pages", Counter(), guard="bump", **options)

    with pytest.raises(ConfigurationError, match=r"columns=\[\.\.\.\], where there is no database"):
        as_text(dialect, lambda op: guarded(op, ignore=["views"]))
    named = as_text(dialect, lambda op: guarded(op, ignore=["views"], columns=["id", "body"]))
    assert "TRIGGER optilock_guard_pages" in named
    assert '"columns": ["body", "id"]' in named
    plain = as_text(dialect, guarded)
    assert "-- Every column counts. If some are generated" in plain
    with pytest.raises(ConfigurationError, match="without ignore="):
        as_text(dialect, lambda op: guarded(op, columns=["id", "body"]))


def test_a_roll_out_needs_a_token_that_has_a_column():
    with pytest.raises(ConfigurationError, match="nothing has to be rolled out"):
        RollOutVersionColumn("pages", RowVersion(xmin=True))


def test_a_token_that_no_sql_can_make_is_neither_rolled_out_nor_guarded():
    with pytest.raises(ConfigurationError, match="nothing that a guard trigger could move"):
        as_text("postgresql", lambda op: op.create_guard_trigger("pages", Hash("name"), "bump"))
    with pytest.raises(ConfigurationError, match="say which one"):
        as_text("postgresql", lambda op: op.add_version_column("pages", Hash("name")))


def test_postgresql_calls_no_function_for_writes_that_move_the_version():
    written = as_text("postgresql", lambda op: op.create_guard_trigger("pages", Unique(), "bump"))
    assert "WHEN (NEW.version = OLD.version)" in written
    assert "NEW.version := gen_random_uuid();" in written


@pytest.mark.parametrize("name", ["a */ b", 'q"q', "x" * 70])
@pytest.mark.parametrize("kind", [Counter, Unique])
def test_a_trigger_is_read_back_from_what_the_database_keeps(name, kind):
    token = kind(name) if name.isidentifier() else kind(column=name)
    guard = GuardTrigger(name, token, "bump", (name, "views"), ("body",))
    assert "*/" not in guard.mark[:-2]
    assert len(guard.name.encode()) <= 63
    assert read_mark(f"BEGIN {guard.mark} END", name, None) == guard
    assert read_mark("BEGIN /* optilock guard {broken */ END", name, None) is None
