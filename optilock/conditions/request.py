"""The request that is served here, and whether its condition was compared.

A client that sends ``If-Match`` wants the write only if the row is unchanged. A server that ignores
the field overwrites changes that the client has not seen, and answers 200. So COMMIT of a versioned
row raises :class:`~optilock.errors.ConditionNotCompared` if the request has a condition that was
not compared.

The web layers do this by themselves (:mod:`optilock.web`). For another framework::

    with serving("PUT", request.headers.items()):       # around all that the request does
        ...

``expect``, ``apply``, the entity operations and leases compare with the tags of the request, and so
do ``Precondition.judge`` and ``evaluate``. Only a comparison that holds counts, so an error that is
caught lets nothing through. Where you compare in another way, say so (:func:`compared`). A write's
``If-Match``, ``If-None-Match`` and ``If-Unmodified-Since`` are conditions; what a read is asked for
decides about its answer, and not about rows.

Its fields are read as section 13.1.1 of RFC 9110 writes them: ``*`` alone, or tags with commas
between them, each with its two quotes. Anything else raises
:class:`~optilock.errors.BadPrecondition`, and the message names the wrong character. A comma and a
backslash are characters of a tag like others, and so are bytes above 127 (``obs-text``), so nothing
is ever split at a comma. Reading takes one look at each character. A field of more than 8 KiB, or
of more than 64 tags, is not read at all, or not to its end.

A request is known where it is served, in its tasks, and in threads that are given its context
(``asyncio.to_thread``, the thread pools of the frameworks). A ``threading.Thread``, an executor, or
another process knows of none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Literal, NamedTuple, Protocol

from optilock.errors import BadPrecondition

__all__ = [
    "LONGEST",
    "MATCH",
    "MODIFIED",
    "MOST",
    "NONE_MATCH",
    "STAR",
    "UNMODIFIED",
    "Fields",
    "Oversized",
    "Request",
    "Tag",
    "call_before_first",
    "compared",
    "conditions_possible",
    "current_request",
    "date",
    "mark_not_met",
    "register_finder",
    "sent_fields",
    "serving",
    "tags",
]

# -- header fields ---------------------------------------------------------------------------------

#: Names and raw values of header fields, of one line each; those of other fields do not matter.
Fields = (
    Iterable[tuple[str | bytes, str | bytes | None]]
    | Mapping[str, str]
    | Mapping[str, str | None]
    | Mapping[bytes, bytes]
)
MATCH, NONE_MATCH = "If-Match", "If-None-Match"
UNMODIFIED, MODIFIED = "If-Unmodified-Since", "If-Modified-Since"
_NAMES: dict[str | bytes, str] = {
    key: name
    for name in (MATCH, NONE_MATCH, UNMODIFIED, MODIFIED)
    for key in (name.lower(), name.lower().encode())
}
_DATES = (UNMODIFIED, MODIFIED)

#: Characters of a field, all of its lines together.
LONGEST = 8192
#: Tags of a field.
MOST = 64
#: The field value ``*``.
STAR: Literal["*"] = "*"

# Possessive, so that what fails has been looked at once. ``next`` is what stands between a tag and
# the one after it, or the end: lists may have empty elements (section 5.6.1.2).
_NEXT = r"(?P<next>[ \t]*+(?:,[ \t,]*+|\Z))?"
_TAG = re.compile(rf'(W/)?("[\x21\x23-\x7e\x80-\xff]*+"){_NEXT}')
_BARE = re.compile(rf"(?!\*)([\x21\x23-\x2b\x2d-\x7e\x80-\xff]++){_NEXT}")
_GAP = re.compile(r"[ \t,]*+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_BEGUN = re.compile(r'(?:W/)?"[\x21\x23-\x7e\x80-\xff]*+')


class Oversized(BadPrecondition):
    """A field is longer than optilock reads; reads are refused for that, too."""


class Tag(NamedTuple):
    """An entity tag. ``opaque`` has its quotes, as ``opaque-tag`` of section 8.8.3 has."""

    opaque: str
    weak: bool = False


def sent_fields(fields: Fields, reads: bool) -> dict[str, str]:
    """The four fields as far as they were sent, the lines of each joined (section 5.3).

    Control bytes are no text at all, so a write with one is refused, in whichever field it is.
    """
    lines: dict[str, list[str]] = {}
    length: dict[str, int] = {}
    for name, value in fields.items() if isinstance(fields, Mapping) else fields:
        known = _NAMES.get(name.strip().lower())
        if known is None or value is None:
            continue
        length[known] = length.get(known, -len(", ")) + len(", ") + len(value)
        if length[known] > LONGEST:
            raise Oversized(f"{known} is longer than {LONGEST} characters.")
        line = _text(value)
        if not reads and known in _DATES and _CONTROL.search(line):
            raise BadPrecondition(f"{known} has a control byte.")
        lines.setdefault(known, []).append(line)
        if len(lines[known]) > MOST:
            raise Oversized(f"{known} has more than {MOST} lines.")
    return {known: ", ".join(each) for known, each in lines.items()}


def _text(given: str | bytes) -> str:
    return given if isinstance(given, str) else bytes(given).decode("latin-1")


def tags(name: str, value: str, *, bare: bool = False) -> Literal["*"] | tuple[Tag, ...]:
    """The tags of a field, at least one; or :data:`STAR`.

    Args:
        name: of the field, for the message.
        bare: read tags without quotes, too, as Azure does.

    Raises:
        BadPrecondition: it is no such list; :class:`Oversized`: it is too long.
    """
    if len(value) > LONGEST:
        raise Oversized(f"{name} is longer than {LONGEST} characters.")
    value = value.strip(" \t")
    if value == STAR:
        return STAR
    found: list[Tag] = []
    at, end = _gap(value, 0), len(value)
    while at < end:
        read = _TAG.match(value, at)
        if read is not None:
            found.append(Tag(read[2], read[1] is not None))
        else:
            read = _BARE.match(value, at) if bare else None
            if read is None:
                raise _unreadable(name, value, at)
            found.append(Tag(f'"{read[1]}"'))
        at = read.end()
        if read["next"] is None:
            raise _unreadable(name, value, _gap(value, at))
        if len(found) > MOST:
            raise Oversized(f"{name} has more than {MOST} tags.")
    if not found:
        raise BadPrecondition(f"{name} is empty. {_HOW}")
    return tuple(found)


def _gap(value: str, at: int) -> int:
    """Return the place at which the next tag, or a mistake, begins."""
    gap = _GAP.match(value, at)
    assert gap is not None
    return gap.end()


_HOW = (
    'Write each tag as the ETag field had it, with its two quotes, "abc", with commas between'
    " several, or * alone (RFC 9110 section 8.8.3)."
)


def _unreadable(name: str, value: str, at: int) -> BadPrecondition:
    """Return the error that names the wrong character of the field."""
    begun = _BEGUN.match(value, at)
    if begun is not None and not _TAG.match(value, at):
        at = begun.end()
        if at == len(value):
            return BadPrecondition(f"{name} ends before the second quote of a tag. {_HOW}")
    if value[at] == STAR:
        return BadPrecondition(f"{name} has * beside something else. {_HOW}")
    return BadPrecondition(f"{name} cannot be read: character {at + 1} is {value[at]!a}. {_HOW}")


_DAYS = "Mon|Tue|Wed|Thu|Fri|Sat|Sun"
_LONG_DAYS = "Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday"
_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_MONTH = rf"(?P<month>{'|'.join(_MONTHS)})"
_TIME = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)"
#: The three forms of section 5.6.7, which every recipient has to accept.
_FORMS = [
    re.compile(form, re.ASCII)
    for form in (
        rf"(?:{_DAYS}), (?P<day>\d\d) {_MONTH} (?P<year>\d\d\d\d) {_TIME} GMT",
        rf"(?:{_LONG_DAYS}), (?P<day>\d\d)-{_MONTH}-(?P<year>\d\d) {_TIME} GMT",
        rf"(?:{_DAYS}) {_MONTH} (?P<day>[ \d]\d) {_TIME} (?P<year>\d\d\d\d)",
    )
]


def date(value: str) -> datetime | None:
    """Return the moment of an HTTP date; ``None`` for other texts, which are to be ignored."""
    if len(value) > LONGEST:
        return None
    value = value.strip(" \t")
    read = next((found for form in _FORMS if (found := form.fullmatch(value))), None)
    if read is None:
        return None
    try:
        return datetime(
            _year(read["year"]),
            _MONTHS.index(read["month"]) + 1,
            int(read["day"]),
            int(read["hour"]),
            int(read["minute"]),
            # A leap second is the 61st; datetime has none.
            59 if read["second"] == "60" else int(read["second"]),
            tzinfo=UTC,
        )
    except ValueError:
        return None


def _year(digits: str) -> int:
    """Two digits mean the past where they would be more than 50 years ahead (section 5.6.7)."""
    if len(digits) == 4:
        return int(digits)
    now = datetime.now(UTC).year
    year = now - now % 100 + int(digits)
    return year - 100 if year > now + 50 else year


# -- the request -----------------------------------------------------------------------------------

_SAFE = ("GET", "HEAD", "OPTIONS", "TRACE", "CONNECT")
_OF_WRITES = (MATCH, NONE_MATCH, UNMODIFIED)


class OpenWrites(Protocol):
    """The writes of one open transaction for a request."""

    def tables(self) -> Collection[str]:
        """Return the versioned tables that it has written, or is to write."""


class Request:
    """One request; the same object in all of its threads and tasks."""

    __slots__ = ("compared", "lost", "method", "sent", "writing")

    #: The conditions of a write, by the names of their fields.
    sent: dict[str, str]
    #: The open transactions that may write for it.
    writing: list[OpenWrites]
    #: The tables that sessions have written for it, or meant to, and closed without COMMIT.
    lost: tuple[str, ...]

    def __init__(self, method: str, fields: Fields) -> None:
        self.method = method.upper()
        self.sent, self.writing, self.lost = {}, [], ()
        if self.method not in _SAFE:
            try:
                sent = sent_fields(fields, False)
            except BadPrecondition:  # the comparison raises it
                self.sent = {"a condition that cannot be read": ""}
            else:
                self.sent = {name: sent[name] for name in _OF_WRITES if name in sent}
                if MATCH in sent or date(sent.get(UNMODIFIED, "")) is None:
                    self.sent.pop(UNMODIFIED, None)  # to be ignored (section 13.1.4)
        #: Whether its condition was compared.
        self.compared = False
        if self.sent and not conditions_possible:
            _there_may_be()

    @property
    def is_ignored(self) -> bool:
        """Whether a condition was sent and not compared so far."""
        return bool(self.sent) and not self.compared

    def unstored(self) -> tuple[str, ...]:
        """Return the tables that were written for it without COMMIT so far, or at all."""
        return (*self.lost, *(name for one in self.writing for name in one.tables()))

    @property
    def forbids_change(self) -> bool:
        """Whether the only condition is that the row does not exist, as an INSERT checks itself."""
        return list(self.sent) == [NONE_MATCH]


_here: ContextVar[Request | None] = ContextVar("optilock_request", default=None)
#: Functions that find the request of frameworks with a context of their own.
_finders: list[Callable[[], Request | None]] = []


#: Whether a request with a condition may be served. To read it is no call of Python.
conditions_possible: list[bool] = []
#: Called before the first request with a condition may be served.
_first: list[Callable[[], None]] = []


def call_before_first(call: Callable[[], None]) -> None:
    """Call this, once, before the first request with a condition may be served."""
    _first.append(call)


def _there_may_be() -> None:
    """Requests with a condition: from here on they are looked for."""
    if not conditions_possible:
        for call in _first:
            call()
        conditions_possible.append(True)


def current_request() -> Request | None:
    """The request that is served here."""
    found = _here.get()
    if found is None:
        for find in _finders:
            found = find()
            if found is not None:
                break
    return found


def register_finder(find: Callable[[], Request | None]) -> None:
    """Call ``find`` for the request from now on, if :func:`serving` has set none."""
    if find not in _finders:
        _finders.append(find)
        _there_may_be()


def compared(tags: Iterable[str] | None = None) -> None:
    """The condition of the request holds, or these ``tags`` do, if they are of its condition.

    Tags out of a body are no answer to another tag in ``If-Match``.
    """
    request = current_request()
    if request is not None and request.is_ignored:
        match = request.sent.get(MATCH)
        known = tags if match is not None and match.strip() != "*" else None
        named = [tag.strip('"') for tag in known or ()]
        request.compared = not named or any(name in (match or "") for name in named)


def mark_not_met() -> None:
    """The condition of the request is not true, so that nothing is to be written for it."""
    request = current_request()
    if request is not None:
        request.compared = False


@contextmanager
def serving(request: str | Request, fields: Fields = ()) -> Iterator[Request]:
    """Serve a request, by its method and its raw field lines, until the block is left."""
    served = Request(request, fields) if isinstance(request, str) else request
    token = _here.set(served)
    try:
        yield served
    finally:
        _here.reset(token)
