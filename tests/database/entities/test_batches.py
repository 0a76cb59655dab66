"""Several operations as one."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError

from optilock import ConfigurationError, PreconditionFailed, entities
from optilock.entities import Operation, delete, insert, insert_or_merge, merge, replace
from optilock.errors import AlreadyExists, BadEntity, BatchFailed, NotFound
from optilock.testing import count_statements
from tests.support.models import Account, Ranked
from tests.support.tags import tag


def owners(stored: Any, *keys: int) -> list[Any]:
    rows = [stored(Account, key) for key in keys]
    return [row and row["owner"] for row in rows]


def test_all_are_written_in_their_order(store, watched, stored):
    store(Account(id=1, owner="a"), Account(id=2, owner="a"), Account(id=3, owner="a"))
    session = watched()
    done = entities.transaction(
        session,
        [
            Operation(merge, Account, 1, {"owner": "b"}, if_match=tag(Account, 1, 1)),
            Operation(replace, Account, 2, {"owner": "b"}, if_match="*"),
            Operation(delete, Account, 3, if_match=tag(Account, 3, 1)),
            Operation(insert, Account, 4, {"owner": "b"}, if_none_match="*"),
            Operation(insert_or_merge, Account, 5, {"owner": "b"}),
        ],
    )
    session.commit()
    assert [one.version for one in done] == [2, 2, None, 1, 1]
    assert owners(stored, 1, 2, 3, 4, 5) == ["b", "b", None, "b", "b"]


STALE = tag(Account, 1, 7)
FAILING: dict[str, tuple[Operation, type[Exception], int]] = {
    "stale": (
        Operation(merge, Account, 1, {"owner": "x"}, if_match=STALE),
        PreconditionFailed,
        412,
    ),
    "missing": (Operation(delete, Account, 9, if_match="*"), NotFound, 404),
    "there": (Operation(insert, Account, 1, {"owner": "x"}), AlreadyExists, 409),
    "twice": (Operation(merge, Account, 2, {"owner": "x"}, if_match="*"), BadEntity, 400),
    "body": (Operation(merge, Account, 1, {"x": 1}, if_match="*"), BadEntity, 400),
}


@pytest.mark.parametrize("name", FAILING)
def test_the_first_that_fails_is_named_and_none_is_written(store, watched, stored, name):
    store(Account(id=1, owner="a"), Account(id=2, owner="a"))
    session = watched()
    mine = session.get_one(Account, 2)
    entities.insert(session, Account, 7, {"owner": "before"})
    operation, cause, status = FAILING[name]
    with pytest.raises(BatchFailed) as caught:
        entities.transaction(
            session,
            [
                Operation(merge, Account, 2, {"owner": "b"}, if_match=tag(Account, 2, 1)),
                Operation(insert, Account, 5, {"owner": "b"}),
                operation,
                Operation(insert, Account, 5, {"owner": "later"}),
            ],
        )
    assert (caught.value.index, caught.value.status) == (2, status)
    assert isinstance(caught.value.cause, cause)
    assert caught.value.__cause__ is caught.value.cause
    assert (mine.owner, mine.version) == ("a", 1)
    mine.note = "goes on"
    session.commit()
    assert owners(stored, 1, 2, 5, 7) == ["a", "a", None, "before"]
    assert stored(Account, 2)["note"] == "goes on"


@pytest.mark.engines("sqlite-wal")
def test_nothing_to_do_sends_nothing(tables, watched, engine):
    with count_statements(engine) as sent:
        assert entities.transaction(watched(), []) == []
    assert sent.count == 0


def test_errors_of_the_database_come_out_as_they_are(store, watched, stored):
    store(Ranked(id=1, rank=1))
    session = watched()
    with pytest.raises(IntegrityError) as caught:
        entities.transaction(
            session,
            [
                Operation(merge, Ranked, 1, {"name": "b"}, if_match="*"),
                Operation(insert, Ranked, 2, {"rank": 1}),
            ],
        )
    assert "It was operation 1" in caught.value.__notes__[0]
    session.commit()
    assert stored(Ranked, 1)["name"] is None


@pytest.mark.engines("sqlite-wal")
@pytest.mark.parametrize("key", [[[1]], [{1}], {"id": {"a": 1}}])
def test_a_key_that_no_dictionary_can_hold_is_that_of_no_row(store, watched, stored, key):
    store(Account(id=1, owner="a"))
    session = watched()
    for operation, cause in (
        (Operation(merge, Account, key, {"owner": "b"}, if_match="*"), NotFound),
        (Operation(delete, Account, key, if_match="*"), NotFound),
        (Operation(insert, Account, key, {"owner": "b"}), BadEntity),
        (Operation(insert_or_merge, Account, key, {"owner": "b"}), BadEntity),
    ):
        first = Operation(merge, Account, 1, {"owner": "b"}, if_match="*")
        with pytest.raises(BatchFailed) as caught:
            entities.transaction(session, [first, operation])
        assert (caught.value.index, type(caught.value.cause)) == (1, cause)
    session.commit()
    assert owners(stored, 1) == ["a"]


@pytest.mark.engines("sqlite-wal")
def test_a_programmer_s_mistake_is_none_of_a_batch(store, watched):
    store(Account(id=1))
    with pytest.raises(ConfigurationError) as caught:
        some = [Operation(merge, Account, (1, 2), if_match="*")]
        entities.transaction(watched(), some)
    assert caught.value.__notes__ == ["It was operation 0 of the transaction."]
    with pytest.raises(ConfigurationError, match="its first argument"):
        Operation(print, Account, 1)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="has values"):
        Operation(delete, Account, 1, {"owner": "x"}, if_match="*")


@pytest.mark.engines("sqlite-wal")
def test_the_errors_can_be_pickled(store, watched):
    store(Account(id=1, owner="a"))
    session = watched()
    for name in FAILING:
        operation = FAILING[name][0]
        first = Operation(merge, Account, 2, if_match="*")
        some = [operation] if name != "twice" else [Operation(insert, Account, 2), first]
        with pytest.raises(BatchFailed) as caught:
            entities.transaction(session, some)
        session.rollback()
        copy = pickle.loads(pickle.dumps(caught.value))
        assert str(copy) == str(caught.value)
        assert (copy.index, copy.status) == (caught.value.index, caught.value.status)
        assert getattr(copy.cause, "etag", None) == getattr(caught.value.cause, "etag", None)
