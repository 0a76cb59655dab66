"""What cannot be a root, or a part of one."""

from __future__ import annotations

import pytest
from sqlalchemy import ForeignKey
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    mapped_column,
    registry,
    relationship,
)

from optilock import ConfigurationError, Versioned
from optilock.tokens import CompareValues, Counter

COUNTER = Counter()


def root(names, token=COUNTER, **extra):
    class Base(DeclarativeBase):
        registry = registry()

    class Kid(Versioned, Base):
        __tablename__ = "kids"
        __version_root_of__ = extra.get("kid", ())
        id: Mapped[int] = mapped_column(primary_key=True)
        parent_id: Mapped[int | None] = mapped_column(ForeignKey("parents.id"))

    class Parent(Versioned, Base):
        __tablename__ = "parents"
        __version_token__ = token
        __version_root_of__ = names
        id: Mapped[int] = mapped_column(primary_key=True)
        name: Mapped[str]
        parent_id: Mapped[int | None] = mapped_column(ForeignKey("parents.id"))
        kid_id: Mapped[int | None] = mapped_column(ForeignKey("kids.id", use_alter=True))
        kids = relationship(Kid, foreign_keys=Kid.parent_id)
        shown = relationship(Kid, foreign_keys=Kid.parent_id, viewonly=True)
        best = relationship(Kid, foreign_keys=kid_id)
        children = relationship("Parent")

    Kid.parents = relationship(Parent, foreign_keys=Parent.kid_id, overlaps="best")
    Base.kept = (Kid, Parent)
    return Base


@pytest.mark.parametrize(
    ("names", "why"),
    [
        ("kids", "is a text"),
        ((1,), "write the names"),
        (7, "write the names"),
        (("nothing",), "not a relationship"),
        (("name",), "not a relationship"),
        (("shown",), "viewonly"),
        (("best",), "many-to-one"),
        (("children",), "part of itself"),
    ],
)
def test_what_is_no_part_is_refused(names, why):
    with pytest.raises(ConfigurationError, match=why):
        root(names).registry.configure()


@pytest.mark.parametrize("token", [CompareValues.all()])
def test_a_root_needs_a_version_that_moves(token):
    with pytest.raises(ConfigurationError, match="no version that moves"):
        root(("kids",), token).registry.configure()


def test_two_classes_cannot_be_each_others_root():
    with pytest.raises(ConfigurationError, match="part of itself"):
        root(("kids",), kid=("parents",)).registry.configure()


def family(names):
    """A document and a paragraph are both contents; a letter is a document."""

    class Base(DeclarativeBase):
        registry = registry()

    class Content(Versioned, Base):
        __tablename__ = "contents"
        id: Mapped[int] = mapped_column(primary_key=True)

    class Document(Content):
        __tablename__ = "documents"
        __version_root_of__ = names["Document"]
        id: Mapped[int] = mapped_column(ForeignKey("contents.id"), primary_key=True)

    class Paragraph(Content):
        __tablename__ = "paragraphs"
        id: Mapped[int] = mapped_column(ForeignKey("contents.id"), primary_key=True)
        document_id: Mapped[int] = mapped_column(ForeignKey("documents.id"))

    class Letter(Document):
        __version_root_of__ = names["Letter"]

    Document.paragraphs = relationship(
        Paragraph,
        primaryjoin=Document.id == Paragraph.document_id,
        foreign_keys=Paragraph.document_id,
    )
    Base.kept = (Content, Document, Paragraph, Letter)
    return Base


def test_what_a_class_inherits_is_named_where_it_is_declared():
    with pytest.raises(ConfigurationError, match=r"Name it in Document\.__version_root_of__"):
        family({"Document": (), "Letter": ("paragraphs",)}).registry.configure()
    family({"Document": ("paragraphs",), "Letter": ("paragraphs",)}).registry.configure()


def test_classes_that_share_no_row_but_a_parent_can_be_root_and_child():
    family({"Document": ("paragraphs",), "Letter": ()}).registry.configure()


def test_a_sound_root_is_taken():
    root(("kids",)).registry.configure()
