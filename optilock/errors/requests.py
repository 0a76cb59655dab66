"""Mistakes and misses of a client: each error has its HTTP status.

``PreconditionFailed`` (412) is in :mod:`~optilock.errors.conflicts`, because it is a conflict.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from optilock.errors.base import OptilockError, pickled_state, row_name


class BadPrecondition(OptilockError, ValueError):
    """A client's condition cannot be read, or names no version; nothing was written.

    The message is for the client: it holds at most one character of the condition. ``status`` is
    400 (Bad Request), or 428 (Precondition Required, RFC 6585 section 3) without any version.
    """

    status: int
    #: The message for an HTTP client, without names of classes and functions.
    detail: str | None = None

    def __init__(self, message: str, status: int = 400) -> None:
        self.status = status
        super().__init__(message)


class PreconditionRequired(BadPrecondition):
    """A request for a write that needs a condition has none; nothing was sent.

    RFC 6585 section 3 (428 Precondition Required).
    """

    def __init__(self, message: str, status: int = 428) -> None:
        super().__init__(message, status)


class ConditionNotCompared(OptilockError):
    """The program would have written without comparing the condition that a client has sent.

    It is an error of the program: nothing was stored. HTTP 501 (Not Implemented): this resource
    supports no conditions, so the client may send the request again only without one.
    """

    status = 501


class BadEntity(OptilockError, ValueError):
    """A client has sent values that its row cannot have; nothing was sent to the database.

    ``names`` are the attributes with these values. HTTP 400 (Bad Request).
    """

    status = 400
    names: tuple[str, ...]
    #: The message for an HTTP client, without names of classes and functions.
    detail: str | None = None

    def __init__(
        self, message: str, names: Iterable[str] = (), *, detail: str | None = None
    ) -> None:
        self.names = tuple(names)
        if detail is not None:
            self.detail = f"{detail} Nothing was stored."
        super().__init__(message)


class NotFound(OptilockError, LookupError):
    """There is no row with this key, in any version.

    RFC 9110 section 13.2.1 (404 Not Found, before any condition).
    """

    status = 404
    model: type[Any]
    #: The primary key, as a tuple in the order of the mapper's primary key columns.
    identity: tuple[Any, ...]

    def __init__(self, model: type[Any], identity: tuple[Any, ...]) -> None:
        self.model, self.identity = model, identity
        super().__init__(
            f"There is no {row_name(model, identity)}: it was never stored, or it was deleted."
            " Nothing was written. To make it, use insert(), insert_or_replace() or"
            " insert_or_merge() of optilock.entities."
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.model, self.identity), pickled_state(self))


class AlreadyExists(OptilockError):
    """There is a row with this key already.

    ``status`` is 409 (Conflict), or 412 (Precondition Failed) after ``If-None-Match: *``.
    """

    status: int
    model: type[Any]
    #: The primary key, as a tuple in the order of the mapper's primary key columns.
    identity: tuple[Any, ...]
    #: Attribute -> stored value; ``None`` if the row has gone again.
    database: Mapping[str, Any] | None
    #: The current ETag of the row.
    etag: str | None = None

    def __init__(
        self,
        model: type[Any],
        identity: tuple[Any, ...],
        database: Mapping[str, Any] | None = None,
        status: int = 409,
    ) -> None:
        self.model, self.identity, self.status = model, identity, status
        self.database = None if database is None else dict(database)
        super().__init__(
            f"{row_name(model, identity)} is there already, so it was not inserted. Choose another"
            " key; or read the row, and write it with replace() or merge() of optilock.entities in"
            " the version that you have read."
        )

    def __reduce__(self) -> tuple[Any, ...]:
        given = self.model, self.identity, self.database, self.status
        return (type(self), given, pickled_state(self))


class BatchFailed(OptilockError):
    """One of several operations failed, and none of them was written.

    ``index`` is its place among them, from 0, ``status`` the HTTP status of the ``cause``.
    """

    index: int
    cause: Exception

    def __init__(self, index: int, cause: Exception) -> None:
        self.index, self.cause = index, cause
        super().__init__(
            f"Operation {index} of the transaction failed, so none of its operations was written:"
            f" {cause}"
        )

    @property
    def status(self) -> int | None:
        """The HTTP status of the cause; ``None`` if it has none."""
        return getattr(self.cause, "status", None)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.index, self.cause), pickled_state(self))
