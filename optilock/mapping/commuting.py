"""``__version_commutes__``: columns to which writers add, in whatever order they come.

::

    class Page(Versioned, Base):
        __version_commutes__ = ("likes",)

``page.likes += 1`` alone is written as ``SET likes = likes + 1``, whatever the version is, and so
never conflicts (:mod:`optilock.watched.writes.commuting`). That is right only for a column whose
writers mean the difference, so each is named. It is a number that adds up exactly, in any order:
integers and ``Numeric``. Sums of floats depend on the order, and a type of the application may mean
anything by a plus.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, Float, Integer, Numeric
from sqlalchemy.orm import Mapper

from optilock.errors import ConfigurationError
from optilock.mapped import facts
from optilock.mapping.checks import check_tokens, check_whose, named_by, names_in

_OPTION = "__version_commutes__"


def check_commuting(mapper: Mapper[Any], cls: type[Any]) -> None:
    """Refuse a ``__version_commutes__`` with what cannot be added to.

    Raises:
        ConfigurationError: a name is no column that adds up exactly, or the token cannot move
            without the values of the row, or without the application.
    """
    names = names_in(cls, _OPTION, "attributes", "likes")
    if names:
        _check_token(cls)
    for name in names:
        _check_column(mapper, name, check_whose(mapper, name, _OPTION))


def check_composites(mapper: Mapper[Any], cls: type[Any]) -> None:
    """Refuse a column of a composite, whose parts belong together; once mappers are configured."""
    for group in facts(mapper).together:
        for name in group.intersection(named_by(mapper, _OPTION)):
            others = ", ".join(sorted(group - {name}))
            raise _refused(
                mapper, name, f"belongs together with {others}, and no sum knows of those"
            )


def _check_token(cls: type[Any]) -> None:
    token, rule = check_tokens(cls)
    if token is None or rule is not None or token.made_by not in ("python", "database"):
        raise ConfigurationError(
            f"{cls.__name__}.{_OPTION} is set beside {cls.__version_token__!r}, and its version"
            " cannot move on from one that nobody has read: give the class Counter() or Unique()"
            f" alone, or remove {_OPTION}."
        )


def _check_column(mapper: Mapper[Any], name: str, column: Column[Any]) -> None:
    version = facts(mapper).version
    if not _adds_up(column.type):
        raise _refused(
            mapper, name, f"is of type {column.type!r}: integers and Numeric add up exactly"
        )
    if column.computed is not None:
        raise _refused(mapper, name, "is computed by the database")
    if column.foreign_keys:
        raise _refused(mapper, name, "is a foreign key, which names a row and is no sum")
    if name in named_by(mapper, "__version_ignore__"):
        raise _refused(mapper, name, "is in __version_ignore__ as well: remove it from one of them")
    if version is not None and column.table is not version.table:
        raise _refused(
            mapper, name, f"is in {column.table.name}, and the version in {version.table.name}"
        )


def _adds_up(kind: Any) -> bool:
    if isinstance(kind, Numeric):
        return bool(kind.asdecimal) and not isinstance(kind, Float)
    return isinstance(kind, Integer)


def _refused(mapper: Mapper[Any], name: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"{mapper.class_.__name__}.{_OPTION} names {name!r}, which {why}. Remove it: then its"
        " writes are checked as any other, and per_field(...=add_delta) can merge them."
    )
