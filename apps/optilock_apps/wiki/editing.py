"""The lease of a page's editor: it warns other users, and stops no edit.

The tag in the form keeps every edit, so the lease need not (``guards=()`` of
:class:`~optilock_apps.wiki.pages.Page`). A user without a lease, or whose lease has ended, saves as
usual. The lease spares people a conflict, because the second user is warned before typing::

    editing = begin(session, "tea", 60)
    editing.lease          # the id, for the form of this editor only
    editing.since          # or since when another user has been editing the page

The script of an open editor (``static/editing.js``) sends these requests:

=================================  =================================================
POST ``/pages/{name}/editing``     I edit the page (``lease``: as I have done so far)
GET ``/pages/{name}/editing``      is it being edited?
POST ``/pages/{name}/editing/end`` I have stopped
GET ``.../editing/changes``        saves of other users, as server-sent events
=================================  =================================================

Those to ``editing`` are answered with an :class:`Editing` and with the seconds until the next
request. The id of a lease is in a form field and in an answer that no cache keeps, and never in an
address: addresses are written into logs.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from optilock import is_transient, leases
from optilock.errors import BadPrecondition, NotFound
from optilock.leases import LeaseHeld, LeaseLost
from optilock.live.starlette import stream_changes
from optilock_apps.wiki.dependencies import InWiki, Name, Wiki
from optilock_apps.wiki.forms import Sent
from optilock_apps.wiki.pages import Page

__all__ = ["Editing", "begin", "begin_edit", "end", "look", "router"]


@dataclass(frozen=True)
class Editing:
    """The visitor's own lease, or the begin of another user's; neither if the page is free."""

    lease: str = ""
    since: datetime | None = None

    @property
    def at(self) -> str | None:
        """The begin, for ``<time>``."""
        return None if self.since is None else self.since.isoformat(timespec="seconds")

    @property
    def said(self) -> str | None:
        """The begin, for people: the day as well if it was not today."""
        if self.since is None:
            return None
        today = self.since.date() == datetime.now(UTC).date()
        day = "" if today else f"{self.since.day} {self.since:%B}, "
        return f"{day}{self.since:%H:%M} UTC"


def begin(session: Session, name: str, seconds: float, mine: str = "") -> Editing:
    """Edit the page, or go on with the lease ``mine``, for so many seconds."""
    here = (Page, name)
    try:
        with suppress(LeaseLost, BadPrecondition):  # ended and taken, or no id at all
            if mine:
                return Editing(str(leases.renew(session, here, mine).id))
        return Editing(str(leases.acquire(session, here, seconds).id))
    except LeaseHeld as held:
        return Editing(since=held.since)
    except NotFound:
        return Editing()


def end(session: Session, name: str, mine: str) -> None:
    """End the visitor's edit; the lease may have ended already."""
    if mine:
        with suppress(LeaseLost, BadPrecondition, NotFound):
            leases.release(session, (Page, name), mine)


def look(session: Session, name: str) -> Editing:
    """Return the edit of another user, if there is one."""
    with suppress(NotFound):
        now = leases.look(session, (Page, name))
        if now.state == "leased":
            return Editing(since=now.since)
    return Editing()


# -- requests of static/editing.js -----------------------------------------------------------------

router = APIRouter(prefix="/pages/{name}/editing", include_in_schema=False)

#: Of the length of a lease: when its holder renews it, and when others ask for its end.
_RENEWED_AFTER, _ASKED_AFTER = 1 / 3, 1 / 10


@router.post("")
def still(wiki: InWiki, name: Name, form: Sent) -> Response:
    return _told(begin_edit(wiki, name, form.lease), wiki.lease_seconds * _RENEWED_AFTER)


@router.get("")
def ask(wiki: InWiki, name: Name) -> Response:
    with wiki.sessions() as session:
        return _told(look(session, name), wiki.lease_seconds * _ASKED_AFTER)


@router.post("/end")
def left(wiki: InWiki, name: Name, form: Sent) -> Response:
    with wiki.sessions.begin() as session:
        end(session, name, form.lease)
    return Response(status_code=204)


@router.get("/changes")
async def follow(request: Request, wiki: InWiki, name: Name) -> Response:
    # Everybody may read each page.
    return await stream_changes(request, wiki.changes, Page, name, authorize=None)


def begin_edit(wiki: Wiki, name: str, mine: str = "") -> Editing:
    """Call ``begin`` in a transaction of its own. A busy database stops no editor."""
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
