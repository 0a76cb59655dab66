"""What a batch stores is what SQLAlchemy alone would have stored, for every type and default."""

from __future__ import annotations

import datetime
import decimal
import enum
import uuid

import pytest
from sqlalchemy import Column, func, null, select
from sqlalchemy.dialects.postgresql import ARRAY, INET, JSONB
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session
from sqlalchemy.types import CHAR, Double, Integer, Numeric, String, Text

from optilock import ConcurrencyError
from tests.support.models import (
    Account,
    Base,
    Clocked,
    Colour,
    Eager,
    Kinds,
    Stamped,
    Upper,
    Versioned,
)

UTC = datetime.UTC
EAST = datetime.timezone(datetime.timedelta(hours=5, minutes=30))


class Word(str):
    """A str that is not quite one, as markupsafe.Markup."""


class Level(enum.IntEnum):
    high = 3


VALUES = {
    "big": [2**62 + 1, -(2**63), 0, None, Level.high],
    "flag": [True, False, True, None, False],
    "real": [0.1, 1e30, -0.0, 3, None],
    "price": [decimal.Decimal("12345678.91"), decimal.Decimal("0.1"), 7, None, -1],
    "short": ["abc", "", "ÄÖÜ€😀", None, Word("word")],
    "upper": ["abc", "Straße", None, "x", ""],
    "blob": [b"", b"\x00\xff%s'\\", None, bytes(range(256)), b"abc"],
    "day": [datetime.date(1, 1, 1), datetime.date(9999, 12, 31), None, datetime.date(2024, 2, 29)],
    "clock": [datetime.time(0), datetime.time(23, 59, 59), None],
    "moment": [
        datetime.datetime(1999, 12, 31, 23, 59, 59),
        datetime.datetime(2024, 2, 29, 1, 2, 3),
        None,
    ],
    "zoned": [datetime.datetime(2024, 1, 1, 12, tzinfo=UTC), None],
    "span": [datetime.timedelta(days=3, seconds=7), datetime.timedelta(0), None],
    "token": [uuid.UUID(int=1), uuid.UUID(int=2**128 - 1), None],
    "tag": [uuid.UUID(int=1), None, uuid.UUID(int=2**128 - 1)],
    "colour": [Colour.red, Colour.green, None],
    "word": [Colour.red, None, Colour.green],
    "data": [
        {"a": [1, 2.5, None, "ü%s:x"]}, [], "text", 0, None, {"__": {"deep": True}}, False,
    ],
}  # fmt: skip


def write(session, model, values):
    """Row n gets the nth value of each column."""
    rows = session.scalars(select(model).order_by(model.id)).all()
    for name, some in values.items():
        for row, value in zip(rows, some, strict=False):
            setattr(row, name, value)
    session.commit()


def all_stored(engine, model, names):
    with Session(engine) as session:
        rows = session.execute(
            select(model.id, *(getattr(model, n) for n in names)).order_by(model.id)
        )
        return [tuple(row) for row in rows]


@pytest.mark.parametrize("name", VALUES)
def test_values_of_a_type_are_stored_as_without_the_guard(name, store, watched, engine):
    values = VALUES[name]
    store(*(Kinds(id=n) for n in range(len(values))))
    with Session(engine) as session:
        write(session, Kinds, {name: values})
    native = all_stored(engine, Kinds, [name])
    with Session(engine) as session:
        write(session, Kinds, {name: reversed(values)})
    write(watched(), Kinds, {name: values})

    assert all_stored(engine, Kinds, [name]) == native
    assert {type(row[1]) for row in all_stored(engine, Kinds, [name])} == {
        type(row[1]) for row in native
    }


def test_rows_of_all_types_go_together(store, watched, engine):
    """Every row sets other columns than its neighbours."""
    count = 20

    def edit(rows):
        for row in rows:
            for place, (name, values) in enumerate(VALUES.items()):
                if (row.id + place) % 3:
                    setattr(row, name, values[(row.id * 7 + place) % len(values)])

    store(*(Kinds(id=n) for n in range(count)))
    with Session(engine) as session:
        edit(session.scalars(select(Kinds)).all())
        session.flush()
        native = session.execute(select(*Kinds.__table__.c).order_by(Kinds.id)).all()
        session.rollback()
    session = watched()
    edit(session.scalars(select(Kinds)).all())
    session.commit()

    with Session(engine) as reader:
        assert reader.execute(select(*Kinds.__table__.c).order_by(Kinds.id)).all() == native


