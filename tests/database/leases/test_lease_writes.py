"""While a row is leased, nobody but the holder writes it, in whatever form it is sent.

The ways to write are those of ``tests/database/conditions/test_demands.py``, over classes whose
rows can be leased.
"""

from __future__ import annotations

import datetime
import uuid
from typing import Any

import pytest
from sqlalchemy import Engine, delete, select, text, update
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import (
    Session,
    sessionmaker,
)

from optilock import ConfigurationError, client_wins, entities, watch
from optilock.leases import ENDLESS, Leasable, LeaseHeld, LeaseLost, acquire, use
from optilock.leases.columns import columns_in
from optilock.leases.values import FAR
from optilock.testing import count_statements
from tests.support.ways_classes import ways
from tests.support.ways_to_write import Lose, forms, over, several

WAYS = ways("leased", Leasable)
Task, Bug, DemandedList, DemandedLine, Plain, Bare = WAYS
TABLES = WAYS.tables
LEASED = [table for table in TABLES if columns_in(table) is not None]
resolvers = pytest.mark.parametrize(
    "resolver", [client_wins, pytest.param(None, marks=pytest.mark.full)]
)
OURS, THEIRS = uuid.UUID(int=1), uuid.UUID(int=2)
NOW = datetime.datetime.now(datetime.UTC)
MOVED = text("UPDATE leased_tasks SET title = 'theirs', version = version + 1 WHERE id = 1")

CASES = over(Task=Task, Bug=Bug, DemandedList=DemandedList, Plain=Plain, Bare=Bare)
cases = pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
some_cases = pytest.mark.parametrize("case", forms(CASES), ids=lambda case: case.__name__)


def leased(holder: uuid.UUID | None, until: datetime.datetime | None = FAR) -> list[Any]:
    """SQL: every row has this holder."""
    lease = {
        "lease_id": holder,
        "lease_since": NOW,
        "lease_until": until,
        "lease_length": None if holder is None else 0,
    }
    return [
        update(table).values({**lease, **{c: c for c in table.c if c.key == "version"}})
        for table in LEASED
    ]


ENDED = NOW - datetime.timedelta(days=1)
#: What becomes of the lease of a holder who goes on writing.
LOST = {
    "ended": leased(OURS, ENDED),
    "taken over": leased(THEIRS),
    "released": leased(None, None),
    "taken over and ended": leased(THEIRS, ENDED),
}
losses = pytest.mark.parametrize(
    "loss", [one if one == "ended" else pytest.param(one, marks=pytest.mark.full) for one in LOST]
)


def under_all(session: Session, lease: uuid.UUID = OURS) -> None:
    for of in WAYS.keys:
        use(session, of, lease)


@pytest.fixture
def filled(engine: Engine, store: Any) -> Engine:
    store(*WAYS.rows())
    return engine


def stored(engine: Engine) -> Any:
    with engine.connect() as connection:
        return [
            connection.execute(
                select(*(c for c in table.c if not c.key.startswith("lease_"))).order_by(
                    *table.primary_key
                )
            ).all()
            for table in TABLES
        ]


def holders(engine: Engine) -> set[Any]:
    with engine.connect() as connection:
        return {
            one for table in LEASED for one in connection.scalars(select(table.c.lease_id)).all()
        }


def assert_untouched(engine: Engine) -> None:
    assert "mine" not in str(stored(engine))
    assert ", 7" not in str(stored(engine))
    assert [len(rows) for rows in stored(engine)] == [4, 1, 1, 2, 3, 3]


def by(engine: Engine, *statements: Any) -> Lose:
    """Somebody else sends these, and commits."""

    def send() -> None:
        with engine.begin() as connection:
            for statement in statements:
                connection.execute(statement)

    return send


@some_cases
@resolvers
@pytest.mark.needs("resolves-in-place")
def test_nobody_but_the_holder_writes(filled: Engine, case: Any, resolver: Any) -> None:
    with watch(sessionmaker(filled), on_conflict=resolver)() as session:
        with pytest.raises(LeaseHeld) as raised:
            case(session, by(filled, *leased(THEIRS)), by(filled, MOVED))
            session.flush()
        assert raised.value.since is not None
        assert THEIRS.hex not in repr(raised.value) + str(raised.value)
        session.expunge_all()  # the refused edits are pending again
        session.commit()
    assert_untouched(filled)
    assert holders(filled) == {THEIRS}


