"""Eight clients with one tag: one of them wins, seven are told so, and nothing is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from sqlalchemy.orm import Session

from checks.races import ALONE, CLIENTS, NEW, ONE_TAG, UPSERT, Race, crowd, one_has_won
from optilock import entities
from optilock.entities import Idempotency, Stored
from tests.support.models import Account, Note


@pytest.fixture
def rounds(tries: Callable[[int, int, int], int]) -> range:
    return range(tries(5, 15, 50))


@pytest.mark.parametrize("race", [ONE_TAG, ALONE], ids=["transaction", "autocommit"])
def test_one_tag_is_good_for_one_write(store, database, engine, rounds, race):
    store(Account(id=1, owner="a"))
    with crowd(database, race) as next_round:
        for number in rounds:
            answers = next_round()
            assert one_has_won(engine, race, number, answers), answers


def test_one_client_inserts(tables, database, engine, rounds):
    tables(Account)
    with crowd(database, NEW) as next_round:
        for number in rounds:
            answers = next_round()
            assert one_has_won(engine, NEW, number, answers), answers


def test_upserts_of_one_key_are_all_counted(tables, database, stored, rounds):
    """The last writer wins, and no version is made twice."""
    tables(Account)
    with crowd(database, UPSERT) as next_round:
        for number in rounds:
            answers = next_round()
            assert Counter(answer.status for answer in answers) == {204: CLIENTS}
            assert stored(Account, number)["version"] == CLIENTS
            assert len({answer.etag for answer in answers}) == CLIENTS


@pytest.mark.parametrize("header", ["none", "each its own", "one"])
def test_equal_requests_are_told_apart_by_their_senders_alone(
    tables, database, engine, stored, rounds, header
):
    """Eight clients want the same, with one tag. Only a client that sends one request eight times
    is told so each time; it is stored once all the same."""
    tables(Note)
    with Session(engine) as session, session.begin():
        tags = [entities.insert(session, Note, number, {"text": "a"}).etag for number in rounds]
    told: list[Stored] = []

    def write(session: Session, me: str, number: int) -> Stored:
        key = {"none": None, "each its own": me, "one": "0"}[header]
        again = Idempotency(key, keys=["a secret of the server"], principal="ada")
        done = entities.merge(
            session, Note, number, {"text": "b"}, if_match=tags[number], idempotency=again
        )
        told.append(done)
        return done

    expected = {204: CLIENTS} if header == "one" else {204: 1, 412: CLIENTS - 1}
    with crowd(database, Race("equal requests", write, lambda number: (number, 2))) as next_round:
        for number in rounds:
            told.clear()
            assert Counter(answer.status for answer in next_round()) == expected
            assert {one.version for one in told} == {stored(Note, number)["version"]}
            if header != "one":
                assert not told[0].again
