"""SQLAlchemy Core: a SELECT, and an UPDATE that names the version, both written out."""

from __future__ import annotations

import functools
from typing import Any, TypeVar

from sqlalchemy import Connection, bindparam, insert, select, update

from benchmarks.stores.again import Conflict, again
from benchmarks.stores.by_sqlalchemy import engine_for
from benchmarks.stores.kinds import Kind, table_of
from benchmarks.stores.rows import Raise, Work

__all__ = ["Core"]

T = TypeVar("T")


@functools.cache
def _select(kind: Kind) -> Any:
    table = table_of(kind)
    return select(table).where(table.c.id == bindparam("key"))


@functools.cache
def _update(kind: Kind, names: tuple[str, ...]) -> Any:
    table = table_of(kind)
    return (
        update(table)
        .where(table.c.id == bindparam("key"), table.c.version == bindparam("expected"))
        .values({name: bindparam(name) for name in names})
        .values(version=table.c.version + 1)
    )


@functools.cache
def _raise(kind: Kind, column: str) -> Any:
    table = table_of(kind)
    changed = {column: table.c[column] + bindparam("amount"), "version": table.c.version + 1}
    return update(table).where(table.c.id == bindparam("key")).values(changed)


class CoreRows:
    """Rows of a connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def read(self, kind: Kind, key: int) -> Any:
        return self._connection.execute(_select(kind), {"key": key}).one()

    sure = edit = read

    def set(self, kind: Kind, row: Any, **values: Any) -> None:
        statement = _update(kind, tuple(values))
        given = {"key": row.id, "expected": row.version, **values}
        if self._connection.execute(statement, given).rowcount != 1:
            raise Conflict

    def raise_by(self, *raises: Raise) -> None:
        for kind, key, column, amount in raises:
            self._connection.execute(_raise(kind, column), {"key": key, "amount": amount})

    def add(self, kind: Kind, **values: Any) -> None:
        self._connection.execute(insert(table_of(kind)), values)


class Core:
    """``engine.begin()`` in a loop."""

    def __init__(self, url: str, *, at_once: bool = False) -> None:
        self._engine = engine_for(url)
        self._at_once = at_once

    def run(self, work: Work[T]) -> T:
        def attempt() -> T:
            with self._engine.begin() as connection:
                return work(CoreRows(connection))

        return again(attempt, at_once=self._at_once)

    look = run

    def close(self) -> None:
        self._engine.dispose()
