"""The view of a class in :mod:`optilock.web.sqladmin`."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from sqlalchemy import inspect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Mapper, RelationshipDirection, Session
from sqlalchemy.orm.attributes import set_committed_value

from optilock._mapped import Identity, facts
from optilock.dialects.transient import ended_by_conflict
from optilock.errors import (
    BadPrecondition,
    ConcurrencyError,
    ConfigurationError,
    Entry,
    PreconditionRequired,
)
from optilock.errors.base import extra
from optilock.preconditions.client_values import reason_to_refuse
from optilock.preconditions.entity_tags import ETags
from optilock.preconditions.expectations import expect
from optilock.preconditions.filled_forms import FilledForm
from optilock.preconditions.forms import MergedForm, entry_of_row
from optilock.preconditions.signed_values import Seen, read_seen
from optilock.resolvers.rules import merge_fields
from optilock.web.sqladmin_outcomes import (
    ELSEWHERE,
    NOT_TRIED,
    Kept,
    Outcome,
    conflict_text,
    failure_text,
    outcome_of,
)

with extra("sqladmin"):
    import sqladmin
    from anyio import to_thread
    from sqladmin.forms import WTFORMS_ATTRS
    from sqladmin.helpers import get_object_identifier, is_falsy_value, object_identifier_values
    from starlette.datastructures import UploadFile
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import Response
    from wtforms import BooleanField, HiddenField

_log = logging.getLogger("optilock")
#: The hidden field.
SEEN = "optilock_seen"
Run = Callable[[Callable[[Session], Any]], Awaitable[Any]]


class ModelView(sqladmin.ModelView):
    """sqladmin's ``ModelView``, for a class with a version."""

    #: A resolver for edits of the same row: ``per_field(body=merge_text)``.
    on_conflict: ClassVar[Any] = staticmethod(merge_fields)
    etags: ClassVar[ETags]
    list_template = "versioned/list.html"
    edit_template = "versioned/edit.html"
    details_template = "versioned/details.html"

    # -- what is shown -------------------------------------------------------------------------

    def get_list_columns(self) -> list[str]:
        return self._shown(super().get_list_columns())

    def get_details_columns(self) -> list[str]:
        return self._shown(super().get_details_columns())

    def get_export_columns(self) -> list[str]:
        return self._shown(super().get_export_columns())

    def get_import_columns(self) -> list[str]:
        return self._shown(super().get_import_columns())

    def get_form_columns(self) -> list[str]:
        """Return what a person may edit: no version, no last change, no rows of others.

        Raises:
            ConfigurationError: ``form_columns`` names a collection, or what cannot be edited; or
                the class has a many-to-many relationship that is not excluded.
        """
        mapper: Mapper[Any] = inspect(self.model)
        known, named = facts(mapper), super().get_form_columns()
        to_one = {r.key for r in mapper.relationships if _is_to_one(r)}
        can_be = {*known.editable.intersection(known.columns), *known.keys, *to_one}
        others = [name for name in named if name not in can_be and name != known.token]
        if self.form_columns and others:
            raise ConfigurationError(
                f"{type(self).__name__}.form_columns names {', '.join(others)}: a form has columns"
                " that can be edited, and the one row behind a foreign key. Rows of a collection"
                " have versions of their own: edit them in a view of their class."
            )
        linked = [name for name in others if _is_written_as_links(mapper, name)]
        if linked and self.form is None:
            raise ConfigurationError(
                f"{type(self).__name__}: a form cannot edit {', '.join(linked)}, because rows of a"
                " many-to-many table have no version to compare. Leave it out of the form"
                f" (form_excluded_columns = {linked!r}), and map the table as a class with a view"
                " of its own."
            )
        return [name for name in named if name in can_be and name not in known.last_change]

    def _shown(self, names: Iterable[str]) -> list[str]:
        token = facts(inspect(self.model)).token
        return [name for name in names if name != token]

    def tags_of(self, rows: Iterable[Any]) -> dict[str, str]:
        """Return the tag of each row that a page shows, by its key."""
        return {str(get_object_identifier(row)): self.etags.of(row) for row in rows}

    # -- forms ---------------------------------------------------------------------------------

    async def scaffold_form(self, rules: list[str] | None = None) -> Any:
        """Return sqladmin's form with the hidden field."""
        made = await super().scaffold_form(rules)
        return type(made.__name__, (made,), {SEEN: HiddenField()})

    async def get_form_data_for_edit(self, obj: Any) -> dict[str, Any]:
        """Return sqladmin's values, and those that are shown, signed."""
        shown: dict[str, Any] = await super().get_form_data_for_edit(obj)
        return {**shown, SEEN: self._edits().of(obj).seen}

    async def insert_model(self, request: Request, data: dict[str, Any]) -> Any:
        data.pop(SEEN, None)
        try:
            return await super().insert_model(request, data)
        except (ConcurrencyError, DBAPIError) as error:
            if isinstance(error, DBAPIError) and not ended_by_conflict(error):
                raise
            outcome = getattr(request.state, "optilock", None)  # an import has none
            if isinstance(outcome, Outcome):
                outcome.conflict = True
            raise HTTPException(409, ELSEWHERE) from error

    def _edits(self) -> MergedForm[Any]:
        names = [column for name in self.get_form_columns() for column in self._columns(name)]
        return MergedForm(self.model, names, etags=self.etags, on_conflict=self.on_conflict)

    def _columns(self, name: str) -> list[str]:
        """Return the column attributes behind a field of the form that a person may edit."""
        mapper: Mapper[Any] = inspect(self.model)
        known = facts(mapper)
        if name in mapper.relationships:
            return [known.names[column] for column in mapper.relationships[name].local_columns]
        editable = name in known.columns and reason_to_refuse(mapper, name) is None
        return [name] if editable else []

    async def update_model(self, request: Request, pk: str, data: dict[str, Any]) -> Any:
        """Write the fields that were changed, or note the conflict for ``Admin.edit``."""
        outcome = outcome_of(request)
        seen = data.pop(SEEN, None) or None
        async with self._session() as run:
            query = self.form_edit_query(request)
            obj = await run(lambda session: session.scalars(query).first())
            if obj is None:
                raise HTTPException(404)
            outcome.obj, state = obj, inspect(obj)
            try:
                page = read_seen("edit", state.mapper, state.identity, seen, self.etags)
            except BadPrecondition as error:
                outcome.refused = error
                return obj
            base, given = page.known(state.dict), dict(data)
            await self.on_model_change(data, obj, False, request)
            self._refuse_unmapped(data)
            given = {name: value for name, value in given.items() if name in data}
            touched = await self._touched(request, given, {**base, **_keys_of(obj)})
            touched |= {name for name in data if name not in given or data[name] is not given[name]}
            changes = self._changes({name: data[name] for name in data if name in touched})
            edits = self._edits()
            for name in changes.keys() - {*edits.names}:  # of a hook
                setattr(obj, name, changes[name])
            sent = FilledForm({**base, **changes}, seen or "")
            store = partial(_save, edits, state.identity, page, changes, sent, outcome)
            outcome.again = await run(store)
            if outcome.again is not None:  # the session may be rolled back, and its objects expired
                outcome.obj = await run(lambda session: session.scalars(query).first())
                if outcome.obj is None:
                    outcome.again = replace(sent, deleted=True)
                    return _with_keys(obj)
                return outcome.obj
            answer = await self.after_model_change(data, obj, False, request)
        outcome.answer = answer if isinstance(answer, Response) else None
        await self._emit_audit(request, "update", pk, data)
        return obj

    def _refuse_unmapped(self, data: Mapping[str, Any]) -> None:
        """Refuse a field of a form of the program's that stands for no column."""
        to_one = {relation.key for relation in self._mapper.relationships if _is_to_one(relation)}
        others = [name for name in data if name not in {*facts(self._mapper).columns, *to_one}]
        if others:
            raise ConfigurationError(
                f"{type(self).__name__}: {', '.join(others)} of the form is no column of"
                f" {self.model.__name__}, and no version guards it. Take it"
                " out of data in on_model_change. Nothing was saved."
            )

    async def _touched(
        self, request: Request, data: Mapping[str, Any], base: Mapping[str, Any]
    ) -> set[str]:
        """Return the fields that a person has changed: a field as it was shown is no change.

        Fields of times and numbers show less than a column holds.
        """
        made = await self.scaffold_form(self._form_edit_rules)
        shown = made(data={WTFORMS_ATTRS.get(name, name): value for name, value in base.items()})
        sent, found = made(await request.form()), set()
        for name, value in data.items():
            relation = self._mapper.relationships.get(name)
            if relation is not None:
                same = self._changes({name: value}).items() <= base.items()
            else:
                key = WTFORMS_ATTRS.get(name, name)
                same = _is_same_field(shown[key], sent[key]) if name in base else not value
            if not same:
                found.add(name)
        return found

    def _changes(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of columns, as sqladmin has them: an empty field is NULL if it can."""
        known, found = facts(self._mapper), {}
        for name, value in data.items():
            relation = self._mapper.relationships.get(name)
            if relation is not None:
                target = relation.mapper
                keys = object_identifier_values(value, target.class_) if value else ()
                parts = dict(zip(target.primary_key, keys, strict=False))
                for local, remote in relation.local_remote_pairs:
                    found[known.names[local]] = parts.get(remote)
            elif not value and is_falsy_value(value) and _takes_null(known.columns.get(name)):
                found[name] = None
            else:
                found[name] = value
        return found

    async def conflict_page(self, request: Request, outcome: Outcome) -> dict[str, Any]:
        """Return the context of the page after a conflict, with the form to go on from."""
        again = outcome.again
        assert again is not None
        texts = FilledForm(again.theirs).texts
        seen_texts = FilledForm(again.original).texts
        named = again.texts if again.deleted else texts
        names = [name for name in dict.fromkeys((*self._edits().names, *named)) if name in named]
        rows = [
            {
                "label": self._column_labels.get(name, name),
                "mine": again.texts.get(name, ""),
                "theirs": texts.get(name, ""),
                "original": seen_texts.get(name, ""),
            }
            for name in names
        ]
        context = {"template": "versioned/conflict.html", "model_view": self, "again": again}
        context["sentence"] = outcome.sentence or again.sentence
        context |= {**await self.edit_context(request), "obj": outcome.obj, "rows": rows}
        if not again.deleted:
            made = await self.scaffold_form(self._form_edit_rules)
            context["form"] = made(data={**await self._data_of(again), SEEN: again.seen})
        return context

    async def _data_of(self, again: FilledForm) -> dict[str, Any]:
        """Return the values of a form's fields, with the object behind each foreign key."""
        found: dict[str, Any] = {}
        async with self._session() as run:
            for name in self.get_form_columns():
                relation = self._mapper.relationships.get(name)
                if relation is None:
                    found[WTFORMS_ATTRS.get(name, name)] = again.values.get(name)
                    continue
                remote = {r: facts(self._mapper).names[c] for c, r in relation.local_remote_pairs}
                key = [again.values.get(remote.get(c, "")) for c in relation.mapper.primary_key]
                found[name] = None
                if None not in key:
                    target = relation.mapper.class_
                    found[name] = await run(partial(_get, target, tuple(key)))
        return found

    # -- deletes -------------------------------------------------------------------------------

    async def delete_rows(self, request: Request, pks: Sequence[str]) -> None:
        """Delete one row after the other, until one raises an error other than a conflict."""
        outcome = outcome_of(request)
        for at, pk in enumerate(pks):
            try:
                await self.delete_model(request, pk)
            except Exception as error:  # of the database or of a hook: sqladmin shows it, too
                _log.exception("the deletion of %s failed", self.name)
                kept = "it is deleted, and a later step" if pk in outcome.deleted else "it"
                outcome.kept.append(Kept(pk, f"{kept} failed: {failure_text(error)}", 400))
                outcome.kept += [Kept(other, NOT_TRIED, 0) for other in pks[at + 1 :]]
                break

    async def delete_model(self, request: Request, pk: Any) -> None:
        """Delete the row in the version of its tag, or note why not for ``Admin.delete``."""
        outcome = outcome_of(request)
        async with self._session() as run:
            query = self._stmt_by_identifier(pk)
            obj = await run(lambda session: session.scalars(query).first())
            if obj is None:
                outcome.kept.append(Kept(str(pk), "it is not there any more.", 404))
                return
            try:
                version = self._version_of(obj, outcome.tags.get(str(pk)))
                await run(lambda session: expect(obj, version=version))
                await self.on_model_delete(obj, request)
                await run(lambda session: _delete(session, obj))
            except BadPrecondition as error:
                outcome.kept.append(Kept(str(pk), error.detail or str(error), error.status))
                return
            except ConcurrencyError as error:
                own: Entry[Any] | None = entry_of_row(self.model, inspect(obj).identity, error)
                outcome.kept.append(Kept(str(pk), conflict_text(own)))
                return
            outcome.deleted.append(str(pk))
            await self.after_model_delete(obj, request)
        await self._emit_audit(request, "delete", pk, None)

    def _version_of(self, obj: Any, tag: str | None) -> Any:
        """Return the version that a tag of this row names."""
        said = "The page that this delete came from did not say which version it has shown."
        if not tag:
            error: BadPrecondition = PreconditionRequired(said)
            error.detail = said
            raise error
        versions = self.etags.versions(self.model, inspect(obj).identity, tag)
        if versions:
            return versions[0]
        error = BadPrecondition("The tag of this delete is not one of this row.", 400)
        error.detail = "The tag of this delete is not one of this row."
        raise error

    # -- sessions ------------------------------------------------------------------------------

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[Run]:
        """Open a session; what it yields calls a function with the (sync) session."""
        if self.is_async:
            async with self.session_maker(expire_on_commit=False) as session:
                yield session.run_sync
            return
        session = self.session_maker(expire_on_commit=False)
        try:
            yield lambda function: to_thread.run_sync(function, session)
        finally:
            await to_thread.run_sync(session.close)


def _get(target: type[Any], key: tuple[Any, ...], session: Session) -> Any:
    return session.get(target, key)


def _save(
    edits: MergedForm[Any],
    identity: Identity,
    page: Seen,
    changes: Mapping[str, Any],
    sent: FilledForm,
    outcome: Outcome,
    session: Session,
) -> FilledForm | None:
    """Store a form; return the form to show again after a conflict, also one of COMMIT."""
    try:
        still_open = edits.still_open(page, changes)
        if still_open:
            return replace(sent, open=still_open)
        again = edits.store(session, identity, page, changes)
        if again is None:
            session.commit()
        elif again.deleted:
            return replace(again, seen=sent.seen)
    except ConcurrencyError as error:
        session.rollback()
        own = entry_of_row(edits.model, identity, error)
        if own is not None:
            return edits.again(own)
        outcome.sentence = ELSEWHERE
        return sent
    return again


def _with_keys(obj: Any) -> Any:
    """Return an object that a rollback has expired, with the keys that sqladmin asks for."""
    for name, value in _keys_of(obj).items():
        set_committed_value(obj, name, value)
    return obj


def _delete(session: Session, obj: Any) -> None:
    session.delete(obj)
    session.commit()


def _keys_of(obj: Any) -> dict[str, Any]:
    state = inspect(obj)
    return dict(zip(facts(state.mapper).keys, state.identity, strict=True))


def _is_to_one(relation: Any) -> bool:
    return relation.direction is RelationshipDirection.MANYTOONE


def _is_written_as_links(mapper: Mapper[Any], name: str) -> bool:
    relation = mapper.relationships.get(name)
    return relation is not None and relation.secondary is not None and not relation.viewonly


def _takes_null(column: Any) -> bool:
    return column is not None and bool(column.nullable)


def _is_same_field(shown: Any, sent: Any) -> bool:
    """Return whether a field came back as it was shown."""
    raw = sent.raw_data[0] if sent.raw_data else None
    if isinstance(raw, UploadFile):
        return not raw.filename
    if shown.data == sent.data:
        return True
    text = getattr(shown, "_value", None)  # of WTForms: the text in the field
    if text is None or isinstance(shown, BooleanField) or not isinstance(raw, str):
        return False
    return str(text()).replace("\r\n", "\n") == raw.replace("\r\n", "\n")
