"""What a transaction has done so far, as records: statements, moved versions, who has left."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sqlalchemy.orm import Mapper
from sqlalchemy.orm.state import InstanceState

from optilock.mapped.keys import Place

__all__ = ["Before", "Departed", "Doubt", "Moved", "Point", "Stated"]

State = InstanceState[Any]
#: How many writes, moves and statements there were.
Point = tuple[int, int, int]


@dataclass(frozen=True, eq=False)
class Stated:
    """An UPDATE or INSERT statement of the session."""

    #: The base mapper of the rows that it may have moved.
    mapper: Mapper[Any]
    #: The versions that the session's objects of these rows held before it.
    held: dict[State, Any]
    #: How many writes of flushes came before it.
    sent: int
    #: It is an INSERT: rows of objects that were held before it are not its own.
    adds: bool = False
    #: Promised rows that it found in the promised version, and has moved or deleted.
    rows: set[Place] = field(default_factory=set)


class Moved(NamedTuple):
    """A statement moved the version of a row; without an object nobody knows from which one."""

    place: Place
    before: Any
    #: How many writes of flushes came before it.
    sent: int
    #: Gives the object the version from before.
    take_back: Callable[[], None] | None = None


class Doubt(NamedTuple):
    """A statement was undone, and nobody knows which rows it had moved, or inserted."""

    #: The versions that objects of the session held before it.
    held: Mapping[State, Any]
    #: Rows that a flush had written before it.
    written: Collection[Place]
    #: It has only inserted rows, which are none of those.
    adds: bool = False


class Before(NamedTuple):
    """What was known of rows before the transaction, or a part of it, wrote them."""

    versions: Mapping[Place, Any]
    doubts: Mapping[Mapper[Any], Doubt]


class Departed(NamedTuple):
    """Objects that left the session together."""

    states: Collection[State]
    #: How much had been written by then.
    at: Point
