"""Rows that are increased, tokens, and lines that are cut at COMMIT.

``tokens``         the rows of the token table, by token
``cut_at(way)``    the engine of a line whose next COMMIT is cut; the cutter is ``cut_at.line``
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, make_url, select
from sqlalchemy.orm import Session

from checks.exactly_once.cut_commits import CommitCutter
from optilock.tables.names import commit_tokens
from tests.engines import Target
from tests.support.models import Account


@pytest.fixture
def counter(engine: Engine, tables: Any) -> Engine:
    """The engine of a database with one account and the table of tokens."""
    tables(Account)
    commit_tokens.create(engine)
    with Session(engine) as session, session.begin():
        session.add(Account(id=1, owner="Ada", balance=0))
    return engine


@pytest.fixture
def tokens(engine: Engine) -> Callable[[], dict[str, Any]]:
    def tokens() -> dict[str, Any]:
        with engine.connect() as connection:
            return {row.token: row for row in connection.execute(select(commit_tokens))}

    return tokens


@pytest.fixture
def balance(engine: Engine) -> Callable[[], int]:
    def balance() -> int:
        with engine.connect() as connection:
            return int(connection.scalar(select(Account.balance).where(Account.id == 1)) or 0)

    return balance


class CutAt:
    """Engines over a line of which one COMMIT is cut."""

    def __init__(self, database: Target) -> None:
        self._url = make_url(database.url)
        self.ways: list[str] = []
        self.line = CommitCutter(self._url, lambda: self.ways.pop(0) if self.ways else None)
        self._engines: list[Engine] = []

    def __call__(self, *ways: str, **options: Any) -> Engine:
        """An engine whose next COMMITs are cut in these ways; a pool of one, unless it is said."""
        engine = create_engine(self.line.url, **{"pool_size": 1, "max_overflow": 0, **options})
        engine.connect().close()
        self.ways[:] = ways
        self._engines.append(engine)
        return engine

    def close(self) -> None:
        for engine in self._engines:  # or the line waits for their connections
            engine.dispose()
        self.line.close()
        for thread in threading.enumerate():
            if thread.name == "optilock question":  # it hears that the line is closed
                thread.join(10)
        for engine in self._engines:
            engine.dispose()


@pytest.fixture
def cut_at(counter: Engine, database: Target) -> Iterator[CutAt]:
    made = CutAt(database)
    yield made
    made.close()
