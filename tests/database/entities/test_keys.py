"""Which row a key means: one reading of what a URL has brought, for all who take keys."""

from __future__ import annotations

import datetime
import enum
import uuid
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import (
    BigInteger,
    Boolean,
    Date,
    DateTime,
    Engine,
    Enum,
    Integer,
    LargeBinary,
    Numeric,
    SmallInteger,
    String,
    Uuid,
)
from sqlalchemy.dialects.mysql import VARBINARY
from sqlalchemy.orm import DeclarativeBase, mapped_column, sessionmaker
from sqlalchemy.types import TypeDecorator

from optilock import (
    BadEntity,
    NotFound,
    PreconditionFailed,
    UnitOfWork,
    Versioned,
    apply,
    entities,
    etag_of,
    leases,
    shares,
    watch,
)
from optilock.entities import Operation
from optilock.http.errors import BatchFailed
from optilock.http.etags import PLAIN
from optilock.testing import count_statements


class Base(DeclarativeBase):
    pass


class Colour(enum.Enum):
    red = 1
    green = 2


class Number(TypeDecorator[int]):
    """A whole number, of a type of the application that changes nothing."""

    impl = Integer
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> Any:
        return value


class Code(TypeDecorator[str]):
    """A type that makes one text of several."""

    impl = String(20)
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> Any:
        return value.lower()


ID = uuid.UUID("aa2962a0-e035-431f-b55d-0396bc6df6dc")
DAY = datetime.date(2026, 1, 2)
MOMENT = datetime.datetime(2026, 1, 2, 3, 4, 5)
BYTES = LargeBinary(20).with_variant(VARBINARY(20), "mysql", "mariadb")
_OF_NUMBERS = ["", " 7", "7 ", "7\n", "\t7", "+7", "07", "-0", "7.0", "7e0", "0x7", "7_0", "\u0667"]
_OF_NUMBERS += ["7\0", "\ud800", "7\u2009", "9" * 5_000, "None", "true"]
_NO_NUMBERS = [True, 7.0, Decimal(7), b"7", 2**80, -(2**80), float("nan"), [[7]], object()]
_NO_DECIMALS = [
    "\u0667.5",
    True,
    b"7.5",
    float("nan"),
    Decimal("NaN"),
    Decimal("Infinity"),
    "9" * 5_000,
]
_NO_MOMENTS = [
    "2026-01-02T03:04:05 ",
    "2026-01-02",
    MOMENT.replace(tzinfo=datetime.UTC),
    DAY,
    7,
    "",
]

#: The type of a key, how its one value may be written, and what is no key of a row.
KINDS: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "integer": (Integer(), [7, "7"], [*_OF_NUMBERS, *_NO_NUMBERS]),
    "small": (SmallInteger(), [7, "7"], [*_OF_NUMBERS, *_NO_NUMBERS]),
    "big": (BigInteger(), [7, "7"], [*_OF_NUMBERS, *_NO_NUMBERS]),
    "own": (Number(), [7, "7"], [*_OF_NUMBERS, True, 7.0, b"7"]),
    "numeric": (
        Numeric(7, 2),
        [Decimal("7.5"), "7.5", "7.50", 7.5, Decimal("7.500")],
        [" 7.5", "7.5\n", "+7.5", "07.5", "75e-1", ".75e1", "7.501", "NaN", "7,5", *_NO_DECIMALS],
    ),
    "text": (String(20), ["home"], [7.0, True, b"home", "\ud800", object()]),
    "digits": (String(20), ["7", 7], [7.0, True, b"7", 2**80]),
    "code": (Code(), ["home", "HOME"], [7, b"\xff", "\ud800".encode("utf-8", "surrogatepass")]),
    "uuid": (
        Uuid(),
        [ID, str(ID), str(ID).upper(), ID.hex],
        [f"{{{ID}}}", ID.urn, f" {ID}", f"{ID}\n", ID.int, ID.bytes, str(ID)[:-1], f"{ID}0", ""],
    ),
    "uuid_text": (
        Uuid(as_uuid=False),
        [str(ID), str(ID).upper(), ID.hex, ID],
        [f"{{{ID}}}", ID.urn, f" {ID}", f"{ID}\n", ID.int, ID.bytes, ""],
    ),
    "boolean": (Boolean(), [True, 1], ["1", "true", " 1", 1.0, 2, b"1"]),
    "date": (
        Date(),
        [DAY, "2026-01-02"],
        ["20260102", "2026-W01-5", " 2026-01-02", "2026-01-02\n", "2026-1-2", MOMENT, 7, ""],
    ),
    "moment": (
        DateTime(),
        [MOMENT, "2026-01-02T03:04:05", "2026-01-02 03:04:05"],
        ["2026-01-02T03:04:05Z", "20260102T030405", "2026-01-02T03:04:05+00:00", *_NO_MOMENTS],
    ),
    "named": (Enum(Colour), [Colour.red, "red"], [" red", "RED", 1, "Colour.red", "blue", ""]),
    "word": (Enum("red", "blue", name="key_of_words"), ["red"], [" red", "RED", "green", 1]),
    "bytes": (BYTES, [b"ab", bytearray(b"ab")], ["ab", "6162", 7]),
}


