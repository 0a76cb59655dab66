"""The rows of one unit with ``strategy=``, and what the end of the unit shows about them.

A unit that is stored has written rows without a lock and without a conflict. A unit that failed has
met conflicts on some rows: those that another transaction wrote first, those of a deadlock, and
those for which it has waited in vain. Both count for the memory of the process
(:mod:`~optilock.unit.heat`), and the next attempt locks the rows of a failure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import ref

from sqlalchemy import Select, inspect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Mapper, Session

from optilock._mapped import facts
from optilock._undocumented.statements import has_inner_write, subject_of
from optilock._watched.scopes.transaction import SCOPES, TransactionScopes
from optilock._watched.session.connections import bind_to_write
from optilock._watched.session.record import session_record
from optilock._watched.writes.shapes import is_shown
from optilock.conditions.write import places_of
from optilock.dialects import Cause
from optilock.dialects.transient import cause_of
from optilock.errors import ConcurrencyError, PreconditionFailed
from optilock.tables.names import scopes
from optilock.unit.heat import Key, Memory
from optilock.unit.refused_locks import AddedLocks
from optilock.unit.sessions import name_of
from optilock.unit.strategies import Adaptive

#: How many queries of a unit are remembered.
QUERIES = 100


class RowsOfUnit:
    """The rows that one unit has read and locked, and those that have conflicted."""

    __slots__ = (
        "_bind",
        "_database",
        "adaptive",
        "added",
        "beforehand",
        "failed",
        "held",
        "memory",
        "not_locked",
        "queries",
        "tried",
    )

    def __init__(self, session: Session, adaptive: Adaptive | None, memory: Memory) -> None:
        #: ``None``: every row is locked.
        self.adaptive = adaptive
        self.memory = memory
        #: The first queries that did not ask for one row by its key.
        self.queries: list[Select[Any]] = []
        #: Rows that are locked or about to be, with the mappers of their classes.
        self.held: dict[Key, Mapper[Any]] = {}
        #: Those of them that the program has not read yet.
        self.beforehand: set[Key] = set()
        #: Rows with conflicts that were read without a lock.
        self.tried: set[Key] = set()
        #: The locks that it adds to queries, and those that it did not get.
        self.added = AddedLocks()
        self.not_locked: frozenset[Key] = frozenset()
        #: The rows that have conflicted, once the unit has failed.
        self.failed: frozenset[Key] | None = None
        self._bind: Any = session.bind
        self._database = ""

    # -- the keys of rows --------------------------------------------------------------------------

    def key_of(
        self, session: Session, mapper: Mapper[Any], identity: tuple[Any, ...] | None = None
    ) -> Key:
        """Return the memory's key of the row, or of the rows that queries read of its table."""
        if self._bind is not None:
            database = self._database or name_of(self._bind)
            self._database = database
        else:
            database = name_of(session.get_bind(**bind_to_write(mapper)))
        return Key(database, facts(mapper).name, identity)

    def _moved_scopes(self, session: Session) -> Iterator[Key]:
        known: TransactionScopes | None = session.__dict__.get(SCOPES)
        if known is not None:
            for scope in filter(lambda one: known.moves(one.key), known.seen):
                yield self._key_of_scope(session, scope.model, scope.key)

    def _key_of_scope(self, session: Session, model: Any, key: str) -> Key:
        return Key(self.key_of(session, inspect(model)).database, scopes.name, (key,))

    # -- the end of the unit -----------------------------------------------------------------------

    def only_read(self) -> bool:
        """Return whether all of its queries only read; False for too many to remember."""
        return len(self.queries) <= QUERIES and not any(
            has_inner_write(query) or subject_of(query) is None for query in self.queries
        )

    def stored(self, session: Session) -> None:
        """Count the rows that were read without a lock and written as successes."""
        if self.adaptive is None or not (self.tried or self.held or self.added.avoided):
            return
        if self.tried:
            written = {*self._written(session), *self._moved_scopes(session)}
            tables = {key[:2] for key in written}
            for key in self.tried:
                if key in written if key.identity is not None else key[:2] in tables:
                    self.memory.success(key, self.adaptive)
        if self.beforehand:
            for key in self.held:
                self.memory.dissolve_partners(key)
        self._note_use(session)

    def _note_use(self, session: Session) -> None:
        """Note for each table of its hot rows whether the unit has written or promised rows."""
        record, memory = session_record(session), self.memory
        used = {write.shape.mapper for write in record.sent}
        if record.promises is not None:
            used.update(one.mapper for one in record.promises.all())
        used.update(one.mapper for one in record.stated)
        names = {facts(mapper).name for mapper in used}
        if SCOPES in session.__dict__:
            names.update(key.table for key in self._moved_scopes(session))
        name, avoided = unit_name(session), {key[:2] for key in self.added.avoided}
        for table, key in {key[:2]: key for key in (*self.added.avoided, *self.held)}.items():
            writes, locked = key.table in names, table not in avoided
            memory.note_use(name, key, writes=writes, locked=locked)

    def remember(self, session: Session, error: BaseException) -> frozenset[Key]:
        """Remember the conflict, once, and return the rows that the next attempt should lock."""
        if self.failed is None:
            self.failed = self._failed(session, error)
            for table in {key.any_row for key in self.failed}:
                self.memory.note_use(unit_name(session), table, writes=True)
        return self.failed

    def _failed(self, session: Session, error: BaseException) -> frozenset[Key]:
        if isinstance(error, PreconditionFailed):
            return frozenset()
        if isinstance(error, ConcurrencyError):
            return self._conflicted(session, error)
        if not isinstance(error, DBAPIError):
            return frozenset()
        if self.adaptive is not None:
            self.not_locked = self.added.lost(error, self.memory, session_record(session))
        cause = cause_of(error)
        if cause is Cause.DEADLOCK:
            return self._deadlocked(session)
        if cause is Cause.LOCK_TIMEOUT and session_record(session).waits_briefly:
            return self._waited(session)
        return frozenset()

    def _conflicted(self, session: Session, error: ConcurrencyError) -> frozenset[Key]:
        queried = self._queried(session)
        found: dict[Key, None] = {}
        for entry in error.entries:
            if entry.is_scope:
                scope = entry.model.scope(**entry.original)
                found[self._key_of_scope(session, entry.model, scope.key)] = None
                continue
            mapper: Mapper[Any] = inspect(entry.model)
            key = self.key_of(session, mapper, entry.identity)
            if entry.action == "verify" and key not in self.held:
                continue  # the row was only read, and locks would make readers wait
            found[key] = None
            table = self.key_of(session, mapper)
            if table in queried:
                found[table] = None
        if self.adaptive is not None:
            for key in found:
                self.memory.conflict(key, self.adaptive, "a unit read it, and another wrote first")
        return frozenset(found)

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
        for scope in self._moved_scopes(session):  # and others, perhaps in another order
            self.memory.note_refused(unit_name(session), scope, always=False)
        if self.adaptive is not None:
            places = {key: (ref(mapper), key.identity) for key, mapper in wanted.items()}
            order = [key for key in held if key not in self.beforehand]
            self.memory.deadlock(places, order, self.adaptive)
        return frozenset(wanted)

    def _waited(self, session: Session) -> frozenset[Key]:
        """Crowd the tables of all wanted rows: the lock of an unknown one of them was not free."""
        written, promised = self._written(session), self._promised(session)
        if self.adaptive is not None:
            # Locks on rows that this process only reads would make its units wait for each other.
            shared = (key for key, mapper in promised.items() if is_shown(mapper))
            why = "a unit waited for a row, and had others"
            self.memory.crowd({*written, *shared}, self.adaptive, why)
        return frozenset(written.keys() | promised.keys() | self.held.keys())

    def _promised(self, session: Session) -> dict[Key, Mapper[Any]]:
        promises = session_record(session).promises
        return {
            self.key_of(session, one.mapper, one.identity): one.mapper
            for one in (() if promises is None else promises.all())
        }

    def _written(self, session: Session) -> dict[Key, Mapper[Any]]:
        known = session_record(session)
        places = places_of([*known.sent, *known.undone])
        return {self.key_of(session, mapper, identity): mapper for mapper, identity in places}


def unit_name(session: Session) -> str | None:
    """Return the name of the unit: all units of one function have its name."""
    owner = session_record(session).owner
    return None if owner is None else owner.name
