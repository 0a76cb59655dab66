"""Writing under a lease, and a lease that is renewed while a block runs.

::

    with unit_of_work(sessions, parts=[Under(lease)]) as session:
        session.get_one(Page, 7).text = "..."

or, in a watched session, ``use(session, lease)``. From then on each write of the leased row checks
the lease, and raises ``LeaseLost`` when it is not in force any more. The lease of a *name* is
checked by each write of the session, or of the classes in ``on``: its row is read with a lock, so
it gets no other holder before the transaction has ended. If the name guards all rows of a class
(:mod:`optilock.leases.condition`), each write of that class checks it.

For work of minutes, a thread renews the lease (:mod:`optilock.leases.threads`)::

    with lease(sessions, (Page, 7), 30) as held:
        ...                                  # minutes of work
        held.check()                         # before an action that cannot be undone
        with unit_of_work(sessions, parts=[held]) as session:
            session.get_one(Page, 7).text = "..."

While a transaction has the row locked, the lease gets no other holder; a lease that has ended in
that time is renewed afterwards, unless another holder came first.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, Engine, Select, inspect, literal_column, select
from sqlalchemy.orm import Mapper, Session

from optilock._mapped import facts
from optilock._watched.session.connections import given_session, own_statements
from optilock._watched.session.record import demand, is_watched, own_demands
from optilock.conditions.condition import Condition, Given
from optilock.conditions.demands import Demand
from optilock.errors import ConfigurationError, Entry
from optilock.leases.columns import LEASE_ID, LeaseColumns
from optilock.leases.condition import LEASE, NoHolder, refusal
from optilock.leases.errors import LeaseLost
from optilock.leases.names import Name, Place, is_same_name, name_of, place_of
from optilock.leases.operations import acquire, do_at_once, renew_on
from optilock.leases.renewal import (
    OnLost,
    RenewedPart,
    require_own_connections,
)
from optilock.leases.threads import held_in_thread
from optilock.leases.values import ENDLESS, Lease, milliseconds, read_id
from optilock.unit.parts import Part

T = TypeVar("T")
_NAMES = "optilock leases of names"


class Under(Part):
    """A part of a unit of work, whose writes are under these leases."""

    def __init__(self, *leases: Lease, on: Collection[type[Any]] | None = None) -> None:
        self._leases, self._on = leases, on

    def begin(self, session: Session) -> None:
        for lease in self._leases:
            use(session, lease, on=self._on)


def use(
    session: Session,
    of: Any,
    lease: Any = None,
    *,
    on: Collection[type[Any]] | None = None,
) -> None:
    """Let the session write under the lease from here on.

    Args:
        session: a watched session, or that of a unit of work.
        of: the lease; or the leased row or name, with the id in ``lease``, as a client has sent it.
        on: for the lease of a name, the classes whose rows need it; by default all of them. Rows of
            a class that the name guards need it in any case.

    Raises:
        ConfigurationError: the session is not watched, or an argument is not valid.
        BadPrecondition: ``lease`` is not an id.
    """
    session = require_watched(session, "leases.use", "lease")
    place, mine = place_of(of, "use"), read_id(of if lease is None else lease, "use")
    if place.mapper is None:
        demand(session, _UnderName(place, mine, next_ordinal(session, _NAMES), on))
        return
    if on is not None:
        raise ConfigurationError(
            f"leases.use() got on={on!r}, and the lease of {place.what} is one of a row: only the"
            " lease of a name is asked for by writes of other rows."
        )
    own_demands(session).give_row_values((facts(place.mapper).root, place.identity), {LEASE: mine})


def require_watched(session: Any, call: str, argument: str) -> Session:
    """Return the session that was given.

    Raises:
        ConfigurationError: it is not a watched session.
    """
    found = given_session(session, call, f"{call}(session.sync_session, {argument})")
    if not is_watched(found):
        raise ConfigurationError(
            f"{call}() got a session that is not watched ({type(found).__name__}), so nothing would"
            " check its writes: use optilock.watch() on its factory, or a unit of work."
        )
    return found


def next_ordinal(session: Session, key: str) -> int:
    """Count the names or handles under which a session writes, for names of parameters."""
    ordinal: int = session.info.get(key, 0) + 1
    session.info[key] = ordinal
    return ordinal


def read(session: Session, model: type[T], key: Any, lease: Any = None) -> T | None:
    """Return the row with this key, as ``session.get()`` does, if its lease allows that.

    A ``lease`` must be in force. Without it, a leased row can be read unless the class has
    ``exclusive_reads``. It always sends one SELECT.

    Raises:
        LeaseLost: the given lease is not in force.
        LeaseHeld: the row has a holder, and the class has exclusive reads.
    """
    session = given_session(session, "leases.read", "await session.run_sync(leases.read, ...)")
    place = place_of((model, key), "read")
    mine = None if lease is None else read_id(lease, "read")
    columns = place.columns
    query = select(model, *columns.in_force).where(*place.here)
    found = session.execute(query, place.params).first()
    if found is None:
        return None
    obj, *seen = found
    if seen[0] == mine or (mine is None and not columns.policy.exclusive_reads):
        return obj  # type: ignore[no-any-return]
    raise refusal(place.what, mine, seen)


@dataclass(frozen=True)
class _NameHeld(Condition):
    """The lease of the name is in force, and gets no other holder before COMMIT."""

    columns: LeaseColumns
    ordinal: int
    #: Of a miss; not compared, so that statements are cached for all names.
    name: str = field(default="", compare=False)

    def clause(self, given: Given) -> ColumnElement[bool]:
        return self._is_ours(given, self.columns.until > self.columns.clock)

    def after_look(self, given: Given) -> ColumnElement[bool]:
        return self._is_ours(given)

    def _is_ours(self, given: Given, *more: ColumnElement[bool]) -> ColumnElement[bool]:
        table = self.columns.table
        mine = given(f"lease_{self.ordinal}", LEASE_ID)
        name = given(f"name_{self.ordinal}", table.c.name.type)
        held: Select[Any] = select(literal_column("1"))
        held = held.where(table.c.name == name, self.columns.id == mine, *more)
        return held.with_for_update(read=True).exists()

    def missed(self, params: Mapping[str, Any], seen: Sequence[Any]) -> Condition:
        return replace(self, name=params[f"name_{self.ordinal}"])

    def explain(self, entry: Entry[Any]) -> Exception:
        return LeaseLost(f"the name {self.name!r}", "lost")


class _UnderName(Demand):
    """The demand that replaces :class:`~optilock.leases.condition.NoHolder` of the name."""

    def __init__(
        self, place: Place, mine: Any, ordinal: int, on: Collection[type[Any]] | None
    ) -> None:
        self._name: Name = place.of
        self.values: Mapping[str, Any] = {
            f"lease_{ordinal}": mine,
            f"name_{ordinal}": place.identity[0],
        }
        self._condition = _NameHeld(place.columns, ordinal)
        self._on = None if on is None else tuple(inspect(one).class_ for one in on)

    def on(self, mapper: Mapper[Any]) -> Condition | None:
        asked = self._on is None or issubclass(mapper.class_, self._on)
        guards = name_of(mapper.class_)
        asked = asked or (guards is not None and is_same_name(guards, self._name))
        return self._condition if asked else None

    def replaces(self, standing: Condition) -> bool:
        return isinstance(standing, NoHolder) and is_same_name(standing.name, self._name)


# -- a lease that is renewed -----------------------------------------------------------------------


class Held(RenewedPart[LeaseLost]):
    """The lease of a ``with`` block; a part of the units that write under it."""

    kind = "lease"
    lost_as = LeaseLost

    def __init__(
        self,
        place: Place,
        lease: Lease,
        duration: Any,
        on_lost: OnLost | None,
        on: Collection[type[Any]] | None,
        began: float,
    ) -> None:
        length = (milliseconds(duration) or 0) / 1000
        super().__init__(f"the lease on {place.what}", length, on_lost, began)
        self._place, self._lease, self._on = place, lease, on

    @property
    def lease(self) -> Lease:
        """The lease, as it was last renewed."""
        return self._lease

    @property
    def fence(self) -> int | None:
        """The number of this holder, for systems outside of the database."""
        return self._lease.fence

    def use(self, session: Session) -> None:
        """Let a watched session write under the lease: :func:`optilock.leases.use`.

        Raises:
            LeaseLost: it is lost; nothing was sent.
        """
        self.check()
        use(session, self._lease, on=self._on)
        self.refuse_commits_of(session)

    def renew(self, engine: Engine) -> bool:
        began = time.monotonic()
        renewed = self._do_at_once(engine, "renew")
        if renewed is not None:
            self._lease = renewed
        elif self._place.tells_writes:
            self.note_renewed(began)  # the row is locked, so no other holder can follow
        return renewed is not None

    def end(self, engine: Engine) -> bool:
        return self._do_at_once(engine, "release") is not None

    def is_mine(self, error: LeaseLost) -> bool:
        return error.what == self._place.what

    def silence(self) -> LeaseLost:
        return LeaseLost(self._place.what, "lost")

    def renew_on(self, connection: Connection) -> None:
        self._lease = renew_on(connection, self._place, self._lease.id)

    def _do_at_once(self, engine: Engine, call: str) -> Lease | None:
        with own_statements(engine) as connection:
            return do_at_once(connection, self._place, call, self._lease.id)


@contextmanager
def lease(
    sessions: Any,
    of: Any,
    duration: Any = 30,
    *,
    if_match: Any = None,
    on_lost: OnLost | None = None,
    on: Collection[type[Any]] | None = None,
    holder: str | None = None,
) -> Iterator[Held]:
    """Be the holder for the length of the block.

    The lease is released when the block is left, also by an error. When it is lost, ``on_lost`` is
    called at once; ``held.check()`` raises, and so does the end of the block.

    Args:
        sessions: a ``sessionmaker``, a ``scoped_session`` or an ``Engine``.
        of: a stored object, ``(Page, 7)``, or a ``Name``.
        duration: seconds after which the lease ends if this process dies.
        if_match: as for ``acquire``.
        on_lost: called once, in the thread that renews, when the lease is lost.
        on: for the lease of a name, the classes whose rows need it.
        holder: as for ``acquire``.

    Raises:
        LeaseHeld, PreconditionFailed, NotFound: as ``acquire``; the block is not entered.
        LeaseLost: at the end of the block, if the lease was lost before.
    """
    with held_in_thread(
        "leases.lease", sessions, acquire_held, of, duration, if_match, on_lost, on, holder
    ) as held:
        yield held


def acquire_held(
    session: Session,
    of: Any,
    duration: Any,
    if_match: Any,
    on_lost: OnLost | None,
    on: Collection[type[Any]] | None,
    holder: str | None,
) -> tuple[Held, Engine]:
    """Acquire the lease in the session's transaction; return it, and the engine that renews it.

    Raises:
        ConfigurationError: the lease is endless, so it needs no renewal.
    """
    if duration == ENDLESS:
        raise ConfigurationError(
            "leases.lease() renews the lease, so that it ends by itself when its holder dies: give"
            " it a duration in seconds. An endless one is acquired with acquire()."
        )
    place, began = place_of(of, "lease"), time.monotonic()
    engine = place.connection(session).engine
    require_own_connections(engine, "leases.lease", "acquire() and renew()")
    taken = acquire(session, of, duration, if_match=if_match, holder=holder)
    return Held(place, taken, duration, on_lost, on, began), engine
