"""The pages behind FastAPI, with sync sessions."""

# No annotations from the future: FastAPI reads those of local names.
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException, Request, Response
from pydantic import BaseModel, ConfigDict
from sqlalchemy.orm import Session, sessionmaker
from starlette.middleware.cors import CORSMiddleware

from optilock import verify
from optilock.web.conditions import ALLOW_HEADERS, EXPOSE_HEADERS
from optilock.web.conditions import Conditions as Asked
from optilock.web.fastapi import (
    ConditionalRoute,
    Conditions,
    conditions,
    install,
    not_modified,
    responses,
    unit,
)
from tests.applications import pages
from tests.applications.pages import FREE, Page, Told

Free = Annotated[Asked, conditions(policy=FREE)]


class PageIn(BaseModel):
    model_config = ConfigDict(extra="forbid")
    title: str


def who(x_who: Annotated[str | None, Header()] = None) -> None:
    if x_who == "nobody":
        raise HTTPException(403)


def answer(told: Told) -> Response:
    if told.status == 304:
        return not_modified(told.etag)
    headers = {} if told.etag is None else {"ETag": told.etag}
    if told.page is None:
        return Response(status_code=told.status, headers=headers)
    return Response(told.page["title"], headers=headers)


def application(sessions: sessionmaker[Session], **installed: Any) -> FastAPI:
    app = FastAPI()
    install(app, **installed)
    app.add_middleware(
        CORSMiddleware,
        allow_origins=["https://editor.example"],
        allow_methods=["GET", "PUT"],
        allow_headers=ALLOW_HEADERS,
        expose_headers=EXPOSE_HEADERS,
    )
    db = Annotated[Session, unit(sessions)]
    router = APIRouter(dependencies=[Depends(who)], route_class=ConditionalRoute)

    @router.head("/pages/{key}", include_in_schema=False)
    @router.get("/pages/{key}", responses=responses("GET"))
    def read(key: int, session: db, asked: Conditions) -> Response:
        return answer(pages.read(session, asked, key))

    @router.put("/pages/{key}", responses=responses("PUT"))
    def put(key: int, page: PageIn, session: db, asked: Conditions) -> Response:
        return answer(pages.write(session, asked, key, page.model_dump()))

    @router.patch("/pages/{key}", status_code=204)
    def patch(key: int, page: dict[str, Any], session: db, asked: Conditions) -> Response:
        return answer(pages.write(session, asked, key, page))

    @router.delete("/pages/{key}", status_code=204, responses=responses("DELETE", status_code=204))
    def delete(key: int, session: db, asked: Conditions) -> Response:
        return answer(pages.write(session, asked, key, {}))

    @router.put("/late/{key}")
    def late(key: int, session: db) -> Response:
        verify(session.get_one(Page, key))
        pages.another(sessions.kw["bind"], key)
        return Response("stored")

    @router.api_route(
        "/{kind}/{key}",
        include_in_schema=False,
        methods=["GET", "PUT", "PATCH", "DELETE", "POST", "TRACE"],
    )
    def free(kind: str, key: int, request: Request, session: db, asked: Free) -> Response:
        if request.method in ("GET", "TRACE"):
            return answer(pages.read(session, asked, key, own=kind == "own"))
        values = {"title": "Written"}
        return answer(pages.write(session, asked, key, values, free=True, own=kind == "own"))

    app.include_router(router)
    return app
