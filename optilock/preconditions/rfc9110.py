"""The conditions of a request (RFC 9110 section 13), judged without any IO.

Before anything is read, :func:`required` returns the demands of the row, for the WHERE of an
UPDATE::

    asked = required("PUT", [("If-Match", '"Kx3f9Q2a.7"')])
    asked.status            # None; 400 or 428 where the answer needs no look at the row
    asked.versions          # ('"Kx3f9Q2a.7"',): the row has to have one of these tags
    asked.exists            # If-Match: *, any version
    asked.absent            # If-None-Match: *, insert only

With the state of the row in hand, :func:`evaluate` returns the answer::

    answer = evaluate("GET", request.headers.items(), etag=etag_of(page))
    answer.status           # None: do it; or 304, 400, 412, 428
    answer.reason           # a sentence for the client

Both apply the same rules, in the order of section 13.2.2. ``If-Match`` compares strongly and
``If-None-Match`` weakly. ``OPTIONS``, ``TRACE`` and ``CONNECT`` have no conditions; an unknown
method counts as one that writes.

**A write is never performed because a condition could not be read.** A malformed or an empty
``If-Match`` is 400, on a read too; so is a malformed ``If-None-Match`` of a write, while a read
with one is answered in full. Several lines of a field are one list. ``*`` beside tags is 400, and
so is a field of more than 8 KiB, 64 tags or 64 lines.

**A write needs a condition** (``require="if_match"``): without a protecting one the answer is 428
(RFC 6585 section 3), and the row is not read. ``If-Match`` protects and, for a new row,
``If-None-Match: *``. Dates alone do not: two writes within a second have one date. A POST that
makes something new has no version to name: ``require=None``. ``If-Match: *`` lets the last writer
win; ``allow_star=False`` answers it with 428.

Two answers come earlier, from elsewhere: 401 and 403 for a sender without permission, and, as
section 13.2.1 wants it, 404 for a missing resource that the request would not create. 428 and 400
may come before 404: that is our choice, because they need no reading.

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

from optilock.conditions.request import (
    MATCH,
    MODIFIED,
    NONE_MATCH,
    STAR,
    UNMODIFIED,
    Fields,
    Oversized,
    Tag,
    compared,
    date,
    sent_fields,
    tags,
)
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
    """An answer: ``None`` to perform the request, or 304, 400, 412 or 428; and the reason."""

    status: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class Precondition:
    """The demands of a request of its row; all of them must hold.

    Without any of the fields the request demands nothing (:attr:`unconditional`).
    """

    #: 400 or 428: the answer for every row; ``None`` if the answer depends on the row.
    status: int | None = None
    #: The reason, in a sentence for the client.
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
    #: One of ``unless`` and ``modified_since`` is enough.
    either: bool = False
    #: Nothing is written, so the last three are answered with 304.
    reads: bool = False
    #: The reason why no row has one of the ``versions``, if there are none.
    none: str = field(default="", compare=False)

    @property
    def unconditional(self) -> bool:
        """Whether nothing is demanded, so that the request may be performed at once."""
        return self == Precondition(reads=self.reads)

    def judge(
        self,
        *,
        etag: str | None,
        exists: bool = True,
        last_modified: str | datetime | None = None,
    ) -> Answer:
        """Return the answer for this state of the row. Arguments: :func:`evaluate`."""
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
        return self._not_matched(tag, modified, exists) or self._known(tag, modified, exists)

    def _not_matched(
        self, tag: str | None, modified: datetime | None, exists: bool
    ) -> Answer | None:
        """Return the answer if the row is not in a demanded version."""
        if (self.exists or self.versions is not None) and not exists:
            return Answer(412, f"{MATCH} needs a stored row, and there is none.")
        # A weak tag has W/ in front and is among none: strong comparison, section 8.8.3.2.
        if self.versions is not None and tag not in self.versions:
            return Answer(412, self.none or f"{MATCH} names another version than the one stored.")
        if _after(modified, self.unmodified_since):
            return Answer(412, f"It was modified after {UNMODIFIED}.")
        return None

    def _known(self, tag: str | None, modified: datetime | None, exists: bool) -> Answer:
        """Return the answer if the row is in an excluded version; otherwise that all holds."""
        named = self._is_named(tag, exists)
        known = modified is not None and self.modified_since is not None
        unmodified = known and not _after(modified, self.modified_since)
        if self.either and known and (self.absent or self.unless):
            named = unmodified = named and unmodified
        if named:
            return self._unwanted(f"{NONE_MATCH} excludes the stored version.")
        if unmodified:
            return self._unwanted(f"It was not modified after {MODIFIED}.")
        return Answer(None, "Every precondition holds.")

    def _is_named(self, tag: str | None, exists: bool) -> bool:
        """Compare weakly, section 8.8.3.2."""
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
    """Return the answer to a request for this state of the row.

    Args:
        fields: pairs of header name and raw value, a pair for each line; or a mapping.
        etag: the tag of the row as it is sent; ``None`` if it has none.
        exists: ``False`` if there is no row.
        last_modified: an HTTP date, or a datetime (UTC if it has no zone).
        require: ``None`` lets writes without a condition pass.
        allow_star: ``If-Match: *`` is a condition.
        profile: the rules of RFC 9110, or those of Azure's Blob service.
        proxies: additions of proxies to tags: ``"W/"`` and endings like ``"-gzip"``.

    Raises:
        ConfigurationError: ``etag`` or another argument is invalid.
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
    """Return the demands of a request, before anything is read. Arguments: :func:`evaluate`."""
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
    if not reads:
        _refuse_several(sent, versions or (), unless)
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


