"""Entity operations beside what else a transaction does."""

from __future__ import annotations

import pytest

from optilock import (
    ConcurrencyError,
    ConfigurationError,
    Isolation,
    OptilockError,
    PreconditionFailed,
    UnitOfWork,
    entities,
    etag_of,
    expect,
    is_transient,
    unit_of_work,
    verify,
)
from optilock.entities import Version
from optilock.errors import BadPrecondition, BatchFailed, NotFound
from optilock.preconditions.rfc9110 import required
from tests.support.models import Account
from tests.support.tags import tag


def test_what_a_request_demands_is_passed_on(store, watched, stored):
    store(Account(id=1, owner="a"))
    session = watched()
    lines = [("If-Match", f'"x", {tag(Account, 1, 1)}'), ("If-Match", f"W/{tag(Account, 1, 2)}")]
    asked = required("PUT", lines)
    done = entities.replace(session, Account, 1, {"owner": "b"}, if_match=asked.versions)
    assert done.version == 2
    both = required("PUT", [*lines, ("If-None-Match", f'W/{tag(Account, 1, 2)}, "x"')])
    for if_match in (both.versions, [*both.unless, tag(Account, 1, 1)]):
        with pytest.raises(PreconditionFailed):
            entities.merge(session, Account, 1, if_match=if_match, if_none_match=both.unless)
    only_weak = required("PUT", lines[1:])
    with pytest.raises(PreconditionFailed):
        entities.delete(session, Account, 1, if_match=only_weak.versions)
    with pytest.raises(NotFound):
        entities.delete(session, Account, 2, if_match=only_weak.versions)


class Parsed:
    """What werkzeug makes of If-Match, as far as it is asked."""

    def __init__(self, *tags: str) -> None:
        self.tags, self.star_tag = tags, tags == ("*",)

    def to_header(self) -> str:
        return ", ".join(self.tags)


@pytest.mark.engines("sqlite-wal")
def test_what_werkzeug_has_parsed_is_taken(store, watched):
    store(Account(id=1, owner="a"))
    session = watched()
    entities.merge(session, Account, 1, if_match=Parsed('"x"', tag(Account, 1, 1)))
    entities.merge(session, Account, 1, if_match=Parsed("*"))
    with pytest.raises(PreconditionFailed):
        entities.merge(session, Account, 1, if_match=Parsed('"x"', f"W/{tag(Account, 1, 3)}"))
    with pytest.raises(BadPrecondition) as caught:
        entities.merge(session, Account, 1, if_match=Parsed())
    assert caught.value.status == 428


@pytest.mark.engines("sqlite-wal")
def test_none_of_these_errors_is_run_again(watched, tables):
    tables(Account)
    session = watched()
    for call in (
        lambda: entities.merge(session, Account, 1, if_match="*"),
        lambda: entities.merge(session, Account, 1),
        lambda: entities.merge(session, Account, 1, {"x": 1}, if_match="*"),
        lambda: [entities.insert(session, Account, 2) for _ in range(2)],
        lambda: entities.merge(session, Account, 2, if_match='"x"'),
    ):
        with pytest.raises(OptilockError) as caught:
            call()
        assert not is_transient(caught.value)
        assert not is_transient(BatchFailed(0, caught.value))


def test_a_promise_is_kept_by_an_operation_in_the_promised_version(store, engine, stored):
    store(Account(id=1, owner="a"), Account(id=2, owner="a"))
    with UnitOfWork(engine) as session:
        first, second = session.get_one(Account, 1), session.get_one(Account, 2)
        expect(first, etag_of(first))
        verify(second)
        entities.merge(session, Account, 1, {"owner": "b"}, if_match=etag_of(first))
        entities.delete(session, Account, 2, if_match=etag_of(second))
    assert (stored(Account, 1)["owner"], stored(Account, 2)) == ("b", None)


@pytest.mark.needs("resolves-in-place")
def test_a_promise_is_not_kept_by_one_that_missed(store, engine, other):
    store(Account(id=1, owner="a"))
    with pytest.raises(ConcurrencyError), UnitOfWork(engine) as session:
        account = session.get_one(Account, 1)
        verify(account)
        other(Account, 1, owner="theirs")
        with pytest.raises(PreconditionFailed):
            entities.merge(session, Account, 1, {"owner": "b"}, if_match=etag_of(account))


@pytest.mark.engines("sqlite-wal", "postgresql")
def test_a_snapshot_that_is_too_old_is_transient(store, engine, other, stored):
    """The database refuses the write; the second attempt tells that the tag is stale."""
    store(Account(id=1, owner="a"))
    attempts = []

    @unit_of_work(engine, isolation=Isolation.REPEATABLE_READ)
    def write(session):
        attempts.append(session.get_one(Account, 1).version)
        if len(attempts) == 1:
            other(Account, 1, owner="theirs")
        entities.merge(session, Account, 1, {"owner": "b"}, if_match=tag(Account, 1, 1))

    with pytest.raises(PreconditionFailed) as caught:
        write()
    assert attempts == [1, 2]
    assert caught.value.etag == tag(Account, 1, 2)
    assert stored(Account, 1)["owner"] == "theirs"


def test_a_savepoint_takes_an_operation_back(store, watched, stored):
    store(Account(id=1, owner="a"))
    session = watched()
    account = session.get_one(Account, 1)
    account.note = "outside"
    session.flush()
    with session.begin_nested() as savepoint:
        entities.merge(session, Account, 1, {"owner": "b"}, if_match=Version(2))
        savepoint.rollback()
    assert (account.owner, account.version) == ("a", 2)
    account.owner = "mine"
    session.commit()
    assert stored(Account, 1)["version"] == 3


@pytest.mark.parametrize("how", ["star", "upsert"])
def test_what_was_read_after_an_overwrite_that_is_rolled_back_is_read_again(
    store, watched, other, how
):
    """Somebody else's next version has the number of the one that was rolled back."""
    store(Account(id=1, owner="a"))
    session = watched()
    if how == "star":
        entities.merge(session, Account, 1, {"owner": "b"}, if_match="*")
    else:
        entities.insert_or_merge(session, Account, 1, {"owner": "b"})
    account = session.get_one(Account, 1)
    assert account.version == 2
    session.rollback()
    other(Account, 1, owner="theirs")
    account.note = "mine"
    with pytest.raises(ConfigurationError, match="Read it first"):
        session.commit()
