"""Whoever writes a row that others have open: asked before, and in the statement that writes.

Of each row of a class with the mixin (:class:`~optilock.shares.guard.Shared`), whatever a watched
session writes and in whatever form:

* without a handle an UPDATE needs that all open handles share W, a DELETE that nobody has it open;
* under a handle (:func:`use`) the handle has to be open, with access W, or D.

A look with locks comes first: it waits for who is opening the row, and reads what he has stored.
The statement that writes has the same in its WHERE, because time goes on between the two. Whoever
opens the row afterwards waits for our COMMIT. The mixin adds no column::

    class Page(Shared, Versioned, Base):
        __tablename__ = "pages"
        id: Mapped[int] = mapped_column(primary_key=True)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from sqlalchemy import (
    ColumnElement,
    Integer,
    Select,
    String,
    Table,
    and_,
    event,
    inspect,
    literal_column,
    or_,
    select,
)
from sqlalchemy.orm import Mapper, Session
from sqlalchemy.types import TypeEngine

from optilock.conditions.condition import Condition, Given
from optilock.conditions.demands import Demand
from optilock.errors import ConfigurationError, Entry
from optilock.mapped import facts
from optilock.shares.errors import AccessDenied, DeletePending, HandleLost, SharingViolation
from optilock.shares.locked import (
    ALL,
    DELETE,
    USUAL,
    WRITE,
    Handle,
    Mode,
    Shares,
    letters,
    mode,
    name_in_sql,
    shares_of,
)
from optilock.tables.shares import HANDLE_ID
from optilock.unit.parts import Part
from optilock.watched.session.connections import session_given
from optilock.watched.session.watched import demand, demand_always, demands_of_its_own, is_watched

__all__ = ["BY_SHARES", "Shared", "Through", "use"]

#: The value that each row has of its own: the handle under which it is written.
_HANDLE = "share_handle"
_KIND: TypeEngine[Any] = HANDLE_ID


class ByShares(Condition):
    """On the rows of a class, without a handle; who has one is asked by :class:`_Under`."""

    exact: ClassVar[bool] = False  # a look with locks comes first

    def __init__(self, mapper: Mapper[Any], within: Shares, deleting: bool, given: bool) -> None:
        self._mapper, self._within = mapper, within
        self._deleting, self._given = deleting, given

    @property
    def each(self) -> Mapping[str, TypeEngine[Any]]:
        return {_HANDLE: _KIND} if self._given else {}

    def when(self, *, deleting: bool, given: bool) -> Condition:
        return by_shares(self._mapper, self._within, deleting=deleting, given=given)

    def clause(self, given: Given) -> ColumnElement[bool]:
        free = self._free()
        return or_(given(_HANDLE, _KIND).is_not(None), free) if self._given else free

    @property
    def looks(self) -> tuple[ColumnElement[Any], ...]:
        """Is it to be deleted? That waits for who is opening it. And: is nobody against us?"""
        names = self._within.names
        pending: Select[Any] = select(names.c.delete_pending)
        pending = pending.where(names.c.name == name_in_sql(self._mapper))
        pending = pending.with_for_update(read=True).correlate(*self._mapper.tables)
        return pending.scalar_subquery(), self._free()

    def holds(self, params: Mapping[str, Any], seen: Sequence[Any]) -> bool:
        return params.get(_HANDLE) is not None or bool(seen[1])

    def missed(self, params: Mapping[str, Any], seen: Sequence[Any]) -> Condition:
        return _Missed(self, bool(seen[0]), self._deleting)

    def explain(self, entry: Entry[Any]) -> Exception | None:
        return None  # its own miss does

    def _free(self) -> ColumnElement[bool]:
        """No handle is open, and against us."""
        table = self._within.handles
        against = and_(
            table.c.name == name_in_sql(self._mapper), table.c.until > self._within.clock
        )
        if not self._deleting:
            unshared = table.c.share.bitwise_and(WRITE) == 0
            against = and_(against, table.c.access != 0, unshared)
        return ~_exists(against, self._mapper)


def _exists(handle: ColumnElement[bool], mapper: Mapper[Any]) -> ColumnElement[bool]:
    """There is such a handle. Read with a lock: a plain read may show the snapshot's (MariaDB)."""
    found: Select[Any] = select(literal_column("1")).where(handle).correlate(*mapper.tables)
    return found.with_for_update(read=True, key_share=True).exists()


class _Missed(Condition):
    """A condition on a row of which it is known what is against us."""

    def __init__(self, said: ByShares, pending: bool, deleting: bool) -> None:
        self._said, self._pending, self._deleting = said, pending, deleting

    def clause(self, given: Given) -> ColumnElement[bool]:
        return self._said.clause(given)

    def explain(self, entry: Entry[Any]) -> Exception:
        name = _called(entry)
        if self._pending:
            return DeletePending(name)
        return SharingViolation(name, letters(DELETE if self._deleting else WRITE), "RWD", ())


def by_shares(mapper: Mapper[Any], within: Shares, *, deleting: bool, given: bool) -> ByShares:
    """Made once for a class."""
    shapes, place = facts(mapper).shapes, ("shares", deleting, given)
    found: ByShares | None = shapes.get(place)
    if found is None:
        found = shapes[place] = ByShares(mapper, within, deleting, given)
    return found


