"""``onupdate`` values that Python makes: for each row, at the moment it is written."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, Connection

from optilock.conditions.write import Params, Write

__all__ = ["fill_in"]


class _Context:
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
    """Evaluate the Python-side ``onupdate`` of a row that is held, into its parameters."""
    context = _Context(connection, write.params)
    for column in write.shape.prefetch:
        write.params[column.key] = _evaluated(column, context)


def _evaluated(column: Column[Any], context: _Context) -> Any:
    default: Any = column.onupdate
    return default.arg(context) if default.is_callable else default.arg
