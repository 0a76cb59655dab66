"""The kinds of problem documents: type, status, title, and what they say to a client.

:mod:`~optilock.web.problems` says which error is of which kind.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from optilock.leases.errors import LeaseHeld, LeaseLost
from optilock.queue.errors import MessageNotFound, MessageTooLarge, ReceiptExpired
from optilock.shares.errors import (
    AccessDenied,
    DeletePending,
    HandleLost,
    ReadOnlyName,
    SharingViolation,
)


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
