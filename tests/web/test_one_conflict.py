"""A conflict has one shape: the tag stored now, and base, mine and theirs of each shown field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fastapi import FastAPI, Response
from fastapi.testclient import TestClient
from sqlalchemy import Engine, String, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker
from sqlalchemy.pool import StaticPool

from optilock import (
    ConfigurationError,
    PreconditionFailed,
    Versioned,
    apply,
    entities,
    etag_of,
    expect,
    watch,
)
from optilock.preconditions import merge_changes, sign_seen
from optilock.preconditions.entity_tags import ETags
from optilock.web.fastapi import Conditions, install, not_modified
from optilock.web.problems import problem_of

SIGNING = ETags(keys=["a secret of sixteen bytes or more"])


class Base(DeclarativeBase):
    pass


class Page(Versioned, Base):
    __tablename__ = "pages_of_one_conflict"
    __problem_fields__ = ("title", "body")
    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str] = mapped_column(String(50))
    body: Mapped[str] = mapped_column(String(50))


@pytest.fixture
def sessions(engine: Engine) -> Any:
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    made = watch(sessionmaker(engine))
    with made.begin() as session:
        session.add(Page(id=1, title="seen", body="seen"))
    yield made
    Base.metadata.drop_all(engine)


def by_expect(session: Session, tag: str, seen: str) -> None:
    page = session.get_one(Page, 1)
    expect(page, tag, seen={"title": "seen"})


def by_apply(session: Session, tag: str, seen: str) -> None:
    apply(session, Page, 1, {"title": "mine"}, expected=tag, seen={"title": "seen"})


def by_merge(session: Session, tag: str, seen: str) -> None:
    merge_changes(session, Page, 1, {"title": "mine"}, seen=seen, etags=SIGNING)


def by_entities(session: Session, tag: str, seen: str) -> None:
    entities.merge(session, Page, 1, {"title": "mine"}, if_match=tag)


def by_star(session: Session, tag: str, seen: str) -> None:
    entities.merge(session, Page, 1, {"title": "mine"}, if_none_match="*")


def by_nothing(session: Session, tag: str, seen: str) -> None:
    entities.merge(session, Page, 1, {}, if_match=tag)


@pytest.mark.parametrize(
    "call",
    [by_expect, by_apply, by_merge, by_entities, by_star, by_nothing],
    ids=lambda one: one.__name__,
)
def test_each_call_has_the_tag_and_the_values_of_the_stored_row(
    sessions: Any, call: Callable[..., None]
) -> None:
    with sessions() as session:
        page = session.get_one(Page, 1)
        tag, seen = etag_of(page), sign_seen(page, ["title"], etags=SIGNING)
    with sessions.begin() as other:
        other.get_one(Page, 1).title = "theirs"
    with sessions() as session:
        now = etag_of(session.get_one(Page, 1))
        with pytest.raises(PreconditionFailed) as failed:
            call(session, tag, seen)
    problem = problem_of(failed.value)
    assert problem is not None
    assert (failed.value.etag, problem.headers["ETag"], problem.status) == (now, now, 412)
    title = problem.body["conflicts"]["title"]
    assert title["database"] == "theirs"
    if call in (by_apply, by_merge):
        assert title == {"original": "seen", "current": "mine", "database": "theirs"}
    if call is by_entities:
        assert title == {"current": "mine", "database": "theirs"}


def test_a_row_that_moves_until_the_flush_has_its_tag_too(sessions: Any) -> None:
    with sessions() as session, pytest.raises(PreconditionFailed) as failed:
        page = session.get_one(Page, 1)
        expect(page, etag_of(page))
        with sessions.begin() as other:
            other.get_one(Page, 1).body = "theirs"
        page.title = "mine"
        session.flush()
    with sessions() as session:
        assert failed.value.etag == etag_of(session.get_one(Page, 1))


def test_a_merge_of_no_column_changes_nothing(sessions: Any) -> None:
    with sessions() as session:
        tag = etag_of(session.get_one(Page, 1))
    with sessions.begin() as session:
        for options in ({"if_match": tag}, {"if_match": "*"}):
            assert entities.merge(session, Page, 1, {}, **options).etag == tag


def test_a_value_that_no_client_can_send_is_the_programs_fault(sessions: Any) -> None:
    from pydantic import HttpUrl

    with sessions() as session:
        with pytest.raises(ConfigurationError, match="HttpUrl"):
            entities.merge(session, Page, 1, {"title": HttpUrl("http://x/")}, if_match="*")
        with pytest.raises(ConfigurationError, match="HttpUrl"):
            apply(session, Page, 1, {"title": HttpUrl("http://x/")}, version=1)


def test_a_304_has_the_fields_of_the_answer_with_a_body() -> None:
    engine = create_engine(
        "sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False}
    )
    Base.metadata.create_all(engine)
    made = watch(sessionmaker(engine))
    with made.begin() as session:
        session.add(Page(id=1, title="seen", body="seen"))
    app = FastAPI()
    install(app)

    @app.get("/")
    async def read(conditions: Conditions, response: Response) -> object:
        response.headers.update({"Cache-Control": "private", "Vary": "Cookie", "X-Other": "1"})
        with made() as session:
            tag = conditions.tag_of(session.get_one(Page, 1))
        if conditions.not_modified(tag):
            return not_modified(tag)
        response.headers["ETag"] = tag
        return {}

    @app.patch("/")
    async def change(conditions: Conditions) -> None:
        with made.begin() as session:
            entities.merge(session, Page, 1, {"title": "mine"}, **conditions.demands)

    with TestClient(app) as client:
        whole = client.get("/")
        short = client.get("/", headers={"If-None-Match": whole.headers["ETag"]})
        assert client.patch("/", headers={"If-None-Match": "*"}).status_code == 412
    assert short.status_code == 304
    names = ("cache-control", "vary", "etag")
    assert [short.headers[name] for name in names] == [whole.headers[name] for name in names]
    assert "x-other" not in short.headers
    assert not_modified('"a"', {"Vary": "Cookie", "X-Other": "1"}).headers["Vary"] == "Cookie"
