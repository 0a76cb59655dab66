"""Where a plain and a watched session differ."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any, NamedTuple

from sqlalchemy import Engine, event
from sqlalchemy.orm import sessionmaker

from checks.differential.mappings import mapping
from checks.differential.programs import Program, trace
from checks.differential.steps import OF_MAPPERS
from optilock import watch

#: What is different by intention, and why.
WANTED = {
    "conflict": (
        "A conflict leaves the transaction of a watched session alive, and the edits where they"
        " were, so that it can be settled; SQLAlchemy's ends it. The program ends there: what was"
        " told is the same, and so is what is stored after a rollback."
    ),
    "unread": (
        "A copy that was pickled before a transaction had its outcome is not written by a watched"
        " session until its row was read: its version may never have been stored."
    ),
    "remembered": (
        "An expired object that is to be deleted, or is touched, holds its key and the version"
        " that its author had seen; a plain session reads whatever is stored by then. And a touch"
        " outlives a reading that drops edits."
    ),
    "blind": (
        "An expired object that is edited without having been read is written with the version that"
        " its author had seen, and stays expired; SQLAlchemy reads the row as it is stored by then."
        " So is one that was edited before its version and other attributes were expired, or read"
        " again; it reads those of them that were not read again when they are asked for."
    ),
    "undone": (
        "An object whose INSERT was rolled back has no version in a watched session, and one that"
        " has left it before a rollback has the version from before: no row has the one it had."
    ),
    "together": (
        "Rows that go together are sent when all are known: where one of them ends in an error,"
        " listeners of rows may have been called for those that come after it."
    ),
    "looked": (
        "The row of an expired object that is deleted is read before the flush, and not within."
    ),
    "locked": (
        "Where a plain query may be older than a row that was read under a lock, what it fills in"
        " is expired, and read with a lock when it is asked for (optilock/_watched/rows/locked.py)."
    ),
    "first": (
        "Of two errors in the values of a row SQLAlchemy meets either first, by the order of a set."
        " Of two in several rows it meets that of the first row; where rows go together, those of"
        " comparisons come before those of the database."
    ),
    "message": (
        "The database's own text of an error names the statement, which is another one where rows"
        " are written together; its class is the same."
    ),
}


class Difference(NamedTuple):
    program: Program
    at: int
    plain: Any
    watched: Any

    @property
    def word(self) -> str:
        """What kind it is."""
        return f"{self.plain[0].do}: {_first_other(self.plain, self.watched)}"

    def __str__(self) -> str:
        traits = mapping(self.program.mapping, "plain").traits
        steps = " ".join(map(repr, self.program.steps[: self.at + 1]))
        flags = f"autoflush={self.program.autoflush}, expire={self.program.expire_on_commit}"
        return f"seed {self.program.seed}, {traits}, {flags}\n  {steps}\n" + "".join(
            f"  plain:   {ours!r}\n  watched: {theirs!r}\n"
            for ours, theirs in zip_longest(*map(_flat, (self.plain, self.watched)))
            if ours != theirs
        )


def _flat(told: Any) -> Iterator[Any]:
    for part in told:
        yield from part.items() if isinstance(part, dict) else [part]


_PARTS = (
    "step",
    "outcome",
    "value",
    "warnings",
    "listeners",
    "session",
    "lists",
    "keys",
    "objects",
)


def _first_other(plain: Any, watched: Any) -> str:
    pairs = zip_longest(_PARTS, plain, watched)
    return next((name or "rows" for name, one, two in pairs if one != two), "?")


def _begin(engine: Engine) -> None:
    """Python's driver begins no transaction for a savepoint, and its release would commit."""

    @event.listens_for(engine, "connect")
    def connect(connection: Any, record: Any) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN")


