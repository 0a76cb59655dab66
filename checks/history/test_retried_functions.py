"""Random functions that are run again after conflicts store each of their parts at most once."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from optilock import ConcurrencyError, UnitOfWork, Versioned, retry, watch

#: The row that others write, too; the parts of a function count in the rows from 1.
SHARED = 100


class Base(DeclarativeBase):
    pass


class Tally(Versioned, Base):
    __tablename__ = "retried_tallies"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    n: Mapped[int]


@contextmanager
def unit(sessions: Any) -> Iterator[Session]:
    with UnitOfWork(sessions) as session:
        yield session


@contextmanager
def watched(sessions: Any) -> Iterator[Session]:
    with watch(sessionmaker(sessions.kw["bind"])).begin() as session:
        yield session


@contextmanager
def inside_another(sessions: Any) -> Iterator[Session]:
    """The part has a transaction of its own while a unit runs that only reads."""
    with UnitOfWork(sessions) as outer:
        outer.get_one(Tally, SHARED)
        with watched(sessions) as session:
            yield session


FORMS = (unit, unit, watched, inside_another)


def story(engine: Engine, seed: int) -> tuple[bool, list[int], list[str]]:
    """Return whether the function ended well, what its parts have counted, and what happened."""
    chance, told = random.Random(seed), [f"seed {seed}"]
    forms = [chance.choice(FORMS) for _ in range(chance.randrange(1, 4))]
    sessions, attempts = sessionmaker(engine), 0
    with Session(engine) as session, session.begin():
        session.query(Tally).delete()
        session.add_all(Tally(id=n, n=0) for n in (*range(1, 1 + len(forms)), SHARED))

    def work() -> None:
        nonlocal attempts
        attempts += 1
        for number, form in enumerate(forms, 1):
            with form(sessions) as session:
                session.get_one(Tally, number).n += 1
                session.get_one(Tally, SHARED).n = chance.randrange(1_000)
                told.append(f"attempt {attempts}: {form.__name__} {number}")
                if chance.random() < 0.4 / attempts:
                    with Session(engine) as other, other.begin():
                        other.get_one(Tally, SHARED).n = 1_000 + chance.randrange(1_000)
                    told.append("a conflict")

    try:
        retry(attempts=4, wait_initial=0, wait_max=0)(work)()
    except (ConcurrencyError, OperationalError) as error:  # or the other writer had to wait
        told.append(type(error).__name__)
        done = False
    else:
        done = True
    with Session(engine) as session:
        return done, [session.get_one(Tally, n).n for n in range(1, 1 + len(forms))], told


def test_a_part_is_stored_once_or_the_error_says_so(
    engine: Engine, tables: Any, tries: Callable[[int, int, int], int]
) -> None:
    tables(Tally)
    ends = set[bool]()
    for seed in range(tries(40, 100, 1_000)):
        done, counted, told = story(engine, seed)
        ends.add(done)
        assert counted == [1] * len(counted) if done else max(counted) <= 1, told
    assert ends == {True, False}
