"""The pages for people. Each function is one address, and each write is one statement.

A form that was saved is answered with a redirect (303), so that no reload sends it twice. A form
that could not be saved is answered with a page that has everything that was typed: 409 for a
conflict, 400 or 413 for a text that no page can have.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from urllib.parse import quote

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import RedirectResponse
from sqlalchemy import select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from optilock import PreconditionFailed, entities, etag_of, is_transient
from optilock.errors import AlreadyExists, BadPrecondition, NotFound
from optilock.preconditions.rfc9110 import evaluate
from optilock.resolvers.open_text import lines_with_marks, places_in
from optilock.serialize import last_change
from optilock_apps.wiki.conflict import Conflict
from optilock_apps.wiki.dependencies import InWiki, Name, Wiki
from optilock_apps.wiki.editing import Editing, begin_edit, end
from optilock_apps.wiki.forms import Form, Sent, SentText
from optilock_apps.wiki.html import show
from optilock_apps.wiki.pages import Page, page_values
from optilock_apps.wiki.protection import is_visit
from optilock_apps.wiki.texts import BadText, author_of, name_of, text_of

__all__ = ["router"]

router = APIRouter(include_in_schema=False)
_read = partial(router.api_route, methods=["GET", "HEAD"])

_NO_TAG = "This form does not name the version of its page, so nothing was done."
_COPY = f"{_NO_TAG} What you typed is below: copy it, and edit the page again."
_OPEN = "Some places are still open, so nothing was saved. Settle what is listed below, and save."
_BUSY = "Others are writing at the same time, so nothing was saved. Save it again."


# -- reading ---------------------------------------------------------------------------------------


@_read("/")
def index(wiki: InWiki) -> Response:
    with wiki.sessions() as session:
        names = session.scalars(select(Page.name).order_by(Page.name)).all()
    return show("index.html", names=names)


@_read("/pages/{name}")
def page(request: Request, wiki: InWiki, name: Name) -> Response:
    found = _found(wiki, name)
    if found is None:
        return show("missing.html", 404, name=name)
    tag = etag_of(found)
    # Weak: of one version there can be two pages, from before and after an upgrade of the wiki.
    headers = {"ETag": f"W/{tag}", "Cache-Control": "no-cache"}
    answer = evaluate(request.method, request.headers.raw, etag=headers["ETag"])
    if answer.status == 304:
        return Response(status_code=304, headers=headers)
    if answer.status is not None:
        raise HTTPException(answer.status, answer.reason)
    return show("page.html", headers=headers, page=found, tag=tag)


def _found(wiki: Wiki, name: str) -> Page | None:
    with wiki.sessions() as session:
        return session.get(Page, name)


# -- editing ---------------------------------------------------------------------------------------


@_read("/pages/{name}/edit")
def edit(request: Request, wiki: InWiki, name: Name, anyway: bool = False) -> Response:
    # Before the text is read, so the new holder of the lease edits the former holder's last text.
    editing = begin_edit(wiki, name) if is_visit(request) else Editing()
    found = _found(wiki, name)
    if found is None:
        return show("missing.html", 404, name=name)
    if editing.since and not anyway:
        return show("occupied.html", page=found, editing=editing)
    form = _form(wiki, name, found.body, etag_of(found), base=found.body, lease=editing.lease)
    return show("edit.html", form=form, editing=editing)


def _form(wiki: Wiki, name: str, body: str, tag: str, base: str, lease: str) -> Form:
    """Return a form for the text ``body``, which began from ``base`` in this tag's version."""
    return Form(name, body, tag, base, wiki.seals.of(name, tag, base), lease)


