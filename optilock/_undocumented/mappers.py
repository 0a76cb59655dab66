"""Mappings: their classes, the values kept in them, and listeners to their rows; and objects."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Column, ColumnElement, Connection, inspect
from sqlalchemy.orm import ColumnProperty, InstanceState, Mapper, PassiveFlag, Session

from optilock._undocumented.names import find_name

if TYPE_CHECKING:
    from sqlalchemy.event.attr import _ListenerCollection
    from sqlalchemy.orm import mapperlib
    from sqlalchemy.orm.attributes import manager_of_class
    from sqlalchemy.orm.base import state_str as state_str
    from sqlalchemy.orm.clsregistry import _MultipleClassMarker
else:
    _ListenerCollection = find_name("sqlalchemy.event.attr:_ListenerCollection")
    mapperlib = find_name("sqlalchemy.orm:mapperlib")
    manager_of_class = find_name("sqlalchemy.orm.attributes:manager_of_class")
    _MultipleClassMarker = find_name("sqlalchemy.orm.clsregistry:_MultipleClassMarker")
    state_str = find_name("sqlalchemy.orm.base:state_str")

T = TypeVar("T")
State = InstanceState[Any]


def registries() -> Iterable[Any]:
    """Return every registry of mapped classes."""
    return mapperlib._all_registries()


def mappers_in(registry: Any) -> Iterator[Mapper[Any]]:
    """Yield its mappers. ``registry.mappers`` raises where the mapping of one class has failed."""
    return (one.mapper for one in list(registry._managers) if one.is_mapped)


def mappers_meant(mapper: Mapper[Any], argument: Any) -> Iterator[Mapper[Any]]:
    """Yield classes that a relationship of the mapper may mean; configures nothing.

    A string means classes of the mapper's own registry. One that is not there yet is left out.
    """
    if isinstance(argument, str):
        names = mapper.registry._class_registry
        found = [names.get(word) for word in re.findall(r"\w+", argument)]
    elif callable(argument) and not isinstance(argument, (type, Mapper)):
        try:
            found = [argument()]
        except (NameError, AttributeError):  # its module is not imported as a whole
            return
    else:
        found = [argument]
    for one in found:
        for cls in one if isinstance(one, _MultipleClassMarker) else (one,):
            meant = getattr(inspect(cls, raiseerr=False), "mapper", None)
            if meant is not None:
                yield meant


def key_of_mapping(mapper: Mapper[Any]) -> Any:
    """Return the ``primary_key=`` of the mapping, before the mapper has read its table."""
    return mapper._primary_key_argument


def names_in_composite(mapper: Mapper[Any], name: str) -> list[str]:
    """Return the attributes of the columns in a composite, in its order."""
    return [attribute.key for attribute in mapper.composites[name].props]


def always_load(mapper: Mapper[Any], columns: Collection[Any]) -> None:
    """Set the columns that no ``load_only()`` and no ``defer("*")`` leaves out."""
    mapper.__dict__["_should_undefer_in_wildcard"] = columns


class _AskingKeys(dict[Any, frozenset[str]]):
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
    found = _AskingKeys(
        {one: names | ({name} if one is table else set()) for one, names in keys.items()}
    )
    found.ask = ask
    mapper._memoized_keys -= {"_pk_attr_keys_by_table"}  # or the next subclass would drop it
    mapper.__dict__["_pk_attr_keys_by_table"] = found


def leave_out(mapper: Mapper[Any], columns: Collection[Column[Any]]) -> None:
    """Let the mapper, which has not read its table yet, make no attributes of these."""
    mapper.exclude_properties = {*(mapper.exclude_properties or ()), *columns}


def keep_with_mapping(mapper: Mapper[Any], key: str, value: T) -> T:
    """Keep a value computed from a mapping in its mapper, until the mapping is changed.

    Classes are mapped while modules are imported. A release whose mappers forget in another way
    keeps nothing there, and the first ``watch()`` refuses it (:mod:`optilock._undocumented.check`).
    """
    if hasattr(mapper, "_memoized_keys"):
        mapper.__dict__[key] = value
        mapper._memoized_keys |= {key}
    return value


def load_with_parent(parent: Mapper[Any], mapper: Mapper[Any]) -> None:
    """Let a query for ``parent`` read the columns of its child ``mapper`` with the row."""
    parent._add_with_polymorphic_subclass(mapper)  # type: ignore[no-untyped-call]


class AskingListeners(_ListenerCollection[Any]):
    """The listeners of one mapper for one event, called only if :meth:`ask` returns true."""

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


class LoadedColumn(ColumnProperty[Any]):
    """A column attribute that hears of each object whose value a query replaces, or leaves out.

    Queries that do neither read it as they read any other column.
    """

    __slots__ = ()  # the layout stays, so that ``__class__`` may be assigned
    inherit_cache = True

    @staticmethod
    def is_heard(session: Session) -> bool:
        """Return whether to hear of the session's objects."""
        raise NotImplementedError

    @staticmethod
    def replaced(state: State, held: dict[str, Any], name: str, names: Iterable[str]) -> None:
        """Hear of an object before its value is replaced; it held ``names`` before the query."""
        raise NotImplementedError

    @staticmethod
    def left_out(
        session: Session, state: State, held: dict[str, Any], name: str, names: Iterable[str]
    ) -> None:
        """Hear of an object that gets values of its row without that of the column."""
        raise NotImplementedError

    def setup(self, *args: Any, **options: Any) -> None:
        """Let the query read the column, and ask for its reader each time it runs."""
        super().setup(*args, **options)
        columns = options["memoized_populators"]
        if isinstance(columns.get(self), ColumnElement):
            columns[LoadedColumn, self] = columns.pop(self)

    def create_row_processor(self, context: Any, *args: Any) -> None:
        """Add the reader of the column in the rows of a query that runs."""
        _, path, mapper, result, adapter, populators = args
        name, quick, expire = self.key, populators["quick"], populators["expire"]
        columns = path.get(context.attributes, "memoized_setups", {})
        getter = columns.get((LoadedColumn, self))
        if isinstance(getter, ColumnElement):  # the first run
            getter = columns[LoadedColumn, self] = _getter(getter, result, adapter)
        if getter is not None:
            quick.append((name, getter))
        else:
            super().create_row_processor(context, *args)
        if not self.is_heard(context.session):
            return
        if quick and quick[-1][0] == name:
            if context.populate_existing or mapper.always_refresh:
                getter = quick.pop()[1]
                populators["new"].append((name, self._replace(expire, getter)))
        elif expire and expire[-1] == (name, True):
            expire.pop()
            populators["new"].append((name, self._leave_out(context, expire)))

    def _replace(self, expire: Any, getter: Callable[[Any], Any]) -> Callable[..., None]:
        name, hear = self.key, self.replaced

        def populate(state: State, held: dict[str, Any], row: Any) -> None:
            if held:
                hear(state, held, name, _names_before(held, expire) if expire else held)
            held[name] = getter(row)

        return populate

    def _leave_out(self, context: Any, expire: Any) -> Callable[..., None]:
        name, hear = self.key, self.left_out

        def populate(state: State, held: dict[str, Any], _: Any) -> None:
            hear(context.session, state, held, name, _names_before(held, expire))
            held.pop(name, None)
            state.expired_attributes.add(name)

        return populate


