"""A database that cannot be reached is 503, whatever its driver raises; other errors are not."""

# No annotations from the future: FastAPI and Litestar read those of local names.
import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from fastapi import FastAPI
from litestar import Litestar
from litestar import get as get_of_litestar
from litestar.response import Response as LitestarResponse
from optilock_apps.servers import free_port
from sqlalchemy import URL, Engine, String, create_engine, make_url, select, text
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker
from sqlalchemy.orm.exc import StaleDataError
from sqlalchemy.pool import NullPool
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient

from optilock import AsyncUnitOfWork, ConfigurationError, Versioned, watch
from optilock.web.fastapi import install
from optilock.web.litestar import OptilockPlugin
from optilock.web.problems import problem_of
from optilock.web.starlette import exception_handlers
from tests.support.serving import asgi, ask

Work = Callable[[], Any]


def told(_: Any, error: Exception) -> Response:
    return Response(f"the application's: {error}", 500)


def on_fastapi(work: Work, others: dict[Any, Any]) -> FastAPI:
    app = FastAPI(exception_handlers=others)
    install(app)
    app.add_api_route("/", work)
    return app


def on_starlette(work: Work, others: dict[Any, Any]) -> Starlette:
    async def get(_: Any) -> Response:
        await work()
        return Response("done")

    return Starlette(routes=[Route("/", get)], exception_handlers=exception_handlers() | others)


def on_litestar(work: Work, others: dict[Any, Any]) -> Litestar:
    async def get() -> None:
        await work()

    def ours(_: Any, error: Exception) -> LitestarResponse[str]:
        return LitestarResponse(f"the application's: {error}", status_code=500)

    handlers = dict.fromkeys(others, ours)
    route = get_of_litestar("/")(get)
    return Litestar([route], plugins=[OptilockPlugin()], exception_handlers=handlers)


FRAMEWORKS = {"fastapi": on_fastapi, "starlette": on_starlette, "litestar": on_litestar}
every_framework = pytest.mark.parametrize("on", FRAMEWORKS.values(), ids=FRAMEWORKS)


def asking(url: URL) -> Work:
    """A handler that asks the database there, over a connection of its own."""
    sessions = async_sessionmaker(create_async_engine(url, poolclass=NullPool))

    async def work() -> None:
        async with AsyncUnitOfWork(sessions) as session:
            await session.execute(text("SELECT 1"))

    return work


@every_framework
@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
def test_a_server_that_is_not_there_is_503(on: Any, driver: str) -> None:
    away = make_url(f"postgresql+{driver}://nobody@127.0.0.1:{free_port()}/nothing")
    with asgi(on(asking(away), {})) as port:
        answer = ask(port, "GET", "/")
    assert (answer.status, answer.problem["type"]) == (503, "urn:optilock:try-again")
    assert answer.headers["retry-after"] == "1"


@pytest.fixture
def taken(engine: Engine) -> Iterator[URL]:
    """A role that may have one connection, and has it."""
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP ROLE IF EXISTS optilock_web")
        connection.exec_driver_sql("CREATE ROLE optilock_web LOGIN CONNECTION LIMIT 1")
    url = engine.url.set(username="optilock_web", password=None)
    holding = create_engine(url)
    with holding.connect():
        yield url
    holding.dispose()
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP ROLE optilock_web")


@every_framework
@pytest.mark.engines("postgresql")
@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
def test_a_server_without_a_free_connection_is_503(on: Any, driver: str, taken: URL) -> None:
    with asgi(on(asking(taken.set(drivername=f"postgresql+{driver}")), {})) as port:
        answer = ask(port, "GET", "/")
    assert (answer.status, answer.problem["type"]) == (503, "urn:optilock:try-again")


