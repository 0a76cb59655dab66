"""A form that a user edits for minutes, saved so that no edit is lost.

::

    page_form = EditForm(
        Page, ["title", "body"], etags=ETags(keys=[SECRET]), on_conflict=per_field(body=merge_text)
    )

    form = page_form.of(page)                       # to show: form.texts, form.seen
    again = page_form.save(session, 7, sent)        # None: stored; or the form to show again

Edits of different fields, and of different places of a text, are merged
(:func:`optilock.preconditions.merge_changes`). If both users have changed the same, nothing is
saved, and the form is shown again (:mod:`optilock.preconditions.filled_forms`). What each field
means that comes back is one rule (:mod:`optilock.preconditions.form_fields`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, tzinfo
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from sqlalchemy import event, inspect
from sqlalchemy.orm import Session, scoped_session

from optilock._columns.form_texts import Range, is_untouched
from optilock._columns.identities import identity_given
from optilock._columns.texts import Digest
from optilock._mapped import Identity, facts, identity_of, place_of
from optilock._watched.session.connections import given_session
from optilock._watched.session.record import session_record
from optilock.errors import BadEntity, BadPrecondition, ConcurrencyError, Entry
from optilock.preconditions.client_merges import merge_seen, read_signed
from optilock.preconditions.edits import mapper_to_edit
from optilock.preconditions.entity_tags import ETags
from optilock.preconditions.filled_forms import FilledForm, conflict_form
from optilock.preconditions.form_fields import (
    BEFORE,
    MINE,
    OPEN,
    SHOWN,
    Field,
    Raw,
    Reader,
    Returned,
    Text,
    fields_of,
    read_returned,
    shown_value,
)
from optilock.preconditions.signed_values import Seen, read_values, sign_values
from optilock.resolvers.merge import merge_text
from optilock.resolvers.open_text import lines_with_marks
from optilock.resolvers.resolution import Resolver
from optilock.resolvers.rules import check_resolver_for, merge_fields

T = TypeVar("T")


class MergedForm(Generic[T]):
    """A form of values, which merges edits of them; its program has the texts."""

    def __init__(
        self, model: type[T], names: Iterable[str], *, etags: ETags, on_conflict: Resolver
    ) -> None:
        """Make a form of these attributes."""
        self.model, self.names, self.etags = model, list(dict.fromkeys(names)), etags
        self.on_conflict = check_resolver_for(on_conflict, model, self.names)
        self.fields: dict[str, Field] = {}

    def of(self, obj: T) -> FilledForm:
        """Return the form of a loaded row.

        Raises ``ConfigurationError`` as :func:`optilock.preconditions.sign_seen` does.
        """
        state, seen = read_values(obj, self.names, self.etags)
        return self._filled(identity_of(state), seen, seen.values)

    def store(
        self,
        session: Session,
        identity: Identity,
        seen: Seen,
        changes: Mapping[str, Any],
        texts: Mapping[str, Text] = MappingProxyType({}),
    ) -> FilledForm | None:
        """Write these values; return the form to show again if they were not written.

        If the row moves between the merge and the write, the flush merges once more. If the
        database has ended the transaction for that, both happen again in a new one, unless the
        session has done more, or belongs to a unit of work.
        """
        mapper = mapper_to_edit(session, self.model, "EditForm.save")
        may_repeat = _has_done_nothing(session)
        while True:
            merged = False
            try:
                merge_seen(
                    session, mapper, identity, changes, seen, self.on_conflict, once_more=True
                )
                merged = True
                session.flush()
            except ConcurrencyError as error:
                entry = entry_of_row(self.model, identity, error)
                if entry is None or (merged and session.in_nested_transaction()):
                    raise
                if merged:
                    session.rollback()
                if not merged or not may_repeat:
                    return self.again(entry, texts)
                may_repeat = False
            else:
                return None

    def again(
        self, entry: Entry[T], texts: Mapping[str, Text] = MappingProxyType({})
    ) -> FilledForm:
        """Return the form after a conflict (:func:`conflict_form`), signed for the stored row.

        ``texts`` came in the request; a page that sends them once more has not shown this form.
        """
        found = conflict_form(entry, self.on_conflict)
        stored, mapper = entry.database, inspect(self.model)
        values = {name: found.values[name] for name in self.names if name in found.values}
        if stored is None:
            values = {**dict.fromkeys(self.names), **values}
            typed = {name: text for name, text in texts.items() if name not in found.values}
            return replace(found, values=values, fields=self.fields, typed=typed)
        now = {name: stored[name] for name in self.names if name in stored}
        same = facts(mapper).same
        mine = [name for name in now if not same(name, values[name], now[name])]
        notes = {MINE: mine, BEFORE: self._notes(texts), OPEN: [*found.open]}
        seen = Seen(stored[facts(mapper).token], now, notes)
        return replace(
            found,
            values=values,
            seen=self._filled(entry.identity, seen, values).seen,
            theirs={name: one for name, one in found.theirs.items() if name in values},
            original={name: one for name, one in found.original.items() if name in values},
            fields=self.fields,
        )

    def still_open(self, seen: Seen, texts: Mapping[str, Any]) -> dict[str, list[int]]:
        """Return the lines with marks, of texts that were shown with marks."""
        opened = {
            name: lines_with_marks(texts[name], _text_in(seen.values.get(name)))
            for name in seen.notes.get(OPEN, ())
            if isinstance(texts.get(name), str)
        }
        return {name: lines for name, lines in opened.items() if lines}

    def _notes(self, texts: Mapping[str, Text]) -> dict[str, list[Any]]:
        return {name: self.fields[name].note(text) for name, text in texts.items()}

    def _shown(self, values: Mapping[str, Any]) -> dict[str, Text]:
        return {name: self.fields[name].shown(value) for name, value in values.items()}

    def _filled(self, identity: Identity, seen: Seen, values: Mapping[str, Any]) -> FilledForm:
        """Return a form that shows ``values``, signed as seen."""
        if self.fields:
            notes = {**seen.notes, SHOWN: self._notes(self._shown(values))}
            seen = replace(seen, notes=notes)
        signed = sign_values(inspect(self.model), identity, seen, self.etags)
        return FilledForm(values, signed, fields=self.fields)


class EditForm(MergedForm[T]):
    """A form for some attributes of a class, which merges the edits that it receives."""

    def __init__(
        self,
        model: type[T],
        names: Iterable[str],
        *,
        etags: ETags,
        on_conflict: Resolver = merge_fields,
        kinds: Mapping[str, str | Range] = MappingProxyType({}),
        readers: Mapping[str, Reader] = MappingProxyType({}),
        zone: tzinfo = UTC,
    ) -> None:
        """Make a form that can be kept as long as the program runs.

        Args:
            names: the attributes that a sender of the form may edit, and no others.
            etags: with keys, which sign the values that were seen
                (:func:`optilock.preconditions.sign_seen`).
            on_conflict: a resolver, for example ``per_field(body=merge_text)``.
            kinds: attribute -> the kind of its field, if it is not the usual one of its column:
                ``{"mail": "email", "public": "checkbox", "tags": "multiple"}``.
            readers: attribute -> how its value becomes a text, and a text its value:
                ``{"price": (to_text, from_text)}``. ``from_text`` raises ``ValueError`` with a
                sentence for the user.
            zone: the zone of moments that a page shows and reads without an offset.

        Raises:
            ConfigurationError: a name is no column that a client may edit, or its column has no
                text and no reader.
        """
        super().__init__(model, names, etags=etags, on_conflict=on_conflict)
        policies = getattr(on_conflict, "policies", {})
        merged = [name for name, policy in policies.items() if policy is merge_text]
        self.fields = fields_of(inspect(model), self.names, kinds, readers, zone, merged)

    def of(self, obj: T) -> FilledForm:
        """Return the form of a loaded row.

        After :meth:`save` in the same session it is the page that its sender has: what was sent,
        in the version stored now. So a page that stays open can go on with its ``seen``.

        Raises ``ConfigurationError`` as :func:`optilock.preconditions.sign_seen` does.
        """
        state, seen = read_values(obj, self.names, self.etags)
        sent = {} if state.session is None else state.session.info.get(_SENT, {})
        values = {**seen.values, **sent.get((self, place_of(state)), {})}
        return self._filled(identity_of(state), replace(seen, values=values), values)

    def save(
        self,
        session: Session | scoped_session[Any],
        pk: Any,
        sent: Any,
        *,
        errors: Mapping[str, str] = MappingProxyType({}),
    ) -> FilledForm | None:
        """Write the fields that were edited; return the form to show again if they were not saved.

        What each field means is one rule (:mod:`optilock.preconditions.form_fields`). The session
        is flushed, and the COMMIT is left to the caller. If the row has moved between the merge and
        the write, the session is rolled back, and a form to show again may be returned. With an
        ``AsyncSession``: ``await session.run_sync(form.save, pk, sent)``.

        Args:
            sent: the fields of the request with their ``seen``, as the framework has them: a
                multi-dict (``await request.form()``, ``request.form``), a model of pydantic, or a
                mapping.
            errors: name -> a sentence, of checks of your own (CSRF, a price above zero). With one
                nothing is stored, and the form comes back with what was typed.

        Raises:
            BadEntity: the database cannot hold a value of another name than the form's (400).
            ConfigurationError: as of :func:`optilock.preconditions.merge_changes`.
        """
        session = given_session(session, "EditForm.save", "await session.run_sync(form.save, ...)")
        mapper, raw = mapper_to_edit(session, self.model, "EditForm.save"), Raw(sent)
        identity = identity_given("EditForm.save", mapper, pk)
        try:
            identity, seen = read_signed(session, mapper, identity, raw.seen, self.etags)
        except BadPrecondition as error:
            return self._without_seen(session, identity, raw, error.status, errors)
        found = read_returned(self.fields, seen, raw)
        found.errors |= errors
        still_open = self.still_open(found.seen, found.texts)
        if found.errors or found.unknown or still_open:
            return self._as_sent(session, identity, found, raw.seen, still_open)
        try:
            again = self.store(session, identity, found.seen, found.changes, found.texts)
        except BadEntity as error:
            wrong = [name for name in error.names if name in self.fields]
            if not wrong:
                raise
            found.errors |= dict.fromkeys(wrong, "it cannot be stored as it is.")
            return self._as_sent(session, identity, found, raw.seen, {})
        if again is None:
            values = {name: shown_value(self.fields[name], found) for name in found.seen.values}
            known = {name: one for name, one in values.items() if not isinstance(one, Digest)}
            _sent_in(session)[self, (facts(mapper).root, identity)] = known
        elif again.deleted:
            return replace(again, seen=raw.seen or "")
        return again

    def _as_sent(
        self,
        session: Session,
        identity: Identity,
        found: Returned,
        seen: str | None,
        still_open: Mapping[str, list[int]],
    ) -> FilledForm:
        """Return the form as it was sent, which goes on from the same page."""
        values = {**dict.fromkeys(self.names), **found.base, **found.changes}
        hidden = [n for n in self.names if n not in found.texts and n not in found.base]
        obj = session.get(self.model, identity) if hidden else None
        shown = found.seen.notes.get(SHOWN, {})
        stored = {} if obj is None else {name: getattr(obj, name) for name in hidden}
        if stored or shown.keys() - self.fields.keys():
            # Fields that were not on the page are shown as they are now, and unknown ones no more.
            known = {name: note for name, note in shown.items() if name in self.fields}
            page = replace(
                found.seen,
                values={**found.seen.values, **stored},
                notes={**found.seen.notes, SHOWN: {**known, **self._notes(self._shown(stored))}},
            )
            seen = sign_values(inspect(self.model), identity, page, self.etags)
            values |= stored
        return FilledForm(
            values,
            seen or "",
            open=still_open,
            errors=found.errors,
            unknown=found.unknown,
            status=400 if found.errors else 409,
            typed=found.texts,
            fields=self.fields,
        )

    def _without_seen(
        self,
        session: Session,
        identity: Identity,
        raw: Raw,
        status: int,
        errors: Mapping[str, str],
    ) -> FilledForm:
        """Return the typed texts over the stored values; those that were seen are unknown."""
        obj = session.get(self.model, identity)
        found = read_returned(self.fields, Seen(None, {}), raw)
        found.errors |= errors
        form = FilledForm({}, status=status, errors=found.errors, fields=self.fields)
        if obj is None:
            typed = {**dict.fromkeys(self.names, ""), **found.texts}
            return replace(form, values=dict.fromkeys(self.names), typed=typed, deleted=True)
        state, now = read_values(obj, self.names, self.etags)
        notes = self._notes(self._shown(now.values))
        mine = {n: one for n, one in found.texts.items() if not is_untouched(notes[n], one)}
        page = replace(now, notes={SHOWN: {**notes, **self._notes(mine)}, MINE: [*mine]})
        return replace(
            form,
            values={**now.values, **{name: found.changes.get(name) for name in mine}},
            seen=sign_values(state.mapper, identity_of(state), page, self.etags),
            theirs={name: now.values[name] for name in mine},
            typed=mine,
        )


def _text_in(value: Any) -> str:
    return value if isinstance(value, str) else ""


#: A key of a session's ``info``: what was sent, by form and row.
_SENT = "optilock_forms"


def _sent_in(session: Session) -> dict[Any, dict[str, Any]]:
    """Return what forms have stored in the session; a rollback takes it back."""
    if _SENT not in session.info:
        session.info[_SENT] = {}
        event.listen(session, "after_soft_rollback", lambda owner, _: owner.info[_SENT].clear())
    return session.info[_SENT]  # type: ignore[no-any-return]


def _has_done_nothing(session: Session) -> bool:
    """Return whether a rollback of the session takes back nothing of the program's."""
    if session.new or session.deleted or session.dirty:
        return False
    known = session_record(session)
    if known.owner is not None:
        return False
    if not session.in_transaction() or known.root is not session.get_transaction():
        return True
    wrote = known.sent or known.undone or known.stated or known.sent_more
    return not (wrote or known.promises or known.settled_by or known.holds_locks)


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
