"""The pages for people. Each function is one address, and each write is one statement.

A form that was saved is answered with a redirect (303), so that no reload sends it twice. A form
that could not be saved is answered with a page that has everything that was typed: 409 for a
conflict, 400 or 413 for a text that no page can have.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Depends, HTTPException, Request, Response
from fastapi.responses import RedirectResponse
from fastapi.templating import Jinja2Templates
from jinja2 import Environment, PackageLoader, StrictUndefined
from sqlalchemy import select
from sqlalchemy.orm import Session, sessionmaker

from optilock import (
    AlreadyExists,
    BadPrecondition,
    NotFound,
    PreconditionFailed,
    entities,
    etag_of,
)
from optilock.http.preconditions import evaluate
from optilock.wiki.conflict import Conflict
from optilock.wiki.forms import Form, Sent
from optilock.wiki.pages import CREDIT, Page
from optilock.wiki.seals import Seals
from optilock.wiki.texts import BadText, name_of, text_of

__all__ = ["Wiki", "router", "show"]

router = APIRouter(include_in_schema=False)
_read = partial(router.api_route, methods=["GET", "HEAD"])

_environment = Environment(
    loader=PackageLoader("optilock.wiki"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.globals["credit"] = CREDIT
_templates = Jinja2Templates(env=_environment)

_NO_TAG = (
    "This form does not say which version of the page it is about, so nothing was saved. What you"
    " typed is below: copy it, and edit the page anew."
)


@dataclass(frozen=True)
class Wiki:
    """What the views need besides a request."""

    sessions: sessionmaker[Session]
    seals: Seals

    def form(self, name: str, body: str, tag: str, base: str) -> Form:
        """A form for ``body``, which began from ``base`` in the version of this tag."""
        return Form(name, body, tag, base, self.seals.of(tag, base))


def _wiki(request: Request) -> Wiki:
    found: Wiki = request.app.state.wiki
    return found


def _name(name: str) -> str:
    try:
        return name_of(name)
    except BadText as error:
        raise HTTPException(404, str(error)) from None


InWiki = Annotated[Wiki, Depends(_wiki)]
Name = Annotated[str, Depends(_name)]


# -- reading ---------------------------------------------------------------------------------------


@_read("/")
def index(request: Request, wiki: InWiki) -> Response:
    with wiki.sessions() as session:
        names = session.scalars(select(Page.name).order_by(Page.name)).all()
    return show(request, "index.html", names=names)


@_read("/pages/{name}")
def page(request: Request, wiki: InWiki, name: Name) -> Response:
    found = _found(wiki, name)
    if found is None:
        return show(request, "missing.html", 404, name=name)
    tag = etag_of(found)
    # Weak: of one version there can be two pages, from before and after an upgrade of the wiki.
    headers = {"ETag": f"W/{tag}", "Cache-Control": "no-cache"}
    answer = evaluate(request.method, request.headers.raw, etag=headers["ETag"])
    if answer.status == 304:
        return Response(status_code=304, headers=headers)
    if answer.status is not None:
        raise HTTPException(answer.status, answer.reason)
    return show(request, "page.html", headers=headers, page=found, tag=tag)


def _found(wiki: Wiki, name: str) -> Page | None:
    with wiki.sessions() as session:
        return session.get(Page, name)


# -- editing ---------------------------------------------------------------------------------------


@_read("/pages/{name}/edit")
def edit(request: Request, wiki: InWiki, name: Name) -> Response:
    found = _found(wiki, name)
    if found is None:
        return show(request, "missing.html", 404, name=name)
    form = wiki.form(name, found.body, etag_of(found), base=found.body)
    return show(request, "edit.html", form=form)


@router.post("/pages/{name}/edit")
def save(request: Request, wiki: InWiki, name: Name, form: Sent) -> Response:
    form = replace(form, name=name)
    try:
        body = text_of(form.body)
        with wiki.sessions.begin() as session:
            # In a list, "*" is no tag: whoever sends it has not seen what he would overwrite.
            entities.merge(session, Page, name, {"body": body}, if_match=[form.tag])
    except BadText as error:
        return show(request, "edit.html", error.status, form=form, wrong=str(error))
    except BadPrecondition as error:
        return show(request, "edit.html", error.status, form=form, wrong=_NO_TAG)
    except NotFound:
        return show(request, "deleted.html", 409, form=form)
    except PreconditionFailed as error:
        base = wiki.seals.proven(form.tag, form.base, form.seal)
        stored = error.entries[0].database
        return _conflict(request, wiki, name, body, stored, error.etag, base)
    return RedirectResponse(_address(name), 303)


def _conflict(
    request: Request,
    wiki: Wiki,
    name: str,
    yours: str,
    stored: Any,
    tag: str | None,
    base: str | None,
) -> Response:
    """Goes on from what is stored now: its tag, and its text as the new base."""
    assert tag is not None
    conflict = Conflict(yours=yours, theirs=stored["body"], base=base)
    form = wiki.form(name, conflict.box, tag, base=conflict.theirs)
    return show(request, "conflict.html", 409, form=form, conflict=conflict)


# -- making and deleting ---------------------------------------------------------------------------


@_read("/new")
def new(request: Request, name: str = "") -> Response:
    return show(request, "new.html", form=Form(name=name))


@router.post("/new")
def make(request: Request, wiki: InWiki, form: Sent) -> Response:
    try:
        name, body = name_of(form.name), text_of(form.body)
        with wiki.sessions.begin() as session:
            entities.insert(session, Page, name, {"body": body}, if_none_match="*")
    except BadText as error:
        return show(request, "new.html", error.status, form=form, wrong=str(error))
    except AlreadyExists as error:
        if error.database is None:  # made and deleted, all in this moment
            return show(request, "deleted.html", 409, form=form)
        return _conflict(request, wiki, name, body, error.database, error.etag, base=None)
    return RedirectResponse(_address(name), 303)


@router.post("/pages/{name}/delete")
def delete(request: Request, wiki: InWiki, name: Name, form: Sent) -> Response:
    try:
        with wiki.sessions.begin() as session:
            entities.delete(session, Page, name, if_match=[form.tag])
    except BadPrecondition as error:
        raise HTTPException(error.status, _NO_TAG) from None
    except NotFound:
        pass  # somebody else has deleted it, as was wanted
    except PreconditionFailed as error:
        stored = error.entries[0].database
        return show(request, "changed.html", 409, name=name, stored=stored, tag=error.etag)
    return RedirectResponse("/", 303)


# -- answers ---------------------------------------------------------------------------------------


def show(
    request: Request,
    template: str,
    status: int = 200,
    headers: dict[str, str] | None = None,
    **values: Any,
) -> Response:
    """A page. Without headers of its own no browser keeps it: a form has the newest tag."""
    kept = {"Cache-Control": "no-store"} if headers is None else headers
    values.setdefault("wrong", None)
    return _templates.TemplateResponse(request, template, values, status, kept)


def _address(name: str) -> str:
    return f"/pages/{quote(name)}"
