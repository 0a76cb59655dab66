"""What SQLAlchemy's unit of work is told about a write that is held, or that missed.

Of a result it reads the row count, the values that came back, and which columns it must expire
or fill in (``compiled.prefetch`` and ``compiled.postfetch``). The classes here answer that much.
What Python makes of ``onupdate`` for a row, at the moment it is written, :func:`fill_in` makes for
a row that is held.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Column, Connection, Table

from optilock.conditions.write import Params, Shape, Write
from optilock.undocumented.statements import as_told


class _Columns:
    """In the place of the compiled statement."""

    __slots__ = ("postfetch", "prefetch")
    effective_returning = None

    def __init__(self, prefetch: Sequence[Any], postfetch: Sequence[Any]) -> None:
        self.prefetch = prefetch
        self.postfetch = postfetch


class _Context:
    """In the place of the execution's context."""

    __slots__ = ("compiled", "compiled_parameters", "executemany")
    isinsert = False

    def __init__(self, compiled: Any, params: Sequence[Any], executemany: bool = False) -> None:
        self.compiled = compiled
        self.compiled_parameters = params
        self.executemany = executemany


class Accepted:
    """The answer for rows that are held: every one of them counts as written."""

    __slots__ = ("context", "rowcount")
    returned_defaults = None

    def __init__(self, shape: Shape, *params: Params) -> None:
        self.context = _Context(_Columns(shape.prefetch, shape.postfetch), params)
        self.rowcount = len(params)


class Nothing:
    """The answer where every row of a statement was left out."""

    __slots__ = ("context", "rowcount")
    returned_defaults = None

    def __init__(self, params: list[Params]) -> None:
        # lists: SQLAlchemy adds to them
        self.context = _Context(_Columns([], []), tuple(params), executemany=True)
        self.rowcount = len(params)

    def supports_sane_multi_rowcount(self) -> bool:
        """Asked for link rows."""
        return True


class Counted:
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


class Unmoved:
    """The answer for a row whose version stays what was read.

    Nothing came back for it, and the version is not to be read again: that would be the one of
    another writer.
    """

    __slots__ = ("context",)
    rowcount = 1
    returned_defaults = None

    def __init__(self, result: Any, shape: Shape) -> None:
        made, version = result.context.compiled, shape.token.column
        columns = _Columns(list(made.prefetch), [c for c in made.postfetch if c is not version])
        self.context = _Context(columns, result.context.compiled_parameters)


class _Asked:
    """What an ``onupdate`` function may ask of its context argument."""

    def __init__(self, connection: Connection, params: Params) -> None:
        self.connection = self.root_connection = connection
        self.engine = connection.engine
        self.dialect = connection.dialect
        self.current_parameters = params
        self.compiled_parameters = [params]
        self.isupdate, self.isinsert, self.isdelete = True, False, False

    def get_current_parameters(self, isolate_multiinsert_groups: bool = True) -> Params:
        """The row's parameters (``DefaultExecutionContext.get_current_parameters``)."""
        return self.current_parameters


def fill_in(write: Write, connection: Connection) -> None:
    """Evaluate the Python-side ``onupdate`` of a row that is held, into its parameters.

    Raises:
        StatementError: a function of the application has failed, as SQLAlchemy tells it.
    """
    context = _Asked(connection, write.params)
    try:
        for column in write.shape.prefetch:
            write.params[column.key] = _evaluated(column.onupdate, context)
    except Exception as error:
        told = as_told(error, connection, write.shape.statement, write.params)
        if told is error:
            raise
        raise told from error


def onupdate_values(table: Table, connection: Connection, params: Params) -> Params:
    """Python-side ``onupdate`` values of the columns that ``params`` leave alone."""
    context = _Asked(connection, params)
    return {
        column.key: _evaluated(column.onupdate, context)
        for column in table.columns
        if column.key not in params and _is_python(column.onupdate)
    }


def default_values(
    columns: Iterable[Column[Any]], connection: Connection, params: Params
) -> Params:
    """What Python makes of those of the columns that have such a default, as for a new row."""
    context = _Asked(connection, params)
    return {
        column.key: _evaluated(column.default, context)
        for column in columns
        if _is_python(column.default)
    }


def _is_python(default: Any) -> bool:
    return default is not None and not (default.is_clause_element or default.is_sequence)


def _evaluated(default: Any, context: _Asked) -> Any:
    return default.arg(context) if default.is_callable else default.arg
