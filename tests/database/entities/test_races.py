"""Eight clients with one tag: one of them wins, seven are told so, and nothing is lost."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.models import Account
from tests.races import ALONE, CLIENTS, NEW, ONE_TAG, UPSERT, crowd, one_has_won


@pytest.fixture
def rounds(pytestconfig: pytest.Config) -> range:
    return range(50 if pytestconfig.option.full else 5)


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
