"""An error as an answer: a problem document (RFC 9457), with the status that it stands for.

::

    problem = problem_of(error)
    problem.status                      # 412
    problem.headers                     # {"ETag": '"gM0kXw2f.4"'}
    problem.body                        # {"type": "urn:optilock:precondition-failed", ...}

    {
        "type": "urn:optilock:precondition-failed",
        "title": "Precondition Failed",
        "status": 412,
        "detail": "This is not in the version that the request demands. ...",
        "etag": "\\"gM0kXw2f.4\\"",
        "conflicts": {"title": {"current": "Mine", "database": "Theirs"}}
    }

``type`` is what a program goes by, and stays the same from release to release:

===============================  ======  =========================================================
type, after ``urn:optilock:``    status  error
===============================  ======  =========================================================
bad-precondition                 400     BadPrecondition
bad-entity                       400     BadEntity; ``names`` has the members that it is about;
                                         an UPDATE to NULL where none may stand, and what no
                                         driver takes
not-found                        404     NotFound; PreconditionFailed of a row that is gone;
                                         ``session.get_one`` without a row, ``session.get`` of a
                                         key that none can have
already-exists                   409     AlreadyExists; with ``If-None-Match: *`` 412
conflict                         409     ConcurrencyError (LinkGone, WouldOverwrite), StaleDataError
lease-held, lease-lost           412     LeaseHeld, LeaseLost; of the lease itself 409
sharing-violation                409     SharingViolation
delete-pending                   409     DeletePending
handle-lost                      412     HandleLost
access-denied                    403     AccessDenied
read-only                        412     ReadOnlyName; through a handle 403
message-not-found                404     MessageNotFound
receipt-expired                  400     ReceiptExpired
message-too-large                413     MessageTooLarge
precondition-failed              412     PreconditionFailed
precondition-required            428     PreconditionRequired
condition-not-compared           501     ConditionNotCompared, which is logged: a fault of the route
not-written                      403     NotWritten
outcome-unknown                  500     CommitOutcomeUnknown
try-again                        503     a passing error of the database, ``is_transient``
===============================  ======  =========================================================

``BatchFailed`` is what its cause is, and says which operation it was (``index``). An error that no
client has to do with, a ``ConfigurationError`` above all, is no problem (``None``): let it go on,
so that the framework answers 500 and logs it.

**What a client may see.** The sentences name no class, no column and no SQL. ``etag`` is the tag
that the row has now. ``conflicts`` has values of the fields that the class lists, none by default::

    class Page(Versioned, Base):
        __problem_fields__ = ("title", "body")

Each has up to three values, as :class:`~optilock.errors.Entry` has them: ``original``, what the
client had seen, where that is known; ``current``, what it wants; ``database``, what is stored. A
field is left out where these are one value: there is no conflict about it. An error about several
rows shows the values of none.

**503** is an answer for an error after which the database has certainly undone everything: a
deadlock, a lock timeout, a transaction that could not be serialized, a server that was not reached.
The request can be sent again as it is, in a second (``Retry-After``). The server does not do so by
itself: it has read the body, and what else the handler has done by then only the handler knows.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, time
from decimal import Decimal
from enum import Enum
from traceback import walk_tb
from types import FrameType, MappingProxyType
from typing import Any, Final, Required, TypedDict
from uuid import UUID

from sqlalchemy import inspect
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, NoResultFound
from sqlalchemy.orm import Mapper
from sqlalchemy.orm.exc import StaleDataError

from optilock.columns.identities import identity_in
from optilock.dialects.transient import is_transient
from optilock.errors import (
    AlreadyExists,
    BadEntity,
    BadPrecondition,
    BatchFailed,
    CommitOutcomeUnknown,
    ConditionNotCompared,
    Entry,
    NotFound,
    NotWritten,
    OptilockError,
    PreconditionFailed,
)
from optilock.leases.errors import LeaseHeld, LeaseLost
from optilock.preconditions.entity_tags import PLAIN, ETags
from optilock.queue.errors import MessageNotFound, MessageTooLarge, ReceiptExpired
from optilock.serialize import as_json
from optilock.shares.errors import (
    AccessDenied,
    DeletePending,
    HandleLost,
    ReadOnlyName,
    SharingViolation,
)

__all__ = [
    "ANSWERS",
    "ERRORS",
    "ETAG",
    "IF_MATCH",
    "IF_NONE_MATCH",
    "MEDIA_TYPE",
    "OF_VALUES",
    "Problem",
    "ProblemDocument",
    "answers",
    "problem_of",
    "told",
]

_log = logging.getLogger("optilock")


MEDIA_TYPE: Final = "application/problem+json"
#: In seconds, of a 503.
_RETRY_AFTER = 1
#: Names of a body that a problem repeats, and characters of each.
_NAMES, _LONGEST = 10, 64


#: The classes whose errors a framework has to hand over; of some of these nothing can be told.
#: With those of :func:`optilock.dialects.unwrapped`, which belong to others as well.
ERRORS: Final = (OptilockError, StaleDataError, DBAPIError)
#: The same of errors that belong to others as well, where a value that a client has sent is behind
#: one: a key that no row has or can have, a number or a text that no driver takes.
OF_VALUES: Final = (NoResultFound, OverflowError, UnicodeEncodeError)


def problem_of(error: BaseException, *, etags: ETags = PLAIN) -> Problem | None:
    """The answer that ``error`` stands for; ``None``: no client has to do with it.

    ``etags``: how tags are made, where an error brings the version alone.
    """
    if type(error) in BY_CLASS:
        return BY_CLASS[type(error)].problem(status=error.status)  # type: ignore[attr-defined]
    match error:
        case BatchFailed():
            return _of_batch(error, etags)
        case BadPrecondition():
            kind = REQUIRED if error.status == 428 else BAD_PRECONDITION
            return kind.problem(detail=error.detail)
        case ConditionNotCompared():
            _log.error("%s", error)  # the client cannot help it
            return NOT_COMPARED.problem()
        case BadEntity():
            return BAD_ENTITY.problem(detail=error.detail, names=_shown_names(error.names))
        case NotFound():
            return NOT_FOUND.problem()
        case AlreadyExists():
            return _with_tag(EXISTS, error.status, error.etag)
        case CommitOutcomeUnknown():
            return UNKNOWN.problem()
        case NotWritten():
            return NOT_WRITTEN.problem()
        case StaleDataError():
            return _of_conflict(error, etags)
        case _ if is_transient(error):
            return AGAIN.problem(headers={"Retry-After": str(_RETRY_AFTER)})
    return _of_a_value(error)


#: NOT NULL: PostgreSQL, MariaDB, SQLite.
_NOT_NULL = frozenset({"23502", 1048, "SQLITE_CONSTRAINT_NOTNULL"})


def _of_a_value(error: BaseException) -> Problem | None:
    """What a value of the client's has ended in, where no operation of ours has looked at it."""
    through = [frame for frame, _ in walk_tb(error.__traceback__)]
    asked = [one for one in through if one.f_code.co_name in ("get", "get_one") and _is_orm(one)]
    by_key = bool(asked)
    if isinstance(error, NoResultFound):
        return NOT_FOUND.problem() if by_key and through[-1] is asked[-1] else None
    if isinstance(error, (OverflowError, UnicodeEncodeError)):
        if not any(one.f_code.co_name.startswith("do_execute") for one in through):
            return None  # another number, another text
        return NOT_FOUND.problem() if by_key else BAD_ENTITY.problem()
    if not isinstance(error, DBAPIError):
        return None
    cause = getattr(error.orig, "__cause__", None)
    if by_key and (isinstance(error, DataError) or type(cause).__name__ == "DataError"):
        return NOT_FOUND.problem()
    if isinstance(error, IntegrityError) and (error.statement or "").startswith("UPDATE "):
        return None if _NOT_NULL.isdisjoint(_codes(error)) else BAD_ENTITY.problem()
    return None


