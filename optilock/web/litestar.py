"""Litestar: a plugin that reads conditions and answers errors, and sessions as a dependency.

::

    from optilock.web.litestar import Conditions, OptilockPlugin, unit

    @put("/pages/{key:int}", responses=responses("PUT"))
    async def put_page(
        key: int, data: PageIn, session: AsyncSession, conditions: Conditions
    ) -> Response[None]:
        stored = await optilock.asyncio.replace(
            session, Page, key, asdict(data), **conditions.demands
        )
        return Response(None, headers={"ETag": stored.etag})

    app = Litestar(
        [put_page],
        plugins=[OptilockPlugin()],
        dependencies={"session": unit(AsyncSessionLocal)},
    )

Every handler may have a parameter ``conditions``. Bad or missing conditions are answered (400, 428)
after the guards and before the body is read, by a ``before_request`` of the application. A router
or a handler with a ``before_request`` of its own replaces that one, and then an unreadable body is
answered first.

A handler that takes no conditions, or takes and never compares them, writes no versioned row for a
request with a condition (501). ``unit(SessionLocal, require_conditions=True)`` demands a condition
for each row that is changed.

One unit of work serves one request (:func:`unit`). It commits after the handler has returned and
before the answer is sent, so that a conflict at COMMIT is an answer. Nothing runs a handler again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from optilock.conditions.request import Request as Served
from optilock.dialects import unwrapped_errors
from optilock.errors.base import extra
from optilock.preconditions.entity_tags import PLAIN, ETags
from optilock.web.conditions import (
    ANSWERS,
    ETAG,
    IF_MATCH,
    IF_NONE_MATCH,
    NO_FIELDS,
    STRICT,
    Policy,
    ProblemDocument,
    error_statuses,
    of_not_modified,
)
from optilock.web.conditions import Conditions as _Conditions
from optilock.web.keys import once_of_request as once_of
from optilock.web.problems import ERRORS, MEDIA_TYPE, OF_VALUES, problem_of
from optilock.web.stored_answers import serve_and_answer
from optilock.web.units import session_of_request

with extra("litestar"):
    from litestar import Request, Response
    from litestar.config.app import AppConfig
    from litestar.datastructures import ResponseHeader
    from litestar.di import NamedDependency, Provide
    from litestar.exceptions import ClientException, InternalServerException
    from litestar.exceptions.responses import create_debug_response, create_exception_response
    from litestar.openapi.datastructures import ResponseSpec
    from litestar.params import HeaderParameter, SkipValidation
    from litestar.plugins import InitPluginProtocol
    from litestar.types import ASGIApp, Receive, Scope, Send
    from litestar.utils.sync import ensure_async_callable

__all__ = [
    "ETAG_HEADER",
    "Conditions",
    "OptilockPlugin",
    "conditions",
    "not_modified",
    "once_of",
    "responses",
    "unit",
]

#: How tags are made and read, or a function of the request that returns this.
Tags = ETags | Callable[[Request[Any, Any, Any]], ETags]
_NAME = "conditions"
#: The conditions of the request: a handler's parameter ``conditions``.
Conditions = NamedDependency[SkipValidation[_Conditions]]
_IF_MATCH = HeaderParameter(name="If-Match", description=IF_MATCH, required=False)
_IF_NONE_MATCH = HeaderParameter(name="If-None-Match", description=IF_NONE_MATCH, required=False)
#: For ``response_headers=[...]`` of a handler, which sets the header itself.
ETAG_HEADER = ResponseHeader(name="ETag", description=ETAG, documentation_only=True)


class OptilockPlugin(InitPluginProtocol):
    """Conditions for every handler, and problem documents for errors.

    Args:
        etags: how tags are made and read, or a function of the request that returns this.
        policy: the conditions that a request needs.
    """

    def __init__(self, *, etags: Tags = PLAIN, policy: Policy = STRICT) -> None:
        self._etags, self._policy = etags, policy

    def on_app_init(self, app_config: AppConfig) -> AppConfig:
        """Called by Litestar."""
        app_config.dependencies = {
            _NAME: conditions(etags=self._etags, policy=self._policy),
            **(app_config.dependencies or {}),
        }
        app_config.exception_handlers = {
            **dict.fromkeys(
                (*ERRORS, *OF_VALUES, *unwrapped_errors(), ExceptionGroup), self._answer
            ),
            UnicodeDecodeError: self._answer_text,
            **(app_config.exception_handlers or {}),
        }
        app_config.middleware = [_serving, *(app_config.middleware or ())]
        before = app_config.before_request
        first = None if before is None else ensure_async_callable(before)
        app_config.before_request = _judging(first)
        return app_config

    def _answer(self, request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
        etags = _tags(self._etags, request)
        problem = problem_of(_one_of(error), etags=etags)
        if problem is None:
            return self._other_handler(request, error)(request, error)
        content = problem.content()
        headers = dict(problem.headers)
        return Response(content, status_code=problem.status, headers=headers, media_type=MEDIA_TYPE)

    def _answer_text(self, request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
        """Refuse a form whose bytes are no text: Litestar's parser raises a plain error."""
        if _is_of_litestar(error):
            return create_exception_response(request, ClientException("The form is not UTF-8."))
        return self._other_handler(request, error)(request, error)

    def _other_handler(
        self, request: Request[Any, Any, Any], error: Exception
    ) -> Callable[[Request[Any, Any, Any], Any], Response[Any]]:
        """Return the handler of the error without the plugin: the application's, or Litestar's."""
        handlers = request.route_handler.resolve_exception_handlers()
        kinds: tuple[Any, ...] = (*type(error).__mro__, 500)
        found = (handlers[kind] for kind in kinds if kind in handlers)
        ours = (self._answer, self._answer_text)
        return next((one for one in found if one not in ours), _of_litestar)


