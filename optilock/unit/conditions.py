"""``require_conditions``: every stored row that changes needs a condition, or no row does.

::

    with unit_of_work(sessions) as session:
        require_conditions(session)
        page = session.get_one(Page, 7)
        expect(page, tag)                   # or overwrite(page): one of them is required
        page.title = "New"

A version that was read in the unit itself guards against concurrent writers. It is no evidence of
the values that the author saw some minutes ago, in a form or through an API. So with
:func:`require_conditions` each versioned row that is updated or deleted needs a condition:
``expect`` or ``apply``, ``merge_changes``, ``if_match`` of an entity operation, versions in
``bulk_update``; or ``overwrite``, by name. New rows are free. Rows that go with a row that has a
condition are free, too: the parts of an aggregate with its root, the root that moves for a part, a
row that enters or leaves a collection, and the rows that a delete takes along.

:func:`ignore_conditions` is for work beside a request: an access log, the time of a last visit.
Such a session may write though the condition of the request was not compared
(:mod:`optilock.conditions.request`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy.orm import PassiveFlag, RelationshipDirection, Session
from sqlalchemy.orm.attributes import instance_state

from optilock._mapped import State, facts, place_of
from optilock._undocumented.flushes import states_inserted_by
from optilock._watched.aggregates import roots_of_object
from optilock._watched.rows.touch import ROOTS
from optilock._watched.session.order import add_step
from optilock._watched.session.record import is_watched, record_of, session_record
from optilock._watched.statements.requests import unconditional_error, watch_conditions
from optilock.errors import ConfigurationError, OptilockError, describe
from optilock.unit.parts import Part

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

#: An attribute of a session: each of its rows needs a condition.
_EVERY = "_optilock_require_conditions"
S = TypeVar("S", bound="Session | AsyncSession")
_NO_READ = PassiveFlag.PASSIVE_NO_INITIALIZE


@dataclass(frozen=True)
class ConditionsPart(Part):
    """The part that demands a condition for every row, or for none."""

    every: bool

    def begin(self, session: Session) -> None:
        if self.every:
            require_conditions(session)
        else:
            ignore_conditions(session)


def require_conditions(session: S) -> S:
    """Require a condition for each stored row that a session changes from here on; return it.

    Of a unit, or of a session that another program uses, such as an admin: an edit without a
    version is refused then, and overwrites nothing.
    ``scoped_session(lambda: require_conditions(SessionLocal()))``

    Raises:
        ConfigurationError: the session is not watched.
    """
    watched = _watched(session, "require_conditions")
    record = session_record(watched)
    record.require_conditions = True
    watched.__dict__[_EVERY] = True
    add_step("conditions", _EVERY, before_flush=_before_flush)
    for connection in record.connections:  # the transaction has begun
        watch_conditions(watched, connection)
    return session


def ignore_conditions(session: S) -> S:
    """Let a session write though the condition of the request is not compared, and return it.

    For work beside the request, such as an access log, in a unit or session of its own: call it
    before the first statement.

    Raises:
        ConfigurationError: the session is not watched, requires conditions, or is that of a unit
            which has joined another one, whose rows are stored with these.
    """
    watched = _watched(session, "ignore_conditions")
    record = session_record(watched)
    if _EVERY in watched.__dict__ or getattr(record.owner, "joined", False):
        raise ConfigurationError(
            "ignore_conditions() would ignore the condition of the request for other rows, which"
            " are stored with these: the session requires conditions, or it is that of a unit which"
            ' has joined another one. Give the unit propagation="independent", or use a session of'
            " its own."
        )
    record.require_conditions = False
    return session


def _watched(session: Any, name: str) -> Session:
    """Return the session behind a proxy, or an async one."""
    if hasattr(session, "registry"):  # a scoped session
        session = session()
    own = getattr(session, "sync_session", session)
    if not isinstance(own, Session) or not is_watched(own):
        raise ConfigurationError(
            f"{name}() takes a watched session, and got {describe(own)}: write watch(sessions), or"
            " use the session of a unit of work."
        )
    return own


def _before_flush(session: Session, uow: Any, objects: Any) -> None:
    """Refuse rows without a condition; nothing is sent, and every edit is kept.

    Raises:
        PreconditionRequired, ConditionNotCompared: a row has no condition.
    """
    allowed, roots = _Allowed(session), session.__dict__.get(ROOTS, ())
    moved = []
    for state, owners in _changed(session).items():
        if not facts(state.mapper).guarded or not _among(state, objects):
            continue
        if state in roots and not _own_change(state):
            moved.append(state)
        elif not allowed.with_owners(state, owners):
            raise _refused(state)
    for root in moved:  # for a part with a condition, or one that needs none
        if root not in allowed.moved_for and not allowed.with_owners(root, ()):
            raise _refused(root)


def _among(state: State, objects: Any) -> bool:
    return not objects or any(state.obj() is one for one in objects)


def _refused(state: State) -> OptilockError:
    identity = place_of(state)[1]
    shown = identity[0] if len(identity) == 1 else identity
    return unconditional_error(f"{state.class_.__name__} {shown!r}")


class _Allowed:
    """The rows that may be written."""

    def __init__(self, session: Session) -> None:
        self._session, self._known = session, record_of(session)
        self._new = set(states_inserted_by(session))
        #: The roots of rows that have a condition of their own.
        self.moved_for: set[State] = set()
        self._taken_by: dict[State, list[State]] = {}
        for owner in map(instance_state, session.deleted):
            for obj, *_ in owner.mapper.cascade_iterator("delete", owner):
                self._taken_by.setdefault(instance_state(obj), []).append(owner)

    def with_owners(self, state: State, owners: Iterable[State]) -> bool:
        """Return whether the row, or one that it goes with, has a condition."""
        if self._has(state):
            self.moved_for.update(self._around([state]))
            return True
        return any(map(self._has, self._around([state, *owners])))

    def _around(self, states: list[State]) -> set[State]:
        """Return these, their roots, the owners whose delete takes them along, and so on."""
        waiting, seen = states, set[State]()
        while waiting:
            one = waiting.pop()
            if one not in seen and one.key is not None:
                seen.add(one)
                waiting += self._taken_by.get(one, ())
                waiting += map(instance_state, roots_of_object(self._session, one.obj()))
        return seen

    def _has(self, state: State) -> bool:
        place, known = place_of(state), self._known
        if state in self._new or known.is_ours(place):
            return True
        if known.promises and known.promises.demand(place):
            return True
        return any(said and place in said for said in (known.settled_by, known.merged))


def _changed(session: Session) -> dict[State, list[State]]:
    """Return the stored rows that a flush changes.

    Each has the owners of the collections that it enters or leaves, if nothing else changes.
    """
    found: dict[State, list[State]] = {instance_state(obj): [] for obj in session.deleted}
    for state in map(instance_state, session.dirty):
        if facts(state.mapper).token in state.committed_state or _own_change(state):
            found[state] = []
    for obj in (*session.dirty, *session.new, *session.deleted):
        owner = instance_state(obj)
        for child in _children(owner):
            owners = found.setdefault(child, [])
            if not _own_change(child, but_for_owners=True):
                owners.append(owner)
    return found


def _own_change(state: State, *, but_for_owners: bool = False) -> bool:
    """Return whether a column of the row, foreign keys among them, gets another value."""
    known, others = facts(state.mapper), state.mapper.relationships
    own = set(known.columns).difference((known.token,))
    if not but_for_owners:
        own.update(
            name for name, one in others.items() if one.direction is RelationshipDirection.MANYTOONE
        )
    return any(
        state.get_history(name, _NO_READ).has_changes() for name in own & {*state.committed_state}
    )


def _children(state: State) -> Iterator[State]:
    """Yield stored rows that enter or leave its collections: their foreign keys change."""
    for one in state.mapper.relationships:
        if one.direction is RelationshipDirection.ONETOMANY and one.key in state.committed_state:
            history = state.get_history(one.key, _NO_READ)
            for child in (*(history.added or ()), *(history.deleted or ())):
                if child is not None and instance_state(child).key is not None:
                    yield instance_state(child)
