"""What a unit with a strategy does with each of its queries.

A watched session asks it before it sends a query (:mod:`optilock.watched.statements.execute`),
which reaches ``get()``, lazy loads, refreshes, queries and eager loads alike; and before ``get()``,
which may find an object in the session (:mod:`optilock.watched.rows.reads_by_key`).

*By key* the row is known, and its own heat counts. *By anything else* it is not, and the heat of
its table counts, which is moved by units that have queried the table. An object that the unit has
read without a lock, and ``get()`` wants with one, is locked and looked at: if its row has moved,
the unit has decided on what is no longer true, and gets the conflict at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Literal
from weakref import WeakKeyDictionary, ref

from sqlalchemy import (
    Alias,
    Column,
    Connection,
    Engine,
    FromClause,
    Join,
    Select,
    Table,
    inspect,
    select,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Bundle, Mapper, QueryableAttribute, Session
from sqlalchemy.orm.attributes import instance_state

from optilock.conditions.write import places_of
from optilock.dialects import Cause, database_of
from optilock.dialects.transient import cause_of
from optilock.errors import ConcurrencyError, ConfigurationError, PreconditionFailed
from optilock.mapped import State, facts, identity_of, place_of
from optilock.undocumented.statements import (
    joins_of,
    key_asked_for,
    may_lock,
    subject_of,
    writes_inside,
)
from optilock.unit.parts import Part
from optilock.unit.sessions import choose_no_more, lock_where_written
from optilock.unit.strategies.heat import Adaptive, Decision, Key, Memory
from optilock.watched.rows.reads_by_key import asked_for, reads_plainly, sent, the_one
from optilock.watched.rows.stored import rows_at
from optilock.watched.session.connections import bind_to_write, connection_to_write
from optilock.watched.session.watched import READS, watched

__all__ = [
    "MEMORY",
    "OPTIMISTIC",
    "PESSIMISTIC",
    "Lockable",
    "Locking",
    "Reading",
    "Strategy",
    "check_strategy",
    "rows_to_lock",
]

#: How many queries of a unit are remembered.
QUERIES = 100

_names: WeakKeyDictionary[Engine, str] = WeakKeyDictionary()


def name_of(bind: Engine | Connection) -> str:
    """The database behind an engine, without the password."""
    engine = bind.engine
    found = _names.get(engine)
    if found is None:
        url = engine.url
        place = (url.get_backend_name(), url.host, url.port, url.database)
        found = _names[engine] = "/".join(str(part) for part in place if part is not None)
    return found


class Reading:
    """The queries of one session."""

    __slots__ = (
        "_begun",
        "_bind",
        "_database",
        "_own",
        "adaptive",
        "beforehand",
        "failed",
        "held",
        "insist",
        "memory",
        "queries",
        "tried",
    )

    def __init__(self, session: Session, adaptive: Adaptive | None, memory: Memory) -> None:
        #: ``None``: every row is locked.
        self.adaptive = adaptive
        self.memory = memory
        #: What is to be locked, whatever its heat.
        self.insist: frozenset[Key] = frozenset()
        #: The first queries that did not ask for one row by its key.
        self.queries: list[Select[Any]] = []
        #: Rows that are, or are about to be, locked, and how others find them.
        self.held: dict[Key, Mapper[Any]] = {}
        #: Those of them that nobody has asked for yet.
        self.beforehand: set[Key] = set()
        #: Rows that were read without a lock though somebody has conflicted on them.
        self.tried: set[Key] = set()
        #: What has conflicted, once the unit has failed.
        self.failed: frozenset[Key] | None = None
        self._bind: Any = session.bind
        self._database = ""
        self._begun = False
        #: The query that it sends itself.
        self._own: Select[Any] | None = None

    # -- one row by its key ------------------------------------------------------------------------

    def get(
        self, original: Callable[..., Any], session: Session, entity: Any, ident: Any, options: Any
    ) -> Any:
        """``session.get()`` of a row that the caller does not lock himself."""
        found = asked_for(entity, ident)
        if found is None:
            return original(session, entity, ident, **options)
        known, identity = found
        mapper = known.mapper
        key = mapper.identity_key_from_primary_key(identity)
        obj = session.identity_map.get(key)
        if obj is not None:
            return self._get_again(original, session, mapper, obj, ident, options)
        if not reads_plainly(original, known, options):
            return original(session, entity, ident, **options)
        if self.is_cold() or not self.wants(session, mapper, identity):
            self._own = known.select_one
            return the_one(sent(session, known, identity, self._own))
        self._own = known.lock_one
        result = sent(session, known, identity, self._own)
        # A listener may have read it before the lock, or have given it from a cache: then it may be
        # older than its row. So may an object that the session knows by a key of another type.
        is_new = key not in session.identity_map
        obj = the_one(result)
        if is_new and obj is not None and instance_state(obj).key == key:
            _note_locked(session, instance_state(obj))
        return obj

    def _get_again(
        self,
        original: Callable[..., Any],
        session: Session,
        mapper: Mapper[Any],
        obj: Any,
        ident: Any,
        options: Any,
    ) -> Any:
        """An object that the session holds: it is compared with its row, once that is locked."""
        state = instance_state(obj)
        if self.is_cold() or state.expired or facts(state.mapper).locked_in is None:
            return original(session, mapper.class_, ident, **options)
        if not self.wants(session, state.mapper, identity_of(state)):
            return original(session, mapper.class_, ident, **options)
        locking = {"of": facts(state.mapper).locked_in, "key_share": True}
        return type(session).get(
            session, mapper.class_, ident, **{**options, "with_for_update": locking}
        )

    # -- before a query ----------------------------------------------------------------------------

    def locked(
        self, session: Session, statement: Select[Any], params: Any, options: dict[str, Any]
    ) -> Select[Any]:
        """The query with the locks that its rows need; often the query itself."""
        if statement is self._own:
            return statement
        identity = key_asked_for(params, options.get("execution_options"))
        if identity is None and len(self.queries) <= QUERIES:
            self.queries.append(statement)
        if self.is_cold():
            return statement
        if identity is None:
            return self._locked_query(session, statement)
        mapper = subject_of(statement)
        if not isinstance(mapper, Mapper):
            return statement
        table = facts(mapper).locked_in
        if table is None or not self.wants(session, mapper, identity):
            return statement
        return statement.with_for_update(of=table, key_share=True)

    def is_cold(self) -> bool:
        """Is there no row that would be locked?"""
        memory = self.memory
        return self.adaptive is not None and not (memory.rows or memory.crowded or self.insist)

    def wants(self, session: Session, mapper: Mapper[Any], identity: tuple[Any, ...]) -> bool:
        """Is the row to be locked now? What comes before the lock is done then."""
        key = self.key_of(session, mapper, identity)
        if key in self.held:
            self.beforehand.discard(key)
            return False
        if not self._decide(key):
            return False
        partners = self.memory.partners(key) if self.adaptive is not None else None
        if partners:
            self._lock_partners(session, key, partners)
            self.beforehand.discard(key)
            if key in self.held:
                return False
        if not (self._begun or self._begin(session, mapper)):
            return False
        self.held[key] = mapper
        return True

    def _decide(self, key: Key) -> bool:
        if self.adaptive is None or key in self.insist:
            return True
        decision = self.memory.decide(key, self.adaptive)
        if decision is Decision.WATCHED:
            self.tried.add(key)
        return decision is Decision.LOCK

    def _locked_query(self, session: Session, statement: Select[Any]) -> Select[Any]:
        found = rows_to_lock(statement)
        wanted = [
            (mapper, source)
            for mapper, source in found
            if self._decide(self.key_of(session, mapper))
        ]
        if not wanted or not all(self._begin(session, mapper) for mapper, _ in wanted):
            return statement
        return statement.with_for_update(of=[source for _, source in wanted], key_share=True)

    def _begin(self, session: Session, mapper: Mapper[Any]) -> bool:
        """Can rows be locked? Where there is one lock for all of them, take it before the reading.

        Raises:
            ConfigurationError: they cannot, and every row is to be locked.
        """
        if self._begun:
            return True
        dialect = (self._bind or session.get_bind(**bind_to_write(mapper))).dialect
        database = database_of(dialect)
        if not database.locks_rows(dialect):
            if self.adaptive is None:
                raise ConfigurationError(
                    f'strategy="pessimistic" cannot work on {dialect.name!r}: SQLAlchemy\'s dialect'
                    " leaves FOR UPDATE out, so no row that is read would be locked. Leave the"
                    " strategy out. Nothing was sent."
                )
            return False
        if database.one_lock:
            database.begin_writing(self._connection(session, mapper), facts(mapper).table)
        self._begun = self._bind is not None or database.one_lock
        return True

    def _connection(self, session: Session, mapper: Mapper[Any]) -> Connection:
        known = watched(session)
        before = known.sent_more
        try:
            return connection_to_write(session, mapper)
        finally:
            known.sent_more = before

    def key_of(
        self, session: Session, mapper: Mapper[Any], identity: tuple[Any, ...] | None = None
    ) -> Key:
        """What the memory knows the row by, or what queries read of its table."""
        if self._bind is not None:
            database = self._database or name_of(self._bind)
            self._database = database
        else:
            database = name_of(session.get_bind(**bind_to_write(mapper)))
        return Key(database, facts(mapper).name, identity)

    # -- several rows in one order -----------------------------------------------------------------

    def _lock_partners(self, session: Session, key: Key, partners: Iterable[Any]) -> None:
        """Lock the rows with which this one has deadlocked, all of them in one order."""
        wanted: dict[Key, Mapper[Any]] = {}
        for held, identity in partners:
            mapper = held()
            if mapper is not None and facts(mapper).locked_in is not None:
                one = self.key_of(session, mapper, identity)
                if one not in self.held and one.database == key.database:
                    wanted[one] = mapper
        wanted = {key: wanted[key] for key in sorted(wanted, key=_order)}
        self.held |= wanted
        self.beforehand |= wanted.keys()
        self._lock_in_order(session, wanted)

    def _lock_in_order(self, session: Session, wanted: dict[Key, Mapper[Any]]) -> None:
        watched(session).holds_locks = True
        by_table: dict[str, list[Key]] = {}
        for key in wanted:
            by_table.setdefault(key.table, []).append(key)
        for keys in by_table.values():
            mapper = facts(wanted[keys[0]]).root
            connection = self._connection(session, mapper)
            self._begin(session, mapper)
            columns, rows = facts(mapper).rows
            query = select(*columns).select_from(rows).order_by(*columns)
            database, table = database_of(connection.dialect), facts(mapper).table
            locked = partial(database.lock, query, table, deleting=False)
            identities = [key.identity for key in keys if key.identity is not None]
            for _ in rows_at(connection, locked, table, columns, identities):
                pass

    # -- what came of it ---------------------------------------------------------------------------

    def only_read(self) -> bool:
        """Did all of its queries do nothing but read? Nobody knows of very many."""
        return len(self.queries) <= QUERIES and not any(
            writes_inside(query) or subject_of(query) is None for query in self.queries
        )

    def stored(self, session: Session) -> None:
        """What was read without a lock, and written, has not conflicted."""
        if self.adaptive is None:
            return
        if self.tried:
            written = self._written(session)
            tables = {(key.database, key.table) for key in written}
            for key in self.tried:
                if key in written if key.identity is not None else key[:2] in tables:
                    self.memory.success(key, self.adaptive)
        if self.beforehand:
            for key in self.held:
                self.memory.alone(key)

    def remember(self, session: Session, error: BaseException) -> frozenset[Key]:
        """Remember what has conflicted, once; gives what the next attempt should lock."""
        if self.failed is None:
            self.failed = self._failed(session, error)
        return self.failed

    def _failed(self, session: Session, error: BaseException) -> frozenset[Key]:
        if isinstance(error, PreconditionFailed):
            return frozenset()
        if isinstance(error, ConcurrencyError):
            return self._conflicted(session, error)
        if not isinstance(error, DBAPIError):
            return frozenset()
        cause = cause_of(error)
        if cause is Cause.DEADLOCK:
            return self._deadlocked(session)
        if cause is Cause.LOCK_TIMEOUT and watched(session).waits_briefly:
            return self._waited(session)
        return frozenset()

    def _conflicted(self, session: Session, error: ConcurrencyError) -> frozenset[Key]:
        queried = self._queried(session)
        found: dict[Key, None] = {}
        for entry in error.entries:
            if entry.action == "verify" and not self._is_held(session, entry):
                continue  # the row was only read, and locks would make readers wait
            mapper: Mapper[Any] = inspect(entry.model)
            found[self.key_of(session, mapper, entry.identity)] = None
            table = self.key_of(session, mapper)
            if table in queried:
                found[table] = None
        if self.adaptive is not None:
            for key in found:
                self.memory.conflict(key, self.adaptive, "a unit read it, and another wrote first")
        return frozenset(found)

    def _is_held(self, session: Session, entry: Any) -> bool:
        """Was it found moved when it was to be locked?"""
        return self.key_of(session, inspect(entry.model), entry.identity) in self.held

    def _queried(self, session: Session) -> set[Key]:
        found = set()
        for query in self.queries:
            for described in query.column_descriptions:
                subject = inspect(described.get("entity"), raiseerr=False)
                if subject is not None:
                    found.add(self.key_of(session, subject.mapper))
        return found

    def _deadlocked(self, session: Session) -> frozenset[Key]:
        held = {key: mapper for key, mapper in self.held.items() if key.identity is not None}
        wanted = held | self._written(session) | self._promised(session)
        if self.adaptive is not None:
            places = {key: (ref(mapper), key.identity) for key, mapper in wanted.items()}
            order = [key for key in held if key not in self.beforehand]
            self.memory.deadlock(places, order, self.adaptive)
        return frozenset(wanted)

    def _waited(self, session: Session) -> frozenset[Key]:
        """Somebody has locked one of the rows, and it is not known which."""
        wanted = {**self._written(session), **self._promised(session)}
        if self.adaptive is not None:
            self.memory.crowd(wanted, self.adaptive, "a unit waited for a row, and had others")
        return frozenset(wanted.keys() | self.held.keys())

    def _promised(self, session: Session) -> dict[Key, Mapper[Any]]:
        promises = watched(session).promises
        return {
            self.key_of(session, one.mapper, one.identity): one.mapper
            for one in (promises.values() if promises else ())
        }

    def _written(self, session: Session) -> dict[Key, Mapper[Any]]:
        known = watched(session)
        places = places_of([*known.sent, *known.undone])
        return {self.key_of(session, mapper, identity): mapper for mapper, identity in places}


def _note_locked(session: Session, state: State) -> None:
    """The row is in this version, and nobody else can write it before the transaction is over."""
    token = facts(state.mapper).token
    if token not in state.dict or session.in_nested_transaction():
        return  # going back to a savepoint gives locks back
    known = watched(session)
    if known.locked is None:
        known.locked = {}
    known.locked[place_of(state)] = state.committed_state.get(token, state.dict[token])


def _order(key: Key) -> Any:
    return key.table, tuple(map(_comparable, key.identity or ()))


def _comparable(value: Any) -> Any:
    """In one order in every process; numbers as numbers."""
    return (0, value, "") if isinstance(value, (int, float)) else (1, 0, str(value))


# -- the rows of a query that can be locked --------------------------------------------------------
#
# ::
#
#     rows_to_lock(select(Account).where(...))      # ((<Mapper Account>, accounts),)
#     rows_to_lock(select(func.count(Account.id)))  # (): no row of the result is a row of the table
#
# A lock is asked for the rows that become objects, and only where each row of the result stands
# for one of them: databases refuse FOR UPDATE beside DISTINCT, GROUP BY, UNION, aggregates and
# windows, and for the side of an outer join that may be missing. A row of several tables is
# locked in the one that has its version.

#: A class, and where its rows are locked.
Lockable = tuple[Mapper[Any], FromClause]


def rows_to_lock(statement: Select[Any]) -> tuple[Lockable, ...]:
    """The rows of the query that can be locked; nothing if one cannot."""
    if not may_lock(statement):
        return ()
    joins = joins_of(statement)
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
    if joins.full or (joins.outer and (joins.froms or joins.placed or len(found) != 1)):
        return ()
    if any(not _is_inner(source) for source in joins.froms):
        return ()
    return tuple(found)


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
    """Is it a value of one row?"""
    if isinstance(what, Bundle):
        return all(_is_value(one) for one in what.exprs)
    if isinstance(what, QueryableAttribute):
        columns: Sequence[Any] = getattr(what.property, "columns", ())
        return len(columns) > 0 and isinstance(columns[0], Column)
    return isinstance(what, Column)


def _is_inner(source: Any) -> bool:
    """Is no side of it missing in any row?"""
    if isinstance(source, Join):
        inner = not (source.isouter or source.full)
        return inner and _is_inner(source.left) and _is_inner(source.right)
    return isinstance(source, (Table, Alias))


# -- the option ``strategy=`` ----------------------------------------------------------------------
#
# ``"optimistic"`` (the default): without locks; the slower writer gets the conflict.
# ``"pessimistic"``: each row that the unit reads as an object is locked until the unit is over.
# ``"adaptive"``, or an :class:`~optilock.Adaptive`: rows on which units conflict are locked, the
# others are not.

Strategy = Literal["optimistic", "pessimistic", "adaptive"] | Adaptive
OPTIMISTIC: Literal["optimistic"] = "optimistic"
PESSIMISTIC: Literal["pessimistic"] = "pessimistic"
ADAPTIVE: Literal["adaptive"] = "adaptive"

#: What all units of the process have found out.
MEMORY = Memory()
_DEFAULT = Adaptive()


def check_strategy(strategy: Any) -> None:
    """Refuse what is no strategy.

    Raises:
        ConfigurationError: so it is.
    """
    known = (OPTIMISTIC, PESSIMISTIC, ADAPTIVE)
    if isinstance(strategy, Adaptive) or (isinstance(strategy, str) and strategy in known):
        return
    raise ConfigurationError(
        f"strategy={strategy!r} is no strategy: write"
        f" {', '.join(repr(one) for one in known)}, or Adaptive(...) with limits of your own."
    )


class Locking(Part, option="strategy"):
    """The part of a unit whose reads may lock."""

    def __init__(self, strategy: Strategy) -> None:
        if isinstance(strategy, Adaptive):
            self.adaptive: Adaptive | None = strategy
        else:
            self.adaptive = _DEFAULT if strategy == ADAPTIVE else None

    def begin(self, session: Session) -> None:
        session.__dict__[READS] = Reading(session, self.adaptive, MEMORY)
        lock_where_written(session)

    def after(self, session: Session, error: BaseException | None) -> None:
        choose_no_more(session)
        reading: Reading | None = session.__dict__.pop(READS, None)
        if reading is not None and error is not None:
            reading.remember(session, error)
