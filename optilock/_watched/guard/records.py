"""The record of one flush: the rows that it holds, has sent, and that missed.

:class:`Flush` is kept on the session's record for as long as the flush runs.
:mod:`optilock._watched.guard.batch` fills it in, and :mod:`optilock._watched.guard.settlement`
reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Connection, Table
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Mapper, Session, UOWTransaction
from sqlalchemy.orm.attributes import instance_state
from sqlalchemy.orm.exc import StaleDataError

from optilock._mapped import Identity, State, facts
from optilock._mapping.moves import does_not_move
from optilock._watched.rows.entries import Attempt, Missed
from optilock._watched.rows.in_order import has_locked_rows
from optilock._watched.session.record import SessionRecord
from optilock._watched.writes.answers import AcceptedResult
from optilock.conditions.write import Shape, Write
from optilock.errors import Action, LinkGone, prepend_line

Error = TypeVar("Error", bound=StaleDataError)


class ShortCount(NamedTuple):
    """A statement that matched fewer rows than were sent, in SQLAlchemy's sentence.

    Handlers, log filters and tests that were written for SQLAlchemy's own versioning expect it::

        UPDATE statement on table 'pages' expected to update 3 row(s); 2 were matched.

    SQLAlchemy's advice to switch the check off for deletes is omitted.
    """

    table: Table
    deletes: bool
    sent: int
    missed: int

    def __str__(self) -> str:
        verb = "delete" if self.deletes else "update"
        return (
            f"{verb.upper()} statement on table '{self.table.description}' expected to"
            f" {verb} {self.sent} row(s); {self.sent - self.missed} were matched."
        )


def with_sqlalchemys_message(error: Error, short: ShortCount | None) -> Error:
    """Return the error with a message that begins as SQLAlchemy's does."""
    if short is not None:
        return prepend_line(error, short)
    return error


class RefusedSums(NamedTuple):
    """The database has refused to add to rows."""

    error: DBAPIError
    #: Our sides of them.
    attempts: list[Attempt]