@every_framework
@pytest.mark.engines("postgresql")
@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
def test_a_database_that_is_not_known_is_500(on: Any, driver: str, engine: Engine) -> None:
    nix = engine.url.set(drivername=f"postgresql+{driver}", database="optilock_nix")
    with asgi(on(asking(nix), {})) as port:
        assert ask(port, "GET", "/").status == 500


async def refused_by_a_mail_server() -> None:
    await asyncio.open_connection("127.0.0.1", free_port())


@every_framework
@pytest.mark.parametrize("handled", [None, Exception, OSError, 500])
def test_an_error_of_another_connection_is_the_applications(on: Any, handled: Any) -> None:
    others = {} if handled is None else {handled: told}
    with asgi(on(refused_by_a_mail_server, others)) as port:
        answer = ask(port, "GET", "/")
    assert answer.status == 500
    assert (b"the application's" in answer.content) is (handled is not None)


@pytest.mark.parametrize("error", [OSError("a disk"), ConfigurationError("of the program")])
def test_what_nobody_is_told_is_for_litestars_own_handlers(error: Exception) -> None:
    async def work() -> None:
        raise error

    with asgi(on_litestar(work, {Exception: told})) as port:
        answer = ask(port, "GET", "/")
    assert (answer.status, answer.content) == (500, f"the application's: {error}".encode())


@pytest.mark.parametrize("error", [OSError("a disk"), StaleDataError("of a row")])
def test_a_websocket_ends_with_the_error_itself(error: Exception) -> None:
    async def talk(socket: Any) -> None:
        await socket.accept()
        raise error

    app = Starlette(routes=[WebSocketRoute("/", talk)], exception_handlers=exception_handlers())
    with pytest.raises(type(error)) as caught, TestClient(app).websocket_connect("/"):
        pass
    assert caught.value is error


# -- what no operation of ours has looked at -------------------------------------------------------

HUGE = 10**30


class Base(DeclarativeBase):
    pass


class Page(Versioned, Base):
    __tablename__ = "pages_asked_for"
    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str] = mapped_column(String(100))


def status_of(work: Callable[[], object]) -> int | None:
    """Of the answer; 404 where nothing was found."""
    try:
        return 404 if work() is None else 200
    except Exception as error:
        problem = problem_of(error)
        return None if problem is None else problem.status


def test_a_key_of_no_row_and_null_where_none_may_stand_are_answers(engine: Engine) -> None:
    """F: on every database; what the program has done wrong stays an error of its own."""
    Base.metadata.create_all(engine)
    sessions = watch(sessionmaker(engine))
    with sessions.begin() as session:
        session.add(Page(id=1, title="One"))

    def null(session: Session) -> None:
        session.get(Page, 1).title = None
        session.flush()

    def new(session: Session) -> None:
        session.add(Page(id=3, title=None))
        session.flush()

    cases: list[tuple[Callable[[Session], object], int | None]] = [
        (lambda session: session.get(Page, HUGE), 404),
        (lambda session: session.get_one(Page, HUGE), 404),
        (lambda session: session.get_one(Page, 2), 404),
        (lambda session: session.scalars(select(Page).where(Page.id == 2)).one(), None),
        (null, 400),
        (new, None),
    ]
    for case, status in cases:
        with sessions() as session:
            assert status_of(partial(case, session)) == status
    Base.metadata.drop_all(engine)
    with sessions() as session:  # there is no such table
        assert status_of(lambda: session.get(Page, 1)) is None


@pytest.mark.anyio
async def test_a_key_of_no_row_is_404_of_async_drivers_too(async_engine: AsyncEngine) -> None:
    """F: asyncpg refuses a number out of range by itself."""
    async with async_engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    sessions = watch(async_sessionmaker(async_engine))
    for key in (2, HUGE):
        for name in ("get", "get_one"):
            async with sessions() as session:

                def work(session: Session, key: int = key, name: str = name) -> int | None:
                    return status_of(lambda: getattr(session, name)(Page, key))

                assert (name, key, await session.run_sync(work)) == (name, key, 404)
