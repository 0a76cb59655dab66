"""A version that the database makes at every write.

::

    class Item(Versioned, Base):
        __version_token__ = RowVersion()            # a BIGINT that a trigger moves

    class Item(Versioned, Base):
        __version_token__ = RowVersion(xmin=True)   # PostgreSQL's own, without a column of ours

Programs that know nothing of the version move it as well: raw SQL, a console, another language.
That is what the other tokens cannot promise.

The trigger is made with the table by ``metadata.create_all()`` and goes with ``drop_all()``; in
migrations ``op.create_version_trigger`` makes it (:mod:`optilock.alembic.operations`). A table
without it is noticed by the first write, and refused.

``xmin`` is the number of the transaction that wrote the row's current version
(https://www.postgresql.org/docs/current/ddl-system-columns.html). It needs neither column nor
trigger. Two writes of one transaction share it, which hides nothing from others; restoring a dump
gives every row another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.types import BigInteger, Integer, String, TypeEngine, UserDefinedType

from optilock.errors import ConfigurationError
from optilock.tokens.base import Token


class _Xid(UserDefinedType[Any]):
    """PostgreSQL's type ``xid``, as the target of a cast."""

    cache_ok = True

    def get_col_spec(self, **options: Any) -> str:
        return "xid"


class TransactionId(sa.TypeDecorator[int]):
    """PostgreSQL's ``xid`` as an ``int``: cast, because nothing else can be compared with it."""

    impl = String
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> TypeEngine[Any]:
        if dialect.name not in ("postgresql", "default"):
            raise _not_postgresql(dialect.name)
        return String()

    def bind_expression(self, bindparam: Any) -> sa.ColumnElement[Any]:
        return sa.cast(bindparam, _Xid())

    def column_expression(self, column: Any) -> sa.ColumnElement[Any]:
        return sa.cast(sa.cast(column, String()), self)

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> str | None:
        return None if value is None else str(value)

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> int | None:
        return None if value is None else int(value)


def _not_postgresql(name: str) -> ConfigurationError:
    return ConfigurationError(
        f"RowVersion(xmin=True) is PostgreSQL's system column, which {name} does not have: use"
        " RowVersion(), which a trigger moves, or Counter()."
    )


@dataclass(frozen=True)
class RowVersion(Token):
    """1, 2, 3 … moved by a trigger with every UPDATE; or, with ``xmin=True``, PostgreSQL's xmin."""

    made_by = "database"
    every_write = True
    option = "row-version"

    xmin: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.xmin and self.column not in (None, "xmin"):
            raise ConfigurationError(
                f"RowVersion(xmin=True, column={self.column!r}): the column is called xmin. Remove"
                " column=."
            )
        if self.xmin:
            object.__setattr__(self, "column", "xmin")

    def type(self) -> TypeEngine[Any]:
        return TransactionId() if self.xmin else BigInteger()

    def accepts(self, column: sa.Column[Any]) -> bool:
        return self.xmin or isinstance(column.type, Integer)

    def take(self, column: sa.Column[Any]) -> None:
        """The database gives the first value and the following ones."""
        for what in ("default", "onupdate"):
            if getattr(column, what) is not None:
                raise self._alone(column, what)
        if self.xmin:
            column.type, column.system = self.type(), True
            column.server_default = sa.FetchedValue()
        elif column.server_default is None:
            column.server_default = sa.DefaultClause(sa.text("1"))
        column.server_onupdate = sa.FetchedValue(for_update=True)

    def touch(self, column: sa.Column[Any]) -> Mapping[sa.Column[Any], sa.ColumnElement[Any]]:
        """Any UPDATE will do; nothing can be assigned to ``xmin``."""
        if not self.xmin:
            return {column: column}
        key = next(iter(column.table.primary_key))
        return {key: key}

    @property
    def has_trigger(self) -> bool:
        return not self.xmin

    @property
    def is_system(self) -> bool:
        return self.xmin

    def first(self) -> sa.ColumnElement[Any] | None:
        return None if self.xmin else sa.literal(1)

    def again(self, value: Any) -> Any:
        return None if self.xmin else value + 1
