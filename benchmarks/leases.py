"""What do leases cost a write, and what does a lease itself cost?

The same rows are changed in a watched session: of a class whose rows have no leases, of one whose
rows can be leased and are not, and of one whose rows are leased by whoever writes them. One row
from its load to COMMIT, many rows in one flush. Then a write under the lease of a name; and a lease
is acquired and released, beside two UPDATEs by hand, and beside PostgreSQL's advisory locks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any

from sqlalchemy import Engine, select, text, update
from sqlalchemy.orm import Mapped, Session, mapped_column, sessionmaker

from benchmarks.measure import Subject, Timing, Timings, interleave
from benchmarks.models import Base, Item, OptilockItem, create
from benchmarks.plan import MEDIUM, SHORT, Plan
from benchmarks.servers import Place
from benchmarks.subjects import amounts_written
from benchmarks.table import Line, compare
from optilock import Versioned, leases, watch
from optilock.leases.names import Name, Names
from optilock.leases.values import FAR, new_id

__all__ = ["DATABASES", "run"]

DATABASES = ("socket", "sqlite", "mariadb")

_WITHOUT = "no leases"
_ONE = 1.05
_MANY = {"sqlite": 1.20}
_NAME = 1.20
_numbers = itertools.count(1)


class LeasableItem(leases.Leasable, Versioned, Item, Base):
    __tablename__ = "leasable_item"


class LeasedItem(leases.Leasable, Versioned, Item, Base):
    """The writer holds the lease of each row."""

    __tablename__ = "leased_item"


class HandLease(Base):
    __tablename__ = "hand_lease"
    id: Mapped[int] = mapped_column(primary_key=True)
    holder: Mapped[str | None]


def run(place: Place, plan: Plan) -> Iterator[Line]:
    """The lines of this question for one database."""
    with place.engine() as engine:
        for model in (OptilockItem, LeasableItem, LeasedItem):
            create(engine, model, plan.many)
        lease = new_id()
        with engine.begin() as connection:
            table: Any = LeasedItem.__table__
            held = {"lease_id": lease, "lease_until": FAR, "lease_length": 0}
            connection.execute(update(table).values({**held, table.c.version: 1}))
        names = Names()
        names.columns.table.drop(engine, checkfirst=True)
        names.columns.table.create(engine)
        yield from _writes(place, plan, engine, lease, 1)
        yield from _writes(place, plan, engine, lease, plan.many)
        yield from _names(place, plan, engine, names)
        yield from _acquiring(place, plan, engine)


def _writes(place: Place, plan: Plan, engine: Engine, lease: Any, rows: int) -> Iterator[Line]:
    sessions = watch(sessionmaker(engine))
    subjects: dict[str, Subject] = {
        _WITHOUT: _write(sessions, OptilockItem, rows),
        "unleased": _write(sessions, LeasableItem, rows),
        "under leases": _write(sessions, LeasedItem, rows, lease),
    }
    timings = interleave(
        subjects,
        rounds=plan.rounds_for(SHORT if rows == 1 else MEDIUM),
        repeats=plan.repeats_for(place, rows),
    )
    goal = plan.goal(rows, _ONE if rows == 1 else _MANY.get(place.name, 1.10))
    span = "load to COMMIT" if rows == 1 else "change to COMMIT"
    goals: dict[str, float | None] = {span: goal, "flush": None}
    for name in ("unleased", "under leases"):
        yield from _compare(f"write, {name}", place, rows, timings, name, _WITHOUT, goals)


def _compare(
    question: str,
    place: Place,
    rows: int,
    timings: Timings,
    ours: str,
    against: str,
    goals: dict[str, float | None],
) -> Iterator[Line]:
    """One of the subjects in the place of optilock."""
    two = {against: timings[against], "optilock": timings[ours]}
    yield from compare(question, place.label, rows, two, against=against, goals=goals)


def _write(
    sessions: sessionmaker[Session], model: type[Any], rows: int, lease: Any = None
) -> Subject:
    def load(session: Session) -> Sequence[Any]:
        query = select(model).where(model.id <= rows)
        return session.scalars(query).all() if rows > 1 else [session.get_one(model, 1)]

    def write() -> Timing:
        with sessions() as session:
            if lease is not None:
                for key in range(1, rows + 1):
                    leases.use(session, (model, key), lease)
            return amounts_written(session, load, next(_numbers))

    return write


def _names(place: Place, plan: Plan, engine: Engine, names: Names) -> Iterator[Line]:
    sessions = watch(sessionmaker(engine))
    with sessions.begin() as session:
        lease = leases.acquire(session, Name("benchmark", names), leases.ENDLESS)

    def under() -> Timing:
        started = perf_counter()
        with sessions() as session:
            leases.use(session, lease)
            session.get_one(OptilockItem, 1).amount = next(_numbers)
            session.commit()
        return Timing(flush=perf_counter() - started)

    def alone() -> Timing:
        started = perf_counter()
        with sessions() as session:
            session.get_one(OptilockItem, 1).amount = next(_numbers)
            session.commit()
        return Timing(flush=perf_counter() - started)

    timings = interleave(
        {_WITHOUT: alone, "under a name": under},
        rounds=plan.rounds_for(SHORT),
        repeats=plan.repeats_for(place, 1),
    )
    goals: dict[str, float | None] = {"load to COMMIT": plan.goal(1, _NAME)}
    name = "under a name"
    yield from _compare(
        "write, under the lease of a name", place, 1, timings, name, _WITHOUT, goals
    )


def _acquiring(place: Place, plan: Plan, engine: Engine) -> Iterator[Line]:
    autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
    create(engine, HandLease, 1)
    sessions = sessionmaker(autocommit)

    def ours() -> None:
        with sessions() as session:
            lease = leases.acquire(session, (LeasableItem, 1), 30)
            leases.release(session, lease)

    subjects: dict[str, Callable[[], None]] = {"by hand": _by_hand(autocommit), "optilock": ours}
    if place.name == "socket":
        subjects["advisory lock"] = _advisory(autocommit)
    timings = interleave(
        {name: _timed(work) for name, work in subjects.items()},
        rounds=plan.rounds_for(SHORT),
        repeats=plan.repeats_for(place, 1),
    )
    for name in [one for one in subjects if one != "optilock"]:
        question = "acquire and release, AUTOCOMMIT"
        goals: dict[str, float | None] = {"load to COMMIT": None}
        yield from _compare(question, place, 1, timings, "optilock", name, goals)


def _timed(work: Callable[[], None]) -> Subject:
    def timed() -> Timing:
        started = perf_counter()
        work()
        return Timing(flush=perf_counter() - started)

    return timed


def _by_hand(engine: Engine) -> Callable[[], None]:
    returning = " RETURNING id" if engine.dialect.update_returning else ""
    taken = text(f"UPDATE hand_lease SET holder = :me WHERE id = 1 AND holder IS NULL{returning}")
    given = text(f"UPDATE hand_lease SET holder = NULL WHERE id = 1 AND holder = :me{returning}")

    def work() -> None:
        me = {"me": new_id().hex}
        with engine.connect() as connection:
            connection.execute(taken, me)
            connection.execute(given, me)

    return work


def _advisory(engine: Engine) -> Callable[[], None]:
    def work() -> None:
        with engine.connect() as connection:
            connection.execute(text("SELECT pg_try_advisory_lock(:key)"), {"key": 7})
            connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": 7})

    return work