def _refuse_several(
    sent: dict[str, str], versions: tuple[str, ...], unless: tuple[str, ...]
) -> None:
    if len(sent) > 1 and set(sent) not in _TOGETHER:
        raise BadPrecondition(f"A write takes one condition, and not {' and '.join(sent)}.")
    if len(versions) > 1 or len(unless) > 1:
        raise BadPrecondition("A write takes one tag, and not a list.")


def _match(
    sent: dict[str, str], proxies: tuple[str, ...], *, bare: bool
) -> tuple[tuple[str, ...] | None, bool]:
    """Return the demanded tags, and whether any version will do."""
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
    """Return the tags that the row must not have, and whether there must be no row."""
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
    """Return the tag without the additions of proxies."""
    body = tag.opaque[1:-1]
    ending = next((p for p in proxies if p != _WEAK and body.endswith(p)), "")
    return Tag(f'"{body.removesuffix(ending)}"', tag.weak and _WEAK not in proxies)


def _date(sent: dict[str, str], name: str) -> datetime | None:
    """Return the date, or ``None``: other text is ignored (sections 13.1.3 and 13.1.4)."""
    return date(sent[name]) if name in sent else None


def _without_excluded(asked: Precondition) -> Precondition:
    """Remove excluded tags from the demanded ones, for code that reads the versions alone."""
    if not asked.versions or not (asked.absent or asked.unless):
        return asked
    left = () if asked.absent else tuple(t for t in asked.versions if t not in asked.unless)
    return replace(asked, versions=left, none="" if left else _NEVER)


def _protected(asked: Precondition, require: str | None, allow_star: bool) -> Precondition:
    """Return the demands of a write that protect the row, or 428."""
    asked = _without_excluded(asked)
    if asked.exists and not allow_star:
        return replace(
            asked,
            status=428,
            reason=f"{MATCH}: * overwrites any version: send the ETag that you have read.",
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
    """Return Last-Modified as it is sent: in whole seconds."""
    moment = date(last_modified) if isinstance(last_modified, str) else last_modified
    if moment is None:
        if last_modified is not None:
            raise ConfigurationError("last_modified= takes an HTTP date, a datetime, or None.")
        return None
    aware = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    return aware.replace(microsecond=0) if exists else None


def _after(modified: datetime | None, since: datetime | None) -> bool:
    return modified is not None and since is not None and modified > since
