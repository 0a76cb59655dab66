"""What one request demands of the row that it is about.

::

    conditions = Conditions.of("PUT", [("If-Match", '"Kx3f9Q2a.7"')])
    entities.replace(session, Page, 7, values, **conditions.demands)

    conditions = Conditions.of("GET", fields)
    tag = conditions.tag_of(page)
    if conditions.not_modified(tag):
        ...                                         # 304, with this tag and without a body

What cannot be performed whatever the row is ends here: a malformed condition is ``BadPrecondition``
(400), a missing one ``PreconditionRequired`` (428). The row is not looked at for it, nor the body.
What depends on the row stands in the WHERE of the statement (:attr:`Conditions.demands`).

=========================  ================================================================
a request that             writes with
=========================  ================================================================
changes what is there      ``entities.replace``, ``merge``, ``delete``, and ``**demands``
makes what is not there    ``entities.insert``, and ``**demands``, if :attr:`~Conditions.absent`
may do either (PUT)        :meth:`Conditions.put`, which chooses
edits a loaded object      ``expect(page, conditions.expected)``, ``apply(..., expected=...)``
=========================  ================================================================

``Policy(require=None)`` takes writes without a condition: the last writer wins, and is then not
asked. What such a request may demand besides (a date, or ``If-None-Match`` with tags) is no WHERE
of one statement (:attr:`~Conditions.needs_a_look`), so the row is read first:
:meth:`Conditions.seen` compares, and gives the demands that let nobody else write in between.
Otherwise ``demands`` lets such tags be refused (400), and takes no notice of dates, as the RFC
wants it where a row has none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NoReturn, TypeVar

from sqlalchemy.orm import Session

from optilock import entities
from optilock.conditions.fields import STAR
from optilock.conditions.request import compared
from optilock.entities import Stored
from optilock.errors import BadPrecondition, NotFound, PreconditionFailed, PreconditionRequired
from optilock.preconditions.entity_tags import PLAIN, ETags
from optilock.preconditions.rfc9110 import Fields, Precondition, Profile, Require, required

__all__ = ["STRICT", "Conditions", "Policy", "unconditional"]

F = TypeVar("F", bound=Callable[..., Any])
#: An attribute of a function: the route demands nothing, on purpose.
UNCONDITIONAL: Final = "_optilock_unconditional"


@dataclass(frozen=True)
class Policy:
    """The conditions that a route requires (:func:`optilock.preconditions.rfc9110.required`)."""

    #: ``None``: a write without a condition is performed.
    require: Require | None = "if_match"
    #: May ``If-Match: *`` say that the last writer wins?
    allow_star: bool = True
    profile: Profile = "rfc9110"
    #: What proxies write into tags: ``("-gzip",)``, ``("W/",)``.
    proxies: tuple[str, ...] = ()


#: RFC 9110, and a condition for every write.
STRICT: Final = Policy()


@dataclass(frozen=True)
class Conditions:
    """What a request demands of its row: of one request, and good for one row."""

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
        """Is it demanded that there is no such row (``If-None-Match: *``), and nothing else?"""
        asked = self.asked
        return asked.absent and asked.versions is None and not asked.exists

    @property
    def unconditional(self) -> bool:
        """Is nothing demanded? Only where the policy asks for nothing."""
        return self.asked.unconditional

    @property
    def needs_a_look(self) -> bool:
        """Is something demanded that no WHERE has: a date, or only that a tag is not there?

        Only where the policy asks for nothing: read the row, and write with :meth:`seen`.
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
        if asked.absent:  # of a row that is there this is true in no version
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
        """Store what a PUT has sent, where PUT makes what is not there.

        ``await session.run_sync(conditions.put, Page, key, values)`` with an ``AsyncSession``.
        ``options`` are further ones of the entity operations, such as ``idempotency``, which does
        nothing for a request that demands nothing.

        Raises:
            AlreadyExists: ``If-None-Match: *``, and the row is there (412).
            PreconditionFailed: the row is in another version, or not there (412).
            BadPrecondition: tags must not be there, and none has to be (400).
            Errors of the body: those of :func:`optilock.entities.replace`.
        """
        asked = self.asked
        if self.absent:
            return entities.insert(session, model, key, values, **self.demands, **options)
        if asked.versions is None and not asked.exists and not asked.unless:
            compared()  # a date, and no row has one
            # The last writer wins, so a request that is sent again is not known again.
            others = {name: each for name, each in options.items() if name != "idempotency"}
            return entities.insert_or_replace(
                session, model, key, values, etags=self.etags, **others
            )
        try:
            return entities.replace(session, model, key, values, **self.demands, **options)
        except NotFound as missing:
            raise failed("If-Match demands what is not there.") from missing

    # -- of a row that was read --------------------------------------------------------------------

    def tag_of(self, obj: object) -> str:
        """The ETag of a loaded row, as this application makes it."""
        return self.etags.of(obj)

    def not_modified(
        self, etag: str | None, *, last_modified: str | datetime | None = None
    ) -> bool:
        """Has the client this version already, so that a GET is answered with 304?

        Raises:
            PreconditionFailed: it demands another one (412).
        """
        answer = self.asked.judge(etag=etag, last_modified=last_modified)
        if answer.status == 412:
            raise failed(answer.reason, etag)
        return answer.status == 304

    def seen(
        self,
        etag: str | None,
        *,
        exists: bool = True,
        last_modified: str | datetime | None = None,
        version: Any = None,
    ) -> dict[str, Any]:
        """The demands of a write whose row has just been read: nobody may write in between.

        Args:
            etag: the tag of the row as it is sent out; ``None``: it has none.
            exists: is there a row?
            version: what was read, where the tags are the application's own.

        Raises:
            PreconditionFailed: the row is not what the client demands (412).
        """
        answer = self.asked.judge(etag=etag, exists=exists, last_modified=last_modified)
        if answer.status is not None:
            raise failed(answer.reason, etag)
        if not exists:
            return {"if_none_match": STAR, "etags": self.etags}
        match = etag if version is None else entities.Version(version)
        return {"if_match": match, "etags": self.etags}


def unconditional(function: F) -> F:
    """Say of a route that it is meant to demand nothing, so that ``optilock check`` leaves it out.

    It changes nothing else: a request with a condition is refused where nothing compares that.
    """
    setattr(function, UNCONDITIONAL, True)
    return function


def failed(reason: str, etag: str | None = None) -> PreconditionFailed:
    """The error of a row that is not what was demanded (412)."""
    error = PreconditionFailed(message=reason)
    error.etag = etag
    return error


def _refuse(reason: str) -> NoReturn:
    error = PreconditionRequired(reason)
    error.detail = reason
    raise error
