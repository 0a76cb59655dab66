"""Errors as answers: problem documents (RFC 9457) with their status.

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

Programs read ``type``, which stays the same from release to release:

=============================  ========  ===========================================================
type, after ``urn:optilock:``  status    error
=============================  ========  ===========================================================
bad-precondition               400       BadPrecondition
bad-entity                     400       BadEntity; ``names`` has the members that it is about;
                                         an UPDATE to NULL of a column that takes none; a value
                                         that no driver takes
not-found                      404       NotFound; PreconditionFailed of a row that is gone;
                                         ``session.get_one`` without a row, ``session.get`` of a
                                         key that none can have
already-exists                 409       AlreadyExists; with ``If-None-Match: *`` 412
conflict                       409       ConcurrencyError (LinkGone, WouldOverwrite), StaleDataError
lease-held, lease-lost         412       LeaseHeld, LeaseLost; of the lease itself 409
sharing-violation              409       SharingViolation
delete-pending                 409       DeletePending
handle-lost                    412       HandleLost
access-denied                  403       AccessDenied
read-only                      412       ReadOnlyName; through a handle 403
message-not-found              404       MessageNotFound
receipt-expired                400       ReceiptExpired
message-too-large              413       MessageTooLarge
key-in-use, key-reused         409, 422  KeyInUse, with ``Retry-After``; KeyReused
precondition-failed            412       PreconditionFailed
precondition-required          428       PreconditionRequired
condition-not-compared         501       ConditionNotCompared, which is logged: a fault of the route
not-stored                     500       no error: a session closed without COMMIT, which is logged
not-written                    403       NotWritten
outcome-unknown                500       CommitOutcomeUnknown
try-again                      503       a passing error of the database, ``is_transient``
=============================  ========  ===========================================================

``BatchFailed`` is answered as its cause, with the position of the operation (``index``). An error
that no client can help, a ``ConfigurationError`` above all, is no problem document (``None``): let
it go on, so that the framework answers 500 and logs it.

**Values in an answer.** The sentences name no class, no column and no SQL. ``etag`` is the row's
current tag. ``conflicts`` has values of the fields that the class lists, none by default::

    class Page(Versioned, Base):
        __problem_fields__ = ("title", "body")

Each field has up to three values, as in :class:`~optilock.errors.Entry`: ``original``, seen by the
client, if known; ``current``, wanted by it; ``database``, now stored. A field whose values are all
equal is left out: it is not in conflict. An error about several rows shows no values.

``changed_by`` and ``changed_at`` are the author and the time of the stored row's last change, if
the class declares the attributes that hold them; that line is the permission to show them::

    class Page(Versioned, Base):
        __version_author__ = "updated_by"
        __version_time__ = "updated_at"

**503** answers an error after which the database has certainly undone everything: a deadlock, a
lock timeout, a transaction that could not be serialized, an unreachable server. The client can send
the request again as it is, in a second (``Retry-After``). The server does not repeat it: it has
read the body, and only the handler knows what else it has done by then.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from traceback import walk_tb
from types import FrameType, MappingProxyType
from typing import Any, Final

from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, NoResultFound
from sqlalchemy.orm.exc import StaleDataError

from optilock import errors
from optilock.dialects.transient import is_transient
from optilock.exactly_once.errors import KeyInUse, KeyReused
from optilock.leases.errors import LeaseHeld, LeaseLost
from optilock.preconditions.entity_tags import PLAIN, ETags, tag_of_entry
from optilock.queue.errors import MessageNotFound, MessageTooLarge, ReceiptExpired
from optilock.shares.errors import (
    AccessDenied,
    DeletePending,
    HandleLost,
    ReadOnlyName,
    SharingViolation,
)
from optilock.web.row_values import shown_of

__all__ = ["ERRORS", "MEDIA_TYPE", "OF_VALUES", "Problem", "problem_of"]

_log = logging.getLogger("optilock")

#: The media type of a problem document.
MEDIA_TYPE: Final = "application/problem+json"
_LATER: Final = MappingProxyType({"Retry-After": "1"})  # seconds
#: The number of names of a body in a problem, and the characters of each.
_NAMES, _LONGEST = 10, 64

#: The classes whose errors a framework must hand to :func:`problem_of`, with those of
#: :func:`optilock.dialects.unwrapped_errors`. Some of the errors have no problem document.
ERRORS: Final = (errors.OptilockError, StaleDataError, DBAPIError)
#: The same for classes that other libraries raise too. A client's value can cause one of them: a
#: key that no row has or can have, a number or a text that no driver takes.
OF_VALUES: Final = (NoResultFound, OverflowError, UnicodeEncodeError)


def problem_of(error: BaseException, *, etags: ETags = PLAIN) -> Problem | None:
    """Return the answer to an error; ``None`` if no client can help it.

    ``etags`` makes the tag of an error that has only the version.
    """
    if type(error) in BY_CLASS:
        return BY_CLASS[type(error)].problem(status=error.status)  # type: ignore[attr-defined]
    match error:
        case errors.BatchFailed():
            return _of_batch(error, etags)
        case errors.BadPrecondition():
            kind = REQUIRED if error.status == 428 else BAD_PRECONDITION
            return kind.problem(detail=error.detail)
        case errors.BadEntity():
            return BAD_ENTITY.problem(detail=error.detail, names=_shown_names(error.names))
        case errors.AlreadyExists():
            return _with_tag(EXISTS, error.status, error.etag)
        case errors.ConditionNotCompared():
            _log.error("%s", error)  # a fault of the route, and not of the client
            return NOT_COMPARED.problem()
        case errors.NotFound() | errors.CommitOutcomeUnknown() | errors.NotWritten():
            return next(kind for cls, kind in _PLAIN_KINDS if isinstance(error, cls)).problem()
        case errors.MovedByOwnStatement():
            return None  # a fault of the program, which another request meets as well
        case StaleDataError():
            return _of_conflict(error, etags)
    if is_transient(error):
        return AGAIN.problem()
    return _of_client_value(error)


#: NOT NULL: PostgreSQL, MariaDB, SQLite.
_NOT_NULL = frozenset({"23502", 1048, "SQLITE_CONSTRAINT_NOTNULL"})


def _of_client_value(error: BaseException) -> Problem | None:
    """Return the answer to an error of a client's value that no operation has checked."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    gets = list(filter(_is_get, frames))
    match error:
        case NoResultFound() if gets and frames[-1] is gets[-1]:
            return NOT_FOUND.problem()
        case OverflowError() | UnicodeEncodeError() if any(map(_is_driver_call, frames)):
            return NOT_FOUND.problem() if gets else BAD_ENTITY.problem()
        case DBAPIError() if gets and _is_bad_data(error):
            return NOT_FOUND.problem()
        case IntegrityError() if _is_null_by_update(error):
            return BAD_ENTITY.problem()
    return None


