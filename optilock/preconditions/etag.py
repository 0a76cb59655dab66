"""The version of a loaded row as a strong ETag.

::

    page = session.get_one(Page, 7)
    response.headers["ETag"] = etag_of(page)          # '"3"'

The text changes with every write of the row and with nothing else, so it is a strong validator
(RFC 9110 section 8.8.1). It is that of the version *loaded*: what the object's values belong to,
not what may be stored by now. Edits that are not flushed do not change it.

A :class:`~optilock.tokens.counter.Counter` begins at 1 again when a row is deleted and inserted
again under the same key, so an old tag can come to match the new row, and its tags tell clients how
often a row was written. With :class:`~optilock.tokens.unique.Unique` neither happens.
"""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from urllib.parse import quote
from uuid import UUID

from sqlalchemy import inspect
from sqlalchemy.orm import InstanceState, Mapper

from optilock.errors import ConfigurationError, described
from optilock.mapped.facts import facts

__all__ = ["etag_of", "etag_text"]


def etag_of(obj: object) -> str:
    """The strong ETag of a loaded row, quotes included. Sends no SQL.

    With ``Counter`` a row that is deleted and inserted again may repeat a tag; with ``Unique`` it
    never does. Raises ``ConfigurationError`` when there is no version to tell: the object is not
    stored yet or is deleted, its version is not loaded (after a commit, unless the session has
    ``expire_on_commit=False``), it is NULL, or its class has none.
    """
    state = _state_of(obj)
    key = _version_attribute(state.mapper)
    name = state.class_.__name__
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
    if version is None:
        raise ConfigurationError(
            f"The version of this {name} is NULL, and NULL is not a version: give the row one with"
            " an UPDATE, and declare the column NOT NULL."
        )
    return etag_text(version, name)


def etag_text(version: Any, name: str) -> str:
    """The strong ETag of a version of the class ``name``."""
    return f'"{_opaque(version, name)}"'


_NOT_LOADED = object()


def _state_of(obj: object) -> InstanceState[Any]:
    state = inspect(obj, raiseerr=False)
    if not isinstance(state, InstanceState):
        raise ConfigurationError(
            "etag_of() takes an object of a mapped class that a session has loaded, not"
            f" {described(obj)}."
        )
    return state


def _version_attribute(mapper: Mapper[Any]) -> str:
    if mapper.version_id_col is None:
        raise ConfigurationError(
            f"{mapper.class_.__name__} has no version, so there is nothing to make an ETag of: give"
            " the class one (optilock.Versioned, with a token that has a column: Counter())."
        )
    return facts(mapper).token


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
