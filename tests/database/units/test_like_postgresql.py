"""Engines that speak PostgreSQL's protocol under a dialect of their own name.

None of them runs here. Their names and levels are those of their documentation, and what they have
in common with PostgreSQL is tried on PostgreSQL, by a dialect that has their name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import sessionmaker

from optilock import (
    ConcurrencyError,
    ConfigurationError,
    Isolation,
    OptilockError,
    UnitOfWork,
    unit_of_work,
    verify,
    watch,
)
from optilock.dialects import KnownByCodes, database_of
from optilock.dialects.known_by_codes import AuroraDSQL, CockroachDB, YugabyteDB
from tests.support.models import Account

pytestmark = pytest.mark.engines("postgresql")

NONSENSE = text("SELECT * FROM there_is_no_such_table")


class CockroachDBDialect(PGDialect_psycopg):
    name = "cockroachdb"
    supports_statement_cache = True


class YugabyteDBDialect(PGDialect_psycopg):
    name = "yugabytedb"
    supports_statement_cache = True


class AuroraDSQLDialect(PGDialect_psycopg):
    name = "auroradsql"
    supports_statement_cache = True


KNOWN: dict[str, tuple[type[KnownByCodes], list[Isolation]]] = {
    "cockroachdb": (CockroachDB, [Isolation.READ_COMMITTED, Isolation.SERIALIZABLE]),
    "yugabytedb": (YugabyteDB, [*Isolation]),
    "auroradsql": (AuroraDSQL, [Isolation.REPEATABLE_READ]),
}
for dialect in (CockroachDBDialect, YugabyteDBDialect, AuroraDSQLDialect):
    registry.register(f"{dialect.name}.likepsycopg", __name__, dialect.__name__)


@pytest.fixture(params=KNOWN)
def like(request: Any, engine: Engine, store: Any) -> Iterator[Engine]:
    """PostgreSQL, by a dialect that is named as the other engine's is."""
    store(Account(id=1, owner="Ada"), Account(id=2))
    made = create_engine(engine.url.set(drivername=f"{request.param}+likepsycopg"))
    yield made
    made.dispose()


def test_its_answers_are_its_own(like):
    known, levels = KNOWN[like.dialect.name]
    database = database_of(like.dialect)
    assert type(database) is known
    assert database.levels == tuple(level.value for level in levels)


@pytest.mark.parametrize("level", Isolation)
def test_levels_that_it_does_not_keep_are_refused(like, level):
    unit = UnitOfWork(like, isolation=level)
    if level in KNOWN[like.dialect.name][1]:
        with unit as session:
            assert session.connection().get_isolation_level() == level.value
        return
    with pytest.raises(ConfigurationError, match="leave isolation= out"), unit as session:
        session.connection()


def test_commit_after_an_error_that_was_swallowed_is_refused(like):
    with pytest.raises(OptilockError, match="cannot be committed"), UnitOfWork(like) as session:
        session.get_one(Account, 1).owner = "mine"
        session.flush()
        with pytest.raises(DBAPIError):
            session.execute(NONSENSE)
    with watch(sessionmaker(like))() as session:
        session.get_one(Account, 1).owner = "mine"
        session.flush()
        with pytest.raises(DBAPIError):
            session.execute(NONSENSE)
        with pytest.raises(OptilockError, match="cannot be committed"):
            session.commit()
        session.rollback()
        assert session.get_one(Account, 1).owner == "Ada"


def test_a_row_that_somebody_else_has_changed_is_a_conflict_and_the_unit_runs_again(
    like, other, stored
):
    seen = []

    @unit_of_work(like)
    def rename(session: Any) -> None:
        account = session.get_one(Account, 1)
        seen.append(account.owner)
        if len(seen) == 1:
            other(Account, 1, owner="theirs")
        account.owner += ", mine"

    rename()
    assert seen == ["Ada", "theirs"]
    assert stored(Account, 1)["owner"] == "theirs, mine"


def test_a_conflict_that_commit_reports_is_one(like, other, stored):
    """As Aurora DSQL does of every one: here at the statement, from a snapshot."""
    level = KNOWN[like.dialect.name][1][-1]
    with pytest.raises(ConcurrencyError), UnitOfWork(like, isolation=level) as session:
        session.get_one(Account, 1).owner = "mine"
        other(Account, 1, owner="theirs")
    assert stored(Account, 1)["owner"] == "theirs"


def test_many_rows_are_written_and_judged(like, other, stored):
    with pytest.raises(ConcurrencyError) as caught, UnitOfWork(like) as session:
        first, second = session.get_one(Account, 1), session.get_one(Account, 2)
        other(Account, 2, owner="theirs")
        first.owner = second.owner = "mine"
    assert [entry.identity for entry in caught.value.entries] == [(2,)]
    assert stored(Account, 1)["owner"] == "Ada"


def test_aurora_dsql_is_asked_for_no_lock(like):
    """Its FOR UPDATE takes one row by its key, and keeps nobody waiting."""
    sent = []
    event.listen(
        like, "before_cursor_execute", lambda c, cursor, statement, *_: sent.append(statement)
    )
    if like.dialect.name != "auroradsql":
        with UnitOfWork(like) as session:
            verify(session.get_one(Account, 2))
        assert any("FOR SHARE" in statement for statement in sent)
        return
    with pytest.raises(ConfigurationError, match="locks nothing there"), UnitOfWork(like) as one:
        verify(one.get_one(Account, 2))
    with UnitOfWork(like) as session:
        for account in (session.get_one(Account, 1), session.get_one(Account, 2)):
            account.owner = "mine"
    assert not any(" FOR " in statement for statement in sent)
