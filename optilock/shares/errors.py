"""Errors about names that other handles, or the own one, do not allow to use.

Each has an HTTP ``status``. No message, attribute or ``repr`` has the id of a handle.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from optilock.errors import NotFound, OptilockError, pickled_state
from optilock.leases.errors import _HolderError


@dataclass(frozen=True)
class Open:
    """The public part of an open handle, without its id."""

    owner: str | None
    access: str
    share: str
    since: datetime
    until: datetime


class _ShareError(_HolderError):
    """``name`` is the name that it is about."""

    arguments: ClassVar[tuple[str, ...]] = ("name",)
    status: int = 409
    name: str

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__()


class SharingViolation(_ShareError):
    """Others have the name open, and do not share it that far.

    ``access`` and ``share`` are the requested modes, ``others`` the handles that do not fit
    (:class:`Open`). They are empty for a write of a row. HTTP 409 (Conflict).
    """

    arguments = ("name", "access", "share", "others")
    access: str
    share: str
    others: tuple[Open, ...]

    def __init__(self, name: str, access: str, share: str, others: Iterable[Open]) -> None:
        self.access, self.share, self.others = access, share, tuple(others)
        super().__init__(name)

    def _text(self) -> str:
        shown = ", ".join(
            f"access {one.access or 'none'} and share {one.share or 'none'},"
            f" until {one.until:%Y-%m-%d %H:%M:%S} UTC"
            for one in self.others[:5]
        )
        shown = f" ({shown})" if shown else ""
        return (
            f"{self.name!r} cannot be used with access {self.access or 'none'} and share"
            f" {self.share or 'none'}: it is open with modes that do not fit{shown}."
            " Nothing was done. Try again when they are closed or have expired, ask"
            " for less access, or share more."
        )


class DeletePending(_ShareError):
    """The name will be gone when its last handle is closed. HTTP 409 (Conflict)."""

    def _text(self) -> str:
        return (
            f"{self.name!r} is to be deleted as soon as its last handle is closed, so it"
            " cannot be opened or made again. Nothing was done. Try again when it is gone."
        )


class HandleLost(_ShareError):
    """The handle is not open any more: it was closed, or its heartbeats did not come in time.

    HTTP 412 (Precondition Failed).
    """

    status = 412

    def _text(self) -> str:
        return (
            f"The handle of {self.name!r} is not open any more: it was closed, or no heartbeat came"
            " before its end. Nothing was done: what was decided under it may be out of date. Open"
            " the name again, read again, and decide again."
        )


class AccessDenied(_ShareError):
    """The handle was not opened with the access that this needs. HTTP 403 (Forbidden)."""

    status = 403

    def _text(self) -> str:
        return (
            f"The handle of {self.name!r} was not opened with the access that this takes. Nothing"
            " was done. Open it with W to write, with D to delete."
        )


class ReadOnlyName(_ShareError):
    """The name is read-only. HTTP 412 for an operation on the name, 403 for one on a handle."""

    arguments = ("name", "status")

    def __init__(self, name: str, status: int = 412) -> None:
        self.status = status
        super().__init__(name)

    def _text(self) -> str:
        return (
            f"{self.name!r} is read-only: it is neither written nor deleted. Nothing was done. Take"
            " the attribute away first (set_read_only)."
        )


class NameNotFound(NotFound):
    """There is no such name: it was never made, or is deleted. HTTP 404."""

    name: str

    def __init__(self, name: str) -> None:
        self.name = name
        self.model, self.identity = str, (name,)
        OptilockError.__init__(
            self,
            f"There is no {name!r}: it was never opened or created, or it is deleted. To make it,"
            " open it with create=True, or create() it.",
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.name,), pickled_state(self))
