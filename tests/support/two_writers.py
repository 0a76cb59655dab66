"""Fixtures of the tests with two writers: rows, our session, and the other program.

``store(*objects)``            the rows that are there at first
``async_store(*objects)``      the same, for a test with ``async_engine``
``account``                    the class of two rows that are there: Ada's account, and Bob's
``watched(on_conflict=…)``     our session, guarded; ``watched_on(engine, …)`` on another engine
``other(Model, key, **values)``  another program changes a row, and commits
``gone(Model, key)``           another program deletes a row, and commits
``stored(Model, key)``         what is in the table now, as a dictionary; ``None`` without a row
``refused(session)``           flush, and give the ConcurrencyError that it must raise
``line``                       a line to the database, on which round trips are counted
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from sqlalchemy import Engine, Table, inspect, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, sessionmaker

from optilock import ConcurrencyError, watch
from optilock.testing import Wire, wire
from tests.engines.target import KEPT, Target
from tests.support.models import Account

Do = Callable[..., Any]


def tables_of(*classes: type[Any]) -> list[Table]:
    """The tables of these classes, and those they refer to."""
    found: dict[Table, None] = {}
    waiting = [table for cls in classes for table in inspect(cls).tables]
    for cls in classes:
        waiting += [r.secondary for r in inspect(cls).relationships if r.secondary is not None]
        waiting += [t for r in inspect(cls).relationships for t in r.mapper.tables]
    while waiting:
        table = waiting.pop()
        if table not in found:
            found[table] = None
            waiting += [key.column.table for key in table.foreign_keys]
    return list(found)


def _create(engine: Engine, *classes: type[Any]) -> None:
    wanted = tables_of(*classes)
    kept = KEPT.get(engine)
    if kept is not None and not any(table.schema for table in wanted):
        kept.create(engine, wanted)
        return
    # One question in place of one for each table: most databases are empty.
    exists = bool(inspect(engine).get_table_names())
    for metadata in {table.metadata for table in wanted}:
        of_it = [table for table in wanted if table.metadata is metadata]
        metadata.create_all(engine, tables=of_it, checkfirst=exists)


def _store(engine: Engine, *objects: Any) -> None:
    _create(engine, *dict.fromkeys(type(obj) for obj in objects))
    with Session(engine) as session, session.begin():
        session.add_all(objects)


@pytest.fixture
def tables(engine: Engine) -> Do:
    return functools.partial(_create, engine)


@pytest.fixture
def store(engine: Engine, tables: Do) -> Do:
    """Asks for ``tables``, so that they stay for the next test."""
    return functools.partial(_store, engine)


@pytest.fixture
def async_tables(async_database: Target) -> Iterator[Do]:
    engine = async_database.engine()
    yield functools.partial(_create, engine)
    engine.dispose()


@pytest.fixture
def async_store(async_database: Target) -> Iterator[Do]:
    """By a sync driver."""
    engine = async_database.engine()
    yield functools.partial(_store, engine)
    engine.dispose()


@pytest.fixture
def watched(engine: Engine, watched_on: Do) -> Do:
    return functools.partial(watched_on, engine)


@pytest.fixture
def account(store: Do) -> type[Account]:
    """Ada's account and Bob's."""
    store(Account(id=1, owner="Ada", balance=10, note="n"), Account(id=2, owner="Bob"))
    return Account


@pytest.fixture
def watched_on() -> Iterator[Do]:
    with ExitStack() as stack:

        def watched_on(
            bind: Any, on_conflict: Any = None, on_delete: Any = None, **options: Any
        ) -> Session:
            sessions = sessionmaker(bind, **options)
            watch(sessions, on_conflict=on_conflict, on_delete=on_delete)
            return stack.enter_context(sessions())

        yield watched_on


@pytest.fixture
def other(engine: Engine) -> Do:
    def other(model: type[Any], key: Any, **values: Any) -> None:
        with Session(engine) as session, session.begin():
            row = session.get_one(model, key)
            for name, value in values.items():
                setattr(row, name, value)

    return other


@pytest.fixture
def gone(engine: Engine) -> Do:
    def gone(model: type[Any], key: Any) -> None:
        with Session(engine) as session, session.begin():
            session.delete(session.get_one(model, key))

    return gone


@pytest.fixture
def stored(engine: Engine) -> Do:
    def stored(model: type[Any], key: Any) -> dict[str, Any] | None:
        names = inspect(model).column_attrs.keys()
        with Session(engine) as session:
            row = session.get(model, key)
            return None if row is None else {name: getattr(row, name) for name in names}

    return stored


@pytest.fixture
def refused(engine: Engine) -> Do:
    """Where the database itself ends the transaction, its error must be the cause."""

    def refused(session: Session, act: Callable[[], Any] | None = None) -> ConcurrencyError:
        with pytest.raises(ConcurrencyError) as caught:
            (act or session.flush)()
        if ends_transactions(engine):
            assert isinstance(caught.value.__cause__, DBAPIError)
        return caught.value

    return refused


@pytest.fixture
def line(database: Target) -> Iterator[Wire]:
    with wire(database.url) as line:
        yield line


def ends_transactions(engine: Engine) -> bool:
    """Does the database answer a conflict by ending the transaction (``mariadb-snapshot``)?"""
    if engine.dialect.name not in ("mysql", "mariadb"):
        return False
    with engine.connect() as connection:
        return bool(connection.scalar(text("SELECT @@innodb_snapshot_isolation")))
