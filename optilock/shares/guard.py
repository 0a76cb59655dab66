"""Conditions of each write of a row that others have open; and handles that stay open in a block.

A watched session checks each row of a class with the mixin :class:`Shared`, in every form of write:

* without a handle, an UPDATE needs that all open handles share W, a DELETE that none is open;
* with a handle (:func:`use`), the handle has to be open, with access W, or D.

A look with locks comes first: it waits for transactions that are opening the row, and reads what
they have stored. The statement that writes repeats the condition in its WHERE, because time passes
between the two. A transaction that opens the row afterwards waits for our COMMIT. The mixin adds no
column::

    class Page(Shared, Versioned, Base):
        __tablename__ = "pages"
        id: Mapped[int] = mapped_column(primary_key=True)

For work of minutes, a thread sends the heartbeats of a handle (:mod:`optilock.leases.threads`)::

    with opened(sessions, (Page, 7), "RW", share="R", seconds=30) as held:
        ...                                  # minutes of work
        held.check()                         # before an action that cannot be undone
        with unit_of_work(sessions, parts=[held]) as session:
            session.get_one(Page, 7).text = "..."

While a transaction has the handle's row locked, a heartbeat is tried again later. On MariaDB that
is also a transaction that has checked the name, or has written the row. A handle that has ended is
closed, and stays so.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import sqlalchemy as sa
from sqlalchemy.orm import Mapper, Session
from sqlalchemy.types import TypeEngine

from optilock._mapped import facts
from optilock._watched.session.connections import own_statements, separate_connection
from optilock._watched.session.record import demand, demand_always, own_demands
from optilock.conditions.condition import Condition, Given
from optilock.conditions.demands import Demand
from optilock.dialects import database_of
from optilock.dialects.at_once import lock_at_once
from optilock.dialects.rows import execute_unguarded
from optilock.errors import ConfigurationError, Entry, row_name
from optilock.leases.condition import ExplainedByMiss, MissCondition, label_of
from optilock.leases.holders import next_ordinal, require_watched
from optilock.leases.renewal import (
    OnLost,
    RenewedPart,
    require_own_connections,
)
from optilock.leases.threads import held_in_thread
from optilock.shares.errors import AccessDenied, DeletePending, HandleLost, SharingViolation
from optilock.shares.names import connection_of, handle_clause, name_in_sql, shares_of
from optilock.shares.operations import close_on, heartbeat_at_once, heartbeat_on, open
from optilock.shares.values import (
    ALL,
    DELETE,
    USUAL,
    WRITE,
    Handle,
    Mode,
    Shares,
    State,
    letters,
    mode,
)
from optilock.tables import ANY_UUID
from optilock.unit.parts import Part

#: The value that each row has of its own: the handle under which it is written.
_HANDLE = "share_handle"
_KIND: TypeEngine[Any] = ANY_UUID


class ShareCondition(ExplainedByMiss, Condition):
    """The condition on rows without a handle. :class:`_Through` is that with one."""

    exact: ClassVar[bool] = False  # a look with locks comes first

    def __init__(self, mapper: Mapper[Any], within: Shares, deleting: bool, given: bool) -> None:
        self._mapper, self._within = mapper, within
        self._deleting, self._given = deleting, given

    @property
    def row_parameters(self) -> Mapping[str, TypeEngine[Any]]:
        return {_HANDLE: _KIND} if self._given else {}

    def for_operation(self, *, deleting: bool, given: bool) -> Condition:
        return share_condition(self._mapper, self._within, deleting=deleting, given=given)

    def clause(self, given: Given) -> sa.ColumnElement[bool]:
        free = self._free()
        return sa.or_(given(_HANDLE, _KIND).is_not(None), free) if self._given else free

    @property
    def looks(self) -> tuple[sa.ColumnElement[Any], ...]:
        """Whether its deletion is pending, and whether no handle forbids the write.

        The first waits for transactions that are opening the row.
        """
        names = self._within.names
        pending: sa.Select[Any] = sa.select(names.c.delete_pending)
        pending = pending.where(names.c.name == name_in_sql(self._mapper))
        pending = pending.with_for_update(read=True).correlate(*self._mapper.tables)
        return pending.scalar_subquery(), self._free()

    def holds(self, params: Mapping[str, Any], seen: Sequence[Any]) -> bool:
        return params.get(_HANDLE) is not None or bool(seen[1])

    def missed(self, params: Mapping[str, Any], seen: Sequence[Any]) -> Condition:
        return MissCondition(
            self, lambda entry: self._error(label_of(entry), pending=bool(seen[0]))
        )

    def _error(self, name: str, *, pending: bool) -> Exception:
        if pending:
            return DeletePending(name)
        return SharingViolation(name, letters(DELETE if self._deleting else WRITE), "RWD", ())

    def _free(self) -> sa.ColumnElement[bool]:
        """SQL: no open handle forbids the write."""
        table = self._within.handles
        against = sa.and_(
            table.c.name == name_in_sql(self._mapper), table.c.until > self._within.clock
        )
        if not self._deleting:
            unshared = table.c.share.bitwise_and(WRITE) == 0
            against = sa.and_(against, table.c.access != 0, unshared)
        return ~_exists(against, self._mapper)


def _exists(handle: sa.ColumnElement[bool], mapper: Mapper[Any]) -> sa.ColumnElement[bool]:
    """SQL: there is such a handle. The lock shows the newest, not the snapshot's (MariaDB)."""
    found: sa.Select[Any] = (
        sa.select(sa.literal_column("1")).where(handle).correlate(*mapper.tables)
    )
    return found.with_for_update(read=True, key_share=True).exists()


