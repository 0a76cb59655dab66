"""A guarded write as a value: its table, its row, the new values, and the conditions.

The unit of work of SQLAlchemy passes a statement and a dictionary of parameters for each row. A
:class:`Shape` has the common part of all rows with the same statement and the same parameter names,
and is made once. A row is a :class:`Write`: a shape and its parameters.

The version is one :class:`~optilock.conditions.condition.Condition` of the write. Others can stand
beside it: every form in which writes are sent takes the whole list, and a row that fails any of
them has missed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple, Self, TypeVar

from sqlalchemy import Column, ColumnElement, CursorResult, Delete, Table, Update
from sqlalchemy.orm import Mapper
from sqlalchemy.types import TypeEngine

from optilock._mapped import Facts, Identity, Place, State, facts
from optilock.conditions.condition import (
    Condition,
    Given,
    Match,
    failed_conditions,
    parameter,
    parameter_name,
)

Params = dict[str, Any]


class Write(NamedTuple):
    """One row to write."""

    shape: Shape
    params: Params

    def key(self) -> tuple[Any, ...]:
        return self.shape.key_of(self.params)

    def moved(self, stored: Mapping[str, Any]) -> tuple[Condition, ...]:
        """The version, if it is compared and the row is stored in another one."""
        shape, known = self.shape, self.shape.known
        version, held = shape.token, self.params.get(shape.token.parameter)
        if version not in shape.conditions or known.same(known.token, held, stored[known.token]):
            return ()
        return shape.version_alone

    def failed(self, seen: Sequence[Any]) -> tuple[Condition, ...]:
        """Return the conditions that are false for a row with these seen values."""
        return failed_conditions(self.shape.conditions, self.params, seen)

    def places(self) -> list[Place]:
        """The row, by the key that it had, and by the one that the write gives it."""
        shape, params = self
        of = shape.known.root
        place = of, shape.identity_of(params)
        if not shape.changes_key:
            return [place]
        return [place, (of, shape.identity_of({**params, **shape.new_key(params)}))]


#: ``Write(shape, params)`` of the two together. Made for every row, so no call of Python.
write_of: Callable[[tuple[Shape, Params]], Write] = partial(tuple.__new__, Write)


class SingleWrite(NamedTuple):
    """How a single row is written, and how its answer is read."""

    statement: Any
    params: Params
    #: Whether it was written.
    written: Callable[[CursorResult[Any]], bool]

    @classmethod
    def of(cls, write: Write) -> Self:
        return cls(write.shape.statement, write.params, _counted)


def _counted(result: CursorResult[Any]) -> bool:
    return bool(result.rowcount)


#: SQL and its parameters.
Statement = tuple[Any, Any]


class Checks(NamedTuple):
    """Statements around the last writes that raise an error if a promised row has moved."""

    before: Sequence[Statement] = ()
    after: Sequence[Statement] = ()


NO_CHECKS = Checks()


class Lost(NamedTuple):
    """A row that a write did not find, as it is stored now."""

    write: Write
    stored: dict[str, Any] | None
    #: The conditions that are not true of it.
    failed: tuple[Condition, ...] = ()
    #: The object of a flush.
    state: State | None = None

    @property
    def stands(self) -> bool:
        """Whether all conditions are true of the row, now that it is locked."""
        return self.stored is not None and not self.failed


C = TypeVar("C", Update, Delete)
_CHECKED = "optilock_checked"


def mark_checked(statement: C) -> C:
    """Return optilock's own statement, marked: the version of its rows is checked elsewhere."""
    return statement.execution_options(**{_CHECKED: True})


def is_checked(statement: Update | Delete) -> bool:
    """Return whether the statement is optilock's own, and checked elsewhere."""
    return _CHECKED in statement.get_execution_options()


