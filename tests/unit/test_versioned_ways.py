"""However a class is mapped, a lost update on it is noticed, by plain sessions and watched ones."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import pytest
from sqlalchemy import (
    Column,
    ForeignKey,
    Integer,
    String,
    Table,
    Text,
    create_engine,
    inspect,
    select,
    text,
)
from sqlalchemy.ext.automap import automap_base
from sqlalchemy.ext.declarative import ConcreteBase, DeferredReflection
from sqlalchemy.orm import (
    DeclarativeBase,
    DeclarativeBaseNoMeta,
    Mapped,
    MappedAsDataclass,
    Session,
    declarative_base,
    declared_attr,
    defer,
    load_only,
    mapped_column,
    registry,
)
from sqlalchemy.orm.exc import StaleDataError
from sqlalchemy.pool import StaticPool
from sqlmodel import Field, SQLModel

from optilock import ConfigurationError, Versioned
from optilock._mapped import facts
from optilock.tokens import Counter, Unique
from tests.support.lost_update import base, is_protected

Key = Annotated[int, mapped_column(primary_key=True)]
Revision = Annotated[int, mapped_column(Integer, nullable=False)]


@pytest.mark.parametrize("order", ["mixin first", "base first", "on the base"])
def test_the_mixin_stands_on_either_side_or_on_the_base(order: str) -> None:
    made = base(Versioned) if order == "on the base" else base()
    bases = {"mixin first": (Versioned, made), "base first": (made, Versioned)}.get(order, (made,))
    body = {
        "__tablename__": "docs",
        "__annotations__": {"id": Mapped[int], "name": Mapped[str]},
        "id": mapped_column(primary_key=True),
    }
    assert is_protected(type("Doc", bases, body), made.metadata)


@pytest.mark.parametrize("as_attribute", [False, True])
def test_own_mapper_args_never_switch_the_protection_off(as_attribute: bool) -> None:
    made = base()

    class Animal(made, Versioned):
        __tablename__ = "animals"
        id: Mapped[int] = mapped_column(primary_key=True)
        name: Mapped[str]
        kind: Mapped[str]
        if as_attribute:

            @declared_attr.directive
            def __mapper_args__(cls) -> dict[str, Any]:
                return {"polymorphic_on": "kind", "polymorphic_identity": cls.__name__}
        else:
            __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "Animal"}

    assert Animal.__mapper__.version_id_col is Animal.__table__.c.version
    assert is_protected(Animal, made.metadata)


def test_legacy_bases_work() -> None:
    old = declarative_base()

    class Doc(old, Versioned):  # type: ignore[misc, valid-type]
        __tablename__ = "docs"
        id = Column(Integer, primary_key=True)
        name = Column(String)

    assert is_protected(Doc, old.metadata)


@pytest.mark.parametrize(
    ("token", "attribute", "column"),
    [
        (Counter(name="revision"), "revision", "revision"),
        (Counter(name="revision", column="rev_no"), "revision", "rev_no"),
        (Counter(column="rev_no"), "version", "rev_no"),
        (Unique(), "version", "version"),
    ],
)
def test_the_token_has_the_name_and_column_it_was_given(token, attribute, column) -> None:
    made = base()

    class Doc(Versioned, made):
        __tablename__ = "docs"
        __version_token__ = token
        id: Mapped[int] = mapped_column(primary_key=True)
        name: Mapped[str]

    assert is_protected(Doc, made.metadata)
    assert facts(Doc.__mapper__).token == attribute
    assert not next(c for c in Doc.__table__.columns if c.name == column).nullable


def test_a_counter_counts_and_a_unique_token_is_a_random_uuid() -> None:
    assert [Counter().next(value) for value in (None, 1, 41)] == [1, 2, 42]
    first, second = Unique().next(None), Unique().next(None)
    assert first != second
    assert first.version == second.version == 4


def test_a_dataclass_has_no_version_in_its_constructor_whichever_side_the_mixin_stands_on() -> None:
    class Data(MappedAsDataclass, DeclarativeBase):
        pass

    class First(Versioned, Data):
        __tablename__ = "firsts"
        id: Mapped[Key]
        name: Mapped[str]

    class Second(Data, Versioned):
        __tablename__ = "seconds"
        __version_token__ = Counter()
        id: Mapped[Key]
        name: Mapped[str] = mapped_column(default="a")
        version: Mapped[int] = mapped_column(init=False)

    for model in (First, Second):
        assert is_protected(model, Data.metadata)
        assert [f.name for f in dataclasses.fields(model) if f.init] == ["id", "name"]


def test_dataclass_bases_and_the_dataclass_decorator_work() -> None:
    class Before(Versioned, MappedAsDataclass, DeclarativeBase):
        pass

    class After(MappedAsDataclass, DeclarativeBase, Versioned):
        pass

    for made in (Before, After):

        class Doc(made):  # type: ignore[misc, valid-type]
            __tablename__ = "docs"
            id: Mapped[Key]
            name: Mapped[str]

        assert is_protected(Doc, made.metadata)

    mappings = registry()

    @mappings.mapped_as_dataclass
    class Decorated(Versioned):
        __tablename__ = "docs"
        id: Mapped[Key]
        name: Mapped[str]

    assert is_protected(Decorated, mappings.metadata)


def test_bases_that_name_their_tables_work() -> None:
    """As Flask-SQLAlchemy's ``db.Model`` does."""

    class Model(DeclarativeBaseNoMeta):
        @declared_attr.directive
        def __tablename__(cls) -> str:
            return cls.__name__.lower()

    class Doc(Versioned, Model):
        id: Mapped[Key]
        name: Mapped[str]

    assert is_protected(Doc, Model.metadata)


