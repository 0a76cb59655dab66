"""The views' dependencies besides the form: the wiki, a session, the name of a page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, HTTPException, Request
from sqlalchemy.orm import Session, sessionmaker

from optilock.live import Changes
from optilock_apps.wiki.seals import Seals
from optilock_apps.wiki.texts import BadText, name_of

__all__ = ["Db", "InWiki", "Name", "Wiki"]


@dataclass(frozen=True)
class Wiki:
    """The shared state of all requests."""

    sessions: sessionmaker[Session]
    seals: Seals
    #: How long a user counts as editing without a further sign.
    lease_seconds: float
    #: What the open editors are shown of other users' saves.
    changes: Changes


def _wiki(request: Request) -> Wiki:
    found: Wiki = request.app.state.wiki
    return found


InWiki = Annotated[Wiki, Depends(_wiki)]


def _session(wiki: InWiki) -> Iterator[Session]:
    with wiki.sessions.begin() as session:
        yield session


#: One transaction for the request; it has ended before the answer is sent.
Db = Annotated[Session, Depends(_session, scope="function")]


def _name(name: str) -> str:
    try:
        return name_of(name)
    except BadText as error:
        raise HTTPException(404, str(error)) from None


#: From the path; what can be no name is 404.
Name = Annotated[str, Depends(_name)]
