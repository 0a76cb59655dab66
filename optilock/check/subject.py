"""The tables behind the classes: each is looked at once, however many classes share it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column, Integer, Table, Uuid
from sqlalchemy.orm import Mapper

from optilock.rollout.words import command
from optilock.schema import expected
from optilock.tokens import Counter, Token, Unique

__all__ = ["Subject", "subjects_of"]


@dataclass(frozen=True)
class Subject:
    """A table, and the class that says most about it."""

    table: Table
    mapper: Mapper[Any]
    #: The version's column, if it is one of this table.
    version: Column[Any] | None

    @property
    def name(self) -> str:
        """The class, by its name."""
        return str(self.mapper.class_.__name__)

    @property
    def roll_out(self) -> str:
        """What to do for a version that is not there, or not in every row."""
        wanted = expected([self.table]).get(self.table)
        token = _native(self.version) if wanted is None else wanted.token
        guard = None if wanted is None else wanted.guard
        found = token and command(self.table.name, self.table.schema, token, guard)
        return f"Run {found}" if found else "Write a migration of your own"


def _native(version: Column[Any] | None) -> Token | None:
    """The token whose column SQLAlchemy's own ``version_id_col`` is like."""
    if version is None or not isinstance(version.type, (Integer, Uuid)):
        return None
    kind = Counter if isinstance(version.type, Integer) else Unique
    return kind(column=version.name)


def subjects_of(mappers: Iterable[Mapper[Any]]) -> list[Subject]:
    """The tables of these classes, and those of their many-to-many relationships."""
    found: dict[Table, Subject] = {}
    known = sorted(mappers, key=lambda mapper: len(tuple(mapper.iterate_to_root())))
    for mapper in known:
        for table in mapper.tables:
            if not isinstance(table, Table):
                continue  # a query
            version = mapper.version_id_col
            mine = version if isinstance(version, Column) and version.table is table else None
            if table not in found or (mine is not None and found[table].version is None):
                found[table] = Subject(table, mapper, mine)
    for mapper in known:
        for relationship in mapper.relationships:
            if isinstance(relationship.secondary, Table):
                found.setdefault(
                    relationship.secondary, Subject(relationship.secondary, mapper, None)
                )
    return sorted(found.values(), key=lambda subject: (subject.name, subject.table.fullname))