@router.post("/pages/{name}/edit")
def save(wiki: InWiki, name: Name, form: SentText) -> Response:
    form = replace(form, name=name)
    if lines_with_marks(form.body, form.base):  # of a conflict: a save of it would store marks
        places = places_in(form.body)
        return show("edit.html", 409, form=form, places=places, wrong=_OPEN)
    try:
        form = replace(form, body=text_of(form.body), author=author_of(form.author))
        with wiki.sessions.begin() as session:
            if form.body == form.base and _is_proven(wiki, session, form):
                end(session, name, form.lease)
                return RedirectResponse(_address(name), 303)  # neither side has a change
            # In a list, "*" is no tag: its sender has not seen the text that it overwrites.
            values = page_values(form.body, form.author)
            entities.merge(session, Page, name, values, if_match=[form.tag])
            end(session, name, form.lease)
    except BadText as error:
        return show("edit.html", error.status, form=form, wrong=str(error))
    except BadPrecondition as error:
        return show("edit.html", error.status, form=form, wrong=_COPY)
    except NotFound:
        return show("deleted.html", 409, form=form)
    except PreconditionFailed as error:
        return _conflict(wiki, form, error, form.base if _is_sealed(wiki, form) else None)
    except DBAPIError as error:
        return _busy("edit.html", form, error)
    return RedirectResponse(_address(name), 303)


def _is_sealed(wiki: Wiki, form: Form) -> bool:
    return wiki.seals.hold(form.name, form.tag, form.base, form.seal)


def _is_proven(wiki: Wiki, session: Session, form: Form) -> bool:
    """Return whether the page had the form's base; after a restart the stored page proves it."""
    if _is_sealed(wiki, form):
        return True
    found = session.get(Page, form.name)
    return found is not None and (found.body, etag_of(found)) == (form.base, form.tag)


def _conflict(
    wiki: Wiki,
    form: Form,
    error: PreconditionFailed | AlreadyExists,
    base: str | None,
) -> Response:
    """Show the conflict; the form goes on from the stored text and its tag."""
    stored = error.database if isinstance(error, AlreadyExists) else error.entries[0].database
    if stored is None or error.etag is None:  # it has gone again, in this moment
        return show("deleted.html", 409, form=form)
    if stored["body"] == form.body:  # both have made the same edit: there is nothing to decide
        with wiki.sessions.begin() as session:
            end(session, form.name, form.lease)
        return RedirectResponse(_address(form.name), 303)
    conflict = Conflict(yours=form.body, theirs=stored["body"], base=base)
    now = _form(wiki, form.name, conflict.box, error.etag, conflict.theirs, form.lease)
    now = replace(now, author=form.author)
    last = last_change(stored["changed_by"], stored["changed_at"])
    return show(
        "conflict.html", 409, form=now, conflict=conflict, places=conflict.places, last=last
    )


def _busy(template: str, form: Form, error: DBAPIError) -> Response:
    if not is_transient(error):
        raise error
    return show(template, 503, form=form, wrong=_BUSY)


# -- making and deleting ---------------------------------------------------------------------------


@_read("/new")
def new(name: str = "") -> Response:
    return show("new.html", form=Form(name=name))


@router.post("/new")
def make(wiki: InWiki, form: SentText) -> Response:
    try:
        name, author = name_of(form.name), author_of(form.author)
        form = replace(form, name=name, body=text_of(form.body), author=author)
        values = page_values(form.body, form.author)
        with wiki.sessions.begin() as session:
            entities.insert(session, Page, form.name, values, if_none_match="*")
    except BadText as error:
        return show("new.html", error.status, form=form, wrong=str(error))
    except AlreadyExists as error:
        return _conflict(wiki, form, error, base=None)
    except DBAPIError as error:
        return _busy("new.html", form, error)
    return RedirectResponse(_address(form.name), 303)


@router.post("/pages/{name}/delete")
def delete(wiki: InWiki, name: Name, form: Sent) -> Response:
    try:
        with wiki.sessions.begin() as session:
            entities.delete(session, Page, name, if_match=[form.tag])
    except BadPrecondition as error:
        raise HTTPException(error.status, _NO_TAG) from None
    except NotFound:
        pass  # another user has deleted it, as was wanted
    except PreconditionFailed as error:
        (entry,) = error.entries
        last = last_change(entry.changed_by, entry.changed_at)
        return show(
            "changed.html", 409, name=name, stored=entry.database, tag=error.etag, last=last
        )
    return RedirectResponse("/", 303)


def _address(name: str) -> str:
    return f"/pages/{quote(name)}"
