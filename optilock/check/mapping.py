"""What the mapping alone tells."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Column, types
from sqlalchemy.orm import Mapper

from optilock.check.finding import Finding, Severity
from optilock.mapped.facts import facts
from optilock.mapping.compared import compared_names
from optilock.versioned import Versioned

__all__ = ["check_mapping"]


def check_mapping(mapper: Mapper[Any]) -> Iterator[Finding]:
    """Is there a version, and does anything make it move, or conflict, without need?"""
    name = mapper.class_.__name__
    if not facts(mapper).guarded:
        yield Finding(
            "no-version",
            Severity.WARNING,
            name,
            "The class has no version: the last writer wins, and nobody is told.",
            "Add the mixin optilock.Versioned, if its rows have more than one writer.",
        )
        return
    if not issubclass(mapper.class_, Versioned) and mapper.inherits is None:
        yield Finding(
            "not-versioned",
            Severity.NOTE,
            name,
            "The class has SQLAlchemy's own version_id_col. Watched sessions guard it as it is.",
            "The mixin optilock.Versioned adds ignored columns and a resolver of the class's own.",
        )
    yield from _moving_by_itself(mapper)
    yield from _too_coarse(mapper)


def _moving_by_itself(mapper: Mapper[Any]) -> Iterator[Finding]:
    """Compared columns that every save writes: then any two saves conflict."""
    compared = compared_names(mapper, changed=(), deleting=True)
    for attribute, column in facts(mapper).columns.items():
        written = column.onupdate is not None or column.server_onupdate is not None
        if written and attribute in compared and column not in facts(mapper).ignored:
            yield Finding(
                "rewritten",
                Severity.WARNING,
                f"{mapper.class_.__name__}.{attribute}",
                "Every save writes the column, and its value is compared: writers of different"
                " columns always conflict.",
                "Name it in __version_ignore__, or compare other columns.",
            )


def _too_coarse(mapper: Mapper[Any]) -> Iterator[Finding]:
    token: Any = mapper.version_id_col
    if isinstance(token, Column) and isinstance(token.type, (types.Date, types.DateTime)):
        generator = mapper.version_id_generator
        if generator:
            yield Finding(
                "clock",
                Severity.WARNING,
                f"{mapper.class_.__name__}.{facts(mapper).names[token]}",
                "The version is a time that the program's own clock makes: two writes in one tick,"
                " or two clocks, can give the same version.",
                "Use Timestamp(), whose time is the server's and always moves on, or Counter().",
            )
