"""What a client sends, and what a column can hold: it is stored right, or refused, on every engine.

No driver is asked about a value, or a key, that no column of the type can hold.
"""

from __future__ import annotations

import datetime
import enum
import json
import uuid
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Date,
    DateTime,
    Engine,
    Enum,
    Float,
    Integer,
    Interval,
    LargeBinary,
    Numeric,
    SmallInteger,
    String,
    Text,
    Time,
    Uuid,
    select,
)
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import DeclarativeBase, Session, mapped_column, sessionmaker
from sqlalchemy.types import TypeDecorator

from optilock import PreconditionFailed, UnitOfWork, Versioned, apply, entities
from optilock.entities import Version
from optilock.errors import BadEntity, ConfigurationError, NotFound
from optilock.testing import count_statements


class Colour(enum.Enum):
    red = 1
    green = 2


class Base(DeclarativeBase):
    pass


class Shouted(TypeDecorator[str]):
    """A type of the application, which makes a text of anything."""

    impl = String(60)
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> str:
        return repr(value).upper()


KINDS = {
    "small": SmallInteger(),
    "integer": Integer(),
    "big": BigInteger(),
    "short": String(5),
    "text": Text(),
    "boolean": Boolean(),
    "float": Float(),
    "single": Float(24),
    "numeric": Numeric(5, 2),
    "uuid": Uuid(),
    "uuid_text": Uuid(as_uuid=False),
    "date": Date(),
    "moment": DateTime(),
    "zoned": DateTime(timezone=True),
    "time": Time(),
    "span": Interval(),
    "bytes": LargeBinary(),
    "named": Enum(Colour),
    "word": Enum("red", "blue", name="word"),
    "json": JSON(),
    "own": Shouted(),
}
ID = uuid.UUID(int=5)
DAY = datetime.date(2026, 1, 2)
MOMENT = datetime.datetime(2026, 1, 2, 3, 4, 5)
ZONED = MOMENT.replace(tzinfo=datetime.UTC)

#: Values that a column of the kind holds, whatever the engine.
GOOD: dict[str, list[Any]] = {
    "small": [0, -(2**15), 2**15 - 1],
    "integer": [0, -(2**31), 2**31 - 1],
    "big": [0, -(2**63), 2**63 - 1],
    "short": ["", "ééééé", "😀"],
    "text": ["x" * 60_000, "it's 100%"],
    "boolean": [True, False, 1, 0],
    "float": [1.5, 7, Decimal("1.5")],
    "single": [1.5, 7],
    "numeric": [Decimal("999.99"), 1.5, 7, Decimal("1.00499999")],
    "uuid": [ID],
    "uuid_text": [str(ID)],
    "date": [DAY, datetime.date(1, 1, 1)],
    "moment": [MOMENT],
    "zoned": [ZONED],
    "time": [datetime.time(3, 4, 5)],
    "span": [datetime.timedelta(hours=1), datetime.timedelta(days=-999)],
    "bytes": [b"", b"\0abc", bytearray(b"abc")],
    "named": [Colour.red, "green"],
    "word": ["blue"],
    "json": [{"a": [1, None, "x\0"]}, [], "x", 7, True],
    "own": [object(), {"a": 1}, "x"],
}
#: What a JSON body, or a program, may bring to any of them.
ODD: list[Any] = [
    1,
    -1,
    1.0,
    2**15,
    2**31,
    2**63,
    2**64,
    10**40,
    1.5,
    1e300,
    1e-300,
    float("nan"),
    float("inf"),
    True,
    "7",
    " 7 ",
    "7.0",
    "7.5",
    "1e2",
    "1_0",
    "\N{ARABIC-INDIC DIGIT SEVEN}",
    "9" * 5_000,
    "NaN",
    "-Infinity",
    Decimal(7),
    "abc",
    "",
    "x" * 6,
    "abc   ",
    "x" * 70_000,
    "nul\0",
    "\ud800",
    "\ud83d\ude00",
    "true",
    "red",
    str(ID),
    "2026-01-02",
    "2026-01-02T03:04:05",
    "2026-01-02T03:04:05+02:00",
    "2026-W01-1",
    "2026-13-45",
    "03:04",
    "030405",
    Decimal("1.5"),
    Decimal("999.995"),
    Decimal("1E+200000"),
    Decimal("NaN"),
    Decimal("Infinity"),
    ID,
    DAY,
    MOMENT,
    ZONED,
    datetime.time(3, 4, 5),
    datetime.time(3, 4, 5, tzinfo=datetime.UTC),
    datetime.timedelta(hours=1),
    datetime.timedelta.max,
    datetime.timedelta(days=-800_000),
    f"{{{ID}}}",
    ID.urn,
    ID.hex,
    b"abc",
    b"x" * 70_000,
    Colour.red,
    [],
    [1],
    (1, 2),
    {},
    {"a": 1},
    {"a": float("nan")},
    {"a": "\ud800"},
    {1},
    object(),
]


