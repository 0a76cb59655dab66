"""Nodes have no locks between them: a question that is stored decides by certification."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, sessionmaker

from checks.deployments.galera.cluster import Cluster
from checks.exactly_once.cut_commits import CommitCutter, seeded
from checks.exactly_once.increments import options
from optilock import ConcurrencyError, UnitOfWork, unit_of_work
from optilock.exactly_once import committed
from optilock.tables.names import commit_tokens
from tests.support.models import Account


@pytest.fixture
def counter(cluster: Cluster, engines: list[Engine], store: Any) -> None:
    store(Account(id=1, owner="Ada", balance=0))
    commit_tokens.create(engines[0])
    cluster.agree("SELECT 1")


@pytest.mark.parametrize("once", [True, "k"])
def test_a_question_on_another_node_keeps_an_open_unit_from_being_stored(counter, engines, once):
    with (
        pytest.raises((ConcurrencyError, DBAPIError)),
        UnitOfWork(sessionmaker(engines[0]), exactly_once=once) as session,
    ):
        session.get_one(Account, 1).balance += 1
        session.flush()
        token = session._optilock_watched.owner.token.token
        assert committed(engines[1], token) is False
    for engine in engines:
        with Session(engine) as session:
            assert session.get_one(Account, 1).balance == 0
        assert committed(engine, token) is False
    if once == "k":
        with UnitOfWork(sessionmaker(engines[2]), exactly_once="k") as session:
            session.get_one(Account, 1).balance += 1
        assert committed(engines[0], "k") is True


@pytest.mark.parametrize("mode", ["true", "key"])
def test_writers_on_all_nodes_count_exactly_over_lines_that_are_cut(
    cluster, counter, engines, mode
):
    lines = [
        CommitCutter(make_url(node.url), seeded(0.2, number), hold=0.1)
        for number, node in enumerate(cluster)
    ]
    cut = [create_engine(line.url, pool_size=1) for line in lines]

    def write(node: int) -> None:
        @unit_of_work(cut[node], **options(mode, attempts=200))
        def increase(session: Session, number: str) -> None:
            session.get_one(Account, 1).balance += 1

        for number in range(20):
            increase(f"{node}-{number}")

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(write, range(3)))
    for line in lines:
        line.close()
    for engine in cut:
        engine.dispose()
    assert sum(sum(line.cuts.values()) for line in lines) > 5
    assert cluster.agree("SELECT balance FROM accounts WHERE id = 1") == [(60,)]
