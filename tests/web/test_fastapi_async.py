"""FastAPI with an ``AsyncSession``, on PostgreSQL: clients that race with one tag, and COMMIT."""

# No annotations from the future: FastAPI reads those of local names.
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Annotated, Any

import pytest
from fastapi import FastAPI, Response
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker

import optilock.asyncio
from optilock import verify
from optilock.errors import NotFound
from optilock.web.fastapi import Conditions, install, not_modified, responses, unit
from tests.applications.pages import Base, Page
from tests.support.serving import Answer, asgi, ask

CLIENTS = 8


def application(engine: AsyncEngine, made: Callable[[], Any]) -> FastAPI:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await made()
        yield
        await engine.dispose()

    app = FastAPI(lifespan=lifespan)
    install(app)
    sessions = async_sessionmaker(engine)
    db = Annotated[AsyncSession, unit(sessions)]

    @app.get("/pages/{key}", responses=responses("GET"))
    async def read(key: int, session: db, asked: Conditions) -> Response:
        page = await session.get(Page, key)
        if page is None:
            raise NotFound(Page, (key,))
        tag = asked.tag_of(page)
        if asked.not_modified(tag):
            return not_modified(tag)
        return Response(page.title, headers={"ETag": tag})

    @app.put("/pages/{key}", responses=responses("PUT"))
    async def put(key: int, page: dict[str, Any], session: db, asked: Conditions) -> Response:
        stored = await session.run_sync(asked.put, Page, key, page)
        return Response(headers={"ETag": stored.etag or ""})

    @app.patch("/pages/{key}", responses=responses("PATCH"))
    async def patch(key: int, page: dict[str, Any], session: db, asked: Conditions) -> Response:
        stored = await optilock.asyncio.merge(session, Page, key, page, **asked.demands)
        return Response(headers={"ETag": stored.etag or ""})

    @app.put("/late/{key}")
    async def late(key: int, session: db) -> Response:
        page = await session.get_one(Page, key)
        await session.run_sync(lambda _: verify(page))
        async with sessions.begin() as other:
            (await other.get_one(Page, key)).title = "Theirs"
        return Response("stored")

    return app


@pytest.mark.parametrize("async_database", ["postgresql-asyncpg"], indirect=True)
def test_an_async_session_serves_a_request_and_one_of_many_clients_wins(
    async_engine: AsyncEngine,
) -> None:
    async def made() -> None:
        async with async_engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)

    with asgi(application(async_engine, made)) as port, ThreadPoolExecutor(CLIENTS) as clients:

        def race(method: str, line: tuple[str, str]) -> list[Answer]:
            sent = [
                clients.submit(ask, port, method, "/pages/1", [line], {"title": f"by {one}"})
                for one in range(CLIENTS)
            ]
            return [each.result() for each in sent]

        answers = race("PUT", ("If-None-Match", "*"))
        for _ in range(5):
            won = [answer for answer in answers if answer.status == 200]
            assert sorted(answer.status for answer in answers) == [200] + [412] * (CLIENTS - 1)
            (tag,) = {answer.headers["etag"] for answer in won}
            assert ask(port, "GET", "/pages/1", [("If-None-Match", tag)]).status == 304
            answers = race("PATCH", ("If-Match", tag))
        late = ask(port, "PUT", "/late/1")
        assert (late.status, late.problem["type"]) == (409, "urn:optilock:conflict")
        assert ask(port, "PATCH", "/pages/9", [("If-Match", "*")], {}).problem["status"] == 404
