"""SQLAlchemy's ORM: optilock, its increments that commute, ``version_id_col``, no version, locks.

All have mapped the same tables, each in a registry of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from sqlalchemy import Engine, Integer, String, create_engine, event
from sqlalchemy.orm import DeclarativeBase, Session, mapped_column, sessionmaker
from sqlalchemy.orm.exc import StaleDataError

from benchmarks.servers import do_not_sync
from benchmarks.stores.again import again, note_deadlock
from benchmarks.stores.kinds import Kind
from benchmarks.stores.rows import Raise, Work
from optilock import Versioned, retrying, unit_of_work, verify

__all__ = ["Optilock", "OptilockCommuting", "Plain", "engine_for", "model_of"]

T = TypeVar("T")

#: Never the reason why a unit is not stored: the run ends first.
_ATTEMPTS = 1_000_000


class _Optilock(DeclarativeBase):
    pass


class _Commuting(DeclarativeBase):
    pass


class _Native(DeclarativeBase):
    pass


class _Unversioned(DeclarativeBase):
    pass


_BASES: Mapping[str, type[DeclarativeBase]] = {
    "optilock": _Optilock,
    "commuting": _Commuting,
    "native": _Native,
    "unversioned": _Unversioned,
}


@functools.cache
def model_of(kind: Kind, family: str) -> Any:
    """The mapped class of a kind in one of the families."""
    columns: dict[str, Any] = {"id": mapped_column(Integer, primary_key=True)}
    columns |= {name: mapped_column(Integer) for name in kind.numbers}
    columns |= {name: mapped_column(String(100)) for name in kind.texts}
    mixins: tuple[type[Any], ...] = ()
    if kind.versioned and family in ("optilock", "commuting"):
        mixins = (Versioned,)
        columns["__version_commutes__"] = kind.numbers if family == "commuting" else ()
    elif kind.versioned and family == "native":
        columns["version"] = mapped_column(Integer)
        columns["__mapper_args__"] = {"version_id_col": columns["version"]}
    name = kind.name.title().replace("_", "")
    return type(name, (*mixins, _BASES[family]), {"__tablename__": kind.name, **columns})


def engine_for(url: str, isolation: str | None = None) -> Engine:
    """An engine with one connection; servers are asked for READ COMMITTED, unless for another."""
    if url.startswith("sqlite"):
        engine = create_engine(url, pool_size=1, max_overflow=0)
        event.listen(engine, "connect", do_not_sync)
        return engine
    level: Any = isolation or "READ COMMITTED"
    engine = create_engine(url, pool_size=1, max_overflow=0, isolation_level=level)
    event.listen(engine, "handle_error", _note_deadlock)
    return engine


def _note_deadlock(context: Any) -> None:
    note_deadlock(context.original_exception)


class OrmRows:
    """Rows of a session."""

    def __init__(self, session: Session, family: str, *, locks: bool = False) -> None:
        self._session = session
        self._family = family
        self._locks = locks

    def read(self, kind: Kind, key: int) -> Any:
        return self._session.get(model_of(kind, self._family), key)

    def edit(self, kind: Kind, key: int) -> Any:
        model = model_of(kind, self._family)
        if self._locks:
            return self._session.get(model, key, with_for_update=True)
        return self._session.get(model, key)

    sure = edit

    def set(self, kind: Kind, row: Any, **values: Any) -> None:
        for name, value in values.items():
            setattr(row, name, value)

    def raise_by(self, *raises: Raise) -> None:
        rows = [self.edit(each.kind, each.key) for each in raises]
        for row, (kind, _, column, amount) in zip(rows, raises, strict=True):
            self.set(kind, row, **{column: getattr(row, column) + amount})

    def add(self, kind: Kind, **values: Any) -> None:
        self._session.add(model_of(kind, self._family)(**values))


class OptilockRows(OrmRows):
    """Rows of a unit of work: what a decision depends on is verified at COMMIT."""

    def sure(self, kind: Kind, key: int) -> Any:
        row = self.edit(kind, key)
        verify(row)
        return row


class Optilock:
    """``@unit_of_work(sessions)``, with the options that are given."""

    #: Another way to change rows is another class of them, and other models another family.
    rows = OptilockRows
    family = "optilock"

    def __init__(self, url: str, *, at_once: bool = False, **options: Any) -> None:
        self._engine = engine_for(url)
        # Workloads set values that they have not read: a balance of 0, a new text.
        often: Any = {"attempts": _ATTEMPTS, "repeat_values": "overwrite"}
        if at_once:
            often["wait_initial"] = 0
        options["retry"] = retrying(**often)
        sessions = sessionmaker(self._engine)

        def unit(session: Session, work: Work[Any]) -> Any:
            return work(self.rows(session, self.family))

        self._unit: Callable[[Work[Any]], Any] = unit_of_work(sessions, **options)(unit)
        options.pop("strategy", None)  # what only reads asks for no locks, as elsewhere
        self._look: Callable[[Work[Any]], Any] = unit_of_work(sessions, **options)(unit)

    def run(self, work: Work[T]) -> T:
        found: T = self._unit(work)
        return found

    def look(self, work: Work[T]) -> T:
        found: T = self._look(work)
        return found

    def close(self) -> None:
        self._engine.dispose()


class OptilockCommuting(Optilock):
    """The same where the classes let increments of their numbers commute."""

    family = "commuting"


class Plain:
    """A ``Session`` as SQLAlchemy has it, in a loop."""

    def __init__(
        self,
        url: str,
        *,
        family: str = "unversioned",
        locks: bool = False,
        isolation: str | None = None,
        at_once: bool = False,
    ) -> None:
        self._engine = engine_for(url, isolation)
        self._sessions = sessionmaker(self._engine)
        self._family, self._locks, self._at_once = family, locks, at_once

    def run(self, work: Work[T]) -> T:
        def attempt() -> T:
            with self._sessions.begin() as session:
                return work(OrmRows(session, self._family, locks=self._locks))

        return again(attempt, on=(StaleDataError,), at_once=self._at_once)

    look = run

    def close(self) -> None:
        self._engine.dispose()
