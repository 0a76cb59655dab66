"""Tokens that Python does not make: their columns, their types, and what is refused."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import pickle
import random
import time
import uuid
from typing import Annotated, Any

import pytest
from sqlalchemy import (
    BigInteger,
    Column,
    Computed,
    Date,
    DateTime,
    ForeignKey,
    Integer,
    LargeBinary,
    String,
    Table,
    Uuid,
    create_engine,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.dialects import mssql, mysql, postgresql, sqlite
from sqlalchemy.ext.hybrid import hybrid_property
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    MappedAsDataclass,
    Session,
    column_property,
    composite,
    mapped_column,
    registry,
    relationship,
    sessionmaker,
    synonym,
)
from sqlalchemy.pool import StaticPool
from sqlalchemy.schema import CreateColumn

from optilock import (
    ConcurrencyError,
    ConfigurationError,
    Versioned,
    bulk_update,
    client_wins,
    etag_of,
    store_wins,
    touch,
    watch,
)
from optilock.resolvers import per_field
from optilock.rollout.report import command, kind_of_option, token_kinds
from optilock.tokens import Counter, Manual, RowVersion, Timestamp, Token, Unique, UtcDateTime
from optilock.tokens.base import kinds
from tests.support.hash_token import Hash
from tests.support.lost_update import base, is_protected
from tests.support.tens_token import Random64, Tens

UTC = datetime.UTC


def doc(token: Any, /, **body: Any) -> Any:
    known = {"id": Mapped[int], "name": Mapped[str], **body.pop("annotations", {})}
    given = {
        "__tablename__": "docs",
        "__version_token__": token,
        "__annotations__": known,
        "id": mapped_column(primary_key=True),
    }
    return type("Doc", (Versioned, base()), {**given, **body})


# -- the server's time ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dialect", "kind", "sql"),
    [
        (
            postgresql.dialect(),
            "TIMESTAMP WITH TIME ZONE",
            "greatest(clock_timestamp(), docs.version + interval '1 microsecond')",
        ),
        (
            mysql.dialect(),
            "DATETIME(6)",
            "greatest(utc_timestamp(6), docs.version + interval 1 microsecond)",
        ),
        (sqlite.dialect(), "DATETIME", "docs.version, '+0.001 seconds'))"),
    ],
    ids=["postgresql", "mysql", "sqlite"],
)
def test_every_update_writes_the_time_or_the_moment_after_the_old_one(dialect, kind, sql) -> None:
    cls = doc(Timestamp())
    made = str(CreateColumn(cls.__table__.c.version).compile(dialect=dialect))
    assert made.startswith(f"version {kind} ")
    assert "NOT NULL" in made
    assert sql in str(update(cls.__table__).values(name="x").compile(dialect=dialect))


def test_another_database_is_refused_and_told_what_works_there() -> None:
    with pytest.raises(ConfigurationError, match=r"not on mssql: use Counter\(\) or Unique\(\)"):
        str(insert(doc(Timestamp()).__table__).values(id=1).compile(dialect=mssql.dialect()))


def test_a_statement_can_be_printed_without_a_database() -> None:
    assert "version=CURRENT_TIMESTAMP" in str(update(doc(Timestamp())).values(name="x"))


@pytest.mark.parametrize(
    "kind",
    [
        UtcDateTime(),
        DateTime(timezone=True),
        postgresql.TIMESTAMP(timezone=True),
        postgresql.TIMESTAMP(timezone=True, precision=6),
        mysql.DATETIME(fsp=6),
    ],
    ids=repr,
)
def test_a_declared_column_that_is_fine_enough_is_taken(kind: Any) -> None:
    cls = doc(
        Timestamp(),
        annotations={"version": Mapped[datetime.datetime]},
        version=mapped_column(kind),
    )
    assert isinstance(cls.__table__.c.version.type, UtcDateTime)
    assert is_protected(cls, cls.metadata)


@pytest.mark.parametrize(
    "kind",
    [
        Date(),
        DateTime(),
        postgresql.TIMESTAMP(timezone=True, precision=0),
        postgresql.TIMESTAMP(),
        mysql.DATETIME(),
        mysql.DATETIME(fsp=3),
        mysql.TIMESTAMP(fsp=6),
        Integer(),
        String(30),
    ],
    ids=repr,
)
def test_a_declared_column_that_is_coarse_or_without_zone_is_refused(kind: Any) -> None:
    with pytest.raises(ConfigurationError, match="which Timestamp cannot use"):
        doc(Timestamp(), annotations={"version": Mapped[Any]}, version=mapped_column(kind))


@pytest.mark.parametrize("what", ["default", "onupdate"])
def test_another_maker_of_versions_beside_timestamp_is_refused(what: str) -> None:
    column = mapped_column(DateTime(timezone=True), **{what: func.now()})
    with pytest.raises(ConfigurationError, match=f"Remove {what}="):
        doc(Timestamp(), annotations={"version": Mapped[Any]}, version=column)


def test_two_writes_in_one_tick_differ() -> None:
    cls = doc(Timestamp())
    engine = create_engine("sqlite://")
    cls.metadata.create_all(engine)
    late = datetime.datetime(2100, 1, 1, tzinfo=UTC)  # the clock will be behind this
    with engine.begin() as connection:
        connection.execute(insert(cls.__table__).values(id=1, name="a", version=late))
    with Session(engine) as session:
        row = session.get_one(cls, 1)
        for n in range(1, 4):
            row.name = str(n)
            session.flush()
            assert row.version == late + datetime.timedelta(milliseconds=n)
    engine.dispose()


def test_a_core_update_moves_the_time_too() -> None:
    cls = doc(Timestamp())
    engine = create_engine("sqlite://")
    cls.metadata.create_all(engine)
    table = cls.__table__
    with engine.begin() as connection:
        connection.execute(insert(table).values(id=1, name="a"))
        before = connection.scalar(select(table.c.version))
        connection.execute(update(table).values(name="b"))
        assert connection.scalar(select(table.c.version)) > before
    engine.dispose()


def test_moments_are_compared_by_value_whatever_their_zone() -> None:
    kind, dialect = UtcDateTime(), sqlite.dialect()
    east = datetime.timezone(datetime.timedelta(hours=5))
    moment = datetime.datetime(2024, 1, 1, 12, tzinfo=east)
    assert kind.process_bind_param(moment, dialect) == datetime.datetime(2024, 1, 1, 7)
    assert kind.compare_values(moment, moment.astimezone(UTC))
    assert kind.process_result_value(datetime.datetime(2024, 1, 1, 7), dialect) == moment
    assert kind.process_result_value(None, dialect) is None
    with pytest.raises(ConfigurationError, match="no time zone"):
        kind.process_bind_param(datetime.datetime(2024, 1, 1), dialect)


# -- the database's own ---------------------------------------------------------------------------


def test_ignored_columns_beside_a_row_version_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="the database moves a"):
        doc(RowVersion(), __version_ignore__=("name",))


@pytest.mark.parametrize("what", ["default", "onupdate"])
def test_another_maker_of_versions_beside_row_version_is_refused(what: str) -> None:
    column = mapped_column(Integer, **{what: 1})
    with pytest.raises(ConfigurationError, match=f"Remove {what}="):
        doc(RowVersion(), annotations={"version": Mapped[int]}, version=column)


def test_xmin_is_called_xmin() -> None:
    assert doc(RowVersion(xmin=True)).__table__.c.version.name == "xmin"
    with pytest.raises(ConfigurationError, match="the column is called xmin"):
        RowVersion(xmin=True, column="rev")


def test_a_trigger_for_an_unknown_database_is_refused() -> None:
    from optilock._mapping.triggers import trigger_ddl

    table = doc(RowVersion()).__table__
    with pytest.raises(ConfigurationError, match=r"RowVersion\(\) works on .*, not on mssql"):
        trigger_ddl(table, table.c.version, mssql.dialect())


def test_the_trigger_of_a_table_in_a_schema_is_in_that_schema() -> None:
    from optilock._mapping.triggers import trigger_ddl

    table = doc(RowVersion()).__table__
    ddl = trigger_ddl(table, table.c.version, postgresql.dialect(), schema="some where")
    assert all('"some where".docs' in statement for statement in ddl.create)


@pytest.mark.parametrize("token", [Timestamp(), RowVersion()])
@pytest.mark.parametrize("side", ["many", "one"])
def test_a_second_update_that_nobody_reads_back_is_refused(token: Any, side: str) -> None:
    made = base()
    written, other = (token, Counter()) if side == "many" else (Counter(), token)

    class Node(Versioned, made):
        __tablename__ = "nodes"
        __version_token__ = written
        id: Mapped[int] = mapped_column(primary_key=True)
        leaf_id: Mapped[int | None] = mapped_column(ForeignKey("leaves.id", use_alter=True))
        leaf: Mapped[Any] = relationship("Leaf", foreign_keys=[leaf_id], post_update=side == "many")
        leaves: Mapped[list[Any]] = relationship(
            "Leaf", foreign_keys="Leaf.node_id", post_update=side == "one"
        )

    class Leaf(Versioned, made):
        __tablename__ = "leaves"
        __version_token__ = other
        id: Mapped[int] = mapped_column(primary_key=True)
        node_id: Mapped[int | None] = mapped_column(ForeignKey("nodes.id"))

    with pytest.raises(ConfigurationError, match=r"Node\.lea.* has post_update=True"):
        made.registry.configure()


# -- the application's own -------------------------------------------------------------------------


@pytest.fixture
def session() -> Any:
    cls = doc(Manual(Uuid()))
    engine = create_engine("sqlite://")
    cls.metadata.create_all(engine)
    with watch(sessionmaker(engine))() as session:
        session.info["cls"] = cls
        yield session
    engine.dispose()


def test_an_insert_without_a_version_is_refused(session: Session) -> None:
    session.add(session.info["cls"](id=1, name="a"))
    with pytest.raises(ConfigurationError, match=r"assign Doc\.version before"):
        session.flush()


def test_none_is_no_version(session: Session) -> None:
    session.add(row := session.info["cls"](id=1, name="a", version=uuid.uuid4()))
    session.flush()
    with pytest.raises(ConfigurationError, match="cannot become None"):
        row.version = None
    with pytest.raises(ConfigurationError, match="cannot become None"):
        del row.version


def test_a_change_without_an_assignment_keeps_the_version(session: Session) -> None:
    version = uuid.uuid4()
    session.add(row := session.info["cls"](id=1, name="a", version=version))
    session.commit()
    row.name = "b"
    session.commit()
    assert row.version == version
    assert etag_of(row)


def test_a_declared_default_gives_the_first_version() -> None:
    cls = doc(
        Manual(),
        annotations={"version": Mapped[uuid.UUID]},
        version=mapped_column(default=uuid.uuid4),
    )
    engine = create_engine("sqlite://")
    cls.metadata.create_all(engine)
    with Session(engine) as session:
        session.add(row := cls(id=1, name="a"))
        session.commit()
        assert isinstance(row.version, uuid.UUID)
    engine.dispose()


def test_bytes_are_compared_by_value() -> None:
    cls = doc(Manual(LargeBinary))
    engine = create_engine("sqlite://")
    cls.metadata.create_all(engine)
    with watch(sessionmaker(engine))() as session:
        session.add(row := cls(id=1, name="a", version=bytearray(b"\x00\x01")))
        session.flush()
        row.name, row.version = "b", bytes(bytearray(b"\x00\x02"))
        session.commit()
        row.name = "c"
        session.commit()
        assert row.version == b"\x00\x02"
    engine.dispose()


@pytest.mark.parametrize("wrong", [1, "uuid", uuid.uuid4])
def test_what_is_no_type_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="column's type"):
        Manual(wrong)


def test_a_column_without_a_type_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"say which,"):
        doc(Manual())


# -- every way to map ------------------------------------------------------------------------------

Moment = Annotated[datetime.datetime, mapped_column(DateTime(timezone=True))]


def test_an_annotated_column_is_the_token() -> None:
    cls = doc(Timestamp(), annotations={"version": Mapped[Moment]})
    assert is_protected(cls, cls.metadata)


def test_a_plain_mixin_may_declare_the_column() -> None:
    class Stamped:
        changed_at: Mapped[datetime.datetime] = mapped_column(DateTime(timezone=True))

    made = base()
    classes = [
        type(
            name,
            (Stamped, Versioned, made),
            {
                "__tablename__": name.lower(),
                "__version_token__": Timestamp(name="changed_at"),
                "__annotations__": {"id": Mapped[int], "name": Mapped[str]},
                "id": mapped_column(primary_key=True),
            },
        )
        for name in ("One", "Two")
    ]
    for cls in classes:
        assert is_protected(cls, made.metadata)


def test_an_abstract_base_may_choose_the_token() -> None:
    class Root(DeclarativeBase):
        pass

    class Timed(Versioned, Root):
        __abstract__ = True
        __version_token__ = Timestamp(name="changed_at")

    class Thing(Timed):
        __tablename__ = "things"
        id: Mapped[int] = mapped_column(primary_key=True)
        name: Mapped[str]

    assert is_protected(Thing, Root.metadata)


def test_a_dataclass_has_no_field_for_the_time() -> None:
    class Root(MappedAsDataclass, DeclarativeBase):
        pass

    class Thing(Versioned, Root):
        __tablename__ = "things"
        __version_token__ = Timestamp()
        id: Mapped[int] = mapped_column(primary_key=True)
        name: Mapped[str]

    assert is_protected(Thing, Root.metadata)


def test_an_imperative_mapping_may_have_the_column_under_another_name() -> None:
    known = registry()

    class Thing(Versioned):
        __version_token__ = Timestamp(name="changed", column="changed at")

        def __init__(self, **values: Any) -> None:
            for name, value in values.items():
                setattr(self, name, value)

    table = Table(
        "some things",
        known.metadata,
        Column("id", Integer, primary_key=True),
        Column("name", String),
        Column("changed at", DateTime(timezone=True), key="changed", nullable=False),
    )
    known.map_imperatively(Thing, table)
    assert is_protected(Thing, known.metadata)


def test_a_single_table_subclass_shares_the_time() -> None:
    made = base()
    parent = type(
        "Thing",
        (Versioned, made),
        {
            "__tablename__": "things",
            "__version_token__": Timestamp(),
            "__annotations__": {"id": Mapped[int], "name": Mapped[str]},
            "id": mapped_column(primary_key=True),
            "kind": mapped_column(String, default="thing"),
            "__mapper_args__": {"polymorphic_on": "kind", "polymorphic_identity": "thing"},
        },
    )
    child = type("Other", (parent,), {"__mapper_args__": {"polymorphic_identity": "other"}})
    assert is_protected(child, made.metadata)


def test_a_copy_of_the_table_moves_its_own_column() -> None:
    from sqlalchemy import MetaData

    copied = doc(Timestamp()).__table__.to_metadata(MetaData())
    engine = create_engine("sqlite://")
    copied.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(insert(copied).values(id=1, name="a"))
        connection.execute(update(copied).values(name="b"))
    engine.dispose()


# -- attributes that are no plain columns ----------------------------------------------------------


@dataclasses.dataclass
class Point:
    x: int | None
    y: int | None


@pytest.fixture
def shape() -> Any:
    """A class with a composite, a hybrid, an expression, a synonym and a computed column."""
    made = base()

    class Shape(Versioned, made):
        __tablename__ = "shapes"
        id: Mapped[int] = mapped_column(primary_key=True)
        name: Mapped[str] = mapped_column("the name")
        x: Mapped[int | None] = mapped_column()
        y: Mapped[int | None] = mapped_column()
        doubled: Mapped[int | None] = mapped_column(Computed("x * 2"))
        point: Mapped[Point] = composite(Point, "x", "y")
        sum = column_property(x + y)
        title = synonym("name")

        @hybrid_property
        def tenfold(self) -> Any:
            return self.x * 10

        @tenfold.inplace.setter
        def _set_tenfold(self, value: int) -> None:
            self.x = value // 10

    engine = create_engine("sqlite://", poolclass=StaticPool)
    made.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add(Shape(id=1, name="a", point=Point(1, 2)))
    Shape.engine = engine
    yield Shape
    engine.dispose()


@contextlib.contextmanager
def conflict(shape: Any, resolver: Any = None, **theirs: Any) -> Any:
    """Our session and object; another program has changed the row since it was read."""
    sessions = watch(sessionmaker(shape.engine, expire_on_commit=False), on_conflict=resolver)
    with sessions() as session:
        row = session.get_one(shape, 1)
        assert (row.point, row.sum, row.doubled) == (Point(1, 2), 3, 2)
        session.commit()
        with sessions.begin() as other:
            for name, value in theirs.items():
                setattr(other.get_one(shape, 1), name, value)
        yield session, row


def test_a_replaced_composite_is_checked_with_the_version_that_was_read(shape: Any) -> None:
    with conflict(shape, name="theirs") as (session, row):
        row.point = Point(5, 6)
        with pytest.raises(ConcurrencyError) as caught:
            session.flush()
        entry = caught.value.entries[0]
        assert entry.changes == {"x": 5, "y": 6}
        assert (entry.original["version"], entry.database["version"]) == (1, 2)
        assert row.point == Point(5, 6)


def test_a_resolved_row_has_the_stored_composite(shape: Any) -> None:
    with conflict(shape, per_field(x=max, y=max), y=9) as (session, row):
        row.x = 5
        session.commit()
        assert row.point == Point(5, 9)
        assert (row.sum, row.doubled) == (14, 10)
    with conflict_free(shape) as row:
        assert row.point == Point(5, 9)


def test_a_dropped_edit_leaves_the_stored_composite(shape: Any) -> None:
    with conflict(shape, store_wins, point=Point(7, 8)) as (session, row):
        row.point = Point(5, 6)
        session.commit()
        assert (row.point, row.sum, row.doubled) == (Point(7, 8), 15, 14)


def test_hybrids_and_synonyms_are_the_columns_behind_them(shape: Any) -> None:
    with conflict(shape, client_wins, title="theirs") as (session, row):
        row.tenfold = 70
        row.title = "ours"
        session.commit()
        assert (row.x, row.name, row.version) == (7, "ours", 3)


def test_what_the_database_computes_is_neither_a_change_nor_a_conflict(shape: Any) -> None:
    with conflict(shape, x=4) as (session, row):
        row.x = 5
        with pytest.raises(ConcurrencyError) as caught:
            session.flush()
        entry = caught.value.entries[0]
        assert (entry.changes, entry.conflicting) == ({"x": 5}, {"x"})
        assert "sum" not in entry.original


@contextlib.contextmanager
def conflict_free(shape: Any) -> Any:
    with Session(shape.engine) as session:
        yield session.get_one(shape, 1)


# -- a token of one's own -------------------------------------------------------------------------


@pytest.fixture
def sealed() -> Any:
    """A class whose version is a hash of its rows' names, and a session with one row."""
    cls = doc(
        Hash("name"), note=mapped_column(String(10)), annotations={"note": Mapped[str | None]}
    )
    engine = create_engine("sqlite://", poolclass=StaticPool)
    with watch(sessionmaker(engine))() as session:
        cls.metadata.create_all(session.connection())
        row = cls(id=1, name="a")
        session.add(row)
        session.flush()
        yield cls, session, row
    engine.dispose()


