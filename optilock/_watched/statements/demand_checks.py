"""The session's demands on the rows that a statement writes (:func:`optilock.statements.demand`).

Each row that an ``update()`` or ``delete()`` matches, of a class or of a table, is locked first and
read with the database's result for each condition. The conditions also join the WHERE. The WHERE
alone would silently skip a row that fails. A search for rows that fail is no substitute, because
another transaction could change one while the statement waits.

The conditions of a row are those of its own class. Where the classes of a hierarchy differ, their
discriminator names the class. Without one, the statement is refused.

This holds for all senders: ``session.execute()``, ``session.connection()``, a listener while the
session is flushing, and SQLAlchemy's own bulk calls (:func:`check_rows_by_key`). Statements whose
rows cannot be read before are refused: :mod:`optilock._watched.statements.refusals`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.orm import Mapper, Session
from sqlalchemy.sql import visitors

from optilock._mapped import Identity, facts
from optilock._mapping.tables import classes_over
from optilock._undocumented.statements import is_ordered
from optilock._watched.rows.entries import Attempt, HiddenRows, entry_of
from optilock._watched.rows.stored import read_stored
from optilock._watched.session.connections import connection_to_write
from optilock._watched.session.record import session_record
from optilock._watched.statements.call import Call, rows_found
from optilock._watched.statements.refusals import refuse_inner_writes, refuse_other_tables
from optilock._watched.statements.version import column_in
from optilock._watched.writes.send import read_demanded
from optilock.conditions.condition import Condition, Given, failed_conditions, first_explanation
from optilock.conditions.demands import Demands
from optilock.errors import Action, ConcurrencyError, ConfigurationError, Entry
from optilock.events import report

Conditions = tuple[Condition, ...]
#: The discriminator's name among the attributes of a row, which contain no space.
_KIND = "optilock kind"


def add_demands(call: Call, mapper: Mapper[Any], demands: Demands) -> Call:
    """Return ``update(Model)`` or ``delete(Model)`` under the demands of its session.

    Raises:
        Exception: the error that a condition explains, for a matched row that fails it; a
            ``ConcurrencyError`` where it explains nothing.
        ConfigurationError: the demands on its rows cannot be determined.
    """
    table, statement = mapper.local_table, call.statement
    refuse_inner_writes(demands, statement)
    refuse_other_tables(demands, statement, {table, *mapper.tables})
    if not demands.concerns_class(mapper):
        return call
    deleting = isinstance(statement, sa.Delete)
    on_table = _demands_on(demands, _classes_in(mapper, table), table, deleting=deleting)
    if on_table is None:
        return call
    call.flush_before()
    if call.is_by_key:  # SQLAlchemy takes no further WHERE: the rows are locked now
        check_rows_by_key(call.session, mapper, call.params)
        return call
    keys = [getattr(mapper.class_, name) for name in facts(mapper).keys]
    connection = call.connection(mapper)
    matched = _Matched(call.session, connection, statement, call.params, keys, facts(mapper).table)
    _refuse_matched(matched, on_table, on_table.conditions)
    return call.with_statement(on_table.joined(statement, keys))


def add_demands_for_table(
    session: Session, connection: sa.Connection, statement: Any, params: Any, demands: Demands
) -> Any:
    """Return ``update(table)`` or ``delete(table)`` under the demands of its session.

    Errors are those of :func:`add_demands`.
    """
    refuse_inner_writes(demands, statement)
    refuse_other_tables(demands, statement, {statement.table})
    classes = classes_over(statement.table) if demands.may_concern_table(statement.table) else []
    if not classes:
        return statement
    # update(Model) on a connection names it with annotations
    table = next(one for one in classes[0].tables if one == statement.table)
    on_table = _demands_on(demands, classes, table, deleting=isinstance(statement, sa.Delete))
    if on_table is None or not isinstance(table, sa.Table):
        return statement
    keys = [column_in(on_table.mapper, key, table) for key in on_table.mapper.primary_key]
    matched = _Matched(session, connection, statement, params, keys, table)
    _refuse_matched(
        matched, on_table, on_table.conditions if on_table.concerns_this_table else None
    )
    return on_table.joined(statement, keys)


# -- demands by class ------------------------------------------------------------------------------


class _TableDemands:
    """The demands on the rows of a table, by their classes."""

    def __init__(
        self,
        demands: Demands,
        mapper: Mapper[Any],
        table: Any,
        classes: list[Mapper[Any]],
        *,
        deleting: bool,
    ) -> None:
        self.demands, self.table, self._deleting = demands, table, deleting
        #: The class that stands for all of them.
        self.mapper = mapper
        self._classes = classes

    @property
    def conditions(self) -> Conditions | None:
        """Return the conditions of each row; ``None`` where they depend on its class."""
        all_of_them = {
            self.demands.conditions_for(one, deleting=self._deleting) for one in self._classes
        }
        return all_of_them.pop() if len(all_of_them) == 1 else None

    @property
    def concerns_this_table(self) -> bool:
        """Return whether no condition concerns columns that the row has in other tables."""
        mapper, deleting = self.mapper, self._deleting
        said = self.demands.conditions_for(mapper, self.table, deleting=deleting)
        return said == self.demands.conditions_for(mapper, deleting=deleting)

    @property
    def kind(self) -> Any:
        """Return the column that shows the class of a row, where it matters."""
        return sa.null() if self.conditions is not None else self.mapper.polymorphic_on

    def by_class(self, kinds: Mapping[Identity, Any]) -> dict[Mapper[Any], list[Identity]]:
        """Return the rows by class; rows of unknown classes are those of the class for all."""
        by_kind: Mapping[Any, Mapper[Any]] = {}
        if self.conditions is None:
            by_kind = self.mapper.polymorphic_map
        found: dict[Mapper[Any], list[Identity]] = {}
        for identity, kind in kinds.items():
            found.setdefault(by_kind.get(kind, self.mapper), []).append(identity)
        return found

    def joined(self, statement: Any, keys: Sequence[sa.ColumnElement[Any]]) -> Any:
        """Return the statement with the conditions in its WHERE; ``keys`` are those of the rows."""
        given = self.demands.values_for(self.mapper, keys)
        statement = statement.where(*self._clauses(given))
        if self._deleting or self.conditions is None or is_ordered(statement):
            return statement
        said = self.demands.conditions_for(self.mapper, self.table)
        values = {
            column: value for one in said for column, value in one.extra_values(given).items()
        }
        return statement.values(values) if values else statement

    def _clauses(self, given: Given) -> list[sa.ColumnElement[bool]]:
        if self.conditions is not None:
            return self._conditions_of(self.mapper, given)
        kind: Any = self.mapper.polymorphic_on
        by_kind = [
            (kind == one.polymorphic_identity, sa.and_(sa.true(), *self._conditions_of(one, given)))
            for one in self._classes
            if one is not self.mapper
        ]
        return [
            sa.case(*by_kind, else_=sa.and_(sa.true(), *self._conditions_of(self.mapper, given)))
        ]

    def _conditions_of(self, mapper: Mapper[Any], given: Given) -> list[sa.ColumnElement[bool]]:
        said = self.demands.conditions_for(mapper, self.table, deleting=self._deleting)
        return [one.after_look(given) for one in said]


def _demands_on(
    demands: Demands, classes: list[Mapper[Any]], table: Any, *, deleting: bool = False
) -> _TableDemands | None:
    """Return the demands on rows of the table, which are of these classes; ``None``: no demands.

    Raises:
        ConfigurationError: they depend on the class, and no column of the table shows it.
    """
    if not any(map(demands.conditions_for, classes)):
        return None
    roots = [one for one in classes if one.inherits not in classes]
    kind: Any = roots[0].polymorphic_on
    if len(roots) == 1 and kind is not None:
        named = set(roots[0].polymorphic_map.values())
        classes = [one for one in classes if one in named or one is roots[0]]
    on_table = _TableDemands(demands, roots[0], table, classes, deleting=deleting)
    if on_table.conditions is None and (len(roots) > 1 or not _has_discriminator(kind, table)):
        raise _undecided_error(demands, classes, table)
    return on_table


def _has_discriminator(kind: Any, table: Any) -> bool:
    """Return whether the table, if one is to be written, has the discriminator."""
    if kind is None or table is None:
        return kind is not None
    named = [one for one in visitors.iterate(kind) if isinstance(one, sa.Column)]
    return bool(named) and all(one.table is table for one in named)


def _classes_in(mapper: Mapper[Any], table: Any) -> list[Mapper[Any]]:
    """Return the class and those below it that have their rows in the table, too."""
    below = mapper.self_and_descendants
    return [one for one in below if one.local_table is table or table in one.tables]


def _undecided_error(
    demands: Demands, classes: list[Mapper[Any]], table: Any
) -> ConfigurationError:
    names = " and ".join(sorted({one.class_.__name__ for one in classes}))
    demanded = " or ".join(
        sorted({one.class_.__name__ for one in classes if demands.conditions_for(one)})
    )
    where = "a row" if table is None else f"a row of {table.description}"
    return ConfigurationError(
        f"The session demands something of rows of {demanded}, and not the same of {names}: the"
        f" table does not show the class of {where}. Name the lowest class in the statement, one"
        " statement for each class, or change the objects. Nothing was sent."
    )


# -- the comparison --------------------------------------------------------------------------------


class _Matched(NamedTuple):
    """The rows that a statement matches."""

    session: Session
    connection: sa.Connection
    statement: sa.Update | sa.Delete
    params: Any
    keys: list[Any]
    #: Whose rows are locked.
    table: sa.Table

    def rows(self, looks: Sequence[Any], demands: Demands) -> dict[Identity, tuple[Any, ...]]:
        """Lock the rows, and return these columns by key. Each parameter set has its own WHERE."""
        found: dict[Identity, tuple[Any, ...]] = {}
        for one in self.params if isinstance(self.params, list) else [self.params]:
            found |= rows_found(
                self.connection,
                self.statement,
                one,
                self.table,
                self.keys,
                looks,
                bound=demands.params,
            )
        return found


def _refuse_matched(
    matched: _Matched, on_table: _TableDemands, conditions: Conditions | None
) -> None:
    """Raise the error of the first row that fails a condition.

    ``conditions``: those that one read compares for all rows; otherwise a further read compares
    the rows of each class.
    """
    demands, deleting = on_table.demands, isinstance(matched.statement, sa.Delete)
    if conditions is not None:
        looks = [look for one in conditions for look in one.looks]
        for identity, seen in matched.rows(looks, demands).items():
            wrong = failed_conditions(
                conditions, demands.values_of_row(on_table.mapper, identity), seen
            )
            _refuse(matched.connection, on_table.mapper, identity, wrong, deleting=deleting)
        return
    kinds = {key: kind for key, (kind,) in matched.rows([on_table.kind], demands).items()}
    for mapper, some in on_table.by_class(kinds).items():
        _refuse_rows(matched.session, matched.connection, mapper, some, deleting=deleting)


def check_rows_by_key(
    session: Session, mapper: Mapper[Any], rows: Iterable[Mapping[str, Any]]
) -> None:
    """Lock rows that SQLAlchemy is to write by their keys, and compare them with the demands.

    Errors are those of :func:`add_demands`.
    """
    demands = session_record(session).demands
    on_table = None
    if demands is not None:
        on_table = _demands_on(demands, _classes_in(mapper, mapper.local_table), None)
    if on_table is None:
        return
    connection = connection_to_write(session, mapper)
    names = facts(mapper).keys
    some = list(dict.fromkeys(tuple(row.get(name) for name in names) for row in rows))
    if on_table.conditions is not None:
        _refuse_rows(session, connection, mapper, some)
        return
    stored = read_stored(
        connection, mapper, some, only=names[:1], also={"optilock kind": on_table.kind}
    )
    kinds = {key: row["optilock kind"] for key, row in stored.items()}
    for one, mine in on_table.by_class(kinds).items():
        _refuse_rows(session, connection, one, mine)


def _refuse_rows(
    session: Session,
    connection: sa.Connection,
    mapper: Mapper[Any],
    identities: list[Identity],
    *,
    deleting: bool = False,
) -> None:
    """Lock these rows of the class, and raise the error of the first that fails a demand.

    Errors are those of :func:`add_demands`.
    """
    only = facts(mapper).keys[:1]
    _, lost = read_demanded(
        session_record(session).demands, connection, mapper, identities, only, deleting=deleting
    )
    for identity, wrong in lost.items():
        _refuse(connection, mapper, identity, wrong, deleting=deleting)


def _refuse(
    connection: sa.Connection,
    mapper: Mapper[Any],
    identity: Identity,
    wrong: Sequence[Condition],
    *,
    deleting: bool,
) -> None:
    if wrong:
        stored = read_stored(connection, mapper, [identity])
        action: Action = "delete" if deleting else "update"
        attempt = Attempt(mapper, identity, action, {}, {}, {})
        entry: Entry[Any] = entry_of(attempt, stored.get(identity), hidden=HiddenRows(connection))
        raise first_explanation(wrong, entry) or report(ConcurrencyError([entry]))
