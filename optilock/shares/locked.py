"""A name and its open handles, as one transaction holds them: locked, and looked at.

Who opens, closes or deletes a name locks its row first. The row is made when it is not there, and
is never deleted, so there is always something to lock. Then the handles are read, also with a lock,
which shows the newest ones at every level of isolation: those whose time is over are closed at this
moment, as their owners would have done.

A handle has two modes: what its owner does (``access``), and what others may do in the meantime
(``share``), each as some of three letters::

    "R"   read          "W"   write          "D"   delete

``open(name, "RW", share="R")`` reads and writes, and lets others read. Two handles fit if each
does only what the other shares; a handle without access (``""``, for attributes only) fits with
all. The same owner has no privilege over others, and the order is of no importance.
([MS-FSA] section 2.1.5.1.2.2, Algorithm to Check Sharing Access.)

A row can stand in for a name: ``(Page, 7)``, or the stored object, instead of ``"pages/7"``::

    handle = shares.open(session, page, "RW", share="R")

The name is that of the table and the key, as they are stored. Opening a row locks it first, and so
waits for the COMMIT of another session that is writing it.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    MetaData,
    String,
    Table,
    and_,
    cast,
    delete,
    insert,
    inspect,
    literal,
    select,
    update,
)
from sqlalchemy.orm import InstanceState, Mapper, Session

from optilock.columns.identities import identity_given
from optilock.conditions.condition import Clock
from optilock.dialects import database_of
from optilock.dialects.rows import native, with_hint
from optilock.errors import BadPrecondition, ConfigurationError, NotFound, described
from optilock.mapped import Identity, facts, identity_of
from optilock.preconditions.names import refuse_impossible_key
from optilock.shares.errors import HandleLost, Open
from optilock.tables.shares import handles, names
from optilock.watched.session.connections import connection_to_write, own_connection, session_given

__all__ = [
    "ALL",
    "DELETE",
    "NONE",
    "READ",
    "USUAL",
    "WRITE",
    "Found",
    "Handle",
    "LockedName",
    "Mode",
    "Row",
    "Shares",
    "checked",
    "connection_of",
    "fits",
    "is_text",
    "letters",
    "locked",
    "mode",
    "name_and_row",
    "name_in_sql",
    "own",
    "read_name",
    "shared",
    "shares_of",
]

# -- access and share modes ------------------------------------------------------------------------

#: Some of the three, as bits: it is stored so.
Mode = int

NONE: Final = 0
READ: Final = 1
WRITE: Final = 2
DELETE: Final = 4
ALL: Final = READ | WRITE | DELETE

_BITS = {"R": READ, "W": WRITE, "D": DELETE}


def fits(access: Mode, share: Mode, other_access: Mode, other_share: Mode) -> bool:
    """May the two be open at the same time?"""
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
    """The same as text."""
    return "".join(letter for letter, bit in _BITS.items() if given & bit)


# -- names and handles -----------------------------------------------------------------------------

Row = tuple[Mapper[Any], Identity]

_CLOCK = Clock()
_DAY = 86_400


@dataclass(frozen=True, eq=False)
class Shares:
    """The tables, the limits, and the clock.

    Raises:
        ConfigurationError: the limits are no limits.
    """

    schema: str | None = None
    names_table: str = names.name
    handles_table: str = handles.name
    #: How long a handle stays open without a heartbeat, if :func:`open` does not say it.
    seconds: float = 30
    #: The longest time that it may say.
    longest: float = 3600
    #: SQL of the time, UTC: the clock of the database, unless a test moves another one.
    clock: ColumnElement[Any] = _CLOCK
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
        if not all(_is_number(one) for one in limits) or not 0 < self.seconds <= self.longest:
            raise ConfigurationError(
                f"Shares(seconds={self.seconds!r}, longest={self.longest!r}): write seconds, 0 <"
                f" seconds <= longest <= {_DAY}."
            )

    def milliseconds(self, given: object) -> int:
        """Of the time that a handle is to stay open.

        Raises:
            ConfigurationError: it is none, or longer than the limit.
        """
        if isinstance(given, datetime.timedelta):
            given = given.total_seconds()
        seconds = self.seconds if given is None else given
        if not _is_number(seconds) or not 0.001 <= seconds <= self.longest:  # type: ignore[operator]
            raise ConfigurationError(
                f"A handle stays open for up to {self.longest:g} seconds without a heartbeat: write"
                " seconds= so, or a timedelta, or change Shares(longest=). Nothing was sent."
            )
        return round(seconds * 1000)  # type: ignore[operator]


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= _DAY


USUAL = Shares()


@dataclass(frozen=True)
class Handle:
    """What its owner has. Whoever knows ``id`` is the owner: it is in no ``repr``.

    A client who keeps the handle sends name and id back: ``Handle(name, id)`` is enough, and a
    heartbeat gives all of it.

    Raises:
        BadPrecondition: what was sent is no id.
    """

    name: str
    #: Random. Hand it to nobody but the owner, and write it into no log.
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
        checked(self.name)
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
class Found:
    """A handle that is open, as it is stored."""

    id: uuid.UUID = field(repr=False)
    owner: str | None
    access: Mode
    share: Mode
    delete_on_close: bool
    since: datetime.datetime
    until: datetime.datetime
    alive: bool

    def shown(self) -> Open:
        return Open(self.owner, letters(self.access), letters(self.share), self.since, self.until)


@dataclass
class LockedName:
    """A name whose row is locked until the transaction is over."""

    within: Shares
    connection: Connection
    name: str
    there: bool
    delete_pending: bool
    read_only: bool
    open: list[Found]

    def in_the_way(self, access: Mode, share: Mode, but: uuid.UUID | None = None) -> list[Found]:
        """The handles beside which this access and share do not fit."""
        return [
            one
            for one in self.open
            if one.id != but and not fits(one.access, one.share, access, share)
        ]

    def handle(self, mine: uuid.UUID) -> Found:
        """The open handle of this id.

        Raises:
            HandleLost: there is none.
        """
        for one in self.open:
            if one.id == mine:
                return one
        raise HandleLost(self.name)

    def close(self, some: Iterable[Found]) -> None:
        """Close these handles; the name goes with the last one if it is to be deleted."""
        ids = [one.id for one in some]
        gone = [one for one in self.open if one.id in ids]
        if not gone:
            return
        table = self.within.handles
        named = table.c.name == self.name
        native(self.connection, delete(table).where(named, table.c.id.in_(ids)))
        self.open = [one for one in self.open if one.id not in ids]
        self.delete_pending = self.delete_pending or any(one.delete_on_close for one in gone)
        self.settle()

    def settle(self) -> None:
        """A name that is to be deleted, and that nobody has open any more, is gone."""
        if self.delete_pending and not self.open:
            self.there = self.delete_pending = self.read_only = False

    def store(self) -> None:
        """Write what has become of the name."""
        table = self.within.names
        values = {
            "there": self.there,
            "delete_pending": self.delete_pending,
            "read_only": self.read_only,
            "moved": table.c.moved + 1,
        }
        native(self.connection, update(table).where(table.c.name == self.name).values(values))

    def add(self, values: Mapping[str, Any]) -> None:
        native(self.connection, insert(self.within.handles).values(name=self.name, **values))


def connection_of(session: Session, call: str, within: Shares) -> Connection:
    """Where the tables are written.

    Raises:
        ConfigurationError: it is no session.
    """
    session = session_given(session, call, f"await optilock.asyncio.shares.{call}(...)")
    return own_connection(session, {"clause": within.names.update()})


def checked(name: object) -> str:
    """The name that was given.

    Raises:
        ConfigurationError: it is no text of 1 to 200 characters.
    """
    if not is_text(name) or not name:
        raise ConfigurationError(
            "The name of what is shared is a text of 1 to 200 characters, without NUL and what is"
            " no character. Nothing was sent."
        )
    return str(name)


def is_text(given: object) -> bool:
    """Is it a text that every database keeps as it is, of up to 200 characters?"""
    if not isinstance(given, str) or len(given) > 200 or "\0" in given:
        return False
    return not any("\ud800" <= letter <= "\udfff" for letter in given)


def locked(connection: Connection, within: Shares, name: str) -> LockedName:
    """Lock the name for ourselves, and close the handles whose time is over."""
    return _looked_at(connection, within, name, exclusive=True)


def shared(connection: Connection, within: Shares, name: str) -> LockedName:
    """Lock the name against those who open and close it; others may lock it so, too.

    What is over is left out here, and closed by the next one who locks the name for himself.
    """
    return _looked_at(connection, within, name, exclusive=False)


def read_name(connection: Connection, within: Shares, name: str) -> LockedName | None:
    """The name as it is now, without a lock; ``None`` if nobody has ever opened it."""
    row = native(connection, _name_query(within, name)).mappings().first()
    if row is None:
        return None
    found = _read_handles(connection, _handles_query(within, name))
    return _without_expired(_name_of(connection, within, row, found))


def _looked_at(connection: Connection, within: Shares, name: str, *, exclusive: bool) -> LockedName:
    database_of(connection.dialect).begin_writing(connection, within.names)
    query = _name_query(within, name).with_for_update(read=not exclusive)
    row = native(connection, query).mappings().first()
    if row is None:
        _make(connection, within, name)
        row = native(connection, query).mappings().one()
    # a heartbeat of somebody else goes on under a shared lock (PostgreSQL: FOR KEY SHARE)
    options = {} if exclusive else {"read": True, "key_share": True}
    handles = _handles_query(within, name).with_for_update(**options)
    found = _read_handles(connection, handles)
    name_found = _name_of(connection, within, row, found)
    if not exclusive:
        return _without_expired(name_found)
    over = [one for one in name_found.open if not one.alive]
    if over:
        name_found.close(over)
        name_found.store()
    return name_found


def _name_query(within: Shares, name: str) -> Any:
    return select(within.names).where(within.names.c.name == name)


def _handles_query(within: Shares, name: str) -> Any:
    table = within.handles
    query = select(table, (table.c.until > within.clock).label("alive"))
    return query.where(table.c.name == name).order_by(table.c.id)


def _read_handles(connection: Connection, query: Any) -> list[Found]:
    return [
        Found(
            row["id"],
            row["owner"],
            row["access"],
            row["share"],
            row["delete_on_close"],
            row["since"],
            row["until"],
            bool(row["alive"]),
        )
        for row in native(connection, query).mappings()
    ]


def _name_of(connection: Connection, within: Shares, row: Any, found: list[Found]) -> LockedName:
    return LockedName(
        within,
        connection,
        row["name"],
        row["there"],
        row["delete_pending"],
        row["read_only"],
        found,
    )


def _without_expired(name: LockedName) -> LockedName:
    """As it would be after a sweep."""
    over = [one for one in name.open if not one.alive]
    name.open = [one for one in name.open if one.alive]
    if over:
        name.delete_pending = name.delete_pending or any(one.delete_on_close for one in over)
        name.settle()
    return name


def _make(connection: Connection, within: Shares, name: str) -> None:
    """The row of a name that nobody has opened before; another program may be making it, too."""
    table = within.names
    changes = {"moved": table.c.moved}
    made = database_of(connection.dialect).upsert(table, lambda new: changes)
    values = {"there": False, "delete_pending": False, "read_only": False, "moved": 0}
    native(connection, made.values(name=name, **values))


def own(within: Shares, mine: uuid.UUID, name: str) -> ColumnElement[bool]:
    """SQL: this handle."""
    table = within.handles
    return and_(table.c.name == name, table.c.id == mine)


# -- rows as names ---------------------------------------------------------------------------------


def shares_of(mapper: Mapper[Any]) -> Shares | None:
    """What the class says of its rows' handles, if it has the mixin."""
    found: Shares | None = getattr(mapper.class_, "__shares__", None)
    return found


