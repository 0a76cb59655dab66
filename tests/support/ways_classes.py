"""The classes that ``tests.support.ways_to_write`` writes, with what guards their rows.

::

    WAYS = ways("leased", Leasable)
    Task, Bug = WAYS.Task, WAYS.Bug
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import ForeignKey, Table
from sqlalchemy.orm import Mapped, mapped_column, relationship

from optilock import Versioned
from optilock.tokens import CompareValues
from tests.support.models import key, own_base

__all__ = ["Ways", "ways"]


class Ways(NamedTuple):
    """``Bare`` has no version, ``Plain`` compares its values, a ``Bug`` has two tables."""

    Task: Any
    Bug: Any
    DemandedList: Any
    DemandedLine: Any
    Plain: Any
    Bare: Any

    @property
    def tables(self) -> list[Table]:
        return [one.__table__ for one in self]

    @property
    def keys(self) -> Sequence[tuple[Any, int]]:
        """Of all rows that are guarded."""
        three = [(of, n) for of in (self.Task, self.Plain, self.Bare) for n in (1, 2, 3)]
        return [*three, (self.Bug, 9), (self.DemandedList, 1)]

    def rows(self) -> list[Any]:
        lines = [self.DemandedLine(id=1), self.DemandedLine(id=2)]
        one_key = self.keys[:-1]
        return [*(of(id=n) for of, n in one_key), self.DemandedList(id=1, lines=lines)]


def ways(prefix: str, *mixins: type[Any], **attributes: Any) -> Ways:
    """The classes below the mixins, with these attributes; their tables' names begin so."""
    own = type("Own", mixins, attributes)

    Base = own_base()

    class Task(own, Versioned, Base):
        __tablename__ = f"{prefix}_tasks"
        __version_ignore__ = ("views",)
        id: Mapped[int] = key()
        kind: Mapped[str] = mapped_column(default="task")
        title: Mapped[str] = mapped_column(default="")
        views: Mapped[int] = mapped_column(default=0)
        __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "task"}

    class Bug(Task):
        __tablename__ = f"{prefix}_bugs"
        __version_ignore__ = ("seen",)
        id: Mapped[int] = mapped_column(ForeignKey(Task.id), primary_key=True)
        cause: Mapped[str] = mapped_column(default="")
        seen: Mapped[int] = mapped_column(default=0)
        __mapper_args__ = {"polymorphic_identity": "bug"}

    class DemandedList(own, Versioned, Base):
        __tablename__ = f"{prefix}_lists"
        id: Mapped[int] = key()
        lines = relationship("DemandedLine", cascade="all, delete-orphan")

    class DemandedLine(Base):
        __tablename__ = f"{prefix}_lines"
        id: Mapped[int] = key()
        list_id: Mapped[int] = mapped_column(ForeignKey(DemandedList.id))

    class Plain(own, Versioned, Base):
        __tablename__ = f"{prefix}_plain"
        __version_token__ = CompareValues.all()
        id: Mapped[int] = key()
        title: Mapped[str] = mapped_column(default="")
        size: Mapped[int] = mapped_column(default=0)

    class Bare(own, Base):
        __tablename__ = f"{prefix}_bare"
        id: Mapped[int] = key()
        title: Mapped[str] = mapped_column(default="")

    return Ways(Task, Bug, DemandedList, DemandedLine, Plain, Bare)
