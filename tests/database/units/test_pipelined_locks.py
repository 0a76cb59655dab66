"""Pipelined units that lock rows as they read them: COMMIT goes with the last writes, too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.orm import Session, sessionmaker

from optilock import ConcurrencyError, UnitOfWork, expect, retrying, unit_of_work, verify
from optilock.errors import CommitOutcomeUnknown
from optilock.testing import Wire, count_statements
from tests.support.cut_line import Cut as Cut
from tests.support.cut_line import cut as cut
from tests.support.models import Account

pytestmark = pytest.mark.engines("postgresql")


@pytest.fixture
def far(line: Wire, store) -> Iterator[Engine]:
    store(*(Account(id=key, owner="Ada", balance=10 * key) for key in range(1, 11)))
    engine = create_engine(line.url, connect_args={"prepare_threshold": None})
    engine.connect().close()
    yield engine
    engine.dispose()


def pessimistic(engine: Engine, **options) -> UnitOfWork:
    return UnitOfWork(engine, strategy="pessimistic", pipelined=True, **options)


def write(session: Session, *keys: int) -> None:
    for row in [session.get_one(Account, key) for key in keys]:
        row.balance += 1


def trips_of(line: Wire, unit: UnitOfWork, work) -> int:
    with line.counting() as trips, unit as session:
        work(session)
    return trips.count


#: Keeps the number of the transaction that writes a row; in a savepoint, rows get another one.
NUMBERED = """
CREATE FUNCTION number() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN NEW.note = pg_current_xact_id()::text; RETURN NEW; END $$;
CREATE TRIGGER number BEFORE UPDATE ON accounts FOR EACH ROW EXECUTE FUNCTION number();
"""
#: The first update of the row does nothing, as if the row were gone.
SUPPRESSED = """
CREATE SEQUENCE updates;
CREATE FUNCTION suppress() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN IF nextval('updates') = 1 THEN RETURN NULL; END IF; RETURN NEW; END $$;
CREATE TRIGGER suppress BEFORE UPDATE ON accounts FOR EACH ROW WHEN (NEW.id = 1)
EXECUTE FUNCTION suppress();
"""


@pytest.fixture
def numbered(engine) -> None:
    with engine.begin() as connection:
        connection.execute(text(NUMBERED))


@pytest.fixture
def suppressed(engine) -> Iterator[None]:
    with engine.begin() as connection:
        connection.execute(text(SUPPRESSED))
    yield
    with engine.begin() as connection:
        connection.execute(text("DROP SEQUENCE updates"))


def in_savepoint(engine: Engine, key: int) -> bool:
    query = text("SELECT note <> xmin::text FROM accounts WHERE id = :key")
    with engine.connect() as connection:
        return connection.scalar(query, {"key": key})


# -- trips -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "trips"), [((1,), 2), ((1, 2), 3), ((2, 1), 3), ((1, 2, 3), 4), ((3, 1, 2, 4), 5)]
)
def test_rows_that_are_locked_are_written_with_commit(
    line, far, engine, stored, numbered, keys, trips
):
    """A trip for each reading, and one for all writes; locks alone need no savepoint."""
    assert trips_of(line, pessimistic(far), lambda session: write(session, *keys)) == trips
    for key in keys:
        assert stored(Account, key)["balance"] == 10 * key + 1
        assert not in_savepoint(engine, key)


def test_a_row_that_is_not_locked_is_written_in_a_savepoint(line, far, engine, numbered):
    """If it misses, the locks of the others are kept."""

    def work(session):
        session.get_one(Account, 2)
        write(session, 1)

    conflict_on(far, 2)
    assert trips_of(line, UnitOfWork(far, strategy="adaptive", pipelined=True), work) == 3
    assert in_savepoint(engine, 1)


def test_a_row_that_is_waited_for_briefly_takes_no_trip_more(line, far, stored):
    """A row has a statement, and several rows have one together, which limits their waits."""

    def work(*keys):
        @unit_of_work(far, pipelined=True)
        def writes(session):
            write(session, *keys)

        with count_statements(far) as sent, line.counting() as trips:
            writes()
        return trips.count, sum("20ms" in one.text for one in sent.statements)

    assert work(1) == (2, 0)
    assert work(1, 2, 3) == (4, 1)
    assert work(1, 2, 3, 4) == (5, 1)
    conflict_on(far, 5)
    assert work(5, 6) == (3, 1)
    assert stored(Account, 6)["balance"] == 61


def conflict_on(engine: Engine, key: int) -> None:
    """Make the row hot, and no other."""
    tries = []

    @unit_of_work(engine, strategy="adaptive", retry=retrying(wait_initial=0))
    def conflict(session: Session) -> None:
        row = session.get_one(Account, key)
        if not tries:
            with Session(engine) as other, other.begin():
                other.get_one(Account, key).balance += 1
        tries.append(row)
        row.balance += 1

    conflict()


@pytest.mark.parametrize("promise", [verify, lambda row: expect(row, row.version)])
def test_a_promise_of_a_locked_row_lets_commit_go_with_the_writes(line, far, stored, promise):
    def work(session):
        promise(session.get_one(Account, 2))
        write(session, 1)

    assert trips_of(line, pessimistic(far), work) == 3
    assert trips_of(line, UnitOfWork(far, pipelined=True), work) == 3
    assert stored(Account, 1)["balance"] == 12


@pytest.mark.parametrize(("verified", "written", "brief"), [(1, 2, 1), (2, 1, 2)])
def test_a_row_that_is_verified_in_the_last_trip_is_waited_for_as_without_it(
    far, stored, verified, written, brief
):
    """The lock that is taken first waits as any does, and a later one briefly."""

    def work(session):
        verify(session.get_one(Account, verified))
        write(session, written)

    for number, pipelined in enumerate((False, True), 1):
        with count_statements(far) as sent:
            unit_of_work(far, pipelined=pipelined)(work)()
        order = ["FOR SHARE" in one.text for one in sent.statements[2:]]
        assert order == [verified < written, verified > written]
        assert sum("20ms" in one.text for one in sent.statements) == brief
        assert stored(Account, written)["balance"] == 10 * written + number


def test_a_promise_alone_costs_no_trip(line, far):
    assert (
        trips_of(line, pessimistic(far), lambda session: verify(session.get_one(Account, 2))) == 2
    )


def test_a_promise_that_a_listener_makes_late_is_kept(line, far, stored):
    def late(session, context, objects):
        verify(session.get_one(Account, 3))

    with line.counting() as trips, UnitOfWork(far, pipelined=True) as session:
        write(session, 1)
        event.listen(session, "before_flush", late)
    assert trips.count == 3
    assert stored(Account, 1)["balance"] == 11


# -- a locked row that misses all the same ---------------------------------------------------------


@pytest.mark.parametrize("keys", [(1,), (1, 2), (2, 1)])
def test_a_locked_row_that_misses_all_the_same_is_written_again(far, stored, suppressed, keys):
    """A trigger has kept it from being written; nothing of the unit was stored without it."""
    with pessimistic(far) as session:
        write(session, *keys)
    for key in keys:
        assert stored(Account, key)["balance"] == 10 * key + 1
        assert stored(Account, key)["version"] == 2


@pytest.mark.parametrize("keys", [(1,), (1, 2)])
def test_promises_are_looked_at_where_the_locks_were_lost(far, engine, stored, suppressed, keys):
    """The transaction has begun anew, and somebody else may write the row that was promised."""
    updates: list[str] = []

    def before_cursor_execute(connection, cursor, statement, *_) -> None:
        if "UPDATE accounts SET" in statement:
            updates.append(statement)
            if len(updates) == 2:
                with engine.begin() as other:
                    other.execute(text("SET LOCAL lock_timeout = '2s'"))
                    other.execute(text("UPDATE accounts SET version = 7 WHERE id = 3"))

    event.listen(far, "before_cursor_execute", before_cursor_execute)
    with pytest.raises(ConcurrencyError) as caught, pessimistic(far) as session:
        verify(session.get_one(Account, 3))
        write(session, *keys)
    assert len(updates) > 1
    assert [entry.identity for entry in caught.value.entries] == [(3,)]
    assert [stored(Account, key)["balance"] for key in (1, 2)] == [10, 20]


# -- a lost connection -----------------------------------------------------------------------------


def test_a_connection_lost_at_the_writes_of_locked_rows_leaves_the_outcome_open(
    database, store, cut
):
    store(Account(id=1, owner="Ada", balance=10))
    engine = create_engine(cut.url)
    engine.connect().close()
    with pytest.raises(CommitOutcomeUnknown), pessimistic(sessionmaker(engine)) as session:
        write(session, 1)
        cut.at = b"COMMIT"
    engine.dispose()
