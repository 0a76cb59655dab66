"""What the session demands of the rows that a statement writes (:func:`optilock.demand`).

Each row that an ``update()`` or ``delete()`` matches, of a class or of a table, is locked first and
looked at, with the database's verdict; and what is demanded joins the WHERE. The WHERE alone would
silently leave out a row of which it is not true. Looking for rows that fail would not do, because
one could be taken while the statement waits.

Each row is asked what is demanded of its own class: where the classes of a hierarchy differ, their
discriminator says which row is whose. Where nothing says it, the statement is refused.

This is the same for all who send: ``session.execute()``, ``session.connection()``, a listener while
the session is flushing, and SQLAlchemy's own bulk calls (:func:`refuse_by_key`). What writes rows
that nobody can look at before is refused: :mod:`optilock.watched.statements.refusals`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Delete,
    Table,
    Update,
    and_,
    case,
    null,
    true,
)
from sqlalchemy.orm import Mapper, Session
from sqlalchemy.sql import visitors

from optilock.conditions.condition import Condition, Given, explained, failed
from optilock.conditions.demands import Demands
from optilock.errors import Action, ConcurrencyError, ConfigurationError, Entry
from optilock.mapped import Identity, facts
from optilock.mapping.tables import classes_over
from optilock.undocumented.statements import is_ordered
from optilock.watched.rows.entries import Attempt, entry_of
from optilock.watched.rows.stored import read_stored
from optilock.watched.session.connections import connection_to_write
from optilock.watched.session.watched import watched
from optilock.watched.statements.call import Call, rows_found
from optilock.watched.statements.refusals import refuse_inside, refuse_others
from optilock.watched.statements.version import column_in
from optilock.watched.writes.send import read_demanded

Conditions = tuple[Condition, ...]
#: Stands for the discriminator beside the attributes of a row; no attribute has a space.
_KIND = "optilock kind"


def under_demands(call: Call, mapper: Mapper[Any], demands: Demands) -> Call:
    """``update(Model)`` or ``delete(Model)`` under the demands of its session.

    Raises:
        Exception: what a condition explains, for a row that matches and of which it is not true;
            a ``ConcurrencyError`` where it explains nothing.
        ConfigurationError: nobody can say what is demanded of its rows.
    """
    table, statement = mapper.local_table, call.statement
    refuse_inside(demands, statement)
    refuse_others(demands, statement, {table, *mapper.tables})
    if not demands.concern(mapper):
        return call
    deleting = isinstance(statement, Delete)
    asked = _asked(demands, _classes_in(mapper, table), table, deleting=deleting)
    if asked is None:
        return call
    call.flush_before()
    if call.is_by_key:  # SQLAlchemy takes no WHERE beside the keys: the rows are locked now
        refuse_by_key(call.session, mapper, call.params)
        return call
    keys = [getattr(mapper.class_, name) for name in facts(mapper).keys]
    connection = call.connection(mapper)
    matched = _Matched(call.session, connection, statement, call.params, keys, facts(mapper).table)
    _refuse_matched(matched, asked, asked.conditions)
    return call.with_statement(asked.joined(statement, keys))


def table_under_demands(
    session: Session, connection: Connection, statement: Any, params: Any, demands: Demands
) -> Any:
    """``update(table)`` or ``delete(table)`` under the demands of the session that sends it.

    Errors are those of :func:`under_demands`.
    """
    refuse_inside(demands, statement)
    refuse_others(demands, statement, {statement.table})
    classes = classes_over(statement.table) if demands.may_concern(statement.table) else []
    if not classes:
        return statement
    # update(Model) on a connection names it with annotations
    table = next(one for one in classes[0].tables if one == statement.table)
    asked = _asked(demands, classes, table, deleting=isinstance(statement, Delete))
    if asked is None or not isinstance(table, Table):
        return statement
    keys = [column_in(asked.mapper, key, table) for key in asked.mapper.primary_key]
    matched = _Matched(session, connection, statement, params, keys, table)
    _refuse_matched(matched, asked, asked.conditions if asked.is_said_here else None)
    return asked.joined(statement, keys)


# -- what is demanded of which row ----------------------------------------------------------------


class _Asked:
    """What is demanded of the rows of a table, by their classes."""

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
        """What is demanded of each of the rows; ``None`` where it depends on their class."""
        all_of_them = {self.demands.on(one, deleting=self._deleting) for one in self._classes}
        return all_of_them.pop() if len(all_of_them) == 1 else None

    @property
    def is_said_here(self) -> bool:
        """Is nothing asked of columns that the row has in other tables?"""
        mapper, deleting = self.mapper, self._deleting
        said = self.demands.on(mapper, self.table, deleting=deleting)
        return said == self.demands.on(mapper, deleting=deleting)

    @property
    def kind(self) -> Any:
        """What tells the class of a row, where it matters."""
        return null() if self.conditions is not None else self.mapper.polymorphic_on

    def by_class(self, kinds: Mapping[Identity, Any]) -> dict[Mapper[Any], list[Identity]]:
        """Rows by their classes; the one that stands for all has those that nobody knows."""
        known: Mapping[Any, Mapper[Any]] = {}
        if self.conditions is None:
            known = self.mapper.polymorphic_map
        found: dict[Mapper[Any], list[Identity]] = {}
        for identity, kind in kinds.items():
            found.setdefault(known.get(kind, self.mapper), []).append(identity)
        return found

    def joined(self, statement: Any, keys: Sequence[ColumnElement[Any]]) -> Any:
        """The statement with what is demanded in its WHERE; ``keys`` are those of the rows."""
        given = self.demands.bound_by(self.mapper, keys)
        statement = statement.where(*self._clauses(given))
        if self._deleting or self.conditions is None or is_ordered(statement):
            return statement
        said = self.demands.on(self.mapper, self.table)
        values = {column: value for one in said for column, value in one.gives(given).items()}
        return statement.values(values) if values else statement

    def _clauses(self, given: Given) -> list[ColumnElement[bool]]:
        if self.conditions is not None:
            return self._said_of(self.mapper, given)
        kind: Any = self.mapper.polymorphic_on
        by_kind = [
            (kind == one.polymorphic_identity, and_(true(), *self._said_of(one, given)))
            for one in self._classes
            if one is not self.mapper
        ]
        return [case(*by_kind, else_=and_(true(), *self._said_of(self.mapper, given)))]

    def _said_of(self, mapper: Mapper[Any], given: Given) -> list[ColumnElement[bool]]:
        said = self.demands.on(mapper, self.table, deleting=self._deleting)
        return [one.after_look(given) for one in said]


def _asked(
    demands: Demands, classes: list[Mapper[Any]], table: Any, *, deleting: bool = False
) -> _Asked | None:
    """What is demanded of rows of the table, which are of these classes; ``None``: nothing.

    Raises:
        ConfigurationError: it depends on the class, and nothing in the table says which it is.
    """
    if not any(map(demands.on, classes)):
        return None
    roots = [one for one in classes if one.inherits not in classes]
    kind: Any = roots[0].polymorphic_on
    if len(roots) == 1 and kind is not None:
        known = set(roots[0].polymorphic_map.values())
        classes = [one for one in classes if one in known or one is roots[0]]
    asked = _Asked(demands, roots[0], table, classes, deleting=deleting)
    if asked.conditions is None and (len(roots) > 1 or not _is_told_by(kind, table)):
        raise _undecided(demands, classes, table)
    return asked


def _is_told_by(kind: Any, table: Any) -> bool:
    """Does the table, where one is to be written, have the discriminator?"""
    if kind is None or table is None:
        return kind is not None
    named = [one for one in visitors.iterate(kind) if isinstance(one, Column)]
    return bool(named) and all(one.table is table for one in named)


def _classes_in(mapper: Mapper[Any], table: Any) -> list[Mapper[Any]]:
    """The class and those below it that have their rows in the table, too."""
    below = mapper.self_and_descendants
    return [one for one in below if one.local_table is table or table in one.tables]


def _undecided(demands: Demands, classes: list[Mapper[Any]], table: Any) -> ConfigurationError:
    names = " and ".join(sorted({one.class_.__name__ for one in classes}))
    demanded = " or ".join(sorted({one.class_.__name__ for one in classes if demands.on(one)}))
    where = "a row" if table is None else f"a row of {table.description}"
    return ConfigurationError(
        f"The session demands something of rows of {demanded}, and not the same of {names}: nothing"
        f" in the table says of which of these classes {where} is. Name the lowest class in the"
        " statement, one statement for each class, or change the objects. Nothing was sent."
    )


# -- the look -------------------------------------------------------------------------------------


class _Matched(NamedTuple):
    """The rows that a statement matches."""

    session: Session
    connection: Connection
    statement: Update | Delete
    params: Any
    keys: list[Any]
    #: Whose rows are locked.
    table: Table

    def rows(self, looks: Sequence[Any], demands: Demands) -> dict[Identity, tuple[Any, ...]]:
        """Their keys with these columns; locked. Each of many parameters has its own WHERE."""
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


def _refuse_matched(matched: _Matched, asked: _Asked, conditions: Conditions | None) -> None:
    """Raise what the first row of which a condition is not true has to say.

    ``conditions``: what the look itself can ask of all rows; otherwise one more look asks the rows
    of each class.
    """
    demands, deleting = asked.demands, isinstance(matched.statement, Delete)
    if conditions is not None:
        looks = [look for one in conditions for look in one.looks]
        for identity, seen in matched.rows(looks, demands).items():
            wrong = failed(conditions, demands.of_row(asked.mapper, identity), seen)
            _refuse(matched.connection, asked.mapper, identity, wrong, deleting=deleting)
        return
    kinds = {key: kind for key, (kind,) in matched.rows([asked.kind], demands).items()}
    for mapper, some in asked.by_class(kinds).items():
        _refuse_rows(matched.session, matched.connection, mapper, some, deleting=deleting)


def refuse_by_key(session: Session, mapper: Mapper[Any], rows: Iterable[Mapping[str, Any]]) -> None:
    """Lock rows that SQLAlchemy is to write by their keys, and look.

    Errors are those of :func:`under_demands`.
    """
    demands = watched(session).demands
    asked = None
    if demands is not None:
        asked = _asked(demands, _classes_in(mapper, mapper.local_table), None)
    if asked is None:
        return
    connection = connection_to_write(session, mapper)
    names = facts(mapper).keys
    some = list(dict.fromkeys(tuple(row.get(name) for name in names) for row in rows))
    if asked.conditions is not None:
        _refuse_rows(session, connection, mapper, some)
        return
    stored = read_stored(
        connection, mapper, some, only=names[:1], also={"optilock kind": asked.kind}
    )
    kinds = {key: row["optilock kind"] for key, row in stored.items()}
    for one, mine in asked.by_class(kinds).items():
        _refuse_rows(session, connection, one, mine)


def _refuse_rows(
    session: Session,
    connection: Connection,
    mapper: Mapper[Any],
    identities: list[Identity],
    *,
    deleting: bool = False,
) -> None:
    """Lock these rows of the class and look; raise what is not as the session demands.

    Errors are those of :func:`under_demands`.
    """
    only = facts(mapper).keys[:1]
    _, lost = read_demanded(
        watched(session).demands, connection, mapper, identities, only, deleting=deleting
    )
    for identity, wrong in lost.items():
        _refuse(connection, mapper, identity, wrong, deleting=deleting)


def _refuse(
    connection: Connection,
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
        entry: Entry[Any] = entry_of(attempt, stored.get(identity))
        raise explained(wrong, entry) or ConcurrencyError([entry])
