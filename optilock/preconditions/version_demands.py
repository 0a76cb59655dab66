"""The version that a caller demands of a row: tags of a client, or a version of the program.

A client sends text, and text is always a tag: with its two quotes, alone or in a list as in
``If-Match``, or as parsed by werkzeug or :mod:`optilock.preconditions.rfc9110`. Tags are compared
character by character (strong comparison, RFC 9110 section 8.8.3.2), so a weak one,
``W/"gM0kXw2f.3"``, never matches (section 13.1.1). Other text is
:class:`~optilock.errors.BadPrecondition`, with the status to answer.

A program passes the version itself: ``version=3``, or a value that is no text. It must have the
version's type; for ``version=`` the text of a UUID or of a time works too. Anything else is the
program's mistake (``ConfigurationError``), or the client's if it may come from JSON.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy.orm import Mapper

from optilock._mapped import Identity, State, facts, identity_of
from optilock._watched.statements.version import ALSO_ACCEPTED, kind_of
from optilock.conditions.request import compared
from optilock.errors import BadPrecondition, ConfigurationError, Entry
from optilock.preconditions.entity_tags import PLAIN, sent_tags

#: Stands for the version of a missing row.
MISSING_ROW: Any = object()
NOT_GIVEN: Any = object()


@dataclass(frozen=True)
class VersionDemand:
    """Tags that a client has sent, or a version that the program has named."""

    call: str
    tags: tuple[str, ...] | None = None
    version: Any = None
    #: The version was given as ``version=``, so it cannot be a client's tag.
    said: bool = False


def read_demand(call: str, cls: str, given: object, version: object = NOT_GIVEN) -> VersionDemand:
    """Return the demand of a row of ``cls``, given to the function ``call``. Reads nothing.

    Raises:
        BadPrecondition: ``given`` is no tag, or names no version.
        ConfigurationError: both were given, or neither, or the version is ``None``.
    """
    if (given is NOT_GIVEN) is (version is NOT_GIVEN):
        raise ConfigurationError(
            f"{call}() takes either the tags that a client has sent for {cls}, or version=."
        )
    if version is None:
        raise ConfigurationError(
            f"{call}() got version=None for {cls}: give the version as it was read."
        )
    if version is not NOT_GIVEN:
        return VersionDemand(call, version=version, said=True)
    if given is None or isinstance(given, (str, tuple)) or hasattr(given, "to_header"):
        return VersionDemand(call, sent_tags(cls, given))
    return VersionDemand(call, version=given)


def matches(state: State, version: Any, want: VersionDemand) -> bool:
    """Return whether ``version``, which ``state`` has loaded, is the demanded one.

    Raises:
        ConfigurationError, BadPrecondition: the demanded version has another type.
    """
    if version is MISSING_ROW:
        return False
    if want.tags is not None:
        found = PLAIN.tag(state.mapper, identity_of(state), version) in want.tags
        if found:
            compared(want.tags)
        return found
    token = facts(state.mapper).token
    return facts(state.mapper).same(token, version, _as_version(state, version, want))


def _as_version(state: State, version: Any, want: VersionDemand) -> object:
    """Return the demanded version in the type of the loaded one, or raise an error."""
    given = parsed = want.version
    with suppress(ValueError):  # the error says what was given
        match version, given:
            case (bytes() | bytearray() | memoryview(), bytes() | bytearray() | memoryview()):
                return bytes(given)
            case (UUID(), str()):
                parsed = UUID(given)
            case (datetime(), str()):
                parsed = datetime.fromisoformat(given)
    if _is_of_type(parsed, version):
        return parsed
    name = state.class_.__name__
    if not want.said and isinstance(given, _OF_JSON):
        raise BadPrecondition(
            f"The version of {name} is not the text of an ETag: send the ETag that you have read,"
            " quotes included."
        )
    raise ConfigurationError(
        f"{want.call}() got {kind_of(parsed)}, and the version of {name} is"
        f" {kind_of(version)}: give the version as it was read, or the text of"
        " etag_of(), quotes included."
    )


def _is_of_type(found: Any, version: Any) -> bool:
    """Return whether both are of one type; a number is no bool, a time zone no naive time."""
    if isinstance(version, datetime) and isinstance(found, datetime):
        return (version.tzinfo is None) == (found.tzinfo is None)
    kinds = (type(version), *ALSO_ACCEPTED.get(type(version), ()))
    return isinstance(found, kinds) and isinstance(found, bool) is isinstance(version, bool)


#: The types of a JSON body that are no text.
_OF_JSON = (bool, int, float, list, dict)


def demanded_version(mapper: Mapper[Any], identity: Identity, want: VersionDemand) -> object:
    """Return the demanded version of this row; the tags themselves if they name none of it."""
    if want.tags is None:
        return want.version
    named = PLAIN.of_row(mapper, identity).named(want.tags)
    return named[0] if named else ", ".join(want.tags)


def mismatch_reason(entry: Entry[Any], mapper: Mapper[Any], want: VersionDemand) -> str | None:
    """Return why no tag names a version of the row; ``None`` if one does."""
    if want.tags is None or PLAIN.of_row(mapper, entry.identity).named(want.tags):
        return None
    why = _OF_ANOTHER_ROW if want.tags else _WEAK
    return (
        f"{entry.row}: {why}. Nothing was written. Read the row and decide again, and send its ETag"
        " as etag_of() returns it."
    )


_WEAK = 'only weak tags (W/"...") were sent, which never match (RFC 9110 section 13.1.1)'
_OF_ANOTHER_ROW = "no tag that was sent names a version of this row"