def _is_bad_data(error: DBAPIError) -> bool:
    cause = getattr(error.orig, "__cause__", None)
    return isinstance(error, DataError) or type(cause).__name__ == "DataError"


def _is_null_by_update(error: IntegrityError) -> bool:
    is_update = (error.statement or "").startswith("UPDATE ")
    return is_update and not _NOT_NULL.isdisjoint(_codes(error))


def _is_get(frame: FrameType) -> bool:
    """Return whether a frame is ``get`` or ``get_one`` of a session, watched or not."""
    module = str(frame.f_globals.get("__name__"))
    is_ours = module.split(".")[:2] == ["optilock", "_watched"]
    is_session = is_ours or module == "sqlalchemy.orm.session"
    return is_session and frame.f_code.co_name in ("get", "get_one")


def _is_driver_call(frame: FrameType) -> bool:
    return frame.f_code.co_name.startswith("do_execute")


def _codes(error: DBAPIError) -> set[object]:
    """Return the codes of the database and of its driver."""
    orig = error.orig
    named = [getattr(orig, name, None) for name in ("sqlstate", "sqlite_errorname")]
    return {one for one in (*named, *getattr(orig, "args", ())[:1]) if isinstance(one, (int, str))}


def _of_batch(error: errors.BatchFailed, etags: ETags) -> Problem | None:
    found = problem_of(error.cause, etags=etags)
    if found is None:
        return None
    headers = {name: value for name, value in found.headers.items() if name != "ETag"}
    return Problem(found.status, {**found.body, "index": error.index}, headers)


def _of_conflict(error: Exception, etags: ETags) -> Problem:
    entries: tuple[errors.Entry[Any], ...] = getattr(error, "entries", ())
    one = entries[0] if len(entries) == 1 else None
    own = None if one is None else tag_of_entry(one, etags)
    tag = getattr(error, "etag", None)
    tag = own if tag is None or (own is not None and etags is not PLAIN) else tag
    shown = {} if one is None else shown_of(one)
    if not isinstance(error, errors.PreconditionFailed):
        return CONFLICT.problem(etag=tag, **shown)
    if entries and all(entry.database is None for entry in entries):
        return NOT_FOUND.problem()
    return _with_tag(FAILED, FAILED.status, tag, **shown)


def _with_tag(kind: Kind, status: int, etag: str | None, **members: Any) -> Problem:
    """Put the tag into the body, and into the header if a condition was compared with it."""
    headers = {"ETag": etag} if etag is not None and status == 412 else {}
    return kind.problem(status=status, headers=headers, etag=etag, **members)


def _shown_names(names: tuple[str, ...]) -> list[str] | None:
    """Return some of the names that a client has sent, shortened."""
    return [name[:_LONGEST] for name in names[:_NAMES]] or None


# -- kinds of problem documents --------------------------------------------------------------------


@dataclass(frozen=True)
class Problem:
    """An answer: status, header fields, and the members of the problem document."""

    status: int
    body: Mapping[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)

    def content(self) -> bytes:
        """Return the document as it is sent."""
        return json.dumps(dict(self.body)).encode()


