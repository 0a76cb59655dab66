"""FastAPI: conditions and sessions as dependencies, errors as problem documents, and OpenAPI.

::

    from optilock.web.fastapi import Conditions, install, responses, unit

    app = FastAPI()
    install(app)                                    # before the routes are added
    Db = Annotated[Session, unit(SessionLocal)]

    @app.put("/pages/{key}", responses=responses("PUT"))
    def put(key: int, page: PageIn, db: Db, conditions: Conditions, response: Response) -> None:
        stored = entities.replace(db, Page, key, page.model_dump(), **conditions.demands)
        response.headers["ETag"] = stored.etag

The answers come in this order: 401 and 403 of the application's own dependencies, 400 and 428 of
the conditions, 422 of the body, then 404, 409 and 412 of the row. Dependencies of the application,
of a router and of a route (``dependencies=[...]``) run first. Among a function's parameters, write
the one that authenticates before ``conditions``.

FastAPI reads a JSON body before any dependency runs, and answers a broken one with 422.
:class:`ConditionalRoute` delays that answer until the dependencies have run. :func:`install` makes
it the class of the application's routes; a router needs
``APIRouter(route_class=ConditionalRoute)``.

A route that takes no ``Conditions``, or takes and never compares them, writes no versioned row for
a request with a condition (501). ``unit(SessionLocal, require_conditions=True)`` demands a
condition for each row that is changed.

One unit of work serves one request (:func:`unit`). It commits after the function has returned and
before the answer is sent (``scope="function"``), so that a conflict at COMMIT is an answer. Nothing
runs the function again: the body is consumed, and only the function knows what else it has done.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextvars import copy_context
from dataclasses import dataclass
from json import JSONDecodeError
from typing import Annotated, Any

from optilock import UnitOfWork, unit_of_work
from optilock.errors import ConfigurationError
from optilock.errors.base import extra
from optilock.preconditions.entity_tags import PLAIN
from optilock.preconditions.form_fields import form_served
from optilock.unit.conditions import ConditionsPart
from optilock.web.conditions import (
    IF_MATCH,
    IF_NONE_MATCH,
    NO_FIELDS,
    STRICT,
    Policy,
    of_not_modified,
    openapi_responses,
)
from optilock.web.conditions import Conditions as _Conditions
from optilock.web.problems import ERRORS
from optilock.web.units import Depend, session_of_request, sync_session

with extra("fastapi"):
    from anyio import CancelScope, CapacityLimiter, to_thread
    from fastapi import Depends, FastAPI, Header, HTTPException, Request, Response
    from fastapi.dependencies.models import Dependant
    from fastapi.exception_handlers import request_validation_exception_handler
    from fastapi.exceptions import RequestValidationError
    from fastapi.routing import APIRoute
    from starlette.datastructures import FormData

from optilock.web.starlette import (
    ConditionalRequests,
    Tags,
    conditions_of,
    exception_handlers,
    not_modified,
    once_of,
)

__all__ = [
    "ConditionalRoute",
    "Conditions",
    "SentForm",
    "conditions",
    "install",
    "not_modified",
    "once_of",
    "responses",
    "unit",
]

#: An attribute of an application's state: the options of :func:`install`.
_STATE = "optilock_web"
#: An attribute of a function: it is a dependency that reads conditions.
_READS = "_optilock_reads_conditions"
#: A key of a request's scope: the header fields that the function sets.
_HEADERS = "optilock.response_headers"
#: A key of a request's scope: the error of its body, which is no JSON.
_BROKEN = "optilock.broken_body"


@dataclass(frozen=True)
class _Installed:
    """The options given to :func:`install`."""

    etags: Tags
    policy: Policy


def install(app: FastAPI, *, etags: Tags = PLAIN, policy: Policy = STRICT) -> None:
    """Let an application answer errors with problem documents, and read and enforce conditions.

    A route that ignores the condition of a request, or reads and never compares it, writes no
    versioned row: its COMMIT is refused, and the answer is 501
    (:mod:`optilock.conditions.request`).

    Args:
        app: before it has routes; a mounted application needs it too.
        etags: how tags are made and read, or a function of the request that returns this.
        policy: the policy of every :data:`Conditions`.

    Raises:
        ConfigurationError: the application already has a route that takes conditions, or has
            started.
    """
    _refuse_earlier_routes(app)
    setattr(app.state, _STATE, _Installed(etags, policy))
    for kind, handler in exception_handlers(etags=etags).items():
        if kind in ERRORS or kind not in app.exception_handlers:
            app.add_exception_handler(kind, handler)
    if app.exception_handlers.get(RequestValidationError) is request_validation_exception_handler:
        app.add_exception_handler(RequestValidationError, _refused_body)
    if app.router.route_class is APIRoute:
        app.router.route_class = ConditionalRoute
    if _note_form not in [getattr(one, "dependency", None) for one in app.router.dependencies]:
        app.router.dependencies.append(Depends(_note_form))
    if ConditionalRequests not in [getattr(one, "cls", None) for one in app.user_middleware]:
        if app.middleware_stack is not None:
            raise ConfigurationError(
                "install(app) comes after the application has started: call it before."
            )
        app.add_middleware(ConditionalRequests)


def _refuse_earlier_routes(app: FastAPI) -> None:
    for route in app.routes:
        if not isinstance(route, APIRoute) or isinstance(route, ConditionalRoute):
            continue
        if _reads_conditions(route.dependant):
            raise ConfigurationError(
                f"install(app) comes after the route {route.path!r}, which takes conditions: call"
                " it before the routes are added."
            )


async def _refused_body(request: Request, error: Exception) -> Response:
    """Return FastAPI's own answer (422), without a body that JSON cannot repeat."""
    try:
        return await request_validation_exception_handler(request, error)  # type: ignore[arg-type]
    except (ValueError, RecursionError):  # NaN, or half of a surrogate pair, which has no UTF-8
        told = [{**one, "input": None, "ctx": {}} for one in error.errors()]  # type: ignore[attr-defined]
        return await request_validation_exception_handler(request, RequestValidationError(told))


