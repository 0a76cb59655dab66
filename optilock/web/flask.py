"""Flask: the conditions of a request, and errors as problem documents.

::

    from optilock.web.flask import Optilock

    optilock = Optilock()                           # or Optilock(app)

    @app.put("/pages/<int:key>")
    def put(key: int) -> Response:
        conditions = optilock.conditions()          # 400 and 428, before the body is read
        with unit_of_work(SessionLocal) as session:
            stored = entities.replace(session, Page, key, request.json, **conditions.demands)
        return Response(status=204, headers={"ETag": stored.etag})

    optilock.init_app(app)

The first line reads the conditions; a ``before_request`` that authenticates runs before it. The
unit of work is the view's own: it commits at its end, and a conflict there is an error of the view
like any other. Flask answers no error of ``after_request`` and ``teardown_request``, so a COMMIT
does not belong there.

A view that never compares the condition of its request writes no versioned row: its COMMIT is
refused, and the answer is 501 (:mod:`optilock.conditions.request`).

The fields are taken from the WSGI environment as they are. ``request.if_match`` omits tags that it
cannot read, and ``response.set_etag(tag)`` puts quotes around a tag that has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any

from optilock.conditions.request import Request, register_finder
from optilock.errors import ConfigurationError
from optilock.errors.base import extra
from optilock.exactly_once import Once
from optilock.preconditions.entity_tags import PLAIN, ETags
from optilock.web.conditions import NO_FIELDS, STRICT, Conditions, Policy, of_not_modified
from optilock.web.keys import once_of
from optilock.web.problems import ERRORS, MEDIA_TYPE, OF_VALUES, problem_of
from optilock.web.stored_answers import not_stored

with extra("flask"):
    from flask import Flask, Response, current_app, has_request_context, request

__all__ = ["Optilock", "not_modified"]

_NAME = "optilock"
#: A key of a request's environment.
_SERVED = "optilock.request"
_FIELDS = {
    "HTTP_IF_MATCH": "If-Match",
    "HTTP_IF_NONE_MATCH": "If-None-Match",
    "HTTP_IF_MODIFIED_SINCE": "If-Modified-Since",
    "HTTP_IF_UNMODIFIED_SINCE": "If-Unmodified-Since",
}


class Optilock:
    """The extension: ``Optilock(app)``, or ``init_app(app)`` later.

    Args:
        etags: how tags are made and read, or a function that returns this for the request.
        policy: the conditions that a request needs.
    """

    def __init__(
        self,
        app: Flask | None = None,
        *,
        etags: ETags | Callable[[], ETags] = PLAIN,
        policy: Policy = STRICT,
    ) -> None:
        self._etags, self._policy = etags, policy
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Let ``app`` answer errors with problem documents, and enforce conditions.

        A view that ignores the condition of a request writes no versioned row (501).
        """
        app.extensions[_NAME] = self
        register_finder(_served)
        for kind in (*ERRORS, *OF_VALUES):
            app.register_error_handler(kind, self._answer)
        app.after_request(_answer_stored)

    @property
    def etags(self) -> ETags:
        """How the tags of this request are made and read."""
        return self._etags if isinstance(self._etags, ETags) else self._etags()

    def conditions(self, *, policy: Policy | None = None) -> Conditions:
        """Return the conditions of the current request.

        Raises:
            BadPrecondition: one of its conditions cannot be read (400).
            PreconditionRequired: it has none, and writes (428).
            ConfigurationError: there is no request, or the application lacks the extension.
        """
        self._require_view("conditions()")
        asked = self._policy if policy is None else policy
        return Conditions.of(
            request.method, _lines(request.environ), etags=self.etags, policy=asked
        )

    def once(
        self,
        *,
        principal: str,
        of: Any,
        wait: float | timedelta | None = 0,
        required: bool = True,
    ) -> Once | None:
        """Return the key of the current request, for ``exactly_once=``.

        The arguments are those of :func:`optilock.web.keys.once_of`.

        Raises:
            BadPrecondition: it has no ``Idempotency-Key``, or one that cannot be read (400).
            BadEntity: ``of`` is nested too deeply (400).
            ConfigurationError: there is no request, or the application lacks the extension.
        """
        self._require_view("once()")
        path = f"{request.root_path}{request.path}?{request.query_string.decode('latin-1')}"
        header = request.environ.get("HTTP_IDEMPOTENCY_KEY")
        rules: dict[str, Any] = {"of": of, "wait": wait, "required": required}
        return once_of(request.method, path, header, principal=principal, **rules)

    def _require_view(self, call: str) -> None:
        if not has_request_context() or current_app.extensions.get(_NAME) is not self:
            raise ConfigurationError(
                f"{call} of Optilock is for views of an application that init_app(app) was"
                " called for."
            )

    def _answer(self, error: Exception) -> Response:
        problem = problem_of(error, etags=self.etags)
        if problem is None:
            raise error
        headers = dict(problem.headers)
        return Response(problem.content(), problem.status, headers, mimetype=MEDIA_TYPE)


def _answer_stored(response: Response) -> Response:
    """Return the answer, or a 500 if a change of the request is not stored."""
    served = _served() if response.status_code < 400 else None
    problem = None if served is None else not_stored(served)
    if problem is None:
        return response
    return Response(problem.content(), problem.status, mimetype=MEDIA_TYPE)


def _served() -> Request | None:
    """Return the request that an application with this extension serves here."""
    if not has_request_context() or _NAME not in current_app.extensions:
        return None
    served: Request | None = request.environ.get(_SERVED)
    if served is None:
        served = request.environ[_SERVED] = Request(request.method, _lines(request.environ))
    return served


def not_modified(etag: str | None, headers: Mapping[str, str] = NO_FIELDS) -> Response:
    """Return a 304: the client has this version already.

    ``headers`` are those of the answer with a body; the 304 gets the fields that it needs.
    """
    return Response(status=304, headers=of_not_modified(etag, headers))


def _lines(environ: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the fields; the server has joined the lines of each."""
    for key, name in _FIELDS.items():
        if key in environ:
            yield name, environ[key]
