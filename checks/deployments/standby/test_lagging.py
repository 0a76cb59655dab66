"""Sessions that read from a standby which lags behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import Delete, Insert, Update
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from checks.deployments.postgresql import url_of
from checks.deployments.writers import Account, add
from optilock import ConcurrencyError, client_wins, retry, unit_of_work
from optilock.unit import attempt_number


def routed(primary: Any, standby: Any, *, looks_again: bool) -> type[Session]:
    """As the documentation has it; without ``looks_again`` as SQLAlchemy's has it."""

    class Routing(Session):
        def get_bind(self, mapper: Any = None, *, clause: Any = None, **options: Any) -> Any:
            writes = self._flushing or isinstance(clause, (Update, Delete, Insert))
            again = looks_again and attempt_number() > 1
            return primary if writes or again else standby

    return Routing


@pytest.mark.usefixtures("lagging")
def test_the_attempt_after_a_conflict_reads_from_the_primary(writing, reading):
    sessions = sessionmaker(class_=routed(writing, reading, looks_again=True))
    seen: list[int] = []
    unit_of_work(sessions)(add)(seen)
    assert seen == [0, 7]
    with Session(writing) as session:
        assert session.get_one(Account, 1).number == 8


@pytest.mark.usefixtures("lagging")
def test_without_the_question_every_attempt_reads_the_same_old_row_and_the_last_one_tells(
    writing, reading
):
    sessions = sessionmaker(class_=routed(writing, reading, looks_again=False))
    seen: list[int] = []
    with pytest.raises(ConcurrencyError) as caught:
        unit_of_work(sessions, attempts=4, strategy="optimistic")(add)(seen)
    assert seen == [0] * 4
    [entry] = caught.value.entries
    assert entry.database["number"] == 7


@pytest.mark.usefixtures("lagging")
def test_an_attempt_that_locks_what_the_first_one_has_lost_reads_it_from_the_primary(
    writing, reading
):
    sessions = sessionmaker(class_=routed(writing, reading, looks_again=False))
    seen: list[int] = []
    unit_of_work(sessions, attempts=4)(add)(seen)
    assert seen == [0, 7]


@pytest.mark.usefixtures("lagging")
def test_a_resolver_settles_in_the_first_attempt(writing, reading):
    sessions = sessionmaker(class_=routed(writing, reading, looks_again=False))
    seen: list[int] = []
    unit_of_work(sessions, on_conflict=client_wins)(add)(seen)
    assert seen == [0]


@pytest.mark.usefixtures("lagging")
@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_an_async_session_that_is_routed_reads_from_the_primary_too(pair, writing, driver):
    async def story() -> list[int]:
        engines = [create_async_engine(url_of(node, driver=driver)) for node in pair]
        routing = routed(*(engine.sync_engine for engine in engines), looks_again=True)
        sessions = async_sessionmaker(sync_session_class=routing)
        seen: list[int] = []

        @unit_of_work(sessions)
        async def unit(session: AsyncSession) -> None:
            await session.run_sync(add, seen)

        await unit()
        for engine in engines:
            await engine.dispose()
        return seen

    assert asyncio.run(story()) == [0, 7]


def test_outside_of_a_retry_each_attempt_is_the_first():
    assert attempt_number() == 1
    numbers: list[int] = []

    @retry(attempts=3, wait_max=0)
    def work() -> None:
        numbers.append(attempt_number())
        raise ConcurrencyError

    with pytest.raises(ConcurrencyError):
        work()
    assert numbers == [1, 2, 3]
    assert attempt_number() == 1
