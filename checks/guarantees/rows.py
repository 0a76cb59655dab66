"""The rows of the scenarios, and the sessions that work on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sqlalchemy import Engine, delete, insert, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from optilock import Isolation, UnitOfWork, Versioned

__all__ = ["LEVELS", "PROTECTIONS", "Base", "Level", "Protection", "fill", "stored"]


class Base(DeclarativeBase):
    pass


class _Columns:
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    value: Mapped[int]
    #: Another row, or a day, that the row belongs to.
    parent: Mapped[int | None]


class PlainRow(_Columns, Base):
    __tablename__ = "guarantee_plain_rows"


class VersionedRow(_Columns, Versioned, Base):
    __tablename__ = "guarantee_versioned_rows"


def fill(engine: Engine, model: type[Any]) -> None:
    """Store Hermitage's two rows, and no other row."""
    first = {"version": 1} if model is VersionedRow else {}
    with engine.begin() as connection:
        connection.execute(delete(model.__table__))
        rows = [{"id": 1, "value": 10, **first}, {"id": 2, "value": 20, **first}]
        connection.execute(insert(model.__table__), rows)


def stored(engine: Engine, model: type[Any]) -> dict[int, int]:
    """Return the value of each stored row."""
    with engine.connect() as connection:
        found = connection.execute(select(model.id, model.value))
        return {row.id: row.value for row in found}


@dataclass(frozen=True)
class Protection:
    """What a program adds to the isolation level."""

    title: str
    versioned: bool = True
    #: Options of the unit of work.
    options: dict[str, Any] = field(default_factory=dict)
    #: Call ``verify(obj)`` for each row that is read.
    verifies: bool = False

    @property
    def model(self) -> type[Any]:
        return VersionedRow if self.versioned else PlainRow


NOTHING = Protection("nothing", versioned=False)
#: The columns of each table of the page.
PROTECTIONS = (
    NOTHING,
    Protection("version"),
    Protection("`verify`", verifies=True),
    Protection("`verify_reads`", options={"verify_reads": True}),
)


@dataclass(frozen=True)
class Level:
    """An isolation level of one engine, as programs get it."""

    title: str
    #: What a unit of work asks for; ``None`` is the engine's own level.
    isolation: Isolation | None
    #: What an engine without optilock has; ``None`` is its own level.
    plain: str | None = None
    #: The level of Hermitage's results; ``None`` where Hermitage has not tested the engine.
    published: str | None = None
    #: Why its results differ from those.
    note: str = ""

    @property
    def only_by_optilock(self) -> bool:
        """Whether the first column needs a unit of work, because it sets the level."""
        return self.isolation not in (None, Isolation.READ_COMMITTED)

    def sessions(
        self, engine: Engine, protection: Protection
    ) -> Callable[[], AbstractContextManager[Session]]:
        """Return what makes the session of one transaction."""
        if protection is NOTHING and not self.only_by_optilock:
            plain = engine.execution_options(isolation_level=self.plain) if self.plain else engine
            return partial(_session, sessionmaker(plain))
        level = {"isolation": self.isolation} if self.isolation is not None else {}
        return partial(UnitOfWork, sessionmaker(engine), **level, **protection.options)


@contextmanager
def _session(sessions: sessionmaker[Session]) -> Iterator[Session]:
    with sessions.begin() as session:
        yield session


_REPEATABLE = Isolation.REPEATABLE_READ
#: The levels of each engine of the tests.
LEVELS: dict[str, tuple[Level, ...]] = {
    "postgresql": (
        Level("READ COMMITTED, the default", None, published="read committed"),
        Level("`repeatable_read`", _REPEATABLE, published="repeatable read"),
        Level("`serializable`", Isolation.SERIALIZABLE, published="serializable"),
    ),
    "mariadb": (
        Level("READ COMMITTED", Isolation.READ_COMMITTED, "READ COMMITTED", "read committed"),
        Level("REPEATABLE READ, the default", None, published="repeatable read"),
        Level(
            "`repeatable_read`",
            _REPEATABLE,
            published="repeatable read",
            note=" (optilock turns `innodb_snapshot_isolation` on)",
        ),
        Level("`serializable`", Isolation.SERIALIZABLE, published="serializable"),
    ),
    "sqlite-wal": (
        Level("the driver's own mode", None),
        Level("`repeatable_read`", _REPEATABLE),
        Level("`serializable`", Isolation.SERIALIZABLE),
    ),
}
