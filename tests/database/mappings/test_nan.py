"""NaN equals nothing in Python, and itself as the value of a column."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import (
    ARRAY,
    JSON,
    Double,
    Engine,
    Float,
    Integer,
    MetaData,
    Numeric,
    PickleType,
    update,
)
from sqlalchemy.dialects.postgresql import REAL
from sqlalchemy.orm import DeclarativeBase, mapped_column, sessionmaker

from optilock import ConcurrencyError, UnitOfWork, Versioned, merge_fields, watch
from optilock.tokens import CompareValues, Counter

NAN = float("nan")
POSTGRESQL, SQLITE, ALL = ("postgresql",), ("sqlite",), ("postgresql", "sqlite", "mysql")
#: The type, its value, another one, and which dialects store it: others make NULL of it, or
#: refuse it.
KINDS: dict[str, tuple[Any, Any, Any, tuple[str, ...]]] = {
    "numeric": (Numeric(), Decimal("NaN"), Decimal(1), POSTGRESQL),
    "digits": (Numeric(7, 2), Decimal("NaN"), Decimal("1.50"), POSTGRESQL),
    "as float": (Numeric(asdecimal=False), NAN, 1.5, POSTGRESQL),
    "float": (Float(), NAN, 1.5, POSTGRESQL),
    "decimals": (Double(asdecimal=True), Decimal("NaN"), Decimal("1.5"), POSTGRESQL),
    "real": (REAL(), NAN, 1.5, POSTGRESQL),
    "array": (ARRAY(Double), [1.0, NAN], [1.0, 2.0], POSTGRESQL),
    "arrays": (ARRAY(Double, dimensions=2), [[NAN], [1.0]], [[1.0], [1.0]], POSTGRESQL),
    "numerics": (ARRAY(Numeric), [Decimal("NaN")], [Decimal(1)], POSTGRESQL),
    "json": (JSON(), {"a": [1, NAN, {"b": NAN}]}, {"a": [1, 2, {"b": 3}]}, SQLITE),
    "pickled": (PickleType(), {"a": (NAN, Decimal("NaN"), {NAN})}, {"a": (1, NAN, {1})}, ALL),
}


def kinds_of(engine: Engine) -> list[tuple[Any, Any, Any]]:
    return [known[:3] for known in KINDS.values() if engine.dialect.name in known[3]]


def mapped(kind: Any, token: Any) -> Any:
    class Base(DeclarativeBase):
        metadata = MetaData()

    class Probe(Versioned, Base):
        __tablename__ = "nan_probes"
        __version_token__ = token
        id = mapped_column(Integer, primary_key=True)
        reading = mapped_column(kind)
        seen = mapped_column(Integer, default=0)

    return Probe


TOKENS = [CompareValues.all(), CompareValues("reading")]


@pytest.mark.parametrize("many", [1, 3])
@pytest.mark.parametrize("token", TOKENS, ids=repr)
def test_nan_is_the_same_value(engine: Engine, token: Any, many: int) -> None:
    """D5: nobody else writes, and such rows can be written and deleted; a change is a conflict."""
    for kind, value, another in kinds_of(engine):
        write_and_delete(engine, mapped(kind, token), value, another, many)


def write_and_delete(engine: Engine, cls: Any, value: Any, another: Any, many: int) -> None:
    cls.metadata.create_all(engine)
    sessions = watch(sessionmaker(engine))
    with sessions.begin() as session:
        session.add_all([cls(id=n, reading=value) for n in range(1, many + 1)])
    for _ in range(2):
        with sessions.begin() as session:
            for probe in session.query(cls):
                probe.seen += 1
    with pytest.raises(ConcurrencyError) as caught, sessions.begin() as session:
        probes = session.query(cls).all()
        with engine.begin() as other:
            other.execute(update(cls.__table__).values(reading=another))
        for probe in probes:
            probe.seen += 1
    assert [entry.kind for entry in caught.value.entries] == ["updated"] * many
    with engine.begin() as other:
        other.execute(update(cls.__table__).values(reading=value))
    with sessions.begin() as session:
        for probe in session.query(cls):
            session.delete(probe)
    with sessions() as session:
        assert session.query(cls).count() == 0
    cls.metadata.drop_all(engine)


def test_nan_that_both_sides_left_alone_does_not_clash(engine: Engine) -> None:
    """D5: beside a version as well, where a merge compares what both sides have changed."""
    for kind, value, _ in kinds_of(engine):
        write_and_merge(engine, mapped(kind, Counter()), value)


def write_and_merge(engine: Engine, cls: Any, value: Any) -> None:
    cls.metadata.create_all(engine)
    sessions = watch(sessionmaker(engine))
    with sessions.begin() as session:
        session.add(cls(id=1, reading=value))
    with UnitOfWork(sessions, on_conflict=merge_fields) as session:
        probe = session.get_one(cls, 1)
        with engine.begin() as other:
            other.execute(update(cls.__table__).values(version=2))
        probe.seen = 7
    with sessions() as session:
        assert session.get_one(cls, 1).seen == 7
    cls.metadata.drop_all(engine)
