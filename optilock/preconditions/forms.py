"""A form that a user edits for minutes, saved so that no edit is lost.

::

    page_form = EditForm(
        Page, ["title", "body"], etags=ETags(keys=[SECRET]), on_conflict=per_field(body=merge_text)
    )

    form = page_form.of(page)                       # to show: form.texts, form.seen
    again = page_form.save(session, 7, sent)        # None: stored; or the form to show again

Edits of different fields, and of different places of a text, are merged
(:func:`optilock.preconditions.merge_changes`). If both users have changed the same, nothing is
saved, and the form is shown again. :func:`conflict_form` makes its values: **their values, with
only my changes over them**. So pressing Save again writes back no value that I have neither touched
nor seen. A field that both have changed has my value, and ``theirs`` has the other one. A merged
text has both between marks (:mod:`optilock.resolvers.open_text`), and it is not saved until they
are settled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time
from enum import Enum
from typing import Any, Generic, TypeVar

from sqlalchemy import inspect
from sqlalchemy.orm import Session, scoped_session

from optilock.columns.identities import identity_given
from optilock.errors import CannotMerge, Computed, ConcurrencyError, Entry
from optilock.mapped import Identity, facts
from optilock.preconditions.client_merges import merge_changes
from optilock.preconditions.entity_tags import ETags
from optilock.preconditions.signed_values import read_seen, sign_seen, sign_values
from optilock.resolvers.merge import merge_text
from optilock.resolvers.open_text import lines_with_marks, merge_with_marks
from optilock.resolvers.resolution import Resolver
from optilock.resolvers.rules import PerField, check_resolver_for, merge_fields
from optilock.serialize import last_change

T = TypeVar("T")


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

    @property
    def last_change(self) -> str:
        """The last change of the stored row, for people: "changed by Ada, 2 minutes ago"; or ""."""
        return last_change(self.changed_by, self.changed_at)

    @property
    def texts(self) -> dict[str, str]:
        """The values as fields of HTML hold them, so that an untouched one is no change."""
        return {name: _as_text(value) for name, value in self.values.items()}

    @property
    def areas(self) -> dict[str, str]:
        """The same inside ``<textarea>``, where a browser removes the first newline."""
        return {
            name: f"\n{text}" if text.startswith(("\n", "\r")) else text
            for name, text in self.texts.items()
        }

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
            f"Both of you have changed {name}. It is stored as “{_as_text(value)}” now."
            for name, value in self.theirs.items()
        ]
        said += [
            f"In {name} both of you have changed the same lines. Yours and theirs stand between"
            f" marks ({', '.join(map(str, lines))} are their lines): keep what you want of both,"
            " and delete the marks."
            for name, lines in self.open.items()
        ]
        if len(said) == asked and not self.deleted:
            said.append("The form has the edits of both: look at it, and save.")
        return " ".join(said)


def _as_text(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case Enum():
            return value.name
        case datetime() | date() | time():
            return value.isoformat()
    return str(value)


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


class EditForm(Generic[T]):
    """A form for some attributes of a class, which merges the edits that it receives."""

    def __init__(
        self,
        model: type[T],
        names: Iterable[str],
        *,
        etags: ETags,
        on_conflict: Resolver = merge_fields,
    ) -> None:
        """Make a form that can be kept as long as the program runs.

        Args:
            names: the attributes that a sender of the form may edit, and no others. etags: with
            keys, which sign the values that were seen (:func:`optilock.preconditions.sign_seen`).
            on_conflict: a resolver, for example ``per_field(body=merge_text)``.
        """
        self.model, self.names, self.etags = model, list(dict.fromkeys(names)), etags
        self.on_conflict = check_resolver_for(on_conflict, model, self.names)

    def of(self, obj: T) -> FilledForm:
        """Return the form of a loaded row.

        Raises ``ConfigurationError`` as :func:`optilock.preconditions.sign_seen` does.
        """
        seen = sign_seen(obj, self.names, etags=self.etags)
        return FilledForm({name: getattr(obj, name) for name in self.names}, seen)

    def save(
        self, session: Session | scoped_session[Any], pk: Any, sent: Mapping[str, Any]
    ) -> FilledForm | None:
        """Write the fields that were sent; return the form to show again if they were not saved.

        A missing field is not edited. The session is flushed, and the COMMIT is left to the caller.
        If the row has moved between the merge and the write, the session is rolled back, and a form
        to show again is returned too. With an ``AsyncSession``:
        ``await session.run_sync(form.save, pk, sent)``.

        Args:
            sent: the fields, and ``seen`` as it came with them.

        Raises:
            BadPrecondition: ``seen`` is missing (428), or was not signed for this row (400).
            BadEntity: a column cannot hold a value.
            ConfigurationError: as of :func:`optilock.preconditions.merge_changes`.
        """
        changes = {name: sent[name] for name in self.names if name in sent}
        seen = sent.get("seen")
        still_open = self._still_open(pk, changes, seen)
        if still_open is not None:
            return still_open
        written = False
        try:
            merge_changes(
                session,
                self.model,
                pk,
                changes,
                seen=seen,
                etags=self.etags,
                on_conflict=self.on_conflict,
            )
            written = True
            session.flush()
        except ConcurrencyError as error:
            entry = entry_of_row(self.model, self._identity(pk), error)
            if entry is None:
                raise
            if written:
                session.rollback()
            again = self.again(entry)
            return replace(again, seen=str(seen)) if again.deleted else again
        return None

    def again(self, entry: Entry[T]) -> FilledForm:
        """Return the form after a conflict (:func:`conflict_form`), signed for the stored row."""
        found = conflict_form(entry, self.on_conflict)
        stored, mapper = entry.database, inspect(self.model)
        values = {name: found.values[name] for name in self.names if name in found.values}
        if stored is None:
            return FilledForm(values, deleted=True)
        now = {name: stored[name] for name in self.names if name in stored}
        version = stored[facts(mapper).token]
        seen = sign_values(mapper, entry.identity, version, now, self.etags)
        theirs = {name: value for name, value in found.theirs.items() if name in values}
        original = {name: value for name, value in found.original.items() if name in values}
        return replace(found, values=values, seen=seen, theirs=theirs, original=original)

    def _identity(self, pk: Any) -> Identity:
        return identity_given("EditForm.save", inspect(self.model), pk)

    def _still_open(self, pk: Any, changes: Mapping[str, Any], seen: Any) -> FilledForm | None:
        """Return the form as it was sent, if a text of it has marks that are still open."""
        mapper, identity = inspect(self.model), self._identity(pk)
        _, base = read_seen("EditForm.save", mapper, identity, seen, self.etags)
        found = {
            name: lines
            for name, value in changes.items()
            if isinstance(value, str)
            and (lines := lines_with_marks(value, str(base.get(name) or "")))
            and getattr(self.on_conflict, "policies", {}).get(name) is merge_text
        }
        return FilledForm({**base, **changes}, seen, open=found) if found else None


def entry_of_row(model: type[T], identity: Identity, error: ConcurrencyError) -> Entry[T] | None:
    """Return the entry of a row, if the error is about it."""
    return next(
        (
            one
            for one in error.entries
            if issubclass(one.model, model) and one.identity == identity and not one.is_scope
        ),
        None,
    )
