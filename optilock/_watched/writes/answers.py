"""Results for SQLAlchemy's unit of work, for a write that is held, or that missed.

Of a result it reads the row count, the values that came back, and which columns it must expire
or fill in (``compiled.prefetch`` and ``compiled.postfetch``). The classes here have these
attributes. :func:`fill_in` computes the Python-side ``onupdate`` of a row that is held.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import Column, Connection, Table

from optilock._undocumented.statements import wrap_error
from optilock.conditions.write import Params, Shape, Write


class _Columns(NamedTuple):
    """A substitute for the compiled statement."""

    prefetch: Sequence[Any]
    postfetch: Sequence[Any]
    effective_returning: None = None


@dataclass(slots=True)
class _Context:
    """A substitute for the execution's context."""

    compiled: Any
    compiled_parameters: Sequence[Any]
    executemany: bool = False
    isinsert: bool = False


class AcceptedResult:
    """The result for rows that are held, or left out: every one of them counts as written.

    Without a shape, they are rows of a statement without a version.
    """

    __slots__ = ("context", "rowcount", "shape")
    returned_defaults = None

    def __init__(self, shape: Shape | None, *params: Params) -> None:
        self.shape = shape
        # lists: SQLAlchemy adds to them
        columns = _Columns(shape.prefetch, shape.postfetch) if shape else _Columns([], [])
        self.context = _Context(columns, params, executemany=shape is None)
        self.rowcount = len(params)

    def supports_sane_multi_rowcount(self) -> bool:
        """Return true. SQLAlchemy calls it for link rows."""
        return True


class CountedResult:
    """A real result whose count includes the rows that were judged, or left out, before."""

    def __init__(self, result: Any, rowcount: int, params: Any = None) -> None:
        self._result = result
        self.rowcount = rowcount
        if params is not None:  # one set for each row that SQLAlchemy handed over, in its order
            self.context = _Context(result.context.compiled, params, executemany=True)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._result, name)

    @property
    def returned_defaults(self) -> Any:
        return None if self.rowcount else self._result.returned_defaults


class UnmovedResult:
    """The result for a row whose version stays the one that was read.

    No value came back for it, and the version must not be read again: it would be the one of
    another transaction.
    """

    __slots__ = ("context",)
    rowcount = 1
    returned_defaults = None

    def __init__(self, result: Any, shape: Shape) -> None:
        made, version = result.context.compiled, shape.token.column
        columns = _Columns(list(made.prefetch), [c for c in made.postfetch if c is not version])
        self.context = _Context(columns, result.context.compiled_parameters)


class _RowContext:
    """The context argument of an ``onupdate`` function."""

    def __init__(self, connection: Connection, params: Params) -> None:
        self.connection = self.root_connection = connection
        self.engine = connection.engine
        self.dialect = connection.dialect
        self.current_parameters = params
        self.compiled_parameters = [params]
        self.isupdate, self.isinsert, self.isdelete = True, False, False

    def get_current_parameters(self, isolate_multiinsert_groups: bool = True) -> Params:
        """Return the row's parameters (``DefaultExecutionContext.get_current_parameters``)."""
        return self.current_parameters


def fill_in(write: Write, connection: Connection) -> None:
    """Evaluate the Python-side ``onupdate`` of a row that is held, into its parameters.

    Raises:
        StatementError: a function of the application has failed, as SQLAlchemy raises it.
    """
    context = _RowContext(connection, write.params)
    try:
        for column in write.shape.prefetch:
            write.params[column.key] = _evaluated(column.onupdate, context)
    except Exception as error:
        wrapped = wrap_error(error, connection, write.shape.statement, write.params)
        if wrapped is error:
            raise
        raise wrapped from error


def onupdate_values(table: Table, connection: Connection, params: Params) -> Params:
    """Return Python-side ``onupdate`` values of the columns that are not in ``params``."""
    context = _RowContext(connection, params)
    return {
        column.key: _evaluated(column.onupdate, context)
        for column in table.columns
        if column.key not in params and is_filled_in(column)
    }


def is_filled_in(column: Column[Any]) -> bool:
    """Return whether an UPDATE computes the column's value in Python (``onupdate``)."""
    return _is_python(column.onupdate)


def default_values(
    columns: Iterable[Column[Any]], connection: Connection, params: Params
) -> Params:
    """Return the Python-side defaults of the columns, as for a new row."""
    context = _RowContext(connection, params)
    return {
        column.key: _evaluated(column.default, context)
        for column in columns
        if _is_python(column.default)
    }


def _is_python(default: Any) -> bool:
    return default is not None and not (default.is_clause_element or default.is_sequence)


def _evaluated(default: Any, context: _RowContext) -> Any:
    return default.arg(context) if default.is_callable else default.arg
