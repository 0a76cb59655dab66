"""A primary that is gone, and its standby in its place, while writers go on.

Their URL names both servers; ``target_session_attrs=read-write`` finds the one that takes writes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from checks.deployments.postgresql import primary, standby_of, url_of
from checks.deployments.standby.conftest import Pair
from checks.deployments.writers import Tally, Verdict, awrite, judge, make, write
from optilock import ConcurrencyError, Versioned, watch
from optilock.tokens import Unique
from tests.support.waiting import until


@contextmanager
def pair() -> Iterator[Pair]:
    with primary() as first, standby_of(first) as second:
        yield Pair(first, second)


def wait_for_the_standby_at_each_commit(both: Pair) -> None:
    """Synchronous replication: COMMIT is answered when the standby has it."""
    both.primary.ask("ALTER SYSTEM SET synchronous_standby_names = 'standby'")
    both.primary.ask("SELECT pg_reload_conf()")
    state = "SELECT sync_state FROM pg_stat_replication"
    until(lambda: both.primary.ask(state) == "sync")


def fail_over(both: Pair) -> None:
    time.sleep(2)
    both.primary.crash()
    time.sleep(0.5)
    both.standby.promote()
    time.sleep(2)


def written(both: Pair, driver: str) -> tuple[Tally, Verdict]:
    plain = create_engine(both.primary.url)
    make(plain)
    plain.dispose()
    url: Any = url_of(*both, driver=driver, target_session_attrs="read-write")
    if driver == "asyncpg":
        tally = asyncio.run(by_tasks(url, both))
    else:
        engine = create_engine(url)
        tally = write(engine, 4, at_least=101, meanwhile=lambda: fail_over(both))
        engine.dispose()
    survivor = create_engine(both.standby.url)
    verdict = judge(survivor, tally)
    survivor.dispose()
    return tally, verdict


async def by_tasks(url: str, both: Pair) -> Tally:
    engine = create_async_engine(url)
    tally = await awrite(engine, 4, at_least=101, meanwhile=lambda: fail_over(both))
    await engine.dispose()
    return tally


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_with_synchronous_replication_no_acknowledged_unit_is_lost(driver):
    with pair() as both:
        wait_for_the_standby_at_each_commit(both)
        tally, verdict = written(both, driver)
    assert verdict.harm == 0, verdict
    assert verdict.early <= 0.01, [*tally.refused.values()][:3]
    assert verdict.stored > 100
    assert verdict.retries > 0


# -- asynchronous replication ----------------------------------------------------------------------


class Base(DeclarativeBase):
    pass


class Counted(Versioned, Base):
    __tablename__ = "failed_over_counted"
    id: Mapped[int] = mapped_column(primary_key=True)
    text: Mapped[str] = mapped_column(default="first")


class Random(Versioned, Base):
    __tablename__ = "failed_over_random"
    __version_token__ = Unique()
    id: Mapped[int] = mapped_column(primary_key=True)
    text: Mapped[str] = mapped_column(default="first")


@pytest.fixture(params=[Counted, Random])
def after_the_loss(request):
    """A row whose second version was acknowledged and is lost; the new primary has another one.

    Gives its class, the new primary, and the lost row as its author still has it.
    """
    kind = request.param
    with pair() as both:
        before = create_engine(both.primary.url)
        Base.metadata.create_all(before)
        with Session(before) as session, session.begin():
            session.add(kind(id=1))
        both.wait()
        # From here on the standby hears nothing.
        both.standby.ask("ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()")
        until(lambda: not both.primary.ask("SELECT count(*) FROM pg_stat_replication"))
        sessions = watch(sessionmaker(before, expire_on_commit=False))
        with sessions.begin() as session:
            lost = session.get_one(kind, 1)
            lost.text = "lost"
        before.dispose()
        both.primary.crash()
        both.standby.promote()
        now = create_engine(both.standby.url)
        with watch(sessionmaker(now)).begin() as session:
            row = session.get_one(kind, 1)
            assert row.text == "first"  # nobody was told
            row.text = "theirs"
        yield kind, now, lost
        now.dispose()


def test_a_random_version_tells_the_author_of_a_lost_write_and_a_counter_does_not(after_the_loss):
    """The counter of the lost write and that of the next one are the same number."""
    kind, now, lost = after_the_loss
    with watch(sessionmaker(now))() as session:
        session.add(lost)
        lost.text = "mine, after the lost one"
        if kind is Random:
            with pytest.raises(ConcurrencyError):
                session.commit()
            session.rollback()
        else:
            session.commit()
    with Session(now) as session:
        stored = session.get_one(kind, 1).text
    assert stored == ("theirs" if kind is Random else "mine, after the lost one")
