"""What the tables of a mapping should have in the database on account of their versions.

Migrations compare it with what is there, and so do checks::

    for table, wanted in expected(Base.metadata.tables.values()).items():
        print(table.name, wanted.token, wanted.column.name)

Asked of the classes, not of the tables: which attributes are ignored, for example, is known only
when the whole hierarchy of a class is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column, Table, inspect
from sqlalchemy.orm import Mapper

from optilock.mapped import facts
from optilock.mapping.triggers import keys_without_rowid
from optilock.tokens import Token
from optilock.tokens.guard_trigger import GuardTrigger
from optilock.versioned import OWN, Versioned

__all__ = ["Expected", "expected", "is_own", "is_version", "keys_without_rowid"]


@dataclass(frozen=True)
class Expected:
    """A table with a version: what it should have."""

    mapper: Mapper[Any]
    token: Token
    column: Column[Any]

    @property
    def table(self) -> Table:
        return self.column.table

    @property
    def guard(self) -> GuardTrigger | None:
        """The guard trigger, if the class asks for one (``__version_guard__``).

        A computed column follows from others, so it counts as little as an ignored one.
        """
        policy = self.mapper.class_.__version_guard__
        if policy is None:
            return None
        columns = [column for column in self.table.columns if column is not self.column]
        without = facts(self.mapper).ignored
        ignore = [c.name for c in columns if c in without or c.computed is not None]
        return GuardTrigger(
            self.table.name,
            self.token,
            policy,
            tuple(ignore),
            tuple(c.name for c in columns if c.name not in ignore) if ignore else (),
            self.table.schema,
            keys_without_rowid(self.table),
        )

    @property
    def moves_by_trigger(self) -> bool:
        """Does a trigger make the versions?"""
        return self.token.has_trigger


def expected(tables: Iterable[Table]) -> dict[Table, Expected]:
    """Those of ``tables`` that hold the version of a class, and what they should have."""
    wanted = frozenset(tables)
    found: dict[Table, Expected] = {}
    for mapper in _mappers():
        token = facts(mapper).kind
        column = mapper.version_id_col
        if token is None or not isinstance(column, Column) or column.table not in wanted:
            continue
        found.setdefault(column.table, Expected(mapper, token, column))
    return found


def is_version(column: Column[Any]) -> bool:
    """Is this the version of a class?"""
    return any(mapper.version_id_col is column for mapper in _mappers())


def is_own(column: Column[Any]) -> bool:
    """Has the mixin made this version's column, which no class declares?"""
    return OWN in column.__dict__


def _mappers() -> Iterator[Mapper[Any]]:
    """Of all Versioned classes, bases before their subclasses."""
    waiting: list[type[Any]] = [Versioned]
    seen: set[type[Any]] = set()
    for cls in waiting:
        for subclass in cls.__subclasses__():
            if subclass in seen:
                continue
            seen.add(subclass)
            waiting.append(subclass)
            mapper = inspect(subclass, raiseerr=False)
            if isinstance(mapper, Mapper):
                yield mapper
