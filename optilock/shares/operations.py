"""Open, keep open and close a name; and operations on a name by who holds no handle.

Each is part of the session's transaction: others see what it has done after its COMMIT, and wait
for it where they want the same name. So commit soon. Heartbeats are one statement.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, select, update
from sqlalchemy.orm import Session

from optilock.conditions.condition import later
from optilock.dialects.rows import native
from optilock.errors import ConfigurationError
from optilock.shares.errors import (
    AccessDenied,
    DeletePending,
    HandleLost,
    NameNotFound,
    Open,
    ReadOnlyName,
    SharingViolation,
)
from optilock.shares.locked import (
    ALL,
    DELETE,
    USUAL,
    WRITE,
    Handle,
    LockedName,
    Mode,
    Row,
    Shares,
    checked,
    connection_of,
    is_text,
    letters,
    locked,
    mode,
    name_and_row,
    own,
    read_name,
    shared,
)
from optilock.watched.writes.send import require_row_counts

__all__ = [
    "Handle",
    "State",
    "check",
    "close",
    "create",
    "delete",
    "delete_pending",
    "heartbeat",
    "look",
    "names",
    "open",
    "set_read_only",
]


@dataclass(frozen=True)
class State:
    """What everybody may know of a name."""

    name: str
    #: Is it there, for those who ask?
    there: bool
    #: Will it be gone when the last handle is closed?
    delete_pending: bool = False
    read_only: bool = False
    open: tuple[Open, ...] = ()


def open(
    session: Session,
    name: Any,
    access: str,
    share: str = "",
    *,
    seconds: Any = None,
    owner: str | None = None,
    create: bool = True,
    delete_on_close: bool = False,
    within: Shares = USUAL,
) -> Handle:
    """Open a name, if that fits beside all who have it open.

    Args:
        session: any session; its transaction is used.
        name: a text, or a row: a stored object of a :class:`~optilock.shares.Shared` class, or
            ``(Page, 7)``.
        access: what we do: some of ``"R"``, ``"W"`` and ``"D"``; ``""`` looks at attributes only.
        share: what everybody else may do meanwhile; ``""``, the default, lets nobody do anything.
        seconds: until when the next heartbeat must have come (or a ``timedelta``).
        owner: a label that others may see, such as a person's name.
        create: make the name if it is not there.
        delete_on_close: delete the name when this handle is closed; takes access D.
        within: the tables, the limits, and the clock.

    Raises:
        SharingViolation: somebody has it open so that this does not fit.
        DeletePending: it will be gone when its last handle is closed.
        NameNotFound: it is not there, and ``create`` is false.
        AccessDenied: ``delete_on_close`` without access D.
        ReadOnlyName: it is read-only, and access W was asked for, or ``delete_on_close``.
        ConfigurationError: an argument is none of these.
    """
    ours, theirs = mode(access, "access"), mode(share, "share")
    length = within.milliseconds(seconds)
    _check_owner(owner)
    _refuse_text_of_row(name, within)
    called, row = name_and_row(session, name, "open", lock=True)
    if delete_on_close and not ours & DELETE:
        raise AccessDenied(called)
    found = locked(connection_of(session, "open", within), within, called)
    _require_there(found, create=create)
    _require_writable(found, ours if not delete_on_close else ours | WRITE, 403)
    _require_fit(found, ours, theirs)
    mine = uuid.uuid4()
    found.there = True
    found.store()
    found.add(
        {
            "id": mine,
            "owner": owner,
            "access": ours,
            "share": theirs,
            "delete_on_close": delete_on_close,
            "length": length,
            "since": within.clock,
            "until": later(within.clock, length),
        }
    )
    return _handle(found, mine, letters(ours), letters(theirs), length, row)


def heartbeat(session: Session, handle: Handle) -> Handle:
    """Keep it open for as long as before, from now on. One statement, which asks for no lock of
    the name.

    Raises:
        HandleLost: it is not open any more.
    """
    return heartbeat_on(connection_of(session, "heartbeat", handle.within), handle)


def heartbeat_on(connection: Connection, handle: Handle) -> Handle:
    """:func:`heartbeat`, for whoever has a connection and no session."""
    within = handle.within
    require_row_counts(connection.dialect)
    table = within.handles
    mine = own(within, handle.id, handle.name)
    until = later(within.clock, table.c.length)
    kept = update(table).where(mine, table.c.until > within.clock).values(until=until)
    if not native(connection, kept).rowcount:
        raise HandleLost(handle.name)
    row = native(connection, select(table).where(mine)).mappings().one()
    return replace(
        handle,
        access=letters(row["access"]),
        share=letters(row["share"]),
        until=row["until"],
        seconds=row["length"] / 1000,
    )


def close(session: Session, handle: Handle) -> State:
    """Close it, and say what has become of the name: ``there`` is false if it went with it.

    A handle that is not open any more is closed already: that is no error.
    """
    return close_on(connection_of(session, "close", handle.within), handle)


def close_on(connection: Connection, handle: Handle) -> State:
    """The same for :func:`close`."""
    found = locked(connection, handle.within, handle.name)
    mine = [one for one in found.open if one.id == handle.id]
    if mine:
        found.close(mine)
        found.store()
    return _state(found)


def delete_pending(session: Session, handle: Handle, pending: bool = True) -> State:
    """Let the name be gone when its last handle is closed; or, with ``False``, not any more.

    Raises:
        HandleLost: the handle is not open any more.
        AccessDenied: it was opened without access D.
        ReadOnlyName: the name is read-only (403).
    """
    found = _locked(session, "delete_pending", handle.within, handle.name)
    if not found.handle(handle.id).access & DELETE:
        raise AccessDenied(handle.name)
    if pending and found.read_only:
        raise ReadOnlyName(handle.name, 403)
    found.delete_pending = pending
    found.store()
    return _state(found)


def check(
    session: Session,
    name: Any,
    access: str,
    *,
    handle: Handle | None = None,
    within: Shares = USUAL,
) -> State:
    """May this be done now? And until our transaction is over nobody opens the name against it.

    Args:
        access: what is about to be done, as for :func:`open`; ``""`` asks for attributes only.
        handle: the handle through which it is done; without one it is done by somebody who has
            none, and must fit beside all handles.

    Raises:
        SharingViolation: somebody has it open so that this does not fit.
        DeletePending: it will be gone when its last handle is closed (not asked of a handle).
        NameNotFound: it is not there.
        HandleLost, AccessDenied: the handle is not open any more, or has not this access.
        ReadOnlyName: it is read-only, and access W or D was asked for.
    """
    asked = mode(access, "access")
    within = within if handle is None else handle.within
    called, _ = name_and_row(session, name, "check")
    found = shared(connection_of(session, "check", within), within, called)
    require(found, asked, handle)
    return _state(found)


def require(found: LockedName, asked: Mode, handle: Handle | None) -> None:
    """Raise what :func:`check` raises."""
    if handle is not None:
        held = found.handle(handle.id)
        if asked & ~held.access:
            raise AccessDenied(found.name)
    else:
        _require_there(found, create=False)
        # deleted without a handle it is gone at once, so nobody may have it open
        others = found.open if asked & DELETE else found.in_the_way(asked, ALL)
        if others:
            _refuse(found, asked, ALL, others)
        _require_writable(found, asked, 412)


def create(session: Session, name: Any, *, within: Shares = USUAL) -> State:
    """Make the name, or make it anew (access W and D), by who holds no handle.

    Raises:
        SharingViolation, DeletePending, ReadOnlyName: as :func:`check`.
    """
    found = _locked(session, "create", within, name)
    _require_there(found, create=True)
    _require_fit(found, WRITE | DELETE, ALL)
    _require_writable(found, WRITE, 412)
    found.there = True
    found.store()
    return _state(found)


def delete(session: Session, name: Any, *, within: Shares = USUAL) -> State:
    """Delete the name at once, by who holds no handle: nobody may have it open.

    Raises:
        SharingViolation, DeletePending, ReadOnlyName, NameNotFound: as :func:`check`.
    """
    found = _locked(session, "delete", within, name)
    require(found, DELETE, None)
    found.there = False
    found.store()
    return _state(found)


def set_read_only(
    session: Session, name: Any, read_only: bool = True, *, within: Shares = USUAL
) -> State:
    """Let nobody write or delete the name; or, with ``False``, let them.

    Raises:
        SharingViolation, DeletePending, NameNotFound: as :func:`check` with access W.
    """
    found = _locked(session, "set_read_only", within, name)
    _require_there(found, create=False)
    _require_fit(found, WRITE, ALL)
    found.read_only = read_only
    found.store()
    return _state(found)


def look(session: Session, name: Any, *, within: Shares = USUAL) -> State:
    """What everybody may know of the name. It locks nothing."""
    called, _ = name_and_row(session, name, "look")
    found = read_name(connection_of(session, "look", within), within, called)
    return State(called, False) if found is None else _state(found)


def names(session: Session, beginning: str = "", *, within: Shares = USUAL) -> list[str]:
    """The names that are there and not to be deleted, in their order."""
    table, handles = within.names, within.handles
    ended = handles.c.delete_on_close & (handles.c.until <= within.clock)
    ended &= handles.c.name == table.c.name
    query = select(table.c.name).where(
        table.c.there, ~table.c.delete_pending, ~select(handles.c.id).where(ended).exists()
    )
    if beginning:
        query = query.where(table.c.name.startswith(checked(beginning), autoescape=True))
    query = query.order_by(table.c.name)
    found = native(connection_of(session, "names", within), query).scalars()
    return [name for name in found if name.startswith(beginning)]  # LIKE of SQLite takes A for a


# -- what several of them ask ----------------------------------------------------------------------


def _locked(session: Session, call: str, within: Shares, name: Any) -> LockedName:
    called, _ = name_and_row(session, name, call)
    return locked(connection_of(session, call, within), within, called)


def _require_there(found: LockedName, *, create: bool) -> None:
    if found.delete_pending:
        raise DeletePending(found.name)
    if not found.there and not create:
        raise NameNotFound(found.name)


def _require_writable(found: LockedName, access: Mode, status: int) -> None:
    """Deleting a read-only name takes more than opening it for that: the flag is asked there."""
    writes = WRITE if status == 403 else WRITE | DELETE
    if found.read_only and access & writes:
        raise ReadOnlyName(found.name, status)


def _require_fit(found: LockedName, access: Mode, share: Mode) -> None:
    others = found.in_the_way(access, share)
    if others:
        _refuse(found, access, share, others)


def _refuse(found: LockedName, access: Mode, share: Mode, others: list[Any]) -> None:
    shown = [one.shown() for one in others]
    raise SharingViolation(found.name, letters(access), letters(share), shown)


def _handle(
    found: LockedName, mine: uuid.UUID, access: str, share: str, length: int, row: Row | None
) -> Handle:
    within = found.within
    until = native(
        found.connection, select(within.handles.c.until).where(own(within, mine, found.name))
    )
    of = None if row is None else (row[0].class_, row[1])
    return Handle(found.name, mine, access, share, until.scalar_one(), length / 1000, of, within)


def _state(found: LockedName) -> State:
    shown = tuple(one.shown() for one in found.open)
    return State(found.name, found.there, found.delete_pending, found.read_only, shown)


def _refuse_text_of_row(name: object, within: Shares) -> None:
    """Whoever opens a row locks it; a text locks none, and nobody writing the row would wait."""
    table, slash, _ = name.partition("/") if isinstance(name, str) else ("", "", "")
    if slash and table in within.of_rows:
        raise ConfigurationError(
            f"open() got {name!r}, and that is how a row of the table {table} is called: open the"
            " row, shares.open(session, (Model, key), ...), or use another name. Nothing was sent."
        )


def _check_owner(owner: object) -> None:
    if owner is not None and not is_text(owner):
        raise ConfigurationError(
            "open(owner=) takes a label that others may see, a text of up to 200 characters."
            " Nothing was sent."
        )
