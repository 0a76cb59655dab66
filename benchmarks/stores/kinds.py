"""The tables, described once for every library, and made in the database."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column, Connection, Engine, Integer, MetaData, String, Table, text

from benchmarks.series import NUMBERS

__all__ = ["Kind", "create", "empty", "fill", "settle", "table_of"]

_METADATA = MetaData()


@dataclass(frozen=True)
class Kind:
    """A table: a key, numbers, texts, and a version that only some libraries look at."""

    name: str
    numbers: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    #: Without one, rows are only inserted, and the database makes their keys.
    versioned: bool = True

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns beside key and version."""
        return (*self.numbers, *self.texts)


@functools.cache
def table_of(kind: Kind) -> Table:
    """The table of this kind."""
    columns: list[Column[Any]] = [Column(name, Integer, nullable=False) for name in kind.numbers]
    columns += [Column(name, String(100), nullable=False) for name in kind.texts]
    if kind.versioned:
        columns.append(Column("version", Integer, nullable=False, server_default="1"))
    key = Column("id", Integer, primary_key=True, autoincrement=not kind.versioned)
    return Table(kind.name, _METADATA, key, *columns)


def create(engine: Engine, *kinds: Kind) -> None:
    """The tables, new and empty."""
    for kind in kinds:
        table_of(kind).drop(engine, checkfirst=True)
        table_of(kind).create(engine)


def empty(connection: Connection, kind: Kind) -> None:
    """No rows, and nothing left of those that were there."""
    way = "DELETE FROM" if connection.dialect.name == "sqlite" else "TRUNCATE TABLE"
    connection.execute(text(f"{way} {kind.name}"))


def fill(connection: Connection, kind: Kind, rows: int, values: Mapping[str, str | int]) -> None:
    """Rows 1 to ``rows``, all with these values."""
    names = ", ".join(("id", *values))
    given = ", ".join(("n", *(f":{name}" for name in values)))
    series = NUMBERS[connection.dialect.name]
    statement = text(f"INSERT INTO {kind.name} ({names}) {series} SELECT {given} FROM numbers")
    connection.execute(statement, {"most": rows, **values})


def settle(engine: Engine, *kinds: Kind) -> None:
    """What the database does after many changes, done before the clock runs."""
    ways = {"postgresql": "VACUUM (FREEZE, ANALYZE)", "sqlite": "ANALYZE"}
    way = ways.get(engine.dialect.name, "ANALYZE TABLE")
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for kind in kinds:
            connection.execute(text(f"{way} {kind.name}"))