def _model(name: str, kind: Any) -> Any:
    body = {
        "__tablename__": f"holds_{name}",
        "id": mapped_column(Integer, primary_key=True, autoincrement=False),
        "value": mapped_column(kind, nullable=True),
    }
    return type(f"Holds_{name}", (Versioned, Base), body)


MODELS = {name: _model(name, kind) for name, kind in KINDS.items()}


def wrong(session: Session) -> list[str]:
    """What was neither stored right nor refused, and what was refused that should not be."""
    found = []
    for name, model in MODELS.items():
        values = [*GOOD[name], *(() if name == "own" else ODD)]
        for number, value in enumerate(values):
            try:
                entities.insert(session, model, number, {"value": value})
            except BadEntity as error:
                if number < len(GOOD[name]):
                    found.append(f"{name}: {value!r:.40} was refused: {error}")
                continue
            except ConfigurationError as error:
                if type(value) is not object:  # which no client can send
                    found.append(f"{name}: {value!r:.40} is the program's fault: {error}")
                continue
            except Exception as error:
                return [*found, f"{name}: {value!r:.40} got {type(error)} {error!s:.300}"]
            read = session.scalar(select(model.value).where(model.id == number))
            if name != "own" and not is_right(value, read):
                found.append(f"{name}: {value!r:.40} is stored as {read!r:.40}")
    return found


def is_right(value: Any, read: Any) -> bool:
    """Is that the value, as the column has it?"""
    if value == read or _text(value) == _text(read) or _uuid(value) == _uuid(read):
        return True
    if isinstance(value, datetime.timedelta):
        return isinstance(read, str)  # each database writes it in its own way
    if isinstance(value, str) and isinstance(read, str):
        return json.loads(json.dumps(value)) == read  # two halves of a pair are one character
    if isinstance(value, tuple):
        return list(value) == read
    if isinstance(read, Colour):
        return value in (read, read.name)
    try:
        given, kept = Decimal(str(value).strip()), Decimal(str(read))
        if not given.is_finite():
            return str(given) == str(kept)
        return abs(given - kept) <= max(Decimal("0.005"), abs(given) * Decimal("1e-5"))
    except ArithmeticError:
        return _moment(value) == _moment(read)


def _text(value: Any) -> str:
    match value:
        case enum.Enum():
            return value.name
        case bool():
            return str(int(value))
        case str() if value.startswith("Colour."):
            return value.removeprefix("Colour.")
        case memoryview() | bytearray() | bytes():
            return bytes(value).hex()
        case float() if value != value:
            return "nan"
    return str(value).lower().replace("true", "1").replace("t", " ").removeprefix("0")


def _moment(value: Any) -> Any:
    """The day, or the time of it: SQLite and MariaDB drop a zone, PostgreSQL reckons in its own."""
    text = str(value)
    return f"{text}:00"[:8] if ":" in text[:3] else text[:10]


def _uuid(value: Any) -> str:
    return str(value).replace("-", "")


#: sqlite3 still writes a date into a column of text, and warns of it since Python 3.12.
dates_as_text = pytest.mark.filterwarnings(
    "ignore:The default date(time)? adapter is deprecated:DeprecationWarning"
)


@dates_as_text
def test_every_value_is_stored_right_or_refused(engine: Engine) -> None:
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        assert wrong(session) == []


@dates_as_text
@pytest.mark.anyio
async def test_every_value_is_stored_right_or_refused_in_async_sessions(
    async_engine: AsyncEngine,
) -> None:
    async with async_engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with AsyncSession(async_engine) as session:
        assert await session.run_sync(wrong) == []