def share_condition(
    mapper: Mapper[Any], within: Shares, *, deleting: bool, given: bool
) -> ShareCondition:
    """Return the condition of a class, which is made once."""
    shapes, place = facts(mapper).shapes, ("shares", deleting, given)
    found: ShareCondition | None = shapes.get(place)
    if found is None:
        found = shapes[place] = ShareCondition(mapper, within, deleting, given)
    return found


class _ByShares(Demand):
    """The demand of sessions that write rows of classes with the mixin."""

    values: Mapping[str, Any] = {}

    def on(self, mapper: Mapper[Any]) -> Condition | None:
        within = shares_of(mapper)
        return (
            None if within is None else share_condition(mapper, within, deleting=False, given=False)
        )


SHARE_DEMAND = _ByShares()


@dataclass(frozen=True)
class _Through(Condition):
    """The handle of this row is open, with the needed access; true for other rows."""

    mapper: Mapper[Any]
    within: Shares = field(compare=False)
    ordinal: int
    access: Mode = WRITE
    #: Of a miss; not compared, so that statements are cached for all handles.
    may: bool = field(default=True, compare=False)

    def for_operation(self, *, deleting: bool, given: bool) -> Condition:
        return replace(self, access=DELETE if deleting else WRITE)

    def clause(self, given: Given) -> sa.ColumnElement[bool]:
        return self._is_open(given, self.within.handles.c.until > self.within.clock)

    def after_look(self, given: Given) -> sa.ColumnElement[bool]:
        return self._is_open(given)

    def _is_open(self, given: Given, *more: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
        table = self.within.handles
        mine = given(f"share_id_{self.ordinal}", _KIND)
        name = given(f"share_name_{self.ordinal}", sa.String())
        reaches = table.c.access.bitwise_and(self.access) != 0
        here = sa.and_(table.c.name == name, table.c.id == mine, reaches, *more)
        return sa.or_(name_in_sql(self.mapper) != name, _exists(here, self.mapper))

    def missed(self, params: Mapping[str, Any], seen: Sequence[Any]) -> Condition:
        had = params[f"share_access_{self.ordinal}"]
        return replace(self, may=bool(had & self.access))

    def explain(self, entry: Entry[Any]) -> Exception:
        return HandleLost(label_of(entry)) if self.may else AccessDenied(label_of(entry))


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
    """Let the session write the open row through its handle from here on.

    Raises:
        ConfigurationError: the session is not watched, or the handle is not that of a row.
    """
    session = require_watched(session, "shares.use", "handle")
    if not isinstance(handle, Handle) or handle.of is None:
        raise ConfigurationError(
            "shares.use() takes the handle of a row, shares.open(session, page, ...): no write is"
            " known to be of another name. Call check(..., handle=handle) for that."
        )
    mapper: Mapper[Any] = sa.inspect(handle.of[0])
    ordinal = next_ordinal(session, "optilock handles")
    demand(session, _UnderHandle(handle, mapper, ordinal))
    own_demands(session).give_row_values((facts(mapper).root, handle.of[1]), {_HANDLE: handle.id})


class Shared:
    """Mixin: no write of a row is against its open handles."""

    __shares__: ClassVar[Shares] = USUAL


@sa.event.listens_for(Shared, "instrument_class", propagate=True)
def _guard(mapper: Mapper[Any], cls: type[Any]) -> None:
    """Demand the condition for rows of the class.

    Raises:
        ConfigurationError: its rows cannot have names.
    """
    if not isinstance(cls.__shares__, Shares):
        raise ConfigurationError(
            f"{cls.__name__}.__shares__ is {cls.__shares__!r}: write Shares(schema=...), or leave"
            " it out."
        )
    table = mapper.local_table
    if not isinstance(table, sa.Table) or mapper.concrete:
        how = "to a SELECT" if not mapper.concrete else "with concrete=True"
        raise ConfigurationError(
            f"{cls.__name__} is Shared, but is mapped {how}, and the name of a row is made of its"
            " table and key: map a table of its own."
        )
    for column in table.primary_key:
        if not isinstance(column.type, (sa.Integer, sa.String)):
            raise ConfigurationError(
                f"{cls.__name__} is Shared, and the type of its key {column.name} is"
                f" {type(column.type).__name__}: databases write such a key in several ways, and"
                " the name of a row is made of its key. Use a key of integers or texts."
            )
    cls.__shares__.of_rows.add(table.name)
    demand_always(SHARE_DEMAND)


# -- handles that stay open ------------------------------------------------------------------------


class Opened(RenewedPart[HandleLost]):
    """The handle of a ``with`` block; a part of the units that write its row."""

    kind = "handle"
    lost_as = HandleLost

    def __init__(self, handle: Handle, on_lost: OnLost | None, began: float) -> None:
        assert handle.seconds is not None
        super().__init__(f"the handle of {handle.name!r}", handle.seconds, on_lost, began)
        self._handle = handle
        #: The state of the name after the end of the block; ``None`` before.
        self.state: State | None = None

    @property
    def handle(self) -> Handle:
        """The handle, as it was after the last heartbeat."""
        return self._handle

    def use(self, session: Session) -> None:
        """Let a watched session write the row through the handle: :func:`optilock.shares.use`.

        Raises:
            HandleLost: it is lost; nothing was sent.
        """
        self.check()
        use(session, self._handle)
        self.refuse_commits_of(session)

    def renew(self, engine: sa.Engine) -> bool:
        with own_statements(engine) as connection:
            renewed = heartbeat_at_once(connection, self._handle)
        if renewed is not None:
            self._handle = renewed
        return renewed is not None

    def end(self, engine: sa.Engine) -> bool:
        """Close it: that locks its name, and then sends more than one statement."""
        names = self._handle.within.names
        here = _one().select_from(names).where(names.c.name == self._handle.name)
        with separate_connection(engine) as connection, connection.begin():
            locked = lock_at_once(database_of(connection.dialect), connection, here, names)
            if locked:
                self._close_on(connection)
        return locked

    def is_mine(self, error: HandleLost) -> bool:
        of = self._handle.of
        return error.name in (self._handle.name, None if of is None else row_name(*of))

    def silence(self) -> HandleLost:
        return HandleLost(self._handle.name)

    def renew_on(self, connection: sa.Connection) -> None:
        self._handle = heartbeat_on(connection, self._handle)

    def _close_on(self, connection: sa.Connection) -> None:
        """Close it. If its time was over, the lock of its name has closed it, and it was lost."""
        within = self._handle.within
        mine = handle_clause(within, self._handle.id, self._handle.name)
        found = _one().where(mine, within.handles.c.until > within.clock)
        alive = execute_unguarded(connection, found).first() is not None
        self.state = close_on(connection, self._handle)
        if not alive:
            self.note_lost(self.silence())


@contextmanager
def opened(
    sessions: Any,
    name: Any,
    access: str,
    share: str = "",
    *,
    seconds: Any = None,
    owner: str | None = None,
    create: bool = True,
    delete_on_close: bool = False,
    within: Shares = USUAL,
    on_lost: OnLost | None = None,
) -> Iterator[Opened]:
    """Have a name, or a row, open for the length of the block.

    The handle is closed when the block is left, also by an error. When it is lost, ``on_lost`` is
    called at once; ``held.check()`` raises, and so does the end of the block.

    Args:
        sessions: a ``sessionmaker``, a ``scoped_session`` or an ``Engine``.
        name, access, share, owner, create, delete_on_close, within: as for
            :func:`optilock.shares.open`.
        seconds: after which the handle is closed if this process dies.
        on_lost: called once, in the thread that sends heartbeats, when the handle is lost.

    Raises:
        SharingViolation, DeletePending, NameNotFound, AccessDenied, ReadOnlyName,
            ConfigurationError: as ``open``; the block is not entered.
        HandleLost: at the end of the block, if the handle was lost before.
    """
    options: Any = {"owner": owner, "create": create, "delete_on_close": delete_on_close}
    options |= {"seconds": seconds, "within": within, "on_lost": on_lost}
    with held_in_thread(
        "shares.opened", sessions, open_held, name, access, share, **options
    ) as held:
        yield held


def open_held(
    session: Session, name: Any, access: str, share: str, *, on_lost: OnLost | None, **options: Any
) -> tuple[Opened, sa.Engine]:
    """Open it in the session's transaction; return it, and the engine that sends heartbeats."""
    began = time.monotonic()
    engine = connection_of(session, "opened", options["within"]).engine
    require_own_connections(engine, "shares.opened", "open() and heartbeat()")
    return Opened(open(session, name, access, share, **options), on_lost, began), engine


def _one() -> sa.Select[tuple[int]]:
    return sa.select(sa.literal_column("1"))
