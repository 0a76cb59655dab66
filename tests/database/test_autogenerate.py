"""Autogenerate finds what a class has become, writes it both ways, and then finds nothing more."""

from __future__ import annotations

import pytest
from sqlalchemy import MetaData, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from optilock import Counter, Timestamp, Unique, Versioned
from tests.migrating import revise, run, shape

pytestmark = pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")


def models(**options) -> MetaData:
    """Metadata with one class, ``Page``, that is Versioned if there are options."""

    class Base(DeclarativeBase):
        pass

    token = options.pop("token", None)
    bases = (Base,) if token is None else (Versioned, Base)
    body = {
        "__tablename__": "pages",
        "__annotations__": {"id": Mapped[int], "views": Mapped[int]},
        "id": mapped_column(primary_key=True),
        "views": mapped_column(default=0),
        **options,
    }
    if token is not None:
        body["__version_token__"] = token
    # A program's classes stay; here nobody else would hold this one.
    Base.metadata.info["class"] = type("Page", bases, body)
    return Base.metadata


TOKENS = {
    "counter": Counter(),
    "unique": Unique(),
    "timestamp": Timestamp(),
    "renamed": Counter(name="revision", column="rev no"),
}
each_token = pytest.mark.parametrize("token", TOKENS.values(), ids=TOKENS)
each_style = pytest.mark.parametrize("batch", [False, True], ids=["plain", "batch"])


@pytest.fixture
def pages(engine):
    """The table of the class before it became Versioned, with rows."""
    models().create_all(engine)
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO pages (id, views) VALUES (1, 10), (2, 20)"))


def is_clean(engine, metadata, **options):
    revision = revise(engine, metadata, **options)
    return revision.empty or revision.upgrade


@each_token
@each_style
def test_a_class_that_became_versioned(engine, pages, token, batch):
    metadata = models(token=token)
    before = shape(engine, "pages")
    revision = revise(engine, metadata, render_as_batch=batch)
    assert len(revision.lines) == 1
    assert "op.add_version_column('pages', optilock.tokens." in revision.upgrade

    run(engine, revision, revision.upgrade)
    assert is_clean(engine, metadata) is True
    after = shape(engine, "pages")
    run(engine, revision, revision.downgrade)
    assert shape(engine, "pages") == before
    run(engine, revision, revision.upgrade)
    assert shape(engine, "pages") == after


@each_style
def test_a_class_that_is_versioned_no_longer(engine, batch):
    models(token=Counter()).create_all(engine)
    revision = revise(engine, models(), render_as_batch=batch)
    assert revision.lines == ["op.drop_version_column('pages', optilock.tokens.counter.Counter())"]

    run(engine, revision, revision.upgrade)
    assert is_clean(engine, models()) is True
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO pages (id, views) VALUES (1, 10)"))
    run(engine, revision, revision.downgrade)
    assert is_clean(engine, models(token=Counter())) is True


@each_style
@pytest.mark.parametrize("name", ["version", "stamp"])
def test_a_class_that_changed_its_token(engine, batch, name):
    old, new = models(token=Counter()), models(token=Unique(name=name))
    old.create_all(engine)
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO pages (id, views, version) VALUES (1, 1, 1)"))
    revision = revise(engine, new, render_as_batch=batch)
    assert len(revision.lines) == 1
    assert "op.change_version_column('pages'" in revision.upgrade

    run(engine, revision, revision.upgrade)
    assert is_clean(engine, new) is True
    run(engine, revision, revision.downgrade)
    assert is_clean(engine, old) is True


@each_token
def test_what_the_mapping_itself_made_is_clean(engine, token):
    metadata = models(token=token)
    metadata.create_all(engine)
    assert is_clean(engine, metadata) is True


@each_token
def test_a_new_table_is_made_with_its_version(engine, token):
    metadata = models(token=token)
    revision = revise(engine, metadata)
    run(engine, revision, revision.upgrade)
    assert is_clean(engine, metadata) is True
    run(engine, revision, revision.downgrade)
    assert revise(engine, MetaData()).empty
