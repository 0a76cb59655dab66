"""What cannot carry a version is refused while it is mapped, with what to write instead."""

from __future__ import annotations

import subprocess
import sys
from typing import Annotated, Any

import pytest
from sqlalchemy import Column, ForeignKey, Integer, String, Table, Uuid
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    MappedAsDataclass,
    mapped_column,
    registry,
    relationship,
)

from optilock import ConfigurationError, Versioned
from optilock.resolvers import Resolution, per_field
from optilock.tokens import Counter, Token, Unique
from tests.support.ids import told
from tests.support.lost_update import base

Key = Annotated[int, mapped_column(primary_key=True)]


def map_doc(annotations: Any = (), **body: Any) -> Any:
    """Map a class with ``id``, ``name`` and what else ``body`` says."""
    known = {"id": Mapped[int], "name": Mapped[str], **dict(annotations)}
    return type(
        "Doc",
        (Versioned, base()),
        {
            "__tablename__": "docs",
            "__annotations__": known,
            "id": mapped_column(primary_key=True),
            **body,
        },
    )


#: The class says that the column ``version`` is the version.
SAID = {"__version_token__": Counter()}


# -- tokens ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", [Counter, "version", (None,), 1, Token()], ids=told)
def test_what_is_not_a_token_is_refused(token: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"not a token: write Counter\(\), Unique\(\)"):
        map_doc(__version_token__=token)


@pytest.mark.parametrize("kind", [Counter, Unique])
@pytest.mark.parametrize(
    ("name", "helps"),
    [
        ("row version", r"name='version', column='row version'"),
        ("class", r"name='version', column='class'"),
        ("metadata", r"name='version', column='metadata'"),
        ("registry", r"name='version', column='registry'"),
        ("__table__", r"name='version', column='__table__'"),
        ("", "is the text of a column name"),
        (7, "is the text of a column name"),
    ],
)
def test_a_name_that_no_attribute_can_have_is_refused(kind: Any, name: Any, helps: str) -> None:
    with pytest.raises(ConfigurationError, match=helps):
        kind(name=name)


# -- the column ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "helps"),
    [
        (
            {"version": mapped_column(String)},
            r"which Counter cannot use.*Counter\(name='row_version'\)",
        ),
        (
            {"version": mapped_column(Uuid(as_uuid=False)), "__version_token__": Unique()},
            r"which Unique cannot use.*Unique\(name='row_version'\)",
        ),
        ({"version": mapped_column("rev_no", Integer)}, r"write .*Counter\(column='rev_no'\)"),
        ({"rev": mapped_column("version", Integer), **SAID}, r"Write name='rev', column='version'"),
        ({"__version_token__": Counter(column="name")}, r"which Counter cannot use"),
        ({"__version_token__": Counter(name="id")}, r"primary key.*name='row_version'"),
        (
            {"version": mapped_column(Integer, primary_key=True), **SAID},
            "Take it out of the primary key",
        ),
        ({"version": mapped_column(Integer, deferred=True), **SAID}, "Remove deferred=True"),
        ({"version": property(lambda self: 1)}, r"such as a method.*name='row_version'"),
        ({"version": "1.0"}, r"such as a method.*name='row_version'"),
        ({"__mapper_args__": {"include_properties": ["id", "name"]}}, "include_properties"),
        ({"__mapper_args__": {"exclude_properties": ["version"]}}, "exclude_properties"),
        ({"__mapper_args__": {"column_prefix": "_"}}, "Write name='_version', column='version'"),
    ],
    ids=told,
)
def test_a_column_that_cannot_be_the_version_is_refused(body: Any, helps: str) -> None:
    with pytest.raises(ConfigurationError, match=helps):
        map_doc(**body)


def test_a_class_without_primary_key_is_refused() -> None:
    made = base()
    with pytest.raises(ConfigurationError, match="Mark a column with primary_key=True"):
        type(
            "Doc",
            (Versioned, made),
            {"__tablename__": "docs", "__annotations__": {"name": Mapped[str]}},
        )


def test_a_column_with_another_key_is_refused() -> None:
    class Doc(Versioned):
        pass

    mappings = registry()
    table = Table(
        "docs",
        mappings.metadata,
        Column("id", Integer, primary_key=True),
        Column("rev_no", Integer, key="version"),
    )
    with pytest.raises(ConfigurationError, match=r"name='version', column='rev_no'"):
        mappings.map_imperatively(Doc, table)


