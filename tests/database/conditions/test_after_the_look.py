"""Rows are locked and looked at, and before they are written the time of a lease, or of a handle,
is over.

Nobody can have become the holder meanwhile, or have opened the row. So it is written, or all of the
write is refused with what is said to such a holder: no row is left out without a word, and no
trigger is blamed. The clock is a table of one row, which is moved in front of the first write.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, event, select, text, update
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    mapped_column,
    sessionmaker,
)

from optilock import client_wins, leases, shares, watch
from optilock.leases import Leasable, LeaseLost, LeasePolicy
from optilock.shares import HandleLost, Shared, Shares, SharingViolation
from optilock.tables.names import SHARES
from optilock.tokens.timestamp import UtcDateTime
from tests.support.models import Base as Others
from tests.support.models import key
from tests.support.ways_classes import ways
from tests.support.ways_to_write import over

BEGIN = datetime.datetime(2026, 1, 31, tzinfo=datetime.UTC)


class Now(DeclarativeBase):
    metadata = Others.metadata


class Time(Now):
    __tablename__ = "look_clock"
    id: Mapped[int] = key()
    now: Mapped[Any] = mapped_column(UtcDateTime())


#: How its writes of many rows begin.
OF_MARIADB = ("UPDATE (SELECT ", "DELETE look_")
CLOCK = select(Time.__table__.c.now).scalar_subquery()
WITHIN = Shares(clock=CLOCK)


class Leased(Leasable):
    __lease_policy__ = LeasePolicy(clock=CLOCK)


class Opened(Shared):
    __shares__ = WITHIN


KINDS = {"lease": ways("look_leased", Leased), "handle": ways("look_shared", Opened)}
IN_THE_DEFAULT_RUN = {
    "a_batch_of_deletes",
    "a_bulk_update",
    "an_update_statement",
    "a_delete_of_a_table",
    "updates_on_the_connection",
    "a_row_that_has_moved",
}
CASES = [
    pytest.param(
        dict(zip(KINDS, both, strict=True)),
        id=both[0].__name__,
        marks=[] if both[0].__name__ in IN_THE_DEFAULT_RUN else [pytest.mark.full],
    )
    for both in zip(*(over(**of._asdict()) for of in KINDS.values()), strict=True)
]


def filled(engine: Engine, kind: str) -> list[Any]:
    """The keys of what can be leased, or opened."""
    of = KINDS[kind]
    Others.metadata.create_all(engine, tables=[Time.__table__, *of.tables])
    SHARES.tables.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add(Time(id=1, now=BEGIN))
        session.add_all(of.rows())
    return [*of.keys]


def stored(engine: Engine, kind: str) -> Any:
    with engine.connect() as connection:
        return [
            connection.execute(
                select(*(c for c in table.c if not c.key.startswith("lease_"))).order_by(
                    *table.primary_key
                )
            ).all()
            for table in KINDS[kind].tables
        ]


@contextmanager
def before_the_first_write(engine: Engine, do: Any) -> Iterator[list[str]]:
    """Call it with the cursor that writes, once."""
    done: list[str] = []

    def look(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        writes = statement.startswith(("UPDATE look_", "DELETE FROM look_", "WITH", *OF_MARIADB))
        nothing = statement.rstrip().endswith(("1 = 0", "WHERE 0 = 1", "false"))
        if writes and not nothing and "look_clock" not in statement[:30] and not done:
            done.append(statement)
            do(cursor)

    event.listen(engine, "before_cursor_execute", look)
    yield done
    event.remove(engine, "before_cursor_execute", look)


def the_time_is_over(engine: Engine) -> Any:
    moved = update(Time.__table__).values(now=BEGIN + datetime.timedelta(days=1))
    said = str(moved.compile(engine, compile_kwargs={"literal_binds": True}))
    return lambda cursor: cursor.execute(said)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.needs("resolves-in-place")
def test_it_is_written_or_refused_as_a_whole(engine: Engine, case: Any, kind: str) -> None:
    sessions = watch(sessionmaker(engine), on_conflict=client_wins)
    with Session(engine) as session, session.begin():
        keys = filled(engine, kind)
        if kind == "lease":
            held: list[Any] = [leases.acquire(session, one, 30) for one in keys]
        else:
            held = [shares.open(session, one, "RWD", within=WITHIN) for one in keys]
    moved = text(f"update {KINDS[kind].Task.__table__.name} SET version = version + 1 WHERE id = 1")

    def move() -> None:
        with engine.begin() as connection:
            connection.execute(moved)
        before.append(stored(engine, kind))

    before, error = [stored(engine, kind)], None
    with before_the_first_write(engine, the_time_is_over(engine)) as done, sessions() as session:
        for one in held:
            (leases.use if kind == "lease" else shares.use)(session, one)
        try:
            case[kind](session, lambda: None, move)
            session.commit()
        except (LeaseLost, HandleLost) as lost:
            error = lost
            session.rollback()
    assert done
    assert (error is None) is (stored(engine, kind) != before[-1])


@pytest.mark.parametrize("many", [1, 3])
@pytest.mark.parametrize("deletes", [True, False])
@pytest.mark.engines("postgresql")
def test_a_name_that_is_opened_as_a_text_between_the_two_is_a_violation(
    engine: Engine, many: int, deletes: bool
) -> None:
    """For the first time, by a program that does not know the class: elsewhere that waits."""
    filled(engine, "handle")
    task, other = KINDS["handle"].Task, engine.execution_options()

    def opens(cursor: Any) -> None:
        with Session(other) as session, session.begin():
            shares.open(session, "look_shared_tasks/1", "RW")

    with watch(sessionmaker(engine))() as session, before_the_first_write(engine, opens) as done:
        for one in session.scalars(select(task).order_by(task.id)).all()[:many]:
            if deletes:
                session.delete(one)
            else:
                one.title = "mine"
        with pytest.raises(SharingViolation):
            session.commit()
    assert done
    assert len(stored(engine, "handle")[0]) == 4
