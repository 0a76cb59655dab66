"""The wiki as an application for any ASGI server::

engine = create_engine("postgresql+psycopg://me@localhost/wiki")
prepare(engine)
app = wiki(engine, secret=os.environ["WIKI_SECRET"])
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable

from fastapi import FastAPI, Request, Response
from fastapi.staticfiles import StaticFiles
from sqlalchemy import Engine
from sqlalchemy.orm import sessionmaker
from starlette.exceptions import HTTPException

from optilock.wiki import views
from optilock.wiki.protection import HEADERS, refusal
from optilock.wiki.seals import Seals
from optilock.wiki.views import Wiki, show

__all__ = ["wiki"]


def wiki(engine: Engine, *, secret: str | bytes | None = None) -> FastAPI:
    """The application.

    Args:
        engine: of a database that :func:`optilock.wiki.pages.prepare` has seen.
        secret: signs the texts in the forms. All processes of one wiki have the same. Without one
            a new one is made: after a restart a conflict is shown without a merge.
    """
    app = FastAPI(title="optilock wiki", docs_url=None, redoc_url=None)
    made = secrets.token_bytes(32) if secret is None else secret
    seals = Seals(made.encode() if isinstance(made, str) else made)
    app.state.wiki = Wiki(sessionmaker(engine), seals)
    app.middleware("http")(_protected)
    app.exception_handler(HTTPException)(_answer)
    app.include_router(views.router)
    app.mount("/static", StaticFiles(packages=[("optilock.wiki", "static")]))
    return app


async def _protected(request: Request, go_on: Callable[[Request], Awaitable[Response]]) -> Response:
    refused = refusal(request)
    answer = await go_on(request) if refused is None else _answer(request, refused)
    answer.headers.update(HEADERS)
    return answer


def _answer(request: Request, error: HTTPException) -> Response:
    return show(
        request, "message.html", error.status_code, dict(error.headers or {}), said=error.detail
    )