def test_a_version_in_the_constructor_of_a_dataclass_is_refused() -> None:
    class Data(MappedAsDataclass, DeclarativeBase):
        pass

    with pytest.raises(ConfigurationError, match=r"mapped_column\(init=False\)"):

        class Doc(Versioned, Data):
            __tablename__ = "docs"
            __version_token__ = Counter()
            id: Mapped[Key]
            version: Mapped[int] = mapped_column(default=1)


KINDS = {Integer: Counter(), Uuid: Unique()}


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_that_the_class_had_is_not_taken_over_silently(kind: Any) -> None:
    """It may be the edition of a document, and its numbers would be lost."""
    with pytest.raises(ConfigurationError, match=r"say so: .* another name: .*name='row_version'"):
        map_doc(version=mapped_column(Integer))

    doc = map_doc(version=mapped_column(kind), __version_token__=KINDS[kind])
    assert doc.__mapper__.version_id_col is doc.__table__.c.version
    doc = map_doc(version=mapped_column(Integer), __version_token__=Counter(name="row_version"))
    assert doc.__mapper__.version_id_col is doc.__table__.c.row_version
    assert doc(version=7).version == 7


@pytest.mark.parametrize("way", ["assigned", "annotated", "of a mixin"])
def test_what_the_base_says_is_not_meant_of_an_attribute_that_a_class_has(way: str) -> None:
    made = type("Said", (base(),), {"__abstract__": True, "__version_token__": Counter()})
    bodies: dict[str, Any] = {
        "assigned": {"version": mapped_column(Integer)},
        "annotated": {"__annotations__": {"version": "Mapped[int]"}},
        "of a mixin": {},
    }
    body = {"__tablename__": "docs", "id": mapped_column(Integer, primary_key=True), **bodies[way]}
    edition = type("Edition", (), {"version": mapped_column(Integer)})
    mixins = (Versioned, edition) if way == "of a mixin" else (Versioned,)
    with pytest.raises(ConfigurationError, match=r"docs\.version of its own"):
        type("Doc", (*mixins[1:], made, Versioned), {**body, "__module__": __name__})

    said = {**body, "__version_token__": Counter(), "__table_args__": {"extend_existing": True}}
    doc: Any = type("Told", (*mixins[1:], made, Versioned), {**said, "__module__": __name__})
    assert doc.__mapper__.version_id_col is doc.__table__.c.version


def test_version_id_col_says_that_a_column_is_the_version() -> None:
    version = mapped_column(Integer)
    doc = map_doc(version=version, __mapper_args__={"version_id_col": version})
    assert doc.__mapper__.version_id_col is doc.__table__.c.version


def test_the_columns_of_a_table_that_was_there_are_not_taken_over_either() -> None:
    made = base()
    columns = [Column("id", Integer, primary_key=True), Column("version", Integer)]
    table = Table("docs", made.metadata, *columns)
    with pytest.raises(ConfigurationError, match=r"docs\.version of its own"):
        type("Doc", (Versioned, made), {"__table__": table})

    made = base()
    table = table.to_metadata(made.metadata)
    above = type("Above", (made,), {"__abstract__": True, "__version_token__": Counter()})
    doc: Any = type("Said", (above, Versioned), {"__table__": table})
    assert doc.__mapper__.version_id_col is table.c.version
    short: Any = type("Short", (Versioned, made), {"__table__": table})  # it is known by now
    assert short.__mapper__.version_id_col is table.c.version


def test_a_class_that_is_mapped_to_no_table_is_refused() -> None:
    class Doc(Versioned):
        pass

    mappings = registry()
    docs = Table("docs", mappings.metadata, Column("id", Integer, primary_key=True))
    more = Table("more", mappings.metadata, Column("id", ForeignKey("docs.id"), primary_key=True))
    with pytest.raises(ConfigurationError, match="Map the class to one table"):
        mappings.map_imperatively(Doc, docs.join(more))


# -- SQLAlchemy's own settings ---------------------------------------------------------------------


def test_a_second_version_column_is_refused() -> None:
    rev = mapped_column(Integer)
    with pytest.raises(ConfigurationError, match=r"two version columns: 'rev'.*Remove version_"):
        map_doc(rev=rev, __mapper_args__={"version_id_col": rev})


