"""Handles that expire, heartbeats, and names that go with their last handle.

By the database's clock, which the tests move.
"""

from __future__ import annotations

import datetime
import pickle
import uuid

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, sessionmaker

from optilock import ConfigurationError, is_transient, shares
from optilock.errors import BadPrecondition
from optilock.shares import (
    AccessDenied,
    DeletePending,
    Handle,
    HandleLost,
    NameNotFound,
    ReadOnlyName,
    Shares,
    SharingViolation,
)
from optilock.tables.names import SHARES
from optilock.testing import count_statements
from tests.support.clock import CLOCK, make_clock, shift
from tests.support.migrating import migrate

#: Handles that end by a clock that can be moved.
MOVED = Shares(clock=CLOCK)


@pytest.fixture
def begin(engine):
    """Transactions of many clients."""
    SHARES.tables.create_all(engine)
    return sessionmaker(engine).begin


@pytest.fixture
def moved(begin, engine):
    """The same, and a clock for :data:`MOVED`."""
    with engine.begin() as connection:
        make_clock(connection)
    return begin


def test_a_handle_without_heartbeats_is_closed_by_itself(moved, engine):
    within = MOVED
    with moved() as session:
        handle = shares.open(session, "name", "RW", seconds=600, within=within)
        left = handle.until - session.scalar(select(Shares().clock))
        assert round(left / datetime.timedelta(minutes=10)) == 1
    with moved() as session, pytest.raises(SharingViolation):
        shares.open(session, "name", "R", "RWD", within=within)
    shift(engine, 600)
    with moved() as session:
        assert shares.look(session, "name", within=within).open == ()
        with pytest.raises(HandleLost):
            shares.heartbeat(session, handle)
        with pytest.raises(HandleLost):
            shares.check(session, "name", "W", handle=handle, within=within)
    with moved() as session:
        shares.open(session, "name", "R", "RWD", within=within)


def test_heartbeats_keep_it_open_and_are_one_write_each(moved, engine):
    with moved() as session:
        handle = shares.open(session, "name", "RW", seconds=600, within=MOVED)
    for _ in range(3):
        shift(engine, 400)
        with moved() as session, count_statements(engine) as sent:
            later = shares.heartbeat(session, handle)
        assert sent.count == 2  # and one that reads the new end
        assert later.until > handle.until
        handle = later
    with moved() as session, pytest.raises(SharingViolation) as caught:
        shares.open(session, "name", "R", "RWD", within=MOVED)
    assert caught.value.others[0].until == handle.until


@pytest.mark.engines("postgresql")
def test_a_heartbeat_does_not_wait_for_who_only_looks(begin):
    """A check of somebody else holds the name until its COMMIT.

    On MariaDB a shared lock stops every UPDATE of the row, and SQLite has one writer.
    """
    with begin() as session:
        handle = shares.open(session, "name", "R", "RWD")
    with begin() as reader, begin() as session:
        shares.check(reader, "name", "R")
        shares.heartbeat(session, handle)


def test_who_checks_keeps_others_from_opening_it_until_its_commit(begin, database):
    with begin() as session:
        shares.create(session, "name")
    with begin() as writer:
        shares.check(writer, "name", "W")
        with begin() as session:
            waits = {
                "sqlite": "PRAGMA busy_timeout = 50",
                "postgresql": "SET LOCAL lock_timeout = 50",
                "mariadb": "SET innodb_lock_wait_timeout = 0",
            }
            session.execute(text(waits[database.family]))
            with pytest.raises(DBAPIError) as caught:
                shares.open(session, "name", "R", "R")
            assert is_transient(caught.value)
            session.rollback()


def test_a_name_that_is_to_be_deleted_goes_when_its_last_owner_dies(moved, engine):
    within = MOVED
    with moved() as session:
        one = shares.open(session, "name", "RD", "RWD", seconds=600, within=within)
        two = shares.open(session, "name", "R", "RWD", seconds=3600, within=within)
        state = shares.delete_pending(session, one)
        assert (state.there, state.delete_pending, len(state.open)) == (True, True, 2)
    with moved() as session, pytest.raises(DeletePending):
        shares.open(session, "name", "R", "RWD", within=within)
    shift(engine, 600)
    with moved() as session:
        assert shares.look(session, "name", within=within).delete_pending
        assert shares.names(session, within=within) == []
        assert not shares.close(session, two).there
    with moved() as session, pytest.raises(NameNotFound):
        shares.open(session, "name", "R", "RWD", create=False, within=within)
    with moved() as session:
        shares.open(session, "name", "R", "RWD", within=within)
        assert shares.names(session, within=within) == ["name"]


def test_a_client_sends_back_name_and_id(begin):
    with begin() as session:
        given = shares.open(session, "name", "RW", "R", seconds=20)
        again = shares.heartbeat(session, Handle("name", str(given.id)))
        assert (again.access, again.share, again.seconds) == ("RW", "R", 20)
        assert again.id == given.id
        for name, mine in (("name", uuid.uuid4()), ("name", "6" * 32), ("other", given.id)):
            with pytest.raises(HandleLost):
                shares.heartbeat(session, Handle(name, mine))
            shares.close(session, Handle(name, mine))
        assert len(shares.look(session, "name").open) == 1
        shares.close(session, Handle("name", given.id))
        assert shares.look(session, "name").open == ()


@pytest.mark.engines("sqlite-wal")
@pytest.mark.parametrize("sent", ["", "x", None, 7, "1" * 33, b"x"])
def test_what_is_no_id_is_the_clients_mistake(sent):
    with pytest.raises(BadPrecondition) as caught:
        Handle("name", sent)
    assert caught.value.status == 400


