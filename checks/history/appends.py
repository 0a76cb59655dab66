"""Clients that append to lists at the same time, over the public API, and what they were told.

A list is a row with a text of numbers. A unit of work reads some lists and appends to others; each
number is appended by one unit, in all of its attempts. What the last attempt has read, and how the
unit ended, goes to a file (:class:`Record`), so that a long run needs no more memory than a short
one. :mod:`cycles` judges the whole afterwards.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, Text, insert, select
from sqlalchemy.dialects.mysql import MEDIUMTEXT
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from checks.history.cycles import Append, Read, Transaction
from optilock import Isolation, Versioned, is_transient, retrying, unit_of_work
from optilock.errors import CommitOutcomeUnknown
from optilock.tables.names import commit_tokens

__all__ = ["WAYS", "BareList", "List", "Record", "Workload", "lists", "make", "run", "run_async"]

#: Ways to write, and their options.
WAYS: dict[str, dict[str, Any]] = {
    "units": {},
    "verify": {"verify_reads": True},
    "repeatable": {"isolation": Isolation.REPEATABLE_READ},
    "serializable": {"isolation": Isolation.SERIALIZABLE},
}
#: Lists that are written at one time, about how long they get, and how many there are: after the
#: last list comes the first one, so that a long run has no list that is too long to be read.
_AT_ONCE, _LENGTH = 8, 40
_KEYS = 6_000
#: Seconds for which a unit is tried.
_DEADLINE = 20.0


class Base(DeclarativeBase):
    pass


class _List:
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    #: Numbers, each behind a blank.
    numbers: Mapped[str] = mapped_column(Text().with_variant(MEDIUMTEXT, "mysql"))


class List(_List, Versioned, Base):
    __tablename__ = "history_lists"


class BareList(_List, Base):
    """Without a version."""

    __tablename__ = "history_bare_lists"


def make(engine: Engine) -> None:
    """The tables, with empty lists."""
    Base.metadata.drop_all(engine)
    commit_tokens.drop(engine, checkfirst=True)
    Base.metadata.create_all(engine)
    commit_tokens.create(engine)
    rows = [{"id": key, "numbers": ""} for key in range(_KEYS)]
    with engine.begin() as connection:
        connection.execute(insert(BareList), rows)
        connection.execute(insert(List.__table__), [{**row, "version": 1} for row in rows])


def lists(engine: Engine, of: type[Any] = List) -> dict[int, tuple[int, ...]]:
    """The lists that are stored."""
    with engine.connect() as connection:
        found = connection.execute(select(of.id, of.numbers).where(of.numbers != ""))
        return {key: tuple(map(int, numbers.split())) for key, numbers in found}


class Record:
    """What became of the units, in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("w", encoding="utf-8")
        self._lock = threading.Lock()
        self.ended: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.retries = 0
        #: Of the first units that have failed.
        self.traces: list[str] = []

    def note(self, done: Sequence[tuple[Any, ...]], error: Exception | None) -> None:
        unknown = isinstance(error, CommitOutcomeUnknown)
        status = "ok" if error is None else "info" if unknown else "fail"
        line = json.dumps([status, done])
        with self._lock:
            self.ended[status] += 1
            if error is not None:
                self.errors[f"{type(error).__name__}: {str(error).splitlines()[0][:100]}"] += 1
            if status == "fail" and len(self.traces) < 2:
                self.traces.append("".join(traceback.format_exception(error)))
            self._file.write(line + "\n")

    def retried(self, event: Any) -> None:
        self.retries += 1

    def transactions(self) -> Iterator[Transaction]:
        """All of them, once no client writes any more."""
        self._file.close()
        with self._path.open(encoding="utf-8") as lines:
            for line in lines:
                status, done = json.loads(line)
                made = (
                    Append(key, given) if kind == "append" else Read(key, tuple(given))
                    for kind, key, given in done
                )
                yield Transaction(tuple(made), status)


@dataclass
class Workload:
    """What clients do, from a seed."""

    record: Record
    of: type[Any] = List
    way: str = "units"
    seed: int = 1
    #: Run again after an outcome that nobody knows, which appends twice.
    is_naive: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._numbers = itertools.count(1)

    def plans(self, client: int) -> Iterator[list[tuple[str, int, int]]]:
        """Units of one client: operations, keys and numbers."""
        chance = random.Random(f"{self.seed} {client}")
        while True:
            number = next(self._numbers)
            base = number // (_LENGTH // 2) % (_KEYS - _AT_ONCE)
            keys = chance.sample(range(base, base + _AT_ONCE), chance.randint(1, 3))
            kinds = ["append", *chance.choices(("read", "append"), (2, 1), k=len(keys) - 1)]
            chance.shuffle(kinds)
            yield [
                (kind, key, number * 4 + place)
                for place, (kind, key) in enumerate(zip(kinds, keys, strict=True))
            ]

    def body(self, session: Session, plan: Any, done: list[tuple[Any, ...]]) -> None:
        """One attempt; ``done`` gets what it reads and appends."""
        done.clear()
        for kind, key, number in plan:
            row = session.get_one(self.of, key)
            done.append(("read", key, [*map(int, row.numbers.split())]))
            if kind == "append":
                row.numbers += f" {number}"
                done.append(("append", key, number))

    @property
    def policy(self) -> dict[str, Any]:
        again = retrying(
            attempts=10_000,
            deadline=_DEADLINE,
            wait_max=0.2,
            before_retry=self.record.retried,
            on=_naively if self.is_naive else is_transient,
        )
        return {"retry": again, **WAYS[self.way], **self.options}


def _naively(error: BaseException) -> bool:
    return is_transient(error) or isinstance(error, CommitOutcomeUnknown)


def run(
    engines: Sequence[Engine], load: Workload, clients: int, is_over: Callable[[], bool]
) -> None:
    """Let threads work until it is over, each on one of the engines."""

    def client(number: int) -> None:
        done: list[tuple[Any, ...]] = []
        unit = unit_of_work(engines[number % len(engines)], **load.policy)(
            lambda session, plan: load.body(session, plan, done)
        )
        for plan in load.plans(number):
            if is_over():
                return
            error = None
            done[:] = [one for one in plan if one[0] == "append"]
            try:
                unit(plan)
            except Exception as raised:
                error = raised
            load.record.note(done, error)

    threads = [threading.Thread(target=client, args=[number]) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


async def run_async(
    engines: Sequence[AsyncEngine], load: Workload, clients: int, is_over: Callable[[], bool]
) -> None:
    """The same by tasks."""

    async def client(number: int) -> None:
        done: list[tuple[Any, ...]] = []

        @unit_of_work(engines[number % len(engines)], **load.policy)
        async def unit(session: AsyncSession, plan: Any) -> None:
            await session.run_sync(load.body, plan, done)

        for plan in load.plans(number):
            if is_over():
                return
            error = None
            done[:] = [one for one in plan if one[0] == "append"]
            try:
                await unit(plan)
            except Exception as raised:
                error = raised
            load.record.note(done, error)

    await asyncio.gather(*(client(number) for number in range(clients)))