def _is_orm(frame: FrameType) -> bool:
    """Return whether a frame is of a session, SQLAlchemy's own or a watched one."""
    module = str(frame.f_globals.get("__name__"))
    return module == "sqlalchemy.orm.session" or module.split(".")[:2] == ["optilock", "watched"]


def _codes(error: DBAPIError) -> set[object]:
    """What the database, and its driver, call the error."""
    orig = error.orig
    named = [getattr(orig, name, None) for name in ("sqlstate", "sqlite_errorname")]
    return {one for one in (*named, *getattr(orig, "args", ())[:1]) if isinstance(one, (int, str))}


def _of_batch(error: BatchFailed, etags: ETags) -> Problem | None:
    found = problem_of(error.cause, etags=etags)
    if found is None:
        return None
    headers = {name: value for name, value in found.headers.items() if name != "ETag"}
    return Problem(found.status, {**found.body, "index": error.index}, headers)


def _of_conflict(error: Exception, etags: ETags) -> Problem:
    entries: tuple[Entry[Any], ...] = getattr(error, "entries", ())
    one = entries[0] if len(entries) == 1 else None
    tag = getattr(error, "etag", None) or (None if one is None else _tag_in(one, etags))
    conflicts = None if one is None else _values_of(one)
    if not isinstance(error, PreconditionFailed):
        return CONFLICT.problem(etag=tag, conflicts=conflicts)
    if entries and all(entry.database is None for entry in entries):
        return NOT_FOUND.problem()
    return _with_tag(FAILED, FAILED.status, tag, conflicts=conflicts)


