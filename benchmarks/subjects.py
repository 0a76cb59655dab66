"""The four ways to write changed rows that the benchmarks compare.

=============  ==========================================================================
native         SQLAlchemy's ``version_id_col`` on a plain ``Session``: the 1.00 of the tables
unversioned    the same model without a version: lost updates are not noticed
hand-written   Core: one checked UPDATE for each set of columns, judged by its row count
optilock       a ``Versioned`` model in a watched session
=============  ==========================================================================

All run on one engine with one connection: the same server process answers all of them.

Besides, :func:`whole_units`: one row, with the session that is opened for it and closed after it.
"""

from __future__ import annotations

import enum
import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter, process_time
from typing import Any

from sqlalchemy import (
    Engine,
    Table,
    Update,
    bindparam,
    cast,
    func,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Session, sessionmaker

from benchmarks.measure import Timing
from benchmarks.models import MODELS, create, next_touch, table_of
from optilock import UnitOfWork, unit_of_work, watch

__all__ = [
    "ByHand",
    "ByOrm",
    "Shape",
    "Whole",
    "amounts_written",
    "build",
    "rename",
    "whole_units",
]

_stamps = itertools.count(1)


class Shape(enum.Enum):
    """Which columns the rows of one flush set."""

    SAME = "same columns"
    ALTERNATING = "alternating columns"
    LIVELY = "mapper events and onupdate"

    def values(self, index: int, stamp: int) -> dict[str, Any]:
        """The new values of the row at ``index``; ``stamp`` makes them differ from the old."""
        if self is not Shape.ALTERNATING:
            return {"name": f"name {stamp}", "amount": stamp}
        return {"name": f"name {stamp}"} if index % 2 else {"amount": stamp}


def amounts_written(
    session: Session, load: Callable[[Session], Sequence[Any]], amount: int
) -> Timing:
    """Rows are loaded, each gets the amount, and they are committed: what each part took."""
    began, used = perf_counter(), process_time()
    items = load(session)
    loaded = perf_counter()
    for item in items:
        item.amount = amount
    changed = perf_counter()
    session.flush()
    flushed = perf_counter()
    session.commit()
    done = perf_counter()
    return Timing(
        load=loaded - began,
        change=changed - loaded,
        flush=flushed - changed,
        commit=done - flushed,
        cpu=process_time() - used,
    )


def _nothing() -> None:
    pass


@dataclass
class ByOrm:
    """Rows loaded, changed, flushed and committed by a ``Session``."""

    sessions: sessionmaker[Session]
    model: type[Any]
    rows: int
    shape: Shape
    #: What others do after the rows were read and before they are written; not timed.
    meanwhile: Callable[[], None] = field(default=_nothing)

    @property
    def table(self) -> Table:
        """The table that the rows are in."""
        return table_of(self.model)

    def __call__(self) -> Timing:
        with self.sessions() as session:
            begin = perf_counter()
            loaded = self.load(session)
            read = perf_counter()
            self.change(loaded)
            changed = perf_counter()
            self.meanwhile()
            resumed = perf_counter()
            session.flush()
            flushed = perf_counter()
            session.commit()
            done = perf_counter()
        return Timing(read - begin, changed - read, flushed - resumed, done - flushed)

    def load(self, session: Session) -> Sequence[Any]:
        """The rows, in the order of their keys."""
        if self.rows == 1:
            return [session.get_one(self.model, 1)]
        rows = select(self.model).where(self.model.id <= self.rows).order_by(self.model.id)
        return session.scalars(rows).all()

    def change(self, loaded: Iterable[Any]) -> None:
        """New values for each of them."""
        stamp = next(_stamps)
        for index, row in enumerate(loaded):
            for name, value in self.shape.values(index, stamp).items():
                setattr(row, name, value)


@dataclass
class ByHand:
    """The same in Core: as short as it gets, and as little said when a row was missed."""

    engine: Engine
    table: Table
    rows: int
    shape: Shape

    def __call__(self) -> Timing:
        with self.engine.connect() as connection:
            begin = perf_counter()
            rows = select(self.table).where(self.table.c.id <= self.rows)
            loaded = connection.execute(rows.order_by(self.table.c.id)).all()
            read = perf_counter()
            groups = self._grouped(loaded)
            changed = perf_counter()
            for names, values in groups.items():
                self._write(connection, names, values)
            flushed = perf_counter()
            connection.commit()
            done = perf_counter()
        return Timing(read - begin, changed - read, flushed - changed, done - flushed)

    def _grouped(self, loaded: Iterable[Any]) -> Mapping[tuple[str, ...], list[dict[str, Any]]]:
        stamp = next(_stamps)
        groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        for index, row in enumerate(loaded):
            values = self.shape.values(index, stamp)
            if self.shape is Shape.LIVELY:
                values["touched"] = next_touch()
            keyed = {"key": row.id, "expected": row.version, **values}
            groups.setdefault(tuple(values), []).append(keyed)
        return groups

    def _write(self, connection: Any, names: tuple[str, ...], values: list[dict[str, Any]]) -> None:
        if self.engine.dialect.name == "postgresql" and len(values) > 1:
            columns = {name: [row[name] for row in values] for name in values[0]}
            written = connection.execute(_update_from_arrays(self.table, names), columns).rowcount
        else:
            written = connection.execute(_update_by_key(self.table, names), values).rowcount
        if written != len(values):
            raise RuntimeError(f"{len(values) - written} rows of {self.table.name} were missed")


@functools.cache
def _update_by_key(table: Table, names: tuple[str, ...]) -> Update:
    return (
        update(table)
        .where(table.c.id == bindparam("key"), table.c.version == bindparam("expected"))
        .values({name: bindparam(name) for name in names})
        .values(version=table.c.version + 1)
    )


@functools.cache
def _update_from_arrays(table: Table, names: tuple[str, ...]) -> Update:
    sources = {"key": "id", "expected": "version", **{name: name for name in names}}
    arrays = (
        cast(bindparam(name), ARRAY(table.c[column].type)) for name, column in sources.items()
    )
    given = func.unnest(*arrays).table_valued(*sources, name="given").render_derived()
    return (
        update(table)
        .where(table.c.id == given.c.key, table.c.version == given.c.expected)
        .values({name: given.c[name] for name in names})
        .values(version=table.c.version + 1)
    )


Subject = ByOrm | ByHand


def build(
    engine: Engine, rows: int, shape: Shape, *, only: Iterable[str] = tuple(MODELS)
) -> dict[str, Subject]:
    """The subjects that ``only`` names, each on a new table of ``rows`` rows."""
    return {name: _subject(name, engine, rows, shape) for name in only}


def _subject(name: str, engine: Engine, rows: int, shape: Shape) -> Subject:
    model = MODELS[name][shape is Shape.LIVELY]
    create(engine, model, rows)
    if name == "hand-written":
        return ByHand(engine, table_of(model), rows, shape)
    sessions = sessionmaker(engine)
    if name == "optilock":
        sessions = watch(sessions)
    return ByOrm(sessions, model, rows, shape)


@dataclass
class Whole:
    """A unit of work from opening its session to closing it, timed as one."""

    run: Callable[[], object]

    def __call__(self) -> Timing:
        begin, cpu = perf_counter(), process_time()
        self.run()
        return Timing(load=perf_counter() - begin, cpu=process_time() - cpu)


def whole_units(engine: Engine) -> dict[str, Whole]:
    """One row loaded, changed and committed, by each way from opening a session to closing it."""
    native, ours = MODELS["native"][False], MODELS["optilock"][False]
    unversioned = MODELS["unversioned"][False]
    for model in (native, ours, unversioned):
        create(engine, model, 1)
    by_hand = _subject("hand-written", engine, 1, Shape.SAME)
    plain, watched, sessions = (
        sessionmaker(engine),
        watch(sessionmaker(engine)),
        sessionmaker(engine),
    )

    def by_session(make: sessionmaker[Session], model: type[Any]) -> None:
        with make() as session:
            rename(session, model)
            session.commit()

    def unit() -> None:
        with UnitOfWork(sessions) as session:
            rename(session, ours)

    @unit_of_work(sessions)
    def decorated(session: Session) -> None:
        rename(session, ours)

    return {
        "native": Whole(functools.partial(by_session, plain, native)),
        "unversioned": Whole(functools.partial(by_session, plain, unversioned)),
        "hand-written": Whole(by_hand),
        "optilock": Whole(functools.partial(by_session, watched, ours)),
        "UnitOfWork": Whole(unit),
        "@unit_of_work": Whole(decorated),
    }


def rename(session: Session, model: type[Any]) -> None:
    """Load the one row and change it."""
    session.get_one(model, 1).name = f"name {next(_stamps)}"