def test_a_version_that_is_made_from_values_moves_with_them_and_nothing_else(sealed) -> None:
    cls, session, row = sealed
    made = row.version
    assert made == cls.__version_token__.make({"name": "a"})
    row.note = "x"
    session.flush()
    assert row.version == made
    with pytest.raises(ConfigurationError, match="made from the values of its row"):
        touch(row)
    with pytest.raises(ConfigurationError, match="moved by optilock alone"):
        row.version = "b"
    row.name = func.lower("B")
    with pytest.raises(ConfigurationError, match="SQL expression"):
        session.flush()


def test_a_statement_knows_no_values_that_a_version_is_made_from(sealed) -> None:
    cls, session, row = sealed
    made = cls.__version_token__.make({"name": "b"})
    with pytest.raises(ConfigurationError, match="which only their object knows"):
        session.execute(update(cls).values(name="b"))
    with pytest.raises(ConfigurationError, match="knows some of them only"):
        session.execute(update(cls), [{"id": 1, "version": row.version, "name": "b"}])
    with pytest.raises(ConfigurationError, match="knows some of them only"):
        bulk_update(session, cls, [{"id": 1, "version": row.version, "name": "b"}])
    session.execute(update(cls).values(note="y"))
    session.execute(update(cls).values(name="b", version=made))
    row.name = "c"
    session.commit()
    assert row.version == cls.__version_token__.make({"name": "c"})