def _with_tag(kind: Kind, status: int, etag: str | None, **members: Any) -> Problem:
    """In the header where it says which version the condition was compared with."""
    headers = {"ETag": etag} if etag is not None and status == 412 else {}
    return kind.problem(status=status, headers=headers, etag=etag, **members)


def _tag_in(entry: Entry[Any], etags: ETags) -> str | None:
    if entry.database is None or entry.token is None:
        return None
    version = entry.database.get(entry.token)
    mapper: Mapper[Any] = inspect(entry.model)
    identity = identity_in(mapper, entry.identity, entry.database)
    return None if version is None else etags.tag(mapper, identity, version)


# -- values ----------------------------------------------------------------------------------------


def _values_of(entry: Entry[Any]) -> dict[str, dict[str, Any]] | None:
    """The values of the fields that the class lists; ``None`` where it lists none."""
    listed: Iterable[str] = getattr(entry.model, "__problem_fields__", ())
    sides = {"original": entry.original, "current": entry.current, "database": entry.database}
    found = {
        name: {
            side: as_json(values[name])
            for side, values in sides.items()
            if values is not None and name in values and _can_be_shown(values[name])
        }
        for name in listed
        if _is_in_conflict(entry, name)
    }
    return {name: values for name, values in found.items() if values} or None


def _is_in_conflict(entry: Entry[Any], name: str) -> bool:
    """``False``: what is stored is what the request wants, and what the client had seen."""
    stored = entry.database
    if stored is None or name not in entry.current:
        return True
    sides = (entry.original, entry.current)
    return any(name in side and side[name] != stored.get(name) for side in sides)


def _can_be_shown(value: Any) -> bool:
    return value is None or isinstance(value, _SHOWN)


_SHOWN = (str, int, float, Decimal, UUID, Enum, date, time, bytes, dict, list, tuple)


def _shown_names(names: tuple[str, ...]) -> list[str] | None:
    """Some of the names that a client has sent, shortened."""
    return [name[:_LONGEST] for name in names[:_NAMES]] or None


# -- kinds of problem documents --------------------------------------------------------------------


@dataclass(frozen=True)
class Problem:
    """What to answer: a status, header fields, and the members of the problem document."""

    status: int
    body: Mapping[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)

    def content(self) -> bytes:
        """The document as it is sent."""
        return json.dumps(dict(self.body)).encode()


@dataclass(frozen=True)
class Kind:
    """A kind of problem: the end of its type, and what it says."""

    name: str
    status: int
    title: str
    detail: str

    def problem(
        self,
        *,
        status: int | None = None,
        detail: str | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
        **members: Any,
    ) -> Problem:
        told = self.status if status is None else status
        body = {
            "type": f"urn:optilock:{self.name}",
            "title": self.title,
            "status": told,
            "detail": self.detail if detail is None else detail,
        }
        body |= {name: value for name, value in members.items() if value is not None}
        return Problem(told, body, dict(headers))


BAD_PRECONDITION = Kind(
    "bad-precondition",
    400,
    "Bad Precondition",
    "A condition or a key of this request cannot be read, or is none that this request can have."
    ' An ETag is sent as it was received, with its two quotes: "abc".',
)
REQUIRED = Kind(
    "precondition-required",
    428,
    "Precondition Required",
    "Send If-Match with the ETag that you have read, or If-None-Match: * for something new.",
)
NOT_COMPARED = Kind(
    "condition-not-compared",
    501,
    "Not Implemented",
    "This resource does not compare the condition that the request carries, so it was not changed."
    " Nothing was stored.",
)
BAD_ENTITY = Kind(
    "bad-entity",
    400,
    "Bad Entity",
    "What was sent cannot be stored as it is. Nothing was stored.",
)
NOT_FOUND = Kind(
    "not-found",
    404,
    "Not Found",
    "There is nothing here, or nothing any more. Nothing was stored.",
)
EXISTS = Kind(
    "already-exists",
    409,
    "Already Exists",
    "This is there already, so it was not made. Read it, and send its ETag in If-Match to change"
    " it.",
)
FAILED = Kind(
    "precondition-failed",
    412,
    "Precondition Failed",
    "This is not in the version that the request demands. Nothing was stored. Read it again, decide"
    " anew, and send the ETag that you have read then, which does not begin with W/.",
)
CONFLICT = Kind(
    "conflict",
    409,
    "Conflict",
    "Somebody else was first with a change of the same. Nothing was stored. Read it again, and"
    " send the change again if it still is wanted.",
)
NOT_WRITTEN = Kind(
    "not-written",
    403,
    "Not Written",
    "This may be read here, and not be written. Nothing was stored, and nobody else was first:"
    " to send it again changes nothing.",
)
UNKNOWN = Kind(
    "outcome-unknown",
    500,
    "Outcome Unknown",
    "It is not known whether it was stored: all of it, or nothing. Read it again before you send"
    " it again.",
)
AGAIN = Kind(
    "try-again",
    503,
    "Try Again",
    "The database could not do it now, and may do it soon. Nothing was stored. Send the request"
    " again.",
)

