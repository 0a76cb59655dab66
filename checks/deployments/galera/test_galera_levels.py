"""What a lock promises on one server has to be written on a cluster, or is refused."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import DateTime, Engine, String, Uuid, event, func, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from checks.deployments.galera.cluster import Cluster
from checks.deployments.galera.together import at_once, causal_engines
from optilock import (
    ConcurrencyError,
    ConfigurationError,
    Isolation,
    UnitOfWork,
    Versioned,
    etag_of,
    leases,
    serializable,
    shares,
    verify,
)
from optilock.check import check
from optilock.leases import Leasable, Name
from optilock.tables.names import LEASES as leases_tables
from optilock.tables.names import SHARES as shares_tables
from optilock.tokens import Counter, Manual, RowVersion, Timestamp, Unique
from tests.support.models import Account

Engines = list[Engine]
Store = Callable[..., None]


class Base(DeclarativeBase):
    pass


class _Seen:
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    n: Mapped[int] = mapped_column(default=0)
    #: When it was changed, as the program says it.
    at: Mapped[datetime.datetime] = mapped_column(
        DateTime, default=datetime.datetime(2020, 1, 1), onupdate=func.now()
    )


class Counted(_Seen, Versioned, Base):
    __tablename__ = "counted"
    __version_token__ = Counter()


class Random(_Seen, Versioned, Base):
    __tablename__ = "randoms"
    __version_token__ = Unique()


class Timed(_Seen, Versioned, Base):
    __tablename__ = "timed"
    __version_token__ = Timestamp()


class Said(_Seen, Versioned, Base):
    __tablename__ = "said"
    __version_token__ = Manual(String(40))


class Known(_Seen, Versioned, Base):
    __tablename__ = "known"
    __version_token__ = Manual(Uuid())


class Native(_Seen, Base):
    __tablename__ = "natives_seen"
    revision: Mapped[int] = mapped_column()
    __mapper_args__ = {"version_id_col": revision}


class Leased(Leasable, _Seen, Versioned, Base):
    __tablename__ = "leased"


class Moved(_Seen, Versioned, Base):
    """A trigger moves its version."""

    __tablename__ = "moved"
    __version_token__ = RowVersion()


KINDS: list[tuple[type[Any], dict[str, Any]]] = [
    (Counted, {}),
    (Random, {}),
    (Timed, {}),
    (Said, {"version": "one"}),
    (Known, {"version": uuid.UUID(int=0)}),
    (Native, {}),
]


@pytest.mark.parametrize(("kind", "given"), KINDS, ids=[kind.__name__ for kind, _ in KINDS])
def test_a_verified_row_is_written_for_the_other_nodes_and_stays_as_it_was(
    cluster: Cluster, engines: Engines, store: Store, kind: type[Any], given: dict[str, Any]
) -> None:
    store(*(kind(id=number, **given) for number in (1, 2, 3, 4)))
    question = f"SELECT * FROM {kind.__tablename__} WHERE id < 3 ORDER BY id"
    before = cluster.agree(question)

    def overtake(session: Session) -> None:
        with UnitOfWork(engines[1]) as other:
            verify(other.get_one(kind, 2))
            other.get_one(kind, 4).n = 1

    with pytest.raises(ConcurrencyError), UnitOfWork(engines[0]) as session:
        for number in (1, 2):
            verify(session.get_one(kind, number))
        session.get_one(kind, 3).n = 1
        event.listen(session, "before_commit", overtake)
    assert cluster.agree(question) == before
    assert cluster.agree(f"SELECT n FROM {kind.__tablename__} WHERE id > 2 ORDER BY id") == [
        (0,),
        (1,),
    ]


def test_a_version_that_a_trigger_makes_moves_when_its_row_is_verified(
    cluster: Cluster, engines: Engines, store: Store
) -> None:
    store(Moved(id=1), Moved(id=2))
    with UnitOfWork(engines[0]) as session:
        verify(session.get_one(Moved, 1))
        session.get_one(Moved, 2).n = 1
    assert cluster.agree("SELECT version, at FROM moved ORDER BY id")[0] == (
        2,
        datetime.datetime(2020, 1, 1),
    )


def test_the_tag_of_a_verified_row_stays_good(engines: Engines, store: Store) -> None:
    store(Account(id=1), Account(id=2))
    with UnitOfWork(engines[0]) as session:
        account = session.get_one(Account, 1)
        verify(account)
        tag = etag_of(account)
        session.get_one(Account, 2).note = "changed"
    with Session(engines[0]) as session:
        assert etag_of(session.get_one(Account, 1)) == tag


def test_a_read_only_unit_verifies_without_writing(engines: Engines, store: Store) -> None:
    store(Account(id=1))
    with UnitOfWork(engines[0], read_only=True) as session:
        verify(session.get_one(Account, 1))


def test_of_two_nodes_that_open_a_name_at_once_one_has_it(cluster: Cluster) -> None:
    engines = causal_engines(cluster)
    shares_tables.tables.create_all(engines[0])

    def open_it(session: Session, number: int, meet: object) -> None:
        shares.open(session, "report", "RW", share="", seconds=30)

    for _ in range(5):
        ended = at_once(engines, open_it)
        assert (len(ended.committed), len(ended.errors)) == (1, 1)
        cluster.nodes[0].ask("DELETE FROM test.optilock_share_handles")
        cluster.agree("SELECT 1")
    for engine in engines:
        engine.dispose()


@pytest.mark.parametrize("named", [True, False], ids=["a name", "a row"])
def test_of_two_nodes_that_acquire_a_lease_at_once_one_has_it(
    cluster: Cluster, store: Store, named: bool
) -> None:
    store(Leased(id=1), Leased(id=2))
    engines = causal_engines(cluster)
    leases_tables.tables.create_all(engines[0])

    def acquire(session: Session, number: int, meet: object) -> None:
        of = Name("report") if named else session.get_one(Leased, 1)
        leases.acquire(session, of, 30)

    ended = at_once(engines, acquire)
    assert (len(ended.committed), len(ended.errors)) == (1, 1)
    for engine in engines:
        engine.dispose()


def test_serializable_is_refused_but_for_reading(engines: Engines) -> None:
    with pytest.raises(ConfigurationError, match="Galera"), serializable(engines[0]) as session:
        session.execute(text("SELECT 1"))
    with serializable(engines[0], read_only=True) as session:
        assert session.scalar(text("SELECT 1")) == 1
    with UnitOfWork(engines[0], isolation=Isolation.READ_COMMITTED) as session:
        assert session.scalar(text("SELECT 1")) == 1


def test_whether_it_is_a_cluster_is_asked_once_for_an_engine(
    engines: Engines, store: Store
) -> None:
    store(Account(id=1, owner="Ada"))
    sessions = sessionmaker(engines[1])
    asked = []
    for _ in range(3):
        with UnitOfWork(sessions) as session:
            count = session.scalar(text("SHOW SESSION STATUS LIKE 'Com_show_variables'"))
            row = session.execute(text("SHOW SESSION STATUS LIKE 'Com_show_variables'")).one()
            asked.append(int(row[1]))
            assert count
            session.get_one(Account, 1).balance += 1
    assert len({*asked}) == 1
    assert asked[0] <= 2


def test_check_tells_that_the_server_is_a_node_of_a_cluster(engines: Engines, store: Store) -> None:
    store(Account(id=1))
    found = {finding.code: finding for finding in check(Account, engines[0])}
    assert found["galera"].severity == "warning"
    assert "galera-old-reads" in found
