"""The pages behind Litestar, with async sessions."""

# No annotations from the future: Litestar reads those of local names.
from typing import Any

from litestar import Litestar, Response, delete, get, head, patch, put
from litestar.connection import ASGIConnection
from litestar.di import NamedDependency
from litestar.exceptions import PermissionDeniedException
from litestar.handlers import BaseRouteHandler
from litestar.params import FromPath, JSONBody
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from optilock import verify
from optilock.web.litestar import (
    ETAG_HEADER,
    Conditions,
    OptilockPlugin,
    not_modified,
    responses,
    unit,
)
from tests.applications import pages
from tests.applications.pages import Page, Told

Db = NamedDependency[AsyncSession]


def who(connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
    if connection.headers.get("X-Who") == "nobody":
        raise PermissionDeniedException


def answer(told: Told) -> Response[Any]:
    if told.status == 304:
        return not_modified(told.etag)
    headers = {} if told.etag is None else {"ETag": told.etag}
    return Response(told.page, status_code=told.status, headers=headers)


def application(
    sessions: async_sessionmaker[AsyncSession], another: Any = None, **installed: Any
) -> Litestar:
    @get("/pages/{key:int}", responses=responses("GET"), response_headers=[ETAG_HEADER])
    async def read(key: FromPath[int], session: Db, conditions: Conditions) -> Response[Any]:
        return answer(await session.run_sync(pages.read, conditions, key))

    @head("/pages/{key:int}")
    async def look(key: FromPath[int], session: Db, conditions: Conditions) -> Response[None]:
        told = await session.run_sync(pages.read, conditions, key)
        return answer(told._replace(page=None))

    @put("/pages/{key:int}", responses=responses("PUT"), response_headers=[ETAG_HEADER])
    async def store(
        key: FromPath[int], data: JSONBody[dict[str, Any]], session: Db, conditions: Conditions
    ) -> Response[Any]:
        return answer(await session.run_sync(pages.write, conditions, key, data))

    @patch("/pages/{key:int}", guards=[who])
    async def change(
        key: FromPath[int], data: JSONBody[dict[str, Any]], session: Db, conditions: Conditions
    ) -> Response[Any]:
        return answer(await session.run_sync(pages.write, conditions, key, data))

    @delete("/pages/{key:int}")
    async def remove(key: FromPath[int], session: Db, conditions: Conditions) -> None:
        await session.run_sync(pages.write, conditions, key, {})

    @put("/late/{key:int}")
    async def late(key: FromPath[int], session: Db) -> str:
        await session.run_sync(lambda sync: verify(sync.get_one(Page, key)))
        another(key)
        return "stored"

    return Litestar(
        [read, look, store, change, remove, late],
        plugins=[OptilockPlugin(**installed)],
        dependencies={"session": unit(sessions)},
    )
