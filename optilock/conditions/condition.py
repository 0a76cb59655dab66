"""Conditions that must be true of a row for it to be written.

The version is a condition (:class:`Match`), and so is each *demand* of a session on every row that
it writes (:mod:`optilock.conditions.demands`)::

    @dataclass(frozen=True)
    class HeldBy(Condition):
        column: Column[Any]

        def clause(self, given: Given) -> ColumnElement[bool]:
            return self.column == given("holder", self.column.type)

        def explain(self, entry: Entry[Any]) -> Exception | None:
            return NotTheHolder(entry.identity)

A condition is structure: it carries no value, so that the statements with it are made once. Its
clause goes into the WHERE of a single row, of a batch, of ``update()`` and ``delete()``. A look at
a locked row reads the clause's verdict. NULL counts as false. Compare times with
:class:`~optilock.tokens.timestamp.ServerTime`, not with ``now()``, which is the begin of the
transaction on PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

from sqlalchemy import Column, ColumnElement, bindparam, false, func
from sqlalchemy.types import TypeEngine

from optilock.errors import ConfigurationError, Entry

#: SQL of a value, by its name and type.
Given = Callable[[str, TypeEngine[Any]], ColumnElement[Any]]

_NONE: Mapping[Any, Any] = MappingProxyType({})
#: In front of the names of values: one that is called as a column would be taken for a new value.
_OWN = "optilock_of_"


def parameter(name: str, kind: TypeEngine[Any]) -> ColumnElement[Any]:
    """Return the value as a parameter of the statement."""
    return bindparam(_OWN + name, type_=kind)


def parameter_name(name: str) -> str:
    """Return the name of :func:`parameter` in a statement."""
    return _OWN + name


def parameters(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values by the names of their :func:`parameter`."""
    return {_OWN + name: value for name, value in values.items()}


def demanded_parameters(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of demands among those of a write."""
    return {name: value for name, value in params.items() if name.startswith(_OWN)}


class Condition:
    """Structure only: it must be hashable, and equal to others that make the same SQL.

    A subclass has a ``clause``, and an ``explain`` for a row that fails it.
    """

    #: Whether SQL decides exactly. Otherwise rows are looked at before they are written.
    exact: ClassVar[bool] = True

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name, how in _SAID.items():
            if getattr(cls, name) is getattr(Condition, name):
                raise ConfigurationError(
                    f"The condition {cls.__name__} has no {name}(): write {how}."
                )

    @property
    def row_parameters(self) -> Mapping[str, TypeEngine[Any]]:
        """The types of values that each row has of its own, by name; ``clause`` may use them."""
        return _NONE

    def extra_values(self, given: Given) -> Mapping[Column[Any], ColumnElement[Any]]:
        """Return further columns that an UPDATE sets: to a value of ``row_parameters``, or NULL."""
        return _NONE

    def for_operation(self, *, deleting: bool, given: bool) -> Condition:
        """Return the condition to use for an UPDATE, or a DELETE.

        ``given``: some rows have their own values.
        """
        return self

    def clause(self, given: Given) -> ColumnElement[bool]:
        """Return SQL that is true of a row which may be written."""
        raise NotImplementedError  # every condition has its own

    def after_look(self, given: Given) -> ColumnElement[bool]:
        """SQL for a statement that follows a look at its rows, in the same transaction.

        Conditions that only the passing of time could have changed since the look has locked the
        rows are not evaluated again: such a row would be left out silently.
        """
        return self.clause(given)

    def explain(self, entry: Entry[Any]) -> Exception | None:
        """Return the exception for a row that fails it; ``None``: the miss is a conflict."""
        raise NotImplementedError  # every condition has its own

    @property
    def looks(self) -> tuple[ColumnElement[Any], ...]:
        """The columns that a look at the row must read; by default the database's verdict."""
        return (func.coalesce(self.clause(parameter), false()),)

    def holds(self, params: Mapping[str, Any], seen: Sequence[Any]) -> bool:
        """Return the verdict on the values of :attr:`looks`; ``params`` has parameters by name."""
        return bool(seen[0])

    def missed(self, params: Mapping[str, Any], seen: Sequence[Any]) -> Condition:
        """Return the condition with the values that a look has ``seen``, to explain a miss."""
        return self


_SAID = {
    "clause": "def clause(self, given), which returns SQL such as"
    ' self.column == given("holder", self.column.type)',
    "explain": "def explain(self, entry), which returns the exception for a row that fails it, or"
    " None if that is a conflict which resolvers may settle",
}


@dataclass(frozen=True)
class Match(Condition):
    """The row must still hold, in ``column``, the value that the write carries in ``parameter``."""

    column: Column[Any]
    parameter: str

    def clause(self, given: Given) -> ColumnElement[bool]:
        return self.column == bindparam(self.parameter, type_=self.column.type)

    @property
    def looks(self) -> tuple[ColumnElement[Any], ...]:
        return (self.column,)

    def holds(self, params: Mapping[str, Any], seen: Sequence[Any]) -> bool:
        return bool(seen[0] == params[self.parameter])

    def explain(self, entry: Entry[Any]) -> Exception | None:
        return None


def failed_conditions(
    conditions: Iterable[Condition], params: Mapping[str, Any], seen: Sequence[Any]
) -> tuple[Condition, ...]:
    """Return the conditions that are false of a row; ``seen`` has the values of their ``looks``."""
    found, at = [], 0
    values = {name.removeprefix(_OWN): value for name, value in params.items()}
    for condition in conditions:
        width = len(condition.looks)
        looked = seen[at : at + width]
        if not condition.holds(values, looked):
            found.append(condition.missed(values, looked))
        at += width
    return tuple(found)


def first_explanation(failed: Iterable[Condition], entry: Entry[Any]) -> Exception | None:
    """Return the first explanation; it wins over every resolver."""
    return next((why for one in failed if (why := one.explain(entry)) is not None), None)
