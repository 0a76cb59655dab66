"""``pooler``: PgBouncer in transaction mode, with two connections to a server of its own.

``engine`` comes through it by psycopg, told what it has to be; ``kept`` fails a test that has left
something on a connection of the pooler.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, create_engine

from checks.deployments.pgbouncer.pooler import SETTINGS, Pooler, pooled
from checks.deployments.writers import make


@pytest.fixture(scope="module")
def pooler() -> Iterator[Pooler]:
    with pooled(2) as made:
        yield made


@pytest.fixture
def engine(pooler: Pooler) -> Iterator[Engine]:
    engine = create_engine(pooler.url(), **SETTINGS["psycopg"])
    make(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def nothing_left(pooler: Pooler) -> Iterator[None]:
    before = pooler.states()
    yield
    assert pooler.states() == before
