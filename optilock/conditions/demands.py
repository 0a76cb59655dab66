"""What a session demands of every row that it writes.

::

    class Holder(Part, Demand):
        def __init__(self, me: str) -> None:
            self.values = {"holder": me}

        def on(self, mapper: Mapper[Any]) -> Condition | None:
            column = mapper.columns.get("holder")
            return None if column is None else HeldBy(column)

        def begin(self, session: Session) -> None:
            demand(session, self)

    with UnitOfWork(sessions, parts=[Holder("me")]) as session: ...

A demand is asked once for each class which condition it makes of its rows, and carries the values,
which are the same for all rows. It goes with every write of the session: rows of a flush, in
whatever form they are sent, deletes, ``update()`` and ``delete()`` statements, ``bulk_update``. A
row of which it is not true is left as it is, and what the condition explains is raised, whatever
resolver the session has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Select,
    Table,
    bindparam,
    literal_column,
    select,
)
from sqlalchemy.orm import Mapper
from sqlalchemy.sql import visitors
from sqlalchemy.types import TypeEngine

from optilock.conditions.condition import Condition, Given, parameter, parameters
from optilock.conditions.write import Write
from optilock.errors import ConfigurationError, Entry


class Demand:
    """One demand; ``values`` are the values that its conditions ask for, by name."""

    values: Mapping[str, Any]

    def on(self, mapper: Mapper[Any]) -> Condition | None:
        """The condition on rows of the class; ``None``: nothing is demanded of them."""
        raise NotImplementedError  # every demand has its own


class Demands:
    """All demands of a session."""

    def __init__(self) -> None:
        self._all: list[Demand] = []
        self._values: dict[str, Any] = {}
        self._on: dict[tuple[Mapper[Any], Any], tuple[Condition, ...]] = {}
        #: The values as parameters of statements.
        self.params: dict[str, Any] = {}

    def add(self, demand: Demand) -> None:
        """From here on it is demanded, too.

        Raises:
            ConfigurationError: it is none, has no values, or names one as another demand does.
        """
        _check(demand)
        taken = self._values.keys() & demand.values.keys()
        if taken:
            raise ConfigurationError(
                f"{type(demand).__name__} names a value {min(taken)!r}, and so does another demand"
                " of the session: give it a name of its own, in values= and in clause()."
            )
        self._all.append(demand)
        self._values |= demand.values
        self._on = {}
        self.params = parameters(self._values)

    def on(self, mapper: Mapper[Any], table: Any = None) -> tuple[Condition, ...]:
        """The conditions on rows of the class; as a statement of ``table`` says them."""
        found = self._on.get((mapper, table))
        if found is None:
            asked = [one for demand in self._all if (one := demand.on(mapper)) is not None]
            if table is not None:
                asked = [_said_of(one, mapper, table) for one in asked]
            found = self._on[mapper, table] = tuple(asked)
        return found

    def demanded(self, write: Write, mapper: Mapper[Any]) -> Write:
        """The same write, of a row of the class, under these conditions."""
        shape, params = write
        more = self.on(mapper, shape.table)
        return Write(shape.under(more), {**params, **self.params}) if more else write

    def bound(self, name: str, kind: TypeEngine[Any]) -> ColumnElement[Any]:
        """The value for a statement whose parameters are not ours."""
        return bindparam(None, self._values[name], type_=kind)


@dataclass(frozen=True)
class _InOtherTables(Condition):
    """A condition on columns that the row of ``table`` has in other tables (joined inheritance)."""

    said: Condition
    table: Table
    others: tuple[Table, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "exact", self.said.exact)

    def clause(self, given: Given) -> ColumnElement[bool]:
        return self._there(literal_column("1")).where(self.said.clause(given)).exists()

    @property
    def looks(self) -> tuple[ColumnElement[Any], ...]:
        if self.exact:
            return super().looks
        return tuple(self._there(look).scalar_subquery() for look in self.said.looks)

    def holds(self, params: Mapping[str, Any], seen: Sequence[Any]) -> bool:
        return super().holds(params, seen) if self.exact else self.said.holds(params, seen)

    def _there(self, look: ColumnElement[Any]) -> Select[Any]:
        """Read in the other tables, of the same row."""
        same = [
            ours == theirs
            for other in self.others
            for ours, theirs in zip(self.table.primary_key, other.primary_key, strict=True)
        ]
        found = select(look).select_from(*self.others).correlate(self.table).where(*same)
        # locked: a plain read may show the snapshot's row (MariaDB at REPEATABLE READ)
        return found.with_for_update(read=True)

    def explain(self, entry: Entry[Any]) -> Exception | None:
        return self.said.explain(entry)


def _said_of(condition: Condition, mapper: Mapper[Any], table: Any) -> Condition:
    named = {
        one.table
        for one in visitors.iterate(condition.clause(parameter))
        if isinstance(one, Column) and one.table is not table
    }
    others = tuple(one for one in mapper.tables if one in named and isinstance(one, Table))
    return _InOtherTables(condition, table, others) if others else condition


def _check(demand: Any) -> None:
    if not isinstance(demand, Demand) or type(demand).on is Demand.on:
        raise ConfigurationError(
            f"{demand!r} is no demand: write a subclass of optilock.Demand with on(mapper), which"
            " returns a Condition or None, and with values, a mapping of names to values."
        )
    values = getattr(demand, "values", None)
    if not isinstance(values, Mapping) or not all(isinstance(name, str) for name in values):
        raise ConfigurationError(
            f"{type(demand).__name__} has no values: write self.values = {{'name': value}}, with"
            " the names that clause() asks for; {} if it asks for none."
        )
