"""The contents of a form: values, texts, and after a conflict what both sides have changed.

:func:`conflict_form` makes them of an entry: **their values, with only my changes over them**. So
pressing Save again writes back no value that I have neither touched nor seen. A field that both
have changed has my value, and ``theirs`` has the other one. A merged text has both between marks
(:mod:`optilock.resolvers.open_text`), and it is not saved until they are settled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from optilock._columns.form_texts import printable_text, text_of_value
from optilock.errors import CannotMerge, Computed, Entry
from optilock.preconditions.form_fields import Field, Text, shortened_text
from optilock.resolvers.merge import merge_text
from optilock.resolvers.open_text import lines_with_marks, merge_with_marks
from optilock.resolvers.resolution import Resolver
from optilock.resolvers.rules import PerField, merge_fields
from optilock.serialize import last_change


@dataclass(frozen=True)
class FilledForm:
    """The contents of a form."""

    #: Attribute -> the value of its field.
    values: Mapping[str, Any]
    #: For the hidden field: the values that the user now sees, signed.
    seen: str = ""
    #: Attribute -> the stored value, if both have changed it and the field has ours.
    theirs: Mapping[str, Any] = field(default_factory=dict)
    #: Attribute -> the lines of its text, from 1, that mark an open place.
    open: Mapping[str, list[int]] = field(default_factory=dict)
    #: The row is missing, so the form cannot be saved: show it without a button. If a user sends it
    #: again all the same, :meth:`EditForm.save` returns the same form.
    deleted: bool = False
    #: Attribute -> the value that the user had seen before, of those in ``theirs``, if it is known.
    original: Mapping[str, Any] = field(default_factory=dict)
    #: The author and the time of the stored row's last change, if the class declares them.
    changed_by: Any = None
    changed_at: Any = None
    #: Attribute -> a sentence, of fields whose text no value of their column has.
    errors: Mapping[str, str] = field(default_factory=dict)
    #: Name -> the text of a field that the page had, and that this release does not know.
    unknown: Mapping[str, Text] = field(default_factory=dict)
    #: The HTTP status to answer with: 409 after a conflict, 400 for a text that cannot be read or a
    #: ``seen`` that was not signed, 428 without ``seen``.
    status: int = 409
    #: Attribute -> the text that was typed, if it is shown instead of that of the value.
    typed: Mapping[str, Text] = field(default_factory=dict)
    #: The fields, by their names.
    fields: Mapping[str, Field] = field(default_factory=dict, repr=False, compare=False)

    @property
    def last_change(self) -> str:
        """The last change of the stored row, for people: "changed by Ada, 2 minutes ago"; or ""."""
        return last_change(self.changed_by, self.changed_at)

    @property
    def texts(self) -> dict[str, str]:
        """The texts of the fields, for ``<input>`` and ``<select>``."""
        return {name: printable_text(one) for name, one in self._all() if isinstance(one, str)}

    @property
    def lists(self) -> dict[str, list[str]]:
        """The texts of fields with several values, of the kind ``multiple``."""
        return {n: [*map(printable_text, one)] for n, one in self._all() if isinstance(one, list)}

    def _all(self) -> list[tuple[str, Text]]:
        texts = {name: self.text_of(name, value) for name, value in self.values.items()}
        return [*{**texts, **self.typed}.items()]

    def text_of(self, name: str, value: Any) -> Text:
        """Return the text of another value of the field, such as one of ``theirs``."""
        made = self.fields.get(name)
        return text_of_value(value) if made is None else made.shown(value)

    @property
    def areas(self) -> dict[str, str]:
        """The same inside ``<textarea>``, where a browser removes the first newline."""
        return {
            name: f"\n{text}" if text.startswith(("\n", "\r")) else text
            for name, text in self.texts.items()
        }

    @property
    def clashes(self) -> set[str]:
        """The attributes whose fields need a look: those of both sides, and those with an error."""
        return {*self.sentences}

    @property
    def sentences(self) -> dict[str, str]:
        """Attribute -> a sentence for its field, in plain English."""
        found = {name: f"{name}: {error}" for name, error in self.errors.items()}
        for name, value in self.theirs.items():
            stored = _listed(self.text_of(name, value))
            found[name] = f"Both of you have changed {name}. It is stored as “{stored}” now."
        for name, lines in self.open.items():
            found[name] = (
                f"In {name} both of you have changed the same lines. Yours and theirs stand between"
                f" marks ({', '.join(map(str, lines))} are their lines): keep what you want of"
                " both, and delete the marks."
            )
        return found

    @property
    def sentence(self) -> str:
        """The reason for showing the form again, in plain English; for :meth:`EditForm.save`."""
        said = ["Nothing is saved yet, and nothing is lost."]
        if self.deleted:
            said.append("Another user has deleted it in the meantime.")
        elif self.last_change:
            said.append(f"It was {self.last_change}.")
        asked = len(said)
        said += [
            f"{name} (“{_listed(text)}”) cannot be saved: your page is newer than this server. Keep"
            " the text, and save the rest."
            for name, text in self.unknown.items()
        ]
        if self.status in (400, 428) and not self.errors:
            said.append(
                "Your page does not prove what it has shown, so every difference from what is"
                " stored is shown."
            )
        said += self.sentences.values()
        if len(said) == asked and not self.deleted:
            said.append("The form has the edits of both: look at it, and save.")
        return " ".join(said)


def _listed(text: Text) -> str:
    return shortened_text(text if isinstance(text, str) else ", ".join(text))


def conflict_form(entry: Entry[Any], on_conflict: Resolver = merge_fields) -> FilledForm:
    """Return the values of a form after a conflict: theirs, with only my changes over them.

    Args:
        entry: the entry of the error. If its ``original`` has the values that I had seen (as after
            :func:`optilock.preconditions.merge_changes`), a field as it was seen is no change.
        on_conflict: its policies make a value that both have changed
            (:func:`optilock.resolvers.per_field`). With ``merge_text`` the places of the text that
            both have changed are left open, with both sides between marks.
    """
    stored = entry.database
    if stored is None:
        return FilledForm({**entry.original, **_plain(entry.changes)}, deleted=True)
    policies = on_conflict.policies if isinstance(on_conflict, PerField) else {}
    values, theirs, still_open = dict(stored), {}, {}
    for name, ours in _plain(entry.changes).items():
        values[name] = ours
        before = entry.original.get(name)
        if name in policies and name in entry.original and before != stored.get(name):
            values[name] = found = _by_policy(policies[name], before, ours, stored.get(name))
            if isinstance(found, str) and (lines := lines_with_marks(found, str(stored[name]))):
                still_open[name] = lines
            if found is not ours:
                continue
        if name in entry.conflicting:
            theirs[name] = stored.get(name)
    # Columns that belong together with my changes, and that they have changed.
    theirs |= {one: stored[one] for one in entry.conflicting - {*entry.changes} if one in stored}
    return FilledForm(
        values,
        theirs=theirs,
        open=still_open,
        original={name: entry.original[name] for name in theirs if name in entry.original},
        changed_by=entry.changed_by,
        changed_at=entry.changed_at,
    )


def _plain(changes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in changes.items() if not isinstance(value, Computed)}


def _by_policy(policy: Any, before: Any, ours: Any, stored: Any) -> Any:
    """Return the value that a policy makes, or ours if it makes none."""
    try:
        return policy(before, ours, stored)
    except CannotMerge:
        texts = all(isinstance(one, str) for one in (before, ours, stored))
        return merge_with_marks(before, ours, stored) if policy is merge_text and texts else ours