def test_an_edit_that_is_taken_back_after_a_conflict_leaves_no_version_behind(sealed) -> None:
    cls, session, row = sealed
    session.commit()
    row.name = "b"
    driver: Any = session.connection().connection.driver_connection
    driver.execute("UPDATE docs SET name = 'x', version = 'theirs'")  # nobody sees whose it is
    with pytest.raises(ConcurrencyError):
        session.flush()
    row.name = "a"
    assert row.version == cls.__version_token__.make({"name": "a"})


# -- kinds that say nothing of an UPDATE -----------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Steps(Token):
    """Each version is the one before, and more; by how much is chance."""

    def type(self) -> BigInteger:
        return BigInteger()

    def next(self, value: Any) -> int:
        return (value or 0) + random.randint(1, 100)


@dataclasses.dataclass(frozen=True)
class Longer(Token):
    """x, xx, xxx"""

    def type(self) -> String:
        return String(60)

    def next(self, value: Any) -> str:
        return f"{value or ''}x"


@dataclasses.dataclass(frozen=True)
class OneMore(Token):
    """Counted, and nothing says how in SQL."""

    def type(self) -> BigInteger:
        return BigInteger()

    def next(self, value: Any) -> int:
        return (value or 0) + 1


@dataclasses.dataclass(frozen=True)
class Nanoseconds(Token):
    """A clock."""

    def type(self) -> BigInteger:
        return BigInteger()

    def next(self, value: Any) -> int:
        return time.time_ns()


