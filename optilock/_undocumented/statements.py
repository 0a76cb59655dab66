"""Names, locks, joins and reads of SQLAlchemy's statements and queries."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Iterator, Mapping
from copy import copy
from operator import attrgetter, methodcaller
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import ChunkedIteratorResult
from sqlalchemy.exc import DBAPIError, InvalidRequestError, StatementError
from sqlalchemy.orm import Session

from optilock._undocumented.mappers import State
from optilock._undocumented.names import find_name

if TYPE_CHECKING:
    from sqlalchemy.engine.cursor import CursorFetchStrategy as CursorFetchStrategy
    from sqlalchemy.orm import loading
    from sqlalchemy.sql.elements import CollationClause as CollationClause
    from sqlalchemy.sql.schema import RETAIN_SCHEMA as RETAIN_SCHEMA
    from sqlalchemy.util import LRUCache, concurrency
else:
    CursorFetchStrategy = find_name("sqlalchemy.engine.cursor:CursorFetchStrategy")
    loading = find_name("sqlalchemy.orm:loading")
    CollationClause = find_name("sqlalchemy.sql.elements:CollationClause")
    RETAIN_SCHEMA = find_name("sqlalchemy.sql.schema:RETAIN_SCHEMA")
    LRUCache = find_name("sqlalchemy.util:LRUCache")
    concurrency = find_name("sqlalchemy.util:concurrency")

Change = sa.Update | sa.Delete | sa.Insert


def is_server_side(context: Any) -> bool:
    """Return whether a cursor of the server returns the statement's rows a few at a time."""
    return bool(context._is_server_side)


def subject_of(statement: Change | sa.Select[Any]) -> Any:
    """Return the class, or the alias of one, that the statement names; ``None`` for a table."""
    return statement._propagate_attrs.get("plugin_subject")


def is_of_the_orm(statement: Any) -> bool:
    """Return whether the statement names a class."""
    known = getattr(statement, "_propagate_attrs", None) or {}
    return known.get("compile_state_plugin") == "orm"


#: SQLAlchemy's key of a statement in its cache (``key``), without values; ``None``: it has none.
#: The statement keeps it for its execution. Read for every query, so no call of Python.
cache_key_of: Callable[[Any], Any] = methodcaller("_generate_cache_key")


def wrap_error(
    error: Exception, connection: sa.Connection, statement: Change, params: Mapping[str, Any]
) -> Exception:
    """Return the error as SQLAlchemy raises one before it has sent the statement."""
    if isinstance(error, StatementError):
        return error
    compiled = statement.compile(dialect=connection.dialect, column_keys=sorted(params))
    wrapped: Any = DBAPIError.instance(
        str(compiled),
        [dict(params)],
        error,
        connection.dialect.loaded_dbapi.Error,
        hide_parameters=connection.engine.hide_parameters,
        dialect=connection.dialect,
        ismulti=False,
    )
    return wrapped if isinstance(wrapped, Exception) else error


def values_of(statement: Any) -> Mapping[Any, Any]:
    """Return the values given by ``values()``."""
    return getattr(statement, "_values", None) or {}


def names_given_by(statement: sa.Insert) -> set[str]:
    """Return the names of the columns that ``values()`` or ``from_select()`` give to new rows."""
    rows = [values_of(statement), *(row for some in statement._multi_values for row in some)]
    names = [name for row in rows for name in row] + list(statement._select_names or ())
    return {str(getattr(name, "key", name)) for name in names}


def rows_are_unknown(statement: sa.Insert) -> bool:
    """Return whether the rows come from a SELECT."""
    return statement.select is not None


def rows_given_by(statement: sa.Insert, params: Any) -> list[Mapping[Any, Any]]:
    """Return the rows of ``values()`` and of the parameters."""
    several = [row for some in statement._multi_values for row in some]
    if several:
        return [row if isinstance(row, Mapping) else _by_column(statement, row) for row in several]
    rows = params if isinstance(params, list) else [params or {}]
    return [{**values_of(statement), **row} for row in rows]


def _by_column(statement: sa.Insert, row: Any) -> Mapping[Any, Any]:
    return dict(zip(statement.table.columns, row, strict=False))


def names_set_by(statement: sa.Update) -> list[Any]:
    """Return the columns, attributes or texts named by ``values()`` and ``ordered_values()``."""
    return [name for name, _ in pairs_set_by(statement)]


def pairs_set_by(statement: sa.Update) -> list[tuple[Any, Any]]:
    """Return what ``values()`` and ``ordered_values()`` name, each with its value."""
    ordered = getattr(statement, "_ordered_values", None) or ()  # SQLAlchemy 2.0
    return [*values_of(statement).items(), *ordered]


