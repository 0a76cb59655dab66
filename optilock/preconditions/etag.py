"""The version of a row as a strong ETag, and what a client demands as a version.

::

    page = session.get_one(Page, 7)
    response.headers["ETag"] = etag_of(page)          # '"gM0kXw2f.3"'

The tag names the row as well as its version, so that of another row never passes for it:
:mod:`optilock.preconditions.entity_tags` says how, and how to sign tags.

What a client demands is text, and text is a tag, always: with its two quotes, alone or in a list as
``If-Match`` has it, as werkzeug has parsed that, or as :mod:`optilock.preconditions.rfc9110` has.
It is compared character by character (strong comparison, RFC 9110 section 8.8.3.2), so a weak one,
``W/"gM0kXw2f.3"``, never matches (section 13.1.1). A text that is no tag is
:class:`~optilock.errors.BadPrecondition`, with the status to answer.

A version itself is for programs: ``version=3``, or a value that is no text. It has to be of the
version's type; as ``version=`` the text of a UUID or of a time will do. Anything else is the
program's mistake, ``ConfigurationError``, or the client's where JSON may have brought it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy.orm import Mapper

from optilock.conditions.request import compared
from optilock.errors import BadPrecondition, ConfigurationError, Entry
from optilock.mapped import Identity, State, facts, identity_of
from optilock.preconditions.entity_tags import PLAIN, sent_tags
from optilock.watched.statements.version import ALSO, kind_of

#: Instead of the version of a row that is not there any more.
GONE: Any = object()
NOT_GIVEN: Any = object()


def etag_of(obj: object) -> str:
    """The strong ETag of a loaded row, quotes included. Sends no SQL.

    With ``Counter`` and ``RowVersion`` a row that is deleted and inserted again may repeat a tag;
    with ``Unique`` it never does. Raises ``ConfigurationError`` when there is no version to tell:
    the object is not stored yet or is deleted, its version is not loaded (after a commit, unless
    the session has ``expire_on_commit=False``), it is NULL, or its class has none.
    """
    return PLAIN.of(obj)


# -- what a client demands -------------------------------------------------------------------------


@dataclass(frozen=True)
class Wanted:
    """Tags that a client has sent, or a version that a program has named."""

    call: str
    tags: tuple[str, ...] | None = None
    version: Any = None
    #: Was it said that this is a version, so that no client can have meant it for a tag?
    said: bool = False


def wanted(call: str, cls: str, given: object, version: object = NOT_GIVEN) -> Wanted:
    """What the function ``call`` was given for a row of ``cls``, before anything is read.

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
        return Wanted(call, version=version, said=True)
    if given is None or isinstance(given, (str, tuple)) or hasattr(given, "to_header"):
        return Wanted(call, sent_tags(cls, given))
    return Wanted(call, version=given)


def matches(state: State, version: Any, want: Wanted) -> bool:
    """Is ``version``, which ``state`` has loaded, what was wanted?

    Raises:
        ConfigurationError, BadPrecondition: what was wanted is not of the version's type.
    """
    if version is GONE:
        return False
    if want.tags is not None:
        found = PLAIN.tag(state.mapper, identity_of(state), version) in want.tags
        if found:
            compared(want.tags)
        return found
    token = facts(state.mapper).token
    return facts(state.mapper).same(token, version, _as_version(state, version, want))


def _as_version(state: State, version: Any, want: Wanted) -> object:
    """The version that was named, in the type of the loaded one, or an error."""
    given = want.version
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
    elif isinstance(parsed, (type(version), *ALSO.get(type(version), ()))) and (
        isinstance(parsed, bool) is isinstance(version, bool)
    ):
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


#: What a body may bring in the place of a text.
_OF_JSON = (bool, int, float, list, dict)


def _parsed(parse: Any, text: str) -> Any:
    try:
        return parse(text)
    except ValueError:
        return text


def demanded(mapper: Mapper[Any], identity: Identity, want: Wanted) -> object:
    """The version that was wanted of this row; the tags themselves where they name none of it."""
    if want.tags is None:
        return want.version
    named = PLAIN.named(mapper, identity, want.tags)
    return named[0] if named else ", ".join(want.tags)


def not_of_row(entry: Entry[Any], mapper: Mapper[Any], want: Wanted) -> str | None:
    """What is to be said of tags of which none names a version of the row; ``None``: one does."""
    if want.tags is None or PLAIN.named(mapper, entry.identity, want.tags):
        return None
    why = _OF_ANOTHER_ROW if want.tags else _WEAK
    return (
        f"{entry.row}: {why}. Nothing was written. Read the row again, decide anew, and send the"
        " tag that comes with it, as etag_of() gives it."
    )


_WEAK = 'only weak tags (W/"...") were sent, which never match (RFC 9110 section 13.1.1)'
_OF_ANOTHER_ROW = "no tag that was sent names a version of this row"
