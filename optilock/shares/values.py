"""Access and share modes, handles, and the tables and limits of shares.

A handle has two modes: what its owner does (``access``), and what others may do in the meantime
(``share``), each as some of three letters::

    "R"   read          "W"   write          "D"   delete

``open(name, "RW", share="R")`` reads and writes, and lets others read. Two handles fit if each
does only what the other shares; a handle without access (``""``, for attributes only) fits with
all. The same owner has no privilege over others, and the order is of no importance.
([MS-FSA] section 2.1.5.1.2.2, Algorithm to Check Sharing Access.)
"""

from __future__ import annotations

import datetime
import uuid
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import ColumnElement, MetaData, Table

from optilock._mapped import Identity
from optilock.errors import BadPrecondition, ConfigurationError
from optilock.leases.values import is_seconds
from optilock.shares.errors import Open
from optilock.tables.names import share_handles as handles
from optilock.tables.names import share_names as names
from optilock.tokens.sql_functions import ServerTime

#: Some of the three letters, as bits. It is stored so.
Mode = int

NONE: Final = 0
READ: Final = 1
WRITE: Final = 2
DELETE: Final = 4
ALL: Final = READ | WRITE | DELETE

_BITS = {"R": READ, "W": WRITE, "D": DELETE}
_DAY = 86_400


def is_compatible(access: Mode, share: Mode, other_access: Mode, other_share: Mode) -> bool:
    """Return whether the two may be open at the same time."""
    if not access or not other_access:
        return True
    return not (access & ~other_share) and not (other_access & ~share)


def mode(given: object, what: str) -> Mode:
    """Read ``"RW"``; ``what`` is the argument's name.

    Raises:
        ConfigurationError: it is anything else than some of R, W and D, each once.
    """
    if isinstance(given, str) and len(set(given)) == len(given) and set(given) <= _BITS.keys():
        return sum(_BITS[letter] for letter in given)
    raise ConfigurationError(
        f"{what}={given!r} is no access or share mode: write some of the letters R (read), W"
        f" (write) and D (delete), {what}='RW', or '' for none of them. Nothing was sent."
    )


def letters(given: Mode) -> str:
    """Return a mode as text."""
    return "".join(letter for letter, bit in _BITS.items() if given & bit)


@dataclass(frozen=True, eq=False)
class Shares:
    """The tables, the limits, and the clock.

    Raises:
        ConfigurationError: the limits are not valid.
    """

    schema: str | None = None
    names_table: str = names.name
    handles_table: str = handles.name
    #: The default time for which a handle stays open without a heartbeat.
    seconds: float = 30
    #: The longest such time.
    longest: float = 3600
    #: The current time in UTC, as a SQL expression. Tests may replace the database's clock.
    clock: ColumnElement[Any] = field(default_factory=ServerTime)
    names: Table = field(init=False, repr=False)
    handles: Table = field(init=False, repr=False)
    #: Tables whose rows are names here.
    of_rows: set[str] = field(init=False, repr=False, default_factory=set)

    def __post_init__(self) -> None:
        schema: Any = self.schema
        for name, table, called in (
            ("names", names, self.names_table),
            ("handles", handles, self.handles_table),
        ):
            copied = table.to_metadata(MetaData(), schema=schema, name=called)
            object.__setattr__(self, name, copied)
        limits = (self.seconds, self.longest)
        if not all(map(_fits_a_day, limits)) or not 0 < self.seconds <= self.longest:
            raise ConfigurationError(
                f"Shares(seconds={self.seconds!r}, longest={self.longest!r}): write seconds, 0 <"
                f" seconds <= longest <= {_DAY}."
            )

    def milliseconds(self, given: object) -> int:
        """Return for how long a handle is to stay open.

        Raises:
            ConfigurationError: it is not a time, or longer than the limit.
        """
        if isinstance(given, datetime.timedelta):
            given = given.total_seconds()
        seconds: Any = self.seconds if given is None else given
        if not _fits_a_day(seconds) or not 0.001 <= seconds <= self.longest:
            raise ConfigurationError(
                f"A handle stays open for up to {self.longest:g} seconds without a heartbeat: write"
                " seconds= so, or a timedelta, or change Shares(longest=). Nothing was sent."
            )
        length: int = round(seconds * 1000)
        return length


def _fits_a_day(value: Any) -> bool:
    return is_seconds(value) and value <= _DAY


USUAL = Shares()


@dataclass(frozen=True)
class Handle:
    """An open handle. A program that knows ``id`` is its owner: it is in no ``repr``.

    A client that keeps the handle sends name and id back: ``Handle(name, id)`` is enough, and a
    heartbeat returns all of it.

    Raises:
        BadPrecondition: the id that was sent is not valid.
    """

    name: str
    #: Random. Give it to the owner only, and write it into no log.
    id: uuid.UUID = field(repr=False)
    #: ``None`` here and below: only the id was given.
    access: str | None = None
    share: str | None = None
    #: When it ends by the clock of the database, without another heartbeat.
    until: datetime.datetime | None = None
    #: Seconds from one heartbeat to the end.
    seconds: float | None = None
    #: The class and the key of the row that is open, if it is one.
    of: tuple[type[Any], Identity] | None = None
    within: Shares = field(default=USUAL, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_name(self.name)
        if isinstance(self.id, uuid.UUID):
            return
        try:
            object.__setattr__(self, "id", uuid.UUID(self.id))
        except (ValueError, TypeError, AttributeError):
            raise BadPrecondition(
                "What was sent is not the id of a handle: send the one that was given when the name"
                " was opened."
            ) from None


@dataclass(frozen=True)
class State:
    """The public state of a name."""

    name: str
    #: ``False``: there is no such name.
    there: bool
    #: The name will be gone when its last handle is closed.
    delete_pending: bool = False
    read_only: bool = False
    open: tuple[Open, ...] = ()


def check_name(name: object) -> str:
    """Return the name that was given.

    Raises:
        ConfigurationError: it is not a text of 1 to 200 characters.
    """
    if not is_text(name) or not name:
        raise ConfigurationError(
            "A shared name must be a text of 1 to 200 characters, without NUL and surrogates."
            " Nothing was sent."
        )
    return str(name)


def is_text(given: object) -> bool:
    """Return whether it is a text of up to 200 characters that every database keeps as it is."""
    if not isinstance(given, str) or len(given) > 200 or "\0" in given:
        return False
    return not any("\ud800" <= letter <= "\udfff" for letter in given)
