"""What optilock uses of SQLAlchemy without its being documented, and nothing else.

When a release of SQLAlchemy renames one of these, this is the file to look at: what older releases
do not have, then objects, sessions and their transactions, mappers, statements, queries,
connections, and dialects with their types. The guarded flush itself stands on events, and on what
the unit of work asks of a result (:mod:`optilock.writes.answers`).
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import chain, takewhile
from operator import attrgetter, methodcaller
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import (
    LABEL_STYLE_TABLENAME_PLUS_COL,
    Column,
    Connection,
    Delete,
    Dialect,
    Engine,
    Insert,
    Result,
    Select,
    StatementLambdaElement,
    Update,
    event,
)
from sqlalchemy.engine import ChunkedIteratorResult
from sqlalchemy.event.attr import _ListenerCollection
from sqlalchemy.event.registry import _EventKey
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.orm import (
    InstanceState,
    Mapper,
    Session,
    SessionTransaction,
    UOWTransaction,
    loading,
    mapperlib,
)
from sqlalchemy.orm.attributes import manager_of_class
from sqlalchemy.orm.session import SessionTransactionState
from sqlalchemy.pool.base import _ConnectionRecord
from sqlalchemy.types import TypeEngine
from sqlalchemy.util import LRUCache, concurrency

State = InstanceState[Any]
T = TypeVar("T")
Change = Update | Delete | Insert

# -- of older releases ----------------------------------------------------------------------------


def listen_on(connection: Connection, name: str, listener: Callable[..., Any]) -> None:
    """``event.listen()``; older releases refuse a connection whose engine has options."""
    try:
        event.listen(connection, name, listener)
    except InvalidRequestError:
        _EventKey(connection, name, listener, connection).listen()


def in_greenlet() -> bool:
    """Does SQLAlchemy run this for an ``await``? Only to be asked where there is greenlet."""
    asked = getattr(concurrency, "in_greenlet", None)
    if asked is not None:
        return bool(asked())
    before = importlib.import_module("sqlalchemy.util._concurrency_py3k")
    return isinstance(before.getcurrent(), before._AsyncIoGreenlet)


def named_as_by_get(query: Select[Any]) -> Select[Any]:
    """The query, with its columns under the names that they have in ``get()``."""
    if hasattr(Session, "merge_all"):  # since 2.1 as in any query
        return query
    return query.set_label_style(LABEL_STYLE_TABLENAME_PLUS_COL)


# -- objects --------------------------------------------------------------------------------------


def mark_changed(state: State, name: str, before: Any) -> None:
    """Let the next flush write the attribute, whose stored value is ``before``; without events."""
    state._modified_event(state.dict, state.manager[name].impl, before)


def belongs_to(state: State, parent: State, name: str) -> None:
    """The object is in the collection ``name`` of its parent again, and no orphan."""
    impl: Any = parent.manager[name].impl
    impl.sethasparent(state, parent, True)


def expire_attribute(state: State, name: str) -> None:
    """Let the attribute be read when it is asked for."""
    state._expire_attributes(state.dict, (name,))


def take_as_stored(state: State) -> None:
    """What the object holds is what is stored: nothing of it is changed."""
    session = state.session
    state._commit_all(state.dict, None if session is None else session.identity_map)


def left_out(state: State, query: Any) -> list[str]:
    """Attributes that options of the query leave out of its rows, and that the object still holds.

    SQLAlchemy notes for such an object that they are deferred, and leaves the values in place.
    """
    if not (state.callables and query.attributes):
        return []
    paths = (state.load_path, state.mapper._path_registry)
    held = (name for name in state.callables if name in state.dict)
    return [name for name in held if any(_is_deferred(state, name, query, p) for p in paths)]


def _is_deferred(state: State, name: str, query: Any, path: Any) -> bool:
    option = state.mapper.attrs[name]._get_context_loader(query, path)
    return option is not None and ("deferred", True) in (option.strategy or ())


def is_child(state: State, parent: type[Any], key: str) -> bool | None:
    """Does an object of ``parent`` have it in ``key``? ``None``: it was loaded, and not moved."""
    has_parent = manager_of_class(parent).has_parent
    known = {has_parent(state, key, optimistic=guess) for guess in (True, False)}
    return known.pop() if len(known) == 1 else None


def next_run() -> int:
    """A number between those of the queries before and of the queries to come."""
    return int(loading._new_runid())


def run_of(query_or_state: Any) -> int | None:
    """The number of a query, or of the query that has filled the object as a whole."""
    run: int | None = query_or_state.runid
    return run


# -- sessions -------------------------------------------------------------------------------------

#: The objects of ``session.deleted``, which makes a new set each time; no call of Python.
marked_deleted: Callable[[Session], Collection[State]] = attrgetter("_deleted")


def last_deleted(session: Session) -> State | None:
    """The object that was added last to ``session.deleted``."""
    return next(reversed(session._deleted), None)


def deleted_since(session: Session, last: State | None) -> Iterator[State]:
    """Those that were added to it after ``last``; all of them, if a flush has taken that away."""
    return takewhile(lambda state: state is not last, reversed(session._deleted))


def mark_deleted(session: Session, state: State, obj: Any) -> None:
    """Put the object back into ``session.deleted``; what it cascades to stays as it is."""
    session._deleted[state] = obj


def unmark_deleted(session: Session, state: State) -> None:
    """Take the object out of ``session.deleted``, and leave the running flush as it is."""
    session._deleted.pop(state, None)


def now_deleted(session: Session, states: Iterable[State]) -> None:
    """A statement has deleted the rows of these objects, as ``delete(Model)`` does."""
    session._remove_newly_deleted(list(states))


def classes_to_flush(session: Session) -> set[Mapper[Any]]:
    """The classes of its new, changed and deleted objects, of which each list is made anew."""
    states = (session._new, session.identity_map._modified, session._deleted)
    return set(map(_mapper_of, chain.from_iterable(states)))


_mapper_of: Callable[[State], Mapper[Any]] = attrgetter("manager.mapper")


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


def is_flushing(session: Session) -> bool:
    """Does a flush run?"""
    return bool(session._flushing)


def expire_with_savepoint(session: Session, states: Iterable[State]) -> None:
    """Let the rollback of the running savepoint expire these objects, too."""
    session._register_altered(states)


def listeners_of(session: Session, name: str) -> Iterable[Callable[..., Any]]:
    """What is called for an event of the session, whoever registered it."""
    listeners: Iterable[Callable[..., Any]] = getattr(session.dispatch, name)
    return listeners


# -- transactions of sessions ---------------------------------------------------------------------

#: ``get_nested_transaction()`` of a session or a connection, and ``get_transaction()`` of a
#: connection, without a call of Python.
nested_transaction: Callable[[Any], Any] = attrgetter("_nested_transaction")
transaction_of: Callable[[Connection], Any] = attrgetter("_transaction")


def inserted_by(session: Session | None) -> Iterator[State]:
    """The objects whose rows the running transaction has inserted."""
    running = session and (session.get_nested_transaction() or session.get_transaction())
    while running:
        yield from list(running._new)
        running = running.parent


def inserted_in(transaction: SessionTransaction) -> Collection[State]:
    """The objects whose rows the transaction, or the savepoint, has inserted."""
    return transaction._new


def deleted_in(transaction: SessionTransaction) -> Collection[State]:
    """The objects whose rows it has deleted."""
    return transaction._deleted


def was_committing(transaction: SessionTransaction) -> bool:
    """Did the transaction, which failed, get to COMMIT? A flush that fails ends it before."""
    return transaction._state is SessionTransactionState.PREPARED


def was_committed(transaction: SessionTransaction) -> bool:
    """Is COMMIT over, though a listener of ``after_commit`` may have failed since?"""
    return transaction._state is SessionTransactionState.COMMITTED


def opened_by(transaction: SessionTransaction, connection: Connection) -> bool:
    """Has the session itself opened the connection, so that its COMMIT is the connection's?"""
    _, _, commits, opened = transaction._connections[connection]
    return bool(commits and opened)


