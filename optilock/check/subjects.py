"""What is looked at: mapped classes, and the tables behind them.

Each table is looked at once, however many classes share it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from sqlalchemy import Column, Integer, Table, Uuid, inspect
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Mapper, registry

from optilock.errors import ConfigurationError
from optilock.rollout.report import command
from optilock.schema import Expected, expected
from optilock.tokens import Counter, Token, Unique


@dataclass(frozen=True)
class Subject:
    """A table, and the class that says most about it."""

    table: Table
    mapper: Mapper[Any]
    #: The version's column, if it is one of this table.
    version: Column[Any] | None
    #: What it should have on account of its version, if optilock's mixin gives it one.
    wanted: Expected | None = None

    @property
    def name(self) -> str:
        """The class, by its name."""
        return str(self.mapper.class_.__name__)

    @property
    def counts(self) -> bool:
        """Is the next version one more?"""
        token = _native(self.version) if self.wanted is None else self.wanted.token
        return token is not None and token.counts

    @property
    def roll_out(self) -> str:
        """What to do for a version that is not there, or not in every row."""
        token = _native(self.version) if self.wanted is None else self.wanted.token
        guard = None if self.wanted is None else self.wanted.guard
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
    wanted = expected(found)
    told = (replace(subject, wanted=wanted.get(table)) for table, subject in found.items())
    return sorted(told, key=lambda subject: (subject.name, subject.table.fullname))


def mappers_of(models: Any) -> list[Mapper[Any]]:
    """The mappers, configured, by the names of their classes.

    Raises:
        ConfigurationError: there is none, or they do not fit together.
    """
    found = dict.fromkeys(_mappers(models))
    if not found:
        raise ConfigurationError(
            f"{_name_of(models)} has no mapped classes: name the module or the declarative base"
            " that has the application's models."
        )
    _configure({mapper.registry for mapper in found})
    return sorted(found, key=lambda mapper: (mapper.class_.__module__, mapper.class_.__qualname__))


def _configure(registries: Iterable[registry]) -> None:
    """As the first query would: relationships that lead nowhere are found here."""
    try:
        for known in registries:
            known.configure(cascade=True)
    except SQLAlchemyError as error:
        raise ConfigurationError(
            f"The models cannot be used: {error}. Import all modules that have models, or name"
            " them all."
        ) from error


def _mappers(models: Any) -> Iterator[Mapper[Any]]:
    if isinstance(models, registry):
        yield from models.mappers
    elif isinstance(models, ModuleType):
        for value in vars(models).values():
            if isinstance(value, (registry, type)):
                yield from _mappers(value)
    elif isinstance(models, type):
        yield from _of_class(models)
    elif isinstance(models, Iterable) and not isinstance(models, (str, bytes)):
        for one in models:
            yield from _mappers(one)


def _of_class(cls: type[Any]) -> Iterator[Mapper[Any]]:
    mapper = inspect(cls, raiseerr=False)
    known = getattr(cls, "registry", None)
    if isinstance(mapper, Mapper):
        yield mapper
    elif isinstance(known, registry):
        yield from known.mappers


def _name_of(models: Any) -> str:
    return getattr(models, "__name__", None) or type(models).__name__