def _getter(column: Any, result: Any, adapter: Any) -> Any:
    adapted = adapter.columns[column] if adapter else None
    found = None if adapted is None else result._getter(adapted, False)
    return found or result._getter(column, False)


def _names_before(held: Iterable[str], expire: Collection[tuple[str, bool]]) -> list[str]:
    """Return the attributes that an object held before the query, whose rows lack some columns."""
    return [*held, *(name for name, is_missing in expire if is_missing)]


def extend_attribute(attribute: Any, kind: type[ColumnProperty[Any]]) -> None:
    """Let the column attribute of a mapper be a ``kind`` of attribute as well."""
    if not isinstance(attribute, kind):
        attribute.__class__ = _extended(kind, type(attribute))  # type: ignore[arg-type]


@functools.cache
def _extended(kind: type[Any], base: type[Any]) -> type[Any]:
    return type(base.__name__, (kind, base), {"__slots__": (), "inherit_cache": True})


# -- objects ---------------------------------------------------------------------------------------


def mark_changed(state: State, name: str, before: Any) -> None:
    """Let the next flush write the attribute, whose stored value is ``before``; without events."""
    state._modified_event(state.dict, state.manager[name].impl, before)


def attach_to_parent(state: State, parent: State, name: str) -> None:
    """Put the object back into the collection ``name`` of its parent, so that it is no orphan."""
    impl: Any = parent.manager[name].impl
    impl.sethasparent(state, parent, True)


def expire_attribute(state: State, name: str) -> None:
    """Let the attribute be read when it is next used."""
    state._expire_attributes(state.dict, (name,))


def expire_attributes(state: State, names: list[str]) -> None:
    """The same of several; listeners to ``expire`` are called once."""
    state._expire_attributes(state.dict, names)


def read_expired(state: State) -> None:
    """Read all that is expired of the object now."""
    state._load_expired(state, PassiveFlag.PASSIVE_OFF)


def mark_unchanged(state: State) -> None:
    """Mark the object as equal to its row: nothing of it is changed."""
    session = state.session
    state._commit_all(state.dict, None if session is None else session.identity_map)


def names_left_out(state: State, query: Any) -> list[str]:
    """Return attributes that options of the query leave out, and that the object still holds.

    SQLAlchemy notes for such an object that they are deferred, and leaves the values in place.
    """
    if not (state.callables and query.attributes):
        return []
    paths: list[Any] = [state.mapper._path_registry]
    if not state.load_path.is_root:  # or no query has loaded the object
        paths.append(state.load_path)
    held = (name for name in state.callables if name in state.dict)
    return [name for name in held if any(_is_deferred(state, name, query, p) for p in paths)]


def _is_deferred(state: State, name: str, query: Any, path: Any) -> bool:
    option = state.mapper.attrs[name]._get_context_loader(query, path)
    return option is not None and ("deferred", True) in (option.strategy or ())


def is_child(state: State, parent: type[Any], key: str) -> bool | None:
    """Return whether an object of ``parent`` has it in ``key``; ``None``: loaded, and not moved."""
    has_parent = manager_of_class(parent).has_parent
    known = {has_parent(state, key, optimistic=guess) for guess in (True, False)}
    return known.pop() if len(known) == 1 else None
