"""One scenario, stepped: which transaction does what, in the order that the scenario has.

A transaction that waits for a lock keeps its later steps until it has the lock. All others go on.
:mod:`optilock.testing` asks the server which connection waits. SQLite cannot answer: there a step
that has not ended after a quarter of a second counts as one that waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from sqlalchemy import Engine, delete, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session
from sqlalchemy.orm.exc import StaleDataError

from checks.guarantees.rows import Level, Protection, fill, stored
from optilock import is_transient, verify
from optilock.testing import interleave
from optilock.testing.interleave import PATIENCE, OutOfStep, Side, Step

__all__ = ["RolledBack", "Run", "Scenario", "Transaction", "Work", "run"]

Seen: TypeAlias = list[tuple[int, int]]
Criterion: TypeAlias = Callable[[Any], Any]


#: Seconds; a step of a busy machine ends within them, if it waits for no lock.
_GRACE = 0.25


@dataclass(frozen=True)
class _Step:
    """What one transaction does in one step."""

    name: str
    #: ``None`` ends the transaction.
    work: Callable[[Work], object] | None
    #: A word or two for it.
    shown: str
    rolls_back: bool = False


@dataclass(frozen=True)
class Transaction:
    """A transaction of a scenario; its methods are the steps that a program would take."""

    name: str

    def read(self, key: int) -> _Step:
        """Read one row by its key, as an object."""
        return _Step(
            self.name, lambda work: work.find(lambda model: model.id == key), f"read {key}"
        )

    def find(self, criterion: Criterion) -> _Step:
        """Read the rows of a query, as objects."""
        return _Step(self.name, lambda work: work.find(criterion), "find rows")

    def write(self, key: int, value: int | Callable[[int], int]) -> _Step:
        """Change the row's object, and flush."""
        return _Step(self.name, lambda work: work.write(key, value), f"write {key}")

    def write_found(self, criterion: Criterion, value: int) -> _Step:
        """Change each row of a query, and flush."""
        return _Step(
            self.name, lambda work: work.write_found(criterion, value), "change the found rows"
        )

    def add(self, key: int, value: int, parent: int | None = None) -> _Step:
        """Insert a row."""
        return _Step(self.name, lambda work: work.add(key, value, parent), f"add {key}")

    def delete(self, key: int) -> _Step:
        """Delete the row's object, and flush."""
        return _Step(self.name, lambda work: work.delete(key), f"delete {key}")

    def update_where(self, criterion: Criterion, value: Criterion) -> _Step:
        """Send one UPDATE for the rows of a criterion."""
        return _Step(self.name, lambda work: work.update_where(criterion, value), "UPDATE")

    def delete_where(self, criterion: Criterion) -> _Step:
        """Send one DELETE for the rows of a criterion."""
        return _Step(self.name, lambda work: work.delete_where(criterion), "DELETE")

    def commit(self) -> _Step:
        return _Step(self.name, None, "COMMIT")

    def rollback(self) -> _Step:
        return _Step(self.name, None, "ROLLBACK", rolls_back=True)


@dataclass(frozen=True)
class Scenario:
    """Steps, and what is true of their run if the anomaly has happened."""

    key: str
    #: A word or two for the anomaly.
    title: str
    steps: Sequence[_Step]
    happened: Callable[[Run], bool]
    #: The isolation spec of PostgreSQL that it re-expresses.
    spec: str | None = None


@dataclass
class Run:
    """What has become of one scenario."""

    committed: set[str] = field(default_factory=set)
    errors: list[BaseException] = field(default_factory=list)
    #: What each transaction has read: one list for each step that reads.
    reads: dict[str, list[Seen]] = field(default_factory=dict)
    stored: dict[int, int] = field(default_factory=dict)

    def all_committed(self, *names: str) -> bool:
        return self.committed.issuperset(names)

    def saw(self, name: str, number: int = 0) -> dict[int, int]:
        """Return the rows of the transaction's read with this number."""
        reads = self.reads.get(name, [])
        return dict(reads[number]) if len(reads) > number else {}