@dataclass(frozen=True, eq=False)
class Shape:
    """The common form of all writes with one statement and one set of parameter names."""

    statement: Update | Delete
    table: Table
    mapper: Mapper[Any]
    #: Primary key columns of the table with the names of their parameters.
    keys: tuple[Match, ...]
    #: The version that the object holds; in a table without one, its key.
    token: Match
    #: What must be true of the row, the version first if it is compared.
    conditions: tuple[Condition, ...]
    #: Columns that get a new value, by the name of the parameter that carries it.
    sets: Mapping[str, Column[Any]]
    #: Columns with a Python-side ``onupdate``.
    prefetch: tuple[Column[Any], ...]
    #: Columns that the database will compute.
    postfetch: tuple[Column[Any], ...]
    #: SQL expressions among the new values, but for those that only move the version.
    expressions: Mapping[Column[Any], Any] = field(default_factory=dict)
    #: Must be sent by itself: order matters, or the answer carries values.
    sent_individually: bool = False
    #: Values of the row are compared besides its version.
    compares: bool = False
    #: Only ignored columns change: the version is neither checked nor moved.
    ignored_only: bool = False
    #: Nothing but the version moves here: whether it must depends on the row's other tables.
    perhaps_ignored: bool = False
    #: Nothing but these changes, and ignored columns: of these, a write may add the difference.
    commuting: Mapping[str, Column[Any]] = field(default_factory=dict)
    #: Any of the last four: asked once for a row that is none of them.
    special: bool = False
    #: The rows were locked and looked at before; only what a session demands may have changed.
    locked: bool = False
    #: SQLAlchemy sends it for a DELETE and an INSERT of one key: the demands are those of both.
    replaces: bool = False

    #: Columns that are set to an expression for the version's sake alone.
    touches: tuple[Column[Any], ...] = ()
    #: Rows with the same object here are sent together.
    group: Any = None
    #: The same without what a session demands.
    bare: Shape | None = None
    #: The database's statements for this shape together with others, built when first needed.
    forms: dict[Any, Any] = field(default_factory=dict)

    @cached_property
    def known(self) -> Facts:
        return facts(self.mapper)

    def all_sets(self) -> dict[str, Column[Any]]:
        """Columns that the write carries a value for, ``onupdate`` values included."""
        return {**self.sets, **{column.key: column for column in self.prefetch}}

    @cached_property
    def deletes(self) -> bool:
        return isinstance(self.statement, Delete)

    def with_conditions(self, more: tuple[Condition, ...]) -> Shape:
        """The same write with more conditions."""
        if not more:
            return self
        found: Shape | None = self.forms.get(more)
        if found is None:
            statement: Any = self.statement.where(*(one.clause(parameter) for one in more))
            if not self.deletes and (extra := _extra_values(more, parameter)):
                statement = statement.values(extra)
            found = self.forms[more] = replace(
                self,
                statement=statement,
                group=(self.group, more),
                conditions=(*self.conditions, *more),
                bare=self,
                forms={},
            )
        return found

    @cached_property
    def judged(self) -> Update | Delete:
        """The statement, for rows that this transaction has just locked and looked at."""
        if self.bare is None:
            return self.statement
        more = self.conditions[len(self.bare.conditions) :]
        statement: Any = self.bare.judged.where(*(one.after_look(parameter) for one in more))
        if not self.deletes and (extra := _extra_values(more, parameter)):
            statement = statement.values(extra)
        judged: Update | Delete = statement
        return judged

    @cached_property
    def unversioned(self) -> Shape:
        """The same write for a row in any version, which stays."""
        values = dict(self.expressions)
        if self.token.column.onupdate is not None:
            values[self.token.column] = self.token.column
        values |= self.extra_values(parameter)
        where = [one.clause(parameter) for one in (*self.keys, *self.demanded)]
        statement = mark_checked(self.table.update().where(*where).values(values))
        return replace(self, statement=statement, conditions=self.demanded, bare=None, forms={})

    @cached_property
    def version_alone(self) -> tuple[Condition, ...]:
        """The condition that a row fails which is in another version: one tuple for all rows."""
        return (self.token,)

    @cached_property
    def matches(self) -> tuple[Match, ...]:
        """Conditions whose values each row has of its own."""
        return tuple(one for one in self.conditions if isinstance(one, Match))

    @cached_property
    def demanded(self) -> tuple[Condition, ...]:
        """The other conditions, which are the same for all rows."""
        return tuple(one for one in self.conditions if not isinstance(one, Match))

    @cached_property
    def row_parameters(self) -> Mapping[str, TypeEngine[Any]]:
        """Values of the demanded conditions that each row has of its own."""
        return {name: kind for one in self.demanded for name, kind in one.row_parameters.items()}

    @cached_property
    def null_parameters(self) -> Mapping[str, Any]:
        """The parameters of these, for a row that has none."""
        return dict.fromkeys(map(parameter_name, self.row_parameters))

    def extra_values(self, given: Given) -> dict[Column[Any], ColumnElement[Any]]:
        """Return the values that the demanded conditions set in addition."""
        return {} if self.deletes else _extra_values(self.demanded, given)

    @cached_property
    def exact(self) -> bool:
        return all(one.exact for one in self.conditions)

    def found_by(self, identity: Identity, version: Any) -> Params:
        """The parameters that find the row with this key, in that version."""
        found = dict(zip(self._in_identity, identity, strict=True))
        if self.matches:
            found[self.token.parameter] = version
        return found

    def key_of(self, params: Params) -> tuple[Any, ...]:
        return tuple([params[key.parameter] for key in self.keys])

    def place_of(self, params: Params) -> Any:
        """The key in a dictionary; no tuple where there is one column, as one a row would be."""
        if len(self.keys) == 1:
            return params[self.keys[0].parameter]
        return self.key_of(params)

    @cached_property
    def changes_key(self) -> bool:
        """Whether the write gives its row another primary key."""
        return not {key.column for key in self.keys}.isdisjoint(self.sets.values())

    def new_key(self, params: Params) -> Params:
        """The parameters of the key, with the values that the write gives it."""
        names = {column: name for name, column in self.sets.items()}
        return {
            key.parameter: params[names[key.column]] for key in self.keys if key.column in names
        }

    def identity_of(self, params: Params) -> Identity:
        """The key in the order of the mapper's primary key."""
        return tuple([params[name] for name in self._in_identity])

    @cached_property
    def _in_identity(self) -> tuple[str, ...]:
        known = self.known
        names = {known.names[key.column]: key.parameter for key in self.keys}
        return tuple(names[name] for name in known.keys)


def _extra_values(
    conditions: Iterable[Condition], given: Given
) -> dict[Column[Any], ColumnElement[Any]]:
    return {
        column: value for one in conditions for column, value in one.extra_values(given).items()
    }


def places_of(writes: Iterable[Write]) -> set[Place]:
    """The rows that these writes have written."""
    return {place for write in writes for place in write.places()}


def expected_versions(
    writes: Iterable[Write], expected: dict[Place, Any] | None = None
) -> dict[Place, Any]:
    """The version that each row was first expected to have; ``expected`` ones came before."""
    expected = {} if expected is None else expected
    for write in writes:
        place, *renamed = write.places()
        version = expected.setdefault(place, write.params[write.shape.token.parameter])
        expected.update(dict.fromkeys(renamed, version))
    return expected
