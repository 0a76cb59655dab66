"""What the script of an editor says and asks while it is open: ``static/editing.js``.

======  ========================  =========================================================
POST    /pages/{name}/editing      I edit the page (``lease``: as I have done until now)
GET     /pages/{name}/editing      does anybody edit it?
POST    /pages/{name}/editing/end  I edit it no more
======  ========================  =========================================================

The first two are answered with what :class:`~optilock.wiki.editing.Editing` has, and with the
seconds after which to come again. The id of a lease is in a field of a form and in an answer to
its holder that nobody keeps, and in no address: addresses are written into logs.
"""

from __future__ import annotations

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from sqlalchemy.exc import DBAPIError

from optilock import is_transient
from optilock.wiki.dependencies import InWiki, Name, Wiki
from optilock.wiki.editing import Editing, begin, end, look
from optilock.wiki.forms import Sent

__all__ = ["begun", "router"]

router = APIRouter(prefix="/pages/{name}/editing", include_in_schema=False)

#: Of the length of a lease: when its holder renews it, and when others ask for its end.
_RENEWED_AFTER, _ASKED_AFTER = 1 / 3, 1 / 10


@router.post("")
def still(wiki: InWiki, name: Name, form: Sent) -> Response:
    return _told(begun(wiki, name, form.lease), wiki.lease_seconds * _RENEWED_AFTER)


@router.get("")
def ask(wiki: InWiki, name: Name) -> Response:
    with wiki.sessions() as session:
        return _told(look(session, name), wiki.lease_seconds * _ASKED_AFTER)


@router.post("/end")
def left(wiki: InWiki, name: Name, form: Sent) -> Response:
    with wiki.sessions.begin() as session:
        end(session, name, form.lease)
    return Response(status_code=204)


def begun(wiki: Wiki, name: str, mine: str = "") -> Editing:
    """``begin``, in a transaction of its own. A busy database stops no editor."""
    try:
        with wiki.sessions.begin() as session:
            return begin(session, name, wiki.lease_seconds, mine)
    except DBAPIError as error:
        if not is_transient(error):
            raise
        return Editing(mine)


def _told(editing: Editing, again: float) -> Response:
    content = {"lease": editing.lease, "since": editing.at, "said": editing.said, "again": again}
    return JSONResponse(content, headers={"Cache-Control": "no-store"})
