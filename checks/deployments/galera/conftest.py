"""``cluster``: three nodes, shared by the tests of a process, with an empty database ``test``.

``engines`` has an engine for each node; ``store(*objects)`` makes the tables of these objects, and
their rows; ``at_once`` runs functions together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import Session

from checks.deployments.galera.cluster import Cluster, running
from tests.support.two_writers import tables_of


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[Cluster]:
    with running() as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Cluster:
    shared_cluster.nodes[0].ask("DROP DATABASE test", "CREATE DATABASE test CHARACTER SET utf8mb4")
    return shared_cluster


@pytest.fixture
def engines(cluster: Cluster) -> Iterator[list[Engine]]:
    made = [create_engine(node.url) for node in cluster]
    yield made
    for engine in made:
        engine.dispose()


@pytest.fixture
def store(cluster: Cluster, engines: list[Engine]) -> Callable[..., None]:
    def store(*objects: object) -> None:
        wanted = tables_of(*dict.fromkeys(type(obj) for obj in objects))
        for metadata in {table.metadata for table in wanted}:  # others may be of other databases
            metadata.create_all(engines[0], tables=[t for t in wanted if t.metadata is metadata])
        with Session(engines[0]) as session, session.begin():
            session.add_all(objects)
        cluster.agree("SELECT 1")

    return store