def test_an_abstract_class_hands_down_its_token_and_what_it_ignores() -> None:
    made = base()

    class Doc(Versioned, made):
        __abstract__ = True
        __version_token__ = Unique(name="revision")
        __version_ignore__ = ("views",)
        id: Mapped[Key]
        name: Mapped[str]
        views: Mapped[int] = mapped_column(default=0)

    class Page(Doc):
        __tablename__ = "pages"

    assert is_protected(Page, made.metadata)
    assert Page.__mapper__.version_id_col is Page.__table__.c.revision


def test_sqlmodel_takes_the_mixin_on_either_side_and_never_assigns_the_version() -> None:
    class Hero(Versioned, SQLModel, table=True):
        __tablename__ = "ways_heroes"
        id: int | None = Field(default=None, primary_key=True)
        name: str

    class Team(SQLModel, Versioned, table=True):
        __tablename__ = "ways_teams"
        __version_token__ = Unique(name="revision")
        __version_ignore__ = ("views",)
        id: int | None = Field(default=None, primary_key=True)
        name: str
        views: int = 0

    class Declared(Versioned, SQLModel, table=True):
        __tablename__ = "ways_declared"
        __version_token__ = Counter()
        id: int | None = Field(default=None, primary_key=True)
        name: str
        version: int | None = Field(default=None, nullable=False)

    for model in (Hero, Team, Declared):
        assert is_protected(model, SQLModel.metadata)
    assert Hero.model_validate({"id": 1, "name": "a"}).model_dump() == {"id": 1, "name": "a"}
    for hero in (Hero(id=1, name="a"), Declared(id=1, name="a")):
        with pytest.raises(ConfigurationError, match="moved by optilock alone"):
            hero.version = 5
        assert hero.version is None


def test_imperative_mappings_may_name_the_attribute() -> None:
    class Doc(Versioned):
        __version_token__ = Counter(name="revision", column="version")

        def __init__(self, id: int, name: str) -> None:
            self.id, self.name = id, name

    mappings = registry()
    table = Table(
        "docs",
        mappings.metadata,
        Column("id", Integer, primary_key=True),
        Column("name", String),
        Column("version", Integer, nullable=False),
    )
    mappings.map_imperatively(Doc, table, properties={"revision": table.c.version})
    assert is_protected(Doc, mappings.metadata)
    with pytest.raises(ConfigurationError, match=r"Doc\.revision"):
        Doc(1, "a").revision = 5  # type: ignore[attr-defined]


@pytest.mark.parametrize("columns", ["with a version", "without"])
def test_a_table_of_the_class_itself_is_used(columns: str) -> None:
    made = base()
    version = [Column("version", Integer, nullable=False)] if columns == "with a version" else []

    class Doc(made, Versioned):
        __version_token__ = Counter()
        __table__ = Table(
            "docs",
            made.metadata,
            Column("id", Integer, primary_key=True),
            Column("name", String),
            *version,
        )

    assert is_protected(Doc, made.metadata)


