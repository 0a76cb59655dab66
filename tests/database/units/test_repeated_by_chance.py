"""A1: random attempts, beside random others, and an oracle that knows what each side has seen.

An attempt assigns a constant to some columns of three rows, with flushes between them, and fails by
chance; others write before it has read, after it, and between attempts. What is stored in the end
may be the constant over another's value only if the constant was wanted first against that value.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, delete, insert
from sqlalchemy.orm import Session, sessionmaker

from optilock import (
    ConcurrencyError,
    WouldOverwrite,
    merge_fields,
    retry,
    retrying,
    unit_of_work,
    watch,
)
from tests.support.repeated_cases import Again, Fields, again_or_transient

pytestmark = pytest.mark.engines("sqlite-wal", "postgresql", "mariadb", "mariadb-snapshot")

ROWS, COLUMNS = (1, 2, 3), "abc"
Cell = tuple[int, str]


class Trial:
    """One call of a function that is run again, and what came of it."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self.engine, self.chance = engine, random.Random(seed)
        cells = [(row, name) for row in ROWS for name in COLUMNS]
        some = [cell for cell in cells if self.chance.random() < 0.35] or cells[:1]
        self.plan = {(row, name): f"X{row}{name}" for row, name in some}
        #: What was read when a value was first wanted; what the last attempt has read.
        self.first: dict[Cell, str] = {}
        self.read: dict[Cell, str] = {}
        self.wanted: dict[Cell, str] = {}
        self.has_flushed = False
        self.attempts = 0

    def run(self) -> str:
        with self.engine.begin() as connection:
            connection.execute(delete(Fields))
            rows = [{"id": row, "version": 1, **dict.fromkeys(COLUMNS, "o")} for row in ROWS]
            connection.execute(insert(Fields), rows)
        try:
            self.chance.choice((self.in_a_unit, self.in_a_session))()
        except (WouldOverwrite, ConcurrencyError, Again) as error:
            return type(error).__name__
        return "stored"

    def in_a_unit(self) -> None:
        again = retrying(**self.options())  # optimistic: others write in the same thread
        unit = unit_of_work(
            self.engine, on_conflict=merge_fields, strategy="optimistic", retry=again
        )
        unit(self.attempt)()

    def in_a_session(self) -> None:
        sessions = watch(sessionmaker(self.engine), on_conflict=merge_fields)

        @retry(**self.options())
        def run() -> None:
            with sessions.begin() as session:
                self.attempt(session)

        run()

    def options(self) -> dict[str, Any]:
        return {
            "on": again_or_transient,
            "wait_initial": 0,
            "attempts": 8,
            "before_retry": lambda event: self.others(at_most=1),
        }

    def attempt(self, session: Session) -> None:
        self.attempts += 1
        less = self.chance.random() < 0.2
        self.wanted = {c: v for c, v in self.plan.items() if not less or self.chance.random() < 0.6}
        self.others(at_most=1)
        rows = {row: session.get_one(Fields, row) for row in sorted({row for row, _ in self.plan})}
        self.read = {(row, name): getattr(rows[row], name) for row in rows for name in COLUMNS}
        self.others(at_most=2)
        for cell, value in self.wanted.items():
            setattr(rows[cell[0]], cell[1], value)
            self.first.setdefault(cell, self.read[cell])
            if self.chance.random() < 0.15:
                self.has_flushed = True
                session.flush()
        if self.attempts < 4 and self.chance.random() < 0.35:
            raise Again

    def others(self, at_most: int) -> None:
        for _ in range(self.chance.randint(0, at_most)):
            row, name = self.chance.choice(ROWS), self.chance.choice(COLUMNS)
            value = self.chance.choice(["T0", "T1", "T2", "o", f"X{row}{name}"])
            with Session(self.engine) as session, session.begin():
                setattr(session.get_one(Fields, row), name, value)

    def unseen(self) -> set[Cell]:
        """What others have changed since a value was first wanted that is wanted still.

        What was assigned as it was stored is not known any more after a flush that went well.
        """
        return {
            cell
            for cell, value in self.wanted.items()
            if cell in self.first
            and self.read[cell] not in (self.first[cell], value)
            and not (self.has_flushed and self.first[cell] == value)
        }

    def stored(self) -> dict[Cell, str]:
        with Session(self.engine) as session:
            rows = {row: session.get_one(Fields, row) for row in ROWS}
            return {(row, name): getattr(rows[row], name) for row in ROWS for name in COLUMNS}


@pytest.fixture
def trials(engine: Engine, tables: Callable[..., None], tries: Any) -> Callable[[], list[Trial]]:
    tables(Fields)
    number = tries(150, 500, 1_500)
    if engine.dialect.name != "sqlite":
        number //= 5
    return lambda: [Trial(engine, seed) for seed in range(number)]


def test_no_value_is_put_over_one_that_its_author_has_not_seen(trials):
    outcomes: Counter[str] = Counter()
    for seed, trial in enumerate(trials()):
        outcome = trial.run()
        outcomes[outcome] += 1
        stored = trial.stored()
        if outcome == "stored":
            lost = {cell for cell in trial.unseen() if stored[cell] == trial.plan[cell]}
            assert lost == set(), (seed, trial.plan, trial.first, trial.read)
        elif outcome == "WouldOverwrite" and not trial.has_flushed:
            assert trial.unseen(), (seed, trial.plan, trial.first, trial.read)
    assert outcomes["stored"] > outcomes["WouldOverwrite"] > 0
