"""The same table four times: versioned by SQLAlchemy, by optilock, not at all, and by hand.

Each comes in two shapes. The *lively* one has what real models have and what a fast path may not
drop: a mapper event before and after every UPDATE, and a column whose value Python makes.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine, Integer, String, Table, event, insert, text
from sqlalchemy.orm import DeclarativeBase, Mapped, declared_attr, mapped_column

from optilock import Versioned

__all__ = ["MODELS", "Item", "Ledger", "OptilockItem", "create", "heard", "next_touch", "table_of"]


class Base(DeclarativeBase):
    """Every table of the benchmarks."""

    type_annotation_map = {str: String(100)}  # MariaDB wants a length


class Item:
    """The columns that all subjects share."""

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(default="name")
    amount: Mapped[int] = mapped_column(default=0)
    note: Mapped[str] = mapped_column(default="note")


class NativeVersion:
    """SQLAlchemy's own check: ``version_id_col``."""

    version: Mapped[int] = mapped_column(Integer)

    @declared_attr.directive
    def __mapper_args__(cls) -> dict[str, Any]:
        return {"version_id_col": cls.version}


_touches = iter(range(1 << 62))


def next_touch() -> int:
    """The value of an ``onupdate`` column: a new one for every row that is written."""
    return next(_touches)


class Lively(Item):
    """The columns, and one that Python sets whenever the row is written."""

    touched: Mapped[int] = mapped_column(default=0, onupdate=next_touch)


class NativeItem(NativeVersion, Item, Base):
    __tablename__ = "native_item"


class PlainItem(Item, Base):
    __tablename__ = "plain_item"


class HandItem(Item, Base):
    __tablename__ = "hand_item"
    version: Mapped[int]


class OptilockItem(Versioned, Item, Base):
    __tablename__ = "optilock_item"


class NativeLively(NativeVersion, Lively, Base):
    __tablename__ = "native_lively"


class PlainLively(Lively, Base):
    __tablename__ = "plain_lively"


class HandLively(Lively, Base):
    __tablename__ = "hand_lively"
    version: Mapped[int]


class OptilockLively(Versioned, Lively, Base):
    __tablename__ = "optilock_lively"


class Ledger(Versioned, Base):
    """Two numbers that many raise at once."""

    __tablename__ = "ledger"
    id: Mapped[int] = mapped_column(primary_key=True)
    odd: Mapped[int] = mapped_column(default=0)
    even: Mapped[int] = mapped_column(default=0)


#: How often the mapper events were heard: they must not be dropped by anybody.
heard: dict[str, int] = {"before_update": 0, "after_update": 0}


def _count_before(mapper: Any, connection: Any, target: Any) -> None:
    heard["before_update"] += 1


def _count_after(mapper: Any, connection: Any, target: Any) -> None:
    heard["after_update"] += 1


for _model in (NativeLively, PlainLively, OptilockLively):
    event.listen(_model, "before_update", _count_before)
    event.listen(_model, "after_update", _count_after)


#: Subject -> (the plain model, the lively one).
MODELS: dict[str, tuple[type[Any], type[Any]]] = {
    "native": (NativeItem, NativeLively),
    "unversioned": (PlainItem, PlainLively),
    "hand-written": (HandItem, HandLively),
    "optilock": (OptilockItem, OptilockLively),
}


def table_of(model: type[Any]) -> Table:
    """The table of one of these models."""
    return Base.metadata.tables[model.__tablename__]


def create(engine: Engine, model: type[Any], rows: int) -> None:
    """The model's table, new, with rows 1 to ``rows``."""
    table = table_of(model)
    table.drop(engine, checkfirst=True)
    table.create(engine)
    version = {"version": 1} if "version" in table.c else {}
    with engine.begin() as connection:
        connection.execute(insert(table), [{"id": n, **version} for n in range(1, rows + 1)])
    # The planner shall know the table before the clock runs.
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(text(f"VACUUM ANALYZE {table.name}"))
        elif engine.dialect.name == "mysql":
            connection.execute(text(f"ANALYZE TABLE {table.name}"))