class Work:
    """One transaction's session, and the objects that the program keeps."""

    def __init__(self, session: Session, protection: Protection, block: ExitStack) -> None:
        self._session = session
        self._model = protection.model
        self._verifies = protection.verifies
        self._block = block
        self._kept: list[object] = []
        self.reads: list[Seen] = []

    def take(self, step: _Step) -> None:
        """Take the step; its error leaves the block of the transaction, as in a program."""
        if step.work is None and not step.rolls_back:
            self._block.close()
            return
        try:
            if step.work is None:
                raise RolledBack
            step.work(self)
        except Exception as error:
            self._block.__exit__(type(error), error, error.__traceback__)
            raise

    def find(self, criterion: Criterion) -> None:
        found = self._load(criterion)
        self.reads.append([(row.id, row.value) for row in found])

    def write(self, key: int, value: int | Callable[[int], int]) -> None:
        row = self._session.get(self._model, key)
        if row is not None:
            row.value = value(row.value) if callable(value) else value
            self._session.flush()

    def write_found(self, criterion: Criterion, value: int) -> None:
        for row in self._load(criterion):
            row.value = value
        self._session.flush()

    def add(self, key: int, value: int, parent: int | None) -> None:
        if any(key == seen for rows in self.reads for seen, _ in rows):
            return  # no program inserts what it has read
        self._session.add(self._model(id=key, value=value, parent=parent))
        self._session.flush()

    def delete(self, key: int) -> None:
        row = self._session.get(self._model, key)
        if row is not None:
            self._session.delete(row)
            self._session.flush()

    def update_where(self, criterion: Criterion, value: Criterion) -> None:
        model = self._model
        self._session.execute(update(model).where(criterion(model)).values(value=value(model)))

    def delete_where(self, criterion: Criterion) -> None:
        self._session.execute(delete(self._model).where(criterion(self._model)))

    def _load(self, criterion: Criterion) -> Sequence[Any]:
        query = select(self._model).where(criterion(self._model)).order_by(self._model.id)
        # A program that asks again wants what is stored now.
        found = self._session.scalars(query.execution_options(populate_existing=True)).all()
        self._kept.extend(found)
        if self._verifies:
            for row in found:
                verify(row)
        return found


class RolledBack(Exception):
    """Leaves the block of a transaction that rolls back."""


class _Author:
    """A transaction that is stepped: what it still has to do, and what it does now."""

    def __init__(self, name: str, side: Side[Session], *, server_tells: bool) -> None:
        self.name = name
        self.side = side
        #: Whether the server says which connection waits; SQLite's BEGIN IMMEDIATE just waits.
        self._server_tells = server_tells
        self.backlog: deque[_Step] = deque()
        self.running: tuple[_Step, Step[None]] | None = None
        self.has_ended = False

    @property
    def waits(self) -> bool:
        """Whether its step waits for a lock of another transaction."""
        assert self.running is not None
        step = self.running[1]
        if not self._server_tells:
            return not wait([step._future], _GRACE).done
        try:
            step.blocked()
        except OutOfStep:
            if step.ended:
                return False
            raise
        return True


class _Stepper:
    def __init__(self, run: Run, authors: Iterable[_Author]) -> None:
        self._run = run
        self._authors = {author.name: author for author in authors}

    def take(self, step: _Step) -> None:
        author = self._authors[step.name]
        if not author.has_ended:
            author.backlog.append(step)
        if author.running is None:
            self._advance(author)

    def finish(self) -> None:
        """Let those that wait come to their end: the database ends a deadlock."""
        while waiting := [author for author in self._authors.values() if author.running]:
            steps = [author.running[1]._future for author in waiting if author.running]
            if not wait(steps, PATIENCE, FIRST_COMPLETED).done:
                raise OutOfStep("every transaction waits, and the database ends none of them.")
            for author in waiting:
                if author.running and author.running[1].ended:
                    self._advance(author)

    def _advance(self, author: _Author) -> None:
        """Take the steps of the transaction up to one that waits."""
        while author.running or author.backlog:
            if author.running is None:
                step = author.backlog.popleft()
                author.running = step, author.side.start(partial(_take, step))
            if author.waits:
                return
            author.has_ended = self._has_ended(author)
            if author.has_ended:
                author.backlog.clear()
                for other in self._authors.values():
                    if other.running is not None:
                        self._advance(other)

    def _has_ended(self, author: _Author) -> bool:
        """Note the result of a step; return whether it was the last one of its transaction."""
        assert author.running is not None
        step, running = author.running
        author.running = None
        try:
            running.result()
        except RolledBack:
            return True
        except Exception as error:
            if not (is_transient(error) or isinstance(error, IntegrityError | StaleDataError)):
                raise
            self._run.errors.append(error)
            return True
        if step.work is None:
            self._run.committed.add(author.name)
        return step.work is None


def _take(step: _Step, session: Session) -> None:
    session.info["work"].take(step)


def run(scenario: Scenario, engine: Engine, level: Level, protection: Protection) -> Run:
    """Run the scenario once, on its two rows."""
    fill(engine, protection.model)
    names = [*dict.fromkeys(step.name for step in scenario.steps)]
    made = Run()

    @contextmanager
    def block() -> Iterator[Session]:
        with ExitStack() as stack:
            session = stack.enter_context(sessions())
            work = session.info["work"] = Work(session, protection, stack)
            made.reads[names[len(made.reads)]] = work.reads
            yield session

    sessions = level.sessions(engine, protection)
    with interleave(block, *names) as sides:
        server = engine.dialect.name != "sqlite"
        stepper = _Stepper(made, [_Author(side.name, side, server_tells=server) for side in sides])
        for step in scenario.steps:
            stepper.take(step)
        stepper.finish()
    made.stored = stored(engine, protection.model)
    return made