def with_value(
    statement: sa.Update, names: Collection[str], column: sa.Column[Any], value: Any
) -> sa.Update:
    """Return the UPDATE with another value for a column that it sets by one of these names.

    One that is only among its parameters is replaced, too.
    """
    pairs = pairs_set_by(statement)
    found = [name for name, _ in pairs if _is_named(name, names, column)]
    if not found:
        return statement.values({column: value})
    changed = statement.execution_options()  # a copy
    if not isinstance(value, sa.ClauseElement):
        value = sa.literal(value, column.type)
    made = [(name, value if name in found else one) for name, one in pairs]
    if getattr(statement, "_ordered_values", None):  # SQLAlchemy 2.0
        changed._ordered_values = made  # type: ignore[attr-defined]
    else:
        kind: Any = type(values_of(statement))
        changed._values = kind(made)
    return changed


def _is_named(name: Any, names: Collection[str], column: sa.Column[Any]) -> bool:
    table = getattr(name, "table", column.table)
    return getattr(name, "key", name) in names and bool(table == column.table)


def is_ordered(statement: sa.Update) -> bool:
    """Return whether it comes from ``ordered_values()``, so that no value can be added to it."""
    return bool(
        getattr(statement, "_ordered_values", None)  # SQLAlchemy 2.0
        or getattr(statement, "_maintain_values_ordering", False)
    )


def criteria_of(statement: sa.Update | sa.Delete) -> tuple[Any, ...]:
    """Return the parts of the WHERE."""
    return statement._where_criteria


def loader_options_of(statement: sa.Update | sa.Delete) -> tuple[Any, ...]:
    """Return the options that ``options()`` has added, such as ``with_loader_criteria()``."""
    return statement._with_options


def prefixes_of(statement: sa.Update | sa.Delete | sa.Insert) -> list[str]:
    """Return the texts that ``prefix_with()`` has put after the verb."""
    return [str(text) for text, _ in statement._prefixes]


def returns_values(statement: sa.Update | sa.Delete) -> bool:
    """Return whether it reads values of the rows, by ``returning()`` or ``return_defaults()``."""
    return bool(statement._returning or statement._return_defaults)


#: The ``compiled_cache`` of statements that SQLAlchemy sends for mappers, by a flush or in bulk.
#: Others give ``None``, or a dictionary. Where it has another type, the statement itself decides
#: (:func:`optilock._watched.writes.shapes.is_of_mappers`).
MappersCache = LRUCache


def upsert_of(statement: sa.Insert) -> Any:
    """Return the ON CONFLICT or ON DUPLICATE KEY of an INSERT, if it has one."""
    return statement._post_values_clause


def with_upserted_value(statement: sa.Insert, name: str, value: Any) -> sa.Insert:
    """Return the upsert with another value for a column that it sets where the row exists."""
    changed = statement.execution_options()  # a copy
    clause = copy(statement._post_values_clause)
    attribute = "update_values_to_set" if hasattr(clause, "update_values_to_set") else "update"
    given: Any = getattr(clause, attribute)
    pairs = given.items() if isinstance(given, Mapping) else given
    values = [(n, value if getattr(n, "key", n) == name else one) for n, one in pairs]
    setattr(clause, attribute, type(given)(values))
    changed._post_values_clause = clause
    return changed


def resolve_lambda(statement: sa.StatementLambdaElement) -> Any:
    """Return the statement that ``lambda_stmt()`` makes."""
    return statement._resolved


# -- queries ---------------------------------------------------------------------------------------

#: The FOR UPDATE of a ``Select``, or ``None``; read for every query, so no call of Python.
lock_of: Callable[[sa.Select[Any]], Any] = attrgetter("_for_update_arg")


def locks_rows(statement: Any) -> bool:
    """Return whether it is a query with a FOR UPDATE, or ``from_statement()`` of one."""
    inside = getattr(statement, "element", statement)
    return getattr(inside, "_for_update_arg", None) is not None


def waits_for_rows(statement: Any) -> bool:
    """Return whether it may wait for a row's lock; True for anything but a query."""
    if not isinstance(statement, sa.Select) or has_inner_write(statement):
        return True
    lock = statement._for_update_arg
    return lock is not None and not (lock.nowait or lock.skip_locked)


def add_shared_lock(statement: Any) -> Any:
    """Return the query of the ORM with a lock that other readers may have as well."""
    inside = getattr(statement, "element", None)
    if inside is None:
        return statement.with_for_update(read=True)
    made = statement._clone()
    made.element = inside.with_for_update(read=True)
    return made


