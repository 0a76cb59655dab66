"""Every way to map a class gives it its version; what cannot work is refused at mapping time."""

from __future__ import annotations

import pickle
import uuid
from typing import Any

import pytest
from sqlalchemy import BigInteger, Column, ForeignKey, Integer, String, Table, create_engine, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    MappedAsDataclass,
    Session,
    declarative_base,
    declared_attr,
    make_transient,
    mapped_column,
    registry,
    relationship,
)
from sqlalchemy.orm.attributes import set_committed_value
from sqlalchemy.orm.exc import StaleDataError
from sqlalchemy.pool import StaticPool
from sqlmodel import Field, SQLModel

from optilock import ConfigurationError, Counter, Unique, Versioned, merge_fields, per_field
from optilock.versioned import token_attribute


def writes_and_moves(cls: Any, metadata: Any, **values: Any) -> Any:
    """Insert a row, change it through a plain session, and return its versions."""
    engine = create_engine("sqlite://", poolclass=StaticPool)
    metadata.create_all(engine)
    token = token_attribute(cls.__mapper__)
    assert token is not None
    with Session(engine, expire_on_commit=False) as session:
        obj = cls(**values)
        session.add(obj)
        session.commit()
        first = getattr(obj, token)
        obj.name = "changed"
        session.commit()
        return first, getattr(obj, token)


def base(*bases: type[Any]) -> Any:
    return type("Base", (*bases, DeclarativeBase), {"registry": registry()})


# -- every way to map ------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["mixin first", "base first", "on the base"])
def test_the_mixin_stands_on_either_side_or_on_the_base(order: str) -> None:
    on_base = order == "on the base"
    made = base(Versioned) if on_base else base()
    bases = (
        (made,) if on_base else (Versioned, made) if order == "mixin first" else (made, Versioned)
    )
    body = {
        "__tablename__": "docs",
        "__annotations__": {"id": Mapped[int], "name": Mapped[str]},
        "id": mapped_column(primary_key=True),
    }
    cls = type("Doc", bases, body)
    assert writes_and_moves(cls, made.metadata, id=1, name="a") == (1, 2)


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
    assert writes_and_moves(Animal, made.metadata, id=1, name="a") == (1, 2)


def test_legacy_bases_dataclasses_and_imperative_mappings_work() -> None:
    old = declarative_base()

    class Old(old, Versioned):
        __tablename__ = "old"
        id = Column(Integer, primary_key=True)
        name = Column(String)

    assert writes_and_moves(Old, old.metadata, id=1, name="a") == (1, 2)

    class Data(MappedAsDataclass, DeclarativeBase):
        pass

    class Record(Versioned, Data):
        __tablename__ = "records"
        id: Mapped[int] = mapped_column(primary_key=True)
        name: Mapped[str]

    assert writes_and_moves(Record, Data.metadata, id=1, name="a") == (1, 2)
    with pytest.raises(TypeError, match="version"):
        Record(id=1, name="a", version=7)  # type: ignore[call-arg]

    class Plain(Versioned):
        def __init__(self, **values: Any) -> None:
            self.__dict__.update({})
            for name, value in values.items():
                setattr(self, name, value)

    mappings = registry()
    table = Table(
        "plain", mappings.metadata, Column("id", Integer, primary_key=True), Column("name", String)
    )
    mappings.map_imperatively(Plain, table)
    assert writes_and_moves(Plain, mappings.metadata, id=1, name="a") == (1, 2)


def test_a_sqlmodel_table_model_works_and_its_own_fields_stay_as_they_are() -> None:
    class Hero(Versioned, SQLModel, table=True):
        __tablename__ = "heroes_versioned"
        id: int | None = Field(default=None, primary_key=True)
        name: str

    assert writes_and_moves(Hero, SQLModel.metadata, id=1, name="a") == (1, 2)
    assert set(Hero(name="b").model_dump()) == {"id", "name"}


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

    first, second = writes_and_moves(Doc, made.metadata, id=1, name="a")
    assert token_attribute(Doc.__mapper__) == attribute
    assert not next(c for c in Doc.__table__.columns if c.name == column).nullable
    assert first != second
    assert isinstance(second, uuid.UUID if isinstance(token, Unique) else int)