def _model(name: str) -> Any:
    body = {
        "__tablename__": f"key_{name}",
        "id": mapped_column(KINDS[name][0], primary_key=True, autoincrement=False),
        "title": mapped_column(String(20), nullable=True),
    }
    return type(f"Key_{name}", (Versioned, Base), body)


MODELS = {name: _model(name) for name in KINDS}


@pytest.mark.parametrize("name", KINDS)
def test_a_row_has_one_key_in_whatever_way_it_is_written(engine: Engine, name: str) -> None:
    """A7: the identity, the tag and the object of the row are the same."""
    model, (_, ways, _) = MODELS[name], KINDS[name]
    model.__table__.create(engine)
    sessions = watch(sessionmaker(engine))
    with sessions.begin() as session:
        entities.insert(session, model, ways[-1], {"title": "x"})
    for key in ways:
        with sessions.begin() as session:
            row = session.query(model).one()
            stored = entities.merge(session, model, key, {"title": "y"}, if_match=etag_of(row))
            session.refresh(row)
            assert (stored.identity, stored.etag) == ((row.id,), etag_of(row))
            assert PLAIN.versions(model, key, stored.etag) == (stored.version,)
            with pytest.raises(BatchFailed, match="named twice"):
                both = [
                    Operation(entities.merge, model, k, {}, if_match="*") for k in (row.id, key)
                ]
                entities.transaction(session, both)
    model.__table__.drop(engine)


@pytest.mark.parametrize("name", KINDS)
def test_every_other_text_is_the_key_of_no_row(engine: Engine, name: str) -> None:
    """A7: nothing is asked of the database, and nothing is written."""
    model, (_, ways, others) = MODELS[name], KINDS[name]
    model.__table__.create(engine)
    sessions = watch(sessionmaker(engine))
    with sessions.begin() as session:
        entities.insert(session, model, ways[0], {"title": "x"})
    for key in others:
        with UnitOfWork(sessions) as session, count_statements(engine) as sent:
            for write in (entities.replace, entities.merge):
                with pytest.raises(NotFound):
                    write(session, model, key, {"title": "y"}, if_match="*")
            with pytest.raises(NotFound):
                entities.delete(session, model, key, if_match="*")
            for make in (entities.insert, entities.insert_or_merge, entities.insert_or_replace):
                with pytest.raises(BadEntity) as caught:
                    make(session, model, key, {"title": "y"})
                assert (caught.value.status, caught.value.names) == (400, ("id",))
            with pytest.raises(PreconditionFailed) as gone:
                apply(session, model, key, {"title": "y"}, version=1)
            assert gone.value.entries[0].kind == "deleted"
            assert sent.count == 0
    with sessions() as session:
        assert session.query(model.title).all() == [("x",)]
    model.__table__.drop(engine)


class Seat(Versioned, Base):
    __tablename__ = "key_seats"

    row = mapped_column(String(5), primary_key=True)
    number = mapped_column(Integer, primary_key=True, autoincrement=False)
    guest = mapped_column(String(20), nullable=True)


@pytest.mark.parametrize(
    "key", [("A", " 7"), ("A", "07"), ["A", True], {"row": "A", "number": "7.0"}, ("A", 2**70)]
)
def test_a_key_of_several_columns_is_read_in_each(engine: Engine, key: Any) -> None:
    """A7: composite keys."""
    Base.metadata.create_all(engine, tables=[Seat.__table__])
    sessions = watch(sessionmaker(engine))
    with sessions.begin() as session:
        assert entities.insert(session, Seat, ("A", "7")).identity == ("A", 7)
        with pytest.raises(NotFound):
            entities.merge(session, Seat, key, {"guest": "x"}, if_match="*")
        with pytest.raises(BatchFailed) as caught:
            first = Operation(entities.merge, Seat, {"number": "7", "row": "A"}, if_match="*")
            second = Operation(entities.merge, Seat, key, {"guest": "x"}, if_match="*")
            entities.transaction(session, [first, second])
        assert (caught.value.index, caught.value.status) == (1, 404)
    Base.metadata.drop_all(engine, tables=[Seat.__table__])


class Doc(leases.Leasable, shares.Shared, Versioned, Base):
    __tablename__ = "key_docs"

    id = mapped_column(Integer, primary_key=True)
    text = mapped_column(String(20), nullable=True)


@pytest.mark.parametrize("key", [" 7", "7\n", "7.0", "7e0", "+7", 7.0, True, 2**80])
def test_leases_and_share_modes_read_a_key_in_the_same_way(engine: Engine, key: Any) -> None:
    """A7: shares, leases and tags."""
    from optilock.tables.shares import SET

    Base.metadata.create_all(engine, tables=[Doc.__table__])
    SET.tables.create_all(engine)
    sessions = watch(sessionmaker(engine))
    with sessions.begin() as session:
        session.add(Doc(id=7))
    with sessions.begin() as session:
        for call in (
            lambda: shares.open(session, (Doc, key), "RW", share="R", seconds=60),
            lambda: leases.acquire(session, (Doc, key), 60),
        ):
            with pytest.raises(NotFound):
                call()
    if not isinstance(key, int) or key is True:
        with pytest.raises(NotFound):
            PLAIN.versions(Doc, key, '"x"')
    SET.tables.drop_all(engine)
    Base.metadata.drop_all(engine, tables=[Doc.__table__])
