"""What does a guard trigger cost an UPDATE?

The same UPDATE on the same columns, once without a trigger and once with. One moves the version
itself, as all of optilock's do, and the trigger lets it through; one is by somebody who knows of no
version, and the trigger moves it; one writes ignored columns alone. One row by its key, as often as
makes a timing, and many rows in one statement, where the cost of each row shows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from sqlalchemy import Engine, MetaData, Table, insert, text

from benchmarks.measure import Timing, interleave
from benchmarks.models import Item
from benchmarks.plan import MEDIUM, Plan
from benchmarks.servers import Place
from benchmarks.table import Line, compare
from optilock.dialects import database_of
from optilock.tokens import Counter
from optilock.tokens.guard_trigger import GuardTrigger, Policy

__all__ = ["DATABASES", "run"]

#: The trigger works in the server: a network would only hide it.
DATABASES = ("socket", "sqlite", "mariadb")

#: Statements of one row in one timing.
_STATEMENTS = 50
_WRITES = {
    "a write that moves the version": "amount = amount + 1, version = version + 1",
    "a foreign UPDATE": "amount = amount + 1",
    "ignored columns alone": "note = note || '!'",
}
#: Which triggers stand in the way of which write.
_CASES: tuple[tuple[str, Policy, tuple[str, ...]], ...] = (
    ("a write that moves the version", "bump", ()),
    ("a write that moves the version", "reject", ()),
    ("a foreign UPDATE", "bump", ()),
    ("a foreign UPDATE", "bump", ("note",)),
    ("ignored columns alone", "bump", ("note",)),
)


def run(place: Place, plan: Plan) -> Iterator[Line]:
    """The lines of this question for one database."""
    with place.engine() as engine:
        for write, policy, ignore in _CASES:
            for rows in (1, plan.many):
                yield from _case(place, plan, engine, write, policy, ignore, rows)


def _case(
    place: Place,
    plan: Plan,
    engine: Engine,
    write: str,
    policy: Policy,
    ignore: tuple[str, ...],
    rows: int,
) -> Iterator[Line]:
    tables = ("guard_without", "guard_with")
    for table in tables:
        _create(engine, table, plan.many)
    _guard(engine, tables[1], policy, ignore)
    subjects = {
        name: _subject(engine, table, _written(engine, write), rows)
        for name, table in zip(("without", "optilock"), tables, strict=True)
    }
    timings = interleave(subjects, rounds=plan.rounds_for(MEDIUM))
    beside = f", ignoring {', '.join(ignore)}" if ignore else ""
    yield from compare(
        f"guard trigger ({policy}{beside}): {write}",
        place.label,
        rows,
        timings,
        against="without",
        goals={"flush": None},
    )


def _create(engine: Engine, name: str, rows: int) -> None:
    """The columns of the other benchmarks, and a version."""
    key = "id INTEGER PRIMARY KEY, name VARCHAR(20), amount INTEGER, note TEXT"
    with engine.begin() as connection:
        connection.execute(text(f"DROP TABLE IF EXISTS {name}"))
        connection.execute(text(f"CREATE TABLE {name} ({key}, version BIGINT NOT NULL)"))
        table = Table(name, MetaData(), autoload_with=connection)
        values = {"name": "name", "amount": 0, "note": "note", "version": 1}
        connection.execute(insert(table), [{"id": n, **values} for n in range(rows)])


def _guard(engine: Engine, table: str, policy: Policy, ignore: tuple[str, ...]) -> None:
    counted = [name for name in Item.__annotations__ if name not in ignore]
    guard = GuardTrigger(table, Counter(), policy, ignore, tuple(counted) if ignore else ())
    with engine.begin() as connection:
        for statement in database_of(engine.dialect).guard_triggers(engine.dialect).create(guard):
            connection.exec_driver_sql(statement)


def _written(engine: Engine, write: str) -> str:
    """MariaDB takes ``||`` for OR."""
    if engine.dialect.name != "mysql":
        return _WRITES[write]
    return _WRITES[write].replace("note || '!'", "concat(note, '!')")


def _subject(engine: Engine, table: str, change: str, rows: int) -> Callable[[], Timing]:
    by_key = text(f"UPDATE {table} SET {change} WHERE id = :id")
    together = text(f"UPDATE {table} SET {change}")

    def one_by_one() -> Timing:
        with engine.begin() as connection:
            started = time.perf_counter()
            for n in range(_STATEMENTS):
                connection.execute(by_key, {"id": n % 2})
            return Timing(flush=time.perf_counter() - started)

    def at_once() -> Timing:
        with engine.begin() as connection:
            started = time.perf_counter()
            connection.execute(together)
            return Timing(flush=time.perf_counter() - started)

    return one_by_one if rows == 1 else at_once
