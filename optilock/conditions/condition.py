"""What must be true of a row for it to be written.

The version is a condition (:class:`Match`), and so is whatever a session *demands* of every row
that it writes (:mod:`optilock.conditions.demands`)::

    @dataclass(frozen=True)
    class HeldBy(Condition):
        column: Column[Any]

        def clause(self, given: Given) -> ColumnElement[bool]:
            return self.column == given("holder", self.column.type)

        def explain(self, entry: Entry[Any]) -> Exception | None:
            return NotTheHolder(entry.identity)

A condition is structure: it carries no value, so that the statements with it are made once. Its
clause goes into the WHERE of a single row, of a batch, of ``update()`` and ``delete()``; where a
row is looked at under a lock, the database is asked for the clause's verdict. What is NULL counts
as false. Times are compared with the clock, not with ``now()``, which is on PostgreSQL the begin
of the transaction: :class:`~optilock.tokens.timestamp.ServerTime`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

from sqlalchemy import BigInteger, Column, ColumnElement, FunctionElement, bindparam, false, func
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.types import TypeEngine

from optilock.errors import ConfigurationError, Entry
from optilock.tokens.timestamp import UtcDateTime

__all__ = ["Clock", "Later", "later"]

#: SQL of a value, by its name and type.
Given = Callable[[str, TypeEngine[Any]], ColumnElement[Any]]

_NONE: Mapping[Any, Any] = MappingProxyType({})
#: In front of the names of values: one that is called as a column would be taken for a new value.
_OWN = "optilock_of_"


def parameter(name: str, kind: TypeEngine[Any]) -> ColumnElement[Any]:
    """The value as a parameter of the statement."""
    return bindparam(_OWN + name, type_=kind)


def parameter_name(name: str) -> str:
    """How :func:`parameter` is called in a statement."""
    return _OWN + name


def parameters(values: Mapping[str, Any]) -> dict[str, Any]:
    """What :func:`parameter` stands for."""
    return {_OWN + name: value for name, value in values.items()}


def demanded_of(params: Mapping[str, Any]) -> dict[str, Any]:
    """These parameters among those of a write."""
    return {name: value for name, value in params.items() if name.startswith(_OWN)}


class Condition:
    """Structure only: it must be hashable, and equal to others that make the same SQL.

    A subclass says its ``clause``, and in ``explain`` what its miss means.
    """

    #: Does SQL decide as exactly as it must? Otherwise rows are looked at before they are written.
    exact: ClassVar[bool] = True

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name, how in _SAID.items():
            if getattr(cls, name) is getattr(Condition, name):
                raise ConfigurationError(
                    f"The condition {cls.__name__} has no {name}(): write {how}."
                )

    @property
    def each(self) -> Mapping[str, TypeEngine[Any]]:
        """Values that each row has of its own, by name: ``clause`` may ask for them, too."""
        return _NONE

    def gives(self, given: Given) -> Mapping[Column[Any], ColumnElement[Any]]:
        """Columns that an UPDATE sets beside what it writes, to a value of ``each``, or to NULL."""
        return _NONE

    def when(self, *, deleting: bool, given: bool) -> Condition:
        """What is asked of an UPDATE, or of a DELETE; is any row ``given`` values of its own?"""
        return self

    def clause(self, given: Given) -> ColumnElement[bool]:
        """SQL that is true of a row which may be written."""
        raise NotImplementedError  # every condition has its own

    def after_look(self, given: Given) -> ColumnElement[bool]:
        """SQL for a statement that follows a look at its rows, in the same transaction.

        Of the rows that the look has locked, what only the passing of time could have changed since
        is not asked again: such a row would be left out, and nobody told.
        """
        return self.clause(given)

    def explain(self, entry: Entry[Any]) -> Exception | None:
        """What is raised where it fails, instead of a conflict; ``None``: it is a conflict."""
        raise NotImplementedError  # every condition has its own

    @property
    def looks(self) -> tuple[ColumnElement[Any], ...]:
        """What a look at the row must read; by default the database's own verdict."""
        return (func.coalesce(self.clause(parameter), false()),)

    def holds(self, params: Mapping[str, Any], seen: Sequence[Any]) -> bool:
        """The verdict on what :attr:`looks` has read; ``params`` has the values by their names."""
        return bool(seen[0])

    def missed(self, params: Mapping[str, Any], seen: Sequence[Any]) -> Condition:
        """Itself, of a row of which it is not true; with what a look has seen, to explain it."""
        return self


_SAID = {
    "clause": "def clause(self, given), which returns SQL such as"
    ' self.column == given("holder", self.column.type)',
    "explain": "def explain(self, entry), which returns the exception for a row of which it is not"
    " true, or None if that is a conflict which resolvers may settle",
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


def failed(
    conditions: Iterable[Condition], params: Mapping[str, Any], seen: Sequence[Any]
) -> tuple[Condition, ...]:
    """All that are not true of a row, by what their ``looks`` have read, one after the other."""
    found, at = [], 0
    values = {name.removeprefix(_OWN): value for name, value in params.items()}
    for condition in conditions:
        width = len(condition.looks)
        looked = seen[at : at + width]
        if not condition.holds(values, looked):
            found.append(condition.missed(values, looked))
        at += width
    return tuple(found)


def explained(failed: Iterable[Condition], entry: Entry[Any]) -> Exception | None:
    """The first explanation; it wins over every resolver."""
    return next((why for one in failed if (why := one.explain(entry)) is not None), None)


# -- the clock of the database ---------------------------------------------------------------------
#
# :class:`Clock` is the time at which the database looks at a row; leases end by it, never by the
# client's clock. It is neither the begin of the transaction (``now()`` of PostgreSQL) nor that of
# the statement (``NOW(6)`` of MariaDB): a writer that has waited for the row looks at it late. It
# is UTC, whatever the time zone of the session. The folders of ``optilock/dialects`` have its SQL.


class Clock(FunctionElement[Any]):
    """The time at which a row is looked at."""

    inherit_cache = True
    type = UtcDateTime()


class Later(FunctionElement[Any]):
    """A moment, and so many milliseconds after it."""

    inherit_cache = True
    type = UtcDateTime()


def later(moment: ColumnElement[Any], milliseconds: Any) -> Later:
    """``milliseconds``: a number, or SQL of one."""
    if isinstance(milliseconds, int):
        milliseconds = bindparam(None, milliseconds, type_=BigInteger())
    return Later(moment, milliseconds)


@compiles(Clock)
@compiles(Later)
def _on_another_database(element: Any, compiler: Any, **options: Any) -> str:
    """Each engine that can has its own rule in ``optilock/dialects``; this is for all others."""
    if compiler.dialect.name == "default":  # str(statement)
        return "CURRENT_TIMESTAMP"
    raise ConfigurationError(
        f"Leases work on PostgreSQL, MariaDB and SQLite, not on {compiler.dialect.name}: optilock"
        " does not know its clock."
    )