@pytest.mark.parametrize(
    "declared",
    [
        {"version": mapped_column(Integer, nullable=False)},
        {"version": mapped_column(Integer, server_default="1", nullable=False)},
        {"__annotations__": {"version": Mapped[int]}},
        {"__annotations__": {"version": Mapped[Revision]}},
        {
            "version": mapped_column("rev_no", Integer, nullable=False),
            "__version_token__": Counter(column="rev_no"),
        },
    ],
    ids=["column", "server default", "annotation", "Annotated", "other column"],
)
def test_a_version_that_the_class_declares_is_used(declared: Any) -> None:
    made = base()
    own = {"id": Mapped[Key], "name": Mapped[str], **declared.get("__annotations__", {})}
    body = {"__tablename__": "docs", "__version_token__": Counter(), **declared}
    Doc = type("Doc", (Versioned, made), {**body, "__annotations__": own})
    assert len(Doc.__table__.columns) == 3
    assert is_protected(Doc, made.metadata)


def test_the_version_column_of_an_older_mixin_may_become_the_token() -> None:
    made = base()

    class Older:
        version_id: Mapped[int] = mapped_column(nullable=False)

        @declared_attr.directive
        def __mapper_args__(cls) -> dict[str, Any]:
            return {"version_id_col": cls.__table__.c.version_id}  # type: ignore[attr-defined]

    class Doc(Versioned, Older, made):
        __tablename__ = "docs"
        __version_token__ = Counter(name="version_id")
        id: Mapped[Key]
        name: Mapped[str]

    assert Doc.__table__.columns.keys() == ["id", "name", "version_id"]
    assert is_protected(Doc, made.metadata)


@pytest.mark.parametrize(
    "arguments",
    [{"batch": False}, {"eager_defaults": True}, {"include_properties": ["id", "name", "version"]}],
    ids=str,
)
def test_other_mapper_arguments_change_nothing(arguments: Any) -> None:
    made = base()

    class Doc(Versioned, made):
        __tablename__ = "docs"
        __mapper_args__ = arguments
        id: Mapped[Key]
        name: Mapped[str]

    assert is_protected(Doc, made.metadata)


def test_a_stale_delete_is_told_though_the_class_wants_no_deletes_confirmed() -> None:
    made = base()

    class Doc(Versioned, made):
        __tablename__ = "docs"
        __mapper_args__ = {"confirm_deleted_rows": False}
        id: Mapped[Key]
        name: Mapped[str]

    engine = create_engine("sqlite://", poolclass=StaticPool)
    made.metadata.create_all(engine)
    with Session(engine, expire_on_commit=False) as session:
        doc = Doc(id=1, name="a")
        session.add(doc)
        session.commit()
        session.execute(text("UPDATE docs SET version = 7"))
        session.delete(doc)
        with pytest.raises(StaleDataError):
            session.commit()
    engine.dispose()


def test_a_key_that_only_the_mapper_knows_is_enough() -> None:
    class Doc(Versioned):
        def __init__(self, id: int, name: str) -> None:
            self.id, self.name = id, name

    mappings = registry()
    table = Table("docs", mappings.metadata, Column("id", Integer), Column("name", String))
    mappings.map_imperatively(Doc, table, primary_key=[table.c.id])
    assert is_protected(Doc, mappings.metadata)


def test_reflected_tables_work() -> None:
    engine = create_engine("sqlite://", poolclass=StaticPool)
    with engine.begin() as connection:
        connection.execute(
            text("CREATE TABLE docs (id INTEGER PRIMARY KEY, name TEXT, version BIGINT NOT NULL)")
        )
    made = base()

    class Reflected(DeferredReflection, made):
        __abstract__ = True

    class Doc(Versioned, Reflected):
        __tablename__ = "docs"
        __version_token__ = Counter()

    Reflected.prepare(engine)
    assert is_protected(Doc, made.metadata)

    Automap = automap_base()

    class Again(Versioned, Automap):  # type: ignore[misc, valid-type]
        __tablename__ = "docs"
        __version_token__ = Counter()

    Automap.prepare(autoload_with=engine)
    assert is_protected(Again, Automap.metadata)
    engine.dispose()


# -- inheritance -----------------------------------------------------------------------------------