def name_in_sql(mapper: Mapper[Any]) -> ColumnElement[str]:
    """The name of a row, as the database says it."""
    table: Any = facts(mapper).root.local_table
    name: ColumnElement[Any] = literal(f"{table.name}/", String)
    for number, column in enumerate(facts(mapper).root.primary_key):
        if number:
            name = name + literal(",", String)
        name = name + (column if isinstance(column.type, String) else cast(column, String))
    return name


def name_and_row(
    session: Session, given: Any, call: str, *, lock: bool = False
) -> tuple[str, Row | None]:
    """The name that was given, and the row that it stands for, if it is one.

    Raises:
        ConfigurationError: it is neither a name nor a row of a class with the mixin.
        NotFound: there is no such row.
    """
    if isinstance(given, str):
        return checked(given), None
    mapper, identity = _row_given(given, call)
    session = session_given(session, call, f"await optilock.asyncio.shares.{call}(...)")
    refuse_impossible_key(session, mapper, identity)
    connection = connection_to_write(session, mapper)
    keys = facts(mapper).root.primary_key
    query = select(name_in_sql(mapper), *keys).where(
        *(key == value for key, value in zip(keys, identity, strict=True))
    )
    if lock:
        database, table = database_of(connection.dialect), facts(mapper).root.local_table
        assert isinstance(table, Table)
        database.begin_writing(connection, table)
        locked = partial(database.lock, query, table, deleting=False)
        found = with_hint(database, table, lambda: native(connection, locked()).first())
    else:
        found = native(connection, query).first()
    if found is None:
        raise NotFound(mapper.class_, identity)
    return checked(found[0]), (mapper, tuple(found[1:]))


def _row_given(given: Any, call: str) -> Row:
    if isinstance(given, tuple) and len(given) == 2:
        mapper = inspect(given[0], raiseerr=False)
        if isinstance(mapper, Mapper) and shares_of(mapper):
            return mapper, tuple(identity_given(f"shares.{call}", mapper, given[1]))
    state = inspect(given, raiseerr=False)
    if isinstance(state, InstanceState) and state.key and shares_of(state.mapper):
        return state.mapper, identity_of(state)
    raise ConfigurationError(
        f"shares.{call}() takes a name, a stored object of a class with the mixin Shared, or"
        f" (Model, key), not {described(given)}. A name is a text of 1 to 200 characters. Nothing"
        " was sent."
    )
