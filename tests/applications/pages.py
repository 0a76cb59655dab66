"""Pages, and what each method does to one of them.

``/pages/{key}`` asks for conditions; ``/free/{key}`` performs a write without one, and PUT makes
what is not there; ``/own/{key}`` is the same with tags that the application makes itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Engine, delete, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from optilock import Versioned, entities
from optilock.errors import NotFound
from optilock.tokens import Unique
from optilock.web.conditions import Conditions, Policy

FREE = Policy(require=None)


class Base(DeclarativeBase):
    pass


class Page(Versioned, Base):
    __tablename__ = "served_pages"
    __version_token__ = Unique()
    __problem_fields__ = ("title",)
    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str]
    secret: Mapped[str | None]
    modified: Mapped[datetime | None]
    own: Mapped[str | None]


class Note(Versioned, Base):
    __tablename__ = "served_notes"
    __version_token__ = Unique()
    id: Mapped[int] = mapped_column(primary_key=True)


class Told(NamedTuple):
    """What to answer: a status, the tag, and a page for a GET."""

    status: int
    etag: str | None = None
    page: dict[str, Any] | None = None


def read(session: Session, conditions: Conditions, key: int, *, own: bool = False) -> Told:
    page = session.get(Page, key)
    if page is None:
        raise NotFound(Page, (key,))
    tag = page.own if own else conditions.tag_of(page)
    if conditions.not_modified(tag, last_modified=page.modified):
        return Told(304, tag)
    return Told(200, tag, {"title": page.title})


def write(
    session: Session,
    conditions: Conditions,
    key: int,
    values: Mapping[str, Any],
    *,
    free: bool = False,
    own: bool = False,
) -> Told:
    method = conditions.method
    if own or conditions.needs_a_look:
        return _looked(session, conditions, key, values, own=own)
    if method == "DELETE":
        return Told(204, entities.delete(session, Page, key, **conditions.demands).etag)
    if method == "PUT" and free:
        stored = conditions.put(session, Page, key, values)
        return Told(201 if conditions.absent else 200, stored.etag)
    if method == "PUT" and conditions.absent:
        return Told(201, entities.insert(session, Page, key, values, **conditions.demands).etag)
    put = entities.replace if method == "PUT" else entities.merge
    stored = put(session, Page, key, values, **conditions.demands)
    return Told(204 if method == "PATCH" else 200, stored.etag)


def _looked(
    session: Session, conditions: Conditions, key: int, values: Mapping[str, Any], *, own: bool
) -> Told:
    page, method = session.get(Page, key), conditions.method
    if page is None:
        if method != "PUT":
            raise NotFound(Page, (key,))
        demands = conditions.seen(None, exists=False)
        return Told(201, entities.insert(session, Page, key, values, **demands).etag)
    tag = page.own if own else conditions.tag_of(page)
    demands = conditions.seen(tag, last_modified=page.modified, version=page.version)
    if method == "DELETE":
        return Told(204, entities.delete(session, Page, key, **demands).etag)
    stored = entities.merge(session, Page, key, values, **demands)
    return Told(204 if method == "PATCH" else 200, stored.etag)


# -- what is stored --------------------------------------------------------------------------------


def stored(engine: Engine) -> list[tuple[Any, ...]]:
    """Every row, with its version."""
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(select(Page.__table__).order_by(Page.id))]


def fill(engine: Engine, **page: Any) -> Page:
    """Page 1 as it is wanted, page 2, and nothing else; the first."""
    with Session(engine, expire_on_commit=False) as session:
        session.execute(delete(Page.__table__))
        first = Page(**{"id": 1, "title": "Start", "secret": "hidden", **page})
        session.add_all([first, Page(id=2, title="Other")])
        session.commit()
    return first


def empty(engine: Engine) -> None:
    """No page at all."""
    with engine.begin() as connection:
        connection.execute(delete(Page.__table__))


def another(engine: Engine, key: int) -> None:
    """Somebody else writes the page."""
    with Session(engine) as session:
        session.get_one(Page, key).title = "Theirs"
        session.commit()
