"""Who edits a page just now: a lease that tells others so, and stops nobody.

The tag in the form keeps every edit, so the lease need not (``guards=()`` of
:class:`~optilock.wiki.pages.Page`): whoever edits a page all the same, and whoever's lease has
ended, saves as ever. The lease spares people a conflict, by telling who comes second before he
types::

    editing = begin(session, "tea", 60)
    editing.lease          # the id, for the form of this editor and for nobody else
    editing.since          # or since when somebody else has been editing the page
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy.orm import Session

from optilock import BadPrecondition, NotFound, leases
from optilock.leases import LeaseHeld, LeaseLost
from optilock.wiki.pages import Page

__all__ = ["Editing", "begin", "end", "look"]


@dataclass(frozen=True)
class Editing:
    """What one visitor is told: his own lease, or somebody else's begin; neither if it is free."""

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
    """Edit it no more. What is no lease any more has ended already."""
    if mine:
        with suppress(LeaseLost, BadPrecondition, NotFound):
            leases.release(session, (Page, name), mine)


def look(session: Session, name: str) -> Editing:
    """Does anybody edit it?"""
    with suppress(NotFound):
        now = leases.look(session, (Page, name))
        if now.state == "leased":
            return Editing(since=now.since)
    return Editing()
