"""The texts of a form: a value as a field of HTML shows it, and the value that comes back from it.

A browser changes the text of a field before it sends it (HTML, 4.10.5.1 and 4.10.11). So an
untouched field may come back as another text, and its kind decides whether it is the same
(:func:`note_of`, :func:`is_untouched`):

=============================================  =================================================
kind                                           an untouched text comes back
=============================================  =================================================
every kind                                     with U+FFFD for NUL, and CRLF as line ends
``text``, ``search``, ``tel``, ``password``    without line ends
``email``, ``url``                             without line ends, and without blanks at its ends
``color``                                      in lower case; as black if it is no colour
``number``                                     empty if it is no number
``range``                                      as the nearest number that the field has
``date``, ``time``, ``datetime-local``         empty if it is none
=============================================  =================================================

:func:`text_of_value` writes a value so that its field can hold it, and :func:`value_of_text` is the
inverse. A moment with a zone is shown in the zone of the form, without an offset.
"""

from __future__ import annotations

import re
from base64 import b64encode
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, tzinfo
from enum import Enum
from hashlib import sha256
from typing import Any

import sqlalchemy as sa
from sqlalchemy.types import NULLTYPE, TypeEngine

from optilock._columns.kinds import KINDS as COLUMNS
from optilock._columns.kinds import TIME, find_value, row_of, stored_name
from optilock.resolvers.diff3 import normalize_line_ends

#: The kinds of fields: those of HTML, and ``multiple``, of which one name has several values.
KINDS = (
    *("text", "textarea", "hidden", "search", "tel", "password", "email", "url", "color"),
    *("number", "range", "date", "time", "datetime-local"),
    *("select", "radio", "checkbox", "multiple"),
)


@dataclass(frozen=True)
class Range:
    """The numbers of an ``<input type="range">``; a browser shows the nearest one."""

    min: float = 0
    max: float = 100
    step: float = 1


# -- a value as its field shows it -----------------------------------------------------------------


def text_of_value(value: Any, zone: tzinfo = UTC, kind: TypeEngine[Any] = NULLTYPE) -> str:
    """Return the text of a value, as a field of HTML holds it.

    It is empty for a moment that the clocks of the zone do not show: one of its years is none.
    """
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case Enum():
            return stored_name(value, kind)
        case datetime():
            try:
                local = value if value.tzinfo is None else value.astimezone(zone)
            except OverflowError:
                return ""
            return f"{local.date().isoformat()}T{_clock(local.time())}"
        case time():
            return _clock(value)
        case date():
            return value.isoformat()
        case str():
            return str.__str__(value)
    return str(value)


def _clock(value: time) -> str:
    """Return the shortest text: a browser sends no other one."""
    if value.microsecond // 1000:
        return value.strftime("%H:%M:%S") + f".{value.microsecond // 1000:03}".rstrip("0")
    return value.strftime("%H:%M:%S" if value.second else "%H:%M")


def printable_text(text: str) -> str:
    """Return the text as a page can carry it: half of a surrogate pair has no UTF-8."""
    return _HALF_PAIR.sub("\ufffd", text)


_HALF_PAIR = re.compile("[\ud800-\udfff]")


# -- what a browser makes of it --------------------------------------------------------------------


def note_of(kind: str, shown: str | list[str], limits: Range | None = None) -> list[Any]:
    """Return what a page has to keep of the text of one of its fields, as JSON has it.

    A long text is kept as the digests of the texts in which it may come back.
    """
    note: list[Any] = [kind, shown]
    if limits is not None:
        note.append([limits.min, limits.max, limits.step])
    if isinstance(shown, str) and len(shown) > _LONG:
        texts = _parsed(shown), _sanitised(kind, _parsed(shown), limits or Range())
        note[1] = {"digests": sorted({*map(_digest, texts)})}
    return note


def is_untouched(note: list[Any], sent: str | list[str]) -> bool:
    """Return whether the field that a page has noted sends these texts untouched."""
    kind, shown, *limits = note
    if isinstance(shown, list):
        return isinstance(sent, list) and [*map(_parsed, shown)] == [*map(_parsed, sent)]
    if isinstance(sent, list):
        return False
    sent = _parsed(sent)
    if isinstance(shown, dict):
        return _digest(sent) in shown["digests"]
    shown = _parsed(shown)
    field_limits = Range(*limits[0]) if limits else Range()
    return sent == shown or _canonical(kind, sent) == _sanitised(kind, shown, field_limits)


#: Characters: a longer text is kept as its digests.
_LONG = 64


