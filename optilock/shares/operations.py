"""Open, keep open and close a name; and operations on a name without a handle.

Each is part of the session's transaction. Others see its effects after its COMMIT, and wait for
that if they use the same name. So commit soon. A heartbeat is one statement.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Update, literal, select, update
from sqlalchemy.orm import Session

from optilock._watched.writes.send import require_row_counts
from optilock.dialects import database_of
from optilock.dialects.at_once import update_at_once
from optilock.dialects.rows import execute_unguarded
from optilock.errors import ConfigurationError
from optilock.shares.errors import (
    AccessDenied,
    DeletePending,
    HandleLost,
    NameNotFound,
    ReadOnlyName,
    SharingViolation,
)
from optilock.shares.names import (
    LockedName,
    Row,
    connection_of,
    handle_clause,
    lock_name,
    lock_name_shared,
    name_and_row,
    read_name,
)
from optilock.shares.values import (
    ALL,
    DELETE,
    USUAL,
    WRITE,
    Handle,
    Mode,
    Shares,
    State,
    check_name,
    is_text,
    letters,
    mode,
)
from optilock.tokens.sql_functions import add_milliseconds


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
    """Open a name, if that fits with all open handles.

    Args:
        session: any session; its transaction is used.
        name: a text, or a row: a stored object of a :class:`~optilock.shares.Shared` class, or
            ``(Page, 7)``.
        access: what we do: some of ``"R"``, ``"W"`` and ``"D"``; ``""`` looks at attributes only.
        share: what others may do in the meantime; ``""``, the default, allows them nothing.
        seconds: the time until the next heartbeat (or a ``timedelta``).
        owner: a label that others may see, such as a person's name.
        create: make the name if it is not there.
        delete_on_close: delete the name when this handle is closed; takes access D.
        within: the tables, the limits, and the clock.

    Raises:
        SharingViolation: another handle does not fit.
        DeletePending: it will be gone when its last handle is closed.
        NameNotFound: there is no such name, and ``create`` is false.
        AccessDenied: ``delete_on_close`` without access D.
        ReadOnlyName: it is read-only, and ``access`` has W, or ``delete_on_close`` is given.
        ConfigurationError: an argument is not valid.
    """
    ours, theirs = mode(access, "access"), mode(share, "share")
    length = within.milliseconds(seconds)
    _check_owner(owner)
    _refuse_text_of_row(name, within)
    called, row = name_and_row(session, name, "open", lock=True)
    if delete_on_close and not ours & DELETE:
        raise AccessDenied(called)
    found = lock_name(connection_of(session, "open", within), within, called)
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
            "until": add_milliseconds(within.clock, length),
        }
    )
    return _handle(found, mine, letters(ours), letters(theirs), length, row)


def heartbeat(session: Session, handle: Handle) -> Handle:
    """Keep it open for as long as before, from now on. It sends one statement, and does not lock
    the name.

    Raises:
        HandleLost: it is not open any more.
    """
    return heartbeat_on(connection_of(session, "heartbeat", handle.within), handle)


def heartbeat_on(connection: Connection, handle: Handle) -> Handle:
    """Send a heartbeat, on a connection without a session."""
    require_row_counts(connection.dialect)
    if not execute_unguarded(connection, _heartbeat(handle)).rowcount:
        raise HandleLost(handle.name)
    return _kept(connection, handle)


def heartbeat_at_once(connection: Connection, handle: Handle) -> Handle | None:
    """Send a heartbeat by one statement, which waits for no lock.

    ``connection`` is one of :func:`~optilock._watched.session.connections.own_statements`.

    Returns:
        The handle; ``None`` if another transaction has locked it.

    Raises:
        HandleLost: it is not open any more.
    """
    require_row_counts(connection.dialect)
    table = handle.within.handles
    keys = {table.c.name: literal(handle.name), table.c.id: literal(handle.id, table.c.id.type)}
    database = database_of(connection.dialect)
    result = update_at_once(database, connection, _heartbeat(handle), keys, {})
    kept = _kept(connection, handle)
    return kept if result is not None and result.rowcount else None


def _heartbeat(handle: Handle) -> Update:
    within = handle.within
    table = within.handles
    mine = handle_clause(within, handle.id, handle.name)
    until = add_milliseconds(within.clock, table.c.length)
    return update(table).where(mine, table.c.until > within.clock).values(until=until)


def _kept(connection: Connection, handle: Handle) -> Handle:
    """Return the handle as it is stored.

    Raises:
        HandleLost: it is not there any more.
    """
    within = handle.within
    mine = handle_clause(within, handle.id, handle.name)
    row = execute_unguarded(connection, select(within.handles).where(mine)).mappings().first()
    if row is None:
        raise HandleLost(handle.name)
    return replace(
        handle,
        access=letters(row["access"]),
        share=letters(row["share"]),
        until=row["until"],
        seconds=row["length"] / 1000,
    )


def close(session: Session, handle: Handle) -> State:
    """Close it, and return the state of the name: ``there`` is false if it is gone with it.

    Closing a handle that is not open any more is no error.
    """
    return close_on(connection_of(session, "close", handle.within), handle)


def close_on(connection: Connection, handle: Handle) -> State:
    """The same for :func:`close`."""
    found = lock_name(connection, handle.within, handle.name)
    mine = [one for one in found.open if one.id == handle.id]
    if mine:
        found.close(mine)
        found.store()
    return _state(found)


def delete_pending(session: Session, handle: Handle, pending: bool = True) -> State:
    """Delete the name when its last handle is closed; or, with ``False``, keep it.

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
    """Require that this can be done now. Until our transaction ends, it is not opened against it.

    Args:
        access: what will be done, as for :func:`open`; ``""`` is for attributes only.
        handle: the handle through which it is done; without one it must fit with all handles.

    Raises:
        SharingViolation: another handle does not fit.
        DeletePending: it will be gone when its last handle is closed (not with a handle).
        NameNotFound: there is no such name.
        HandleLost, AccessDenied: the handle is not open any more, or has not this access.
        ReadOnlyName: it is read-only, and ``access`` has W or D.
    """
    asked = mode(access, "access")
    within = within if handle is None else handle.within
    called, _ = name_and_row(session, name, "check")
    found = lock_name_shared(connection_of(session, "check", within), within, called)
    require(found, asked, handle)
    return _state(found)


