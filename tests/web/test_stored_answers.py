"""A conditional request is answered with success only if its change is stored.

The route compares the condition, changes the row, and its session is closed without COMMIT.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fastapi import Depends, FastAPI
from fastapi.testclient import TestClient
from flask import Flask
from litestar import Litestar
from litestar import Request as LitestarRequest
from litestar import put as litestar_put
from litestar.testing import TestClient as LitestarClient
from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker
from sqlalchemy.pool import StaticPool
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.testclient import TestClient as StarletteClient

from optilock import Versioned, entities, etag_of, expect, watch
from optilock.web import fastapi as on_fastapi
from optilock.web import flask as on_flask
from optilock.web import litestar as on_litestar
from optilock.web import starlette as on_starlette


class Base(DeclarativeBase):
    pass


class Page(Versioned, Base):
    __tablename__ = "answered_pages"
    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str]


Sessions = sessionmaker[Session]
#: Changes page 1 in a session that was opened for the request.
Edit = Callable[[Session, str], None]


@pytest.fixture
def sessions() -> Iterator[Sessions]:
    options = {"connect_args": {"check_same_thread": False}, "poolclass": StaticPool}
    engine: Engine = create_engine("sqlite://", **options)
    Base.metadata.create_all(engine)
    made = watch(sessionmaker(engine))
    with made.begin() as session:
        session.add(Page(id=1, title="old"))
    yield made
    engine.dispose()


def unflushed(session: Session, tag: str) -> None:
    page = session.get_one(Page, 1)
    expect(page, tag)
    page.title = "new"


def flushed(session: Session, tag: str) -> None:
    unflushed(session, tag)
    session.flush()


def by_statement(session: Session, tag: str) -> None:
    entities.merge(session, Page, 1, {"title": "new"}, if_match=tag)


def committed(session: Session, tag: str) -> None:
    unflushed(session, tag)
    session.commit()


def rolled_back(session: Session, tag: str) -> None:
    """The program has decided so: it only tries the change."""
    flushed(session, tag)
    session.rollback()


#: The answer, and the title that is stored.
EDITS = {
    unflushed: (500, "old"),
    flushed: (500, "old"),
    by_statement: (500, "old"),
    committed: (200, "new"),
    rolled_back: (200, "old"),
}


def fastapi(sessions: Sessions, edit: Edit) -> Any:
    app = FastAPI()
    on_fastapi.install(app)

    def opened() -> Iterator[Session]:
        with sessions() as session:
            yield session

    @app.put("/pages/1")
    def put(asked: on_fastapi.Conditions, db: Session = Depends(opened)) -> None:  # noqa: B008
        edit(db, asked.expected[0])

    return TestClient(app, raise_server_exceptions=False)


def starlette(sessions: Sessions, edit: Edit) -> Any:
    def put(request: Request) -> Response:
        with sessions() as session:
            edit(session, on_starlette.conditions_of(request).expected[0])
        return Response()

    return StarletteClient(
        Starlette(
            routes=[Route("/pages/1", put, methods=["PUT"])],
            middleware=[Middleware(on_starlette.ConditionalRequests)],
        ),
        raise_server_exceptions=False,
    )


def litestar(sessions: Sessions, edit: Edit) -> Any:
    @litestar_put("/pages/1", sync_to_thread=True)
    def put(request: LitestarRequest[Any, Any, Any]) -> None:
        with sessions() as session:
            edit(session, request.headers["If-Match"])

    app = Litestar([put], plugins=[on_litestar.OptilockPlugin()])
    return LitestarClient(app, raise_server_exceptions=False)


class FlaskClient:
    def __init__(self, app: Flask) -> None:
        self._client = app.test_client()

    def put(self, path: str, headers: dict[str, str]) -> Any:
        return self._client.put(path, headers=headers)


def flask(sessions: Sessions, edit: Edit) -> Any:
    app = Flask("pages")
    extension = on_flask.Optilock(app)

    @app.put("/pages/1")
    def put() -> str:
        with sessions() as session:
            edit(session, extension.conditions().expected[0])
        return ""

    return FlaskClient(app)


def tag_of_page(sessions: Sessions) -> str:
    with sessions() as session:
        return etag_of(session.get_one(Page, 1))


def title_of_page(sessions: Sessions) -> str:
    with sessions() as session:
        return session.get_one(Page, 1).title


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("serve", [fastapi, starlette, litestar, flask])
def test_success_means_that_it_is_stored(
    sessions: Sessions, serve: Callable[[Sessions, Edit], Any], edit: Edit
) -> None:
    client = serve(sessions, edit)
    answer = client.put("/pages/1", headers={"If-Match": tag_of_page(sessions)})
    assert (answer.status_code, title_of_page(sessions)) == EDITS[edit]
    if answer.status_code == 500:
        assert answer.headers["content-type"] == "application/problem+json"


def test_a_dependency_that_commits_after_its_yield_is_waited_for(sessions: Sessions) -> None:
    """FastAPI sends the answer before it leaves such a dependency."""
    app = FastAPI()
    on_fastapi.install(app)

    def opened() -> Iterator[Session]:
        with sessions.begin() as session:
            yield session

    @app.put("/pages/1")
    def put(asked: on_fastapi.Conditions, db: Session = Depends(opened)) -> None:  # noqa: B008
        unflushed(db, asked.expected[0])

    client = TestClient(app, raise_server_exceptions=False)
    answer = client.put("/pages/1", headers={"If-Match": tag_of_page(sessions)})
    assert (answer.status_code, title_of_page(sessions)) == (200, "new")


def test_a_session_that_is_only_forgotten_has_stored_nothing(sessions: Sessions) -> None:
    def put(request: Request) -> Response:
        session = sessions()
        flushed(session, on_starlette.conditions_of(request).expected[0])
        return Response()

    app = Starlette(
        routes=[Route("/pages/1", put, methods=["PUT"])],
        middleware=[Middleware(on_starlette.ConditionalRequests)],
    )
    answer = StarletteClient(app).put("/pages/1", headers={"If-Match": tag_of_page(sessions)})
    assert answer.status_code == 500
