"""Conflicts between nodes, which Galera tells at COMMIT, and a node that lost the others."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pymysql
import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from checks.deployments.galera.cluster import Cluster
from optilock import (
    ConcurrencyError,
    PreconditionFailed,
    UnitOfWork,
    Versioned,
    expect,
    is_transient,
    unit_of_work,
    verify,
    watch,
)
from optilock.errors import CommitOutcomeUnknown
from optilock.tokens import CompareValues
from tests.support.models import Account

Engines = list[Engine]
Store = Callable[..., None]


class Base(DeclarativeBase):
    pass


class Compared(Versioned, Base):
    """The values that were read are compared."""

    __tablename__ = "compared"
    __version_token__ = CompareValues.all()
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    n: Mapped[int]
    m: Mapped[int]


@pytest.fixture
def accounts(store: Store) -> None:
    store(Account(id=1, owner="Ada", balance=10, note="n"), Account(id=2, owner="Bob", balance=20))


@pytest.fixture
def sessions(engines: Engines) -> Iterator[list[Session]]:
    """A watched session on each node."""
    made = [watch(sessionmaker(engine))() for engine in engines]
    yield made
    for session in made:
        session.close()


@pytest.mark.usefixtures("accounts")
def test_a_conflict_at_commit_tells_what_was_read_and_which_columns_clash(
    sessions: list[Session],
) -> None:
    theirs, ours, _ = sessions
    theirs.get_one(Account, 1).note = "theirs"
    account = ours.get_one(Account, 1)
    account.balance = 11
    theirs.flush()
    ours.flush()
    theirs.commit()
    with pytest.raises(ConcurrencyError) as caught:
        ours.commit()
    [entry] = caught.value.entries
    assert (entry.model, entry.identity, entry.action) == (Account, (1,), "update")
    assert entry.original == {"id": 1, "owner": "Ada", "balance": 10, "note": "n", "version": 1}
    assert entry.changes == {"balance": 11}
    assert entry.database is not None
    assert (entry.database["note"], entry.database["version"]) == ("theirs", 2)
    assert entry.conflicting == set()


@pytest.mark.usefixtures("accounts")
def test_a_row_that_two_flushes_have_written_is_told_as_it_was_read_first(
    sessions: list[Session],
) -> None:
    theirs, ours, _ = sessions
    theirs.get_one(Account, 1).balance = 99
    account = ours.get_one(Account, 1)
    account.balance = 11
    ours.flush()
    account.note = "ours"
    ours.flush()
    theirs.commit()
    with pytest.raises(ConcurrencyError) as caught:
        ours.commit()
    [entry] = caught.value.entries
    assert (entry.original["balance"], entry.original["note"]) == (10, "n")
    assert entry.changes == {"balance": 11, "note": "ours"}
    assert entry.conflicting == {"balance"}


@pytest.mark.usefixtures("accounts")
def test_a_row_that_the_flush_has_refused_is_not_told_once_more_at_commit(
    cluster: Cluster, sessions: list[Session]
) -> None:
    theirs, ours, _ = sessions
    first, second = ours.get_one(Account, 1), ours.get_one(Account, 2)
    theirs.get_one(Account, 1).note = "theirs"
    theirs.commit()
    cluster.agree("SELECT note FROM accounts ORDER BY id")
    first.note = "ours"
    with pytest.raises(ConcurrencyError):
        ours.flush()
    ours.refresh(first)
    second.note = "ours"
    ours.flush()
    theirs.get_one(Account, 2).note = "theirs"
    theirs.commit()
    with pytest.raises(ConcurrencyError) as caught:
        ours.commit()
    assert [entry.identity for entry in caught.value.entries] == [(2,)]


def test_a_conflict_of_compared_values_at_commit_is_told_with_its_entry(
    store: Store, sessions: list[Session]
) -> None:
    store(Compared(id=1, n=0, m=0))
    theirs, ours, _ = sessions
    theirs.get_one(Compared, 1).n = 5
    ours.get_one(Compared, 1).m = 7
    ours.flush()
    theirs.commit()
    with pytest.raises(ConcurrencyError) as caught:
        ours.commit()
    [entry] = caught.value.entries
    assert entry.original == {"id": 1, "n": 0, "m": 0}
    assert (entry.changes, entry.conflicting) == ({"m": 7}, set())
    assert entry.compared == {"n"}


@pytest.mark.usefixtures("accounts")
def test_a_verified_row_that_moved_is_told_at_commit_with_its_entry(
    sessions: list[Session],
) -> None:
    with pytest.raises(ConcurrencyError) as caught:
        commit_after_theirs(sessions, verify)
    [entry] = caught.value.entries
    assert (entry.identity, entry.action) == ((1,), "verify")


@pytest.mark.usefixtures("accounts")
def test_a_demanded_row_that_moved_is_a_failed_precondition_at_commit(
    sessions: list[Session],
) -> None:
    with pytest.raises(PreconditionFailed):
        commit_after_theirs(sessions, partial(expect, version=1))


def commit_after_theirs(sessions: list[Session], promise: Callable[[Account], object]) -> None:
    """COMMIT; the other node has changed the row after our last look at what was promised of it."""
    theirs, ours, _ = sessions
    theirs.get_one(Account, 1).note = "theirs"
    theirs.flush()
    promise(ours.get_one(Account, 1))
    ours.get_one(Account, 2).note = "ours"

    @event.listens_for(ours, "before_commit")
    def before_commit(session: Session) -> None:
        theirs.commit()

    ours.commit()


@pytest.mark.usefixtures("accounts")
def test_a_session_whose_transaction_another_node_has_ended_rolls_back_without_a_word(
    sessions: list[Session], cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    theirs, ours, _ = sessions
    ours.get_one(Account, 1).note = "ours"
    ours.flush()
    theirs.get_one(Account, 1).note = "theirs"
    theirs.commit()
    cluster.agree("SELECT note FROM accounts ORDER BY id")
    ours.rollback()
    assert ours.get_one(Account, 1).note == "theirs"
    ours.get_one(Account, 1).note = "again"
    ours.flush()
    theirs.get_one(Account, 1).note = "theirs again"
    theirs.commit()
    cluster.agree("SELECT note FROM accounts ORDER BY id")
    ours.close()
    assert caplog.records == []


@pytest.mark.usefixtures("accounts")
def test_the_error_of_a_flush_is_told_though_another_node_has_ended_the_transaction(
    sessions: list[Session], cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    theirs, ours, _ = sessions
    ours.get_one(Account, 1).note = "ours"
    ours.flush()

    @event.listens_for(ours, "after_flush")
    def after_flush(session: Session, context: Any) -> None:
        theirs.get_one(Account, 1).note = "theirs"
        theirs.commit()
        cluster.agree("SELECT note FROM accounts ORDER BY id")
        raise ZeroDivisionError

    ours.get_one(Account, 2).note = "ours"
    with pytest.raises(ZeroDivisionError):
        ours.flush()
    ours.rollback()
    assert caplog.records == []


@pytest.mark.usefixtures("accounts")
def test_a_unit_on_a_node_that_lost_the_others_runs_again_on_another_one(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Behind a proxy: whoever connects anew is sent to the next server."""
    turn = itertools.cycle([cluster.nodes[2], cluster.nodes[0]])

    def connect() -> Any:
        return pymysql.connect(
            host="127.0.0.1", port=next(turn).port, user="root", database="test", client_flag=2
        )

    engine = create_engine("mysql+pymysql://", creator=connect, pool_size=1, max_overflow=0)
    attempts: list[int] = []

    @unit_of_work(sessionmaker(engine), attempts=5)
    def deposit(session: Session, leave: bool) -> None:
        attempts.append(1)
        session.get_one(Account, 1).balance += 1
        if leave and len(attempts) == 2:
            cluster.nodes[2].leave()

    deposit(leave=False)
    try:
        deposit(leave=True)
    finally:
        cluster.nodes[2].come_back()
    assert len(attempts) == 3
    assert cluster.agree("SELECT balance FROM accounts WHERE id = 1") == [(12,)]
    assert caplog.records == []
    engine.dispose()