@losses
@some_cases
@pytest.mark.needs("resolves-in-place")
def test_whoever_lost_the_lease_writes_no_more(filled: Engine, case: Any, loss: str) -> None:
    by(filled, *leased(OURS))()
    with watch(sessionmaker(filled), on_conflict=client_wins)() as session:
        under_all(session)
        with pytest.raises(LeaseLost) as raised:
            case(session, by(filled, *LOST[loss]), by(filled, MOVED))
            session.flush()
        assert (raised.value.since is None) is (loss != "taken over")
        session.expunge_all()
        session.commit()
    assert_untouched(filled)


@pytest.mark.full
@cases
@pytest.mark.needs("resolves-in-place")
def test_the_holder_writes_as_ever(filled: Engine, case: Any) -> None:
    by(filled, *leased(OURS))()
    before = stored(filled)
    with watch(sessionmaker(filled), on_conflict=client_wins)() as session:
        under_all(session)
        case(session, lambda: None, by(filled, MOVED))
        session.commit()
    assert stored(filled) != before
    assert holders(filled) == {OURS}


@pytest.mark.full
@cases
@pytest.mark.needs("resolves-in-place")
def test_what_nobody_holds_is_written_as_ever(filled: Engine, case: Any) -> None:
    by(filled, *leased(THEIRS, ENDED))()
    before = stored(filled)
    with watch(sessionmaker(filled), on_conflict=client_wins)() as session:
        case(session, lambda: None, by(filled, MOVED))
        session.commit()
    assert stored(filled) != before


#: Not asked with values to set: SQLAlchemy writes these by keys alone, or looks first.
BY_KEY = {
    "only_an_ignored_column_of_a_child",
    "one_row_of_compared_values",
    "a_batch_of_compared_values",
    "rows_without_a_version",
    "an_update_by_key",
    "mappings_by_key",
    "mappings_by_key_without_a_version",
    "saved_objects",
    "an_update_of_the_table_of_a_child",
}


@pytest.mark.parametrize(
    "case",
    forms([c for c in CASES if c.__name__ not in BY_KEY and "delete" not in c.__name__]),
    ids=lambda case: case.__name__,
)
@pytest.mark.needs("resolves-in-place")
def test_a_write_takes_the_ended_lease_away(filled: Engine, case: Any) -> None:
    """So that its holder cannot renew it."""
    by(filled, *leased(THEIRS, ENDED))()
    with watch(sessionmaker(filled), on_conflict=client_wins)() as session:
        case(session, lambda: None, by(filled, MOVED))
        session.commit()
    assert holders(filled) == {THEIRS, None}


@pytest.mark.full
@pytest.mark.anyio
@cases
async def test_nobody_writes_by_an_async_session(
    async_engine: Any, async_store: Any, case: Any
) -> None:
    sync: Engine = async_engine.sync_engine
    async_store(*WAYS.rows())
    async with watch(async_sessionmaker(async_engine), on_conflict=client_wins)() as session:
        with pytest.raises(LeaseHeld):
            await session.run_sync(case, by(sync, *leased(THEIRS)), by(sync, MOVED))
            await session.flush()
        await session.rollback()


# -- one row of several, and what it costs ---------------------------------------------------------


@pytest.mark.needs("resolves-in-place")
@pytest.mark.parametrize("many", [1, 3])
@pytest.mark.parametrize("held", [True, False])
def test_a_row_costs_no_statement_and_its_lease_is_a_parameter(
    filled: Engine, many: int, held: bool
) -> None:
    if held:
        by(filled, *leased(OURS))()
    with watch(sessionmaker(filled))() as session:
        if held:
            under_all(session)
        for task in several(session, Task)[:many]:
            task.title = "mine"
        with count_statements(filled) as sent:
            session.flush()
        session.commit()
    looks = 1 if many > 1 and filled.dialect.name in ("mysql", "mariadb") else 0
    assert sent.count == 1 + looks  # MariaDB locks and looks at many rows anyway
    assert OURS.hex not in sent.statements[0].text
    assert str(stored(filled)).count("mine") == many