@pytest.mark.engines("sqlite", "postgresql")
def test_times_with_a_zone_are_stored_as_without_the_guard(store, watched, engine):
    values = [
        datetime.datetime(2024, 1, 1, 12, 30, 0, 123456, tzinfo=EAST),
        datetime.datetime(1970, 1, 1, tzinfo=UTC),
        None,
    ]
    store(*(Kinds(id=n) for n in range(6)))
    with Session(engine) as session:
        write(session, Kinds, {"zoned": values})
    write(watched(), Kinds, {"zoned": [None, None, None, *values]})
    rows = [row[1] for row in all_stored(engine, Kinds, ["zoned"])]

    assert rows[:3] == [None, None, None]
    with Session(engine) as session:
        write(session, Kinds, {"zoned": values})
    assert [row[1] for row in all_stored(engine, Kinds, ["zoned"])] == rows[3:] * 2


@pytest.mark.engines("sqlite", "postgresql")
@pytest.mark.parametrize("name", ["moment", "clock"])
def test_microseconds_are_kept(name, store, watched, stored):
    moment = datetime.datetime(2024, 1, 1, 12, 30, 0, 123456)
    value = moment if name == "moment" else moment.time()
    store(Kinds(id=1), Kinds(id=2))
    write(watched(), Kinds, {name: [value, value]})

    assert stored(Kinds, 1)[name] == stored(Kinds, 2)[name] == value


@pytest.mark.engines("postgresql", "mariadb")
@pytest.mark.parametrize("count", [1, 3])
def test_text_that_is_too_long_is_refused_and_never_cut(count, store, watched, stored):
    store(*(Kinds(id=n, short="old") for n in range(count)))
    session = watched()
    for row in session.query(Kinds):
        row.short = "too long"
    with pytest.raises(DBAPIError):
        session.commit()
    session.rollback()

    assert [stored(Kinds, n)["short"] for n in range(count)] == ["old"] * count


@pytest.mark.engines("postgresql", "mariadb")
@pytest.mark.parametrize("count", [1, 3])
def test_numbers_that_are_too_big_are_refused(count, store, watched, stored):
    store(*(Kinds(id=n, price=1) for n in range(count)))
    session = watched()
    for row in session.query(Kinds):
        row.price = decimal.Decimal("123456789.00")
    with pytest.raises(DBAPIError):
        session.commit()
    session.rollback()

    assert stored(Kinds, 0)["price"] == 1


def test_numbers_are_rounded_to_their_column_as_without_the_guard(store, watched, engine):
    values = [decimal.Decimal("1.005"), decimal.Decimal("2.675"), decimal.Decimal("-0.005")]
    store(*(Kinds(id=n) for n in range(6)))
    with Session(engine) as session:
        write(session, Kinds, {"price": values})
    write(watched(), Kinds, {"price": [0, 0, 0, *values]})
    write(watched(), Kinds, {"price": values})
    rows = [row[1] for row in all_stored(engine, Kinds, ["price"])]

    assert rows[:3] == rows[3:]


def test_numbers_of_mixed_python_types_go_together(store, watched, stored):
    store(*(Kinds(id=n) for n in range(4)))
    write(watched(), Kinds, {"price": [1, decimal.Decimal("12345678.91"), 2.5, 0]})
    write(watched(), Kinds, {"real": [1, 1.5, 2, 0]})

    assert [stored(Kinds, n)["price"] for n in range(4)] == [
        1, decimal.Decimal("12345678.91"), 2.5, 0,
    ]  # fmt: skip
    assert [stored(Kinds, n)["real"] for n in range(4)] == [1, 1.5, 2, 0]