class _ByShares(Demand):
    """What is demanded of every session that writes rows of such classes."""

    values: Mapping[str, Any] = {}

    def on(self, mapper: Mapper[Any]) -> Condition | None:
        within = shares_of(mapper)
        return None if within is None else by_shares(mapper, within, deleting=False, given=False)


BY_SHARES = _ByShares()


@dataclass(frozen=True)
class _Through(Condition):
    """The handle of this row is open, with the access that it takes; of other rows: true."""

    mapper: Mapper[Any]
    within: Shares = field(compare=False)
    ordinal: int
    access: Mode = WRITE
    #: Known of a miss alone, as a value is no structure.
    may: bool = field(default=True, compare=False)

    def when(self, *, deleting: bool, given: bool) -> Condition:
        return replace(self, access=DELETE if deleting else WRITE)

    def clause(self, given: Given) -> ColumnElement[bool]:
        return self._is_open(given, self.within.handles.c.until > self.within.clock)

    def after_look(self, given: Given) -> ColumnElement[bool]:
        return self._is_open(given)

    def _is_open(self, given: Given, *more: ColumnElement[bool]) -> ColumnElement[bool]:
        table = self.within.handles
        mine = given(f"share_id_{self.ordinal}", _KIND)
        name = given(f"share_name_{self.ordinal}", String())
        reaches = table.c.access.bitwise_and(self.access) != 0
        here = and_(table.c.name == name, table.c.id == mine, reaches, *more)
        return or_(name_in_sql(self.mapper) != name, _exists(here, self.mapper))

    def missed(self, params: Mapping[str, Any], seen: Sequence[Any]) -> Condition:
        had = params[f"share_access_{self.ordinal}"]
        return replace(self, may=bool(had & self.access))

    def explain(self, entry: Entry[Any]) -> Exception:
        return HandleLost(_called(entry)) if self.may else AccessDenied(_called(entry))


class _UnderHandle(Demand):
    def __init__(self, handle: Handle, mapper: Mapper[Any], ordinal: int) -> None:
        self.values: Mapping[str, Any] = {
            f"share_id_{ordinal}": handle.id,
            f"share_name_{ordinal}": handle.name,
            f"share_access_{ordinal}": ALL
            if handle.access is None
            else mode(handle.access, "access"),
        }
        self._root, self._within, self._ordinal = facts(mapper).root, handle.within, ordinal

    def on(self, mapper: Mapper[Any]) -> Condition | None:
        if facts(mapper).root is not self._root:
            return None
        return _Through(mapper, self._within, self._ordinal)


class Through(Part):
    """A part of a unit of work: its writes of these rows go through their handles."""

    def __init__(self, *handles: Handle) -> None:
        self._handles = handles

    def begin(self, session: Session) -> None:
        for handle in self._handles:
            use(session, handle)


def use(session: Session, handle: Handle) -> None:
    """From here on the session writes the row that is open through its handle.

    Raises:
        ConfigurationError: nobody watches the session; or no row is open, but a name.
    """
    session = session_given(session, "shares.use", "shares.use(session.sync_session, handle)")
    if not is_watched(session):
        raise ConfigurationError(
            f"shares.use() got a session that nobody watches ({type(session).__name__}), so nothing"
            " would look at what it writes: use optilock.watch() on its factory, or a UnitOfWork."
        )
    if not isinstance(handle, Handle) or handle.of is None:
        raise ConfigurationError(
            "shares.use() takes the handle of a row, shares.open(session, page, ...): no write says"
            " that it is one of another name. Ask for that with check(..., handle=handle)."
        )
    mapper: Mapper[Any] = inspect(handle.of[0])
    ordinal = session.info[_HANDLES] = session.info.get(_HANDLES, 0) + 1
    demand(session, _UnderHandle(handle, mapper, ordinal))
    demands_of_its_own(session).give((facts(mapper).root, handle.of[1]), {_HANDLE: handle.id})


_HANDLES = "optilock handles"


def _called(entry: Entry[Any]) -> str:
    key = entry.identity[0] if len(entry.identity) == 1 else entry.identity
    return f"{entry.model.__name__} {key!r}"


class Shared:
    """Mixin: nobody writes a row of the class against those who have it open."""

    __shares__: ClassVar[Shares] = USUAL


@event.listens_for(Shared, "instrument_class", propagate=True)
def _guard(mapper: Mapper[Any], cls: type[Any]) -> None:
    """From here on its rows are asked for.

    Raises:
        ConfigurationError: nobody could say their names.
    """
    if not isinstance(cls.__shares__, Shares):
        raise ConfigurationError(
            f"{cls.__name__}.__shares__ is {cls.__shares__!r}: write Shares(schema=...), or leave"
            " it out."
        )
    table = mapper.local_table
    if not isinstance(table, Table) or mapper.concrete:
        how = "to a SELECT" if not mapper.concrete else "with concrete=True"
        raise ConfigurationError(
            f"{cls.__name__} is Shared, but is mapped {how}, and the name of a row is made of its"
            " table and key: map a table of its own."
        )
    for column in table.primary_key:
        if not isinstance(column.type, (Integer, String)):
            raise ConfigurationError(
                f"{cls.__name__} is Shared, and the type of its key {column.name} is"
                f" {type(column.type).__name__}: databases write such a key in several ways, and"
                " the name of a row is made of its key. Use a key of integers or texts."
            )
    cls.__shares__.of_rows.add(table.name)
    demand_always(BY_SHARES)
