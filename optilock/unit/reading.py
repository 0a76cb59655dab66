"""The queries of one unit with ``strategy=``: which rows they lock.

A watched session passes each query to the unit's :class:`Reading` before it is sent
(:mod:`optilock._watched.statements.execute`), be it of ``get()``, a lazy load, a refresh or an
eager load. It does so before ``get()``, too, which may find an object in the session
(:mod:`optilock._watched.rows.reads_by_key`).

*By key* the row is known, and its own heat counts (:mod:`~optilock.unit.heat`). *By anything else*
it is not, and the heat of its table counts, which units move that have queried the table. If
``get()`` wants an object locked that the unit has read without a lock, its row is locked and
compared. If the row has moved, the unit has decided on outdated values, and gets the conflict at
once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, Select, inspect, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Mapper, Session
from sqlalchemy.orm.attributes import instance_state

from optilock._mapped import State, facts, identity_of, place_of
from optilock._mapping.scopes import Scope, rules_of
from optilock._undocumented.statements import requested_key, subject_of
from optilock._watched.rows.locked import order_of, rows_to_lock
from optilock._watched.rows.reads_by_key import (
    match_simple_key,
    one_or_none,
    send_query_by_key,
    uses_own_query,
)
from optilock._watched.rows.stored import rows_at
from optilock._watched.session.connections import bind_to_write, connection_to_write
from optilock._watched.session.record import READS_KEY, session_record
from optilock.dialects import Cause, database_of, database_of_error
from optilock.dialects.transient import cause_of
from optilock.dialects.waits import LONGEST_PAUSE
from optilock.errors import ConfigurationError
from optilock.unit.conflicts import QUERIES, RowsOfUnit, unit_name
from optilock.unit.heat import MEMORY, Decision, Key, Memory
from optilock.unit.parts import Part
from optilock.unit.refused_locks import may_go_on, note_added_lock
from optilock.unit.second_sessions import watch_statements
from optilock.unit.sessions import forget_engine_choice, lock_where_written
from optilock.unit.strategies import Adaptive, Strategy, adaptive_of


class Reading(RowsOfUnit):
    """The queries of one session."""

    __slots__ = ("_begun", "_bound", "_locked_at", "_own", "goes_on", "insist", "probes", "scope")

    def __init__(self, session: Session, adaptive: Adaptive | None, memory: Memory) -> None:
        super().__init__(session, adaptive, memory)
        #: Rows to lock regardless of their heat.
        self.insist: frozenset[Key] = frozenset()
        #: Whether it reads hot rows without locks, to see whether they would still conflict.
        self.probes = False
        #: Its transaction is that of the failed attempt, with the locks of that.
        self.goes_on = False
        #: The last scope that it has locked.
        self.scope: Key | None = None
        #: When a row was locked last.
        self._locked_at = time.monotonic()
        #: Whether rows can be locked, as far as that is the same for all of them.
        self._begun = False
        #: A condition that limits waits for locks.
        self._bound: ColumnElement[bool] | None = None
        #: The query that :meth:`get` sends itself.
        self._own: Select[Any] | None = None

    def remember(self, session: Session, error: BaseException) -> frozenset[Key]:
        """Remember the conflict; or that the unit pauses for too long with a learned lock."""
        if self.has_learned_locks and self._has_paused(error):
            self.memory.accompanied.add(unit_name(session))
            note_added_lock(error)
        return super().remember(session, error)

    def _has_paused(self, error: BaseException) -> bool:
        """Return whether the server has ended the transaction because nothing was sent in it."""
        if self._bound is None or not isinstance(error, DBAPIError):
            return False
        if cause_of(error) is not Cause.CONNECTION_LOST:
            return False
        ended = database_of_error(error.orig).ended_pause(error)
        if ended is not None:
            return ended
        # The code was lost with the connection. It may have been lost while a lock was waited for.
        waited = " FOR " in (error.statement or "")
        return not waited and time.monotonic() - self._locked_at >= LONGEST_PAUSE

    # -- one row by its key ------------------------------------------------------------------------

    def get(
        self, original: Callable[..., Any], session: Session, entity: Any, ident: Any, options: Any
    ) -> Any:
        """Carry out ``session.get()`` of a row that the caller does not lock."""
        found = match_simple_key(entity, ident)
        if found is None:
            return original(session, entity, ident, **options)
        known, identity = found
        mapper = known.mapper
        key = mapper.identity_key_from_primary_key(identity)
        obj = session.identity_map.get(key)
        if obj is not None:
            return self._get_again(original, session, mapper, obj, ident, options)
        if not uses_own_query(original, known, options):
            return original(session, entity, ident, **options)
        if self.is_cold() or not self.wants(session, mapper, identity):
            self._own = known.select_one
            return one_or_none(send_query_by_key(session, known, identity, self._own))
        self._own = known.lock_one(self._bound)
        result = send_query_by_key(session, known, identity, self._own)
        # A listener may have read the row before the lock, or returned it from a cache: then the
        # object may be older than its row. So may one that the session has under a key of another
        # type.
        is_new = key not in session.identity_map
        obj = one_or_none(result)
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
        """Lock the row of an object that the session holds, and compare the two."""
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
        """Return the query with the locks that its rows need; often the query itself."""
        if statement is self._own:
            return statement
        identity = requested_key(params, options.get("execution_options"))
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
        return self._with_locks(statement, table)

    def is_cold(self) -> bool:
        """Return whether no row would be locked."""
        memory = self.memory
        if self.adaptive is None:
            return False
        if memory.rows or memory.crowded or self.insist:
            watch_statements()
            return False
        return True

    @property
    def has_learned_locks(self) -> bool:
        """Return whether it has locked rows that its program did not ask to lock."""
        asked = self.held or self.added.asked or self.scope or self.goes_on
        return self.adaptive is not None and bool(asked)

    def wants(self, session: Session, mapper: Mapper[Any], identity: tuple[Any, ...]) -> bool:
        """Return whether to lock the row now, after taking the locks that come before it."""
        key = self.key_of(session, mapper, identity)
        if key in self.held:
            self.beforehand.discard(key)
            return False
        if not self._decide(session, key, mapper):
            return False
        partners = self.memory.partners(key) if self.adaptive is not None else None
        if partners:
            self._lock_partners(session, key, partners)
            self.beforehand.discard(key)
            if key in self.held:
                return False
        if not (self._begun or self._begin(session, mapper)):
            self.added.avoid(key)
            return False
        self.held[key] = mapper
        self.added.asked = {key: mapper}
        self._locked_at = time.monotonic()
        return True

    def _decide(self, session: Session, key: Key, mapper: Mapper[Any]) -> bool:
        if self.adaptive is None:
            return True
        if self.added.avoided and self.added.avoids(session, key, mapper):
            return False
        if key in self.insist:
            return True
        memory = self.memory
        decision = memory.decide(key, self.adaptive, may_probe=partial(self._may_probe, session))
        if decision is Decision.LOCK:
            if memory.knows_readers and memory.only_reads(unit_name(session), key):
                self.added.avoid(key)
                decision = Decision.WATCHED
            elif not self.probes:
                return True
        elif decision is Decision.PROBE:
            self.probes = True
        if decision is not Decision.PLAIN:
            self.tried.add(key)
        return False

    def _may_probe(self, session: Session) -> bool:
        has_locks = self.held or self.added.asked or self.scope or session_record(session).sent
        return not (has_locks or self.insist or self.probes)

    def _locked_query(self, session: Session, statement: Select[Any]) -> Select[Any]:
        found = rows_to_lock(statement)
        wanted = [
            (mapper, source)
            for mapper, source in found
            if self._decide(session, self.key_of(session, mapper), mapper)
        ]
        if not wanted or not all(self._begin(session, mapper) for mapper, _ in wanted):
            return statement
        self.added.asked = {self.key_of(session, mapper): mapper for mapper, _ in wanted}
        return self._with_locks(statement, [source for _, source in wanted])

    def _with_locks(self, statement: Select[Any], of: Any) -> Select[Any]:
        locked = statement.with_for_update(of=of, key_share=True)
        return locked if self._bound is None else locked.where(self._bound)

    def _begin(self, session: Session, mapper: Mapper[Any]) -> bool:
        """Return whether rows can be locked.

        Where one lock is for all rows, it is taken here, before the reading.

        Raises:
            ConfigurationError: rows cannot be locked, and the strategy locks every row.
        """
        if self._begun or self.added.are_refused:
            return self._begun
        dialect = (self._bind or session.get_bind(**bind_to_write(mapper))).dialect
        database = database_of(dialect)
        if not database.locks.locks_rows(dialect):
            if self.adaptive is None:
                raise ConfigurationError(
                    f'strategy="pessimistic" cannot work on {dialect.name!r}: SQLAlchemy\'s dialect'
                    " leaves FOR UPDATE out, so no row that is read would be locked. Leave the"
                    " strategy out. Nothing was sent."
                )
            return False
        self._bound = None if self.adaptive is None else database.waits.bound_locks(dialect)
        if database.locks.one_lock:
            try:
                connection = connection_to_write(session, mapper, for_queries=True)
                database.locks.begin_writing(connection, facts(mapper).table)
            except DBAPIError as error:
                if self.adaptive is None or not may_go_on(error):
                    raise
                self.added.are_refused = True
                return False
        self._begun = self._bind is not None or database.locks.one_lock
        return True

    # -- scopes ------------------------------------------------------------------------------------

    def locks_scope(self, session: Session, scope: Scope) -> bool:
        """Return whether to lock a scope on which units conflict.

        Scopes are locked in the order of their keys, which is that of COMMIT. So none is locked of
        a kind that comes after another one of its class, whose rows move both.
        """
        if self.adaptive is None or self.is_cold():
            return False
        mapper: Mapper[Any] = inspect(scope.model)
        if not scope.key.startswith(min(rule.prefix for rule in rules_of(mapper))):
            return False
        key = self._key_of_scope(session, scope.model, scope.key)
        if self.scope is not None and self.scope >= key:
            return False
        if not self._decide(session, key, mapper):
            return False
        if not (self._begun or self._begin(session, mapper)):
            return False
        if self._bound is not None and self.scope is None:  # the lock of a scope has no room for it
            connection = connection_to_write(session, mapper, for_queries=True)
            type(connection).execute(connection, select(self._bound))
        self.scope = key
        session_record(session).note_locks()
        return True

    # -- several rows in one order -----------------------------------------------------------------

    def _lock_partners(self, session: Session, key: Key, partners: Iterable[Any]) -> None:
        """Lock the rows with which this one has deadlocked, in the order of their keys."""
        wanted: dict[Key, Mapper[Any]] = {}
        for held, identity in partners:
            mapper = held()
            if mapper is not None and facts(mapper).locked_in is not None:
                one = self.key_of(session, mapper, identity)
                if one not in self.held and one.database == key.database:
                    wanted[one] = mapper
        ordered = sorted(wanted, key=lambda key: order_of(wanted[key], key.identity or ()))
        wanted = {key: wanted[key] for key in ordered}
        self.held |= wanted
        self.beforehand |= wanted.keys()
        self._lock_in_order(session, wanted)

    def _lock_in_order(self, session: Session, wanted: dict[Key, Mapper[Any]]) -> None:
        session_record(session).note_locks()
        self.added.asked = wanted
        by_table: dict[str, list[Key]] = {}
        for key in wanted:
            by_table.setdefault(key.table, []).append(key)
        for keys in by_table.values():
            mapper = facts(wanted[keys[0]]).root
            connection = connection_to_write(session, mapper, for_queries=True)
            if not self._begin(session, mapper):
                return
            columns, rows = facts(mapper).rows
            query = select(*columns).select_from(rows).order_by(*columns)
            if self._bound is not None:
                query = query.where(self._bound)
            database, table = database_of(connection.dialect), facts(mapper).table
            locked = partial(database.locks.lock, query, table, deleting=False)
            identities = [key.identity for key in keys if key.identity is not None]
            for _ in rows_at(connection, locked, table, columns, identities):
                pass


def _note_locked(session: Session, state: State) -> None:
    """Note that the row stays in this version until the transaction ends."""
    token = facts(state.mapper).token
    if token not in state.dict or session.in_nested_transaction():
        return  # going back to a savepoint gives locks back
    version = state.committed_state.get(token, state.dict[token])
    session_record(session).note_locked(place_of(state), version)


class LockingPart(Part, option="strategy"):
    """The part of a unit whose reads may lock."""

    def __init__(self, strategy: Strategy) -> None:
        self.adaptive = adaptive_of(strategy)

    def begin(self, session: Session) -> None:
        if self.adaptive is not None and unit_name(session) in MEMORY.accompanied:
            return
        session.__dict__[READS_KEY] = Reading(session, self.adaptive, MEMORY)
        if type(session).get_bind is not Session.get_bind:
            lock_where_written(session)

    def after(self, session: Session, error: BaseException | None) -> None:
        if "get_bind" in session.__dict__:
            forget_engine_choice(session)
        reading: Reading | None = session.__dict__.pop(READS_KEY, None)
        if reading is not None and error is not None:
            reading.remember(session, error)