def test_bytes_of_mixed_python_types_go_together(store, watched, stored):
    store(*(Kinds(id=n) for n in range(3)))
    write(watched(), Kinds, {"blob": [b"a", bytearray(b"b"), memoryview(b"c")]})

    assert [stored(Kinds, n)["blob"] for n in range(3)] == [b"a", b"b", b"c"]


def test_a_date_may_be_given_as_a_datetime_where_the_driver_takes_one(store, watched, engine):
    """SQLite's own type refuses it or not, as it likes: the guard changes nothing about that."""
    values = [datetime.date(2024, 1, 1), datetime.datetime(2024, 1, 2, 3, 4, 5)]
    store(*(Kinds(id=n) for n in range(2)))

    def outcome(session):
        try:
            write(session, Kinds, {"day": values})
        except Exception as error:
            session.rollback()
            return type(error)
        return all_stored(engine, Kinds, ["day"])

    with Session(engine) as session:
        native = outcome(session)
    with Session(engine) as session:
        write(session, Kinds, {"day": [None, None]})

    assert outcome(watched()) == native


@pytest.mark.parametrize("count", [1, 4])
def test_an_sql_expression_is_computed_from_the_stored_value(count, store, watched, stored):
    store(*(Account(id=n, balance=n) for n in range(count)))
    session = watched()
    for row in session.query(Account):
        row.balance = Account.balance + 10
    session.commit()

    assert [stored(Account, n)["balance"] for n in range(count)] == [n + 10 for n in range(count)]
    assert [row.balance for row in session.query(Account).order_by(Account.id)] == [
        n + 10 for n in range(count)
    ]


def test_expressions_and_values_may_be_mixed_in_one_flush(store, watched, stored):
    store(*(Account(id=n, balance=n) for n in range(6)))
    session = watched()
    for row in session.query(Account).order_by(Account.id):
        row.balance = Account.balance * 2 if row.id % 2 else 100
        row.owner = func.upper("x") if row.id == 4 else "y"
    session.commit()

    assert [stored(Account, n)["balance"] for n in range(6)] == [100, 2, 100, 6, 100, 10]
    assert [stored(Account, n)["owner"] for n in range(6)] == ["y", "y", "y", "y", "X", "y"]


def test_an_sql_null_is_stored_as_null(store, watched, stored, engine):
    store(*(Kinds(id=n, data={"a": 1}, short="x") for n in range(3)))
    write(watched(), Kinds, {"data": [null(), None, null()], "short": [null(), "y", None]})
    with Session(engine) as session:
        missing = session.scalars(select(Kinds.id).where(Kinds.data.is_(null()))).all()

    assert missing == [0, 2]
    assert [stored(Kinds, n)["short"] for n in range(3)] == [None, "y", None]


# -- what is filled in ----------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3])
def test_python_onupdate_values_are_made_for_each_row(count, store, watched, stored):
    store(*(Stamped(id=n, name="a") for n in range(count)))
    session = watched()
    rows = session.query(Stamped).order_by(Stamped.id).all()
    for row in rows:
        row.name = f"n{row.id}"
    session.flush()
    seen = [(row.scalar, row.called, row.derived) for row in rows]
    session.commit()
    found = [stored(Stamped, n) for n in range(count)]

    assert [(f["scalar"], f["derived"]) for f in found] == [(7, f"n{n}!") for n in range(count)]
    assert len({f["called"] for f in found}) == count
    assert seen == [(f["scalar"], f["called"], f["derived"]) for f in found]


def test_a_value_that_is_set_goes_before_onupdate(store, watched, stored):
    store(*(Stamped(id=n, name="a") for n in range(3)))
    session = watched()
    for row in session.query(Stamped):
        row.name = "b"
        if row.id == 1:
            row.scalar, row.called = 1, "mine"
    session.commit()

    assert [stored(Stamped, n)["scalar"] for n in range(3)] == [7, 1, 7]
    assert stored(Stamped, 1)["called"] == "mine"


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("model", [Clocked, Eager])
def test_onupdate_expressions_are_computed_by_the_database(count, model, store, watched, stored):
    store(*(model(id=n, name="a") for n in range(count)))
    session = watched()
    rows = session.query(model).order_by(model.id).all()
    for row in rows:
        row.name = f"n{row.id}"
    session.flush()

    assert [(row.lower, row.name, row.version) for row in rows] == [
        ("abc", f"n{n}", 2) for n in range(count)
    ]
    session.commit()
    assert [stored(model, n)["lower"] for n in range(count)] == ["abc"] * count


