"""Values in SQL: rows by their keys, the form in which a column keeps a value, names and texts."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa
from sqlalchemy.types import TypeEngine

from optilock._columns.values import Limits
from optilock._mapped import Identity
from optilock._undocumented.connections import doubles_percents, has_bind_expression
from optilock.dialects.feature import Feature
from optilock.dialects.quoting import EVERY, STANDARD, Quoting
from optilock.tokens.sql_functions import DatabaseFunction

# -- rows by their keys ----------------------------------------------------------------------------


def rows_with_keys(
    columns: Sequence[sa.ColumnElement[Any]], keys: Sequence[Identity] | sa.Select[Any]
) -> sa.ColumnElement[bool]:
    """``key IN (…)``, of one column or of several."""
    if not isinstance(keys, sa.Select) and any(has_bind_expression(c.type) for c in columns):
        return key_is_one_of(columns, keys)
    if len(columns) > 1:
        return sa.tuple_(*columns).in_(keys)
    return columns[0].in_(keys if isinstance(keys, sa.Select) else [key for (key,) in keys])


def key_is_one_of(
    columns: Sequence[sa.ColumnElement[Any]], keys: Sequence[Identity]
) -> sa.ColumnElement[bool]:
    """``(a = … AND b = …) OR (…)``: each part is compared as in a statement for one row.

    In a list it is not: the SQL may be missing, or lack its parameters, that a type puts around a
    value (https://github.com/sqlalchemy/sqlalchemy/issues/8992), and in rows of values MariaDB
    compares text in another character set.
    """
    pairs = (zip(columns, key, strict=True) for key in keys)
    return sa.or_(*(sa.and_(*(column == value for column, value in pair)) for pair in pairs))


# -- the form in which a column keeps a value ------------------------------------------------------

_BITS = re.compile(r"FLOAT\((\d+)\)")


#: Nothing is certain, so little is refused.
_UNKNOWN = Limits(
    bits=(64, 64, 64),
    converts=True,
    decimals=True,
    bools=(sa.types.Integer, sa.types.Numeric, sa.types.Float),
    nan=True,
    infinity=True,
    counts_digits=False,
    most_digits=1_000_000,
    lengths=False,
    nul=True,
    offsets=True,
    json_nan=True,
    json_surrogates=True,
)


class Values(Feature):
    """Values: their limits, what a column keeps of them, SQL functions and the text of SQL."""

    #: SQL of optilock's own functions, with {0} and {1} for their arguments.
    sql_functions: Mapping[type[DatabaseFunction], str] = MappingProxyType({})

    def quotings(self, dialect: sa.Dialect) -> tuple[Quoting, ...]:
        """Return each way in which it may read comments, literals and quoted names of a text."""
        return STANDARD if dialect.identifier_preparer.initial_quote == '"' else EVERY

    def limits(self, dialect: sa.Dialect) -> Limits:
        """Return the limits of its columns, over this dialect."""
        return _UNKNOWN

    def is_exact(self, column: sa.Column[Any], dialect: sa.Dialect) -> bool:
        """Return whether two texts of the column are equal only if all characters are."""
        return True

    #: Types whose values SQL compares as exactly as Python does.
    exact_types: tuple[type[TypeEngine[Any]], ...] = (
        sa.types.Integer,
        sa.types.Boolean,
        sa.types.Date,
        sa.types.Uuid,
    )

    def compares_exactly(self, kind: TypeEngine[Any]) -> bool:
        """Return whether values that SQL treats as equal are equal in Python, too.

        Not so where a collation ignores case, where a fraction is rounded, or where a type of the
        application translates.
        """
        if isinstance(kind, sa.types.TypeDecorator) or getattr(kind, "collation", None):
            return False
        if getattr(kind, "precision", None) is not None:
            return False
        return isinstance(kind, self.exact_types) and not isinstance(
            kind, (sa.types.Enum, sa.types.CHAR)
        )

    #: Types whose columns may keep less than the given value, as a CAST does.
    rounded_types: tuple[type[TypeEngine[Any]], ...] = (
        sa.types.Numeric,
        sa.types.Integer,
        sa.types.Date,
        sa.types.DateTime,
        sa.types.Time,
    )

    def as_stored(
        self, kind: TypeEngine[Any], value: Any, dialect: sa.Dialect
    ) -> sa.ColumnElement[Any]:
        """Return SQL of the value that a column of that type keeps of ``value``."""
        inner = (
            kind.load_dialect_impl(dialect) if isinstance(kind, sa.types.TypeDecorator) else kind
        )
        given = sa.literal(value, kind)
        rounds = isinstance(inner, self.rounded_types) and not _is_float(inner, dialect)
        return sa.cast(given, kind) if rounds else given

    def is_float_kept(
        self, kind: TypeEngine[Any], given: Any, read: Any, dialect: sa.Dialect
    ) -> bool | None:
        """Return whether ``read`` is the value that a column of that type keeps of ``given``.

        Asked of no CAST, which databases have for some of their types of floats only. ``None``:
        these are no floats.
        """
        if isinstance(kind, sa.types.TypeDecorator) or not _is_float(kind, dialect):
            return None
        declared = kind.compile(dialect=dialect).upper()
        return self.kept_of(float(given), declared) == self.kept_of(float(read), declared)

    #: What a float of single precision is called without a number of bits; None: there is none.
    single: str | None = None

    def kept_of(self, value: float, declared: str) -> object:
        """Return the value that distinguishes the float in a column of this declaration."""
        bits = _BITS.fullmatch(declared)
        short = declared == self.single or (bits is not None and int(bits[1]) <= 24)
        return self.kept_short(value) if self.single and short else value

    def kept_short(self, value: float) -> object:
        """Of a float of single precision: the nearest of IEEE 754 binary32, if there is one."""
        try:
            return struct.unpack("f", struct.pack("f", value))[0]
        except OverflowError:
            return value


def _is_float(kind: TypeEngine[Any], dialect: sa.Dialect) -> bool:
    """Return whether a column of that type is a binary number in this database."""
    if not isinstance(kind, (sa.types.Numeric, sa.types.Float)):  # since 2.1 a Float is no Numeric
        return False
    return kind.compile(dialect=dialect).upper().startswith(("FLOAT", "DOUBLE", "REAL"))


# -- names and texts inside SQL that is sent as it is ----------------------------------------------


def quote_name(dialect: sa.Dialect, name: str) -> str:
    """A name, in quotes where it needs them."""
    return single_percents(dialect, dialect.identifier_preparer.quote(name))


def quote_table(dialect: sa.Dialect, table: str, schema: str | None) -> str:
    """A table's name, with its schema."""
    return quoted_name(dialect, sa.Table(table, sa.MetaData(), schema=schema))


def quoted_name(dialect: sa.Dialect, table: sa.Table) -> str:
    """The name of a table that is there, with its schema: much faster than :func:`quote_table`."""
    return single_percents(dialect, dialect.identifier_preparer.format_table(table))


def sql_literal(text: str) -> str:
    """A text as SQL. Not for what a user types: backslashes mean something to some databases."""
    return "'" + text.replace("'", "''") + "'"


def plain_ddl(sql: str) -> sa.DDL:
    """SQL as it is: no ``%`` and no ``:name`` of it means anything."""
    return sa.DDL(sql.replace("%", "%%"))  # type: ignore[no-untyped-call]


def single_percents(dialect: sa.Dialect, sql: str) -> str:
    """Return compiled SQL with each ``%`` once, for executing without parameters."""
    return sql.replace("%%", "%") if doubles_percents(dialect) else sql


def sql_of(dialect: sa.Dialect, element: sa.ColumnElement[Any] | sa.Select[Any] | sa.Update) -> str:
    """An expression, or a statement, as SQL, its values written out."""
    compiled = element.compile(dialect=dialect, compile_kwargs={"literal_binds": True})
    return single_percents(dialect, str(compiled))
