"""``pair``: a primary and a standby that follows it, for the tests of a module.

``rows`` makes the table of accounts there, new; ``lagging`` holds the standby's rows as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import Session

from checks.deployments.postgresql import Node, primary, standby_of
from checks.deployments.writers import Account, make
from tests.support.waiting import until


class Pair(NamedTuple):
    primary: Node
    standby: Node

    def wait(self) -> None:
        """Until the standby has all that is stored now."""
        there = self.primary.ask("SELECT pg_current_wal_lsn()")
        until(lambda: self.standby.ask(f"SELECT pg_last_wal_replay_lsn() >= '{there}'"))


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with primary() as first, standby_of(first) as second:
        yield Pair(first, second)


@pytest.fixture
def writing(pair: Pair) -> Iterator[Engine]:
    """An engine of the primary, with the accounts of :mod:`checks.deployments.writers`."""
    engine = create_engine(pair.primary.url)
    make(engine)
    pair.wait()
    yield engine
    engine.dispose()


@pytest.fixture
def reading(pair: Pair) -> Iterator[Engine]:
    engine = create_engine(pair.standby.url)
    yield engine
    engine.dispose()


@pytest.fixture
def lagging(pair: Pair, writing: Engine) -> Iterator[None]:
    """The standby goes on to show account 1 without the 7 that is stored on the primary."""
    pair.standby.ask("SELECT pg_wal_replay_pause()")
    until(lambda: pair.standby.ask("SELECT pg_get_wal_replay_pause_state()") == "paused")
    with Session(writing) as session, session.begin():
        account = session.get_one(Account, 1)
        account.number = 7
    yield
    pair.standby.ask("SELECT pg_wal_replay_resume()")
    pair.wait()