@pytest.mark.parametrize(
    ("kind", "moves"),
    [
        (Steps, False),
        (Longer, False),
        (OneMore, True),
        (Nanoseconds, True),
        (Random64, True),
        (Tens, True),
        (Unique, True),
        (Counter, True),
    ],
)
@pytest.mark.parametrize("watches", [False, True])
def test_an_update_moves_the_version_or_is_refused(kind, moves, watches):
    """C8: whatever the kind says of it, and whoever sends it."""

    class Own(DeclarativeBase):
        pass

    class Page(Versioned, Own):
        __tablename__ = "pages"
        __version_token__ = kind()
        id: Mapped[int] = mapped_column(primary_key=True)
        title: Mapped[str]

    engine = create_engine("sqlite://", poolclass=StaticPool)
    Own.metadata.create_all(engine)
    plain = sessionmaker(engine)
    made = watch(sessionmaker(engine)) if watches else plain
    with plain.begin() as session:
        session.add(Page(id=1, title="old"))
    with plain() as session:
        before = session.get_one(Page, 1).version
    statement = update(Page).values(title="theirs")
    if moves:
        for _ in range(3):
            with made.begin() as session:
                session.execute(statement)
            with plain() as session:
                after = session.get_one(Page, 1).version
            assert after != before
            before = after
    else:
        for bind in (made, plain):
            with bind.begin() as session, pytest.raises(ConfigurationError) as refused:
                session.execute(statement)
            assert "makes each version from the one before: name 'version'" in str(refused.value)
            assert type(pickle.loads(pickle.dumps(refused.value))) is type(refused.value)
        with made.begin() as session:
            session.execute(statement.values(version=kind().next(before)))
    with plain() as session:
        assert session.get_one(Page, 1).title == "theirs"
    engine.dispose()


