"""Rows that must be in the version that was seen, until the transaction ends.

::

    page = session.get_one(Page, 7)
    expect(page, request.headers.get("If-Match"))      # '"gM0kXw2f.3"', as etag_of(page) gave it
    page.title = "New"
    session.commit()

If the loaded row is in another version, :func:`expect` raises ``PreconditionFailed`` at once and
sends no SQL. Otherwise the version is a condition for the rest of the transaction: no
``on_conflict`` or ``on_delete`` resolves a conflict of the row. If the row moves before our write,
or before COMMIT after we only read it, the error is ``PreconditionFailed`` too, and it is not
retried. After our own write in the same transaction the row is ours, and the condition is met.

Text is always a tag with its quotes, or a list of tags
(:mod:`optilock.preconditions.version_demands`). A tag of another row is another version, and a weak
tag never matches. ``*`` names no version, and other text is no tag: both raise ``BadPrecondition``
with the status to answer. A program that knows the version itself writes
``expect(page, version=3)``.

:func:`verify` makes sure that a row that was only read is the same at COMMIT::

    with unit_of_work(SessionLocal) as session:
        doctor = session.get_one(Doctor, 7)
        verify(doctor)                              # only read: must be unchanged at COMMIT
        session.get_one(Shift, 3).doctor_id = doctor.id

    with unit_of_work(SessionLocal, verify_reads=True) as session:    # every versioned row it reads
        ...

A version stops a lost update of its own row, and not a decision that was based on another row. So
the rows that were read and not written are read again before COMMIT, after the last flush: one
SELECT a table, in the order of the keys, with a shared lock that holds until COMMIT (FOR SHARE on
PostgreSQL, LOCK IN SHARE MODE on MariaDB; SQLite has one lock, for writing, which is taken). Rows
that come before all that the last flush writes are read ahead of it, so that two transactions which
each write a row that the other one verifies do not deadlock. If a
row has moved, the error is ``ConcurrencyError`` with an entry whose action is ``"verify"``. No
resolver runs, even if the row is written: a decision cannot be merged. :func:`optilock.retry` may
run the unit again.

The version that counts is the one that the transaction saw *first*. An object that was dropped and
read again in a newer version has moved, also when it is written afterwards, and so has a refreshed
one. Rows that we delete, or write with that version in their WHERE, are not read again.

Not covered: rows that a query did not return (phantoms), counts, sums and other conditions on many
rows, values read without their object (``select(Doctor.name)``), and classes without any token,
which ``verify_reads`` skips. A class that only compares values is refused: it has no version to
verify. :func:`optilock.serializable` covers all of this.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, overload

from sqlalchemy import Select
from sqlalchemy.orm import Mapper, Session, scoped_session
from sqlalchemy.orm.exc import ObjectDeletedError

from optilock._mapped import HINT_ADD_TOKEN, Identity, State, facts, identity_of, place_of
from optilock._mapping.scopes import Scope
from optilock._undocumented.statements import is_in_greenlet
from optilock._watched.guard.promises import promise, promises_of
from optilock._watched.rows.entries import (
    Attempt,
    attempt_of,
    entry_of,
    loaded_or_stored_values,
    side_as_read,
)
from optilock._watched.rows.seen import is_never_read
from optilock._watched.rows.stored import Values, read_stored
from optilock._watched.rows.unknown_versions import (
    hold_found_version,
    unseen_row_error,
    version_held_before,
)
from optilock._watched.session.connections import connection_to_write
from optilock._watched.session.record import is_watched, settle_row
from optilock._watched.writes.send import expected_version
from optilock.errors import (
    Action,
    Computed,
    ConcurrencyError,
    ConfigurationError,
    PreconditionFailed,
)
from optilock.events import report
from optilock.preconditions.client_values import check_names, normal_values, values_by_column
from optilock.preconditions.entity_tags import (
    PLAIN,
    ETags,
    refuse_null_version,
    state_of,
    tag_of_entry,
)
from optilock.preconditions.scopes import AnySession, expect_scope, verify_scope
from optilock.preconditions.version_demands import (
    MISSING_ROW,
    NOT_GIVEN,
    VersionDemand,
    demanded_version,
    matches,
    mismatch_reason,
    read_demand,
)
from optilock.resolvers.rules import client_wins


def expect(
    obj: Any,
    etag_or_version: object = NOT_GIVEN,
    etag: object = NOT_GIVEN,
    *,
    version: object = NOT_GIVEN,
    seen: Mapping[str, Any] | None = None,
    etags: ETags = PLAIN,
) -> None:
    """Demand that the row of ``obj`` is in this version, now and until our transaction ends.

    ``expect(session, scope, etag)`` demands it of a scope
    (``optilock.preconditions.scopes``).

    Args:
        obj: an object of a watched session.
        etag_or_version: the client's strong ETags as :func:`optilock.etag_of` returns them, quotes
            included, in a text, or as werkzeug or :mod:`optilock.preconditions.rfc9110` has parsed
            them. A value that is no text is the version itself: an integer, a UUID, a datetime,
            bytes. A number in a client's JSON is bound to no row, so pass on only text from a
            client: ``expect(page, str(body["etag"]))``.
        version: the version itself; here also a string, and the text of a UUID or a datetime.
        seen: attribute -> value that the client had loaded. With it the entry of a refused edit
            separates the changes of the client and of the other writer. It does nothing else.

    Raises:
        PreconditionFailed: the loaded version is another one, the tag is of another row, or the
            row is missing; later, at the flush or COMMIT, the row has moved since.
        BadPrecondition: the client's text is no tag (400), or there is none, or ``*`` (428).
        BadEntity: a name in ``seen`` is no column, or may not be edited.
        ConfigurationError: the object is new, deleted, detached, in a session that is not watched,
            or of a class without a version; or the version is of a type that it cannot have.
    """
    if isinstance(etag_or_version, Scope):
        expect_scope(obj, etag_or_version, None if etag is NOT_GIVEN else etag, etags=etags)
        return
    state, session = state_in_watched_session(obj, "expect")
    known = seen_values(state.mapper, seen)
    want = read_demand("expect", state.class_.__name__, etag_or_version, version)
    loaded = loaded_version(state, "expect")
    if loaded is MISSING_ROW or not matches(state, loaded, want):
        raise version_error(session, state, loaded, want, seen=known)
    promise_to_client(session, state, loaded)


def promise_to_client(session: Session, state: State, version: Any) -> None:
    """Promise the version that a client has demanded; an error has the tag stored then."""
    tag = partial(PLAIN.tag, state.mapper, identity_of(state))
    promise(session, state, version, demanded=True, tag=tag)


def state_in_watched_session(
    obj: object, name: str, *, versioned: bool = True
) -> tuple[State, Session]:
    """Return the state of a stored object, by default a versioned one, and its watched session.

    Raises:
        ConfigurationError: it is no such object; ``name`` is the function that was called.
    """
    state = state_of(obj, name)
    what = f"{name}() got an object of {state.class_.__name__}"
    if versioned and not facts(state.mapper).token:
        raise ConfigurationError(
            f"{what}, whose rows have no version: {HINT_ADD_TOKEN}, or run the work with"
            " optilock.serializable()."
        )
    session = state.session if state.persistent else None
    if session is None:
        raise ConfigurationError(f"{what} {_not_stored(state)}")
    if not is_watched(session):
        raise ConfigurationError(
            f"{what}, of a session that is not watched and would not check it later: use a"
            " unit of work, or optilock.watch() on the session factory."
        )
    return state, session


def _not_stored(state: State) -> str:
    if state.transient or state.pending:
        return (
            "that is not stored yet, so it has no version: it takes objects that a session has"
            " loaded or flushed."
        )
    is_so = "deleted" if state.deleted or state.was_deleted else "detached"
    return (
        f"that is {is_so}: no session would check it. Load the row in the session that does the"
        " work, or use optilock.apply()."
    )


def loaded_version(state: State, name: str) -> Any:
    """Return the version of the object's values; read it now if the object is expired.

    ``MISSING_ROW`` if the row is missing. ``name`` is the function that was called.
    """
    token = facts(state.mapper).token
    if token not in state.dict and needs_await(state.session, state):
        raise ConfigurationError(
            f"The version of this {state.class_.__name__} is not loaded: a commit or expire() has"
            f" expired it. Write await session.refresh(obj) before {name}()."
        )
    if token not in state.dict and is_never_read(state):
        return _version_of_copy(state, name)
    try:
        return refuse_null_version(expected_version(state, token), state.class_.__name__)
    except ObjectDeletedError:
        return MISSING_ROW


def _version_of_copy(state: State, name: str) -> Any:
    """Return the version of a copy that was made before its transaction had an outcome.

    The transaction was committed if the row has the copy's version and values: the same number
    alone may be another writer's.

    Raises:
        ConfigurationError: the row has other values, so the copy's version is unknown.
    """
    mapper, known, identity = state.mapper, facts(state.mapper), identity_of(state)
    version, session = version_held_before(state), state.session
    assert session is not None
    if version is not None:
        connection = connection_to_write(session, mapper)
        stored = read_stored(connection, mapper, [identity], lock=False).get(identity)
        if stored is None:
            return MISSING_ROW
        held = side_as_read(state, version)
        if all(known.same(one, held[one], stored[one]) for one in held):
            hold_found_version(state, version)
            return version
    raise unseen_row_error(mapper, identity, f"be given to {name}()")


def needs_await(session: Session | None, state: State) -> bool:
    """Return whether reading needs an ``await``, which a plain function cannot do."""
    if session is None or not session.get_bind(state.mapper).dialect.is_async:
        return False
    return not is_in_greenlet()


def version_error(
    session: Session,
    state: State,
    version: Any,
    want: VersionDemand,
    *,
    changes: Mapping[str, Any] = MappingProxyType({}),
    seen: Values,
) -> PreconditionFailed:
    """Return the error of a row in another version than the demanded one; listeners have it."""
    mapper = state.mapper
    identity = identity_of(state)
    action: Action = "delete" if state.obj() in session.deleted else "verify"
    if action == "verify" and (state.modified or changes):
        action = "update"
    if version is MISSING_ROW:
        return missing_row_error(mapper, identity, action, want, changes, seen)
    ours = attempt_of(state, action, version)
    stored = row_as_loaded(session, state, ours.original)
    seen = normal_values(mapper, seen, stored)
    sent = normal_values(mapper, values_by_column(mapper, changes), {**stored, **seen}, seen)
    edits = {**ours.changes, **sent}
    current = {**ours.current, **seen, **edits}
    original = {facts(mapper).token: demanded_version(mapper, identity, want), **seen}
    attempt = Attempt(
        mapper, identity, action, original, current, changed_values(mapper, edits, seen)
    )
    entry = entry_of(attempt, stored, demanded=True)
    error = PreconditionFailed([entry], mismatch_reason(entry, mapper, want))
    error.etag = tag_of_entry(entry)
    return report(error)


def missing_row_error(
    mapper: Mapper[Any],
    identity: Identity,
    action: Action,
    want: VersionDemand,
    changes: Mapping[str, Any],
    seen: Values,
) -> PreconditionFailed:
    """Return the error of a missing row; listeners have it."""
    edits = normal_values(mapper, values_by_column(mapper, changes), seen, seen)
    original = {facts(mapper).token: demanded_version(mapper, identity, want), **seen}
    current, changes = {**original, **edits}, changed_values(mapper, edits, seen)
    attempt = Attempt(mapper, identity, action, original, current, changes)
    return report(PreconditionFailed([entry_of(attempt, None, demanded=True)]))


def seen_values(mapper: Mapper[Any], seen: Mapping[str, Any] | None) -> Values:
    """Return the values that a client had loaded, by the attributes of columns.

    Raises:
        BadEntity: a name is no column that a client can change.
    """
    if seen is None:
        return {}
    check_names(mapper, seen, "seen")
    return values_by_column(mapper, seen)


def changed_values(mapper: Mapper[Any], edits: Values, seen: Values) -> Values:
    """Return the edits whose values differ from those that the client had seen."""
    known = facts(mapper)
    return {
        name: value
        for name, value in edits.items()
        if name not in seen
        or isinstance(value, Computed)
        or not known.same(name, value, seen[name])
    }


def row_as_loaded(session: Session, state: State, loaded: Values) -> Values:
    """Return the row as this transaction sees it."""
    return (
        loaded if needs_await(session, state) else loaded_or_stored_values(session, state, loaded)
    )


@overload
def verify(obj: object) -> None: ...
@overload
def verify(obj: AnySession, scope: Scope) -> None: ...
@overload
def verify(obj: AnySession, scope: Scope, statement: Select[Any]) -> list[Any]: ...
def verify(
    obj: Any, scope: Scope | None = None, statement: Select[Any] | None = None
) -> list[Any] | None:
    """Promise that the row of ``obj``, which is only read, has the same version at COMMIT.

    ``verify(session, scope)`` promises it of a scope, and ``verify(session, scope, select(...))``
    returns the rows that were read after it (``optilock.preconditions.scopes``).

    Raises:
        ConcurrencyError: the row is missing; later, at the flush or COMMIT, it has moved since the
            transaction first saw it.
        ConfigurationError: the object is new, deleted, detached, in a session that is not watched,
            or of a class without a version.
    """
    if scope is not None or isinstance(obj, (Session, scoped_session)):
        return verify_scope(obj, scope, statement)  # type: ignore[arg-type]
    state, session = state_in_watched_session(obj, "verify")
    version = loaded_version(state, "verify")
    if version is MISSING_ROW:
        attempt = Attempt(state.mapper, identity_of(state), "verify", {}, {}, {})
        raise report(ConcurrencyError([entry_of(attempt, None)]))
    promise(session, state, version, demanded=False)
    return None


# -- the last write wins ---------------------------------------------------------------------------


def overwrite(obj: object) -> None:
    """Let our writes of the row of ``obj`` win until the transaction ends. Sends no SQL.

    ::

        setting = session.get_one(Setting, "theme")
        overwrite(setting)                        # a faster writer is overwritten
        setting.value = "dark"
        session.commit()

    It acts as :func:`optilock.client_wins` for one object, and ``on_conflict`` does not apply to
    it: our changed columns replace theirs, columns that only they have changed keep their values, a
    missing row is inserted again, and a row that we delete is deleted. Without a faster writer it
    costs nothing, because the write names the version that was read, as every write does.

    Raises:
        ConfigurationError: ``expect`` or ``verify`` has promised the version of the row in this
            transaction, which is the opposite; or the object is new, deleted, detached, or in a
            session that is not watched.
    """
    state, session = state_in_watched_session(obj, "overwrite", versioned=False)
    if place_of(state) in promises_of(session):
        raise ConfigurationError(
            f"overwrite() got {state.class_.__name__} {identity_of(state)!r}, whose version was"
            " promised in this transaction: expect() and verify() say that the row must not have"
            " moved, overwrite() that it does not matter. Leave one of them out."
        )
    settle_row(session, place_of(state), client_wins)
