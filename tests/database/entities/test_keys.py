"""Which row a key means: one reading of what a URL has brought, for all who take keys."""

from __future__ import annotations

import datetime
import enum
import uuid
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import (
    CHAR,
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
from sqlalchemy.dialects.postgresql import INET
from sqlalchemy.orm import DeclarativeBase, mapped_column, sessionmaker
from sqlalchemy.types import TypeDecorator

from optilock import (
    ConfigurationError,
    PreconditionFailed,
    UnitOfWork,
    Versioned,
    apply,
    bulk_delete,
    bulk_update,
    client_wins,
    entities,
    etag_of,
    leases,
    shares,
    watch,
)
from optilock.entities import Idempotency, Operation, Version
from optilock.errors import AlreadyExists, BadEntity, BatchFailed, NotFound
from optilock.preconditions import merge_changes, sign_seen
from optilock.preconditions.entity_tags import PLAIN, ETags
from optilock.shares.guard import Through
from optilock.tables.names import SHARES
from optilock.testing import count_statements
from optilock.tokens import Unique


class Base(DeclarativeBase):
    pass


class Colour(enum.Enum):
    """One member has two names."""

    red = 1
    crimson = 1
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
    "named": (
        Enum(Colour),
        [Colour.green, "green"],
        [" green", "GREEN", 2, "Colour.green", "blue", "crimson", ""],
    ),
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


class Tick(Versioned, Base):
    __tablename__ = "key_ticks"

    at = mapped_column(DateTime(timezone=True), primary_key=True)


@pytest.mark.engines("postgresql")
@pytest.mark.parametrize("key", ["2026-01-02T03:04:05Z", "2026-01-02 03:04:05+00:00"])
def test_a_moment_in_utc_may_be_written_with_a_z(engine: Engine, key: str) -> None:
    """A7: as JSON bodies and JavaScript write it."""
    Tick.__table__.create(engine)
    with watch(sessionmaker(engine)).begin() as session:
        stored = entities.insert(session, Tick, key)
        assert stored.identity == (MOMENT.replace(tzinfo=datetime.UTC),)
    Tick.__table__.drop(engine)


def test_bulk_calls_read_keys_in_the_same_way(engine: Engine) -> None:
    """A7: a row is named once, the object follows, and other texts are the keys of no row."""
    model = MODELS["integer"]
    model.__table__.create(engine)
    sessions = watch(sessionmaker(engine))
    with sessions.begin() as session:
        session.add(model(id=7, title="x"))
    with sessions.begin() as session:
        row = session.get_one(model, 7)
        done = bulk_update(session, model, [{"id": "7", "version": 1, "title": "y"}])
        assert done.updated[0].identity == (7,)
        assert (row.title, row.version) == ("y", 2)
        rows = [{"id": key, "version": 2, "title": "z"} for key in (7, "7")]
        with pytest.raises(ConfigurationError, match="same key"):
            bulk_update(session, model, rows)
        for key in [*_OF_NUMBERS, True, 7.0]:
            with count_statements(engine) as sent, pytest.raises(NotFound):
                bulk_update(session, model, [{"id": key, "version": 2, "title": "z"}])
            with pytest.raises(NotFound):
                bulk_delete(session, model, [{"id": key, "version": 2}])
            assert sent.count == 0
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


class Doc(leases.Leasable, shares.Shared, Versioned, Base):
    __tablename__ = "key_docs"

    id = mapped_column(Integer, primary_key=True)
    text = mapped_column(String(20), nullable=True)


@pytest.mark.parametrize("key", [" 7", "7\n", "7.0", "7e0", "+7", 7.0, True, 2**80])
def test_leases_and_share_modes_read_a_key_in_the_same_way(engine: Engine, key: Any) -> None:
    """A7: shares, leases and tags."""
    Base.metadata.create_all(engine, tables=[Doc.__table__])
    SHARES.tables.create_all(engine)
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


# -- keys that only the database takes for the same ------------------------------------------------


class Port(Versioned, Base):
    """PostgreSQL pads its key."""

    __tablename__ = "key_ports"
    __version_token__ = Unique()

    code = mapped_column(CHAR(6), primary_key=True)
    name = mapped_column(String(20), default="")


class Page(Versioned, Base):
    """MariaDB's usual collation, and NOCASE of SQLite, do not tell upper from lower case."""

    __tablename__ = "key_pages"
    __version_token__ = Unique()

    code = mapped_column(
        String(40, collation="NOCASE").with_variant(String(40), "postgresql", "mysql", "mariadb"),
        primary_key=True,
    )
    name = mapped_column(String(20), default="")


class Host(Versioned, Base):
    __tablename__ = "key_hosts"
    __version_token__ = Unique()

    code = mapped_column(
        String(40).with_variant(INET(), "postgresql"),
        primary_key=True,
    )
    name = mapped_column(String(20), default="")


class Opened(leases.Leasable, shares.Shared, Versioned, Base):
    __tablename__ = "key_opened"
    __version_token__ = Unique()

    code = mapped_column(
        String(6, collation="NOCASE")
        .with_variant(CHAR(6), "postgresql")
        .with_variant(String(6), "mysql", "mariadb"),
        primary_key=True,
    )
    name = mapped_column(String(20), default="")


#: What a URL says, and the key of the row for which the database takes it.
ALIASES: dict[str, list[tuple[Any, str, str]]] = {
    "sqlite": [(Page, "Home", "home"), (Page, "A", "a")],
    "postgresql": [(Port, "ab", "ab"), (Port, "ab", "ab  "), (Host, "10.0.0.1", "10.0.0.1/32")],
    "mysql": [(Page, "Home", "home"), (Page, "Home", "home "), (Port, "ab", "AB")],
}
_HAVE = [Port.__table__, Page.__table__, Host.__table__, Opened.__table__]


@pytest.fixture
def aliased(engine: Engine) -> Iterator[Engine]:
    Base.metadata.create_all(engine, tables=_HAVE)
    SHARES.tables.create_all(engine)
    yield engine
    SHARES.tables.drop_all(engine)
    Base.metadata.drop_all(engine, tables=_HAVE)


def each(engine: Engine) -> Iterator[tuple[Any, Any, str, str]]:
    """Sessions, a class, the key as it was written, and in another way; with a new row."""
    sessions = watch(sessionmaker(engine))
    for cls, written, alias in ALIASES[engine.dialect.name]:
        with sessions.begin() as session:
            session.query(cls).delete()
        with sessions.begin() as session:
            inserted = entities.insert(session, cls, written, {"name": "new"})
        with sessions() as session:
            assert inserted.etag == etag_of(session.query(cls).one())
        yield sessions, cls, written, alias


def test_the_tag_of_a_row_is_good_for_whatever_the_database_takes_for_its_key(
    aliased: Engine,
) -> None:
    """A8: it names the key as the database gives it back, and no 412 says that somebody wrote."""
    for sessions, cls, written, alias in each(aliased):
        for key in (written, alias):
            for write in (entities.replace, entities.merge):
                with sessions() as session:
                    row = session.get_one(cls, key)
                    seen = etag_of(row)
                    assert row.name != "mine"
                    stored = write(session, cls, key, {"name": "mine"}, if_match=seen)
                    assert (stored.identity, stored.etag) == ((row.code,), etag_of(row))
                    assert row.name == "mine"
                    with pytest.raises(PreconditionFailed) as caught:
                        write(session, cls, key, {"name": "stale"}, if_match=seen)
                    assert caught.value.etag == stored.etag
                    assert str(caught.value.entries[0].identity[0]) == str(row.code)
        with sessions() as session:
            entities.delete(session, cls, alias, if_match=etag_of(session.query(cls).one()))
            assert session.query(cls).count() == 0


@pytest.mark.parametrize("condition", ["*", "version", "upsert"])
def test_what_is_written_in_any_version_tells_the_tag_of_the_row(
    aliased: Engine, condition: str
) -> None:
    """A8: the result, and the object of the session."""
    for sessions, cls, _, alias in each(aliased):
        with sessions.begin() as session:
            row = session.query(cls).one()
            demanded = "*" if condition == "*" else Version(row.version)
            if condition == "upsert":
                stored = entities.insert_or_merge(session, cls, alias, {"name": "mine"})
            else:
                stored = entities.merge(session, cls, alias, {"name": "mine"}, if_match=demanded)
            assert row.name == "mine"
            assert (stored.identity, stored.etag) == ((row.code,), etag_of(row))
            row.name = "edited"
        with sessions() as session:
            assert session.query(cls).one().name == "edited"
        with sessions() as session:  # what is undone is undone for the object, too
            row = session.query(cls).one()
            before = etag_of(row)
            entities.merge(session, cls, alias, {"name": "undone"}, if_match=Version(row.version))
            session.rollback()
            assert (row.name, etag_of(row)) == ("edited", before)
            row.name = "after"
            session.commit()
        with sessions() as session, pytest.raises(AlreadyExists) as caught:
            entities.insert(session, cls, alias, {"name": "again"})
        with sessions() as session:
            assert caught.value.etag == etag_of(session.query(cls).one())
            assert session.query(cls).one().name == "after"


def test_a_transaction_sees_that_a_row_is_named_twice(aliased: Engine) -> None:
    """A8: under two keys that the database takes for one."""
    for sessions, cls, _, alias in each(aliased):
        with sessions() as session:
            row = session.query(cls).one()
            keys = (row.code, alias)
            both = [Operation(entities.merge, cls, k, {"name": "x"}, if_match="*") for k in keys]
            for some in (both, both[::-1]):
                with pytest.raises(BatchFailed, match="named twice"):
                    entities.transaction(session, some)
            session.refresh(row)
            assert row.name == "new"


def test_a_request_that_is_sent_again_is_known(aliased: Engine) -> None:
    """A8: alone, and in a batch."""
    for sessions, cls, _, alias in each(aliased):
        again = Idempotency("some-key", keys=["x" * 16], principal="ada")
        with sessions() as session:
            seen = etag_of(session.query(cls).one())
        told = []
        for _ in range(2):
            with sessions.begin() as session:
                told.append(
                    entities.merge(
                        session, cls, alias, {"name": "one"}, if_match=seen, idempotency=again
                    )
                )
        assert [stored.again for stored in told] == [False, True]
        assert told[0] == told[1]
        batch = []
        for _ in range(2):
            with sessions.begin() as session:
                one = Operation(entities.merge, cls, alias, {"name": "two"}, if_match=told[0].etag)
                batch += entities.transaction(session, [one], idempotency=again)
        assert [stored.again for stored in batch] == [False, True]
        assert batch[0] == batch[1]


def test_forms_take_it_for_the_row(aliased: Engine) -> None:
    """A8: `apply` and `merge_changes`."""
    tags = ETags(keys=["k" * 16])
    for sessions, cls, _, alias in each(aliased):
        with sessions.begin() as session:
            row = session.query(cls).one()
            seen, signed = etag_of(row), sign_seen(row, ["name"], etags=tags)
        with sessions.begin() as session:
            assert apply(session, cls, alias, {"name": "applied"}, expected=seen).name == "applied"
        with sessions.begin() as session:
            changes = {"name": "merged"}
            merge_changes(
                session, cls, alias, changes, seen=signed, etags=tags, on_conflict=client_wins
            )


def test_leases_and_share_modes_take_it_for_the_row(aliased: Engine) -> None:
    """A8: and the owner of a handle may write, by whatever key."""
    written, alias = ("ab", "ab ") if aliased.dialect.name == "postgresql" else ("Home", "home")
    sessions = watch(sessionmaker(aliased))
    with sessions.begin() as session:
        entities.insert(session, Opened, written, {"name": "new"})
    for condition in ("*", "tag"):
        with sessions.begin() as session:
            seen = etag_of(session.query(Opened).one())
            held = leases.acquire(session, (Opened, alias), 60, if_match=seen)
            leases.release(session, held)
        with sessions.begin() as session:
            handle = shares.open(session, (Opened, alias), "RW", share="R", seconds=60)
            seen = etag_of(session.query(Opened).one())
        demanded = "*" if condition == "*" else seen
        with sessions() as session, pytest.raises(shares.SharingViolation):
            entities.merge(session, Opened, alias, {"name": "beside"}, if_match=demanded)
        with UnitOfWork(sessions, parts=[Through(handle)]) as session:
            entities.merge(session, Opened, alias, {"name": "ours"}, if_match=demanded)
        with sessions.begin() as session:
            assert session.query(Opened).one().name == "ours"
            shares.close(session, handle)


def test_a_row_that_is_written_through_its_handle_tells_its_version(aliased: Engine) -> None:
    """A7: also where the database has to say which one it is."""
    Base.metadata.create_all(aliased, tables=[Doc.__table__])
    sessions = watch(sessionmaker(aliased))
    with sessions.begin() as session:
        session.add(Doc(id=7))
    with sessions.begin() as session:
        handle = shares.open(session, (Doc, "7"), "RW", share="R", seconds=60)
    with UnitOfWork(sessions, parts=[Through(handle)]) as session:
        stored = entities.merge(session, Doc, "7", {"text": "ours"}, if_match="*")
    with sessions() as session:
        assert stored.etag == etag_of(session.get_one(Doc, 7))


def test_the_tag_of_another_row_is_still_none_of_this(aliased: Engine) -> None:
    """A8: 412, and 404 where there is no row."""
    for sessions, cls, _, alias in each(aliased):
        other = "10.0.0.7" if cls is Host else "other"
        with sessions.begin() as session:
            tag = entities.insert(session, cls, other, {"name": "other"}).etag
        with sessions() as session:
            with pytest.raises(PreconditionFailed):
                entities.merge(session, cls, alias, {"name": "x"}, if_match=tag)
            with pytest.raises(NotFound):
                missing = "10.0.0.9" if cls is Host else "none"
                entities.merge(session, cls, missing, {"name": "x"}, if_match=tag)
