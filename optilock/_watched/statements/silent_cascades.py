"""Foreign keys by which a database changes guarded rows, and fires no trigger, in a strict session.

MariaDB does ``ON DELETE SET NULL`` and ``ON UPDATE CASCADE`` by itself, and neither a guard trigger
nor that of a ``RowVersion`` sees it: the row has changed, its version has not. A strict session
knows such foreign keys by the mapping, so it does not send the DELETE, or the new key, of the row
that they refer to. A flush does it where SQLAlchemy changes the rows itself before, by a
relationship of the parent without ``passive_deletes`` (``passive_updates=False`` for a new key):
their versions are compared and moved.

Rows that the database deletes (``ON DELETE CASCADE``) are gone, which their readers notice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from sqlalchemy import Delete, Dialect, ForeignKeyConstraint, Table, UniqueConstraint, Update
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.orm import Mapper, PassiveFlag, RelationshipDirection, Session
from sqlalchemy.orm.attributes import instance_state

from optilock._mapped import State, facts, identity_of
from optilock._mapping.tables import owner_of, versioned_tables
from optilock._undocumented.flushes import is_orphan
from optilock._undocumented.statements import names_set_by
from optilock._watched.rows.roots import LOADED_OR_PENDING
from optilock._watched.session.connections import engine_to_write
from optilock._watched.session.record import is_strict, is_watched
from optilock._watched.statements.sql_text import tables_deleted
from optilock.dialects import database_of
from optilock.errors import ConfigurationError

_CHANGES = {"ondelete": ("SET NULL", "SET DEFAULT"), "onupdate": ("CASCADE", "SET NULL")}


def refuse_silent_flush(session: Session, objects: Any) -> None:
    """Refuse to delete a row, or change its key, if the database would change guarded rows.

    Raises:
        ConfigurationError: it would, and fire no trigger. Nothing was sent.
    """
    deleted = (*session.deleted, *_orphans(session))
    for event, rows in (("ondelete", deleted), ("onupdate", session.dirty)):
        silent: dict[Mapper[Any], list[ForeignKeyConstraint]] = {}  # once for a class
        for obj in rows:
            state = instance_state(obj)
            if objects and not any(obj is one for one in objects):
                continue
            if event == "onupdate" and not _may_have_new_key(state):
                continue
            if state.mapper not in silent:
                silent[state.mapper] = [*_silent_for(session, state.mapper, event)]
            for one in silent[state.mapper]:
                if event == "ondelete" or _is_changed(state, one):
                    raise _error(one, event, f"{state.class_.__name__} {identity_of(state)!r}")


def refuse_silent_statement(statement: Any, dialect: Callable[[], Dialect | None]) -> None:
    """Refuse an UPDATE or DELETE statement for the same reason."""
    table = getattr(statement.table, "element", statement.table)
    if isinstance(statement, Delete):
        _refuse_table(table, "ondelete", dialect)
    elif isinstance(statement, Update):
        names = {str(getattr(name, "key", name)) for name in names_set_by(statement)}
        _refuse_table(table, "onupdate", dialect, names)


def refuse_silent_text(sql: str, dialect: Dialect | None) -> None:
    """Refuse a SQL text that deletes rows for the same reason."""
    parents = {
        one.referred_table.name.lower(): one.referred_table
        for table in versioned_tables()
        for one in _foreign_keys(table, "ondelete")
    }
    for name in sorted(tables_deleted(sql, parents)) if parents else ():
        _refuse_table(parents[name], "ondelete", lambda: dialect)


def refuse_silent_delete(session: Session, mapper: Mapper[Any]) -> None:
    """Refuse to delete rows by their keys, in a strict session, for the same reason."""
    if not (is_watched(session) and is_strict(session)):
        return
    for table in mapper.tables:
        _refuse_table(table, "ondelete", lambda: engine_to_write(session, mapper).dialect)


def _refuse_table(
    table: Any,
    event: str,
    dialect: Callable[[], Dialect | None],
    names: Collection[str] | None = None,
) -> None:
    for one in _foreign_keys_to(table, event):
        columns = {key.column.key for key in one.elements}
        if (names is None or columns & set(names)) and not _fires_triggers(dialect()):
            raise _error(one, event, f"a row of {table.name}")


def _fires_triggers(dialect: Dialect | None) -> bool:
    return dialect is not None and database_of(dialect).guard_triggers.fire_after_cascades


# -- foreign keys ----------------------------------------------------------------------------------


def _orphans(session: Session) -> Iterator[Any]:
    """Yield the objects that the flush deletes because a parent has let them go."""
    for parent in session.dirty:
        state = instance_state(parent)
        for one in state.mapper.relationships:
            if one.cascade.delete_orphan and one.key in state.committed_state:
                for child in state.get_history(one.key, LOADED_OR_PENDING).deleted:
                    if child is not None and is_orphan(one.mapper, [instance_state(child)]):
                        yield child


def _silent_for(
    session: Session, mapper: Mapper[Any], event: str
) -> Iterator[ForeignKeyConstraint]:
    """Yield the foreign keys to rows of the class that SQLAlchemy leaves to the database."""
    for table in mapper.tables:
        for one in _foreign_keys_to(table, event):
            written = any(_writes_rows(relation, one, event) for relation in _children(mapper))
            if not written and not _fires_triggers(engine_to_write(session, mapper).dialect):
                yield one


def _foreign_keys_to(table: Any, event: str) -> Iterator[ForeignKeyConstraint]:
    for child in versioned_tables():
        for one in _foreign_keys(child, event):
            if one.referred_table == table:  # that of a class is a copy with annotations
                yield one


def _foreign_keys(child: Table, event: str) -> Iterable[ForeignKeyConstraint]:
    """Yield those that change rows of the table, if a trigger moves or guards its versions."""
    if not _is_moved_by_trigger(child):
        return
    for one in child.foreign_key_constraints:
        if (getattr(one, event) or "").upper() in _CHANGES[event] and _is_resolved(one):
            yield one


def _is_resolved(one: ForeignKeyConstraint) -> bool:
    try:
        return one.referred_table is not None
    except InvalidRequestError:  # of a table that is not in the metadata
        return False


def _is_moved_by_trigger(table: Table) -> bool:
    mapper = owner_of(table)
    if mapper is None or (token := facts(mapper).kind) is None:
        return False
    return token.has_trigger or getattr(mapper.class_, "__version_guard__", None) is not None


def _children(mapper: Mapper[Any]) -> Iterator[Any]:
    for one in mapper.relationships:
        if one.direction is RelationshipDirection.ONETOMANY and not one.viewonly:
            yield one


def _writes_rows(relationship: Any, one: ForeignKeyConstraint, event: str) -> bool:
    """Return whether SQLAlchemy changes the rows itself, before the database could."""
    passive = relationship.passive_deletes if event == "ondelete" else relationship.passive_updates
    return not passive and set(relationship.remote_side) >= set(one.columns)


def _may_have_new_key(state: State) -> bool:
    """Return whether a column that others may refer to was assigned. A cheap check."""
    columns = facts(state.mapper).columns
    assigned = [columns[name] for name in state.committed_state if name in columns]
    return any(one.primary_key or one.unique for one in assigned) or any(
        one in _unique(one.table) for one in assigned
    )


def _unique(table: Any) -> set[Any]:
    constraints = getattr(table, "constraints", ())  # a subquery has none
    several = (one for one in constraints if isinstance(one, UniqueConstraint))
    return {column for one in several for column in one.columns}


def _is_changed(state: State, one: ForeignKeyConstraint) -> bool:
    names = facts(state.mapper).names
    return any(
        key.column in names
        and names[key.column] in state.committed_state
        and state.get_history(names[key.column], PassiveFlag.PASSIVE_NO_INITIALIZE).has_changes()
        for key in one.elements
    )


def _error(one: ForeignKeyConstraint, event: str, what: str) -> ConfigurationError:
    child: Any = owner_of(one.table)
    names = ", ".join(facts(child).names[column] for column in one.columns)
    deleting = event == "ondelete"
    does = f"ON {'DELETE' if deleting else 'UPDATE'} {getattr(one, event).upper()}"
    option = "passive_deletes" if deleting else "passive_updates=False"
    how = "without passive_deletes" if deleting else f"with {option}"
    return ConfigurationError(
        f"{what} was to be {'deleted' if deleting else 'given another key'} in a strict session,"
        f" and the database changes {child.class_.__name__}.{names} by itself then ({does}): it"
        " fires no trigger, so the versions stay, and readers do not notice the change. Change the"
        f" objects first, by a relationship of the parent {how}; or declare the foreign key with"
        f" ON {'DELETE' if deleting else 'UPDATE'} RESTRICT. Nothing was sent."
    )