def test_delete_on_close_counts_for_an_owner_who_dies(moved, engine):
    within = MOVED
    options = {"seconds": 600, "delete_on_close": True, "within": within}
    with moved() as session:
        shares.open(session, "name", "D", "RWD", **options)
        assert shares.names(session, "na", within=within) == ["name"]
        assert shares.names(session, "x", within=within) == []
    shift(engine, 600)
    with moved() as session:
        assert shares.names(session, within=within) == []
        assert not shares.look(session, "name", within=within).there


def test_a_rolled_back_open_has_not_been(begin):
    with pytest.raises(KeyError), begin() as session:
        shares.open(session, "name", "RW")
        raise KeyError
    with begin() as session:
        assert not shares.look(session, "name").there
        handle = shares.open(session, "name", "RW")
        assert shares.close(session, handle) == shares.close(session, handle)


def test_names_are_told_apart_byte_by_byte(begin):
    with begin() as session:
        for name in ("a", "A", "a ", "ä", "%", "_", "/" * 200):
            shares.open(session, name, "RW")
        assert shares.names(session, "%") == ["%"]
        assert shares.names(session, "A") == ["A"]


def test_tables_may_have_other_names(engine):
    within = Shares(names_table="wiki_names", handles_table="wiki_handles")
    within.names.create(engine)
    within.handles.create(engine)
    with Session(engine) as session, session.begin():
        handle = shares.open(session, "name", "R", within=within)
        shares.heartbeat(session, handle)
        assert shares.names(session, within=within) == ["name"]


def test_a_migration_makes_the_tables(engine):
    migrate(engine, lambda op: op.create_optilock_tables("shares"))
    with Session(engine) as session, session.begin():
        shares.close(session, shares.open(session, "name", "R"))
    migrate(engine, lambda op: op.drop_optilock_tables("shares"))


# -- what is refused -----------------------------------------------------------------------------


@pytest.mark.engines("sqlite-wal")
@pytest.mark.parametrize(
    ("do", "words"),
    [
        (lambda s: shares.open(s, "", "R"), "1 to 200"),
        (lambda s: shares.open(s, "x" * 201, "R"), "1 to 200"),
        (lambda s: shares.open(s, 7, "R"), "1 to 200"),
        (lambda s: shares.open(s, "a\0", "R"), "NUL"),
        (lambda s: shares.open(s, "\ud800", "R"), "surrogates"),
        (lambda s: shares.open(s, "a", "R", owner="\ud800"), "owner="),
        (lambda s: shares.open(s, "a", "X"), "access='X'"),
        (lambda s: shares.open(s, "a", "R", "all"), "share='all'"),
        (lambda s: shares.open(s, "a", "R", seconds=0), "up to 3600 seconds"),
        (lambda s: shares.open(s, "a", "R", seconds=3601), "up to 3600 seconds"),
        (lambda s: shares.open(s, "a", "R", seconds=float("nan")), "up to 3600 seconds"),
        (lambda s: shares.open(s, "a", "R", seconds="1"), "up to 3600 seconds"),
        (lambda s: shares.open(s, "a", "R", owner="x" * 201), "owner="),
        (lambda s: shares.open(s, "a", "R", owner=7), "owner="),
        (lambda s: shares.open(None, "a", "R"), "as its session"),
        (lambda s: Shares(seconds=0), "seconds"),
        (lambda s: Shares(seconds=60, longest=30), "longest"),
    ],
)
def test_bad_input_is_refused_before_anything_is_sent(begin, engine, do, words):
    refused = pytest.raises(ConfigurationError, match=words)
    with Session(engine) as session, count_statements(engine) as sent, refused:
        do(session)
    assert sent.count == 0


@pytest.mark.engines("sqlite-wal")
def test_a_connection_that_commits_each_statement_is_refused(begin, engine):
    auto = engine.execution_options(isolation_level="AUTOCOMMIT")
    with Session(auto) as session, pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
        shares.open(session, "name", "R")


def test_access_that_was_not_asked_for_is_denied(begin):
    with begin() as session:
        handle = shares.open(session, "name", "R", "RWD")
        with pytest.raises(AccessDenied):
            shares.check(session, "name", "W", handle=handle)
        with pytest.raises(AccessDenied):
            shares.open(session, "other", "R", delete_on_close=True)
        assert shares.check(session, "name", "R", handle=handle).open[0].access == "R"
        shares.close(session, handle)
        shares.set_read_only(session, "name")
        with pytest.raises(ReadOnlyName):
            shares.open(session, "name", "RW")
        shares.set_read_only(session, "name", False)
        shares.open(session, "name", "RW")


@pytest.mark.engines("sqlite-wal")
def test_errors_can_be_pickled_and_tell_no_id(begin):
    with begin() as session:
        handle = shares.open(session, "name", "RW", owner="Ada")
        with pytest.raises(SharingViolation) as caught:
            shares.open(session, "name", "R", "RWD")
    one = caught.value
    again = pickle.loads(pickle.dumps(one))
    assert (again.name, again.access, again.others) == ("name", "R", one.others)
    assert one.others[0].owner == "Ada"
    for told in (str(one), repr(one), repr(one.others), repr(handle)):
        assert handle.id.hex not in told.replace("-", "")
    for error in (
        DeletePending("n"),
        HandleLost("n"),
        AccessDenied("n"),
        ReadOnlyName("n", 403),
        NameNotFound("n"),
    ):
        again = pickle.loads(pickle.dumps(error))
        assert (again.name, again.status, str(again)) == ("n", error.status, str(error))
