"""The operations on a lease: one conditional UPDATE each, which moves no version.

====================  ===========  ========================  ==================  ==================
operation             available    leased                    expired             breaking, broken
====================  ===========  ========================  ==================  ==================
acquire               leased       the holder's own id: a    leased              broken: leased;
                                   new duration; otherwise                       breaking:
                                   ``LeaseHeld``                                 ``LeaseHeld``
renew                 lost         begins again              begins again, if    lost
                                                             the row was not
                                                             written since
change                lost         another id                lost                lost
release               lost         available                 available           available
break_                lost         breaking, or broken       broken              breaking, not
                                                                                 longer than before
====================  ===========  ========================  ==================  ==================

*lost* is ``LeaseLost``; so is each operation with the id of another lease. Every operation takes
``if_match``: if the row is in another version, it raises ``PreconditionFailed``, in each state of
the lease. They are part of the session's transaction, and others see their effects after its
COMMIT. On a connection in AUTOCOMMIT mode with RETURNING, each is one round trip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from optilock._watched.session.connections import given_session
from optilock._watched.writes.send import require_row_counts
from optilock.dialects import database_of
from optilock.dialects.at_once import update_at_once
from optilock.leases.columns import LEASE_ID, LeaseColumns
from optilock.leases.errors import LeaseHeld, LeaseLost
from optilock.leases.names import Place, execute_on_lease, place_of
from optilock.leases.values import (
    FAR,
    Lease,
    LeaseState,
    lease_from,
    new_id,
    read_holder,
    read_id,
    state_of,
)
from optilock.tokens.sql_functions import Later

_MINE, _NEW, _LENGTH = "optilock_mine", "optilock_new", "optilock_length"
_HOLDER = "optilock_holder"
#: How often an operation is sent that is refused, while the look after it would allow it.
_ATTEMPTS = 3

_NOTHING: Mapping[str, Any] = {}

Values = list[tuple[sa.Column[Any], Any]]


def acquire(
    session: Session,
    of: Any,
    duration: Any,
    *,
    proposed: Any = None,
    if_match: Any = None,
    holder: str | None = None,
) -> Lease:
    """Become the holder.

    Args:
        session: any session; its transaction is used.
        of: a stored object, ``(Page, 7)``, a :class:`~optilock.leases.names.Name`, or a class that
            has one for all its rows.
        duration: seconds, a ``timedelta``, or ``ENDLESS``.
        proposed: the id, if it is known already: an acquire that may have been lost on its way can
            be sent again. It must be random (a UUID).
        if_match: the tag, or ``Version(...)``, of the row.
        holder: a label of up to 200 characters, such as a person or a host, which is public
            (:func:`look`, ``LeaseHeld``). optilock does not verify it.

    Raises:
        LeaseHeld: there is another holder.
        PreconditionFailed: the row is in another version.
        NotFound: there is no such row.
        BadPrecondition, ConfigurationError: an argument is not valid.
    """
    session, place = _of(session, of, "acquire")
    length, holder = place.columns.policy.length(duration), read_holder(holder, "acquire")
    mine = new_id() if proposed in (None, "") else read_id(proposed, "acquire")
    return _held(session, place, "acquire", mine, if_match, {_LENGTH: length, _HOLDER: holder})


def renew(session: Session, of: Any, lease: Any = None, *, if_match: Any = None) -> Lease:
    """Let the lease begin again, for as long as before. The label of its holder stays.

    Args:
        of: the lease; or its row or name, with the id in ``lease``.
        if_match: as for :func:`acquire`.

    Raises:
        LeaseLost: it is not in force any more, or is being broken.
        PreconditionFailed, NotFound, BadPrecondition, ConfigurationError: as :func:`acquire`.
    """
    session, place = _of(session, of, "renew")
    return _held(session, place, "renew", _id(of, lease, "renew"), if_match)


def change(
    session: Session,
    of: Any,
    lease: Any = None,
    *,
    proposed: Any = None,
    if_match: Any = None,
    holder: str | None = None,
) -> Lease:
    """Give the lease another id, and make the old one invalid.

    Args and errors are those of :func:`renew` and :func:`acquire`. ``holder`` takes the place of
    the label of before.
    """
    session, place = _of(session, of, "change")
    holder = read_holder(holder, "change")
    new = new_id() if proposed in (None, "") else read_id(proposed, "change")
    return _held(
        session, place, "change", _id(of, lease, "change"), if_match, {_NEW: new, _HOLDER: holder}
    )


def release(session: Session, of: Any, lease: Any = None, *, if_match: Any = None) -> None:
    """End the lease: it can be acquired at once. Args and errors are those of :func:`renew`."""
    session, place = _of(session, of, "release")
    mine = _id(of, lease, "release")
    _write(place.connection(session), place, "release", if_match, {_MINE: mine})


def break_(session: Session, of: Any, *, after: Any = None, if_match: Any = None) -> LeaseState:
    """End another holder's lease. It cannot be renewed any more.

    Args:
        after: seconds that the holder still gets; by default the rest of its lease, and none of an
            endless one. A second call can shorten that time, but not extend it.

    Raises:
        LeaseLost: there is no lease.
        PreconditionFailed, NotFound, BadPrecondition, ConfigurationError: as :func:`acquire`.
    """
    session, place = _of(session, of, "break_")
    given = place.columns.policy.break_after(after)
    row = _write(place.connection(session), place, "break_", if_match, {_LENGTH: given})
    return state_of(row)


def look(session: Session, of: Any) -> LeaseState:
    """Return the public state of the lease: its state, end, number and holder. It locks nothing.

    Raises:
        NotFound: there is no such row.
        ConfigurationError: rows of the class have no leases.
    """
    session, place = _of(session, of, "look")
    connection = place.connection(session)
    row = place.read(connection, newest=False)
    if row is None:
        place.require(connection, None)
        return LeaseState("available", 0)
    return state_of(row)


# -- the statement ---------------------------------------------------------------------------------


def _of(session: Any, of: Any, call: str) -> tuple[Session, Place]:
    found = given_session(session, f"leases.{call}", f"await session.run_sync(leases.{call}, ...)")
    return found, place_of(of, call)


def _id(of: Any, lease: Any, call: str) -> Any:
    return read_id(of if lease is None else lease, call)


def _held(
    session: Session, place: Place, call: str, mine: Any, if_match: Any, given: Any = None
) -> Lease:
    connection = place.connection(session)
    row = _write(connection, place, call, if_match, {_MINE: mine, **(given or {})})
    return lease_from(place.of, row)


def do_at_once(connection: sa.Connection, place: Place, call: str, mine: Any) -> Lease | None:
    """Renew or release the lease by one statement, which waits for no lock.

    ``connection`` is one of :func:`~optilock._watched.session.connections.own_statements`.

    Returns:
        The lease; ``None`` if another transaction has locked the row.

    Raises:
        LeaseLost: it is lost.
    """
    require_row_counts(connection.dialect)
    database, dialect, given = database_of(connection.dialect), connection.dialect, {_MINE: mine}
    # SQLite stores what it returns once all of it is read.
    returning = dialect.update_returning and not database.locks.one_lock and call != "release"
    statement = _statement(place, call, returning=returning)
    keys = place.key_values()
    result = update_at_once(database, connection, statement, keys, {**place.params, **given})
    row = None if result is None else _answer(result, connection, place, call, mine)
    if row is None:
        row = place.read(connection, newest=False)
        if row is None:
            raise LeaseLost(place.what, "lost", status=409)
        why = _refusal_of(place, call, row, given)
        if why is not None:
            raise why
        return None
    return lease_from(place.of, row) if row else Lease(place.of, mine)


def renew_on(connection: sa.Connection, place: Place, mine: Any) -> Lease:
    """Renew the lease, on a connection without a session."""
    return lease_from(place.of, _write(connection, place, "renew", None, {_MINE: mine}))


def _write(
    connection: sa.Connection, place: Place, call: str, if_match: Any, given: dict[str, Any]
) -> Mapping[str, Any]:
    """Send the operation; return the columns of the lease as they are then.

    Raises:
        LeaseHeld, LeaseLost, PreconditionFailed, NotFound: as the operations.
    """
    versions = place.versions(call, if_match, connection)
    require_row_counts(connection.dialect)
    statement = _statement(place, call, returning=connection.dialect.update_returning)
    if versions is not None:
        assert place.mapper is not None
        statement = statement.where(place.mapper.version_id_col.in_(versions))  # type: ignore[union-attr]
    params = {**place.params, **given}
    for _ in range(_ATTEMPTS):
        written = _sent(connection, place, call, statement, params)
        if written is not None:
            return written
        found = place.read(connection)
        if found is None and place.make(connection):
            continue
        if found is None or versions is not None:
            place.require(connection, versions)
        why = None if found is None else _refusal_of(place, call, found, given)
        if why is not None:
            raise why
    raise LeaseHeld(place.what, "leased", status=409)


def _sent(
    connection: sa.Connection, place: Place, call: str, statement: sa.Update, params: dict[str, Any]
) -> Mapping[str, Any] | None:
    """Send the UPDATE; return the columns of the lease, or ``None`` if no row was written."""
    result = execute_on_lease(connection, place.columns, statement, params)
    return _answer(result, connection, place, call, params.get(_NEW, params.get(_MINE)))


def _answer(
    result: Any, connection: sa.Connection, place: Place, call: str, mine: Any
) -> Mapping[str, Any] | None:
    """Return the columns of the lease after the UPDATE; ``None`` if no row was written.

    Where they are read afterwards, and the UPDATE has committed itself, another holder may have
    come in between.
    """
    if result.returns_rows:
        row = result.mappings().first()
        return None if row is None else dict(row)
    if not result.rowcount:
        return None
    if call == "release":
        return _NOTHING
    found = place.read(connection)
    if found is None:
        return None
    return found if call == "break_" or found["lease_id"] == mine else None


def _statement(place: Place, call: str, *, returning: bool) -> sa.Update:
    """Return the UPDATE of an operation, which is made once for a table."""
    columns = place.columns
    found: sa.Update | None = columns.known.get((call, returning))
    if found is None:
        where, values = _PLANS[call](columns, place)
        found = sa.update(columns.table).where(*place.here, where)
        found = found.ordered_values(*values, *_as_they_are(columns))
        if returning:
            found = found.returning(*columns.lease)
        columns.known[call, returning] = found
    return found


def _as_they_are(columns: LeaseColumns) -> Values:
    """Return columns that an UPDATE would change by default: the version, the time of change."""
    return [
        (one, one)
        for one in columns.table.columns
        if (one.onupdate is not None or one.server_onupdate is not None) and one.computed is None
    ]


# The condition and the values of each operation. MariaDB sets one column after the other, and an
# expression reads earlier new values: so columns that are read are set last.


def _acquiring(columns: LeaseColumns, place: Place) -> tuple[sa.ColumnElement[bool], Values]:
    mine, length = _param(_MINE, LEASE_ID), _param(_LENGTH, sa.BigInteger())
    again = sa.and_(columns.id == mine, columns.length.is_not(None))
    values: Values = [
        (columns.since, columns.clock),
        (columns.until, _end(columns, length)),
        (columns.length, length),
        (columns.fence, columns.fence + 1),
        (columns.holder, _param(_HOLDER, columns.holder.type)),
        (columns.id, mine),
    ]
    return sa.or_(columns.free(), again), values


def _renewing(columns: LeaseColumns, place: Place) -> tuple[sa.ColumnElement[bool], Values]:
    where = sa.and_(columns.id == _param(_MINE, LEASE_ID), columns.length.is_not(None))
    if not place.tells_writes:
        where = sa.and_(where, columns.until > columns.clock)
    return where, [(columns.until, _end(columns, columns.length))]


def _changing(columns: LeaseColumns, place: Place) -> tuple[sa.ColumnElement[bool], Values]:
    mine, new = _param(_MINE, LEASE_ID), _param(_NEW, LEASE_ID)
    where = sa.and_(
        sa.or_(columns.id == mine, columns.id == new),
        columns.length.is_not(None),
        columns.until > columns.clock,
    )
    fence = sa.case((columns.id == new, columns.fence), else_=columns.fence + 1)
    holder = _param(_HOLDER, columns.holder.type)
    return where, [(columns.fence, fence), (columns.holder, holder), (columns.id, new)]


def _releasing(columns: LeaseColumns, place: Place) -> tuple[sa.ColumnElement[bool], Values]:
    nothing = [columns.since, columns.until, columns.length, columns.holder, columns.id]
    return columns.id == _param(_MINE, LEASE_ID), [(one, sa.null()) for one in nothing]


def _breaking(columns: LeaseColumns, place: Place) -> tuple[sa.ColumnElement[bool], Values]:
    after, clock = _param(_LENGTH, sa.BigInteger()), columns.clock
    asked = Later(clock, after)
    end = sa.case(
        (columns.until <= clock, columns.until),
        (sa.and_(after.is_(None), columns.length == 0), clock),
        (after.is_(None), columns.until),
        (asked < columns.until, asked),
        else_=columns.until,
    )
    where = sa.and_(columns.id.is_not(None), columns.until.is_not(None))
    return where, [
        (columns.until, end),
        (columns.length, sa.null()),
        (columns.holder, sa.null()),
    ]


_PLANS: dict[str, Any] = {
    "acquire": _acquiring,
    "renew": _renewing,
    "change": _changing,
    "release": _releasing,
    "break_": _breaking,
}


def _param(name: str, kind: Any) -> sa.ColumnElement[Any]:
    return sa.bindparam(name, type_=kind)


def _end(columns: LeaseColumns, length: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    far = sa.bindparam(None, FAR, type_=columns.until.type)
    return sa.case((length == 0, far), else_=Later(columns.clock, length))


def _refusal_of(
    place: Place, call: str, row: Mapping[str, Any], given: Mapping[str, Any]
) -> Exception | None:
    """Return why the row was not changed; ``None`` if it would be changed now."""
    now, mine = state_of(row), given.get(_MINE)
    public = (place.what, now.state, now.since, now.until, 409)
    if call == "acquire":
        leased = now.state == "leased" and row["lease_id"] != mine
        held = leased or now.state == "breaking"
        return LeaseHeld(*public, holder=now.holder) if held else None
    if call == "break_":
        return LeaseLost(*public) if now.state == "available" else None
    if now.state == "available" or row["lease_id"] in (mine, given.get(_NEW)):
        allowed = now.state in _states(place, call)
        return None if allowed else LeaseLost(*public)
    if now.state in ("expired", "broken"):  # another holder's times are not public then
        return LeaseLost(place.what, "available", status=409)
    return LeaseLost(place.what, "leased", now.since, now.until, 409)


def _states(place: Place, call: str) -> Sequence[str]:
    """Return the states in which the holder can renew, change or release a lease."""
    if call == "release":
        return ("leased", "expired", "breaking", "broken")
    return ("leased", "expired") if call == "renew" and place.tells_writes else ("leased",)