class Place:
    """An engine with the sessions of both sides."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        if engine.dialect.name == "sqlite":
            _begin(engine)
        self.plain, self.watched = sessionmaker(engine), watch(sessionmaker(engine))
        self.there: set[int] = set()

    def difference(self, steps: Program) -> Difference | None:
        """The first step at which the sessions differ."""
        one, two = (mapping(steps.mapping, side) for side in ("plain", "watched"))
        if steps.mapping not in self.there:
            self.there.add(steps.mapping)
            one.metadata.drop_all(self.engine)
            one.metadata.create_all(self.engine)
        plain, watched = trace(one, self.plain, steps), trace(two, self.watched, steps)
        troubles, blind = 0, set[int]()
        for at, (ours, theirs) in enumerate(zip(plain, watched, strict=False)):
            if theirs[1] == "unread" or {ours[1], theirs[1]} <= {"conflict", "unread"}:
                return None
            troubles += ours[0].do in ("set_bad", "del_")
            if ours[0].do in ("expire", "refresh"):
                blind.add(ours[0].row)
            if ours[0].do == "expire_all":
                blind.update(ours[8])
            if not _alike(ours, theirs, blind, several=troubles > 1):
                return Difference(steps, at, ours, theirs)
            if ours[1] == "raises" or ours[0].do in ("flush", "commit", "rollback"):
                troubles = 0
            if ours[0].do == "rollback":
                blind.clear()
        return None


def _alike(ours: list[Any], theirs: list[Any], blind: set[int], *, several: bool) -> bool:
    ours, theirs = (_without_looks(one, blind) for one in (ours, theirs))
    if ours[0].do != "stored":
        every = {*ours[8], *theirs[8]}
        ours, theirs = _without_unread(ours, theirs, every if ours[9] else blind & every)
    if ours[1] == theirs[1] == "raises":  # ``together``
        ours, theirs = (_without_fills(one) for one in (ours, theirs))
        if several:  # ``first``
            ours, theirs = ([*one[:2], *one[3:]] for one in (ours, theirs))
    return ours == theirs


def _without_looks(told: list[Any], blind: set[int]) -> list[Any]:
    """``looked``; and ``blind``: SQLAlchemy reads these rows where a watched session does not."""
    if told[0].do == "stored":
        return told
    read = (one for one in told[4] if one[0] == "refresh")
    unread = {f"thing {number}" for number in blind}
    first = sorted((one for one in read if one[1] not in unread), key=repr)
    return [*told[:4], [*first, *(one for one in told[4] if one[0] != "refresh")], *told[5:]]


def _without_unread(
    ours: list[Any], theirs: list[Any], rows: set[int]
) -> tuple[list[Any], list[Any]]:
    """``locked``, ``blind``: of these rows without what is expired in the watched session alone."""
    told: tuple[dict[Any, Any], dict[Any, Any]] = ({**ours[8]}, {**theirs[8]})
    for number in sorted(rows):
        held = theirs[8].get(number)
        pair = ours[8].get(number), held
        later = set(held[3]) if isinstance(held, tuple) else set()
        if isinstance(held, tuple) and held[0] in ("transient", "pending"):  # nothing is expired
            later |= {*(pair[0] or held)[1]} - {*held[1]}
        for side, one in zip(told, pair, strict=True):
            if isinstance(one, tuple):
                life, values, changed, expired, modified = one
                values = {n: v for n, v in values.items() if n not in later}
                edited = sorted(set(changed) - later)  # what was there before was perhaps not read
                one = life, values, edited, sorted(set(expired) - later), modified
            side[number] = one
    return [*ours[:8], told[0]], [*theirs[:8], told[1]]


_OF_A_ROW = (*OF_MAPPERS, "refresh_flush", "expire")


def _without_fills(told: list[Any]) -> list[Any]:
    return [*told[:4], [one for one in told[4] if one[0] not in _OF_A_ROW], *told[5:]]


def shrink(place: Place, found: Difference) -> Difference:
    """The same difference with as few steps as it takes."""
    found = found._replace(program=found.program)
    going = True
    while going:
        going = False
        for at in range(len(found.program.steps) - 1, -1, -1):
            steps = (*found.program.steps[:at], *found.program.steps[at + 1 :])
            fewer = place.difference(Program(*[*_fields(found.program)[:-1], steps]))
            if fewer is not None and fewer.word == found.word:
                found, going = fewer, True
    return found


def _fields(steps: Program) -> list[Any]:
    return [steps.seed, steps.mapping, steps.autoflush, steps.expire_on_commit, steps.steps]


@contextmanager
def place_on(engine: Engine) -> Iterator[Place]:
    made = Place(engine)
    try:
        yield made
    finally:
        for number in made.there:
            mapping(number, "plain").metadata.drop_all(engine)
