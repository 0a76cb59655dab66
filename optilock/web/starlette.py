"""Starlette: the conditions of a request, and errors as problem documents.

::

    from optilock.web.starlette import conditions_of, exception_handlers

    async def put(request: Request) -> Response:
        conditions = conditions_of(request)         # 400 and 428, before the body is read
        values = await request.json()
        async with unit_of_work(sessions) as session:
            stored = await optilock.asyncio.replace(
                session, Page, request.path_params["key"], values, **conditions.demands
            )
        return Response(status_code=204, headers={"ETag": stored.etag})

    app = Starlette(
        routes=[...],
        middleware=[Middleware(ConditionalRequests)],
        exception_handlers=exception_handlers(),
    )

:class:`ConditionalRequests` lets the condition of a request and the writes of its units meet at
COMMIT: a route that compares nothing writes nothing (501; :mod:`optilock.conditions.request`).

The fields are taken as they arrived, with several lines of one name, control bytes, and bytes that
are no ASCII.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from optilock.conditions.request import Request as Served
from optilock.dialects import unwrapped_errors
from optilock.errors.base import extra
from optilock.preconditions.entity_tags import PLAIN, ETags
from optilock.web.conditions import NO_FIELDS, STRICT, Conditions, Policy, of_not_modified
from optilock.web.keys import once_of_request as once_of
from optilock.web.problems import ERRORS, MEDIA_TYPE, OF_VALUES, Problem, problem_of
from optilock.web.stored_answers import serve_and_answer

with extra("starlette"):
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = [
    "ConditionalRequests",
    "ProblemResponse",
    "Tags",
    "conditions_of",
    "exception_handlers",
    "not_modified",
    "once_of",
]

#: How tags are made and read, or a function of the request that returns this.
Tags = ETags | Callable[[Request], ETags]


class ConditionalRequests:
    """A middleware that refuses writes of versioned rows under an uncompared condition.

    An answer of success waits until what was written for the condition is stored, and is a 500 if
    its session ends without COMMIT (:mod:`optilock.web.stored_answers`).

    It is for any ASGI application, and covers the code inside it: put it around a middleware that
    has sessions of its own.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, which may pass several of these middlewares."""
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        served = scope.get(_SERVED)
        if served is None:
            served = scope[_SERVED] = Served(scope.get("method", "GET"), scope["headers"])
        await serve_and_answer(served, self.app, scope, receive, send)


#: A key of a request's scope.
_SERVED = "optilock.request"


def conditions_of(request: Request, *, etags: Tags = PLAIN, policy: Policy = STRICT) -> Conditions:
    """Return the conditions of a request.

    Raises:
        BadPrecondition: one of its conditions cannot be read (400).
        PreconditionRequired: it has none, and writes (428).
    """
    fields = request.scope["headers"]
    return Conditions.of(request.method, fields, etags=_tags(etags, request), policy=policy)


def _tags(etags: Tags, request: Request) -> ETags:
    return etags if isinstance(etags, ETags) else etags(request)


def not_modified(etag: str | None, headers: Mapping[str, str] = NO_FIELDS) -> Response:
    """Return a 304: the client has this version already.

    ``headers`` are those of the answer with a body; the 304 gets the fields that it needs.
    """
    return Response(status_code=304, headers=of_not_modified(etag, headers))


class ProblemResponse(Response):
    """A problem document; the answer to a HEAD has no body."""

    media_type = MEDIA_TYPE

    def __init__(self, problem: Problem, method: str = "GET") -> None:
        super().__init__(problem.content(), problem.status, dict(problem.headers))
        if method == "HEAD":
            self.body = b""


def exception_handlers(
    *, etags: Tags = PLAIN
) -> dict[type[Exception], Callable[[Request, Exception], Awaitable[Response]]]:
    """Return handlers for ``Starlette(exception_handlers=...)``: errors as problem documents.

    An error that no client can help goes on, and ends as a 500.
    """

    async def answer(request: Request, error: Exception) -> Response:
        if request.scope["type"] == "websocket":
            raise error
        problem = problem_of(error, etags=_tags(etags, request))
        if problem is None:
            raise error
        return ProblemResponse(problem, request.method)

    return dict.fromkeys((*ERRORS, *OF_VALUES, *unwrapped_errors()), answer)
