"""The errors of a program that is not, or not any more, the holder of a lease."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from optilock.errors import OptilockError, pickled_state


class _HolderError(OptilockError):
    """An error about a lease or a handle. Its arguments are attributes, and survive pickling."""

    #: Their names, in order.
    arguments: ClassVar[tuple[str, ...]]
    status: int

    def __init__(self) -> None:
        super().__init__(self._text())

    def _text(self) -> str:
        raise NotImplementedError

    def __reduce__(self) -> tuple[Any, ...]:
        given = tuple(getattr(self, name) for name in self.arguments)
        return (type(self), given, pickled_state(self))


class _LeaseError(_HolderError):
    """``what`` is leased; ``since`` and ``until`` are those of the holder's lease.

    No message, attribute or ``repr`` has the id of a lease. ``until`` is ``None`` for an endless
    lease, and without a holder. ``status`` is 412 for a read or a write, and 409 for an
    operation on the lease itself.
    """

    arguments: ClassVar[tuple[str, ...]] = ("what", "state", "since", "until", "status")
    what: str
    state: str
    since: datetime | None
    until: datetime | None

    def __init__(
        self,
        what: str,
        state: str,
        since: datetime | None = None,
        until: datetime | None = None,
        status: int = 412,
    ) -> None:
        self.what, self.state, self.status = what, state, status
        self.since, self.until = since, until
        super().__init__()

    def _held(self) -> str:
        since = "" if self.since is None else f" since {self.since:%Y-%m-%d %H:%M:%S} UTC"
        if self.until is None:
            return f"{since}, until it is released or broken"
        return f"{since}, until {self.until:%Y-%m-%d %H:%M:%S} UTC"


class LeaseHeld(_LeaseError):
    """Another holder has a lease on the row, or on all rows of the class; the write named none.

    ``holder`` is the label that the other program gave, if it gave one.
    """

    arguments = (*_LeaseError.arguments, "holder")
    holder: str | None

    def __init__(
        self,
        what: str,
        state: str,
        since: datetime | None = None,
        until: datetime | None = None,
        status: int = 412,
        holder: str | None = None,
    ) -> None:
        self.holder = holder
        super().__init__(what, state, since, until, status)

    def _text(self) -> str:
        holder = "" if self.holder is None else f" ({self.holder!r})"
        how = " It is being broken and cannot be renewed." if self.state == "breaking" else ""
        return (
            f"Another holder{holder} has a lease on {self.what}{self._held()}.{how} Nothing was"
            " written. Wait until it has ended; or, if you are the holder, write under the lease"
            " (optilock.leases.use)."
        )


class LeaseLost(_LeaseError):
    """The lease that was named is not, or not any more, in force."""

    def _text(self) -> str:
        now = {
            "available": "It has no lease",
            "expired": "The lease has ended, and was not renewed in time",
            "broken": "The lease was broken",
            "breaking": "The lease is being broken",
            "lost": "It has ended, or there is another holder",
        }.get(self.state, f"There is another holder{self._held()}")
        return (
            f"The lease that was named for {self.what} is not in force. {now}. Nothing was"
            " written: what was decided under the lease may be out of date. Acquire a new lease,"
            " read again, and decide again."
        )
