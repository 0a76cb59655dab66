"""How a flush writes the rows of a class: its statement, its order, its listeners."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection, Update
from sqlalchemy.orm import Mapper, UOWTransaction

from optilock.undocumented.objects import State


def update_sent_for(mapper: Mapper[Any]) -> tuple[Update, Any] | None:
    """The UPDATE by key and version that flushes send for the class, and the cache it is kept in.

    ``None``: no flush has sent one.
    """
    base: Any = mapper.base_mapper
    statement = base._memoized_values.get(("update", mapper.local_table))
    return None if statement is None else (statement, base._compiled_cache)


def comparison_of(mapper: Mapper[Any], name: str) -> Callable[[Any, Any], bool]:
    """What a flush asks whether the value of an attribute has changed."""
    impl: Any = mapper.class_manager[name].impl
    compare: Callable[[Any, Any], bool] = impl.is_equal
    return compare


def listeners_of_rows(mapper: Mapper[Any]) -> tuple[Any, Any]:
    """What is called before and after a flush updates a row of the class; empty ones are false."""
    events = mapper.dispatch
    return events.before_update, events.after_update


def listeners_of_values(mapper: Mapper[Any]) -> Any:
    """What is called with an object, the flush, and the attributes that the flush has filled in."""
    return mapper.class_manager.dispatch.refresh_flush


def order_of_rows(mapper: Mapper[Any]) -> Callable[[State], Any]:
    """By what a flush sorts the rows of a class."""
    order: Callable[[State], Any] = mapper._persistent_sortkey_fn
    return order


#: By what it sorts classes, where no row of one depends on a row of another.
order_of_class: Callable[[Mapper[Any]], str] = attrgetter("_sort_key")


def connection_of_flush(uow: UOWTransaction, mapper: Mapper[Any]) -> Connection:
    """The connection on which a flush writes the rows of the class."""
    connection: Connection = uow.transaction.connection(mapper)
    return connection