def _digest(text: str) -> str:
    return b64encode(sha256(text.encode()).digest()[:12]).decode()


def _parsed(text: str) -> str:
    return normalize_line_ends(printable_text(text).replace("\0", "\ufffd"))


def _canonical(kind: str, sent: str) -> str:
    """Return one text for all texts of the same moment; any other text as it is."""
    return (kind in _MOMENTS and _moment(kind, sent)) or sent


def _sanitised(kind: str, text: str, limits: Range) -> str:
    """Return the text that the field has, by HTML's value sanitisation algorithm."""
    match kind:
        case "textarea" | "hidden" | "select" | "radio" | "checkbox" | "multiple":
            return text
        case "date" | "time" | "datetime-local":
            return _moment(kind, text)
        case "number":
            return text if _HTML_NUMBER.fullmatch(text) else ""
        case "range":
            return _nearest(text, limits)
        case "color":
            return text.lower() if re.fullmatch("#[0-9a-fA-F]{6}", text) else "#000000"
    one_line = text.replace("\n", "")
    return one_line.strip(" \t\f") if kind in ("email", "url") else one_line


_HTML_NUMBER = re.compile(r"-?(\d+(\.\d+)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_MOMENTS: dict[str, Any] = {
    "date": sa.Date(),
    "time": sa.Time(),
    "datetime-local": sa.DateTime(),
}


def _moment(kind: str, text: str) -> str:
    """Return the text that a browser sends of this moment; an empty one if it is none."""
    found = find_value(text, _MOMENTS[kind])
    return "" if getattr(found, "tzinfo", None) else text_of_value(found)


def _nearest(text: str, limits: Range) -> str:
    number = float(text) if _HTML_NUMBER.fullmatch(text) else (limits.min + limits.max) / 2
    steps = round((min(max(number, limits.min), limits.max) - limits.min) / limits.step)
    found = limits.min + steps * limits.step
    found = found if found <= limits.max else found - limits.step
    return str(int(found)) if found == int(found) else repr(found)


# -- and the value that a text stands for ----------------------------------------------------------


def value_of_text(
    column: sa.Column[Any], text: str, known: Any = None, zone: tzinfo | None = None
) -> Any:
    """Return the value that a text stands for; the text itself if it stands for none.

    Args:
        known: the value that the field showed. A text with fewer digits of a moment stands for it.
        zone: the zone of a text without an offset, for columns with a zone.
    """
    kind: Any = column.type
    if is_text(kind) or not is_read(kind):
        return text
    names = getattr(kind, "enums", ())
    word = text if text in names else text.strip()
    if not word and word not in names:
        return None if column.nullable else text
    found = find_value(word, kind)
    if isinstance(found, datetime):
        found = _moment_of(found, kind, known, zone)
    return text if found is None else _as_exact(found, known, word)


def is_text(kind: TypeEngine[Any]) -> bool:
    """Return whether every text is a value of this type."""
    return isinstance(kind, sa.String) and not isinstance(kind, sa.Enum)


def is_read(kind: TypeEngine[Any]) -> bool:
    """Return whether a text of a form can stand for a value of this type."""
    known = row_of(COLUMNS, kind)
    has_offset = isinstance(kind, sa.Time) and kind.timezone  # which no field of HTML holds
    return known is not None and known.field is not None and not has_offset


def _moment_of(found: datetime, kind: Any, known: Any, zone: tzinfo | None) -> datetime | None:
    """Return the moment as the column has it; ``None`` if its zone is unknown, or skips it."""
    is_bare = known.tzinfo is None if isinstance(known, datetime) else not kind.timezone
    if zone is None or not kind.timezone:
        return found if is_bare is (found.tzinfo is None) else None
    try:
        moment = (found if found.tzinfo else found.replace(tzinfo=zone)).astimezone(UTC)
        if found.tzinfo is None and moment.astimezone(zone).replace(tzinfo=None) != found:
            return None
    except OverflowError:
        return None
    return moment.replace(tzinfo=None) if is_bare else moment


def _as_exact(found: Any, known: Any, word: str) -> Any:
    """Return the known value if a field that shows fewer digits of it would show ``found``."""
    if not isinstance(found, (datetime, time)) or not isinstance(known, type(found)):
        return found
    clock = TIME.search(word)
    shown = "" if clock is None else clock[0]
    places = len(shown.partition(".")[2])
    micro = known.microsecond - known.microsecond % 10 ** (6 - places)
    less = known.replace(microsecond=micro)
    if shown.count(":") == 1:
        less = known.replace(second=0, microsecond=0)
    return known if found == less else found
