"""The driver alone, as somebody writes it who counts every statement: psycopg, PyMySQL, sqlite3.

It locks with FOR UPDATE, and on SQLite with BEGIN IMMEDIATE. The texts of the statements are made
once, and a row is written as soon as its values are there.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any, TypeVar

from sqlalchemy import make_url

from benchmarks.stores.again import again
from benchmarks.stores.kinds import Kind
from benchmarks.stores.rows import Raise, Work

__all__ = ["Driver", "connect"]

T = TypeVar("T")

_READ_COMMITTED = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"


def connect(url: str) -> Any:
    """A connection of the driver that SQLAlchemy would take for this URL."""
    place = make_url(url)
    dialect = place.get_dialect()()
    _, given = dialect.create_connect_args(place)
    if dialect.name == "sqlite":
        import sqlite3

        connection = sqlite3.connect(str(place.database), isolation_level=None)
        connection.execute("PRAGMA synchronous=OFF")
        return connection
    if dialect.name == "mysql":
        given["init_command"] = _READ_COMMITTED
    return place.get_dialect().import_dbapi().connect(**given)


@functools.cache
def _select(kind: Kind, end: str, mark: str) -> str:
    return f"SELECT id, {', '.join(kind.columns)} FROM {kind.name} WHERE id = {mark}{end}"


@functools.cache
def _update(kind: Kind, names: tuple[str, ...], mark: str) -> str:
    changed = ", ".join(f"{name} = {mark}" for name in names)
    return f"UPDATE {kind.name} SET {changed} WHERE id = {mark}"


@functools.cache
def _insert(kind: Kind, names: tuple[str, ...], mark: str) -> str:
    return f"INSERT INTO {kind.name} ({', '.join(names)}) VALUES ({', '.join([mark] * len(names))})"


class DriverRows:
    """Rows of a cursor."""

    def __init__(self, cursor: Any, mark: str, lock: str) -> None:
        self._cursor = cursor
        self._mark = mark
        self._lock = lock

    def read(self, kind: Kind, key: int) -> Any:
        return self._read(kind, key, "")

    def edit(self, kind: Kind, key: int) -> Any:
        return self._read(kind, key, self._lock)

    sure = edit

    def _read(self, kind: Kind, key: int, end: str) -> Any:
        self._cursor.execute(_select(kind, end, self._mark), (key,))
        found = zip(("id", *kind.columns), self._cursor.fetchone(), strict=True)
        return SimpleNamespace(**dict(found))

    def set(self, kind: Kind, row: Any, **values: Any) -> None:
        statement = _update(kind, tuple(values), self._mark)
        self._cursor.execute(statement, (*values.values(), row.id))

    def raise_by(self, *raises: Raise) -> None:
        for kind, key, column, amount in raises:
            statement = f"UPDATE {kind.name} SET {column} = {column} + {self._mark} WHERE id = "
            self._cursor.execute(statement + self._mark, (amount, key))

    def add(self, kind: Kind, **values: Any) -> None:
        self._cursor.execute(_insert(kind, tuple(values), self._mark), tuple(values.values()))


class Driver:
    """One connection and one cursor."""

    def __init__(self, url: str) -> None:
        self._connection = connect(url)
        self._cursor = self._connection.cursor()
        self._sqlite = url.startswith("sqlite")
        self._given = ("?", "") if self._sqlite else ("%s", " FOR UPDATE")

    def run(self, work: Work[T]) -> T:
        return again(lambda: self._attempt(work))

    look = run

    def _attempt(self, work: Work[T]) -> T:
        if self._sqlite:
            self._cursor.execute("BEGIN IMMEDIATE")
        try:
            found = work(DriverRows(self._cursor, *self._given))
            self._connection.commit()
        except BaseException:
            self._connection.rollback()
            raise
        return found

    def close(self) -> None:
        self._connection.close()
