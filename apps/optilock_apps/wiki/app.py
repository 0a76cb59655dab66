"""The wiki as an application for any ASGI server::

    engine = create_engine("postgresql+psycopg://me@localhost/wiki")
    prepare(engine)
    app = wiki(engine, secret=os.environ["WIKI_SECRET"])

It lives at the root of its host.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from http import HTTPStatus

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.staticfiles import StaticFiles
from sqlalchemy import Engine
from sqlalchemy.orm import sessionmaker
from starlette.exceptions import HTTPException

from optilock.live import Changes
from optilock.preconditions.entity_tags import ETags
from optilock.web.fastapi import install
from optilock.web.problems import ERRORS, Problem, problem_of
from optilock.web.starlette import ProblemResponse
from optilock_apps.wiki import api, editing, views
from optilock_apps.wiki.dependencies import Wiki
from optilock_apps.wiki.html import show
from optilock_apps.wiki.pages import Page
from optilock_apps.wiki.protection import HEADERS, is_loopback, refusal
from optilock_apps.wiki.seals import Seals
from optilock_apps.wiki.texts import BadText

__all__ = ["LEASE_SECONDS", "is_loopback", "wiki"]

LEASE_SECONDS = 60.0

#: Seconds between two questions for the pages that are open in an editor.
_CHANGES_EVERY = 0.5

#: The most characters of a client's name in the answer that it does not exist.
_LONGEST = 64


def wiki(
    engine: Engine,
    *,
    secret: str | bytes | None = None,
    lease_seconds: float = LEASE_SECONDS,
    hosts: Iterable[str] | None = None,
) -> FastAPI:
    """The application.

    Args:
        engine: of a database that :func:`optilock_apps.wiki.pages.prepare` has seen.
        secret: of 16 characters or more. It signs the texts in the forms, and is the same in all
            processes of one wiki. Without one, a new one is made: forms from before a restart then
            open no merge.
        lease_seconds: how long a user counts as editing a page without a further sign, because
            the window is closed or runs no scripts: 1 to 3600.
        hosts: the host names that it answers for, besides those of this machine; ``None``: all. A
            server that only listens on this machine needs it, for the reason in
            :mod:`optilock_apps.wiki.protection`.

    Raises:
        ConfigurationError: the secret is too short, or the lease too short or too long.
    """
    app = FastAPI(title="optilock wiki", docs_url=None, redoc_url=None, lifespan=_lifespan)
    keys = secrets.token_bytes(32) if secret is None else secret
    Page.__lease_policy__.length(lease_seconds)
    sessions = sessionmaker(engine)
    changes = Changes(sessions, poll=_CHANGES_EVERY)
    app.state.wiki = Wiki(sessions, Seals(ETags([keys])), lease_seconds, changes)
    app.state.hosts = None if hosts is None else {host.lower() for host in hosts}
    install(app)
    for kind in (HTTPException, RequestValidationError, BadText, *ERRORS):
        app.add_exception_handler(kind, _refused)
    app.middleware("http")(_protected)
    app.include_router(views.router)
    app.include_router(editing.router)
    app.include_router(api.router)
    app.mount("/static", StaticFiles(packages=[("optilock_apps.wiki", "static")]))
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with app.state.wiki.changes:
        yield


async def _protected(request: Request, go_on: Callable[[Request], Awaitable[Response]]) -> Response:
    refused = refusal(request, request.app.state.hosts)
    answer = await go_on(request) if refused is None else _refused(request, refused)
    answer.headers.update(HEADERS)
    return answer


def _refused(request: Request, error: Exception) -> Response:
    """An error as people read it, or as programs do."""
    problem = _problem(error)
    if problem is None:
        raise error
    if request.url.path.startswith("/api/"):
        return ProblemResponse(problem, request.method)
    said = problem.body["detail"]
    return show("message.html", problem.status, problem.headers, said=said)


def _problem(error: Exception) -> Problem | None:
    match error:
        case HTTPException():
            return _plain(error.status_code, error.detail, dict(error.headers or {}))
        case BadText():
            return _plain(error.status, str(error))
        case RequestValidationError():
            wrong = error.errors()[0]
            where = ".".join(str(part) for part in wrong["loc"])
            return _plain(422, f"{where[:_LONGEST]}: {wrong['msg']}")
    return problem_of(error)


def _plain(status: int, detail: str, headers: dict[str, str] | None = None) -> Problem:
    """A problem without details besides its status (RFC 9457 section 4.2.1)."""
    body = {"type": "about:blank", "title": HTTPStatus(status).phrase}
    return Problem(status, {**body, "status": status, "detail": detail}, headers or {})
