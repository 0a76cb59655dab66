"""The conditions of one request about one row, and what they mean for its write.

::

    conditions = Conditions.of("PUT", [("If-Match", '"Kx3f9Q2a.7"')])
    entities.replace(session, Page, 7, values, **conditions.demands)

    conditions = Conditions.of("GET", fields)
    tag = conditions.tag_of(page)
    if conditions.not_modified(tag):
        ...                                         # 304, with this tag and without a body

A malformed condition raises ``BadPrecondition`` (400), a missing one ``PreconditionRequired``
(428), before the row or the body is read. Conditions that depend on the row become part of the
statement's WHERE (:attr:`Conditions.demands`).

=========================  ================================================================
a request that             writes with
=========================  ================================================================
changes a row              ``entities.replace``, ``merge``, ``delete``, and ``**demands``
creates a row              ``entities.insert``, and ``**demands``, if :attr:`~Conditions.absent`
may do either (PUT)        :meth:`Conditions.put`, which chooses
edits a loaded object      ``expect(page, conditions.expected)``, ``apply(..., expected=...)``
adds to a list (POST)      :meth:`Conditions.expect`, with the list's scope
=========================  ================================================================

``Policy(require=None)`` allows writes without a condition: the last writer wins. Such a request may
still have a date, or ``If-None-Match`` with tags. No WHERE of one statement can express these
(:attr:`~Conditions.needs_a_look`), so read the row first: :meth:`Conditions.seen` compares, and
returns demands that keep other writers out in between. Without it ``demands`` lets such tags be
refused (400), and ignores dates, as the RFC wants it for a row without a date.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, NoReturn, Required, TypedDict, TypeVar

from sqlalchemy import inspect
from sqlalchemy.orm import InstanceState, Session

from optilock import entities
from optilock._mapping.scopes import Scope
from optilock.conditions.request import STAR, compared
from optilock.entities import Stored
from optilock.errors import (
    BadPrecondition,
    NotFound,
    PreconditionFailed,
    PreconditionRequired,
)
from optilock.events import report
from optilock.preconditions.entity_tags import PLAIN, ETags
from optilock.preconditions.rfc9110 import Fields, Precondition, Profile, Require, required
from optilock.preconditions.scopes import AnySession, expect_scope, verify_scope
from optilock.web.problems import MEDIA_TYPE

__all__ = [
    "ALLOW_HEADERS",
    "ANSWERS",
    "ETAG",
    "EXPOSE_HEADERS",
    "IF_MATCH",
    "IF_NONE_MATCH",
    "STRICT",
    "Conditions",
    "Policy",
    "ProblemDocument",
    "error_statuses",
    "openapi_responses",
    "unconditional",
]

F = TypeVar("F", bound=Callable[..., Any])
#: An attribute of a function: its route needs no condition, on purpose.
UNCONDITIONAL: Final = "_optilock_unconditional"


@dataclass(frozen=True)
class Policy:
    """The conditions that a route requires (:func:`optilock.preconditions.rfc9110.required`)."""

    #: ``None``: a write without a condition is performed.
    require: Require | None = "if_match"
    #: ``If-Match: *`` is a condition: the last writer wins.
    allow_star: bool = True
    profile: Profile = "rfc9110"
    #: What proxies write into tags: ``("-gzip",)``, ``("W/",)``.
    proxies: tuple[str, ...] = ()


#: RFC 9110, and a condition for every write.
STRICT: Final = Policy()
#: For a page of another origin: the headers that it sends (``Access-Control-Allow-Headers``), and
#: those that its script reads (``Access-Control-Expose-Headers``). Without the first list the
#: browser refuses to send a condition; without the second the script has no tag to send. Pass them
#: to your framework's CORS middleware, and add the headers of your application.
ALLOW_HEADERS = ("If-Match", "If-None-Match", "Idempotency-Key")
EXPOSE_HEADERS = ("ETag", "Retry-After")


@dataclass(frozen=True)
class Conditions:
    """The conditions of one request, for one row."""

    method: str
    asked: Precondition
    etags: ETags = PLAIN

    @classmethod
    def of(
        cls,
        method: str,
        fields: Fields,
        *,
        etags: ETags = PLAIN,
        policy: Policy = STRICT,
    ) -> Conditions:
        """Read them from the method and the raw field lines of a request.

        Raises:
            BadPrecondition: one cannot be read (400).
            PreconditionRequired: there is none, and the request writes (428).
        """
        asked = required(
            method,
            fields,
            require=policy.require,
            allow_star=policy.allow_star,
            profile=policy.profile,
            proxies=policy.proxies,
        )
        if asked.status is not None:
            kind = PreconditionRequired if asked.status == 428 else BadPrecondition
            error = kind(asked.reason, asked.status)
            error.detail = asked.reason
            raise error
        return cls(method, asked, etags)

    # -- of a write --------------------------------------------------------------------------------

    @property
    def absent(self) -> bool:
        """Whether the only demand is that there is no such row (``If-None-Match: *``)."""
        asked = self.asked
        return asked.absent and asked.versions is None and not asked.exists

    @property
    def unconditional(self) -> bool:
        """Whether nothing is demanded; possible only under ``Policy(require=None)``."""
        return self.asked.unconditional

    @property
    def needs_a_look(self) -> bool:
        """Whether a demand cannot be part of a WHERE: a date, or only excluded tags.

        Possible only under ``Policy(require=None)``: read the row, and write with :meth:`seen`.
        """
        asked = self.asked
        dated = asked.unmodified_since is not None or asked.modified_since is not None
        return dated or bool(asked.unless and asked.versions is None)

    @property
    def demands(self) -> dict[str, Any]:
        """The keyword arguments of the entity operation that answers the request."""
        asked = self.asked
        if self.absent and self.method != "DELETE":
            return {"if_none_match": STAR, "etags": self.etags}
        found: dict[str, Any] = {
            "if_match": STAR if asked.versions is None else asked.versions,
            "etags": self.etags,
        }
        if asked.absent:  # no version of an existing row meets this
            found["if_match"] = ()
        elif asked.unless:
            found["if_none_match"] = asked.unless
        return found

    @property
    def expected(self) -> tuple[str, ...]:
        """The tags, for ``expect()`` and ``apply()``.

        Raises:
            PreconditionRequired: none was sent; ``If-Match: *`` names none either.
        """
        if self.asked.versions is None or self.asked.absent:
            _refuse("Send If-Match with the ETag that you have read: no version was named.")
        return self.asked.versions

    def put(
        self,
        session: Session,
        model: type[Any],
        key: Any,
        values: Mapping[str, Any],
        **options: Any,
    ) -> Stored:
        """Store the body of a PUT that may create its row.

        With an ``AsyncSession``: ``await session.run_sync(conditions.put, Page, key, values)``.
        ``options`` are further ones of the entity operations, such as ``idempotency``, which does
        nothing for a request without a condition.

        Raises:
            AlreadyExists: ``If-None-Match: *``, and the row exists (412).
            PreconditionFailed: the row is in another version, or missing (412).
            BadPrecondition: ``If-None-Match`` has tags, and no ``If-Match`` stands with it (400).
            BadEntity: the body, as :func:`optilock.entities.replace` raises it.
        """
        asked = self.asked
        if self.absent and self.method != "DELETE":
            return entities.insert(session, model, key, values, **self.demands, **options)
        if asked.versions is None and not asked.exists and not asked.unless:
            compared()  # a date, and no row has one
            # The last writer wins, so a repeated request is not recognised.
            others = {name: each for name, each in options.items() if name != "idempotency"}
            return entities.insert_or_replace(
                session, model, key, values, etags=self.etags, **others
            )
        try:
            return entities.replace(session, model, key, values, **self.demands, **options)
        except NotFound as missing:
            raise version_mismatch("If-Match needs a stored row, and there is none.") from missing

    # -- of a list ---------------------------------------------------------------------------------

    def expect(self, session: AnySession, scope: Scope) -> None:
        """Demand that a list is as the request has seen it, now and until our transaction ends.

        The list is a scope, ``Booking.scope(room_id=7)``, and its tag that of :meth:`tag_of`. Call
        it before the rows are read. With an ``AsyncSession``:
        ``await session.run_sync(conditions.expect, scope)``. A list is always there:
        ``If-Match: *`` holds, ``If-None-Match: *`` does not. It has no date.

        Raises:
            PreconditionFailed: the list is in another version, now or at COMMIT (412).
            ConfigurationError: the session is not watched, or ``scope`` is no scope.
        """
        asked = self.asked
        if asked.versions is not None and not asked.absent:
            expect_scope(session, scope, asked.versions, etags=self.etags)
            return
        tag = None
        if asked.unless:
            verify_scope(session, scope)
            tag = self.etags.of(session, scope)
        answer = asked.judge(etag=tag)
        if answer.status is not None:
            raise version_mismatch(answer.reason, tag)

    # -- of a row that was read --------------------------------------------------------------------

    def tag_of(self, obj: object, scope: Scope | None = None) -> str:
        """Return the ETag of a loaded row, as this application makes it.

        ``tag_of(session, scope)`` is that of a list: one SELECT of the scope's version. Take it
        before the rows are read. With an ``AsyncSession``:
        ``await session.run_sync(conditions.tag_of, scope)``.

        A request that writes flushes what its session has not written yet, because the answer has
        the new values; not under ``no_autoflush``. An ``AsyncSession`` cannot be flushed here:
        ``await session.flush()`` before. For a GET it is the tag of the values that were read.

        Raises:
            ConfigurationError: :func:`optilock.etag_of` would raise it.
            ConcurrencyError: the flush finds that others have changed a row.
        """
        if scope is not None:
            return self.etags.of(obj, scope)
        if self.method.upper() in _READS:
            return self.etags.of_values_read(obj)
        state = inspect(obj, raiseerr=False)
        if isinstance(state, InstanceState) and state.async_session is None:
            session = state.session
            unsent = session is not None and (session.new or session.dirty or session.deleted)
            if session is not None and unsent and session.autoflush:
                session.flush()
        return self.etags.of(obj)

    def not_modified(
        self, etag: str | None, *, last_modified: str | datetime | None = None
    ) -> bool:
        """Return whether the client has this version, so that the answer to a GET is 304.

        Raises:
            PreconditionFailed: the request demands another version (412).
        """
        answer = self.asked.judge(etag=etag, last_modified=last_modified)
        if answer.status == 412:
            raise version_mismatch(answer.reason, etag)
        return answer.status == 304

    def seen(
        self,
        etag: str | None,
        *,
        exists: bool = True,
        last_modified: str | datetime | None = None,
        version: Any = None,
    ) -> dict[str, Any]:
        """Return the demands of a write whose row was just read; they keep other writers out.

        Args:
            etag: the tag of the row as it is sent out; ``None`` if it has none.
            exists: ``False`` if there is no row.
            version: the version that was read, if the tags are the application's own.

        Raises:
            PreconditionFailed: the row does not meet the conditions (412).
        """
        answer = self.asked.judge(etag=etag, exists=exists, last_modified=last_modified)
        if answer.status is not None:
            raise version_mismatch(answer.reason, etag)
        if not exists:
            return {"if_none_match": STAR, "etags": self.etags}
        match = etag if version is None else entities.Version(version)
        return {"if_match": match, "etags": self.etags}


def unconditional(function: F) -> F:
    """Mark a route that needs no condition, on purpose, so that ``optilock check`` skips it.

    It changes nothing else: a request whose condition is not compared is still refused.
    """
    setattr(function, UNCONDITIONAL, True)
    return function


def version_mismatch(reason: str, etag: str | None = None) -> PreconditionFailed:
    """Return the error of a row that does not meet the conditions (412)."""
    error = PreconditionFailed(message=reason)
    error.etag = etag
    return report(error)


#: No header fields.
NO_FIELDS: Final[Mapping[str, str]] = MappingProxyType({})
#: RFC 9110 section 15.4.5: a 304 has these, if the answer with a body would have them.
_OF_304 = ("cache-control", "content-location", "date", "etag", "expires", "vary")


def of_not_modified(etag: str | None, headers: Mapping[str, str]) -> dict[str, str]:
    """Return the header fields of a 304."""
    found = {name: value for name, value in headers.items() if name.lower() in _OF_304}
    if etag is not None:
        found = {name: one for name, one in found.items() if name.lower() != "etag"}
        found["ETag"] = etag
    return found


def _refuse(reason: str) -> NoReturn:
    error = PreconditionRequired(reason)
    error.detail = reason
    raise error


# -- OpenAPI ---------------------------------------------------------------------------------------

_READS = ("GET", "HEAD")
IF_MATCH: Final = "The ETag of the version to change."
IF_NONE_MATCH: Final = "To create: *. To read: the ETag of the version that the client has."
ETAG: Final = "The version, to be sent in If-Match."


class ProblemDocument(TypedDict, total=False):
    """A problem document as a type, for frameworks that make schemas of types."""

    type: Required[str]
    title: Required[str]
    status: Required[int]
    detail: Required[str]
    etag: str
    conflicts: dict[str, dict[str, Any]]
    changed_by: Any
    changed_at: str
    names: list[str]
    index: int


_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "title": "Problem",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string", "format": "uri"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "etag": {"type": "string", "description": "The ETag of the current version."},
        "conflicts": {"type": "object", "description": "For each field up to three values."},
        "changed_by": {"description": "The author of the last change."},
        "changed_at": {"type": "string", "description": "When it was changed last."},
        "names": {
            "type": "array",
            "items": {"type": "string"},
            "description": "The members of the body that it is about.",
        },
        "index": {"type": "integer", "description": "Which operation of several failed, from 0."},
    },
}


#: The meaning of each answer other than 2xx.
ANSWERS: Final[Mapping[int, str]] = {
    304: "The version that is known already.",
    400: "A condition cannot be read, or the body cannot be stored.",
    404: "There is nothing here.",
    409: "Another change was first, or it exists already.",
    412: "It is in another version.",
    422: "The Idempotency-Key belongs to another request.",
    428: "A condition is needed.",
}


def error_statuses(method: str, *, keyed: bool = False) -> tuple[int, ...]:
    """Return the statuses other than 2xx that a request of this method may get.

    ``keyed``: it has an ``Idempotency-Key`` (:mod:`optilock.web.keys`), and no condition.
    """
    if keyed:
        return (400, 404, 409, 422)
    return (304, 400, 404, 412) if method.upper() in _READS else (400, 404, 409, 412, 428)


def openapi_responses(
    method: str, success: int, *, keyed: bool = False
) -> dict[int | str, dict[str, Any]]:
    """Return the responses of an operation, by status, for an OpenAPI document.

    The answer ``success`` has an ETag, unless the operation is a DELETE or ``keyed``::

        openapi_responses("PUT", 204)[412]["content"]    # {"application/problem+json": ...}
    """
    statuses = error_statuses(method, keyed=keyed)
    found: dict[int | str, dict[str, Any]] = {one: _answer(one) for one in statuses}
    if method.upper() != "DELETE" and not keyed:
        found[success] = {"description": "Done.", "headers": _etag()}
    return found


def _answer(status: int) -> dict[str, Any]:
    found: dict[str, Any] = {"description": ANSWERS[status]}
    if status in (304, 412):
        found["headers"] = _etag()
    if status != 304:
        found["content"] = {MEDIA_TYPE: {"schema": dict(_SCHEMA)}}
    return found


def _etag() -> dict[str, Any]:
    return {"ETag": {"description": ETAG, "schema": {"type": "string"}}}