# -- dependencies ----------------------------------------------------------------------------------


def conditions(*, etags: Tags | None = None, policy: Policy | None = None) -> Any:
    """Return a dependency like :data:`Conditions`, for routes with rules of their own.

    ``Annotated[optilock.web.conditions.Conditions, conditions(policy=Policy(require=None))]``
    """

    async def read(
        request: Request,
        response: Response,
        if_match: Annotated[str | None, Header(alias="If-Match", description=IF_MATCH)] = None,
        if_none_match: Annotated[
            str | None, Header(alias="If-None-Match", description=IF_NONE_MATCH)
        ] = None,
    ) -> _Conditions:
        installed = _installed(request)
        found = conditions_of(
            request,
            etags=installed.etags if etags is None else etags,
            policy=installed.policy if policy is None else policy,
        )
        request.scope[_HEADERS] = response.headers
        _raise_broken(request)
        return found

    setattr(read, _READS, True)
    return Depends(read)


#: The conditions of the request, as a parameter of a function, by :func:`install`'s rules.
Conditions = Annotated[_Conditions, conditions()]


def _installed(request: Request) -> _Installed:
    found = getattr(request.app.state, _STATE, None)
    if not isinstance(found, _Installed):
        raise ConfigurationError(
            "A route takes Conditions, and the application does not know how to answer: call"
            " optilock.web.fastapi.install(app) before the routes are added."
        )
    return found


async def _fields(request: Request) -> FormData:
    return await request.form()


async def _note_form(request: Request) -> None:
    """Let forms see the fields as they came: to a model an emptied field is a missing one.

    FastAPI has read them already where the function takes a body. Elsewhere the stream is the
    function's own.
    """
    takes_body = getattr(request.scope.get("route"), "body_field", None) is not None
    if takes_body and request.headers.get("content-type", "").startswith(_FORMS):
        form_served.set(await request.form())


#: Media types of forms.
_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")


#: The fields of a form as they came, for :meth:`optilock.preconditions.EditForm.save`.
SentForm = Annotated[FormData, Depends(_fields)]


