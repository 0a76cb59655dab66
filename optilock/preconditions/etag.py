"""The version of a row as a strong ETag, and what a client demands as a version.

::

    page = session.get_one(Page, 7)
    response.headers["ETag"] = etag_of(page)          # '"3"'

The text changes with every write of the row and with nothing else, so it is a strong validator
(RFC 9110 section 8.8.1). It is that of the version *loaded*: what the object's values belong to,
not what may be stored by now. Edits that are not flushed do not change it.

A :class:`~optilock.tokens.counter.Counter` begins at 1 again when a row is deleted and inserted
again under the same key, so an old tag can come to match the new row, and its tags tell clients how
often a row was written. With :class:`~optilock.tokens.unique.Unique` neither happens.

What a client demands is a tag, or the version itself. A tag is compared character by character
(strong comparison, RFC 9110 section 8.8.3.2), so a weak one, ``W/"3"``, never matches (section
13.1.1). Anything else is taken for a value, and has to be of the version's type; for a UUID or a
time its text will do. What can be no version of the class is refused: nobody could have seen it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from urllib.parse import quote, unquote
from uuid import UUID

from sqlalchemy import inspect
from sqlalchemy.orm import InstanceState, Mapper

from optilock.errors import ConfigurationError, described
from optilock.mapped import GIVE_ONE, State, facts

__all__ = [
    "GONE",
    "check_version",
    "demanded",
    "etag_of",
    "matches",
    "not_null",
    "state_of",
]

#: entity-tag of RFC 9110 section 8.8.3, in what a header can carry.
_TAG = re.compile(r'(W/)?"([\x21\x23-\x7e\x80-\xff]*)"')
#: Instead of the version of a row that is not there any more.
GONE: Any = object()
_NOT_LOADED = object()


def etag_of(obj: object) -> str:
    """The strong ETag of a loaded row, quotes included. Sends no SQL.

    With ``Counter`` a row that is deleted and inserted again may repeat a tag; with ``Unique`` it
    never does. Raises ``ConfigurationError`` when there is no version to tell: the object is not
    stored yet or is deleted, its version is not loaded (after a commit, unless the session has
    ``expire_on_commit=False``), it is NULL, or its class has none.
    """
    state = state_of(obj, "etag_of")
    key, name = facts(state.mapper).token, state.class_.__name__
    if not key:
        raise ConfigurationError(
            f"{name} has no version, so there is nothing to make an ETag of: {GIVE_ONE}."
        )
    if state.was_deleted:
        raise ConfigurationError(f"This {name} is deleted: a row that is gone has no ETag.")
    if not state.has_identity:
        raise ConfigurationError(
            f"This {name} is not stored yet, so it has no version: flush the session first."
        )
    # What was loaded, also if something has been written over it in memory.
    version = state.committed_state.get(key, state.dict.get(key, _NOT_LOADED))
    if version is _NOT_LOADED:
        raise ConfigurationError(
            f"The version of this {name} is not loaded: a commit has expired it, or it was"
            " deferred. Take the ETag before the commit, call session.refresh(), or create the"
            " sessions with expire_on_commit=False."
        )
    return _etag_text(not_null(version, name), name)


def not_null(version: Any, name: str) -> Any:
    """The version of a row of the class ``name``, if it is one."""
    if version is None:
        raise ConfigurationError(
            f"The version of this {name} is NULL, and NULL is not a version: give the row one with"
            " an UPDATE, and declare the column NOT NULL."
        )
    return version


def _etag_text(version: Any, name: str) -> str:
    """The strong ETag of a version of the class ``name``."""
    return f'"{_opaque(version, name)}"'


def state_of(obj: object, call: str) -> State:
    """The state of a mapped object, which the function ``call`` was given."""
    state = inspect(obj, raiseerr=False)
    if isinstance(state, InstanceState):
        return state
    raise ConfigurationError(
        f"{call}() takes an object of a mapped class that a session has loaded, not"
        f" {described(obj)}."
    )


def _opaque(version: Any, name: str) -> str:
    """The version in characters that any parser of ETags lets pass.

    RFC 9110 section 8.8.3 allows more, the comma and the backslash among them, and there are
    programs that split at the one and unescape the other.
    """
    match version:
        case bool():
            pass
        case UUID():
            return version.hex
        case int() | float() | Decimal():
            return str(version)
        case bytes():
            return version.hex()
        case datetime():
            moment = version if version.tzinfo is None else version.astimezone(UTC)
            return moment.isoformat()
        case str():
            return quote(version, safe=":+=@")
    raise ConfigurationError(
        f"The version of {name} is of type {type(version).__name__}, which has no agreed text: use"
        " a number, a UUID, bytes, a datetime or a string as the version."
    )


# -- what a client demands -------------------------------------------------------------------------


def check_version(call: str, cls: str, given: object) -> None:
    """Refuse what can never be a version of ``cls``, before anything is read.

    Raises:
        ConfigurationError: ``given`` names no version; ``call`` is the function that got it.
    """
    if given is None:
        raise ConfigurationError(
            f"{call}() got None as the version of {cls}: a client that names no version expects"
            f" nothing. Refuse the request (428, RFC 6585 section 3), or do not call {call}()."
        )
    if given == "*":
        raise ConfigurationError(
            f"{call}() got '*' as the version of {cls}: in If-Match it says only that the row"
            f" exists (RFC 9110 section 13.1.1), and names no version: do not call {call}()."
        )
    if isinstance(given, str) and '"' in given and not _TAG.fullmatch(given):
        raise ConfigurationError(
            f"{call}() got a text as the version of {cls} that is not one ETag (RFC 9110 section"
            " 8.8.3): write the tag as etag_of() gives it, with its two quotes; of a list of tags,"
            " try each."
        )


def matches(call: str, state: State, version: Any, given: object) -> bool:
    """Is ``given`` a tag or a value of ``version``, which ``state`` has loaded?

    Raises:
        ConfigurationError: it cannot be a version of the class; ``call`` is who got it.
    """
    if version is GONE:
        return False
    tag = _TAG.fullmatch(given) if isinstance(given, str) else None
    if tag is not None:
        return tag[0] == _etag_text(version, state.class_.__name__)
    token = facts(state.mapper).token
    return facts(state.mapper).same(token, version, _as_version(call, state, version, given))


def _as_version(call: str, state: State, version: Any, given: object) -> object:
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
        f"{call}() got a value of type {type(given).__name__}, and the version of"
        f" {state.class_.__name__} is of type {type(version).__name__}: give the version as it was"
        " read, or the text of etag_of(), quotes included."
    )


_ALSO: dict[type, tuple[type, ...]] = {Decimal: (int,)}


def _parsed(parse: Any, text: str) -> Any:
    try:
        return parse(text)
    except ValueError:
        return text


def demanded(mapper: Mapper[Any], given: object) -> object:
    """The version that a tag stands for, or its text where that cannot be told."""
    tag = _TAG.fullmatch(given) if isinstance(given, str) else None
    if tag is None:
        return given
    try:
        kind: Any = facts(mapper).version.type.python_type
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
