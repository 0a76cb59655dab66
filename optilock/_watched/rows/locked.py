"""Rows that a query can lock, rows that were read with a lock, and later reads of them.

::

    rows_to_lock(select(Account).where(...))      # ((<Mapper Account>, accounts),)
    rows_to_lock(select(func.count(Account.id)))  # (): no row of the result is a row of the table

Rows that become objects are locked, and only where each row of the result is one row of the table.
Databases refuse FOR UPDATE with DISTINCT, GROUP BY, UNION, aggregates and windows, and for the side
of an outer join that may be missing. A row of several tables is locked in the one with its version.

::

    page = session.get_one(Page, 1, with_for_update=True)   # the newest row, and its version
    page.body                                               # deferred: of the same row

On MariaDB at REPEATABLE READ a locking read shows the newest row, and a plain read the row of the
transaction's snapshot. So an object may hold a version that is younger than later reads of its
deferred columns, or of a joined child's: old values under a new version, which no check finds. Such
reads are sent with a shared lock, which the transaction's own lock covers. So are a ``refresh()``,
expired attributes, and the queries of ``selectin_polymorphic()``. Attributes that another plain
query has filled in are expired, and read in this way when they are next used. The parts of an
aggregate whose root is locked are read so as well: its version covers them.

SQLAlchemy numbers each query, and each object that the query fills. The number identifies these
objects, so no work is done for a row. Objects that a resolver has made equal to their stored row,
which was read with a lock, are noted themselves. Their later reads go where that row was read: to
the primary, where plain reads go to a replica.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

from sqlalchemy import (
    Alias,
    Column,
    Connection,
    FromClause,
    Join,
    MetaData,
    Select,
    Table,
    inspect,
)
from sqlalchemy.exc import NoReferenceError
from sqlalchemy.orm import Bundle, Mapper, QueryableAttribute, Session, SessionTransaction
from sqlalchemy.orm.attributes import instance_state
from sqlalchemy.schema import sort_tables_and_constraints

from optilock._mapped import Identity, State, facts
from optilock._undocumented import statements
from optilock._undocumented.mappers import expire_attribute
from optilock._watched.session.connections import bind_to_write, connection_to_write
from optilock._watched.session.record import session_record
from optilock.dialects import database_of

Execute = Callable[..., Any]
_LOCKING = re.compile(r"\bFOR\s+(UPDATE|SHARE)\b|\bLOCK\s+IN\s+SHARE\s+MODE\b", re.IGNORECASE)
#: An attribute of a session: its :class:`LockedRows`, once there were some.
LOCKED_ROWS = "_optilock_locked"


class LockedRows:
    """The objects of one transaction that hold rows which were read with a lock."""

    def __init__(self, root: SessionTransaction) -> None:
        self._root = ref(root)  # no circle: it goes when its session leaves it
        self.runs: set[int] = set()
        self.states: WeakSet[State] = WeakSet()

    def is_of(self, root: SessionTransaction | None) -> bool:
        """Return whether they belong to the transaction."""
        return root is not None and self._root() is root

    def __contains__(self, state: State) -> bool:
        return statements.run_of(state) in self.runs or state in self.states


def _locked_rows(session: Session) -> LockedRows | None:
    """Return those of the running transaction; ``None`` if there are none."""
    found: LockedRows | None = session.__dict__.get(LOCKED_ROWS)
    return found if found is not None and found.is_of(session.get_transaction()) else None


def note_locked(session: Session, state: State) -> None:
    """Record that the object is equal to its row, which was read with a lock."""
    _rows(session).states.add(state)


def _note_locking(session: Session, since: int) -> None:
    """Record that the session's queries since that number have read with a lock."""
    _rows(session).runs.update(range(since + 1, statements.next_run()))


def _rows(session: Session) -> LockedRows:
    found = _locked_rows(session)
    if found is None:
        root = session.get_transaction()
        assert root is not None
        found = session.__dict__[LOCKED_ROWS] = LockedRows(root)
    return found


def expire_older(state: State, context: Any, names: Collection[str]) -> None:
    """Expire attributes that a plain query has filled in: they may be older than the locked row."""
    rows = _locked_rows(context.session)
    if rows is None or statements.run_of(context) in rows.runs or state not in rows:
        return
    columns = state.mapper.column_attrs
    for name in names:
        if name in state.dict and name in columns:
            expire_attribute(state, name)


# -- later reads -----------------------------------------------------------------------------------


def run_query(
    session: Session, original: Execute, statement: Any, params: Any, options: dict[str, Any]
) -> Any:
    """Execute a query that locks rows, or that may read again what was locked."""
    if _is_locking(statement):
        return run_locking(session, original, statement, params, options)
    since = statements.next_run()
    mapper = _read_again(session, statement, params, options)
    if mapper is None:
        return original(session, statement, params, **options)
    if _show_newer(connection_to_write(session, mapper)):
        statement = statements.add_shared_lock(statement)
    given = options.pop("bind_arguments", None) or {}
    given = {"bind": session.get_bind(**bind_to_write(mapper)), **given}
    result = original(session, statement, params, bind_arguments=given, **options)
    _note_locking(session, since)
    return result


def run_locking(
    session: Session, original: Execute, statement: Any, params: Any, options: dict[str, Any]
) -> Any:
    """Execute a query that locks rows."""
    since, record = statements.next_run(), session_record(session)
    result = original(session, statement, params, **options)
    record.note_locks()
    for connection in record.connections:
        if _show_newer(connection):
            _note_locking(session, since)
            break
    return result


def _is_locking(statement: Any) -> bool:
    if statements.locks_rows(statement):
        return True
    inside = getattr(statement, "element", None)  # from_statement(), of a text with columns or not
    text = getattr(getattr(inside, "element", inside), "text", None)
    return isinstance(text, str) and _LOCKING.search(text) is not None