def test_a_kind_whose_versions_nothing_moves_is_refused():
    """C8: of the database's kinds, one that says nothing of an UPDATE."""

    @dataclasses.dataclass(frozen=True)
    class Silent(Token):
        made_by = "database"

        def type(self) -> BigInteger:
            return BigInteger()

    class Own(DeclarativeBase):
        pass

    with pytest.raises(ConfigurationError, match=r"give Silent a following\(\), which returns SQL"):

        class Page(Versioned, Own):
            __tablename__ = "pages"
            __version_token__ = Silent()
            id: Mapped[int] = mapped_column(primary_key=True)


def test_what_is_known_of_a_kind_is_in_its_class():
    """C8: ``--token`` and autogenerate look through the kinds that there are."""
    assert token_kinds() == {
        "counter": Counter,
        "unique": Unique,
        "timestamp": Timestamp,
        "row-version": RowVersion,
    }
    told = {kind for kind in kinds() if kind.told_by_type}
    assert {kind for kind in told if kind.__module__.startswith("optilock.")} == {
        Counter,
        Unique,
        Timestamp,
    }
    counted = [kind for kind in (Counter, RowVersion, Unique, Tens) if kind().counts]
    assert counted == [Counter, RowVersion]
    assert kind_of_option("unique") is Unique
    assert kind_of_option("tests.support.tens_token:Tens") is Tens
    assert command("pages", None, Tens()) == (
        "optilock migrate pages --url … --token tests.support.tens_token:Tens"
    )
    assert command("pages", None, Random64()) is None
    for wrong, why in {
        "tens": "no kind of token: write counter, ",
        "tests.support.tens_token:Twenties": "cannot be imported",
        "no.such:Kind": "cannot be imported",
        "json:dumps": "no kind of token",
        "tests.support.tens_token:Random64": r"Random64 has no first\(\)",
    }.items():
        with pytest.raises(ConfigurationError, match=why):
            kind_of_option(wrong)
