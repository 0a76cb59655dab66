"""The fields of a form, and what each of them means when it comes back, in every framework.

The signed ``seen`` has, for each field that was on the page, the value and a note of the text that
was shown (:func:`optilock._columns.form_texts.note_of`). So it is known of each field what its
sender did:

========================================  ========================================================
a field comes back                        and means
========================================  ========================================================
with the text that was shown              no edit, in any form that its kind gives it
with another text                         an edit, in the type of its column
with another text, which is none of its   the form again (400), with the text
column
with the text of the page before          the form again (409): another user has changed it, and the
                                          page did not show that
empty                                     an edit: NULL, or an empty text
absent                                    no edit; of a ``checkbox`` off, of ``multiple`` no value
without a value: ``None``, or unset in    no edit if it was shown empty, and else the form again
a model of pydantic                       (400): it may be empty or absent
several times                             of ``multiple`` all; of a boolean the last one, which
                                          stands after a hidden ``false``; else refused (400)
but was not on the page                   the form again (409), unless it has no value
but the form does not know it, and it     the form again (409): the page is of a newer release
was on the page and was changed
neither on the page nor of the form       nothing: it is not read
========================================  ========================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, tzinfo
from enum import Enum
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.orm import Mapper

from optilock._columns.form_texts import (
    KINDS,
    Range,
    is_read,
    is_text,
    is_untouched,
    note_of,
    printable_text,
    text_of_value,
    value_of_text,
)
from optilock._columns.kinds import KINDS as COLUMNS
from optilock._columns.kinds import row_of
from optilock._columns.texts import Digest
from optilock._columns.values import describe_accepted
from optilock._mapped import facts
from optilock.errors import ConfigurationError
from optilock.preconditions.client_values import reason_to_refuse
from optilock.preconditions.signed_values import Seen
from optilock.resolvers.diff3 import normalize_line_ends

#: A value as the text of its field, and back; the second raises ``ValueError`` with a sentence.
Reader = tuple[Callable[[Any], Any], Callable[[Any], Any]]
#: What a field shows and sends: a text, or several of ``multiple``.
Text = str | list[str]

#: Keys of the notes of a page.
SHOWN, MINE, BEFORE, OPEN = "shown", "mine", "before", "open"


@dataclass(frozen=True)
class Field:
    """A field of a form: its kind, its texts and their values."""

    name: str
    kind: str
    column: sa.Column[Any]
    zone: tzinfo = UTC
    reader: Reader | None = None
    limits: Range | None = None

    def shown(self, value: Any) -> Text:
        """Return the text of a value, or the texts of ``multiple``."""
        if self.reader is not None:
            found = self.reader[0](value)
            return found if isinstance(found, str) else [*map(str, found)]
        if self.kind == "multiple":
            kind = _item_type(self.column)
            return [text_of_value(one, self.zone, kind) for one in value or ()]
        if self._has_zone and isinstance(value, datetime) and value.tzinfo is None:
            value = value.replace(tzinfo=UTC)  # a database without zones
        return text_of_value(value, self.zone, self.column.type)

    def note(self, shown: Text) -> list[Any]:
        """Return what a page keeps of a text that it shows."""
        return note_of(self.kind, shown, self.limits)

    def read(self, text: Text, known: Any = None) -> Any:
        """Return the value of a text that came back.

        Raises:
            ValueError: with a sentence; no value of the column has this text.
        """
        if self.reader is not None:
            return self.reader[1](text)
        if isinstance(text, list):
            if any("\0" in one or printable_text(one) != one for one in text):
                raise ValueError("it has a character that cannot be stored.")
            return [self._read_one(sa.Column(_item_type(self.column)), one, None) for one in text]
        if self.kind == "checkbox" and text not in ("", "false", "off", "0"):
            return True
        return self._read_one(self.column, text, known)

    def _read_one(self, column: sa.Column[Any], text: str, known: Any) -> Any:
        kind = column.type
        if is_text(kind):
            return text
        found = value_of_text(column, text, known, self.zone)
        if found is text and text not in getattr(kind, "enums", ()):
            if not text.strip():
                raise ValueError("it cannot be empty.")
            wanted = describe_accepted(kind) + (f" of {self.zone}" if self._has_zone else "")
            raise ValueError(f"“{shortened_text(text)}” is not {wanted}.")
        return found

    def given(self, value: Any) -> Any:
        """Return a value that came as it is, and not as a text: a moment is one of the zone.

        Raises:
            ValueError: with a sentence; JSON has another kind of value than the column.
        """
        kind = self.column.type
        if is_text(kind):
            raise ValueError("it is no text.")
        if isinstance(value, bool) and not isinstance(kind, sa.Boolean):
            raise ValueError("it is no value of this field.")
        if self._has_zone and isinstance(value, datetime) and value.tzinfo is None:
            return value.replace(tzinfo=self.zone).astimezone(UTC)
        return value

    @property
    def _has_zone(self) -> bool:
        return isinstance(self.column.type, sa.DateTime) and bool(self.column.type.timezone)


def shortened_text(text: str) -> str:
    """Return the text for a sentence, shortened."""
    text = printable_text(text)
    return text if len(text) <= 200 else f"{text[:200]}…"


def _item_type(column: sa.Column[Any]) -> Any:
    return column.type.item_type if isinstance(column.type, sa.ARRAY) else sa.String()


def fields_of(
    mapper: Mapper[Any],
    names: Iterable[str],
    kinds: Mapping[str, str | Range],
    readers: Mapping[str, Reader],
    zone: tzinfo,
    merged: Iterable[str],
) -> dict[str, Field]:
    """Return the fields of a form.

    Args:
        merged: the names of texts that are merged by lines, and so stand in a ``textarea``.

    Raises:
        ConfigurationError: a name is no column that a client may edit, or its column has no text.
    """
    cls, columns, found = mapper.class_.__name__, facts(mapper).columns, {}
    for name in names:
        reason = reason_to_refuse(mapper, name)
        if reason is not None or name not in columns:
            raise ConfigurationError(
                f"EditForm({cls}): a form cannot edit {name!r}: {reason or 'it is no column'}."
            )
        usual = "text" if name in readers else _usual_kind(columns[name].type, name in {*merged})
        kind = kinds.get(name, usual)
        limits = kind if isinstance(kind, Range) else None
        made = Field(name, "range" if limits else str(kind), columns[name], zone, None, limits)
        found[name] = replace(made, reader=readers.get(name))
        _check(cls, found[name])
    unknown = {*kinds, *readers} - {*found}
    if unknown:
        raise ConfigurationError(
            f"EditForm({cls}): kinds= and readers= name {', '.join(sorted(unknown))}, which is no"
            " field of the form."
        )
    return found


def _check(cls: str, made: Field) -> None:
    """Refuse a kind that is none, and a column whose values have no text.

    Raises:
        ConfigurationError: it is refused.
    """
    if made.kind not in KINDS:
        raise ConfigurationError(
            f"EditForm({cls}): {made.name} has the kind {made.kind!r}. Kinds are"
            f" {', '.join(KINDS)}, and Range(...)."
        )
    kind = _item_type(made.column) if made.kind == "multiple" else made.column.type
    has_items = isinstance(made.column.type, (sa.ARRAY, sa.JSON))
    if made.reader is None and (not is_read(kind) or (made.kind == "multiple" and not has_items)):
        raise ConfigurationError(
            f"EditForm({cls}): values of {made.name} ({type(made.column.type).__name__}) have no"
            f" text that a field could show. Write readers={{{made.name!r}: (to_text, from_text)}},"
            " or kinds='multiple' for a list, or leave it out."
        )


def _usual_kind(kind: Any, is_merged: bool) -> str:
    known = row_of(COLUMNS, kind)
    if is_merged and is_text(kind):
        return "textarea"
    return known.field or "text" if known else "text"


# -- what a request has ----------------------------------------------------------------------------


class _NoValue(Enum):
    ABSENT = "absent"
    UNKNOWN = "without a value"


ABSENT, UNKNOWN = _NoValue.ABSENT, _NoValue.UNKNOWN


#: The form of the request that is served here, as it came. A framework whose models do not show an
#: emptied field sets it (:func:`optilock.web.fastapi.install`).
form_served: ContextVar[Any] = ContextVar("optilock_form_served", default=None)


#: Values that no field of a form has, and those of a body of JSON that is no object.
_NO_TEXTS = (Mapping, list, tuple, set, bytes)
_JSON = (list, str, int, float)


class Raw:
    """The fields of a request, in the form that the framework has given them."""

    def __init__(self, sent: Any) -> None:
        """Take them from a multi-dict, a model of pydantic, or a mapping.

        Raises:
            ConfigurationError: ``sent`` is nothing of that.
        """
        #: Name -> the values that came.
        self.lists: dict[str, list[Any]] = {}
        #: Names with one value in a mapping: ``dict(form)`` has lost further ones.
        self._single: set[str] = set()
        every = getattr(sent, "getlist", None) or getattr(sent, "getall", None)
        if hasattr(sent, "model_fields_set"):
            names = {*type(sent).model_fields, *(sent.model_extra or ())}
            known = {*sent.model_fields_set, *(sent.model_extra or ())}
            self.lists = {n: _items(getattr(sent, n) if n in known else None) for n in names}
        elif every is not None:
            self.lists = {name: [*every(name)] for name in sent.keys()}  # noqa: SIM118
        elif isinstance(sent, Mapping):
            self.lists = {str(name): _items(value) for name, value in sent.items()}
            self._single = {str(name) for name, value in sent.items() if isinstance(value, str)}
        elif sent is not None and not isinstance(sent, _JSON):  # which JSON may be: no fields
            raise ConfigurationError(
                "EditForm.save() takes the fields of the request: a multi-dict, a model of"
                f" pydantic, or a mapping, and not {type(sent).__name__}."
            )
        served = form_served.get()
        self._served = None
        if every is None and served is not None and served.get("seen") == self.seen:
            self._served = served

    @property
    def seen(self) -> str | None:
        """The hidden field; several that differ are none."""
        found = self.lists.get("seen") or [None]
        if found[0] is None or any(one != found[0] for one in found):
            return None if found == [None] else ""
        return found[0] if isinstance(found[0], str) else ""

    def of(self, name: str, kind: str, *, is_flag: bool = False) -> Any:
        """Return what came of a field of this kind: a value, texts, or a lack of it.

        Raises:
            ValueError: with a sentence; it came several times, or is no text.
        """
        found = self.lists.get(name, [])
        if self._served is not None and found in ([], [None]):  # which the request may show
            found = [*self._served.getlist(name)]
        if kind == "multiple":
            if any(isinstance(one, _NO_TEXTS) or hasattr(one, "filename") for one in found):
                raise ValueError("it has a value that is no text.")
            if name in self._single and found != [""]:
                raise ValueError("it came as one text, and it is unknown whether there were more.")
            return [text_of_value(one) for one in found if one not in ("", None)]
        if not found or (kind == "checkbox" and found[-1] is None):
            return "false" if kind == "checkbox" else ABSENT
        if len(found) > 1:
            found = found[1:] if found[0] == "" and kind in ("select", "radio") else found
            is_last = is_flag or kind == "checkbox" or all(one == found[0] for one in found)
            if not is_last:
                raise ValueError(f"it came {len(found)} times with different values.")
        one = found[-1]
        if isinstance(one, _NO_TEXTS) or hasattr(one, "filename"):
            raise ValueError("it is no text.")
        return UNKNOWN if one is None else one

    def texts_of(self, name: str, kind: str) -> Text:
        """Return the texts of a name, to show them again: of most kinds the last one."""
        found = [one for one in self.lists.get(name, ()) if isinstance(one, str)]
        return found if kind == "multiple" else "".join(found[-1:])


def _items(value: Any) -> list[Any]:
    return [*value] if isinstance(value, (list, tuple, set, frozenset)) else [value]


# -- what its sender did ---------------------------------------------------------------------------


@dataclass
class Returned:
    """The fields of a request, compared with those of its page."""

    seen: Seen
    #: Attribute -> the new value, of fields that were edited.
    changes: dict[str, Any] = field(default_factory=dict)
    #: Attribute -> what came, as it is shown again.
    texts: dict[str, Text] = field(default_factory=dict)
    #: Attribute -> a sentence, of values that their columns cannot have.
    errors: dict[str, str] = field(default_factory=dict)
    #: Names of the page that the form does not know, and what was typed there.
    unknown: dict[str, Text] = field(default_factory=dict)

    @property
    def base(self) -> dict[str, Any]:
        """The values that were seen, as far as they were carried."""
        values = self.seen.values.items()
        return {name: value for name, value in values if not isinstance(value, Digest)}


#: A value that nobody has seen: so an edit of it is a conflict.
_UNSEEN: Final = Digest("")


def read_returned(fields: Mapping[str, Field], seen: Seen, raw: Raw) -> Returned:
    """Return what the sender of a form did: the rule of this module."""
    found, unseen = Returned(seen), []
    notes = dict(seen.notes.get(SHOWN, {}))
    for name, value in {} if notes else seen.values.items():
        if name in fields and not isinstance(value, Digest):
            notes[name] = fields[name].note(fields[name].shown(value))
    for name, note in notes.items():
        if name not in fields:
            _note_unknown(found, name, note, raw)
        elif _read_field(found, fields[name], note, raw):
            unseen.append(name)
    for name in fields.keys() - notes.keys():
        came = _came(found, raw, name, fields[name].kind, _is_flag(fields[name]))
        if came and not isinstance(came, _NoValue) and came != "false":
            found.texts[name] = came
            _read_value(found, fields[name], came)
            unseen.append(name)
    values = {**seen.values, **dict.fromkeys(unseen, _UNSEEN)}
    found.seen = replace(seen, values={n: values[n] for n in values if n in fields})
    return found


def read_new(fields: Mapping[str, Field], raw: Raw) -> Returned:
    """Return the values of a row that is not stored yet: an absent field is empty."""
    found = Returned(Seen(None, {}))
    for name, made in fields.items():
        came = _came(found, raw, name, made.kind, _is_flag(made))
        if name not in found.errors:
            _read_value(found, made, "" if isinstance(came, _NoValue) else came)
    return found


def _came(found: Returned, raw: Raw, name: str, kind: str, is_flag: bool) -> Any:
    """Return what came of a field. What no page sends is an error of the field."""
    try:
        return raw.of(name, kind, is_flag=is_flag)
    except ValueError as error:
        found.errors[name], found.texts[name] = str(error), raw.texts_of(name, kind)
        return ABSENT


def _is_flag(made: Field) -> bool:
    return isinstance(made.column.type, sa.Boolean)


def _note_unknown(found: Returned, name: str, note: list[Any], raw: Raw) -> None:
    came = _came(found, raw, name, note[0], True)
    if isinstance(came, _NoValue):
        return
    texts = [*map(str, came)] if isinstance(came, list) else text_of_value(came)
    if not is_untouched(note, texts):
        found.unknown[name] = texts


def _read_field(found: Returned, made: Field, note: list[Any], raw: Raw) -> bool:
    """Read a field that was on the page; return whether its value was changed unseen."""
    came = _came(found, raw, made.name, note[0], _is_flag(made))
    if came is ABSENT or (came is UNKNOWN and note[1] == ""):
        return False
    if came is UNKNOWN:
        found.errors[made.name] = (
            "it came back without a value, and it is unknown whether you have emptied it."
        )
        return False
    text = came if isinstance(came, (str, list)) else made.shown(came)
    found.texts[made.name] = text
    if is_untouched(note, text) and made.name not in found.seen.notes.get(MINE, ()):
        return False
    before = found.seen.notes.get(BEFORE, {}).get(made.name)
    is_stale = before is not None and not is_untouched(note, text) and is_untouched(before, text)
    _read_value(found, made, came)
    return is_stale


def _read_value(found: Returned, made: Field, came: Any) -> None:
    known = found.seen.values.get(made.name)
    try:
        is_text = isinstance(came, (str, list))
        value = made.read(came, known) if is_text else made.given(came)
    except ValueError as error:
        found.errors[made.name] = str(error) or "it cannot be read."
        return
    found.changes[made.name] = value


def shown_value(made: Field, returned: Returned) -> Any:
    """Return the value that the sender's page shows now, after it was sent."""
    if made.name not in returned.changes:
        return returned.seen.values.get(made.name)
    value = returned.changes[made.name]
    return normalize_line_ends(value) if isinstance(value, str) else value
