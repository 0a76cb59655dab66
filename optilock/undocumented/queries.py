"""What queries lock, join and read, and for which object."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, NamedTuple

from sqlalchemy import Result, Select
from sqlalchemy.engine import ChunkedIteratorResult
from sqlalchemy.orm import loading

from optilock.undocumented.objects import State

#: The FOR UPDATE of a ``Select``, or ``None``; asked for every query, so no call of Python.
lock_of: Callable[[Select[Any]], Any] = attrgetter("_for_update_arg")


def locks_rows(statement: Any) -> bool:
    """Is it a query with a FOR UPDATE, or ``from_statement()`` of one?"""
    inside = getattr(statement, "element", statement)
    return getattr(inside, "_for_update_arg", None) is not None


def with_shared_lock(statement: Any) -> Any:
    """The query of the ORM, with a lock that other readers may have as well."""
    inside = getattr(statement, "element", None)
    if inside is None:
        return statement.with_for_update(read=True)
    made = statement._clone()
    made.element = inside.with_for_update(read=True)
    return made


def refreshed_by(execution_options: Any) -> State | None:
    """The object for which the query reads again what is deferred, expired or to be refreshed."""
    load = (execution_options or {}).get("_sa_orm_load_options")
    state: State | None = None if load is None else load._refresh_state
    return state


def lazily_loaded_by(execution_options: Any) -> State | None:
    """The object for which the query reads a relationship."""
    load = (execution_options or {}).get("_sa_orm_load_options")
    state: State | None = None if load is None else load._lazy_loaded_from
    return state


def key_asked_for(params: Any, execution_options: Any) -> tuple[Any, ...] | None:
    """The key of the one row that ``get()``, a lazy load or a refresh asks for; ``None``: a query.

    Asked for every query of a unit with a strategy.
    """
    if type(params) is dict and "pk_1" in params and execution_options:
        return tuple(params.values())
    return None


def next_run() -> int:
    """A number between those of the queries before and of the queries to come."""
    return int(loading._new_runid())


def run_of(query_or_state: Any) -> int | None:
    """The number of a query, or of the query that has filled the object as a whole."""
    run: int | None = query_or_state.runid
    return run


def repeats(result: Result[Any]) -> bool:
    """May an object be in several rows (a collection that is loaded by a join)?

    What is not of the session itself (``do_orm_execute``, a cache) does not say so. Asked for each
    row that is read by its key: ``unique()`` costs ten calls.
    """
    return type(result) is not ChunkedIteratorResult or result._unique_filter_state is not None


def may_lock(statement: Select[Any]) -> bool:
    """Does each row of the result stand for rows of its tables, one by one?"""
    return not (
        statement._distinct
        or statement._distinct_on
        or statement._group_by_clauses
        or statement._having_criteria
        or statement._independent_ctes
    )


def writes_inside(statement: Select[Any]) -> bool:
    """May it have a statement that writes before it (``add_cte()``)?"""
    return bool(statement._independent_ctes)


class Joins(NamedTuple):
    """What a query is joined with, besides the classes that it names as columns."""

    #: What ``select_from()`` has given.
    froms: tuple[Any, ...]
    #: Is there an outer join, one with a left side of its own, or a full one?
    outer: bool
    placed: bool
    full: bool


def joins_of(statement: Select[Any]) -> Joins:
    """What ``join()`` and ``select_from()`` have given."""
    joins = statement._setup_joins
    return Joins(
        tuple(statement._from_obj),
        any(flags["isouter"] for _, _, _, flags in joins),
        any(left is not None for _, _, left, _ in joins),
        any(flags["full"] for _, _, _, flags in joins),
    )
