"""FastAPI: a conditional PUT from the socket to the row, and back."""

# No annotations from the future: FastAPI reads those of local names.
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import pytest
from fastapi import FastAPI, Response
from pydantic import BaseModel
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from optilock import Unique, Versioned, entities
from optilock.http.errors import NotFound
from optilock.web.fastapi import Conditions, install, not_modified, responses, unit
from tests.serving import asgi, ask


class Base(DeclarativeBase):
    pass


class Page(Versioned, Base):
    __tablename__ = "web_pages"
    __version_token__ = Unique()
    __problem_fields__ = ("title",)
    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str]


class PageIn(BaseModel):
    title: str


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    path: Path = tmp_path_factory.mktemp("fastapi") / "pages.db"
    engine = create_engine(f"sqlite:///{path}")
    Base.metadata.create_all(engine)
    sessions = sessionmaker(engine)
    with sessions.begin() as session:
        session.add(Page(id=1, title="Start"))
    with asgi(application(sessions)) as port:
        yield port
    engine.dispose()


def application(sessions: sessionmaker[Session]) -> FastAPI:
    app = FastAPI()
    install(app)
    Db = Annotated[Session, unit(sessions)]

    @app.get("/pages/{key}", responses=responses("GET"))
    def read(key: int, session: Db, conditions: Conditions, response: Response) -> object:
        page = session.get(Page, key)
        if page is None:
            raise NotFound(Page, (key,))
        tag = conditions.tag_of(page)
        if conditions.not_modified(tag):
            return not_modified(tag)
        response.headers["ETag"] = tag
        return {"title": page.title}

    @app.put("/pages/{key}", responses=responses("PUT"))
    def put(
        key: int, page: PageIn, session: Db, conditions: Conditions, response: Response
    ) -> None:
        stored = entities.replace(session, Page, key, page.model_dump(), **conditions.demands)
        response.headers["ETag"] = stored.etag or ""

    return app


def test_a_tag_that_was_read_is_good_for_one_write(port: int) -> None:
    read = ask(port, "GET", "/pages/1")
    tag = read.headers["etag"]
    assert ask(port, "GET", "/pages/1", [("If-None-Match", tag)]).status == 304
    stored = ask(port, "PUT", "/pages/1", [("If-Match", tag)], {"title": "Home"})
    assert (stored.status, stored.headers["etag"] != tag) == (200, True)
    late = ask(port, "PUT", "/pages/1", [("If-Match", tag)], {"title": "Accueil"})
    assert late.problem["etag"] == late.headers["etag"] == stored.headers["etag"]
    assert late.problem["conflicts"] == {"title": {"current": "Accueil", "database": "Home"}}


def test_what_is_wrong_with_the_condition_comes_before_what_is_wrong_with_the_body(
    port: int,
) -> None:
    for body in (b"{", {"colour": 1}, {"title": "Good"}):
        assert ask(port, "PUT", "/pages/1", [], body).problem["status"] == 428
        assert ask(port, "PUT", "/pages/1", [("If-Match", "x")], body).problem["status"] == 400
    for body in (b"{", {"colour": 1}):
        assert ask(port, "PUT", "/pages/1", [("If-Match", '"stale"')], body).status == 422
    assert ask(port, "PUT", "/pages/9", [("If-Match", "*")], {"title": "?"}).problem