def test_a_version_column_that_the_class_declares_is_used_as_it_is() -> None:
    made = base()

    class Doc(Versioned, made):
        __tablename__ = "docs"
        id: Mapped[int] = mapped_column(primary_key=True)
        name: Mapped[str]
        version: Mapped[int] = mapped_column(Integer, nullable=False)

    assert type(Doc.__table__.c.version.type) is Integer
    assert writes_and_moves(Doc, made.metadata, id=1, name="a") == (1, 2)


def test_a_joined_child_keeps_its_version_in_the_base_table() -> None:
    made = base()

    class Animal(Versioned, made):
        __tablename__ = "animals"
        id: Mapped[int] = mapped_column(primary_key=True)
        name: Mapped[str]

    class Dog(Animal):
        __tablename__ = "dogs"
        id: Mapped[int] = mapped_column(ForeignKey("animals.id"), primary_key=True)
        bark: Mapped[str]

    assert "version" not in Dog.__table__.columns
    assert Dog.__mapper__.version_id_col is Animal.__table__.c.version
    assert writes_and_moves(Dog, made.metadata, id=1, name="a", bark="w") == (1, 2)


# -- the attribute is the library's ----------------------------------------------------------------


class Base(DeclarativeBase):
    pass


class Page(Versioned, Base):
    __tablename__ = "pages"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]


class Kid(Page):
    __tablename__ = "kids"
    id: Mapped[int] = mapped_column(ForeignKey("pages.id"), primary_key=True)


@pytest.fixture
def session() -> Any:
    engine = create_engine("sqlite://", poolclass=StaticPool)
    Base.metadata.create_all(engine)
    with Session(engine) as made:
        made.add_all([Page(id=1, name="a"), Kid(id=2, name="b")])
        made.commit()
        yield made


def add_one(page: Any) -> None:
    page.version += 1


def delete_it(page: Any) -> None:
    del page.version


@pytest.mark.parametrize("model", [Page, Kid])
@pytest.mark.parametrize(
    "assign", [lambda page: setattr(page, "version", 5), add_one, delete_it], ids=["=", "+=", "del"]
)
def test_assigning_the_version_is_an_error_and_changes_nothing(session, model, assign) -> None:
    page = session.get_one(model, 2 if model is Kid else 1)
    with pytest.raises(ConfigurationError, match="moved by optilock alone"):
        assign(page)
    assert page.version == 1
    assert page not in session.dirty


def test_the_constructor_takes_no_version() -> None:
    with pytest.raises(ConfigurationError, match=r"Page\.version"):
        Page(id=3, name="c", version=41)


def test_merge_pickling_refresh_and_make_transient_go_on_working(session) -> None:
    page = session.get_one(Page, 1)
    copy = pickle.loads(pickle.dumps(page))
    copy.name = "merged"
    assert session.merge(copy).version == 1
    session.commit()
    assert (page.name, page.version) == ("merged", 2)
    session.refresh(page)
    stale = pickle.loads(pickle.dumps(page))
    set_committed_value(stale, "version", 1)
    with pytest.raises(StaleDataError):
        session.merge(stale)
    session.rollback()
    session.refresh(page)
    session.expunge(page)
    make_transient(page)
    page.id = 9
    session.add(page)
    session.commit()
    assert session.get_one(Page, 9).version == 1


def test_the_version_can_be_queried(session) -> None:
    from sqlalchemy import select
    from sqlalchemy.orm import aliased

    other = aliased(Page)
    query = select(Page.id).where(Page.version == 1).order_by(Page.version, Page.id)
    assert session.scalars(query).all() == [1, 2]
    assert session.scalar(select(other.version).where(other.id == 1)) == 1


def test_rows_inserted_in_bulk_have_their_first_version(session) -> None:
    from sqlalchemy import insert

    session.bulk_insert_mappings(Page, [{"id": 5, "name": "m"}])
    session.bulk_save_objects([Page(id=6, name="o")])
    session.execute(insert(Page), [{"id": 7, "name": "i"}])
    session.execute(insert(Page).values(id=8, name="v"))
    session.execute(Page.__table__.insert().values([{"id": 9, "name": "c"}]))
    session.commit()
    assert [session.get_one(Page, n).version for n in range(5, 10)] == [1] * 5


def test_a_row_without_a_version_is_refused_by_the_table(session) -> None:
    with pytest.raises(IntegrityError):
        session.execute(text("INSERT INTO pages (id, name) VALUES (8, 'raw')"))


# -- bad input -------------------------------------------------------------------------------------