@pytest.mark.usefixtures("accounts")
def test_a_node_that_lost_the_others_inside_of_commit_leaves_the_outcome_unknown(
    cluster: Cluster, engines: Engines
) -> None:
    with pytest.raises(CommitOutcomeUnknown), UnitOfWork(engines[2]) as session:
        session.get_one(Account, 1).balance += 1
        session.flush()
        event.listen(session, "before_commit", lambda session: cluster.nodes[2].leave())
    cluster.nodes[2].come_back()


@pytest.mark.usefixtures("accounts")
def test_1047_of_a_statement_is_transient_and_its_connection_is_lost(
    cluster: Cluster, engines: Engines
) -> None:
    session = watch(sessionmaker(engines[2]))()
    session.connection()
    cluster.nodes[2].leave()
    try:
        with pytest.raises(OperationalError) as caught:
            session.execute(text("SELECT * FROM accounts"))
        session.close()
    finally:
        cluster.nodes[2].come_back()
    assert caught.value.orig is not None
    assert caught.value.orig.args[0] == 1047
    assert caught.value.connection_invalidated
    assert is_transient(caught.value)


@pytest.mark.usefixtures("accounts")
@pytest.mark.parametrize("leave", [Session.rollback, Session.close], ids=["rollback", "close"])
def test_a_session_of_a_node_that_lost_the_others_ends_without_a_word(
    cluster: Cluster,
    sessions: list[Session],
    caplog: pytest.LogCaptureFixture,
    leave: Callable[[Session], None],
) -> None:
    session = sessions[2]
    session.get_one(Account, 1).balance += 1
    session.flush()
    cluster.nodes[2].leave()
    try:
        leave(session)
    finally:
        cluster.nodes[2].come_back()
    assert caplog.records == []
    session.get_one(Account, 1).balance += 1
    session.commit()
    assert cluster.agree("SELECT balance FROM accounts WHERE id = 1") == [(11,)]


@pytest.mark.anyio
@pytest.mark.usefixtures("accounts")
async def test_an_async_session_is_told_of_a_conflict_at_commit_and_rolls_back_without_a_word(
    cluster: Cluster, sessions: list[Session], caplog: pytest.LogCaptureFixture
) -> None:
    theirs = sessions[0]
    engine = create_async_engine(cluster.nodes[1].url.replace("pymysql", "asyncmy"))
    async with watch(async_sessionmaker(engine))() as ours:
        (await ours.get_one(Account, 1)).balance = 11
        await ours.flush()
        theirs.get_one(Account, 1).note = "theirs"
        theirs.commit()
        with pytest.raises(ConcurrencyError) as caught:
            await ours.commit()
        [entry] = caught.value.entries
        assert (entry.original["note"], entry.conflicting) == ("n", set())
        (await ours.get_one(Account, 2)).note = "ours"
        await ours.flush()
        theirs.get_one(Account, 2).note = "theirs"
        theirs.commit()
        cluster.agree("SELECT note FROM accounts ORDER BY id")
        await ours.rollback()
    await engine.dispose()
    assert caplog.records == []
