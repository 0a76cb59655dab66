"""One guarded flush: what it holds, what it has sent, and which rows missed.

For the length of one flush the session's own connections answer for the guard
(:mod:`optilock.guard.arming`). An UPDATE of a versioned row is kept and answered with a small
result; any other statement first sends what is held, so that whoever asks the database sees what
was written (:mod:`optilock.guard.routing`). Rows that missed are remembered, not raised
(:mod:`optilock.guard.misses`): SQLAlchemy finishes as if all went well, and the conflict is
settled (:mod:`optilock.guard.settle`), or raised by ``flush()`` afterwards with the transaction
still alive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Mapper, Session
from sqlalchemy.orm.exc import StaleDataError
from sqlalchemy.orm.state import InstanceState
from sqlalchemy.orm.unitofwork import UOWTransaction

from optilock.conditions.write import Shape, Write
from optilock.entry import Action
from optilock.errors import LinkGone
from optilock.guard.aftermath import attempts_in
from optilock.guard.answers import Accepted
from optilock.guard.arming import Before, arm_wholly
from optilock.guard.batch import send
from optilock.guard.by_hand import write_by_hand
from optilock.guard.dependents import LeftOut
from optilock.guard.doomed import Doomed
from optilock.guard.keep import Kept
from optilock.guard.kept_orphans import LetGo
from optilock.guard.listeners import listen_in
from optilock.guard.missed import Missed
from optilock.guard.misses import miss
from optilock.guard.onupdate import fill_in
from optilock.guard.words import Short
from optilock.mapping.facts import facts
from optilock.mapping.moves import does_not_move
from optilock.rows.sides import Attempt
from optilock.session.watched import Watched

__all__ = ["Flush"]

State = InstanceState[Any]


class Flush:
    """The guard's side of one ``session.flush()``."""

    # Most flushes need none of these: they cost nothing until something is put in.
    uow: UOWTransaction | None = None
    settled = False
    #: Raised by ``flush()`` once SQLAlchemy has finished.
    error: Exception | None = None
    #: Reported by the database before SQLAlchemy could see it: raised by the first statement.
    broken: DBAPIError | None = None
    #: Reported for what the flush around this one held, on a connection of both.
    outer_error: DBAPIError | None = None
    #: Edits of refused rows, put back once SQLAlchemy has finished.
    kept: Sequence[Kept] = ()
    #: Objects that nothing is to be written for any more.
    skipped: frozenset[State] = frozenset()
    #: What the flush wanted to write, taken when the database reported an error.
    wanted: list[Attempt] | tuple[()] = ()
    #: The first statement that did not find all of its rows.
    short: Short | None = None
    #: Link rows that were not there any more.
    gone_links: Sequence[LinkGone] = ()
    #: Objects whose compared values were looked at.
    looked: frozenset[State] = frozenset()
    #: Tables that were looked at because the version of their rows is in another one.
    looked_apart: frozenset[Any] = frozenset()
    #: Objects that their parents have let go; known once an orphan stays.
    let_go: LetGo | None = None
    _states: dict[Any, State] | None = None
    _doomed: Doomed | None = None
    _listening = False

    def __init__(self, session: Session, known: Watched) -> None:
        self.session = session
        self.known = known
        #: How many writes the transaction had sent before.
        self.began = known.at()
        #: Connections that answer for the guard, and how they answered before: ``execute``, and
        #: everything else as well.
        self.armed: dict[Connection, Before] = {}
        self.armed_wholly: list[Connection] = []
        #: What is held, by connection, statement and key.
        self.waiting: dict[Connection, dict[Any, dict[Any, Write]]] = {}
        self._answers: dict[Shape, Accepted] = {}
        #: Rows that were not found as they were read, and their tables and keys.
        self.misses: list[Missed] = []
        self.missed_states: dict[State, Missed] = {}
        self.missed: set[tuple[Any, Any]] = set()
        #: Rows without a version that belong to them, by the statements that would write them.
        self.left_out: dict[Any, LeftOut] = {}
        self.expire_later: list[tuple[State, str]] = []
        self.expunge_later: list[Any] = []

    # -- holding and sending -----------------------------------------------------------------

    def hold(self, connection: Connection, write: Write) -> Accepted:
        """Keep a row until the connection is asked something else."""
        shape, params = write
        held = self._held(connection, shape)
        key = shape.place_of(params)
        if key in held:
            self.drain(connection)  # post_update writes the same row a second time
            held = self._held(connection, shape)
        if shape.prefetch:
            fill_in(write, connection)
        held[key] = write
        answer = self._answers.get(shape)
        if answer is None:
            answer = self._answers[shape] = Accepted(shape, params)
        answer.compiled_parameters = (params,)  # SQLAlchemy asks before it sends the next row
        return answer

    def _held(self, connection: Connection, shape: Shape) -> dict[Any, Write]:
        """What is held for one statement, by key."""
        by_statement = self.waiting.get(connection)
        if by_statement is None:
            by_statement = self.waiting[connection] = {}
            arm_wholly(self, connection)
            self._listen()
        held = by_statement.get(shape.statement)
        if held is None:
            held = by_statement[shape.statement] = {}
        return held

    def held(self) -> list[Write]:
        """What was not sent yet."""
        return [w for some in self.waiting.values() for ws in some.values() for w in ws.values()]

    def drain(self, connection: Connection) -> None:
        """Send what is held for ``connection``, one statement a table."""
        held = self.waiting.pop(connection, None)
        if not held:
            return
        together = [list(writes.values()) for writes in held.values()]
        for writes in together:  # all of them first: an error may end the transaction
            self.known.sent.extend(writes)
        for writes in together:
            miss(self, connection, send(connection, writes), sent=len(writes))

    def drain_all(self) -> None:
        for connection in tuple(self.waiting):
            self.drain(connection)

    def send(self, connection: Connection, writes: list[Write]) -> None:
        """Send rows of one table at once."""
        if not writes:
            return
        self.known.sent.extend(writes)
        miss(self, connection, send(connection, writes), sent=len(writes))

    def write_by_hand(
        self, connection: Connection, send: Callable[..., Any], statement: Any, params: Any
    ) -> Any:
        """Send a statement of the session's own, by a listener, and let the objects follow it."""
        return write_by_hand(self, connection, send, statement, params, {})

    # -- rows that missed --------------------------------------------------------------------

    def add_miss(self, missed: Missed) -> None:
        """Judge the row when the flush is over."""
        does_not_move(missed.state)
        self.misses.append(missed)
        self.missed_states[missed.state] = missed
        self._listen()

    def _listen(self) -> None:
        """From now on, listeners are asked for before they are called."""
        if not self._listening and self.uow is not None:
            self._listening = True
            listen_in(self.uow.mappers)

    def skip(self, write: Write) -> None:
        """Do not send further statements for this row."""
        self.missed.add((write.shape.table, write.key()))

    def is_missed(self, write: Write) -> bool:
        if self.missed and (write.shape.table, write.key()) in self.missed:
            return True
        if not self.skipped:
            return False
        return self.find(write.shape.mapper, write.shape.identity_of(write.params)) in self.skipped

    # -- whose row it is ---------------------------------------------------------------------

    def state_of(self, write: Write) -> State:
        """The object behind a write; an unwatched session's own, on our connection, is none."""
        found = self.find(write.shape.mapper, write.shape.identity_of(write.params))
        if found is None:
            raise StaleDataError(str(Short(write.shape, 1, 1)))
        return found

    def find(self, mapper: Mapper[Any], identity: tuple[Any, ...]) -> State | None:
        """The object of this flush with that key."""
        return self.states().get((facts(mapper).root, identity))

    def states(self) -> dict[Any, State]:
        """The objects of this flush by their rows."""
        if self._states is None:
            if self.uow is None or not self.uow.states:
                return {}  # a listener asks before SQLAlchemy has said what it will write
            self._states = self._index()
        return self._states

    def _index(self) -> dict[Any, State]:
        assert self.uow is not None
        found: dict[Any, State] = {}
        for state, (is_delete, _) in self.uow.states.items():
            mapper = state.mapper
            key = state.key or mapper.identity_key_from_instance(state.obj())
            place = (facts(mapper).root, tuple(key[1]))
            if place not in found or not is_delete:
                found[place] = state
        return found

    def is_delete(self, state: State) -> bool:
        return self.uow is not None and self.uow.states.get(state, (False, False))[0]

    def doomed(self) -> Doomed:
        """The rows that were to be deleted when it was first asked."""
        if self._doomed is None:
            assert self.uow is not None
            states = self.uow.states.items()
            self._doomed = Doomed(state for state, (is_delete, _) in states if is_delete)
        return self._doomed

    def action_on(self, state: State) -> Action:
        return "delete" if self.is_delete(state) else "update"

    def is_writing(self) -> bool:
        """Has SQLAlchemy begun to write, and is not all of it settled?"""
        return self.uow is not None and bool(self.uow.states) and not self.settled

    # -- the end -----------------------------------------------------------------------------

    def remember(self) -> None:
        """Take our side of every row now: the rollback that follows expires the objects."""
        if self.uow is not None and not self.wanted:
            states = {state: doomed for state, (doomed, _) in self.uow.states.items()}
            self.wanted = attempts_in(states, [*self.known.sent, *self.held()])

    def conclude(self) -> None:
        """After SQLAlchemy has finished: put refused edits back and raise, or tidy up."""
        for kept in self.kept:
            kept.put_back()
        for obj in self.expunge_later:
            self.session.expunge(obj)
        if self.error is not None:
            for gone in self.gone_links:
                self.error.add_note(f"optilock: {gone}")
            raise self.error
        for gone in self.gone_links:
            raise gone