def test_a_version_column_named_by_a_text_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="Remove version_id_col"):
        map_doc(__mapper_args__={"version_id_col": "version"})


@pytest.mark.parametrize("generator", [False, lambda version: (version or 0) + 100])
def test_a_generator_of_versions_beside_the_token_is_refused(generator: Any) -> None:
    """It would be replaced unseen, and with False the database would count as well."""
    version = mapped_column(Integer)
    with pytest.raises(
        ConfigurationError, match=r"Remove version_id_generator; or leave Versioned"
    ):
        map_doc(
            version=version,
            __mapper_args__={"version_id_col": version, "version_id_generator": generator},
        )


# -- inheritance -----------------------------------------------------------------------------------


def test_a_child_that_declares_the_version_again_is_refused() -> None:
    parent = map_doc()
    with pytest.raises(ConfigurationError, match="give it another name"):
        type(
            "Child",
            (parent,),
            {
                "__tablename__": "children",
                "id": mapped_column(ForeignKey("docs.id"), primary_key=True),
                "version": mapped_column(String),
            },
        )


@pytest.mark.parametrize("own", [Unique(), Counter(name="revision")])
def test_a_child_with_another_token_is_refused(own: Token) -> None:
    parent = map_doc()
    with pytest.raises(ConfigurationError, match="Set the token on Doc only"):
        type(
            "Child",
            (parent,),
            {
                "__tablename__": "children",
                "__version_token__": own,
                "id": mapped_column(ForeignKey("docs.id"), primary_key=True),
            },
        )


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


UNION = """
from sqlalchemy import String
from sqlalchemy.ext.declarative import AbstractConcreteBase
from sqlalchemy.orm import DeclarativeBase, Mapped, configure_mappers, mapped_column
from optilock import ConfigurationError, Versioned

class Base(DeclarativeBase): pass
class Parent({parent}AbstractConcreteBase, Base): pass
try:
    class Child({child}Parent):
        __tablename__ = "children"
        __mapper_args__ = {{"concrete": True, "polymorphic_identity": "child"}}
        id: Mapped[int] = mapped_column(primary_key=True)
except ConfigurationError as error:
    print(error)
"""


@pytest.mark.parametrize(("parent", "child"), [("Versioned, ", ""), ("", "Versioned, ")])
def test_a_parent_that_is_a_union_of_tables_is_refused(parent: str, child: str) -> None:
    """In a process of its own: the half-made hierarchy stays with SQLAlchemy."""
    program = UNION.format(parent=parent, child=child)
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "Use ConcreteBase" in ran.stdout


def test_a_union_that_is_mapped_by_hand_is_refused_when_mappers_are_configured() -> None:
    mappings = registry()
    table = Table(
        "docs", mappings.metadata, Column("id", Integer, primary_key=True), Column("name", String)
    )

    class Parent:
        pass

    class Child(Versioned, Parent):
        pass

    union = table.select().subquery()
    mappings.map_imperatively(Parent, union, primary_key=[union.c.id])
    mappings.map_imperatively(Child, table, inherits=Parent, concrete=True)
    try:
        with pytest.raises(ConfigurationError, match="Use ConcreteBase"):
            mappings.configure()
    finally:
        mappings.dispose()


# -- what is ignored, and who resolves -------------------------------------------------------------


@pytest.mark.parametrize(
    ("ignored", "helps"),
    [
        ("name", r"= \('name',\)"),
        (None, r"= \('views',\)"),
        (5, r"= \('views',\)"),
        (b"name", r"= \('views',\)"),
        ((3,), r"= \('views',\)"),
        ((mapped_column(Integer),), r"= \('views',\)"),
        ((n for n in ["name"]), r"= \('views',\)"),
        (("version",), "the version itself"),
        (("id",), "the primary key"),
        (("title",), "It has: id, name"),
    ],
    ids=told,
)
def test_what_cannot_be_ignored_is_refused(ignored: Any, helps: str) -> None:
    with pytest.raises(ConfigurationError, match=helps):
        map_doc(__version_ignore__=ignored)


def test_a_relationship_cannot_be_ignored() -> None:
    with pytest.raises(ConfigurationError, match=r"not a column attribute\. It has: id, name"):
        map_doc(__version_ignore__=("pages",), pages=relationship("Page"))