def _serving(app: ASGIApp) -> ASGIApp:
    """Let the condition of a request meet the writes of its units (optilock.conditions.request)."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        served = Served(str(scope.get("method", "GET")), scope["headers"])
        await serve_and_answer(served, app, scope, receive, send)

    return serve


def _one_of(error: Exception) -> Exception:
    """Return the only error of a group: Litestar groups the errors of dependencies, also one."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _is_of_litestar(error: Exception) -> bool:
    """Return whether Litestar's own code raised the error, and no function that it called."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return at is not None and at.tb_frame.f_globals.get("__name__", "").startswith("litestar.")


def _of_litestar(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    """Return Litestar's own answer to an error without a handler."""
    if request.app.debug:
        return create_debug_response(request, error)
    return create_exception_response(request, InternalServerException())


# -- dependencies ----------------------------------------------------------------------------------


class _Reader:
    """Reads the conditions of a request."""

    def __init__(self, etags: Tags, policy: Policy) -> None:
        self._etags, self._policy = etags, policy

    def read(self, request: Request[Any, Any, Any]) -> _Conditions:
        fields = request.scope["headers"]
        etags = _tags(self._etags, request)
        return _Conditions.of(request.method, fields, etags=etags, policy=self._policy)

    async def __call__(
        self,
        request: Request[Any, Any, Any],
        if_match: Annotated[str | None, _IF_MATCH] = None,
        if_none_match: Annotated[str | None, _IF_NONE_MATCH] = None,
    ) -> _Conditions:
        return self.read(request)


def conditions(*, etags: Tags = PLAIN, policy: Policy = STRICT) -> Provide:
    """Return the dependency ``conditions`` of a router or a handler with rules of its own.

    ``dependencies={"conditions": conditions(policy=Policy(require=None))}``
    """
    return Provide(_Reader(etags, policy))


def _judging(before: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    """Return a ``before_request`` that refuses bad conditions before the body is read."""

    async def judge(request: Request[Any, Any, Any]) -> Any:
        answer = None if before is None else await before(request)
        if answer:
            return answer
        handler = request.scope["route_handler"]
        provider = handler.resolve_dependencies().get(_NAME)
        if _NAME in handler.parsed_fn_signature.parameters and provider is not None:
            reader = provider.dependency
            if isinstance(reader, _Reader):
                reader.read(request)
        return answer

    return judge


def unit(sessions: Any, *, require_conditions: bool | None = None, **options: Any) -> Provide:
    """Return a dependency: the session of this request's unit of work.

    ``dependencies={"session": unit(AsyncSessionLocal)}``; a ``sessionmaker`` works as well, in
    threads. The unit commits when the handler has returned, before the answer is sent, and rolls
    back when it raises.

    Args:
        sessions: the sessions of :func:`optilock.unit_of_work`.
        require_conditions: True: each changed row needs a condition. False: none does, not even
            that of the request, as for an access log.
        options: further options of the unit.

    Raises:
        ConfigurationError: ``sessions`` is bound to a thread, or makes no sessions.
    """
    return Provide(session_of_request(sessions, options, require_conditions=require_conditions))


# -- answers ---------------------------------------------------------------------------------------


def not_modified(etag: str | None, headers: Mapping[str, str] = NO_FIELDS) -> Response[None]:
    """Return a 304: the client has this version already.

    ``headers`` are those of the answer with a body; the 304 gets the fields that it needs.
    """
    return Response(None, status_code=304, headers=of_not_modified(etag, headers))


def responses(method: str, *, keyed: bool = False) -> dict[int, ResponseSpec]:
    """Return the further answers of a handler, for ``@put(..., responses=responses("PUT"))``.

    ``keyed``: the handler calls :func:`once_of`.
    """
    return {
        status: ResponseSpec(
            data_container=None if status == 304 else ProblemDocument,
            description=ANSWERS[status],
            media_type=MEDIA_TYPE,
            generate_examples=False,
        )
        for status in error_statuses(method, keyed=keyed)
    }


def _tags(etags: Tags, request: Request[Any, Any, Any]) -> ETags:
    return etags if isinstance(etags, ETags) else etags(request)