def test_onupdate_expressions_and_set_values_may_alternate(store, watched, stored):
    store(*(Clocked(id=n, name="a") for n in range(4)))
    session = watched()
    for row in session.query(Clocked):
        row.name = "b"
        if row.id % 2:
            row.lower = "mine"
    session.commit()

    assert [stored(Clocked, n)["lower"] for n in range(4)] == ["abc", "mine", "abc", "mine"]


def test_server_defaults_of_new_rows_are_there_and_their_updates_are_checked(
    store, watched, other, refused
):
    store(Stamped(id=1, name="a"))
    session = watched()
    new = Stamped(id=2, name="b")
    session.add(new)
    session.flush()
    assert (new.born, new.version) == (5, 1)
    old = session.get_one(Stamped, 1)
    new.name = old.name = "c"
    session.commit()
    assert (old.version, new.version) == (2, 2)
    new.born = old.born = 6
    other(Stamped, 2, name="theirs")

    assert [e.identity for e in refused(session).entries] == [(2,)]


@pytest.mark.parametrize("model", [Clocked, Eager])
def test_a_stale_row_whose_values_the_database_computes_is_found(
    model, store, watched, other, refused
):
    store(*(model(id=n, name="a") for n in range(3)))
    session = watched()
    for row in session.query(model):
        row.name = "b"
    other(model, 1, name="theirs")

    assert [e.identity for e in refused(session).entries] == [(1,)]


# -- types of one database ------------------------------------------------------------------------


class Elephant(Versioned, Base):
    """Types of PostgreSQL alone."""

    __tablename__ = "elephants"
    id = Column(Integer, primary_key=True, autoincrement=False)
    numbers = Column(ARRAY(Integer))
    words = Column(ARRAY(String))
    extra = Column(JSONB)
    address = Column(INET)
    padded = Column(CHAR(4))
    ratio = Column(Double)
    exact = Column(Numeric)
    text = Column(Text(collation="C"))


ELEPHANT_VALUES = {
    "numbers": [[1, 2], [], None],
    "words": [["a", "b,c", None], ['"', "\\"], None],
    "extra": [{"a": 1}, [None], "x"],
    "address": ["10.0.0.1", "::1", None],
    "padded": ["ab", "abcd", ""],
    "ratio": [float("inf"), 1, 0.1],
    "exact": [decimal.Decimal("1e-20"), decimal.Decimal(10) ** 30, 1],
    "text": ["%(a)s", ":b", "\n"],
}


@pytest.mark.engines("postgresql")
@pytest.mark.parametrize("name", ELEPHANT_VALUES)
def test_types_of_postgresql_are_stored_as_without_the_guard(name, store, watched, engine):
    values = ELEPHANT_VALUES[name]
    store(*(Elephant(id=n) for n in range(3)))
    with Session(engine) as session:
        write(session, Elephant, {name: values})
    native = all_stored(engine, Elephant, [name])
    with Session(engine) as session:
        write(session, Elephant, {name: [null()] * 3})
    write(watched(), Elephant, {name: values})

    assert str(all_stored(engine, Elephant, [name])) == str(native)


class Padded(Versioned, Base):
    """The key has a type whose stored text is longer than what was given."""

    __tablename__ = "padded"
    id: str = Column(CHAR(4), primary_key=True)
    name = Column(String(20))
    __allow_unmapped__ = True


@pytest.mark.parametrize("count", [1, 3])
def test_keys_of_fixed_length_text_are_found(count, store, watched, stored):
    store(*(Padded(id=f"{n:04}", name="a") for n in range(count)))
    session = watched()
    for row in session.query(Padded):
        row.name = "b"
    session.commit()

    assert [stored(Padded, f"{n:04}")["name"] for n in range(count)] == ["b"] * count