Held = Mapping[Any, tuple[Connection, Any, bool, bool]]


def leave_connections(transaction: SessionTransaction) -> Held:
    """Take its connections out of a session's transaction, which ends without them."""
    held, transaction._connections = transaction._connections, {}
    return held


def take_connections(transaction: SessionTransaction, held: Held) -> None:
    """Let another session's transaction, which has none yet, go on with them."""
    transaction._connections.update(held)


# -- mappers --------------------------------------------------------------------------------------


def registries() -> Iterable[Any]:
    """Every registry of mapped classes that there is."""
    return mapperlib._all_registries()


def mapped_by(registry: Any) -> Iterator[Mapper[Any]]:
    """Its classes. ``registry.mappers`` raises where the mapping of one of them has failed."""
    return (one.mapper for one in list(registry._managers) if one.is_mapped)


def mapped_key(mapper: Mapper[Any]) -> Any:
    """The ``primary_key=`` of the mapping, before the mapper has looked at its table."""
    return getattr(mapper, "_primary_key_argument", None)


def names_in_composite(mapper: Mapper[Any], name: str) -> list[str]:
    """The attributes of the columns that a composite is made of, in its order."""
    return [attribute.key for attribute in mapper.composites[name].props]


def always_load(mapper: Mapper[Any], columns: Collection[Any]) -> None:
    """The columns that no ``load_only()`` and no ``defer("*")`` leaves out."""
    mapper.__dict__["_should_undefer_in_wildcard"] = columns


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