def unit(sessions: Any, *, require_conditions: bool | None = None, **options: Any) -> Any:
    """Return a dependency: the session of this request's unit of work.

    ``Annotated[Session, unit(SessionLocal)]``, or with an ``async_sessionmaker``
    ``Annotated[AsyncSession, unit(AsyncSessionLocal)]``. The unit commits when the function has
    returned, before the answer is sent. It rolls back when the function, or another dependency,
    raises.

    Args:
        sessions: the sessions of :func:`optilock.unit_of_work`. Sessions are
            made in the event loop, so a factory of your own must not block; a part may.
        require_conditions: True: each changed row needs a condition. False: none does, not even
            that of the request, as for an access log.
        options: further options of the unit.

    Raises:
        ConfigurationError: ``sessions`` is bound to a thread, or makes no sessions.
    """
    made = session_of_request(
        sessions, options, require_conditions=require_conditions, sync=_left_in_a_thread
    )
    return Depends(made, scope="function")


def _left_in_a_thread(sessions: Any, options: Mapping[str, Any]) -> Depend:
    """Return a dependency with a unit's session, for one change of threads a request.

    Entering a unit sends nothing and does not block, except for parts of the application. FastAPI
    would enter it in a thread, where no other unit finds it; none finds it here either.

    Leaving waits for the database. As in FastAPI, a client that goes away does not interrupt it. It
    does not wait for a free thread: those that have one may wait for this unit's connection.
    """
    if any(type(part) is not ConditionsPart for part in options.get("parts", ())):
        return sync_session(sessions, options)

    async def session() -> AsyncIterator[Any]:
        unit = unit_of_work(sessions, **options)
        session = copy_context().run(unit.__enter__)
        try:
            yield session
        except BaseException as error:
            await _leave(unit, type(error), error, error.__traceback__)
            raise
        await _leave(unit, None, None, None)

    return session


async def _leave(unit: UnitOfWork[Any], *raised: Any) -> None:
    with CancelScope(shield=True):
        await to_thread.run_sync(unit.__exit__, *raised, limiter=CapacityLimiter(1))


# -- the body comes last ---------------------------------------------------------------------------


class ConditionalRoute(APIRoute):
    """A route that refuses a broken JSON body after the conditions, and completes a 304."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()
        if not _reads_conditions(self.dependant):
            return handler

        async def patient(request: Request) -> Response:
            if any(hasattr(call, _READS) for call in request.app.dependency_overrides):
                return _as_complete(request, await handler(request))
            patient = _Patient(request.scope, request.receive)
            return _as_complete(request, await handler(patient))

        return patient


def _as_complete(request: Request, answer: Response) -> Response:
    """Return an answer; a 304 has the fields that the function has set for both answers."""
    if answer.status_code == 304:
        for name, value in of_not_modified(None, request.scope.get(_HEADERS, NO_FIELDS)).items():
            answer.headers.setdefault(name, value)
    return answer


class _Patient(Request):
    """A request whose broken body is an error only when it is used."""

    async def json(self) -> Any:
        _raise_broken(self)  # to a dependency that reads the body itself
        try:
            return await super().json()
        except (ValueError, RecursionError) as error:
            self.scope[_BROKEN] = error
            return None


def _raise_broken(request: Request) -> None:
    """Raise the error of a broken body, as FastAPI does."""
    error = request.scope.get(_BROKEN)
    if isinstance(error, JSONDecodeError):
        told = {
            "type": "json_invalid",
            "loc": ("body", error.pos),
            "msg": "JSON decode error",
            "input": {},
            "ctx": {"error": error.msg},
        }
        raise RequestValidationError([told], body=error.doc) from error
    if error is not None:
        raise HTTPException(400, "There was an error parsing the body") from error


def _reads_conditions(dependant: Dependant) -> bool:
    """Return whether a dependency reads conditions."""
    return hasattr(dependant.call, _READS) or any(map(_reads_conditions, dependant.dependencies))


# -- OpenAPI ---------------------------------------------------------------------------------------


def responses(
    method: str, *, status_code: int = 200, keyed: bool = False
) -> dict[int | str, dict[str, Any]]:
    """Return the further answers of a route, for ``@app.put(..., responses=responses("PUT"))``.

    Args:
        method: that of the route.
        status_code: that of the route, whose answer has an ETag.
        keyed: the route calls :func:`once_of`, so that another answer is 422, and no ETag is named.
    """
    return openapi_responses(method, status_code, keyed=keyed)
