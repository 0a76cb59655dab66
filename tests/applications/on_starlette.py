"""The pages behind Starlette, with async sessions."""

from __future__ import annotations

from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from optilock import AsyncUnitOfWork, verify
from optilock.web.starlette import (
    ConditionalRequests,
    conditions_of,
    exception_handlers,
    not_modified,
)
from tests.applications import pages
from tests.applications.pages import Page, Told


def answer(told: Told) -> Response:
    if told.status == 304:
        return not_modified(told.etag)
    headers = {} if told.etag is None else {"ETag": told.etag}
    return Response("" if told.page is None else told.page["title"], told.status, headers)


def application(
    sessions: async_sessionmaker[AsyncSession], another: Any = None, **installed: Any
) -> Starlette:
    async def read(request: Request) -> Response:
        asked = conditions_of(request, **installed)
        async with AsyncUnitOfWork(sessions) as session:
            return answer(await session.run_sync(pages.read, asked, request.path_params["key"]))

    async def write(request: Request) -> Response:
        if request.headers.get("X-Who") == "nobody":
            raise HTTPException(403)
        asked = conditions_of(request, **installed)
        try:
            values = {} if asked.method == "DELETE" else await request.json()
        except ValueError:
            raise HTTPException(400) from None
        key = request.path_params["key"]
        async with AsyncUnitOfWork(sessions) as session:
            return answer(await session.run_sync(pages.write, asked, key, values))

    async def late(request: Request) -> Response:
        key = request.path_params["key"]
        async with AsyncUnitOfWork(sessions) as session:
            await session.run_sync(lambda sync: verify(sync.get_one(Page, key)))
            another(key)
        return Response("stored")

    return Starlette(
        routes=[
            Route("/late/{key:int}", late, methods=["PUT"]),
            Route("/pages/{key:int}", read, methods=["GET"]),
            Route("/pages/{key:int}", write, methods=["PUT", "PATCH", "DELETE"]),
        ],
        middleware=[Middleware(ConditionalRequests)],
        exception_handlers=exception_handlers(**installed),
    )
