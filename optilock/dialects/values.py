"""What a column keeps of a value, and whether SQL compares it as exactly as Python does."""

from __future__ import annotations

import re
import struct
from typing import Any

from sqlalchemy import (
    DDL,
    ColumnElement,
    Dialect,
    MetaData,
    Select,
    Table,
    Update,
    cast,
    literal,
    types,
)
from sqlalchemy.types import TypeEngine

from optilock.undocumented.connections import double_percents

__all__ = ["Values"]

_BITS = re.compile(r"FLOAT\((\d+)\)")


class Values:
    """What a database can be asked about values."""

    #: Types whose values SQL compares as exactly as Python does.
    exact_types: tuple[type[TypeEngine[Any]], ...] = (
        types.Integer,
        types.Boolean,
        types.Date,
        types.Uuid,
    )

    def compares_exactly(self, kind: TypeEngine[Any]) -> bool:
        """Is a stored value the one that was read whenever SQL says that they are equal?

        Not so where a collation ignores case, where a fraction is rounded, or where a type of the
        application translates.
        """
        if isinstance(kind, types.TypeDecorator) or getattr(kind, "collation", None):
            return False
        if getattr(kind, "precision", None) is not None:
            return False
        return isinstance(kind, self.exact_types) and not isinstance(kind, (types.Enum, types.CHAR))

    #: Types of which a column may keep less than it is given, as a CAST does.
    rounded_types: tuple[type[TypeEngine[Any]], ...] = (
        types.Numeric,
        types.Integer,
        types.Date,
        types.DateTime,
        types.Time,
    )

    def as_stored(self, kind: TypeEngine[Any], value: Any, dialect: Dialect) -> ColumnElement[Any]:
        """SQL that gives what is read from a column of that type when ``value`` was written."""
        inner = kind.load_dialect_impl(dialect) if isinstance(kind, types.TypeDecorator) else kind
        given = literal(value, kind)
        rounds = isinstance(inner, self.rounded_types) and not _is_float(inner, dialect)
        return cast(given, kind) if rounds else given

    def is_float_kept(
        self, kind: TypeEngine[Any], given: Any, read: Any, dialect: Dialect
    ) -> bool | None:
        """Is ``read`` what a column of that type keeps of the float ``given``?

        Asked of no CAST, which databases have for some of their types of floats only. ``None``:
        these are no floats.
        """
        if isinstance(kind, types.TypeDecorator) or not _is_float(kind, dialect):
            return None
        declared = kind.compile(dialect=dialect).upper()
        return self.kept_of(float(given), declared) == self.kept_of(float(read), declared)

    #: What a float of single precision is called without a number of bits; None: there is none.
    single: str | None = None

    def kept_of(self, value: float, declared: str) -> object:
        """What tells the float apart from others in a column that is declared so."""
        bits = _BITS.fullmatch(declared)
        short = declared == self.single or (bits is not None and int(bits[1]) <= 24)
        return self.kept_short(value) if self.single and short else value

    def kept_short(self, value: float) -> object:
        """Of a float of single precision: the nearest of IEEE 754 binary32, if there is one."""
        try:
            return struct.unpack("f", struct.pack("f", value))[0]
        except OverflowError:
            return value


def _is_float(kind: TypeEngine[Any], dialect: Dialect) -> bool:
    """Is a column of that type a binary number in this database, whatever the type is called?"""
    if not isinstance(kind, (types.Numeric, types.Float)):  # since 2.1 a Float is no Numeric
        return False
    return kind.compile(dialect=dialect).upper().startswith(("FLOAT", "DOUBLE", "REAL"))


# -- names and texts inside SQL that is sent as it is ----------------------------------------------


def quoted(dialect: Dialect, name: str) -> str:
    """A name, in quotes where it needs them."""
    return as_it_is(dialect, dialect.identifier_preparer.quote(name))


def quoted_table(dialect: Dialect, table: str, schema: str | None) -> str:
    """A table's name, with its schema."""
    named = Table(table, MetaData(), schema=schema)
    return as_it_is(dialect, dialect.identifier_preparer.format_table(named))


def sql_literal(text: str) -> str:
    """A text as SQL. Not for what a user types: backslashes mean something to some databases."""
    return "'" + text.replace("'", "''") + "'"


def plain(sql: str) -> DDL:
    """SQL as it is: no ``%`` and no ``:name`` of it means anything."""
    return DDL(sql.replace("%", "%%"))  # type: ignore[no-untyped-call]


def as_it_is(dialect: Dialect, sql: str) -> str:
    """What the compiler has made, with each ``%`` once; whoever executes it sees to that."""
    return sql.replace("%%", "%") if double_percents(dialect) else sql


def sql_of(dialect: Dialect, element: ColumnElement[Any] | Select[Any] | Update) -> str:
    """An expression, or a statement, as SQL, its values written out."""
    compiled = element.compile(dialect=dialect, compile_kwargs={"literal_binds": True})
    return as_it_is(dialect, str(compiled))
