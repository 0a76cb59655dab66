"""Autogenerate with models of every kind: there and back, and then nothing is left to do."""

from __future__ import annotations

import pytest
from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Computed,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    UniqueConstraint,
    event,
    inspect,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from optilock import Versioned
from optilock.check import check
from optilock.rollout import roll_out
from optilock.tokens import Counter, RowVersion, Timestamp, Unique
from tests.support.migrating import migrate, revise, run, shape

pytestmark = [
    pytest.mark.engines("sqlite-wal", "postgresql", "mariadb"),
    pytest.mark.usually("sqlite-wal"),
]

NAMES = {
    "ix": "ix_%(column_0_label)s",
    "uq": "uq_%(table_name)s_%(column_0_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}
each_style = pytest.mark.parametrize("batch", [False, True], ids=["plain", "batch"])
each_token = pytest.mark.parametrize(
    "token",
    [Counter(), Unique(), Timestamp(), RowVersion()],
    ids=["counter", "unique", "timestamp", "row version"],
)


def base(**options):
    """A base of its own, with the names that projects give."""

    class Base(DeclarativeBase):
        metadata = MetaData(naming_convention=NAMES, **options)

    Base.kept = []  # a program's classes stay
    Base.metadata.info["base"] = Base
    return Base


def mixed(versioned, *bases):
    return (Versioned, *bases) if versioned else bases


def everything(engine):
    """All tables; a version that CREATE TABLE has made has no default, one that was added has."""
    found = shape(engine, *sorted(inspect(engine).get_table_names()))
    for name, table in found.items():
        if name != "triggers":
            table["columns"] = [c if c[2] else c[:3] for c in table["columns"]]
            for several in ("unique", "checks", "indexes"):  # in any order, after batch mode
                table[several].sort(key=repr)
    return found


def is_clean(engine, metadata, **options):
    revision = revise(engine, metadata, **options)
    return revision.empty or revision.upgrade


def there_and_back(engine, old, new, **options):
    """The database is what ``old`` has made; the revision that leads to ``new``."""
    before = everything(engine)
    revision = revise(engine, new, **options)
    assert not revision.empty
    run(engine, revision, revision.upgrade)
    assert is_clean(engine, new, **options) is True
    after = everything(engine)
    run(engine, revision, revision.downgrade)
    assert everything(engine) == before
    assert is_clean(engine, old, **options) is True
    run(engine, revision, revision.upgrade)
    assert everything(engine) == after
    return revision


def animals(*, parent=False, child=False, token=None, guard=None):
    """Joined tables."""
    Base = base()
    own = {"__version_token__": token} if token else {}
    own |= {"__version_guard__": guard} if guard else {}

    def body(name, **columns):
        mine = own if (name == "animals" and parent) or (name == "dogs" and child) else {}
        return {"__tablename__": name, **columns, **mine}

    Animal = type(
        "Animal",
        mixed(parent, Base),
        body(
            "animals",
            id=mapped_column(primary_key=True),
            __annotations__={"id": Mapped[int]},
            kind=mapped_column(String(9)),
            __mapper_args__={"polymorphic_on": "kind", "polymorphic_identity": "animal"},
        ),
    )
    Dog = type(
        "Dog",
        mixed(child, Animal),
        body(
            "dogs",
            id=mapped_column(ForeignKey("animals.id"), primary_key=True),
            __annotations__={"id": Mapped[int]},
            tricks=mapped_column(String(9)),
            __mapper_args__={"polymorphic_identity": "dog"},
        ),
    )
    Base.kept += [Animal, Dog]
    return Base.metadata


@each_token
@each_style
@pytest.mark.parametrize("which", ["parent", "child"])
def test_joined_tables(engine, which, token, batch):
    old, new = animals(), animals(**{which: True}, token=token)
    old.create_all(engine)
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO animals (id, kind) VALUES (1, 'dog')"))
        connection.execute(text("INSERT INTO dogs (id, tricks) VALUES (1, 'sit')"))
    revision = there_and_back(engine, old, new, render_as_batch=batch)
    table = "animals" if which == "parent" else "dogs"
    assert revision.lines[0].startswith(f"op.add_version_column('{table}'")
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM dogs WHERE tricks = 'sit'")) == 1


@each_style
def test_the_version_of_joined_tables_moves_to_the_other_one(engine, batch):
    old, new = animals(parent=True), animals(child=True, token=Unique())
    old.create_all(engine)
    there_and_back(engine, old, new, render_as_batch=batch)


def test_the_guard_of_joined_tables_stands_where_the_version_is(engine):
    old, new = animals(), animals(parent=True, guard="bump")
    old.create_all(engine)
    revision = there_and_back(engine, old, new)
    assert [line.partition(",")[0] for line in revision.lines] == [
        "op.add_version_column('animals'",
        "op.create_guard_trigger('animals'",
    ]


def employees(**options):
    """One table for several classes; each may have columns of its own."""
    Base = base()
    Employee = type(
        "Employee",
        mixed(bool(options), Base),
        {
            "__tablename__": "employees",
            "__annotations__": {"id": Mapped[int]},
            "id": mapped_column(primary_key=True),
            "kind": mapped_column(String(9)),
            "__mapper_args__": {"polymorphic_on": "kind", "polymorphic_identity": "e"},
            **options,
        },
    )
    Boss = type(
        "Boss",
        (Employee,),
        {
            "__annotations__": {"budget": Mapped[int | None]},
            "__mapper_args__": {"polymorphic_identity": "b"},
            **({"__version_ignore__": ("budget",)} if options.get("__version_guard__") else {}),
        },
    )
    Base.kept += [Employee, Boss]
    return Base.metadata


@each_token
@each_style
def test_one_table_for_several_classes(engine, token, batch):
    old, new = employees(), employees(__version_token__=token)
    old.create_all(engine)
    there_and_back(engine, old, new, render_as_batch=batch)


def test_a_subclass_says_what_the_guard_of_the_table_ignores(engine):
    old, new = employees(), employees(__version_guard__="bump")
    old.create_all(engine)
    revision = there_and_back(engine, old, new)
    assert "ignore=['budget']" in revision.upgrade


def parcels(versioned=False, schema=None, **options):
    """A table with everything that a table can have, and one that refers to it."""
    Base = base(schema=schema)
    body = {
        "__tablename__": "parcels",
        "__annotations__": {"id": Mapped[int], "weight": Mapped[int]},
        "id": mapped_column(primary_key=True),
        "owner": mapped_column(String(20), unique=True),
        "weight": mapped_column(server_default="0"),
        "twice": mapped_column(Integer, Computed("weight * 2", persisted=True)),
        "__table_args__": (
            CheckConstraint("weight >= 0", name="positive"),
            UniqueConstraint("weight", "owner"),
            Index(None, "weight"),
        ),
        **options,
    }
    Parcel = type("Parcel", mixed(versioned, Base), body)
    prefix = f"{schema}." if schema else ""
    Stamp = type(
        "Stamp",
        (Base,),
        {
            "__tablename__": "stamps",
            "__annotations__": {"id": Mapped[int], "parcel": Mapped[int]},
            "id": mapped_column(primary_key=True),
            "parcel": mapped_column(ForeignKey(f"{prefix}parcels.id", ondelete="CASCADE")),
        },
    )
    Base.kept += [Parcel, Stamp]
    return Base.metadata


@pytest.fixture
def rows(engine):
    parcels().create_all(engine)
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO parcels (id, owner, weight) VALUES (1, 'Ada', 3)"))
        connection.execute(text("INSERT INTO stamps (id, parcel) VALUES (7, 1)"))
    if engine.dialect.name == "sqlite":

        @event.listens_for(engine, "connect")
        def keep(connection, record):
            connection.execute("PRAGMA foreign_keys = ON")

        engine.dispose()


@each_token
@each_style
def test_generated_columns_and_foreign_keys_stay(engine, rows, token, batch):
    old, new = parcels(), parcels(versioned=True, __version_token__=token)
    there_and_back(engine, old, new, render_as_batch=batch)
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT twice FROM parcels")) == 6
        assert connection.scalar(text("SELECT parcel FROM stamps")) == 1


@each_token
def test_a_generated_column_is_read_as_before_when_the_token_changes(engine, rows, token):
    """SQLAlchemy reads a generated column of SQLite to the last bracket of its line."""

    def generated():
        return [str(c.get("computed")) for c in inspect(engine).get_columns("parcels")]

    migrate(engine, lambda op: op.add_version_column("parcels", Counter()))
    before = generated()
    migrate(engine, lambda op: op.change_version_column("parcels", Counter(), token))
    assert sorted(generated()) == sorted(before)


@each_style
@pytest.mark.parametrize("policy", ["bump", "reject"])
def test_a_version_and_its_guard_beside_another_change(engine, batch, policy):
    """The batch mode of Alembic itself does not copy generated columns."""
    stored = {"twice": mapped_column(Integer)} if batch else {}
    old = parcels(**stored)
    old.create_all(engine)
    new = parcels(
        **{name: column._copy() for name, column in stored.items()},
        versioned=True,
        __version_guard__=policy,
        __version_ignore__=("weight",),
        note=mapped_column(Integer, nullable=True),
    )
    revision = there_and_back(engine, old, new, render_as_batch=batch)
    counted = "['id', 'note', 'owner', 'twice']" if batch else "['id', 'note', 'owner']"
    assert f"columns={counted})" in revision.upgrade


RENAMED = {
    "counter": (Counter(), Counter(name="revision")),
    "column": (Counter(), Counter(name="version", column="row_version")),
    "unique": (Unique(name="stamp"), Unique()),
    "row version": (RowVersion(), RowVersion(column="moves")),
    "timestamp": (Timestamp(), Timestamp(name="changed")),
}


@each_style
@pytest.mark.parametrize(("before", "after"), RENAMED.values(), ids=RENAMED)
@pytest.mark.tenth
def test_a_renamed_version_keeps_its_values(engine, before, after, batch):
    old = parcels(versioned=True, __version_token__=before)
    new = parcels(versioned=True, __version_token__=after)
    old.create_all(engine)
    stored = {Counter: "9", Unique: "'" + "0" * 32 + "'", Timestamp: "'2020-01-01 00:00:00'"}
    value = stored.get(type(before), "9")
    column, renamed = before.column or before.name, after.column or after.name
    with engine.begin() as connection:
        connection.execute(
            text(f"INSERT INTO parcels (id, owner, {column}) VALUES (1, 'Ada', {value})")
        )
        first = connection.scalar(text(f"SELECT {column} FROM parcels"))
    revision = there_and_back(engine, old, new, render_as_batch=batch)
    assert any(line.startswith("op.change_version_column(") for line in revision.lines)
    with engine.connect() as connection:
        assert connection.scalar(text(f"SELECT {renamed} FROM parcels")) == first


CHANGES = [
    (a, b)
    for a in (Counter(), Unique(), Timestamp(), RowVersion())
    for b in (Counter(), Unique(), Timestamp(), RowVersion())
    if a != b
]


@pytest.mark.full  # test_up_down_up.py has each of the changes, without the style
@each_style
@pytest.mark.parametrize(
    ("before", "after"), CHANGES, ids=[f"{type(a).__name__}-{type(b).__name__}" for a, b in CHANGES]
)
def test_every_token_becomes_every_other_one(engine, before, after, batch):
    old = parcels(versioned=True, __version_token__=before)
    new = parcels(versioned=True, __version_token__=after)
    old.create_all(engine)
    with engine.begin() as connection:
        connection.execute(old.tables["parcels"].insert(), [{"owner": "Ada"}, {"owner": "Bob"}])
    there_and_back(engine, old, new, render_as_batch=batch)


@pytest.mark.engines("postgresql")
def test_a_partition_has_the_triggers_of_its_table(engine):
    """They cannot be dropped there, and nobody has to ask for them there."""

    class Base(DeclarativeBase):
        pass

    class Part(Base):
        __tablename__ = "parcels_1"
        id: Mapped[int] = mapped_column(primary_key=True)
        version: Mapped[int] = mapped_column(BigInteger)

    with engine.begin() as connection:
        for statement in (
            "CREATE TABLE parcels (id INT PRIMARY KEY) PARTITION BY RANGE (id)",
            "CREATE TABLE parcels_1 PARTITION OF parcels FOR VALUES FROM (0) TO (9)",
        ):
            connection.execute(text(statement))
    roll_out(engine, "parcels", guard="bump")
    roll_out(engine, "parcels", token=RowVersion(column="moves"))
    parts = revise(engine, Base.metadata)
    assert not [line for line in parts.lines if "parcels_1" in line and "trigger" in line]
    assert "unasked-trigger" not in [one.code for one in check(Part, engine)]
    without = revise(engine, MetaData())
    assert not [line for line in without.lines if "parcels_1" in line and "trigger" in line]


@pytest.mark.parametrize(
    "token", [Counter(name="edition"), Unique(name="mark", column="row version")], ids=str
)
def test_a_guard_trigger_that_was_rolled_out_by_the_name_of_the_column(engine, token):
    """A shell knows of the column only, and not what the attribute is called."""

    class Base(DeclarativeBase):
        pass

    class Box(Versioned, Base):
        __tablename__ = "boxes"
        __version_token__ = token
        __version_guard__ = "bump"
        __version_ignore__ = ("views",)
        id: Mapped[int] = mapped_column(primary_key=True)
        views: Mapped[int | None]

    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE boxes (id INTEGER NOT NULL PRIMARY KEY, views INT)"))
    shell = type(token)(column=token.column or token.name)
    roll_out(engine, "boxes", token=shell, guard="bump", ignore=["views"])
    assert revise(engine, Base.metadata).lines == []
    assert [one for one in check(Box, engine) if one.subject != "connection"] == []


@each_style
def test_several_collections_of_tables(engine, batch):
    """``target_metadata = [orders, people]``"""
    old, new = (
        (parcels(), employees()),
        (parcels(versioned=True), employees(__version_token__=RowVersion())),
    )
    for one in old:
        one.create_all(engine)
    revision = there_and_back(engine, list(old), list(new), render_as_batch=batch)
    for what in ("add_version_column('parcels'", "create_version_trigger('employees'"):
        assert what in revision.upgrade


def test_what_include_object_leaves_out_is_left_alone(engine):
    old = (parcels(), employees())
    for one in old:
        one.create_all(engine)
    new = [parcels(versioned=True), employees(__version_token__=RowVersion())]

    def no_employees(item, name, kind, reflected, compared):
        return not (kind == "table" and name == "employees")

    revision = there_and_back(engine, list(old), new, include_object=no_employees)
    assert "employees" not in revision.upgrade

    def no_version(item, name, kind, reflected, compared):
        return not (kind == "column" and name == "version")

    left = revise(engine, list(old), include_object=no_version)
    assert "version_column" not in left.upgrade


@pytest.fixture
def schema(engine):
    name = "optilock_other"
    with engine.begin() as connection:
        connection.execute(text(f"DROP SCHEMA IF EXISTS {name}" + _cascade(engine)))
        connection.execute(text(f"CREATE SCHEMA {name}"))
    yield name
    with engine.begin() as connection:
        connection.execute(text(f"DROP SCHEMA {name}" + _cascade(engine)))


def _cascade(engine):
    return " CASCADE" if engine.dialect.name == "postgresql" else ""


@pytest.mark.engines("postgresql", "mariadb")
@each_token
def test_a_schema_of_its_own(engine, schema, token):
    guard = {} if isinstance(token, RowVersion) else {"__version_guard__": "reject"}
    old = parcels(schema=schema)
    new = parcels(versioned=True, schema=schema, __version_token__=token, **guard)
    old.create_all(engine)
    options = {
        "include_schemas": True,
        "include_name": lambda name, kind, parents: kind != "schema" or name == schema,
    }
    revision = revise(engine, new, **options)
    assert len(revision.lines) == 2
    assert all(f"schema='{schema}'" in line for line in revision.lines)
    run(engine, revision, revision.upgrade)
    assert is_clean(engine, new, **options) is True
    run(engine, revision, revision.downgrade)
    assert is_clean(engine, old, **options) is True
    run(engine, revision, revision.upgrade)
    assert is_clean(engine, new, **options) is True