# -- statements -----------------------------------------------------------------------------------


def is_server_side(context: Any) -> bool:
    """Are the rows of the statement fetched a few at a time, by a cursor of the server?"""
    return bool(getattr(context, "_is_server_side", False))


def subject_of(statement: Change | Select[Any]) -> Any:
    """The class, or the alias of one, that the statement names; ``None`` for a table."""
    return statement._propagate_attrs.get("plugin_subject")


def is_of_the_orm(statement: Any) -> bool:
    """Does the statement name a class?"""
    known = getattr(statement, "_propagate_attrs", None) or {}
    return known.get("compile_state_plugin") == "orm"


#: By what SQLAlchemy knows a statement again (``key``), without its values; ``None``: it does not.
#: The statement keeps it for its execution. Asked for every query, so no call of Python.
cache_key_of: Callable[[Any], Any] = methodcaller("_generate_cache_key")


def values_of(statement: Any) -> Mapping[Any, Any]:
    """What ``values()`` has given."""
    return getattr(statement, "_values", None) or {}


def given_by(statement: Insert) -> set[str]:
    """The names of the columns that ``values()`` or ``from_select()`` has given new rows."""
    rows = [values_of(statement), *(row for some in statement._multi_values for row in some)]
    names = [name for row in rows for name in row] + list(statement._select_names or ())
    return {str(getattr(name, "key", name)) for name in names}


def names_set_by(statement: Update) -> list[Any]:
    """What ``values()`` and ``ordered_values()`` have named: columns, attributes or texts."""
    ordered = getattr(statement, "_ordered_values", None) or ()  # SQLAlchemy 2.0
    return [*values_of(statement), *(name for name, _ in ordered)]


def is_ordered(statement: Update) -> bool:
    """Does it come from ``ordered_values()``, so that nothing can be added to its values?"""
    return bool(
        getattr(statement, "_ordered_values", None)  # SQLAlchemy 2.0
        or getattr(statement, "_maintain_values_ordering", False)
    )


def criteria_of(statement: Update | Delete) -> tuple[Any, ...]:
    """The parts of the WHERE."""
    return statement._where_criteria


def loader_options_of(statement: Update | Delete) -> tuple[Any, ...]:
    """What ``options()`` has added, ``with_loader_criteria()`` for instance."""
    return statement._with_options


def prefixes_of(statement: Update | Delete | Insert) -> list[str]:
    """What ``prefix_with()`` has put after the verb."""
    return [str(text) for text, _ in statement._prefixes]


def returns_values(statement: Update | Delete) -> bool:
    """Does it ask for values of the rows, by ``returning()`` or ``return_defaults()``?"""
    return bool(statement._returning or statement._return_defaults)


#: In the ``compiled_cache`` of what SQLAlchemy sends for its mappers, by a flush or in bulk; others
#: give ``None``, or a dictionary.
MappersCache = LRUCache