def _show_newer(connection: Connection) -> bool:
    return database_of(connection.dialect).isolation.locks_show_newer


def _read_again(
    session: Session, statement: Any, params: Any, options: Mapping[str, Any]
) -> Mapper[Any] | None:
    """Return the class of a locked row that the query reads again for its object."""
    rows = _locked_rows(session)
    if rows is None:
        return None
    state = statements.state_refreshed_by(options.get("execution_options"))
    if state is not None:
        return state.mapper if state in rows else None
    mapper = getattr(statements.subject_of(statement), "mapper", None)
    if not isinstance(mapper, Mapper):
        return None
    root = statements.state_lazily_loaded_by(options.get("execution_options"))
    if root is not None:
        return root.mapper if root in rows and root.mapper in _roots_of(mapper) else None
    keys = params.get("primary_keys") if isinstance(params, Mapping) else None
    return _completed_among(session, rows, mapper, keys) if keys else None


def _completed_among(
    session: Session, rows: LockedRows, mapper: Mapper[Any], keys: Iterable[Any]
) -> Mapper[Any] | None:
    """Return the class of a locked object that the query completes.

    ``selectin_polymorphic()`` and ``selectinload()`` name the objects that they complete.
    """
    for completed in (mapper, *_roots_of(mapper)):
        if any(_is_locked(session, rows, completed, key) for key in keys):
            return completed
    return None


def _roots_of(mapper: Mapper[Any]) -> tuple[Mapper[Any], ...]:
    """Return the classes of roots whose version covers rows of ``mapper``."""
    return tuple(
        root
        for root in mapper.registry.mappers
        if any(
            name in root.relationships and mapper.isa(root.relationships[name].mapper)
            for name in getattr(root.class_, "__version_root_of__", ())
        )
    )


def _is_locked(session: Session, rows: LockedRows, mapper: Mapper[Any], key: Any) -> bool:
    identity = key if isinstance(key, tuple) else (key,)
    obj = session.identity_map.get(mapper.identity_key_from_primary_key(identity))
    return obj is not None and instance_state(obj) in rows


# -- the rows of a query that can be locked --------------------------------------------------------


#: A class, and where its rows are locked.
Lockable = tuple[Mapper[Any], FromClause]


def rows_to_lock(statement: Select[Any]) -> tuple[Lockable, ...]:
    """Return the rows of the query that can be locked, or nothing if one of them cannot be."""
    if not statements.may_lock(statement):
        return ()
    found = _lockable_entities(statement)
    return found if found and _has_only_inner_joins(statement, len(found)) else ()


def _lockable_entities(statement: Select[Any]) -> tuple[Lockable, ...]:
    found: list[Lockable] = []
    for described in statement.column_descriptions:
        what = described["expr"]
        if what is described.get("entity") and what is not None:
            one = _of_entity(what)
            if one is None:
                return ()
            found.append(one)
        elif not _is_value(what):
            return ()
    return tuple(found)


def _has_only_inner_joins(statement: Select[Any], entities: int) -> bool:
    """Return whether every row of the result has a row of each entity."""
    joins = statements.joins_of(statement)
    if joins.full or (joins.outer and (joins.froms or joins.placed or entities != 1)):
        return False
    return all(map(_is_inner, joins.froms))


def _of_entity(entity: Any) -> Lockable | None:
    subject = inspect(entity)
    mapper: Mapper[Any] = subject.mapper
    if subject is mapper:
        table = facts(mapper).locked_in
        return None if table is None else (mapper, table)
    source = subject.selectable
    is_table = isinstance(source, Alias) and isinstance(source.element, Table)
    return (mapper, source) if is_table else None


def _is_value(what: Any) -> bool:
    """Return whether the expression is a value of one row."""
    if isinstance(what, Bundle):
        return all(_is_value(one) for one in what.exprs)
    if isinstance(what, QueryableAttribute):
        columns: Sequence[Any] = getattr(what.property, "columns", ())
        return len(columns) > 0 and isinstance(columns[0], Column)
    return isinstance(what, Column)


def _is_inner(source: Any) -> bool:
    """Return whether each row of the source has a row of all its tables."""
    if isinstance(source, Join):
        inner = not (source.isouter or source.full)
        return inner and _is_inner(source.left) and _is_inner(source.right)
    return isinstance(source, (Table, Alias))


# -- the order of locks ----------------------------------------------------------------------------

_SORT: Callable[..., Any] = sort_tables_and_constraints
_places: WeakKeyDictionary[MetaData, dict[Table, int]] = WeakKeyDictionary()


def order_of(mapper: Mapper[Any], identity: Identity) -> Any:
    """Return a value by which rows are locked in one order, in every process.

    It is the order in which a flush writes them: a table comes after those that it refers to.
    """
    table = facts(mapper).table
    return _place_of_table(table), table.key, tuple(map(_sort_key, identity))


def _place_of_table(table: Table) -> int:
    places = _places.get(table.metadata)
    if places is None or len(places) < len(table.metadata.tables):
        places = _places[table.metadata] = _places_of_tables(table.metadata)
    return places.get(table, 0)


def _places_of_tables(metadata: MetaData) -> dict[Table, int]:
    # Processes may declare their tables in other orders.
    tables = sorted(metadata.tables.values(), key=lambda table: table.key)
    try:
        ordered = _SORT(tables)
    except NoReferenceError:  # to a table of another program
        return dict.fromkeys(tables, 0)
    return {one: number for number, (one, _) in enumerate(ordered) if one is not None}


def _sort_key(value: Any) -> Any:
    """Return a value for one order in every process; numbers are compared as numbers."""
    return (0, value, "") if isinstance(value, (int, float)) else (1, 0, str(value))
