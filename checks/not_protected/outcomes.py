"""What becomes of each way to write: protected, refused, warned or silent."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import Engine, delete, event, insert, inspect, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import sessionmaker
from sqlalchemy.orm.exc import StaleDataError

import optilock.alembic  # noqa: F401
from checks.not_protected.ways import (
    WAYS,
    Base,
    GuardedPage,
    Owner,
    OwnerOfGuarded,
    Page,
    Way,
)
from optilock import OptilockError, watch
from optilock.tokens import Counter
from tests.engines import Target

__all__ = [
    "COLUMNS",
    "PROTECTED",
    "REFUSED",
    "SILENT",
    "WARNED",
    "Outcomes",
    "opened",
    "outcomes_of",
]

PROTECTED, REFUSED, WARNED, SILENT = "protected", "refused", "warned", "silent"
#: One outcome for each column, by the name of the way.
Outcomes: TypeAlias = dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class Column:
    """What a program adds."""

    title: str
    make: Callable[[Engine], Any]
    model: type[Any] = Page


COLUMNS = (
    Column("plain session", sessionmaker),
    Column("watched", lambda engine: watch(sessionmaker(engine))),
    Column("strict", lambda engine: watch(sessionmaker(engine), strict=True)),
    Column(
        "strict, guard trigger",
        lambda engine: watch(sessionmaker(engine), strict=True),
        GuardedPage,
    ),
)


@contextmanager
def opened(database: Target) -> Iterator[Engine]:
    """An engine with the tables and the guard trigger."""
    engine = database.engine()
    if database.family == "sqlite":

        @event.listens_for(engine, "connect")
        def connect(connection: Any, record: Any) -> None:
            connection.execute("PRAGMA foreign_keys = ON")

    Base.metadata.create_all(engine)
    try:
        with engine.begin() as connection:
            operations: Any = Operations(MigrationContext.configure(connection))
            operations.create_guard_trigger(GuardedPage.__tablename__, Counter(), "reject")
        yield engine
    finally:
        Base.metadata.drop_all(engine)
        engine.dispose()


def outcomes_of(engine: Engine, only: str | None = None) -> Outcomes:
    """Try each way, or ``only`` one, with each column."""
    return {
        name: tuple(_outcome(way, column, engine) for column in COLUMNS)
        for name, way in WAYS.items()
        if only in (None, name)
    }


def _outcome(way: Way, column: Column, engine: Engine) -> str:
    found = {_stale(way, column, engine), _of_a_reader(way, column, engine)}
    return next(one for one in (SILENT, WARNED, REFUSED, PROTECTED) if one in found)


def _stale(way: Way, column: Column, engine: Engine) -> str:
    """The author has read the row; others change it; then it is written in this way."""
    model = column.model
    _fill(engine, model)

    def meanwhile() -> None:
        with engine.begin() as connection:
            values = {"title": "theirs", "version": 2}
            connection.execute(update(model.__table__).values(values))

    def is_lost() -> bool:
        return _stored(engine, model) not in ({"title": "theirs"}, {"title": "first"})

    return _judged(lambda: way(column.make(engine), model, meanwhile), is_lost)


def _of_a_reader(way: Way, column: Column, engine: Engine) -> str:
    """Others have read the row; it is written in this way; then they write what they have read."""
    model, refused = column.model, []
    _fill(engine, model)
    make = column.make(engine)

    def story() -> None:
        with make() as reader:
            row = reader.get_one(model, 1)
            try:
                way(make, model, lambda: None)
            except (OptilockError, DBAPIError) as error:
                refused.append(error)
                raise
            row.title, row.owner_id = "reader", 2
            reader.commit()

    found = _judged(story, lambda: True)
    return REFUSED if refused else found


def _judged(act: Callable[[], None], is_lost: Callable[[], bool]) -> str:
    for model in (Page, GuardedPage):
        vars(inspect(model)).pop("_optilock_merge_warned", None)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            act()
        except StaleDataError:
            return PROTECTED
        except OptilockError:
            return REFUSED
        except DBAPIError as error:
            if "version" not in str(error.orig):  # that of the trigger
                raise
            return REFUSED
    if not is_lost():
        return PROTECTED
    told = any(one.category.__module__.startswith("optilock") for one in heard)
    return WARNED if told else SILENT


def _fill(engine: Engine, model: type[Any]) -> None:
    with engine.begin() as connection:
        for one in (Page, GuardedPage, Owner, OwnerOfGuarded):
            connection.execute(delete(one.__table__))
        owners = [{"id": 1, "version": 1}, {"id": 2, "version": 1}]
        connection.execute(insert(model.owner.__table__), owners)
        row = {"id": 1, "title": "first", "owner_id": 1, "version": 1}
        connection.execute(insert(model.__table__), [row])


def _stored(engine: Engine, model: type[Any]) -> dict[str, str] | None:
    with engine.connect() as connection:
        row = connection.execute(select(model.__table__.c.title)).first()
    return None if row is None else dict(row._mapping)