def test_numbers_that_a_database_converts_are_accepted(engine: Engine) -> None:
    """Of ``json.loads(parse_float=Decimal)``, for example."""
    Base.metadata.create_all(engine)
    whole = [Decimal(7), Decimal("7.0")] if engine.name != "sqlite" else []
    texts = ["NaN", "Infinity", "-Infinity"] if engine.name == "postgresql" else []
    with Session(engine) as session:
        for name, values in {"integer": whole, "float": texts, "single": texts}.items():
            for number, value in enumerate(values):
                entities.insert(session, MODELS[name], number, {"value": value})
            found = session.scalars(select(MODELS[name].value).order_by(MODELS[name].id)).all()
            assert [str(one) for one in found] == [str(float(one)) for one in values] or (
                name == "integer" and found == [7, 7]
            )


#: Keys that no row of the kind can have.
NO_KEYS: dict[str, list[Any]] = {
    "integer": ["abc", "7.5", 2**63, 10**30, float("nan"), b"abc", [[1]], object(), "9" * 5_000],
    "short": ["\ud800", [{"a": 1}], [[1]]],
    "uuid": ["abc", 7, ID.hex + "0", b"abc"],
    "moment": ["abc", 1, "2026-13-45"],
}


def _keyed(name: str) -> Any:
    body = {
        "__tablename__": f"keyed_{name}",
        "id": mapped_column(KINDS[name], primary_key=True, autoincrement=False),
        "title": mapped_column(String(5), nullable=True),
    }
    return type(f"Keyed_{name}", (Versioned, Base), body)


KEYED = {name: _keyed(name) for name in NO_KEYS}


@pytest.mark.parametrize("name", NO_KEYS)
def test_a_key_that_no_row_can_have_is_that_of_no_row(engine: Engine, name: str) -> None:
    model = KEYED[name]
    model.__table__.create(engine)
    for key in NO_KEYS[name]:
        with UnitOfWork(sessionmaker(engine)) as session, count_statements(engine) as sent:
            for write in (entities.replace, entities.merge):
                with pytest.raises(NotFound):
                    write(session, model, key, {"title": "x"}, if_match=Version(1))
            with pytest.raises(NotFound):
                entities.delete(session, model, key, if_match="*")
            for make in (entities.insert, entities.insert_or_merge, entities.insert_or_replace):
                with pytest.raises(BadEntity) as caught:
                    make(session, model, key, {"title": "x"})
                assert (caught.value.status, caught.value.names) == (400, ("id",))
            with pytest.raises(PreconditionFailed) as gone:
                apply(session, model, key, {"title": "x"}, version=1)
            assert (gone.value.entries[0].kind, gone.value.entries[0].database) == ("deleted", None)
        assert sent.count == 0
    model.__table__.drop(engine)


def test_a_number_that_a_url_has_brought_is_the_key(engine: Engine) -> None:
    model = KEYED["integer"]
    model.__table__.create(engine)
    with UnitOfWork(sessionmaker(engine)) as session:
        entities.insert(session, model, "7", {"title": "x"})
        assert entities.merge(session, model, "7", {}, if_match="*").identity == (7,)
    model.__table__.drop(engine)


def test_what_a_column_cannot_hold_is_not_set_by_apply_either(engine: Engine) -> None:
    """It looks at what the object has made of a value: a validator may have changed it."""
    models = {name: MODELS[name] for name in ("integer", "date", "json", "bytes", "boolean")}
    bad: dict[str, Any] = {"integer": "x", "date": {}, "json": object(), "bytes": 1, "boolean": 3}
    for name, model in models.items():
        model.__table__.create(engine)
        with UnitOfWork(sessionmaker(engine)) as session:
            session.add(model(id=1, value=GOOD[name][0]))
        with UnitOfWork(sessionmaker(engine)) as session:
            for changes in ({"value": bad[name]}, {"value": bad[name], "id": 1}):
                kind = ConfigurationError if name == "json" and len(changes) == 1 else BadEntity
                with pytest.raises(kind):
                    apply(session, model, 1, changes, version=1)
            assert not session.is_modified(session.get_one(model, 1))
            assert session.get_one(model, 1).value == GOOD[name][0]
        model.__table__.drop(engine)