def test_a_child_cannot_ignore_for_its_siblings() -> None:
    """Rows of all classes in a table are written by one statement."""
    parent = map_doc(
        {"kind": Mapped[str]},
        __mapper_args__={"polymorphic_on": "kind", "polymorphic_identity": "doc"},
    )
    with pytest.raises(ConfigurationError, match=r"Name it in Doc\.__version_ignore__"):
        type(
            "Child",
            (parent,),
            {
                "__version_ignore__": ("name",),
                "__mapper_args__": {"polymorphic_identity": "child"},
            },
        )


def test_a_child_may_repeat_what_its_parent_ignores() -> None:
    parent = map_doc(
        {"kind": Mapped[str]},
        __version_ignore__=("name",),
        __mapper_args__={"polymorphic_on": "kind", "polymorphic_identity": "doc"},
    )
    child = type(
        "Child",
        (parent,),
        {"__version_ignore__": ("name",), "__mapper_args__": {"polymorphic_identity": "child"}},
    )
    assert child.__mapper__.inherits is parent.__mapper__


@pytest.mark.parametrize(
    "resolver",
    [
        "merge",
        {},
        False,
        per_field,
        Resolution,
        Resolution.keep_database(),
        lambda: None,
        lambda session, entry: None,
    ],
    ids=told,
)
def test_what_is_not_a_resolver_is_refused(resolver: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"Use client_wins.*takes an Entry"):
        map_doc(__on_conflict__=resolver)


@pytest.mark.parametrize("name", ["title", "version"])
def test_policies_of_attributes_that_cannot_conflict_are_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="It has: id, name"):
        map_doc(__on_conflict__=per_field(**{name: max}))


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("__version_tokens__", "__version_token__"),
        ("__version_ignored__", "__version_ignore__"),
        ("__version_roots_of__", "__version_root_of__"),
        ("__version_columns_ignored__", "__version_ignore__"),
        ("__on_conflicts__", "__on_conflict__"),
    ],
)
def test_an_option_that_is_misspelt_is_refused(written: str, meant: str) -> None:
    """It would say nothing, and nobody would notice."""
    with pytest.raises(ConfigurationError, match=f"{meant} was probably meant"):
        map_doc(**{"__version__": "1.0", written: ()})


class Scoped:
    """A mixin of some classes with a version, and some without."""

    __version_author__ = "name"


@pytest.mark.parametrize(
    ("bases", "body", "message"),
    [
        ((), {"__version_token__": Unique()}, "not Versioned"),
        ((), {"__version_root_of__": ()}, "not Versioned"),
        ((), {"__version_token__": None, "__version_scopes__": ("name",)}, "not Versioned"),
        ((), {"__version_gaurd__": "forbid"}, "__version_guard__ was probably meant"),
        ((Scoped,), {}, "Doc.__version_author__ does nothing"),
    ],
)
def test_an_option_of_a_class_without_the_mixin_is_refused(
    bases: Any, body: Any, message: str
) -> None:
    """It would do nothing, and the rows would have no version."""
    with pytest.raises(ConfigurationError, match=message):
        plain_doc(bases, body)


def test_options_of_a_mixin_and_of_an_abstract_base_are_for_the_classes_below() -> None:
    plain_doc((Scoped,), {"__version_token__": None})
    plain_doc((), {"__version__": "1.0", "__versioned__": {}})

    class Parent(base()):  # type: ignore[misc]
        __abstract__ = True
        __version_token__ = Unique()

    plain_doc((), {}, Parent)
    type("Kept", (Scoped, Versioned, Parent), {**_DOC, "__tablename__": "kept"})


_DOC = {
    "__tablename__": "docs",
    "__annotations__": {"id": Mapped[int], "name": Mapped[str]},
    "id": mapped_column(primary_key=True),
}


def plain_doc(bases: Any, body: Any, parent: Any = None) -> Any:
    known = {**_DOC, "id": mapped_column(primary_key=True), **body}
    return type("Doc", (*bases, parent or base()), known)


def test_a_list_of_tokens_is_told_to_be_a_tuple() -> None:
    with pytest.raises(ConfigurationError, match="write several tokens as a tuple"):
        map_doc(__version_token__=[Counter()])
