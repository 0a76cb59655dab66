"""Eight clients with one tag: one of them wins, seven are told so, and nothing is lost."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from optilock import OptilockError, entities, is_transient
from optilock.entities import Idempotency, Stored
from tests.engines import Target
from tests.models import Account, Note
from tests.tags import tag

CLIENTS = 8


@pytest.fixture
def crowd(database: Target) -> Any:
    engine = database.engine(pool_size=CLIENTS)
    yield engine
    engine.dispose()


Write = Callable[[Session, str, int], Stored]


def race(engine: Engine, write: Write, number: int) -> tuple[Counter[int], str]:
    """Each client writes at once, in a transaction of its own; the statuses, and who has won."""
    begin = threading.Barrier(CLIENTS)
    statuses: list[int] = []
    winners: list[str] = []

    def client(me: str) -> None:
        begin.wait()
        while True:
            try:
                with Session(engine) as session, session.begin():
                    write(session, me, number)
            except OptilockError as error:
                statuses.append(error.status)  # type: ignore[attr-defined]
            except Exception as error:
                if is_transient(error):  # "database is locked", a deadlock: it was not performed
                    continue
                statuses.append(500)
            else:
                statuses.append(204)
                winners.append(me)
            return

    threads = [threading.Thread(target=client, args=(str(n),)) for n in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Counter(statuses), winners[0] if winners else ""


@pytest.fixture
def rounds(pytestconfig: pytest.Config) -> range:
    return range(50 if pytestconfig.option.full else 5)


def test_one_tag_is_good_for_one_write(store, crowd, stored, rounds):
    store(Account(id=1, owner="a"))

    def write(session: Session, me: str, number: int) -> Stored:
        seen = tag(Account, 1, number + 1)
        return entities.merge(session, Account, 1, {"owner": me}, if_match=seen)

    for number in rounds:
        statuses, winner = race(crowd, write, number)
        assert statuses == {204: 1, 412: CLIENTS - 1}
        row = stored(Account, 1)
        assert (row["owner"], row["version"]) == (winner, number + 2)


def test_one_client_inserts(tables, crowd, stored, rounds):
    tables(Account)

    def write(session: Session, me: str, number: int) -> Stored:
        return entities.insert(session, Account, number, {"owner": me}, if_none_match="*")

    for number in rounds:
        statuses, winner = race(crowd, write, number)
        assert statuses == {204: 1, 412: CLIENTS - 1}
        row = stored(Account, number)
        assert (row["owner"], row["version"]) == (winner, 1)


def test_upserts_of_one_key_are_all_counted(tables, crowd, stored, rounds):
    """The last writer wins, and no version is made twice."""
    tables(Account)
    tags: list[str | None] = []

    def write(session: Session, me: str, number: int) -> Stored:
        done = entities.insert_or_merge(session, Account, number, {"owner": me})
        tags.append(done.etag)
        return done

    for number in rounds:
        tags.clear()
        statuses, _ = race(crowd, write, number)
        assert statuses == {204: CLIENTS}
        assert stored(Account, number)["version"] == CLIENTS
        assert len({*tags}) == CLIENTS


@pytest.mark.parametrize("header", ["none", "each its own", "one"])
def test_equal_requests_are_told_apart_by_their_senders_alone(
    tables, crowd, stored, rounds, header
):
    """Eight clients want the same, with one tag. Only a client that sends one request eight times
    is told so each time; it is stored once all the same."""
    tables(Note)
    told: list[Stored] = []

    def write(session: Session, me: str, number: int) -> Stored:
        key = {"none": None, "each its own": me, "one": "0"}[header]
        again = Idempotency(key, keys=["a secret of the server"], principal="ada")
        done = entities.merge(
            session, Note, number, {"text": "b"}, if_match=tags[number], idempotency=again
        )
        told.append(done)
        return done

    with Session(crowd) as session, session.begin():
        tags = [entities.insert(session, Note, number, {"text": "a"}).etag for number in rounds]
    for number in rounds:
        told.clear()
        statuses, _ = race(crowd, write, number)
        assert statuses == ({204: CLIENTS} if header == "one" else {204: 1, 412: CLIENTS - 1})
        assert {one.version for one in told} == {stored(Note, number)["version"]}
        if header != "one":
            assert not told[0].again
