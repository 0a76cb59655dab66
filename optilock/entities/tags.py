"""The versions of a row that a client demands, read from its tags.

``if_match`` is a strong entity tag with its two quotes, several in a list or a tuple (such as the
``versions`` that :func:`optilock.preconditions.rfc9110.required` finds), or ``*``. Text is always a
tag. A program passes a version of its own as ``Version(3)``, so that no number in a client's JSON
is taken for one.

A tag that no row of the class can have names no version, and a weak tag never matches (RFC 9110
section 8.8.3.2): the row is then in another version, or missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Mapper

from optilock._mapped import facts
from optilock.conditions.request import STAR, Tag, compared, tags
from optilock.errors import BadPrecondition, ConfigurationError, PreconditionRequired, describe
from optilock.preconditions.entity_tags import RowTags, sent_tags


@dataclass(frozen=True)
class Version:
    """A version that the program itself has read, for ``if_match``."""

    value: Any


def demanded_versions(call: str, row: RowTags, if_match: Any) -> tuple[Any, ...] | None:
    """Return the versions that ``if_match`` names; ``None`` for any.

    Raises:
        PreconditionRequired: ``if_match`` is missing.
        BadPrecondition: it is no tag.
        ConfigurationError: a ``Version`` cannot be a version of the class.
    """
    mapper = row.mapper
    if if_match is None:
        raise PreconditionRequired(
            f"{call}() of {mapper.class_.__name__} needs if_match: the ETag of the version that was"
            ' read, or "*" for the last writer to win (RFC 6585 section 3). Nothing was sent.'
        )
    if hasattr(if_match, "to_header"):  # werkzeug.datastructures.ETags
        if_match = STAR if if_match.star_tag else sent_tags(mapper.class_.__name__, if_match)
    if isinstance(if_match, str) and if_match == STAR:
        compared()
        return None
    if isinstance(if_match, Version):
        return (_typed(mapper, call, if_match.value),)
    given = _listed(if_match)
    bare = tuple(_typed(mapper, call, one.value) for one in given if isinstance(one, Version))
    sent = [_one_tag(call, "if_match", one) for one in given if not isinstance(one, Version)]
    strong = [one.opaque for one in sent if not one.weak]
    if sent or not given:
        compared(strong)
    return tuple(dict.fromkeys((*bare, *row.named(strong))))


def _listed(given: Any) -> Any:
    return given if isinstance(given, (list, tuple)) else (given,)


def _one_tag(call: str, name: str, given: Any) -> Tag:
    found = tags(f"The {name} of {call}()", given) if isinstance(given, str) else ()
    if found == STAR or len(found) != 1:
        raise BadPrecondition(
            f"{call}() got an {name} that is not one ETag: send the tag as it was received, with"
            ' its two quotes, "abc"; several as a list; or * alone (RFC 9110 section 8.8.3).'
            " Nothing was sent."
        )
    return found[0]


def _typed(mapper: Mapper[Any], call: str, value: Any) -> Any:
    try:
        kind: Any = facts(mapper).version.type.python_type
    except NotImplementedError:  # a type of the application
        kind = object
    if value is None or isinstance(value, bool) or not isinstance(value, kind):
        raise ConfigurationError(
            f"{call}() got Version() of {describe(value)}, which no version of"
            f" {mapper.class_.__name__} can be: give the version as it was read. Nothing was sent."
        )
    return value


def only_if_absent(call: str, if_none_match: Any) -> bool:
    """Return whether the row must not exist (``if_none_match="*"``).

    Raises:
        BadPrecondition: something else is demanded.
    """
    if if_none_match not in (None, STAR):
        raise BadPrecondition(
            f'{call}() takes if_none_match="*" alone, which inserts and changes nothing. To write a'
            " row in the version that was read, name that in if_match of replace() or merge()."
            " Nothing was sent."
        )
    if if_none_match is not None:
        compared()
    return if_none_match is not None


def exclude_named(
    call: str, row: RowTags, wanted: tuple[Any, ...] | None, if_none_match: Any
) -> tuple[Any, ...] | None:
    """Return the ``wanted`` versions that ``if_none_match`` does not name, by weak comparison.

    Raises:
        BadPrecondition: ``if_none_match`` is no tag, or any version is wanted.
    """
    if if_none_match is None or if_none_match == ():
        return wanted
    if wanted is None:
        raise _no_condition(call)
    tags = [_one_tag(call, "if_none_match", one).opaque for one in _listed(if_none_match)]
    named = row.named(tags)
    return tuple(one for one in wanted if one not in named)


def refuse_star(call: str) -> None:
    """Refuse ``*`` for a delete, which has nothing to do where it holds.

    Raises:
        BadPrecondition: ``call`` is a delete.
    """
    if call == "delete":
        raise _no_condition(call)


def _no_condition(call: str) -> BadPrecondition:
    error = BadPrecondition(
        f"{call}() only writes a stored row, in a version that was read: name that in if_match."
        " if_none_match can only exclude ETags from it. Nothing was sent."
    )
    error.detail = (
        "This request changes a stored row, and If-None-Match alone names no version: send If-Match"
        " with the ETag that you have read. Nothing was looked at."
    )
    return error


def refuse_if_match(call: str, if_match: Any) -> None:
    """Refuse ``if_match`` for an operation that takes no version.

    Raises:
        ConfigurationError: it was given.
    """
    if if_match is not None:
        raise ConfigurationError(
            f"{call}() takes no if_match, because it also writes unread rows. With an ETag use"
            " replace() or merge(). Nothing was sent."
        )