@pytest.mark.needs("resolves-in-place")
def test_each_row_of_a_batch_has_its_own_lease(filled: Engine) -> None:
    with Session(filled) as session, session.begin():
        one, two = (acquire(session, (Task, n), 30) for n in (1, 2))
        assert one.id != two.id
    for wrong in (True, False):
        with watch(sessionmaker(filled))() as session:
            use(session, one)
            use(session, two.of, one.id if wrong else two.id)
            for task in several(session, Task)[:3]:
                task.title = "mine"
            if wrong:
                with pytest.raises(
                    LeaseLost, match=r"Task 2 is not in force\. There is another holder"
                ):
                    session.commit()
                session.rollback()
            else:
                session.commit()
    assert str(stored(filled)).count("mine") == 3


@pytest.mark.needs("resolves-in-place")
@pytest.mark.anyio
async def test_each_row_of_a_batch_has_its_own_lease_in_an_async_session(
    async_engine: Any, async_store: Any
) -> None:
    async_store(*WAYS.rows())
    async with async_engine.begin() as connection:
        for number, holder in ((1, OURS), (2, THEIRS)):
            held = {"lease_id": holder, "lease_until": FAR, "lease_length": 0, "version": 1}
            await connection.execute(update(Task.__table__).values(held).where(Task.id == number))
    async with watch(async_sessionmaker(async_engine))() as session:
        use(session.sync_session, (Task, 1), OURS)
        use(session.sync_session, (Task, 2), THEIRS)
        for task in (await session.scalars(select(Task))).all():
            task.title = "mine"
        await session.commit()
    async with async_engine.connect() as connection:
        query = select(Task.__table__.c.title, Task.__table__.c.lease_id).order_by(Task.id).limit(3)
        found = (await connection.execute(query)).all()
    assert found == [("mine", OURS), ("mine", THEIRS), ("mine", None)]


@pytest.mark.parametrize("of", [Task, Task.__table__], ids=["class", "table"])
def test_a_statement_names_the_lease_of_each_row(filled: Engine, of: Any) -> None:
    with Session(filled) as session, session.begin():
        one, two = (acquire(session, (Task, n), ENDLESS) for n in (1, 2))
    statement = update(of).where(Task.id < 4).values(title="mine")
    with watch(sessionmaker(filled))() as session:
        use(session, one)
        with pytest.raises(LeaseHeld, match="Task 2"):
            session.execute(statement)
        use(session, two)
        session.execute(statement)
        session.execute(delete(of).where(Task.id == 2))
        session.commit()
    assert str(stored(filled)).count("mine") == 2


@pytest.mark.needs("resolves-in-place")
def test_entity_operations_are_asked_in_watched_and_in_plain_sessions(filled: Engine) -> None:
    by(filled, *leased(OURS))()
    for make in (sessionmaker(filled), watch(sessionmaker(filled))):
        with make() as session:
            for write in (
                lambda s: entities.merge(s, DemandedList, 1, {}, if_match="*"),
                lambda s: entities.delete(s, DemandedList, 1, if_match="*"),
            ):
                with pytest.raises(LeaseHeld), session.begin_nested():
                    write(session)
            with pytest.raises(ConfigurationError, match="upsert of DemandedList is refused"):
                entities.insert_or_merge(session, DemandedList, 1, {})
    with watch(sessionmaker(filled))() as session:
        use(session, (DemandedList, 1), OURS)
        entities.merge(session, DemandedList, 1, {}, if_match="*")
        session.commit()
    assert stored(filled)[2][0][1] == 1  # without values nothing is written


@pytest.mark.needs("resolves-in-place")
def test_what_writes_rows_that_nobody_can_look_at_is_refused(filled: Engine) -> None:
    with watch(sessionmaker(filled))() as session:
        with pytest.raises(ConfigurationError, match="'leased_bare'"):
            session.execute(text("UPDATE leased_bare SET title = 'mine'"))
        session.execute(text("UPDATE leased_lines SET list_id = 1"))