def state_refreshed_by(execution_options: Any) -> State | None:
    """Return the object for which the query reads deferred, expired or refreshed attributes."""
    load = (execution_options or {}).get("_sa_orm_load_options")
    state: State | None = None if load is None else load._refresh_state
    return state


def state_lazily_loaded_by(execution_options: Any) -> State | None:
    """Return the object for which the query reads a relationship."""
    load = (execution_options or {}).get("_sa_orm_load_options")
    state: State | None = None if load is None else load._lazy_loaded_from
    return state


def requested_key(params: Any, execution_options: Any) -> tuple[Any, ...] | None:
    """Return the key of the one row that ``get()``, a lazy load or a refresh reads.

    ``None``: it is another query. Called for every query of a unit with a strategy.
    """
    if type(params) is dict and "pk_1" in params and execution_options:
        return tuple(params.values())
    return None


def next_run() -> int:
    """Return a number between those of the queries before and of the queries to come."""
    return int(loading._new_runid())


def run_of(query_or_state: Any) -> int | None:
    """Return the number of a query, or of the query that has filled the object as a whole."""
    run: int | None = query_or_state.runid
    return run


def may_repeat_objects(result: sa.Result[Any]) -> bool:
    """Return whether an object may be in several rows (a collection that is loaded by a join).

    A result that does not come from the session itself (``do_orm_execute``, a cache) does not show
    it. Called for each row that is read by its key: ``unique()`` costs ten calls.
    """
    return type(result) is not ChunkedIteratorResult or result._unique_filter_state is not None


def repeats_objects(result: Any) -> bool:
    """Return whether SQLAlchemy requires ``unique()``: a collection is loaded by a join."""
    return getattr(result, "_unique_filter_state", None) is not None


def may_lock(statement: sa.Select[Any]) -> bool:
    """Return whether each row of the result stands for rows of its tables, one by one."""
    return not (
        statement._distinct
        or statement._distinct_on
        or statement._group_by_clauses
        or statement._having_criteria
        or statement._independent_ctes
    )


def has_inner_write(statement: sa.Select[Any]) -> bool:
    """Return whether it may have a statement that writes before it (``add_cte()``)."""
    return bool(statement._independent_ctes)


class Joins(NamedTuple):
    """The joins of a query, besides the classes that it names as columns."""

    #: What ``select_from()`` has given.
    froms: tuple[Any, ...]
    #: Whether there is an outer join, one with a left side of its own, or a full one.
    outer: bool
    placed: bool
    full: bool


def joins_of(statement: sa.Select[Any]) -> Joins:
    """Return the targets of ``join()`` and ``select_from()``."""
    joins = statement._setup_joins
    return Joins(
        tuple(statement._from_obj),
        any(flags["isouter"] for _, _, _, flags in joins),
        any(left is not None for _, _, left, _ in joins),
        any(flags["full"] for _, _, _, flags in joins),
    )


# -- older releases of SQLAlchemy ------------------------------------------------------------------


def listen_on(connection: sa.Connection, name: str, listener: Callable[..., Any]) -> None:
    """Call ``event.listen()``; older releases refuse a connection whose engine has options."""
    try:
        sa.event.listen(connection, name, listener)
    except InvalidRequestError:
        key = find_name("sqlalchemy.event.registry:_EventKey")
        key(connection, name, listener, connection).listen()


def savepoints_of(connection: sa.Connection) -> Iterator[str]:
    """Yield the names of the savepoints that are open on the connection."""
    nested: Any = connection.get_nested_transaction()
    while nested is not None:
        yield nested._savepoint
        nested = nested._previous_nested


def is_in_greenlet() -> bool:
    """Return whether SQLAlchemy runs this for an ``await``. Requires greenlet."""
    check = getattr(concurrency, "in_greenlet", None)
    if check is not None:
        return bool(check())
    before = importlib.import_module("sqlalchemy.util._concurrency_py3k")
    return isinstance(before.getcurrent(), before._AsyncIoGreenlet)


def label_as_get(query: sa.Select[Any]) -> sa.Select[Any]:
    """Return the query with its columns under the names that they have in ``get()``."""
    if hasattr(Session, "merge_all"):  # since 2.1 as in any query
        return query
    return query.set_label_style(sa.LABEL_STYLE_TABLENAME_PLUS_COL)


def compiler_of(construct: type[Any]) -> Callable[..., Any] | None:
    """Return the function that a program has registered for a construct with ``@compiles``."""
    registered = construct.__dict__.get("_compiler_dispatcher")
    found: Callable[..., Any] | None = (
        None if registered is None else registered.specs.get("default")
    )
    return found
