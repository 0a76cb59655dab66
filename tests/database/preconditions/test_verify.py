"""Rows that were only read, and must be unchanged at COMMIT."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine, delete, event, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from optilock import (
    AsyncUnitOfWork,
    ConcurrencyError,
    ConfigurationError,
    Isolation,
    PreconditionFailed,
    UnitOfWork,
    client_wins,
    etag_of,
    expect,
    retrying,
    unit_of_work,
    verify,
    watch,
)
from optilock.resolvers import OnDelete
from optilock.testing import count_statements
from tests.support.models import Account, Animal, Dog, Note, Tag
from tests.support.two_writers import Do
from tests.support.work import lines_of

pytestmark = pytest.mark.modes(full=True)


@pytest.fixture
def account(store: Do) -> type[Account]:
    store(*(Account(id=n, owner="Ada") for n in (1, 2, 3)))
    return Account


@pytest.fixture
def sessions(engine: Engine) -> sessionmaker[Session]:
    return sessionmaker(engine)


def failed(act: Any) -> ConcurrencyError:
    with pytest.raises(ConcurrencyError) as caught:
        act()
    assert not isinstance(caught.value, PreconditionFailed)
    return caught.value


def selects(sent: Any) -> list[str]:
    return [one.text for one in sent.statements if one.text.startswith("SELECT")]


# -- verify(obj) -----------------------------------------------------------------------------------


def test_a_row_that_the_transaction_before_has_written_is_promised_as_any_other(
    account: type[Account], watched: Do, other: Do
) -> None:
    """Nothing need be read between the two where a commit expires nothing."""
    session = watched(expire_on_commit=False)
    mine = session.get_one(account, 1)
    mine.owner = "Bea"
    session.commit()
    verify(mine)
    other(account, 1, owner="theirs")
    assert failed(session.commit).entries[0].action == "verify"


@pytest.mark.needs("resolves-in-place")
def test_a_row_whose_write_was_refused_after_a_rollback_is_promised_as_any_other(
    account: type[Account], watched: Do, other: Do, refused: Do
) -> None:
    """The refused row is not taken for one that the transaction has written."""
    session = watched()
    mine = session.get_one(account, 1)
    mine.owner = "undone"
    session.flush()
    session.rollback()
    other(account, 1, owner="theirs")
    mine.note = "mine"
    refused(session)
    verify(mine)
    session.refresh(mine)
    assert failed(session.commit).entries[0].action == "verify"


def test_a_verified_row_that_moved_stops_the_commit(
    account: Any, watched: Do, other: Do, stored: Do
) -> None:
    session = watched(client_wins)
    verify(session.get(Account, 1))
    session.get(Account, 2).owner = "Eve"
    other(Account, 1, note="theirs")
    error = failed(session.commit)
    (entry,) = error.entries
    assert (entry.identity, entry.action, entry.kind) == ((1,), "verify", "updated")
    assert entry.original["version"] == 1
    assert entry.database is not None
    assert (entry.database["version"], entry.database["note"]) == (2, "theirs")
    assert entry.changes == {}
    session.rollback()
    assert stored(Account, 2)["owner"] == "Ada"


def test_a_verified_row_that_is_gone_stops_the_commit(account: Any, watched: Do, gone: Do) -> None:
    session = watched()
    verify(session.get(Account, 1))
    gone(Account, 1)
    (entry,) = failed(session.commit).entries
    assert (entry.kind, entry.database) == ("deleted", None)


def test_an_unchanged_row_lets_the_commit_pass(account: Any, watched: Do, stored: Do) -> None:
    session = watched()
    verify(session.get(Account, 1))
    session.get(Account, 2).owner = "Eve"
    session.commit()
    assert stored(Account, 2)["owner"] == "Eve"


def test_the_transaction_block_of_a_session_verifies_too(
    account: Any, watched: Do, other: Do
) -> None:
    def work() -> None:
        with watched() as session, session.begin():
            verify(session.get(Account, 1))
            other(Account, 1, note="theirs")

    failed(work)


@pytest.mark.parametrize("promised", [1, 2])
def test_the_look_and_the_last_writes_are_in_the_order_of_the_keys(
    account: Any, watched: Do, engine: Engine, promised: int
) -> None:
    session = watched()
    verify(session.get(Account, promised))
    session.get(Account, 3 - promised).owner = "Eve"
    with count_statements(engine) as sent:
        session.commit()
    kinds = [one.text.split()[0] for one in sent.statements]
    looks_first = promised == 1 and engine.dialect.name != "sqlite"
    assert (kinds.index("SELECT") < kinds.index("UPDATE")) is looks_first


def test_verifying_a_class_without_a_version_is_refused(store: Do, watched: Do) -> None:
    """HB-27"""
    store(Tag(id=1))
    with pytest.raises(ConfigurationError, match="no version"):
        verify(watched().get(Tag, 1))


def test_expect_and_verify_together_are_a_demand(account: Any, watched: Do, other: Do) -> None:
    session = watched()
    mine = session.get(Account, 1)
    verify(mine)
    expect(mine, 1)
    other(Account, 1, note="theirs")
    with pytest.raises(PreconditionFailed):
        session.commit()


# -- verify_reads=True -----------------------------------------------------------------------------


def test_every_row_that_a_unit_reads_is_verified(
    account: Any, sessions: Any, other: Do, stored: Do
) -> None:
    def work() -> None:
        with UnitOfWork(sessions, verify_reads=True, on_conflict=client_wins) as session:
            assert len(session.scalars(select(Account)).all()) == 3
            session.get_one(Account, 2).owner = "Eve"
            other(Account, 1, note="theirs")
            other(Account, 3, note="theirs")

    assert {entry.identity for entry in failed(work).entries} == {(1,), (3,)}
    assert stored(Account, 2)["owner"] == "Ada"


def test_an_object_that_was_dropped_and_read_again_has_moved(
    account: Any, sessions: Any, other: Do, engine: Engine, collect: Do
) -> None:
    """The session holds objects weakly, so it reads the newer version without a word."""

    def work() -> None:
        with UnitOfWork(sessions, verify_reads=True) as session:
            assert session.get_one(Account, 1).note is None
            collect()
            other(Account, 1, note="theirs")
            session.get_one(Account, 1)

    (entry,) = failed(work).entries
    assert entry.original["version"] == 1


@pytest.mark.needs("resolves-in-place")  # elsewhere nobody sees the newer version
def test_an_object_that_was_read_again_is_not_written_in_the_newer_version(
    account: Any, sessions: Any, other: Do, stored: Do, collect: Do
) -> None:
    def work() -> None:
        with UnitOfWork(sessions, verify_reads=True, on_conflict=client_wins) as session:
            assert session.get_one(Account, 1).note is None
            collect()
            other(Account, 1, note="theirs")
            again = session.get_one(Account, 1, with_for_update=True)
            assert again.version == 2
            again.owner = "Eve"

    (entry,) = failed(work).entries
    assert (entry.action, entry.original) == ("update", {"version": 1})
    assert stored(Account, 1)["owner"] == "Ada"


def test_a_row_that_was_refreshed_counts_from_the_first_sight(
    account: Any, sessions: Any, other: Do
) -> None:
    def work() -> None:
        with UnitOfWork(sessions, verify_reads=True) as session:
            mine = session.get_one(Account, 1)
            other(Account, 1, note="theirs")
            session.refresh(mine)

    failed(work)


def test_rows_that_we_write_or_delete_are_not_read_again(
    account: Any, sessions: Any, engine: Engine
) -> None:
    with count_statements(engine) as sent, UnitOfWork(sessions, verify_reads=True) as session:
        first, second = session.get_one(Account, 1), session.get_one(Account, 2)
        first.owner = "Eve"
        session.delete(second)
        before = sent.count
    assert not selects_after(sent, before)


def selects_after(sent: Any, before: int) -> list[str]:
    return [one.text for one in sent.statements[before:] if one.text.startswith("SELECT")]


def test_the_look_is_one_select_a_table(
    account: Any, store: Do, sessions: Any, engine: Engine
) -> None:
    store(Note(id=1), Dog(id=1, name="Rex"), Animal(id=2, name="Tom"))
    with count_statements(engine) as sent, UnitOfWork(sessions, verify_reads=True) as session:
        held = [session.scalars(select(cls)).all() for cls in (Account, Note, Animal)]
        assert [len(rows) for rows in held] == [3, 1, 2]
        before = sent.count
    looks = selects_after(sent, before)
    assert len(looks) == 3
    assert all("ORDER BY" in text for text in looks)
    if engine.dialect.name == "postgresql":
        assert all("FOR SHARE" in text for text in looks)


def test_a_unit_that_reads_nothing_or_does_not_ask_sends_nothing(
    account: Any, sessions: Any, engine: Engine
) -> None:
    with count_statements(engine) as sent, UnitOfWork(sessions, verify_reads=True) as session:
        session.add(Account(id=9))
    assert [one.text.split()[0] for one in sent.statements] == ["INSERT"]
    with count_statements(engine) as sent, UnitOfWork(sessions) as session:
        session.get_one(Account, 1)
    assert sent.count == 1


def test_classes_without_a_version_are_left_out(store: Do, sessions: Any, engine: Engine) -> None:
    store(Tag(id=1))
    with count_statements(engine) as sent, UnitOfWork(sessions, verify_reads=True) as session:
        session.get_one(Tag, 1)
    assert sent.count == 1


def test_the_rows_stay_as_they_are_until_commit(
    account: Any, sessions: Any, other: Do, engine: Engine
) -> None:
    """trap 26: between the look and COMMIT nobody comes in."""
    tried: list[bool] = []

    def work() -> None:
        with UnitOfWork(sessions, verify_reads=True) as session:
            session.get_one(Account, 1)
            event.listen(session, "before_commit", lambda _: tried.append(_writes(engine)))

    work()
    assert tried == [False]


def _writes(engine: Engine) -> bool:
    """Could somebody else write the row now?"""
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            connection.exec_driver_sql("PRAGMA busy_timeout = 0")
        elif engine.dialect.name == "postgresql":
            connection.exec_driver_sql("SET LOCAL lock_timeout = '50ms'")
        else:
            connection.exec_driver_sql("SET SESSION innodb_lock_wait_timeout = 0")
        try:
            connection.exec_driver_sql("UPDATE accounts SET note = 'x' WHERE id = 1")
        except DBAPIError:
            return False
        finally:
            connection.rollback()
            connection.invalidate()
        return True


def test_the_unit_runs_again_with_what_is_stored_now(
    account: Any, sessions: Any, other: Do, stored: Do
) -> None:
    others = iter(["theirs"])

    @unit_of_work(sessions, retry=retrying(attempts=3, wait_initial=0), verify_reads=True)
    def copy_note(session: Session) -> None:
        note = session.get_one(Account, 1).note
        for theirs in others:
            other(Account, 1, note=theirs)
        session.get_one(Account, 2).note = note

    copy_note()
    assert stored(Account, 2)["note"] == "theirs"


def test_two_doctors_do_not_both_go_off_call(
    account: Any, sessions: Any, stored: Do, other: Do
) -> None:
    """trap 25: each reads both rows and writes its own."""

    def work() -> None:
        with UnitOfWork(sessions, verify_reads=True) as session:
            ada, bob = session.get_one(Account, 1), session.get_one(Account, 2)
            assert ada.note is None
            assert bob.note is None
            ada.note = "off"
            other(Account, 2, note="off")

    failed(work)
    assert (stored(Account, 1)["note"], stored(Account, 2)["note"]) == (None, "off")


def test_a_read_only_unit_cannot_verify(sessions: Any) -> None:
    with pytest.raises(ConfigurationError, match="read_only"):
        UnitOfWork(sessions, verify_reads=True, read_only=True)


def test_an_inner_unit_cannot_ask_for_what_the_outer_one_does_not_give(sessions: Any) -> None:
    inner = UnitOfWork(sessions, verify_reads=True)
    with UnitOfWork(sessions), pytest.raises(ConfigurationError, match="verify_reads"), inner:
        pass


def test_verifying_at_serializable_is_allowed(account: Any, sessions: Any) -> None:
    with UnitOfWork(sessions, verify_reads=True, isolation=Isolation.SERIALIZABLE) as session:
        session.get_one(Account, 1)


OWN = {
    "update": lambda: update(Account).values(note="ours"),
    "not-synchronized": lambda: (
        update(Account).values(note="ours").execution_options(synchronize_session=False)
    ),
    "delete": lambda: delete(Account).where(Account.id == 1),
}


@pytest.mark.parametrize("statement", OWN)
@pytest.mark.parametrize("promise", [verify, lambda row: expect(row, 1)], ids=["verify", "expect"])
def test_what_our_own_statement_has_moved_is_ours(
    account: Any, watched: Do, stored: Do, statement: str, promise: Any
) -> None:
    session = watched()
    promise(session.get_one(Account, 1))
    session.execute(OWN[statement]())
    session.commit()
    found = stored(Account, 1)
    assert found is None if statement == "delete" else found["note"] == "ours"


def test_so_it_is_with_rows_whose_objects_are_gone_from_the_session(
    account: Any, sessions: Any, stored: Do, collect: Do
) -> None:
    with UnitOfWork(sessions, verify_reads=True) as session:
        assert len(session.scalars(select(Account)).all()) == 3
        collect()
        session.execute(update(Account).where(Account.id < 3).values(note="ours"))
    assert stored(Account, 2)["note"] == "ours"


def test_a_statement_that_finds_a_row_in_another_version_does_not_make_it_ours(
    account: Any, watched: Do, other: Do, engine: Engine
) -> None:
    if engine.dialect.name in ("mysql", "mariadb"):
        pytest.skip("the database itself may end the transaction at the statement")
    session = watched()
    verify(session.get_one(Account, 1))
    other(Account, 1, note="theirs")
    session.execute(update(Account).values(owner="ours"))
    failed(session.commit)


def test_a_statement_that_a_savepoint_takes_back_makes_nothing_ours(
    account: Any, watched: Do, other: Do, engine: Engine
) -> None:
    if engine.dialect.name in ("mysql", "mariadb", "sqlite"):
        pytest.skip("the row stays locked")
    session = watched()
    verify(session.get_one(Account, 1))
    savepoint = session.begin_nested()
    session.execute(update(Account).values(note="ours"))
    savepoint.rollback()
    other(Account, 1, note="theirs")
    failed(session.commit)


@pytest.mark.anyio
async def test_async_units_verify_and_expect_without_waiting(
    async_engine: AsyncEngine, async_store: Any
) -> None:
    async_store(Account(id=1, owner="Ada"), Account(id=2, owner="Bob"))
    for ours in (PreconditionFailed, ConcurrencyError):
        with pytest.raises(ours) as caught:
            async with AsyncUnitOfWork(async_engine) as session:
                mine = await session.get_one(Account, 1)
                if ours is PreconditionFailed:
                    expect(mine, etag_of(mine))
                else:
                    verify(mine)
                async with AsyncUnitOfWork(async_engine, propagation="independent") as other:
                    (await other.get_one(Account, 1)).owner = f"by {ours.__name__}"
        assert type(caught.value) is ours
    sessions = watch(async_sessionmaker(async_engine))
    async with sessions() as session:
        mine = await session.get_one(Account, 1)
        await session.commit()
        with pytest.raises(ConfigurationError, match=r"await session\.refresh"):
            expect(mine, 1)
        async with AsyncUnitOfWork(async_engine) as other:
            (await other.get_one(Account, 1)).owner = "Eve"
        mine.owner = "Bea"  # set without being read
        with pytest.raises(ConcurrencyError):
            await session.commit()


# -- rows that are written as well -----------------------------------------------------------------


@pytest.mark.needs("resolves-in-place")
@pytest.mark.parametrize("doomed", [False, True], ids=["updated", "deleted"])
def test_a_verified_row_that_is_written_is_not_resolved(
    account: Any, watched: Do, other: Do, stored: Do, doomed: bool
) -> None:
    """The decision to write it was made on the row that is no more."""
    session = watched(client_wins, on_delete=OnDelete.IGNORE_VERSION)
    mine = session.get(Account, 1)
    verify(mine)
    other(Account, 1, note="theirs")
    if doomed:
        session.delete(mine)
    else:
        mine.owner = "Eve"
    (entry,) = failed(session.commit).entries
    assert entry.action == ("delete" if doomed else "update")
    session.rollback()
    assert stored(Account, 1)["owner"] == "Ada"


def test_what_was_written_before_a_rollback_is_promised_as_any_other(
    account: Any, watched: Do, other: Do
) -> None:
    """Nothing is read between the two where a copy that was read elsewhere is added."""
    session = watched()
    copy = session.get_one(Account, 1)
    session.expunge(copy)
    session.get_one(Account, 1).owner = "Bea"
    session.flush()
    session.rollback()
    session.expunge_all()
    session.add(copy)
    verify(copy)
    other(Account, 1, owner="theirs")
    failed(session.commit)


# -- the cost --------------------------------------------------------------------------------------

PROMISES = {
    "verify": lambda session, row: verify(row),
    "expect": lambda session, row: expect(row, 1),
    "flush": lambda session, row: (verify(row), setattr(row, "note", "ours"), session.flush()),
}


@pytest.mark.parametrize("promise", PROMISES)
def test_a_promise_costs_the_same_after_many_writes_and_after_few(
    engine: Engine, tables: Do, promise: str
) -> None:
    tables(Account)
    promised(PROMISES[promise], 25, engine)  # what is made once is made before it counts
    once, twice, thrice = (promised(PROMISES[promise], n, engine) for n in (25, 50, 75))
    for_a_pair = (thrice - 2 * twice + once) / (2 * 25 * 25)
    assert for_a_pair < 0.25, (once, twice, thrice)


def promised(promise: Any, count: int, engine: Engine) -> int:
    """Lines of ``count`` promises after a flush of as many other rows."""
    with Session(engine) as other, other.begin():
        other.execute(delete(Account))
        other.add_all(Account(id=n) for n in range(2 * count))
    with watch(sessionmaker(engine, autoflush=False))() as session:
        rows = session.scalars(select(Account).order_by(Account.id)).all()
        for row in rows[:count]:
            row.owner = "ours"
        session.flush()
        return lines_of(lambda: [promise(session, row) for row in rows[count:]])
