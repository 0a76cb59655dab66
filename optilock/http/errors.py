"""What a client got wrong, or asked for in vain: each error has its HTTP status.

They are of the one tree of :mod:`optilock.errors`. ``PreconditionFailed`` (412) stands there,
because it is a conflict.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from optilock.errors import OptilockError, pickled_state

__all__ = [
    "AlreadyExists",
    "BadEntity",
    "BadPrecondition",
    "BatchFailed",
    "ConditionNotCompared",
    "NotFound",
    "PreconditionRequired",
]


class BadPrecondition(OptilockError, ValueError):
    """A condition that a client has sent cannot be read, or names no version; nothing was written.

    The message is one for the client: it holds at most one character of what was sent. ``status``
    is 400 (Bad Request), or 428 (Precondition Required, RFC 6585 section 3) where no version was
    named at all.
    """

    status: int
    #: The same for a client that knows nothing of the program: no name of a class or a function.
    detail: str | None = None

    def __init__(self, message: str, status: int = 400) -> None:
        self.status = status
        super().__init__(message)


class PreconditionRequired(BadPrecondition):
    """A write that needs a condition was asked for without one; nothing was sent.

    RFC 6585 section 3 (428 Precondition Required).
    """

    def __init__(self, message: str, status: int = 428) -> None:
        super().__init__(message, status)


class ConditionNotCompared(OptilockError):
    """A client has sent a condition, and the program would have written without comparing it.

    An error of the program: nothing was stored. HTTP 501 (Not Implemented): this resource has no
    conditions, so the client may send the request without one, and not again as it is.
    """

    status = 501


class BadEntity(OptilockError, ValueError):
    """A client has sent values that its row cannot have; nothing was sent.

    ``names`` are the attributes that it is about. HTTP 400 (Bad Request).
    """

    status = 400
    names: tuple[str, ...]
    #: The same for a client that knows nothing of the program: no name of a class or a function.
    detail: str | None = None

    def __init__(
        self, message: str, names: Iterable[str] = (), *, detail: str | None = None
    ) -> None:
        self.names = tuple(names)
        if detail is not None:
            self.detail = f"{detail} Nothing was stored."
        super().__init__(message)


class NotFound(OptilockError, LookupError):
    """There is no row with this key, whatever version was demanded of it.

    RFC 9110 section 13.2.1 (404 Not Found, before any condition).
    """

    status = 404
    model: type[Any]
    #: The primary key, as a tuple in the order of the mapper's primary key columns.
    identity: tuple[Any, ...]

    def __init__(self, model: type[Any], identity: tuple[Any, ...]) -> None:
        self.model, self.identity = model, identity
        super().__init__(
            f"There is no {_named(model, identity)}: it was never stored, or somebody has deleted"
            " it. Nothing was written. To make it, use insert(), insert_or_replace() or"
            " insert_or_merge() of optilock.entities."
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.model, self.identity), pickled_state(self))


class AlreadyExists(OptilockError):
    """There is a row with this key already.

    ``status`` is 409 (Conflict), or 412 (Precondition Failed) where ``If-None-Match: *`` was
    demanded.
    """

    status: int
    model: type[Any]
    #: The primary key, as a tuple in the order of the mapper's primary key columns.
    identity: tuple[Any, ...]
    #: Attribute -> stored value; ``None`` if the row has gone again.
    database: Mapping[str, Any] | None
    #: The tag that the row has now.
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
            f"{_named(model, identity)} is there already, so it was not inserted. Choose another"
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
        """Of the cause; ``None`` where it has none."""
        return getattr(self.cause, "status", None)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.index, self.cause), pickled_state(self))


def _named(model: type[Any], identity: tuple[Any, ...]) -> str:
    return f"{model.__name__} {(identity[0] if len(identity) == 1 else identity)!r}"