@pytest.mark.parametrize("count", [1, 3])
def test_keys_that_are_padded_behave_as_without_the_guard(count, store, watched, engine):
    def outcome(session):
        for row in session.query(Padded).order_by(Padded.id):
            row.name = f"{row.name}b"
        try:
            session.commit()
        except Exception as error:
            session.rollback()
            return type(error)
        return [name for _, name in all_stored(engine, Padded, ["name"])]

    store(*(Padded(id="ab"[: n + 1], name="a") for n in range(min(count, 2))))
    with Session(engine) as session:
        native = outcome(session)

    assert native == ["ab"] * min(count, 2)
    assert outcome(watched()) == ["abb"] * min(count, 2)


class Named(Versioned, Base):
    """The key is stored in other letters than it has in Python."""

    __tablename__ = "named"
    id: str = Column(Upper, primary_key=True)
    name = Column(String(20))
    __allow_unmapped__ = True


def test_rows_are_found_by_keys_that_are_stored_as_other_values(
    store, watched, other, gone, refused
):
    store(*(Named(id=letter, name="x") for letter in "abcd"))
    session = watched()
    for row in session.query(Named):
        row.name = "y"
    other(Named, "b", name="theirs")
    gone(Named, "c")

    assert {e.identity: e.kind for e in refused(session).entries} == {
        ("b",): "updated", ("c",): "deleted",
    }  # fmt: skip


class Text_(Versioned, Base):
    """Keys that the database compares without regard to case (MariaDB)."""

    __tablename__ = "texts"
    id: str = Column(String(20), primary_key=True)
    name = Column(String(20))
    __allow_unmapped__ = True


def test_a_key_in_other_letters_is_found_where_the_database_finds_it(store, watched, engine):
    """MariaDB finds 'ADA' by 'ada': an object made with such a key writes its row."""
    store(Text_(id="ADA", name="a"), Text_(id="BOB", name="a"))

    def outcome(session):
        rows = [session.get(Text_, "ada"), session.get(Text_, "bob")]
        if None in rows:
            return rows
        for row in rows:
            row.name = f"{row.name}b"
        session.commit()
        return all_stored(engine, Text_, ["name"])

    with Session(engine) as session:
        native = outcome(session)
    ours = outcome(watched())

    assert native in ([None, None], [("ADA", "ab"), ("BOB", "ab")])
    assert ours in ([None, None], [("ADA", "abb"), ("BOB", "abb")])


class Given(Versioned, Base):
    """Names that the guard's own statements use."""

    __tablename__ = "given"
    id: int = Column("k0", Integer, primary_key=True, autoincrement=False)
    name = Column("c0", String(20))
    mask = Column("m0", String(20))
    stored = Column("s0", Integer)
    __allow_unmapped__ = True


class Held(Versioned, Base):
    __tablename__ = "held"
    id: int = Column(Integer, primary_key=True, autoincrement=False)
    locked = Column(Integer)
    written = Column(Integer)
    __allow_unmapped__ = True


def test_a_table_may_be_called_as_the_guards_own_aliases(store, watched, stored, other, refused):
    store(*(Given(id=n, name="a") for n in range(3)), *(Held(id=n) for n in range(3)))
    session = watched(autoflush=False)
    for row in session.query(Given):
        row.name = "b"
        if row.id:
            row.mask, row.stored = "m", 7
    for row in session.query(Held):
        row.written, row.locked = 1, row.id
    session.commit()

    assert [stored(Given, n)["stored"] for n in range(3)] == [None, 7, 7]
    assert [stored(Held, n)["locked"] for n in range(3)] == [0, 1, 2]
    for row in session.query(Given):
        row.name = "c"
    other(Given, 1, name="theirs")
    assert [e.identity for e in refused(session).entries] == [(1,)]


def test_an_error_of_the_database_is_its_own_error_and_not_a_conflict(store, watched, stored):
    store(*(Account(id=n, balance=n) for n in range(3)))
    session = watched()
    for row in session.query(Account):
        row.balance = None
    with pytest.raises(IntegrityError) as caught:
        session.flush()
    session.rollback()

    assert not isinstance(caught.value, ConcurrencyError)
    assert stored(Account, 1)["balance"] == 1
