"""Mappers: which there are, what is kept in them, and who listens to their rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, TypeVar

from sqlalchemy import Column, Connection
from sqlalchemy.event.attr import _ListenerCollection
from sqlalchemy.orm import Mapper, mapperlib

from optilock.undocumented.objects import State

T = TypeVar("T")


def registries() -> Iterable[Any]:
    """Every registry of mapped classes that there is."""
    return mapperlib._all_registries()


def mapped_by(registry: Any) -> Iterator[Mapper[Any]]:
    """Its classes. ``registry.mappers`` raises where the mapping of one of them has failed."""
    return (one.mapper for one in list(registry._managers) if one.is_mapped)


def mapped_key(mapper: Mapper[Any]) -> Any:
    """The ``primary_key=`` of the mapping, before the mapper has looked at its table."""
    return mapper._primary_key_argument


def names_in_composite(mapper: Mapper[Any], name: str) -> list[str]:
    """The attributes of the columns that a composite is made of, in its order."""
    return [attribute.key for attribute in mapper.composites[name].props]


def always_load(mapper: Mapper[Any], columns: Collection[Any]) -> None:
    """The columns that no ``load_only()`` and no ``defer("*")`` leaves out."""
    mapper.__dict__["_should_undefer_in_wildcard"] = columns


class _Asking(dict[Any, frozenset[str]]):
    """The attributes of each table's key, for UPDATEs by primary key, which may be refused."""

    ask: Callable[[], None]

    def __getitem__(self, table: Any) -> frozenset[str]:
        self.ask()
        return super().__getitem__(table)


def compare_by_key(mapper: Mapper[Any], name: str, table: Any, ask: Callable[[], None]) -> None:
    """Let UPDATEs by primary key compare the attribute, which is in ``table``, and not set it.

    SQLAlchemy uses this list of the attributes of the key for them alone; it ``ask``s first.
    """
    keys = mapper._pk_attr_keys_by_table
    found = _Asking(
        {one: names | ({name} if one is table else set()) for one, names in keys.items()}
    )
    found.ask = ask
    mapper._memoized_keys -= {"_pk_attr_keys_by_table"}  # or the next subclass would drop it
    mapper.__dict__["_pk_attr_keys_by_table"] = found


def leave_out(mapper: Mapper[Any], columns: Collection[Column[Any]]) -> None:
    """Let the mapper, which has not looked at its table yet, make no attributes of these."""
    mapper.exclude_properties = {*(mapper.exclude_properties or ()), *columns}


def keep_with_mapping(mapper: Mapper[Any], key: str, value: T) -> T:
    """Keep what was worked out of a mapping in its mapper, until the mapping is changed."""
    mapper.__dict__[key] = value
    mapper._memoized_keys |= {key}
    return value


def load_with_parent(parent: Mapper[Any], mapper: Mapper[Any]) -> None:
    """Let a query for ``parent`` read the columns of its child ``mapper`` with the row."""
    parent._add_with_polymorphic_subclass(mapper)  # type: ignore[no-untyped-call]


class AskingListeners(_ListenerCollection[Any]):
    """The listeners of one mapper for one event, which are called where :meth:`ask` says so."""

    __slots__ = ()  # the layout stays, so that ``__class__`` may be assigned

    @staticmethod
    def ask(name: str, connection: Connection, state: State) -> bool:
        raise NotImplementedError

    def __call__(
        self, mapper: Mapper[Any], connection: Connection, state: State, **options: Any
    ) -> None:
        if self and self.ask(self.name, connection, state):
            super().__call__(mapper, connection, state, **options)


def ask_listeners(mapper: Mapper[Any], name: str, asking: type[AskingListeners]) -> None:
    """Let the mapper's listeners for the event be ``asking`` ones, if there are any.

    The collection stays the same object: its listeners are registered with it.
    """
    listeners = getattr(mapper.dispatch, name)
    if type(listeners) is not asking and listeners:
        listeners.for_modify(mapper.dispatch).__class__ = asking
