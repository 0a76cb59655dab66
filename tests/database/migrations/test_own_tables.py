"""optilock's own tables: made by migrations, one revision after the other, and left alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import MetaData, insert, inspect, select
from sqlalchemy.exc import IntegrityError

from optilock import ConfigurationError
from optilock.tables import table_set, table_sets
from optilock.tables.names import commit_tokens
from tests.support import in_process
from tests.support.migrating import migrate, revise, shape

pytestmark = pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")
INI = Path(__file__).parents[3] / "migrations" / "alembic.ini"
SETS = sorted(table_sets())


def alembic(engine, *arguments: str) -> None:
    url = engine.url.render_as_string(hide_password=False)
    assert in_process.alembic("-c", str(INI), "-x", f"url={url}", *arguments) == (0, "")


def everything(engine):
    names = inspect(engine).get_table_names()
    return shape(engine, *names)


def test_the_migrations_go_up_down_and_up_again(engine):
    alembic(engine, "upgrade", "head")
    made = everything(engine)
    assert "optilock_commit_tokens" in made
    alembic(engine, "downgrade", "base")
    assert inspect(engine).get_table_names() == ["optilock_alembic_version"]
    alembic(engine, "upgrade", "head")
    assert everything(engine) == made


@pytest.mark.parametrize("name", SETS)
def test_the_steps_of_a_set_lead_to_its_tables(engine, name):
    tables = table_set(name)
    tables.tables.create_all(engine)
    wanted = everything(engine)
    tables.tables.drop_all(engine)

    newest = tables.revision
    migrate(engine, lambda op: op.create_optilock_tables(name, revision=newest))
    assert everything(engine) == wanted
    migrate(engine, lambda op: op.drop_optilock_tables(name, revision=newest))
    assert inspect(engine).get_table_names() == []


@pytest.mark.parametrize("name", SETS)
def test_autogenerate_leaves_them_alone(engine, name):
    migrate(engine, lambda op: op.create_optilock_tables(name))
    assert revise(engine, MetaData()).empty


def test_a_token_is_there_once_byte_by_byte(engine):
    migrate(engine, lambda op: op.create_optilock_tables("commit_tokens", revision=2))
    with engine.begin() as connection:
        for token in ("a", "A", "a ", "ä"):
            connection.execute(insert(commit_tokens).values(token=token))
        found = connection.scalars(select(commit_tokens.c.created_at)).all()
    assert len(found) == 4
    assert all(moment.tzinfo is not None for moment in found)
    with pytest.raises(IntegrityError), engine.begin() as connection:
        connection.execute(insert(commit_tokens).values(token="a"))


@pytest.mark.parametrize(
    ("work", "words"),
    [
        (lambda op: op.create_optilock_tables("commits"), "commit_tokens"),
        (lambda op: op.create_optilock_tables("commit_tokens", revision=9), "no revision 9"),
        (lambda op: op.create_optilock_tables("commit_tokens", revision=0), "no revision 0"),
        (lambda op: op.upgrade_optilock_tables("commit_tokens", to=0), "drop the tables"),
        (lambda op: op.downgrade_optilock_tables("commit_tokens", to=2), "the newest"),
    ],
    ids=["set", "revision", "nothing", "up to nothing", "down to the newest"],
)
def test_what_is_not_there_is_refused(engine, work, words):
    with pytest.raises(ConfigurationError, match=words):
        migrate(engine, work)
    assert inspect(engine).get_table_names() == []


def test_tables_that_are_there_are_not_made_again(engine):
    migrate(engine, lambda op: op.create_optilock_tables("commit_tokens"))
    with pytest.raises(ConfigurationError, match="there already"):
        migrate(engine, lambda op: op.create_optilock_tables("commit_tokens"))