@dataclass(frozen=True)
class Kind:
    """A kind of problem: the end of its type, and its status and sentence."""

    name: str
    status: int
    detail: str
    title: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)

    def problem(
        self,
        *,
        status: int | None = None,
        detail: str | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
        **members: Any,
    ) -> Problem:
        sent = self.status if status is None else status
        body = {
            "type": f"urn:optilock:{self.name}",
            "title": self.title or self.name.replace("-", " ").title(),
            "status": sent,
            "detail": self.detail if detail is None else detail,
        }
        body |= {name: value for name, value in members.items() if value is not None}
        return Problem(sent, body, {**self.headers, **headers})


BAD_PRECONDITION = Kind(
    "bad-precondition",
    400,
    "A condition or a key of this request cannot be read, or is none that this request can have."
    ' An ETag is sent as it was received, with its two quotes: "abc".',
)
REQUIRED = Kind(
    "precondition-required",
    428,
    "Send If-Match with the ETag that you have read, or If-None-Match: * for something new.",
)
NOT_COMPARED = Kind(
    "condition-not-compared",
    501,
    "This resource does not compare the condition that the request carries, so it was not changed."
    " Nothing was stored.",
    title="Not Implemented",
)
NOT_STORED = Kind(
    "not-stored", 500, "The server has not stored the change. Nothing was stored. Try again later."
)
BAD_ENTITY = Kind("bad-entity", 400, "What was sent cannot be stored as it is. Nothing was stored.")
NOT_FOUND = Kind(
    "not-found", 404, "There is nothing here, or nothing any more. Nothing was stored."
)
EXISTS = Kind(
    "already-exists",
    409,
    "This is there already, so it was not made. Read it, and send its ETag in If-Match to change"
    " it.",
)
FAILED = Kind(
    "precondition-failed",
    412,
    "This is not in the version that the request demands. Nothing was stored. Read it and decide"
    " again, and send the ETag that you have read then, which does not begin with W/.",
)
CONFLICT = Kind(
    "conflict",
    409,
    "Another change of this was first. Nothing was stored. Read it again, and send the change again"
    " if you still want it.",
)
NOT_WRITTEN = Kind(
    "not-written",
    403,
    "You may read this, and not write it. Nothing was stored, and this is no conflict: to send it"
    " again changes nothing.",
)
UNKNOWN = Kind(
    "outcome-unknown",
    500,
    "It is not known whether it was stored: all of it, or nothing. Read it again before you send"
    " it again.",
)
AGAIN = Kind(
    "try-again",
    503,
    "The database could not do it now, and may do it soon. Nothing was stored. Send the request"
    " again.",
    headers=_LATER,
)

_PLAIN_KINDS: Final = (
    (errors.NotFound, NOT_FOUND),
    (errors.CommitOutcomeUnknown, UNKNOWN),
    (errors.NotWritten, NOT_WRITTEN),
)
#: Kinds of leases, share modes, queues and keys; the status is the error's own.
BY_CLASS: dict[type[BaseException], Kind] = {
    LeaseHeld: Kind(
        "lease-held",
        412,
        "Another holder has a lease on this. Nothing was stored. Send it again when the lease has"
        " ended.",
    ),
    LeaseLost: Kind(
        "lease-lost",
        412,
        "The lease that was named is not in force, or not any more. Nothing was stored. Acquire a"
        " new one, and read and decide again.",
    ),
    SharingViolation: Kind(
        "sharing-violation",
        409,
        "Another holder has this open and does not allow the request. Nothing was stored. Send it"
        " again when it is closed.",
    ),
    DeletePending: Kind(
        "delete-pending",
        409,
        "This will be deleted as soon as its last holder closes it. Nothing was stored.",
    ),
    HandleLost: Kind(
        "handle-lost",
        412,
        "The handle that was named is not open, or not any more. Nothing was stored. Open it"
        " again, and read and decide again.",
    ),
    AccessDenied: Kind(
        "access-denied",
        403,
        "The handle that was named was not opened for this. Nothing was stored.",
    ),
    ReadOnlyName: Kind(
        "read-only", 412, "This is read-only, so it is neither written nor deleted."
    ),
    MessageNotFound: Kind(
        "message-not-found", 404, "There is no such message in the queue, or not any more."
    ),
    ReceiptExpired: Kind(
        "receipt-expired",
        400,
        "The receipt that was named is not that of the message's last delivery. Nothing was done"
        " to the message.",
    ),
    MessageTooLarge: Kind(
        "message-too-large",
        413,
        "The message has more bytes than the queue takes. It was not sent.",
    ),
    KeyInUse: Kind(
        "key-in-use",
        409,
        "A request with this Idempotency-Key is being served. Send it again later, as it is.",
        headers=_LATER,
    ),
    KeyReused: Kind(
        "key-reused",
        422,
        "This Idempotency-Key belongs to another request. Nothing was stored. Send a new one.",
    ),
}