class Flush:
    """The guard's side of one ``session.flush()``."""

    # Most flushes need none of these: they cost nothing until they are set.
    uow: UOWTransaction | None = None
    settled = False
    #: It is the last of its transaction: what it holds to its end may go with COMMIT.
    last = False
    #: Raised by ``flush()`` once SQLAlchemy has finished.
    error: Exception | None = None
    #: The decisions of resolvers are being written.
    correcting = False
    #: Reported by the database before SQLAlchemy could see it: raised by the first statement.
    broken: DBAPIError | None = None
    #: An error of rows that the flush around this one held, on a connection of both; or raised by a
    #: resolver. It is no error of this flush.
    outer_error: Exception | None = None
    #: Edits of refused rows, put back once SQLAlchemy has finished.
    kept: Sequence[Any] = ()
    #: Objects for which nothing more is written.
    skipped: frozenset[State] = frozenset()
    #: The values that we wanted in the flush's rows, taken when the database reported an error.
    wanted: list[Attempt] | tuple[()] = ()
    #: The first statement that did not find all of its rows.
    short: ShortCount | None = None
    #: How much is added to rows, by their tables and keys.
    adding: dict[Any, Mapping[str, Any]] | None = None
    #: Rows that were added to after others had changed them, and the versions that were read.
    overtaken: dict[State, Any] | None = None
    unadded: RefusedSums | None = None
    #: Link rows that were not there any more.
    gone_links: Sequence[LinkGone] = ()
    #: Objects whose rows were judged before they are written.
    looked: frozenset[State] = frozenset()
    #: Children -> the parents that have let them go; known once an orphan stays.
    let_go: dict[State, list[tuple[State, str]]] | None = None
    #: The rows that were to be deleted when this was first needed.
    doomed: Any = None
    #: Attributes that are set to SQL expressions, if something listens to written rows.
    set_by_sql: Mapping[State, frozenset[str]] = MappingProxyType({})
    #: Rows are sent before listeners of rows are called.
    listening = False
    _states: dict[Mapper[Any], dict[Identity, State]] | None = None
    #: How many objects were looked for without these.
    _asked = 0

    def __init__(
        self,
        session: Session,
        record: SessionRecord,
        listen: Callable[[Flush], None],
        by_hand: Callable[..., Any],
    ) -> None:
        self.session = session
        self.record = record
        #: Sends held rows before listeners are called.
        self.listen = listen
        #: Sends a statement of the session's own, by a listener: the objects follow it.
        self.by_hand = by_hand
        #: How many writes the transaction had sent before.
        self.began = 0 if record.decided else len(record.sent)
        #: Connections that answer for the guard, and how they answered before: for which flush
        #: around this one, and what covered their methods.
        self.armed: dict[Connection, tuple[Flush | None, Mapping[str, Callable[..., Any]]]] = {}
        #: What is held, by connection, statement and key.
        self.waiting: dict[Connection, dict[Any, dict[Any, Write]]] = {}
        self.answers: dict[Shape, AcceptedResult] = {}
        #: Rows that were not found as they were read, and their tables and keys.
        self.misses: list[Missed] = []
        self.missed_states: dict[State, Missed] = {}
        self.missed: dict[Table, set[Any]] = {}
        #: Rows without a version that belong to them, by the statements that would write them.
        self.left_out: dict[Any, Any] = {}
        self.expire_later: list[tuple[State, str]] = []
        self.expunge_later: list[Any] = []

    @cached_property
    def hurries(self) -> bool:
        """Return whether the unit runs again rather than to wait for a lock; asked once a flush."""
        return self.record.hurries

    def held(self) -> list[Write]:
        """Return the rows that were not sent yet."""
        return [w for some in self.waiting.values() for ws in some.values() for w in ws.values()]

    def has_locked(self, writes: Sequence[Write]) -> bool:
        """Return whether the rows are locked, by the transaction's reads or by the flush."""
        if self.record.has_locked(writes):
            return True
        return has_locked_rows(self.uow, (write.places()[0] for write in writes))

    def add_miss(self, missed: Missed) -> None:
        """Judge the row when the flush is over."""
        does_not_move(missed.state)
        self.misses.append(missed)
        self.missed_states[missed.state] = missed
        self.listen(self)

    def note_short(self, short: ShortCount) -> None:
        """Keep the first statement that did not find all of its rows."""
        self.short = self.short or short

    def note_looked(self, states: Iterable[State]) -> None:
        """Note that these objects are compared before their statement."""
        self.looked = self.looked.union(states)

    def skip(self, states: Iterable[State]) -> None:
        """Write nothing for these objects any more."""
        self.skipped = self.skipped.union(states)

    def note_outer_error(self, error: Exception) -> None:
        """Note an error that is not of this flush: see :attr:`outer_error`."""
        self.outer_error = error

    def is_missed(self, write: Write) -> bool:
        """Return whether nothing more is sent for the row."""
        shape, params = write
        if self.missed and shape.place_of(params) in self.missed.get(shape.table, ()):
            return True
        if not self.skipped:
            return False
        return self.find(shape.mapper, shape.identity_of(params)) in self.skipped

    # -- whose row it is ---------------------------------------------------------------------

    def state_of(self, write: Write) -> State:
        """Return the object of a write; raise for a write of an unwatched session."""
        found = self.find(write.shape.mapper, write.shape.identity_of(write.params))
        if found is None:
            raise StaleDataError(str(ShortCount(write.shape.table, write.shape.deletes, 1, 1)))
        return found

    def find(self, mapper: Mapper[Any], identity: tuple[Any, ...]) -> State | None:
        """Return the object of this flush with that key."""
        if self.uow is None or not self.uow.states:
            return None  # a listener asks before SQLAlchemy has said what it will write
        if self._states is None and self._asked < _FEW:
            self._asked += 1
            obj = self.session.identity_map.get(mapper.identity_key_from_primary_key(identity))
            state = None if obj is None else instance_state(obj)
            if state is not None and self.uow.states.get(state, _DELETED)[0] is False:
                return state
        return self.states_of(facts(mapper).root).get(identity)

    def states_of(self, root: Mapper[Any]) -> Mapping[Identity, State]:
        """Return the objects of this flush by the keys of their rows, of one hierarchy."""
        if self._states is None:
            if self.uow is None or not self.uow.states:
                return {}
            self._states = _by_row(self.uow)
        return self._states.get(root, {})

    @cached_property
    def may_replace(self) -> bool:
        """Whether a new object may take over the row of a deleted one."""
        states = {} if self.uow is None else self.uow.states
        return any(one.key is None for one in states) and any(gone for gone, _ in states.values())

    def is_delete(self, state: State) -> bool:
        return self.uow is not None and self.uow.states.get(state, (False, False))[0]

    def action_on(self, state: State) -> Action:
        return "delete" if self.is_delete(state) else "update"

    def is_writing(self) -> bool:
        """Return whether SQLAlchemy has begun to write, and not all of it is settled."""
        return self.uow is not None and bool(self.uow.states) and not self.settled


#: So many objects of a flush are looked for in the session, and more in a dictionary of them all.
_FEW = 32
_DELETED = (True, True)


def _by_row(uow: UOWTransaction) -> dict[Mapper[Any], dict[Identity, State]]:
    found: dict[Mapper[Any], dict[Identity, State]] = {}
    of_class: dict[Mapper[Any], dict[Identity, State]] = {}
    for state, (is_delete, _) in uow.states.items():
        mapper = state.manager.mapper  # state.mapper would be kept on each object
        rows = of_class.get(mapper)
        if rows is None:
            rows = of_class[mapper] = found.setdefault(facts(mapper).root, {})
        key = state.key or mapper.identity_key_from_instance(state.obj())
        identity = tuple(key[1])
        if not is_delete or identity not in rows:
            rows[identity] = state
    return found