def map_doc(made: Any = None, **body: Any) -> Any:
    made = made or base()
    annotations = {"id": Mapped[int], "name": Mapped[str]}
    body.setdefault("id", mapped_column(primary_key=True))
    return type(
        "Doc", (Versioned, made), {"__tablename__": "docs", "__annotations__": annotations, **body}
    )


@pytest.mark.parametrize("token", ["version", Counter, None, 1])
def test_an_unknown_token_is_refused(token: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"Counter\(\)"):
        map_doc(__version_token__=token)


def test_a_second_version_column_is_refused() -> None:
    made = base()
    with pytest.raises(ConfigurationError, match="two version columns"):

        class Doc(Versioned, made):
            __tablename__ = "docs"
            id: Mapped[int] = mapped_column(primary_key=True)
            rev: Mapped[int] = mapped_column(BigInteger)
            __mapper_args__ = {"version_id_col": rev}


def test_a_second_token_in_a_subclass_is_refused() -> None:
    made = base()
    parent = map_doc(made)
    with pytest.raises(ConfigurationError, match="two version columns"):

        class Child(parent):
            __tablename__ = "children"
            __version_token__ = Unique()
            id: Mapped[int] = mapped_column(ForeignKey("docs.id"), primary_key=True)


def test_a_class_without_primary_key_is_refused() -> None:
    made = base()
    with pytest.raises(ConfigurationError, match="primary_key=True"):
        type(
            "Doc",
            (Versioned, made),
            {"__tablename__": "docs", "__annotations__": {"name": Mapped[str]}},
        )


def test_a_version_column_of_another_type_is_refused() -> None:
    made = base()
    with pytest.raises(ConfigurationError, match="another name"):

        class Doc(Versioned, made):
            __tablename__ = "docs"
            id: Mapped[int] = mapped_column(primary_key=True)
            version: Mapped[str]


def test_a_single_table_child_cannot_be_versioned_alone() -> None:
    made = base()

    class Parent(made):
        __tablename__ = "parents"
        id: Mapped[int] = mapped_column(primary_key=True)
        kind: Mapped[str]
        __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "p"}

    with pytest.raises(ConfigurationError, match="put the mixin on Parent"):

        class Child(Versioned, Parent):
            __mapper_args__ = {"polymorphic_identity": "c"}


@pytest.mark.parametrize(
    ("ignore", "helps"),
    [
        (("version",), "the version itself"),
        (("title",), "It has: id, name"),
        ("name", r"\('name',\)"),
        (("kids",), "not a column"),
    ],
)
def test_only_column_attributes_can_be_ignored(ignore: Any, helps: str) -> None:
    made = base()

    class Kid(made):
        __tablename__ = "kids"
        id: Mapped[int] = mapped_column(primary_key=True)
        doc_id: Mapped[int] = mapped_column(ForeignKey("docs.id"))

    with pytest.raises(ConfigurationError, match=helps):
        map_doc(made, __version_ignore__=ignore, kids=relationship(Kid))


@pytest.mark.parametrize(
    ("resolver", "helps"),
    [("merge", "resolver"), (per_field(title=max), "title"), (lambda: None, "resolver")],
)
def test_a_class_resolver_is_checked_when_the_class_is_mapped(resolver: Any, helps: str) -> None:
    with pytest.raises(ConfigurationError, match=helps):
        map_doc(__on_conflict__=resolver)


def test_a_class_resolver_that_fits_is_taken() -> None:
    assert map_doc(__on_conflict__=merge_fields).__on_conflict__ is merge_fields


@pytest.mark.parametrize("name", ["", "row version", 7])
def test_a_token_name_that_is_no_attribute_is_refused(name: Any) -> None:
    with pytest.raises(ConfigurationError):
        Counter(name=name)


def test_a_version_column_that_is_not_mapped_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="excluded"):
        map_doc(__mapper_args__={"exclude_properties": ["version"]})


def test_an_engine_whose_driver_cannot_count_is_refused_before_anything_is_written() -> None:
    from sqlalchemy.orm import sessionmaker

    from optilock import UnitOfWork, unit_of_work, watch

    engine = create_engine("sqlite://")
    engine.dialect.supports_sane_rowcount = False
    for refused in (
        lambda: watch(sessionmaker(engine)),
        lambda: UnitOfWork(engine),
        lambda: UnitOfWork(sessionmaker(engine)),
        lambda: unit_of_work(engine),
    ):
        with pytest.raises(ConfigurationError, match="cannot tell how many rows"):
            refused()
