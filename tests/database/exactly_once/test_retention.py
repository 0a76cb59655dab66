"""Old tokens and keys are deleted; a table that is missing, or too old, is found."""

from __future__ import annotations

from datetime import timedelta

import pytest
from alembic.migration import MigrationContext
from alembic.operations import Operations
from click.testing import CliRunner
from sqlalchemy import create_engine, insert, text
from sqlalchemy.orm import Session, sessionmaker

import optilock.alembic  # noqa: F401  gives op its operations
from optilock import ConfigurationError, UnitOfWork, unit_of_work
from optilock.check import check
from optilock.cli import commands
from optilock.exactly_once import purge
from optilock.exactly_once.keys import option_in_use
from optilock.tables.names import commit_tokens
from optilock.tokens.sql_functions import ServerTime, add_milliseconds
from tests.support.models import Account

pytestmark = pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")
HOUR = 3_600_000


def store(engine, *tokens: tuple[str, float]) -> None:
    """Each with its age in hours, by the database's clock."""
    with engine.begin() as connection:
        for token, hours in tokens:
            then = add_milliseconds(ServerTime(), -round(hours * HOUR))
            connection.execute(insert(commit_tokens).values(token=token, created_at=then))


def test_each_kind_is_kept_for_its_own_time(counter, tokens):
    day = 24
    store(counter, ("~old", 25), ("~young", 23), ("old", 31 * day), ("#old", 31 * day))
    store(counter, ("young", 29 * day), ("#young", 29 * day))
    assert purge(sessionmaker(counter)) == 3
    assert {*tokens()} == {"~young", "young", "#young"}
    assert purge(counter, tokens=timedelta(hours=1), keys=3600) == 3
    assert tokens() == {}


def test_rows_are_deleted_in_batches(counter, tokens):
    store(counter, *((f"~{n}", 30) for n in range(5)), *((f"k{n}", 24 * 40) for n in range(3)))
    assert purge(counter, batch=2, batches=1) == 4  # tokens do not take the batches of keys
    assert {token[0] for token in tokens()} == {"~", "k"}
    assert purge(counter, batch=2) == 4
    assert tokens() == {}


@pytest.mark.engines("postgresql", "mariadb")
def test_rows_that_another_purge_deletes_are_skipped(counter, tokens):
    store(counter, ("~a", 30), ("~b", 31))
    query = commit_tokens.select().where(commit_tokens.c.token == "~a").with_for_update()
    with counter.begin() as connection:
        connection.execute(query)
        assert purge(counter) == 1
    assert {*tokens()} == {"~a"}


def test_a_key_that_was_deleted_runs_again(counter, balance):
    @unit_of_work(counter, exactly_once="k")
    def pay(session: Session) -> None:
        session.get_one(Account, 1).balance += 1

    pay()
    with counter.begin() as connection:
        connection.execute(commit_tokens.delete())
    pay()
    assert balance() == 2


@pytest.mark.parametrize(
    "options",
    [
        {"tokens": 3599},
        {"tokens": True},
        {"tokens": "1 day"},
        {"keys": timedelta(minutes=59)},
        {"keys": float("inf")},
        {"batch": 0},
        {"batch": True},
        {"batches": 0},
    ],
    ids=str,
)
def test_what_would_delete_too_much_is_refused(counter, tokens, options):
    store(counter, ("~old", 30))
    with pytest.raises(ConfigurationError, match="refused"):
        purge(counter, **options)
    assert len(tokens()) == 1


def test_an_engine_without_the_table_or_sessions_of_none_are_refused(engine):
    with pytest.raises(ConfigurationError, match="0005"):
        purge(engine)
    with pytest.raises(ConfigurationError, match="no engine"):
        purge(sessionmaker())
    with pytest.raises(ConfigurationError, match="several engines"):
        purge(sessionmaker(binds={Account: engine, commit_tokens: create_engine("sqlite://")}))


def test_the_command_deletes_old_rows(counter, database, tokens):
    if counter.dialect.name == "sqlite":
        url = f"sqlite:///{counter.url.database}"
    else:
        url = counter.url.render_as_string(hide_password=False)
    store(counter, ("~old", 30), ("~young", 1), ("key", 24 * 40))
    ended = CliRunner().invoke(commands(), ["purge", "--url", url])
    assert (ended.exit_code, ended.stdout.strip()) == (0, "2 old tokens and keys deleted.")
    ended = CliRunner().invoke(commands(), ["purge", "--url", url, "--tokens", "0.5"])
    assert (ended.exit_code, "an hour at least" in ended.stderr) == (2, True)
    assert {*tokens()} == {"~young"}


# -- the table -------------------------------------------------------------------------------------


def migrate(engine, work) -> None:
    with engine.begin() as connection:
        work(Operations(MigrationContext.configure(connection)))


def test_the_second_step_adds_the_column_and_takes_it_back(engine, account):
    migrate(engine, lambda op: op.create_optilock_tables("commit_tokens"))
    with engine.begin() as connection:
        row = "('a', '2026-01-01 00:00:00')"
        connection.execute(
            text(f"INSERT INTO optilock_commit_tokens (token, created_at) VALUES {row}")
        )
    with (
        pytest.raises(ConfigurationError, match="to=2"),
        UnitOfWork(engine, exactly_once=True) as session,
    ):
        session.get_one(Account, 1)
    assert [one.code for one in check([Account], engine) if "tokens" in one.code] == [
        "old-commit-tokens"
    ]
    migrate(engine, lambda op: op.upgrade_optilock_tables("commit_tokens", to=2))
    with UnitOfWork(engine, exactly_once=True) as session:
        session.get_one(Account, 1).balance += 1
    assert [one.code for one in check([Account], engine) if "tokens" in one.code] == []
    migrate(engine, lambda op: op.downgrade_optilock_tables("commit_tokens", to=1))
    with engine.connect() as connection:
        count = connection.scalar(text("SELECT count(*) FROM optilock_commit_tokens"))
    assert count == 2


@pytest.mark.parametrize("seen", [True, False])
def test_a_missing_table_is_found_where_units_need_it(engine, account, monkeypatch, seen):
    monkeypatch.setattr(option_in_use, "seen", seen)
    found = [one.code for one in check([Account], engine) if "tokens" in one.code]
    assert found == (["no-commit-tokens"] if seen else [])
    unit_of_work(engine, exactly_once=True)
    assert option_in_use.seen
