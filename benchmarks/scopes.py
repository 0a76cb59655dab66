"""What does it cost to move and to verify versions of scopes?

Bookings are inserted: one, 100 in one scope, 100 in 100 scopes, against the same rows of a class
without scopes. Then 8 writers insert into one room at once. ``unchecked`` is the class without
scopes, ``moved`` moves one scope, and the others look whether an hour is free before they book it:
``verify``, ``lock`` first, ``touch`` of the room's row, and SERIALIZABLE with retry.
"""

from __future__ import annotations

import itertools
import statistics
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from time import perf_counter
from typing import Any

from sqlalchemy import Engine, Index, create_engine, event, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from benchmarks.measure import Ratio, interleave, order
from benchmarks.plan import LONG, MEDIUM, SHORT, Plan
from benchmarks.servers import Place, do_not_sync
from benchmarks.subjects import Whole
from benchmarks.table import Line, RatioLine, compare
from optilock import Isolation, Versioned, lock, retrying, touch, unit_of_work, verify, watch
from optilock.tables.names import scopes

__all__ = ["DATABASES", "run"]

DATABASES = ("socket", "sqlite", "mariadb")

_WRITERS, _SECONDS, _QUICK_SECONDS = 8, 2.0, 0.3
#: Rows, and scopes: the goal.
_INSERTS: Mapping[tuple[int, int], float] = {(1, 1): 1.40, (100, 1): 1.20, (100, 100): 1.55}
#: Of the units of another subject, at least.
_MOVED, _DECIDED = 0.75, 1.0
_keys = itertools.count(1)

Unit = Callable[[Session], None]


class Base(DeclarativeBase):
    pass


class _Columns(Versioned):
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    room_id: Mapped[int]
    hour: Mapped[int]


class Unchecked(_Columns, Base):
    __tablename__ = "unchecked_bookings"
    __table_args__ = (Index("unchecked_hours", "room_id", "hour"),)


class Scoped(_Columns, Base):
    __tablename__ = "scoped_bookings"
    __table_args__ = (Index("scoped_hours", "room_id", "hour"),)
    __version_scopes__ = ("room_id",)


class Parent(Versioned, Base):
    __tablename__ = "booked_rooms"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


def run(place: Place, plan: Plan) -> Iterator[Line]:
    """The lines of this question for one database."""
    with place.engine() as engine:
        _prepare(engine)
        for (rows, rooms), goal in _INSERTS.items():
            yield from _inserts(engine, place, plan, rows, rooms, goal)
    yield from _crowds(place, plan)


def _prepare(engine: Engine) -> None:
    scopes.drop(engine, checkfirst=True)
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    scopes.create(engine)
    with Session(engine) as session, session.begin():
        session.add(Parent(id=7))


# -- one writer ------------------------------------------------------------------------------------


def _inserts(
    engine: Engine, place: Place, plan: Plan, rows: int, rooms: int, goal: float
) -> Iterator[Line]:
    sessions = watch(sessionmaker(engine))
    timings = interleave(
        {
            "unversioned": Whole(partial(_insert, sessions, Unchecked, rows, rooms)),
            "optilock": Whole(partial(_insert, sessions, Scoped, rows, rooms)),
        },
        rounds=plan.rounds_for(SHORT if rows == 1 else MEDIUM),
        repeats=plan.repeats_for(place, rows),
    )
    yield from compare(
        f"scopes: {rows} inserted, {rooms} scope{'s' if rooms > 1 else ''}",
        place.label,
        rows,
        timings,
        against="unversioned",
        goals={"load to COMMIT": goal},
    )


def _insert(sessions: sessionmaker[Session], model: type[Any], rows: int, rooms: int) -> None:
    with sessions.begin() as session:
        for number in range(rows):
            session.add(model(id=next(_keys), room_id=number % rooms, hour=0))


# -- many writers ----------------------------------------------------------------------------------


def _free(session: Session, model: type[Any], hour: int) -> bool:
    query = select(model.id).where(model.room_id == 7, model.hour == hour)
    return session.scalars(query).first() is None


def _book(session: Session, model: type[Any], *, look: bool = True) -> None:
    key = next(_keys)
    if not look or _free(session, model, key):
        session.add(model(id=key, room_id=7, hour=key))


def _verified(session: Session) -> None:
    verify(session, Scoped.scope(room_id=7))
    _book(session, Scoped)


def _locked(session: Session) -> None:
    lock(session, Scoped.scope(room_id=7))
    _book(session, Scoped)


def _touched(session: Session) -> None:
    room = session.get_one(Parent, 7)
    _book(session, Unchecked)
    touch(room)


#: What a unit does, and whether it is SERIALIZABLE.
_UNITS: Mapping[str, tuple[Unit, bool]] = {
    "unchecked": (partial(_book, model=Unchecked, look=False), False),
    "moved": (partial(_book, model=Scoped, look=False), False),
    "touch": (_touched, False),
    "verify": (_verified, False),
    "lock": (_locked, False),
    "SERIALIZABLE": (partial(_book, model=Unchecked), True),
}


def _crowds(place: Place, plan: Plan) -> Iterator[Line]:
    seconds = plan.seconds or (_QUICK_SECONDS if plan.quick else _SECONDS)
    writers = plan.writers[0] if plan.writers else _WRITERS
    on_file = place.name == "sqlite"
    names = [name for name, (_, strict) in _UNITS.items() if not (strict and on_file)]
    found: dict[str, list[float]] = {name: [] for name in names}
    level = {} if on_file else {"isolation_level": "READ COMMITTED"}
    engine = create_engine(place.url, pool_size=writers, **level)
    if on_file:
        event.listen(engine, "connect", do_not_sync)
    for number in range(plan.rounds_for(LONG)):
        for name in order(tuple(names), number):
            _prepare(engine)
            found[name].append(_rate(engine, name, writers, seconds))
    engine.dispose()
    for name, against, goal in _compared(names):
        each = [a / b for a, b in zip(found[name], found[against], strict=True)]
        yield RatioLine(
            f"scopes: units/s of {writers} writers, {name}"
            f" ({statistics.median(found[name]):.0f}/s)",
            place.label,
            1,
            f"{against} ({statistics.median(found[against]):.0f}/s)",
            {name: Ratio(statistics.median(each), min(each), max(each))},
            subject=name,
            goal=goal,
            at_least=True,
        )


def _compared(names: list[str]) -> Iterator[tuple[str, str, float | None]]:
    yield "moved", "unchecked", _MOVED
    yield "verify", "touch", None
    yield "lock", "touch", _DECIDED
    if "SERIALIZABLE" in names:
        yield "SERIALIZABLE", "touch", None


def _rate(engine: Engine, name: str, writers: int, seconds: float) -> float:
    """Units that are stored each second."""
    sessions = watch(sessionmaker(engine))
    unit, strict = _UNITS[name]
    level = Isolation.SERIALIZABLE if strict else None
    again = retrying(attempts=10_000, wait_initial=0.001, wait_max=0.02)
    run: Callable[[], None] = unit_of_work(sessions, retry=again, isolation=level)(
        lambda session: unit(session)
    )
    begin, stop = threading.Barrier(writers + 1), threading.Event()
    done = [0] * writers

    def work(number: int) -> None:
        begin.wait()
        while not stop.is_set():
            run()
            done[number] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(writers)]
    for thread in threads:
        thread.start()
    begin.wait()
    began = perf_counter()
    stop.wait(seconds)
    stored, took = sum(done), perf_counter() - began
    stop.set()
    for thread in threads:
        thread.join()
    return stored / took