def upsert_of(statement: Insert) -> Any:
    """The ON CONFLICT or ON DUPLICATE KEY of an INSERT, if it has one."""
    return getattr(statement, "_post_values_clause", None)


def resolved(statement: StatementLambdaElement) -> Any:
    """The statement that ``lambda_stmt()`` makes."""
    return statement._resolved


# -- queries --------------------------------------------------------------------------------------

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
    state: State | None = getattr(load, "_refresh_state", None)
    return state


def lazily_loaded_by(execution_options: Any) -> State | None:
    """The object for which the query reads a relationship."""
    load = (execution_options or {}).get("_sa_orm_load_options")
    state: State | None = getattr(load, "_lazy_loaded_from", None)
    return state


def key_asked_for(params: Any, execution_options: Any) -> tuple[Any, ...] | None:
    """The key of the one row that ``get()``, a lazy load or a refresh asks for; ``None``: a query.

    Asked for every query of a unit with a strategy.
    """
    if type(params) is dict and "pk_1" in params and execution_options:
        return tuple(params.values())
    return None


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


# -- connections ----------------------------------------------------------------------------------


def while_connecting(error: BaseException) -> bool:
    """Did it come out of a pool that was making a connection?

    Asyncpg raises the operating system's own errors there, and nothing else tells them from others.
    """
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code is _connects:
            return True
        trace = trace.tb_next
    return False


_connects = vars(_ConnectionRecord)["_ConnectionRecord__connect"].__code__


def demand_rollback(connection: Connection) -> None:
    """Let the connection refuse statements and COMMIT until its transaction is rolled back.

    So SQLAlchemy leaves a transaction whose COMMIT has failed.
    """
    transaction = connection.get_transaction()
    if transaction is not None:
        transaction.is_active = False


def is_over(connection: Connection) -> bool:
    """Does the connection demand that?"""
    transaction = connection.get_transaction()
    return transaction is not None and not transaction.is_active


def has_begin_listeners(engine: Engine) -> bool:
    """Does a listener hear of each transaction that begins, and may send a BEGIN of its own?"""
    return bool(engine.dispatch.begin)


def has_commit_listeners(connection: Connection) -> bool:
    """Does a listener hear of each COMMIT of the connection, before it is sent?"""
    return bool(connection.dispatch.commit or connection.engine.dispatch.commit)


# -- dialects and types ---------------------------------------------------------------------------


def double_percents(dialect: Dialect) -> bool:
    """Does the compiler write ``%`` twice, for a driver that would take it for a parameter?"""
    return bool(getattr(dialect.identifier_preparer, "_double_percents", False))


def default_in_ddl(column: Column[Any], dialect: Dialect) -> str:
    """The SQL of a column's ``server_default``, as CREATE TABLE has it."""
    compiler = dialect.ddl_compiler(dialect, None)  # type: ignore[arg-type]
    found = compiler.get_column_default_string(column)
    assert found is not None  # of columns that have one
    return found.replace("%%", "%") if double_percents(dialect) else found


def reads_json_itself(dialect: Dialect) -> bool:
    """Has the application its own reader of JSON (``create_engine(json_deserializer=...)``)?"""
    return getattr(dialect, "_json_deserializer", None) is not None


def json_writer(dialect: Dialect | None) -> Callable[[Any], Any]:
    """What makes the text of a JSON value: ``create_engine(json_serializer=...)``, or Python's."""
    return getattr(dialect, "_json_serializer", None) or json.dumps


def level_on_connect(dialect: Dialect) -> str | None:
    """The ``isolation_level`` that ``create_engine`` was given."""
    level: str | None = getattr(dialect, "_on_connect_isolation_level", None)
    return level


def skips_rollback(dialect: Dialect) -> bool:
    """``create_engine(skip_autocommit_rollback=True)``, which SQLAlchemy has since 2.0.43."""
    return bool(getattr(dialect, "skip_autocommit_rollback", False))


def has_bind_expression(kind: TypeEngine[Any]) -> bool:
    """Does the type put SQL of its own around a parameter?"""
    return bool(getattr(kind, "_has_bind_expression", False))