def require(found: LockedName, asked: Mode, handle: Handle | None) -> None:
    """Raise the errors of :func:`check`."""
    if handle is not None:
        held = found.handle(handle.id)
        if asked & ~held.access:
            raise AccessDenied(found.name)
    else:
        _require_there(found, create=False)
        # deleted without a handle it is gone at once, so no handle may be open
        others = found.open if asked & DELETE else found.in_the_way(asked, ALL)
        if others:
            _refuse(found, asked, ALL, others)
        _require_writable(found, asked, 412)


def create(session: Session, name: Any, *, within: Shares = USUAL) -> State:
    """Make the name, or replace it (access W and D), without a handle.

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
    """Delete the name at once, without a handle. No handle may be open.

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
    """Forbid to write or delete the name; or, with ``False``, allow it.

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
    """Return the public state of the name. It locks nothing."""
    called, _ = name_and_row(session, name, "look")
    found = read_name(connection_of(session, "look", within), within, called)
    return State(called, False) if found is None else _state(found)


def names(session: Session, beginning: str = "", *, within: Shares = USUAL) -> list[str]:
    """Return the names that are there and not to be deleted, sorted."""
    table, handles = within.names, within.handles
    ended = handles.c.delete_on_close & (handles.c.until <= within.clock)
    ended &= handles.c.name == table.c.name
    query = select(table.c.name).where(
        table.c.there, ~table.c.delete_pending, ~select(handles.c.id).where(ended).exists()
    )
    if beginning:
        query = query.where(table.c.name.startswith(check_name(beginning), autoescape=True))
    query = query.order_by(table.c.name)
    found = execute_unguarded(connection_of(session, "names", within), query).scalars()
    return [name for name in found if name.startswith(beginning)]  # LIKE of SQLite takes A for a


# -- requirements ----------------------------------------------------------------------------------


def _locked(session: Session, call: str, within: Shares, name: Any) -> LockedName:
    called, _ = name_and_row(session, name, call)
    return lock_name(connection_of(session, call, within), within, called)


def _require_there(found: LockedName, *, create: bool) -> None:
    if found.delete_pending:
        raise DeletePending(found.name)
    if not found.there and not create:
        raise NameNotFound(found.name)


def _require_writable(found: LockedName, access: Mode, status: int) -> None:
    """Raise for a read-only name. With status 403 it may be opened to delete it."""
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
    until = execute_unguarded(
        found.connection,
        select(within.handles.c.until).where(handle_clause(within, mine, found.name)),
    )
    of = None if row is None else (row[0].class_, row[1])
    return Handle(found.name, mine, access, share, until.scalar_one(), length / 1000, of, within)


def _state(found: LockedName) -> State:
    shown = tuple(one.shown() for one in found.open)
    return State(found.name, found.there, found.delete_pending, found.read_only, shown)


def _refuse_text_of_row(name: object, within: Shares) -> None:
    """Refuse a row's name as text: only opening the row itself locks it against writes."""
    table, slash, _ = name.partition("/") if isinstance(name, str) else ("", "", "")
    if slash and table in within.of_rows:
        raise ConfigurationError(
            f"open() got {name!r}, which is the name of a row of the table {table}: open the"
            " row, shares.open(session, (Model, key), ...), or use another name. Nothing was sent."
        )


def _check_owner(owner: object) -> None:
    if owner is not None and not is_text(owner):
        raise ConfigurationError(
            "open(owner=...) must be a string of at most 200 characters. Other users can read it."
            " Nothing was sent."
        )
