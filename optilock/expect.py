"""Edit a row only if it still is what a client saw.

::

    page = session.get_one(Page, 7)
    expect(page, request.headers["If-Match"])          # '"3"', as etag_of(page) gave it
    page.title = "New"
    session.commit()

If the loaded row is another version, :func:`expect` raises ``PreconditionFailed`` at once and
sends no SQL. Otherwise the version is a condition for the rest of the transaction: the row is
never resolved, whatever ``on_conflict`` and ``on_delete`` say. If it moves before our write, or
before COMMIT when we only read it, the error is ``PreconditionFailed`` too, and it is not retried.
After our own write in the same transaction the row is ours and the condition is met.

A version is a strong ETag, quotes included, or the value itself. Tags are compared character by
character (strong comparison, RFC 9110 section 8.8.3.2), so a weak tag, ``W/"3"``, never matches
(section 13.1.1). ``*`` names no version, and text that is no tag cannot be one: both are refused,
as ``ConfigurationError``, which an HTTP handler answers with 400.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote
from uuid import UUID

from sqlalchemy import inspect
from sqlalchemy.orm import InstanceState, Mapper, Session
from sqlalchemy.orm.exc import ObjectDeletedError

from optilock.conflicts import Attempt, Values, attempt_of, entry_of, read_stored
from optilock.connections import connection_to_write
from optilock.entry import Action
from optilock.errors import ConfigurationError, PreconditionFailed
from optilock.etag import etag_text
from optilock.guard.hold import promise
from optilock.guard.look import expected_version
from optilock.guard.state import is_watched
from optilock.mapping.columns import columns_of, same
from optilock.versioned import token_attribute

__all__ = [
    "GONE",
    "check_version",
    "demanded_version",
    "expect",
    "failed",
    "loaded_version",
    "matches",
    "state_in_watched_session",
]

State = InstanceState[Any]
#: entity-tag of RFC 9110 section 8.8.3, in what a header can carry.
_TAG = re.compile(r'(W/)?"([\x21\x23-\x7e\x80-\xff]*)"')


def expect(obj: object, etag_or_version: object) -> None:
    """Demand that the row of ``obj`` is this version, now and until our transaction is over.

    ``etag_or_version`` is a strong ETag as :func:`optilock.etag_of` gives it, quotes included, or a
    version: an integer, a UUID or its text, a datetime or its ISO text, bytes, a string.

    Raises:
        PreconditionFailed: the loaded version is another one, or the row is gone; later, at the
            flush or COMMIT, the row has moved since.
        ConfigurationError: the object is new, deleted, detached, in a session that is not watched,
            or of a class without a version; or the argument is ``None``, ``*``, no tag, or of a
            type that this version cannot have.
    """
    state, session = state_in_watched_session(obj, "expect")
    check_version(state.class_.__name__, etag_or_version)
    version = loaded_version(state, "expect")
    if version is GONE or not matches(state, version, etag_or_version):
        raise failed(session, state, version, etag_or_version)
    promise(session, state, version, demanded=True)


#: Instead of the version of a row that is not there any more.
GONE: Any = object()


def state_in_watched_session(obj: object, name: str) -> tuple[State, Session]:
    """The state of a stored, versioned object and its watched session.

    Raises:
        ConfigurationError: it is not one; ``name`` is the function that was called.
    """
    state = inspect(obj, raiseerr=False)
    if not isinstance(state, InstanceState):
        kind = obj.__name__ if isinstance(obj, type) else type(obj).__name__
        raise ConfigurationError(
            f"{name}() got {kind}: it takes an object of a mapped class that a session has loaded."
        )
    cls = state.class_.__name__
    if token_attribute(state.mapper) is None:
        raise ConfigurationError(
            f"{name}() got a {cls}, whose rows have no version: give the class one"
            " (optilock.Versioned), or run the work with optilock.serializable()."
        )
    if state.transient or state.pending:
        raise ConfigurationError(
            f"{name}() got a {cls} that is not stored yet, so it has no version: it takes objects"
            " that a session has loaded or flushed."
        )
    session = state.session
    if session is None or not state.persistent:
        what = "deleted" if state.deleted or state.was_deleted else "detached"
        raise ConfigurationError(
            f"{name}() got a {cls} that is {what}: no session would check it. Load the row in the"
            " session that does the work, or use optilock.apply()."
        )
    if not is_watched(session):
        raise ConfigurationError(
            f"{name}() got a {cls} of a session that is not watched, where nobody would check it"
            " later: use a UnitOfWork, or optilock.watch() on the session factory."
        )
    return state, session


def check_version(cls: str, given: object) -> None:
    """Refuse what can never be a version of the class, before anything is read."""
    if given is None:
        raise ConfigurationError(
            f"expect() got None as the version of a {cls}: a client that names no version expects"
            " nothing. Refuse the request (428, RFC 6585 section 3), or do not call expect()."
        )
    if given == "*":
        raise ConfigurationError(
            f"expect() got '*' for a {cls}: in If-Match it says only that the row exists (RFC 9110"
            " section 13.1.1), and names no version. It does exist: do not call expect()."
        )
    if isinstance(given, str) and '"' in given and not _TAG.fullmatch(given):
        raise ConfigurationError(
            f"expect() got text for a {cls} that is not one ETag (RFC 9110 section 8.8.3): write"
            " the tag as etag_of() gives it, with its two quotes; of a list of tags, try each."
        )


def loaded_version(state: State, name: str) -> Any:
    """The version that the object's values belong to; read now if the object is expired.

    ``GONE`` where the row is; ``name`` is the function that was called.
    """
    token = token_attribute(state.mapper)
    assert token is not None
    session = state.session
    if token not in state.dict and session is not None and _must_wait(session, state):
        raise ConfigurationError(
            f"The version of this {state.class_.__name__} is not loaded: a commit or expire() has"
            f" expired it. Write await session.refresh(obj) before {name}()."
        )
    try:
        version = expected_version(state, token)
    except ObjectDeletedError:
        return GONE
    if version is None:
        raise ConfigurationError(
            f"The version of this {state.class_.__name__} is NULL, and NULL is not a version: give"
            " the row one with an UPDATE, and declare the column NOT NULL."
        )
    return version


def _must_wait(session: Session, state: State) -> bool:
    """Would reading need an ``await`` that a plain function cannot do?"""
    if not session.get_bind(state.mapper).dialect.is_async:
        return False
    from sqlalchemy.util.concurrency import in_greenlet  # there is greenlet: the driver needs it

    return not in_greenlet()


def matches(state: State, version: Any, given: object) -> bool:
    """Is ``given`` a tag or a value of ``version``, which ``state`` has loaded?"""
    if version is GONE:
        return False
    tag = _TAG.fullmatch(given) if isinstance(given, str) else None
    if tag is not None:
        return tag[0] == etag_text(version, state.class_.__name__)
    token = token_attribute(state.mapper)
    assert token is not None
    return same(columns_of(state.mapper)[token], version, _as_version(state, version, given))


def _as_version(state: State, version: Any, given: object) -> object:
    """``given`` in the type of ``version``, or an error."""
    match version, given:
        case (bytes() | bytearray() | memoryview(), bytes() | bytearray() | memoryview()):
            return bytes(given)
        case (UUID(), str()):
            parsed = _parsed(UUID, given)
        case (datetime(), str()):
            parsed = _parsed(datetime.fromisoformat, given)
        case _:
            parsed = given
    if isinstance(version, datetime) and isinstance(parsed, datetime):
        if (version.tzinfo is None) == (parsed.tzinfo is None):
            return parsed
    elif isinstance(parsed, (type(version), *_ALSO.get(type(version), ()))) and (
        isinstance(parsed, bool) is isinstance(version, bool)
    ):
        return parsed
    raise ConfigurationError(
        f"expect() got a {type(given).__name__} that cannot be a version of"
        f" {state.class_.__name__}, which is a {type(version).__name__}: give the version as it was"
        " read, or the text of etag_of(), quotes included."
    )


_ALSO: dict[type, tuple[type, ...]] = {Decimal: (int,)}


def _parsed(parse: Any, text: str) -> Any:
    try:
        return parse(text)
    except ValueError:
        return text


def failed(
    session: Session,
    state: State,
    version: Any,
    given: object,
    *,
    changes: Mapping[str, Any] = MappingProxyType({}),
) -> PreconditionFailed:
    """The error for another version than the one ``given``, which was meant for ``changes``."""
    token = token_attribute(state.mapper)
    assert state.key is not None and token is not None
    action: Action = "delete" if state.obj() in session.deleted else "verify"
    if action == "verify" and (state.modified or changes):
        action = "update"
    seen = {token: demanded_version(state.mapper, given)}
    attempt = Attempt(
        state.mapper, tuple(state.key[1]), action, seen, {**seen, **changes}, dict(changes)
    )
    if version is GONE:
        return PreconditionFailed([entry_of(attempt, None)])
    ours = attempt_of(state, action, version)
    ours.current.update(changes)
    ours.changes.update(changes)
    attempt = Attempt(state.mapper, ours.identity, action, seen, ours.current, ours.changes)
    return PreconditionFailed([entry_of(attempt, _as_loaded(session, state, ours.original))])


def demanded_version(mapper: Mapper[Any], given: object) -> object:
    """The version that a tag stands for, or its text where that cannot be told."""
    tag = _TAG.fullmatch(given) if isinstance(given, str) else None
    if tag is None:
        return given
    token = mapper.version_id_col
    assert token is not None
    try:
        kind: Any = token.type.python_type
        return _PARSERS[kind](tag[2])
    except (KeyError, ValueError, NotImplementedError):
        return tag[2]


_PARSERS: dict[type, Callable[[str], object]] = {
    int: int,
    UUID: UUID,
    bytes: bytes.fromhex,
    datetime: datetime.fromisoformat,
    str: unquote,
}


def _as_loaded(session: Session, state: State, loaded: Values) -> Values:
    """The row as this transaction sees it: as it was loaded, or read if a column is missing."""
    if loaded.keys() >= columns_of(state.mapper).keys() or _must_wait(session, state):
        return loaded
    assert state.key is not None
    identity = tuple(state.key[1])
    connection = connection_to_write(session, state.mapper)
    found = read_stored(connection, state.mapper, [identity], lock=False)
    return found.get(identity, loaded)
