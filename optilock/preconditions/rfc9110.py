"""May this request be performed? The conditions of RFC 9110 section 13, without any IO.

Before anything is read, :func:`required` says what must be true of the row, so that the UPDATE can
carry it in its WHERE::

    asked = required("PUT", [("If-Match", '"Kx3f9Q2a.7"')])
    asked.status            # None; 400 or 428 where the answer needs no look at the row
    asked.versions          # ('"Kx3f9Q2a.7"',): the row has to have one of these tags
    asked.exists            # If-Match: *, whatever the version
    asked.absent            # If-None-Match: *, insert only

With the state of the row in hand, :func:`evaluate` says what to answer::

    answer = evaluate("GET", request.headers.items(), etag=etag_of(page))
    answer.status           # None: do it; or 304, 400, 412, 428
    answer.reason           # a sentence for the client

Both go by the same rules, in the order of section 13.2.2. ``If-Match`` compares strongly and
``If-None-Match`` weakly. ``OPTIONS``, ``TRACE`` and ``CONNECT`` have no conditions; a method that
is not known is taken for one that writes.

**A write is never performed because a condition could not be read.** A malformed or an empty
``If-Match`` is 400, on a read too; so is a malformed ``If-None-Match`` of a write, while a read
with one is answered in full. Several lines of a field are one list. ``*`` beside tags is 400, and
so is a field of more than 8 KiB, 64 tags or 64 lines.

**A write needs a condition** (``require="if_match"``): without one that protects it is 428 (RFC
6585 section 3), and the row need not be looked at. What protects is ``If-Match`` and, for what is
to be created, ``If-None-Match: *``. Dates alone never do: two writes within a second have one date.
A POST that makes something new has nothing to name: ``require=None``. ``If-Match: *`` says in so
many words that the last writer wins; ``allow_star=False`` answers it with 428.

Two answers come from elsewhere and before: who may not (401, 403), and, as section 13.2.1 wants it,
what is not there (404), of a request that would not create it. 428 and 400 may come before 404:
that is our choice, because they need no look.

**Proxies** that compress write into tags: Apache's adds ``-gzip``, nginx makes ``"abc"`` into
``W/"abc"``, and with that ``If-Match`` never holds again. Name what yours does,
``proxies=("-gzip",)`` or ``proxies=("W/",)``, and it is taken off again; a tag of the application
must then not end so.

``profile="azure"`` has the rules of Azure's Blob service instead: tags without quotes are read too;
a write takes one condition, or a tag with its date (``If-Match`` with ``If-Unmodified-Since``,
``If-None-Match`` with ``If-Modified-Since``), where the tag decides, and no list;
``If-Modified-Since`` counts for writes; and a read holds if ``If-Match``, ``If-Unmodified-Since``
and one of the other two hold. What that service lets pass unread is refused here as well.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Literal

from optilock.conditions.fields import (
    MATCH,
    MODIFIED,
    NONE_MATCH,
    STAR,
    UNMODIFIED,
    Fields,
    Oversized,
    Tag,
    date,
    sent_fields,
    tags,
)
from optilock.conditions.request import compared
from optilock.errors import BadPrecondition, ConfigurationError

__all__ = ["Answer", "Fields", "Precondition", "evaluate", "required"]

Profile = Literal["rfc9110", "azure"]
Require = Literal["if_match"]

_READS = ("GET", "HEAD")
_WITHOUT_CONDITIONS = ("OPTIONS", "TRACE", "CONNECT")
#: What a write of Azure may carry.
_TOGETHER = ({MATCH, UNMODIFIED}, {NONE_MATCH, MODIFIED})
_WEAK = "W/"
_WEAK_ONLY = (
    f'{MATCH} has weak tags alone (W/"..."), which never match (RFC 9110 section 13.1.1): send the'
    " strong ETag that you have read."
)
_NEVER = f"{MATCH} and {NONE_MATCH} of the request never hold together."


@dataclass(frozen=True, slots=True)
class Answer:
    """What to answer: ``None`` for doing what is asked, or 304, 400, 412 or 428; and why."""

    status: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class Precondition:
    """What must be true of the row for a request to be performed: all of it.

    Without any of the fields the request asks for nothing (:attr:`unconditional`).
    """

    #: 400 or 428: that is the answer, whatever the row is; ``None`` where it depends on the row.
    status: int | None = None
    #: Why, in a sentence for the client.
    reason: str = ""
    #: The row has one of these tags, quotes included. Empty: no row has (they were weak).
    versions: tuple[str, ...] | None = None
    #: There is a row.
    exists: bool = False
    #: There is none.
    absent: bool = False
    #: The row has none of these tags, quotes included.
    unless: tuple[str, ...] = ()
    #: The row was not modified after this moment.
    unmodified_since: datetime | None = None
    #: The row was modified after this moment.
    modified_since: datetime | None = None
    #: Is it enough that one holds, ``unless`` or ``modified_since``?
    either: bool = False
    #: Is nothing written, so that the last three are answered with 304?
    reads: bool = False
    #: Why no row has one of the ``versions``, where there are none.
    none: str = field(default="", compare=False)

    @property
    def unconditional(self) -> bool:
        """Is nothing demanded, so that the request may be performed at once?"""
        return self == Precondition(reads=self.reads)

    def judge(
        self,
        *,
        etag: str | None,
        exists: bool = True,
        last_modified: str | datetime | None = None,
    ) -> Answer:
        """What to answer, the row being so."""
        answer = self._judged(etag, exists, last_modified)
        if answer.status in (None, 304):
            compared(self.versions)
        return answer

    def _judged(
        self, etag: str | None, exists: bool, last_modified: str | datetime | None
    ) -> Answer:
        if self.status is not None:
            return Answer(self.status, self.reason)
        tag, modified = _current(etag, exists), _moment(last_modified, exists)
        if (self.exists or self.versions is not None) and not exists:
            return Answer(412, f"{MATCH} demands what is not there.")
        # A weak tag has W/ in front and is among none: strong comparison, section 8.8.3.2.
        if self.versions is not None and tag not in self.versions:
            return Answer(412, self.none or f"{MATCH} names another version than the one stored.")
        if _after(modified, self.unmodified_since):
            return Answer(412, f"It was modified after {UNMODIFIED}.")
        named = self._is_named(tag, exists)
        known = modified is not None and self.modified_since is not None
        unmodified = known and not _after(modified, self.modified_since)
        if self.either and known and (self.absent or self.unless):
            named = unmodified = named and unmodified
        if named:
            return self._unwanted(f"{NONE_MATCH} names what is there.")
        if unmodified:
            return self._unwanted(f"It was not modified after {MODIFIED}.")
        return Answer(None, "Every precondition holds.")

    def _is_named(self, tag: str | None, exists: bool) -> bool:
        """Weak comparison, section 8.8.3.2."""
        if self.absent and exists:
            return True
        return tag is not None and tag.removeprefix(_WEAK) in self.unless

    def _unwanted(self, reason: str) -> Answer:
        return Answer(304 if self.reads else 412, reason)


def evaluate(
    method: str,
    fields: Fields,
    *,
    etag: str | None,
    exists: bool = True,
    last_modified: str | datetime | None = None,
    require: Require | None = "if_match",
    allow_star: bool = True,
    profile: Profile = "rfc9110",
    proxies: tuple[str, ...] = (),
) -> Answer:
    """What to answer to a request, the row being so.

    Args:
        fields: pairs of header name and raw value, a pair for each line; or a mapping.
        etag: the tag of the row as it is sent; ``None`` where it has none.
        exists: is there a row?
        last_modified: an HTTP date, or a datetime (UTC where it has no zone).
        require: ``None`` lets writes without a condition pass.
        allow_star: is ``If-Match: *`` a condition?
        profile: whose rules.
        proxies: what proxies on the way write into tags: ``"W/"`` and endings like ``"-gzip"``.

    Raises:
        ConfigurationError: ``etag`` or another argument is none that there is.
    """
    asked = required(
        method, fields, require=require, allow_star=allow_star, profile=profile, proxies=proxies
    )
    return asked.judge(etag=etag, exists=exists, last_modified=last_modified)


def required(
    method: str,
    fields: Fields,
    *,
    require: Require | None = "if_match",
    allow_star: bool = True,
    profile: Profile = "rfc9110",
    proxies: tuple[str, ...] = (),
) -> Precondition:
    """What a request demands of the row, before anything is read. Arguments: :func:`evaluate`."""
    _check(require, profile, proxies)
    if method in _WITHOUT_CONDITIONS:
        return Precondition()
    reads = method in _READS
    try:
        sent = sent_fields(fields, reads)
        if profile == "azure":
            asked = _azure(sent, reads, proxies)
        else:
            asked = _rfc9110(sent, reads, proxies)
    except BadPrecondition as error:
        return Precondition(error.status, str(error), reads=reads)
    return asked if reads else _protected(asked, require, allow_star)


def _check(require: object, profile: object, proxies: object) -> None:
    if require not in ("if_match", None):
        raise ConfigurationError(f"require={require!r}: write 'if_match', or None for no demand.")
    if profile not in ("rfc9110", "azure"):
        raise ConfigurationError(f"profile={profile!r}: there are 'rfc9110' and 'azure'.")
    if not isinstance(proxies, tuple) or not all(isinstance(p, str) and p for p in proxies):
        raise ConfigurationError(
            f"proxies={proxies!r}: write a tuple of what proxies write into tags, ('-gzip',), or"
            " ('W/',)."
        )


# -- the rules -------------------------------------------------------------------------------------


def _rfc9110(sent: dict[str, str], reads: bool, proxies: tuple[str, ...]) -> Precondition:
    """The order of section 13.2.2: a date counts only where its tag was not sent."""
    versions, exists = _match(sent, proxies, bare=False)
    unless, absent = _none_match(sent, reads, proxies, bare=False)
    return Precondition(
        none=_WEAK_ONLY if versions == () else "",
        versions=versions,
        exists=exists,
        absent=absent,
        unless=unless,
        unmodified_since=None if MATCH in sent else _date(sent, UNMODIFIED),
        modified_since=_date(sent, MODIFIED) if reads and NONE_MATCH not in sent else None,
        reads=reads,
    )


def _azure(sent: dict[str, str], reads: bool, proxies: tuple[str, ...]) -> Precondition:
    versions, exists = _match(sent, proxies, bare=True)
    unless, absent = _none_match(sent, reads, proxies, bare=True)
    if reads and exists and absent:
        raise BadPrecondition(f"{MATCH}: * and {NONE_MATCH}: * never hold together.")
    if not reads and len(sent) > 1 and set(sent) not in _TOGETHER:
        raise BadPrecondition(f"A write takes one condition, and not {' and '.join(sent)}.")
    if not reads and (len(versions or ()) > 1 or len(unless) > 1):
        raise BadPrecondition("A write takes one tag, and not a list.")
    dated = reads or len(sent) == 1
    return Precondition(
        none=_WEAK_ONLY if versions == () else "",
        versions=versions,
        exists=exists,
        absent=absent,
        unless=unless,
        unmodified_since=_date(sent, UNMODIFIED) if dated else None,
        modified_since=_date(sent, MODIFIED) if dated else None,
        either=reads,
        reads=reads,
    )


def _match(
    sent: dict[str, str], proxies: tuple[str, ...], *, bare: bool
) -> tuple[tuple[str, ...] | None, bool]:
    """The tags that are demanded, and whether anything may be there."""
    if MATCH not in sent:
        return None, False
    found = tags(MATCH, sent[MATCH], bare=bare)
    if found == STAR:
        return None, True
    read = [_as_sent_out(tag, proxies) for tag in found] if proxies else found
    return tuple(tag.opaque for tag in read if not tag.weak), False


def _none_match(
    sent: dict[str, str], reads: bool, proxies: tuple[str, ...], *, bare: bool
) -> tuple[tuple[str, ...], bool]:
    """The tags that must not be there, and whether nothing may be."""
    if NONE_MATCH not in sent:
        return (), False
    try:
        found = tags(NONE_MATCH, sent[NONE_MATCH], bare=bare)
    except Oversized:
        raise
    except BadPrecondition:
        if not reads:
            raise
        return (), False  # a read is answered in full
    if found == STAR:
        return (), True
    read = [_as_sent_out(tag, proxies) for tag in found] if proxies else found
    return tuple(tag.opaque for tag in read), False


def _as_sent_out(tag: Tag, proxies: tuple[str, ...]) -> Tag:
    """The tag without what proxies have written into it."""
    body = tag.opaque[1:-1]
    ending = next((p for p in proxies if p != _WEAK and body.endswith(p)), "")
    return Tag(f'"{body.removesuffix(ending)}"', tag.weak and _WEAK not in proxies)


def _date(sent: dict[str, str], name: str) -> datetime | None:
    """What is no date is ignored (sections 13.1.3 and 13.1.4)."""
    return date(sent[name]) if name in sent else None


def _protected(asked: Precondition, require: str | None, allow_star: bool) -> Precondition:
    """A write whose demand protects what is there, or 428."""
    if asked.versions and (asked.absent or asked.unless):
        # Both have to hold, so that whoever takes the versions alone ignores no tag.
        left = () if asked.absent else asked.versions
        left = tuple(tag for tag in left if tag not in asked.unless)
        asked = replace(asked, versions=left, none="" if left else _NEVER)
    if asked.exists and not allow_star:
        return replace(
            asked,
            status=428,
            reason=f"{MATCH}: * overwrites whatever is there: send the ETag that you have read.",
        )
    if require is None or asked.exists or asked.absent or asked.versions is not None:
        return asked
    return replace(
        asked,
        status=428,
        reason=f"Send {MATCH} with the ETag that you have read, or {NONE_MATCH}: * for something"
        " new. A date alone does not tell two writes of one second apart.",
    )


# -- what is there ---------------------------------------------------------------------------------

_ENTITY_TAG = re.compile(r'(?:W/)?"[\x21\x23-\x7e\x80-\xff]*"')


def _current(etag: str | None, exists: bool) -> str | None:
    if etag is None:
        return None
    if not isinstance(etag, str) or not _ENTITY_TAG.fullmatch(etag):
        raise ConfigurationError(
            "etag= takes an ETag as it is sent, quotes included, or None: etag_of(obj) makes one."
        )
    return etag if exists else None


def _moment(last_modified: str | datetime | None, exists: bool) -> datetime | None:
    """Last-Modified as it is sent: in whole seconds."""
    moment = date(last_modified) if isinstance(last_modified, str) else last_modified
    if moment is None:
        if last_modified is not None:
            raise ConfigurationError("last_modified= takes an HTTP date, a datetime, or None.")
        return None
    aware = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    return aware.replace(microsecond=0) if exists else None


def _after(modified: datetime | None, since: datetime | None) -> bool:
    return modified is not None and since is not None and modified > since
