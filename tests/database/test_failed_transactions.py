"""PostgreSQL answers COMMIT of a failed transaction with ROLLBACK: who caught the error is told."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from optilock import OptilockError, watch
from optilock.testing import count_statements
from tests.support.models import Account
from tests.support.two_writers import Do

pytestmark = pytest.mark.engines("postgresql")

NONSENSE = text("SELECT * FROM there_is_no_such_table")


@pytest.fixture
def sessions(engine: Engine, store: Do) -> sessionmaker[Session]:
    store(Account(id=1, owner="Ada"))
    return watch(sessionmaker(engine))


def swallow(session: Session) -> None:
    """The program has written something, and takes an error for unimportant."""
    session.get_one(Account, 1).owner = "mine"
    session.flush()
    with pytest.raises(DBAPIError):
        session.execute(NONSENSE)


def by_commit(sessions: sessionmaker[Session]) -> None:
    with sessions() as session:
        swallow(session)
        session.commit()


def by_factory(sessions: sessionmaker[Session]) -> None:
    with sessions.begin() as session:
        swallow(session)


def by_begin(sessions: sessionmaker[Session]) -> None:
    with sessions() as session, session.begin():
        swallow(session)


def by_transaction(sessions: sessionmaker[Session]) -> None:
    with sessions() as session:
        begun = session.begin()
        swallow(session)
        begun.commit()


def by_connection(sessions: sessionmaker[Session]) -> None:
    """The connection is not the session's, and whoever has it commits."""
    with (
        sessions.kw["bind"].connect() as connection,
        sessions(bind=connection, join_transaction_mode="control_fully") as session,
    ):
        swallow(session)
        session.commit()


@pytest.mark.parametrize("way", [by_commit, by_factory, by_begin, by_transaction, by_connection])
def test_a_commit_that_stores_nothing_says_so(
    sessions: sessionmaker[Session], stored: Do, way: Callable[..., None]
) -> None:
    with pytest.raises(OptilockError, match="cannot be committed") as caught:
        way(sessions)
    assert stored(Account, 1)["owner"] == "Ada"
    assert caught.value.__cause__ is not None
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize("rolls_back", [True, False])
def test_the_session_goes_on_afterwards(
    sessions: sessionmaker[Session], engine: Engine, stored: Do, rolls_back: bool
) -> None:
    with sessions() as session:
        swallow(session)
        with pytest.raises(OptilockError):
            session.commit()
        session.rollback() if rolls_back else session.close()
        session.get_one(Account, 1).owner = "again"
        session.commit()
    assert stored(Account, 1)["owner"] == "again"
    assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]


def test_so_does_a_connection_that_is_kept(
    sessions: sessionmaker[Session], engine: Engine, stored: Do
) -> None:
    """The second transaction on it has an error of its own."""
    with engine.connect() as connection:
        session = sessions(bind=connection, join_transaction_mode="control_fully")
        for _ in range(2):
            swallow(session)
            with pytest.raises(OptilockError):
                session.commit()
            session.rollback()
        session.get_one(Account, 1).owner = "again"
        session.commit()
        session.close()
    assert stored(Account, 1)["owner"] == "again"


def test_what_a_savepoint_has_undone_is_no_failure(
    sessions: sessionmaker[Session], stored: Do
) -> None:
    """Neither one of the session's nor one that the program has sent as text."""
    with sessions() as session:
        session.get_one(Account, 1).owner = "mine"
        with contextlib.suppress(DBAPIError), session.begin_nested():
            session.execute(NONSENSE)
        session.flush()
        session.execute(text("SAVEPOINT mine"))
        with contextlib.suppress(DBAPIError):
            session.execute(NONSENSE)
        session.execute(text("ROLLBACK TO SAVEPOINT mine"))
        session.commit()
    assert stored(Account, 1)["owner"] == "mine"


def test_a_rollback_says_nothing(sessions: sessionmaker[Session], stored: Do) -> None:
    with sessions() as session:
        swallow(session)
        session.rollback()
        session.commit()
    assert stored(Account, 1)["owner"] == "Ada"


def test_a_transaction_without_an_error_is_not_looked_at(
    sessions: sessionmaker[Session], engine: Engine
) -> None:
    with sessions() as session, count_statements(engine) as sent:
        session.get_one(Account, 1).owner = "mine"
        session.commit()
    assert sent.count == 2


@pytest.mark.anyio
async def test_async_sessions_say_the_same(
    async_engine: AsyncEngine, async_tables: Callable[..., None]
) -> None:
    sessions = watch(async_sessionmaker(async_engine))
    async_tables(Account)
    async with sessions() as session:
        session.add(Account(id=1, owner="Ada"))
        await session.commit()
        await session.run_sync(swallow)
        with pytest.raises(OptilockError, match="cannot be committed"):
            await session.commit()
        await session.rollback()
        assert (await session.get_one(Account, 1)).owner == "Ada"
        await session.commit()
