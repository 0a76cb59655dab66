"""The session of a request's unit, after the unit: tasks in the background, and streams."""

# No annotations from the future: Litestar reads those of local names.
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from fastapi import BackgroundTasks, FastAPI
from flask import Flask, stream_with_context
from litestar import Litestar, get
from litestar.background_tasks import BackgroundTask as LitestarTask
from litestar.di import NamedDependency
from litestar.response import Response as LitestarResponse
from litestar.response import Stream
from sqlalchemy import Engine, create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from optilock import ConfigurationError, UnitOfWork, Versioned
from optilock.web import fastapi as on_fastapi
from optilock.web import litestar as on_litestar
from tests.support.serving import asgi, ask


class Base(DeclarativeBase):
    pass


class Page(Versioned, Base):
    __tablename__ = "ended_pages"
    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path / 'pages.db'}")
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add(Page(id=1, title="a"))
    yield engine
    engine.dispose()


class Later:
    """Work with the session of a unit, and its errors."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def write(self, session: Session, page: Page) -> None:
        for step in (
            lambda: setattr(page, "title", "b") or session.flush(),
            lambda: session.add(Page(id=2, title="c")) or session.flush(),
            lambda: session.execute(select(Page)),
            session.commit,
        ):
            self.attempt(step)

    def attempt(self, step: Callable[[], object]) -> None:
        try:
            step()
        except ConfigurationError as error:
            self.errors.append(str(error))

    def stream(self, session: Session, page: Page) -> Iterator[str]:
        yield "begun "
        self.write(session, page)
        yield "ended"


def is_refused(later: Later, engine: Engine) -> bool:
    """Nothing was stored, and the steps that need the database have said why."""
    with Session(engine) as session:
        stored = session.scalars(select(Page.title)).all()
    return (
        stored == ["a"] and all("has ended" in one for one in later.errors) and later.errors != []
    )


def starlette_of(engine: Engine, later: Later) -> Starlette:
    def task(_: Request) -> Response:
        with UnitOfWork(engine) as session:
            page = session.get_one(Page, 1)
        return JSONResponse({}, background=BackgroundTask(later.write, session, page))

    def stream(_: Request) -> Response:
        with UnitOfWork(engine) as session:
            page = session.get_one(Page, 1)
        return StreamingResponse(later.stream(session, page))

    return Starlette(routes=[Route("/task", task), Route("/stream", stream)])


def fastapi_of(engine: Engine, later: Later) -> FastAPI:
    app = FastAPI()
    db = Annotated[Session, on_fastapi.unit(sessionmaker(engine, expire_on_commit=False))]

    @app.get("/task")
    def task(session: db, tasks: BackgroundTasks) -> str:
        tasks.add_task(later.write, session, session.get_one(Page, 1))
        return "accepted"

    @app.get("/stream")
    def stream(session: db) -> StreamingResponse:
        return StreamingResponse(later.stream(session, session.get_one(Page, 1)))

    return app


def litestar_of(engine: Engine, later: Later) -> Litestar:
    @get("/task", sync_to_thread=True)
    def task(session: NamedDependency[Session]) -> LitestarResponse[str]:
        work = LitestarTask(later.write, session, session.get_one(Page, 1))
        return LitestarResponse("accepted", background=work)

    @get("/stream", sync_to_thread=True)
    def stream(session: NamedDependency[Session]) -> Stream:
        return Stream(later.stream(session, session.get_one(Page, 1)))

    unit = on_litestar.unit(sessionmaker(engine, expire_on_commit=False))
    return Litestar([task, stream], dependencies={"session": unit})


@pytest.mark.parametrize("path", ["/task", "/stream"])
@pytest.mark.parametrize("application", [starlette_of, fastapi_of, litestar_of])
def test_the_session_refuses_in_a_task_and_in_a_stream(
    application: Callable[[Engine, Later], Any], path: str, engine: Engine
) -> None:
    later = Later()
    with asgi(application(engine, later)) as port:
        assert ask(port, "GET", path).status == 200
    assert is_refused(later, engine)


def test_the_session_refuses_in_a_stream_of_flask(engine: Engine) -> None:
    app, later = Flask("streams"), Later()

    @app.get("/stream")
    def stream() -> Any:
        with UnitOfWork(engine) as session:
            page = session.get_one(Page, 1)
        return stream_with_context(later.stream(session, page))

    assert app.test_client().get("/stream").text == "begun ended"
    assert is_refused(later, engine)
