"""The pages for programs: JSON, conditional requests, and problem documents.

::

    $ curl -i localhost:8000/api/pages/with
    ETag: "otOdEsr8.6efcdedd4bf14ef4a1381fafc0e3c6c5"

    $ curl -i localhost:8000/api/pages/with -X PATCH -d '{"body": "..."}' \
        -H 'Content-Type: application/json' \
        -H 'If-Match: "otOdEsr8.6efcdedd4bf14ef4a1381fafc0e3c6c5"'
    204, or 412 with the text that is stored now

The tag goes from the header into the WHERE of the one statement that writes
(:mod:`optilock.web.fastapi`).
"""

from __future__ import annotations

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict
from sqlalchemy import select
from sqlalchemy.orm import load_only

from optilock import entities, etag_of
from optilock.errors import NotFound
from optilock.web.fastapi import ConditionalRoute, Conditions, not_modified, responses
from optilock_apps.wiki.dependencies import Db, Name
from optilock_apps.wiki.pages import Page, page_values
from optilock_apps.wiki.texts import text_of

__all__ = ["router"]

router = APIRouter(prefix="/api/pages", route_class=ConditionalRoute)


class Item(BaseModel):
    """A page in the list. No proxy weakens a tag in the body of an answer."""

    name: str
    etag: str


class Text(BaseModel):
    """The text of a page."""

    model_config = ConfigDict(extra="forbid")

    body: str


class Whole(Text):
    """A page."""

    name: str
    etag: str


@router.get("")
def listing(db: Db) -> list[Item]:
    pages = db.scalars(select(Page).options(load_only(Page.name)).order_by(Page.name))
    return [Item(name=page.name, etag=etag_of(page)) for page in pages]


@router.head("/{name}", response_model=None, include_in_schema=False)
@router.get("/{name}", response_model=Whole, responses=responses("GET"))
def get(name: Name, conditions: Conditions, db: Db, response: Response) -> Whole | Response:
    page = db.get(Page, name)
    if page is None:
        raise NotFound(Page, (name,))
    tag = conditions.tag_of(page)
    if conditions.not_modified(tag):
        return _with_fields(not_modified(tag), tag)
    _with_fields(response, tag)
    return Whole(name=page.name, body=page.body, etag=tag)


def _with_fields(answer: Response, tag: str) -> Response:
    """200 and 304 have the same (RFC 9110 section 15.4.5)."""
    answer.headers.update({"ETag": tag, "Cache-Control": "no-cache"})
    return answer


@router.put("/{name}", status_code=204, responses=responses("PUT", status_code=204))
def put(name: Name, conditions: Conditions, text: Text, db: Db) -> Response:
    stored = conditions.put(db, Page, name, page_values(text_of(text.body)))
    status = 201 if conditions.absent else 204
    return Response(status_code=status, headers={"ETag": stored.etag or ""})


@router.patch("/{name}", status_code=204, responses=responses("PATCH", status_code=204))
def patch(name: Name, conditions: Conditions, text: Text, db: Db, response: Response) -> None:
    values = page_values(text_of(text.body))
    stored = entities.merge(db, Page, name, values, **conditions.demands)
    response.headers["ETag"] = stored.etag or ""


@router.delete("/{name}", status_code=204, responses=responses("DELETE", status_code=204))
def delete(name: Name, conditions: Conditions, db: Db) -> None:
    entities.delete(db, Page, name, **conditions.demands)