#: Of leases, share modes and queues: the status is the error's own.
BY_CLASS: dict[type[BaseException], Kind] = {
    LeaseHeld: Kind(
        "lease-held",
        412,
        "Lease Held",
        "Somebody else holds a lease on this. Nothing was stored. Send it again when the lease has"
        " ended.",
    ),
    LeaseLost: Kind(
        "lease-lost",
        412,
        "Lease Lost",
        "The lease that was named is not in force, or not any more. Nothing was stored. Acquire a"
        " new one, read again, and decide anew.",
    ),
    SharingViolation: Kind(
        "sharing-violation",
        409,
        "Sharing Violation",
        "Somebody has this open so that the request does not fit. Nothing was stored. Send it"
        " again when it is closed.",
    ),
    DeletePending: Kind(
        "delete-pending",
        409,
        "Delete Pending",
        "This is to be deleted as soon as nobody has it open. Nothing was stored.",
    ),
    HandleLost: Kind(
        "handle-lost",
        412,
        "Handle Lost",
        "The handle that was named is not open, or not any more. Nothing was stored. Open it"
        " again, read again, and decide anew.",
    ),
    AccessDenied: Kind(
        "access-denied",
        403,
        "Access Denied",
        "The handle that was named was not opened for this. Nothing was stored.",
    ),
    ReadOnlyName: Kind(
        "read-only",
        412,
        "Read Only",
        "This is read-only, so it is neither written nor deleted.",
    ),
    MessageNotFound: Kind(
        "message-not-found",
        404,
        "Message Not Found",
        "There is no such message in the queue, or not any more.",
    ),
    ReceiptExpired: Kind(
        "receipt-expired",
        400,
        "Receipt Expired",
        "The receipt that was named is not that of the message's last delivery. Nothing was done"
        " to the message.",
    ),
    MessageTooLarge: Kind(
        "message-too-large",
        413,
        "Message Too Large",
        "The message has more bytes than the queue takes. It was not sent.",
    ),
}


# -- conditional requests in an OpenAPI document ---------------------------------------------------

IF_MATCH: Final = "The ETag of the version that is to be changed."
IF_NONE_MATCH: Final = "* to make what is not there; to read: the ETag that is known already."
ETAG: Final = "The version, to be sent in If-Match."


class ProblemDocument(TypedDict, total=False):
    """A problem document, for whoever makes schemas of types."""

    type: Required[str]
    title: Required[str]
    status: Required[int]
    detail: Required[str]
    etag: str
    conflicts: dict[str, dict[str, Any]]
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
        "names": {
            "type": "array",
            "items": {"type": "string"},
            "description": "The members of the body that it is about.",
        },
        "index": {"type": "integer", "description": "Which operation of several failed, from 0."},
    },
}
#: What an answer beside 2xx means.
ANSWERS: Final[Mapping[int, str]] = {
    304: "The version that is known already.",
    400: "A condition cannot be read, or the body cannot be stored.",
    404: "There is nothing here.",
    409: "Somebody else was first, or it is there already.",
    412: "It is in another version.",
    428: "A condition is needed.",
}
_READS = ("GET", "HEAD")


def told(method: str) -> tuple[int, ...]:
    """The statuses beside 2xx that a request of this method may get."""
    return (304, 400, 404, 412) if method.upper() in _READS else (400, 404, 409, 412, 428)


def answers(method: str, success: int) -> dict[int | str, dict[str, Any]]:
    """The responses of an operation, by status; ``success`` has an ETag, unless it is a DELETE."""
    found: dict[int | str, dict[str, Any]] = {one: _answer(one) for one in told(method)}
    if method.upper() != "DELETE":
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
