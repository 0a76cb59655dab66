"""Scopes that must not change until the transaction ends: rows added, deleted or changed.

::

    with unit_of_work(SessionLocal) as session:
        hour = select(Booking).where(Booking.room_id == 7, Booking.hour == 9)
        if verify(session, Booking.scope(room_id=7), hour):
            raise Taken
        session.add(Booking(room_id=7, hour=9))

At READ COMMITTED two transactions that both find no booking would both store one. Here the second
one is refused with ``ConcurrencyError`` before its COMMIT, and :func:`optilock.retry` runs it once
more.

**The version is read before the rows.** :func:`verify_scope` with a SELECT does so. Without one,
call it first, and read the rows afterwards. In the other order a commit in between is missed.

Which call to take:

``verify(session, scope)``
    for a decision: the scope must be unchanged at COMMIT; the loser runs again
``lock(session, scope)``
    for a scope with many writers: they wait for each other, and none runs again. Lock first, then
    read. Another transaction can read, and write rows; its COMMIT waits. Lock several scopes in
    one order everywhere
``expect(session, scope, etag)``
    for a client that has seen a list: another version is ``PreconditionFailed``
``etag_of(session, scope)``
    the tag of a list, taken before its rows are read

A scope is coarser than most questions: any change in room 7 refuses any decision about room 7.
Declare finer scopes, ``("room_id", "day")``, where that is too much. For equal slots a UNIQUE
constraint is better, and for overlapping times an exclusion constraint of PostgreSQL.

Meant for READ COMMITTED. At REPEATABLE READ PostgreSQL ends a transaction with an error (40001) if
another one has moved a scope since the first statement, although both only insert.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Select
from sqlalchemy.orm import Session, scoped_session

from optilock._mapping.scopes import Scope
from optilock._undocumented.statements import repeats_objects
from optilock._watched.scopes.transaction import (
    entry_of_scope,
    lock_version,
    message_of,
    read_version,
    verify_version,
)
from optilock._watched.session.connections import given_session
from optilock._watched.session.record import READS_KEY, Reads, is_watched, session_record
from optilock.conditions.request import compared
from optilock.errors import ConfigurationError, PreconditionFailed, describe
from optilock.events import report
from optilock.preconditions.entity_tags import PLAIN, ETags, sent_tags

AnySession = Session | scoped_session[Any]


def verify_scope(
    session: AnySession, scope: Scope, statement: Select[Any] | None = None
) -> list[Any] | None:
    """Require that the scope is unchanged at COMMIT; return the rows of ``statement``.

    :func:`optilock.verify` with a session calls it. The version is read first, then the rows:
    objects or values of a SELECT with one column, else rows.

    Raises:
        ConcurrencyError: the transaction has seen another version before; later, at COMMIT,
            another transaction has changed the scope.
        ConfigurationError: the session is not watched, or its unit is ``read_only``; ``scope`` is
            no scope, or ``statement`` is no SELECT.
    """
    own = _session("verify", session, scope)
    if statement is not None and not isinstance(statement, Select):
        raise ConfigurationError(
            f"verify(session, scope, statement) got {describe(statement)} as its statement: pass"
            " select(...). Nothing was sent."
        )
    reads: Reads | None = own.__dict__.get(READS_KEY)
    locked = reads is not None and reads.locks_scope(own, scope)
    version = (lock_version if locked else read_version)(own, scope)
    verify_version(own, scope, version, demanded=False, locked=locked)
    if statement is None:
        return None
    result: Any = own.execute(statement)
    result = result.unique() if repeats_objects(result) else result
    one = len(statement.column_descriptions) == 1
    return list(result.scalars().all() if one else result.all())


def expect_scope(session: AnySession, scope: Scope, etag: object, *, etags: ETags = PLAIN) -> None:
    """Demand that the scope is in the version of this ETag, now and until our transaction ends.

    :func:`optilock.expect` with a session calls it.

    Args:
        session: a watched session, or that of a unit of work.
        scope: ``Booking.scope(room_id=7)``.
        etag: the client's ``If-Match``, as :func:`optilock.expect` takes it for a row.
        etags: the signing keys and the tenant, if ``etag`` was made with them.

    Raises:
        PreconditionFailed: the scope is in another version; later, at COMMIT, it has moved.
        BadPrecondition: the text is no tag (400), or there is none, or ``*`` (428).
        ConfigurationError: as of :func:`verify_scope`.
    """
    own = _session("expect", session, scope)
    sent = sent_tags(repr(scope), etag)
    version = read_version(own, scope)
    tags = etags.of_scope(scope)
    if version not in tags.named(sent):
        entry = entry_of_scope(scope, demanded=True)
        error = report(PreconditionFailed([entry], message_of([entry])))
        error.etag = tags.tag(version)
        raise error
    compared(sent)
    verify_version(own, scope, version, demanded=True)


def lock_scope(session: AnySession, scope: Scope) -> None:
    """Lock the scope: no other transaction that changes it commits until ours ends.

    :func:`optilock.lock` with a session calls it. It waits for another transaction that has locked
    or is committing the scope. The rows that are read afterwards are those of now.

    Raises:
        ConcurrencyError: the transaction has verified an older version before.
        ConfigurationError: as of :func:`verify_scope`.
    """
    own = _session("lock", session, scope)
    session_record(own).note_locks()
    verify_version(own, scope, lock_version(own, scope), demanded=False, locked=True)


def _session(call: str, session: AnySession, scope: Scope) -> Session:
    """Return the watched session; refuse another one, and anything but a scope."""
    found = given_session(session, call, f"await optilock.asyncio.{call}(session, scope)")
    if not isinstance(scope, Scope):
        raise ConfigurationError(
            f"{call}(session, scope) got {describe(scope)} as its scope: pass"
            " Booking.scope(room_id=7), of a class with __version_scopes__. Nothing was sent."
        )
    if not is_watched(found):
        raise ConfigurationError(
            f"{call}(session, {scope!r}) got a session that is not watched, so COMMIT would not"
            " check the scope: use a unit of work, or optilock.watch() on the session factory."
            " Nothing was sent."
        )
    owner = session_record(found).owner
    if owner is not None and owner.read_only:
        raise ConfigurationError(
            f"{call}(session, {scope!r}) in a unit with read_only=True: a check at COMMIT locks the"
            " scope's row, which a read-only transaction cannot do, and its reads are of one moment"
            " without it. Remove the call, or read_only=True. Nothing was sent."
        )
    return found
