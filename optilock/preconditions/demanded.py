"""The version that a client demands: a strong ETag, or the value itself.

A tag is compared character by character (strong comparison, RFC 9110 section 8.8.3.2), so a weak
one, ``W/"3"``, never matches (section 13.1.1). Anything else is taken for a value, and has to be
of the version's type; for a UUID or a time its text will do. What can be no version of the class
is refused: nobody could have seen it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import Any
from urllib.parse import unquote
from uuid import UUID

from sqlalchemy.orm import InstanceState, Mapper

from optilock.errors import ConfigurationError
from optilock.mapped.facts import facts
from optilock.preconditions.etag import etag_text

__all__ = ["GONE", "check_version", "demanded_version", "matches"]

State = InstanceState[Any]
#: entity-tag of RFC 9110 section 8.8.3, in what a header can carry.
_TAG = re.compile(r'(W/)?"([\x21\x23-\x7e\x80-\xff]*)"')
#: Instead of the version of a row that is not there any more.
GONE: Any = object()


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
        return tag[0] == etag_text(version, state.class_.__name__)
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