def test_children_share_the_version_of_their_parent() -> None:
    made = base()

    class Animal(Versioned, made):
        __tablename__ = "animals"
        id: Mapped[Key]
        name: Mapped[str]
        kind: Mapped[str]
        __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "animal"}

    class Dog(Animal, Versioned):
        """Its own table; the mixin is named again, which changes nothing."""

        __tablename__ = "dogs"
        id: Mapped[int] = mapped_column(ForeignKey("animals.id"), primary_key=True)
        __mapper_args__ = {"polymorphic_identity": "dog"}

    class Cat(Animal):
        """The parent's table."""

        breed: Mapped[str | None]
        __mapper_args__ = {"polymorphic_identity": "cat"}

    for model in (Animal, Dog, Cat):
        assert is_protected(model, made.metadata)
        assert model.__mapper__.version_id_col is Animal.__table__.c.version


def test_a_versioned_child_of_an_unversioned_parent_is_protected_when_the_parent_is_queried() -> (
    None
):
    """The version must be read with the row, and not when the flush needs it."""
    made = base()

    class Vehicle(made):
        __tablename__ = "vehicles"
        id: Mapped[Key]
        name: Mapped[str]
        kind: Mapped[str]
        __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "vehicle"}

    class Truck(Vehicle):
        __tablename__ = "trucks"
        id: Mapped[int] = mapped_column(ForeignKey("vehicles.id"), primary_key=True)
        __mapper_args__ = {"polymorphic_identity": "truck"}

    class Tanker(Versioned, Truck):
        __tablename__ = "tankers"
        id: Mapped[int] = mapped_column(ForeignKey("trucks.id"), primary_key=True)
        __mapper_args__ = {"polymorphic_identity": "tanker"}

    class Milk(Tanker):
        """It has no table of its own."""

        __mapper_args__ = {"polymorphic_identity": "milk"}

    assert "version" in Tanker.__table__.columns
    for model in (Tanker, Milk):
        for queried in (Vehicle, Truck, Tanker):
            assert is_protected(model, made.metadata, query=select(queried))


def test_concrete_tables_have_a_version_each() -> None:
    made = base()

    class Employee(Versioned, ConcreteBase, made):
        __tablename__ = "employees"
        id: Mapped[Key]
        name: Mapped[str]
        __mapper_args__ = {"polymorphic_identity": "employee", "concrete": True}

    class Manager(Employee):
        __tablename__ = "managers"
        id: Mapped[Key]
        name: Mapped[str]
        __mapper_args__ = {"polymorphic_identity": "manager", "concrete": True}

    class Director(Employee):
        __tablename__ = "directors"
        __version_token__ = Unique()
        id: Mapped[Key]
        name: Mapped[str]
        __mapper_args__ = {"polymorphic_identity": "director", "concrete": True}

    for model in (Employee, Manager, Director):
        assert is_protected(model, made.metadata)
    assert is_protected(Manager, made.metadata, query=select(Employee))


# -- what queries leave out ------------------------------------------------------------------------


class Base(DeclarativeBase):
    pass


class Doc(Versioned, Base):
    __tablename__ = "docs"
    id: Mapped[Key]
    name: Mapped[str]
    body: Mapped[str | None] = mapped_column(Text)


@pytest.mark.parametrize(
    "option",
    [
        load_only(Doc.name),
        defer(Doc.version),
        defer(Doc.version, raiseload=True),
        defer("*"),
        load_only(Doc.name, raiseload=True),
    ],
    ids=["load_only", "defer", "defer raiseload", "defer *", "load_only raiseload"],
)
def test_no_loader_option_leaves_the_version_out(option: Any) -> None:
    """A version that the flush reads belongs to whoever wrote last."""
    assert is_protected(Doc, Base.metadata, query=select(Doc).options(option))


def test_the_version_is_an_attribute_and_a_column_like_others() -> None:
    assert "version" in inspect(Doc).attrs
    assert "version" in Doc.__table__.columns
    assert not Base.metadata.tables["docs"].c.version.nullable


def test_alembic_sees_the_column() -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    engine = create_engine("sqlite://", poolclass=StaticPool)
    with engine.begin() as connection:
        connection.execute(
            text(
                "CREATE TABLE docs (id INTEGER NOT NULL PRIMARY KEY, name VARCHAR NOT NULL,"
                " body TEXT)"
            )
        )
        with pytest.warns(UserWarning, match="lacks a line"):
            [(verb, _, table, column)] = compare_metadata(
                MigrationContext.configure(connection), Base.metadata
            )
        assert (verb, table, column.name, column.nullable) == (
            "add_column",
            "docs",
            "version",
            False,
        )
        connection.execute(text("DROP TABLE docs"))
        Base.metadata.create_all(connection)
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []
    engine.dispose()
