"""A session writes under a lease.

::

    with UnitOfWork(sessions, parts=[Under(lease)]) as session:
        session.get_one(Page, 7).text = "..."

or, in a watched session, ``use(session, lease)``. From then on every write of the leased row names
the lease, and is refused with ``LeaseLost`` once it is not in force any more. The lease of a *name*
is asked for by every write of the session, or of the classes in ``on``: its row is read with a lock
that lets nobody else become its holder before the transaction has ended. Where the name stands for
all rows of a class (:mod:`optilock.leases.condition`), every write of that class asks for it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Select, inspect, literal_column, select
from sqlalchemy.orm import Mapper, Session

from optilock.conditions.condition import Condition, Given
from optilock.conditions.demands import Demand
from optilock.errors import ConfigurationError, Entry
from optilock.leases.columns import LEASE_ID, LeaseColumns
from optilock.leases.condition import LEASE, NoHolder, refusal
from optilock.leases.errors import LeaseLost
from optilock.leases.names import Name, Place, are_one, name_of, place_of
from optilock.leases.values import Lease, read_id
from optilock.mapped import facts
from optilock.unit.parts import Part
from optilock.watched.session.connections import session_given
from optilock.watched.session.watched import demand, demands_of_its_own, is_watched

__all__ = ["Under", "read", "use"]

T = TypeVar("T")
_NAMES = "optilock leases of names"


class Under(Part):
    """A part of a unit of work: its writes go under these leases."""

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
    """From here on the session writes under the lease.

    Args:
        session: a watched session, or that of a unit of work.
        of: the lease; or what it is of, and the id in ``lease``, as a client has sent it.
        on: of the lease of a name: the classes whose rows need it; without it all of them. Rows of
            a class that the name stands for need it in any case.

    Raises:
        ConfigurationError: nobody watches the session; or the arguments are none of these.
        BadPrecondition: ``lease`` is no id.
    """
    session = session_given(session, "leases.use", "leases.use(session.sync_session, lease)")
    if not is_watched(session):
        raise ConfigurationError(
            f"leases.use() got a session that nobody watches ({type(session).__name__}), so nothing"
            " would look at what it writes: use optilock.watch() on its factory, or a UnitOfWork."
        )
    place, mine = place_of(of, "use"), read_id(of if lease is None else lease, "use")
    if place.mapper is None:
        ordinal = session.info[_NAMES] = session.info.get(_NAMES, 0) + 1
        demand(session, _UnderName(place, mine, ordinal, on))
        return
    if on is not None:
        raise ConfigurationError(
            f"leases.use() got on={on!r}, and the lease of {place.what} is one of a row: only the"
            " lease of a name is asked for by writes of other rows."
        )
    demands_of_its_own(session).give((facts(place.mapper).root, place.identity), {LEASE: mine})


def read(session: Session, model: type[T], key: Any, lease: Any = None) -> T | None:
    """The row with this key, as ``session.get()`` finds it, if its lease lets it be read.

    Whoever names a lease has to be the holder. Whoever names none reads what is leased unless the
    class has ``exclusive_reads``. One SELECT, always sent.

    Raises:
        LeaseLost: the lease that was named is not in force.
        LeaseHeld: somebody holds one, and the class has exclusive reads.
    """
    session = session_given(session, "leases.read", "await session.run_sync(leases.read, ...)")
    place = place_of((model, key), "read")
    mine = None if lease is None else read_id(lease, "read")
    columns = place.columns
    query = select(model, *columns.holder).where(*place.here)
    found = session.execute(query, place.params).first()
    if found is None:
        return None
    obj, *seen = found
    if seen[0] == mine or (mine is None and not columns.policy.exclusive_reads):
        return obj  # type: ignore[no-any-return]
    raise refusal(place.what, mine, seen)


@dataclass(frozen=True)
class _NameHeld(Condition):
    """The name is still ours, and stays so until COMMIT."""

    columns: LeaseColumns
    ordinal: int
    #: Known of a miss alone, as a value is no structure.
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
    """What is demanded in place of :class:`~optilock.leases.condition.NoHolder` of the name."""

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
        asked = asked or (guards is not None and are_one(guards, self._name))
        return self._condition if asked else None

    def replaces(self, standing: Condition) -> bool:
        return isinstance(standing, NoHolder) and are_one(standing.name, self._name)
