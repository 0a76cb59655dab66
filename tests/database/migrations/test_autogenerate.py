"""Autogenerate finds what a class has become, writes it both ways, and then finds nothing more."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import BigInteger, Integer, MetaData, SmallInteger, String, text
from sqlalchemy.orm import DeclarativeBase, Mapped, configure_mappers, mapped_column, sessionmaker

from optilock import Versioned, touch, watch
from optilock._mapping.tables import classes_over
from optilock.tokens import Counter, RowVersion, Timestamp, Unique
from tests.support import models as every
from tests.support.migrating import migrate, revise, run, shape, triggers

pytestmark = [
    pytest.mark.engines("sqlite-wal", "postgresql", "mariadb"),
    pytest.mark.usually("sqlite-wal"),
]


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
    type("Page", bases, body)  # nobody holds it but its table
    return Base.metadata


TOKENS = {
    "counter": Counter(),
    "unique": Unique(),
    "timestamp": Timestamp(),
    "row version": RowVersion(),
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
    assert len(revision.lines) == (2 if isinstance(token, RowVersion) else 1)
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
    assert revision.lines == ["op.drop_version_column('pages', optilock.tokens.Counter())"]

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


GUARDED = {"token": Counter(), "__version_guard__": "bump", "__version_ignore__": ("views",)}


def besides_default(engine):
    """A version that CREATE TABLE has made has no default; one that was added has."""
    found = shape(engine, "pages")
    columns = found["pages"]["columns"]
    found["pages"]["columns"] = [c if c[2] or c[0] == "id" else c[:3] for c in columns]
    return found


def goes_and_comes_back(engine, old, new, **options):
    """From ``old``, which the database is, to ``new``, back, and there again; the revision."""
    before = besides_default(engine)
    revision = revise(engine, new, **options)
    run(engine, revision, revision.upgrade)
    assert is_clean(engine, new, **options) is True
    after = besides_default(engine)
    run(engine, revision, revision.downgrade)
    assert besides_default(engine) == before
    assert is_clean(engine, old, **options) is True
    run(engine, revision, revision.upgrade)
    assert besides_default(engine) == after
    return revision


def made(engine, **options):
    """The database of a class, brought there by migrations."""
    metadata = models(**options)
    revision = revise(engine, metadata)
    run(engine, revision, revision.upgrade)
    return metadata


@each_style
def test_a_missing_guard_trigger_and_one_that_is_not_asked_for(engine, batch):
    plain, guarded = made(engine, token=Counter()), models(**GUARDED)
    revision = goes_and_comes_back(engine, plain, guarded, render_as_batch=batch)
    assert revision.lines == [
        "op.create_guard_trigger('pages', optilock.tokens.Counter(), 'bump',"
        " ignore=['views'], columns=['id'])"
    ]
    back = goes_and_comes_back(engine, guarded, plain, render_as_batch=batch)
    assert back.lines[0].startswith("op.drop_guard_trigger(")


@pytest.mark.parametrize(
    "change",
    [
        {"__version_guard__": "reject"},
        {"__version_ignore__": ()},
        {"note": mapped_column(String(9), nullable=True)},
        {"token": Unique()},
        {"token": Counter(name="revision")},
        {"token": RowVersion(), "__version_guard__": None, "__version_ignore__": ()},
    ],
    ids=["policy", "ignore", "column", "token", "name", "row version"],
)
@each_style
@pytest.mark.tenth
def test_a_guard_trigger_that_is_another_one(engine, change, batch):
    old = made(engine, **GUARDED)
    change = {name: value._copy() if name == "note" else value for name, value in change.items()}
    goes_and_comes_back(engine, old, models(**{**GUARDED, **change}), render_as_batch=batch)


def test_a_trigger_that_was_switched_off_or_changed_by_hand(engine):
    metadata = made(engine, **GUARDED)
    migrate(
        engine,
        lambda op: op.create_guard_trigger("pages", Counter(), "reject", ignore=["views"]),
    )
    revision = revise(engine, metadata)
    assert len(revision.lines) == 2
    run(engine, revision, revision.upgrade)
    assert is_clean(engine, metadata) is True
    if engine.dialect.name == "postgresql":
        with engine.begin() as connection:
            connection.execute(text("ALTER TABLE pages DISABLE TRIGGER ALL"))
        revision = revise(engine, metadata)
        run(engine, revision, revision.upgrade)
        assert is_clean(engine, metadata) is True


@pytest.mark.parametrize("options", [GUARDED, {"token": RowVersion()}], ids=["guard", "version"])
def test_triggers_come_and_go_with_their_table(engine, options):
    metadata = models(**options)
    revision = revise(engine, metadata)
    run(engine, revision, revision.upgrade)
    assert len(triggers(engine)) == 1
    assert is_clean(engine, metadata) is True
    gone = revise(engine, MetaData())
    run(engine, gone, gone.upgrade)
    assert triggers(engine) == []
    run(engine, gone, gone.downgrade)
    assert is_clean(engine, metadata) is True


@pytest.mark.engines("sqlite-wal")
def test_batch_mode_does_not_lose_the_trigger(engine):
    """It makes the table anew."""
    old = made(engine, **GUARDED)
    new = models(**GUARDED, note=mapped_column(String(9), nullable=False, server_default="x"))
    revision = goes_and_comes_back(engine, old, new, render_as_batch=True)
    assert len(triggers(engine)) == 1
    assert revision.lines[-1].startswith("op.create_guard_trigger(")


@pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")
def test_somebody_elses_triggers_are_left_alone(engine):
    metadata = made(engine, **GUARDED)
    body = {
        "sqlite": "AFTER UPDATE ON pages BEGIN SELECT 1; END",
        "mysql": "AFTER UPDATE ON pages FOR EACH ROW SET @x = 1",
        "postgresql": "AFTER UPDATE ON pages EXECUTE FUNCTION mine()",
    }[engine.dialect.name]
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(
                text(
                    "CREATE FUNCTION mine() RETURNS trigger LANGUAGE plpgsql AS"
                    " $$ BEGIN RETURN NULL; END $$"
                )
            )
        connection.execute(text(f"CREATE TRIGGER mine {body}"))
    assert is_clean(engine, metadata) is True
    assert len(triggers(engine)) == 2


def _tables_of(module):
    """Other test modules have classes on the same base, some of them for one engine alone."""
    mappers = [m for m in module.Base.registry.mappers if m.class_.__module__ == module.__name__]
    links = [r.secondary for m in mappers for r in m.relationships if r.secondary is not None]
    return list(dict.fromkeys([*(table for m in mappers for table in m.tables), *links]))


@pytest.mark.parametrize("batch", [False, True], ids=["plain", "batch"])
def test_models_of_every_kind_are_clean(engine, batch):
    """Inheritance, odd names, keys of several columns, types of every kind."""
    named = _tables_of(every)
    every.Base.metadata.create_all(engine, tables=named)

    def is_one(thing, name, kind, reflected, compared):
        return kind != "table" or name in {table.name for table in named}

    revision = revise(engine, every.Base.metadata, render_as_batch=batch, include_object=is_one)
    assert "version" not in revision.upgrade
    assert "trigger" not in revision.upgrade


def test_a_version_trigger_that_was_changed_by_hand_or_switched_off(engine):
    metadata = made(engine, token=RowVersion())
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(
                text(
                    "CREATE OR REPLACE FUNCTION pages_version_moves() RETURNS trigger LANGUAGE"
                    " plpgsql AS $$ BEGIN NEW.version := OLD.version + 10; RETURN NEW; END $$"
                )
            )
        else:
            body = {
                "sqlite": "AFTER UPDATE ON pages BEGIN SELECT 1; END",
                "mysql": "BEFORE UPDATE ON pages FOR EACH ROW SET NEW.version = 7",
            }[engine.dialect.name]
            connection.execute(text("DROP TRIGGER pages_version_moves"))
            connection.execute(text(f"CREATE TRIGGER pages_version_moves {body}"))
    revision = revise(engine, metadata)
    assert [line.partition("(")[0] for line in revision.lines] == [
        "op.drop_version_trigger",
        "op.create_version_trigger",
    ]
    run(engine, revision, revision.upgrade)
    assert is_clean(engine, metadata) is True
    if engine.dialect.name == "postgresql":
        with engine.begin() as connection:
            connection.execute(text("ALTER TABLE pages DISABLE TRIGGER ALL"))
        revision = revise(engine, metadata)
        run(engine, revision, revision.upgrade)
        assert is_clean(engine, metadata) is True


@pytest.mark.engines("sqlite-wal")
def test_batch_mode_does_not_lose_the_version_trigger(engine):
    old = made(engine, token=RowVersion())
    new = models(
        token=RowVersion(), note=mapped_column(String(9), nullable=False, server_default="x")
    )
    goes_and_comes_back(engine, old, new, render_as_batch=True)
    assert len(triggers(engine)) == 1


@pytest.mark.parametrize("options", [GUARDED, {"token": RowVersion()}], ids=["guard", "version"])
def test_the_default_schema_by_its_name_is_clean(engine, options):
    with engine.connect() as connection:
        schema = connection.dialect.default_schema_name
    metadata = models(**options, __table_args__={"schema": schema})
    revision = revise(engine, metadata, include_schemas=True, include_name=_only(schema))
    run(engine, revision, revision.upgrade)
    assert len(triggers(engine)) == 1
    again = revise(engine, metadata, include_schemas=True, include_name=_only(schema))
    assert again.empty or again.upgrade is None


@pytest.mark.parametrize(
    ("name", "column"), [("p" * 60, None), ('pa`ge"s', None), ("pages", "rev no")]
)
def test_a_version_trigger_goes_with_its_token_whatever_the_names(engine, name, column):
    old = models(token=RowVersion(column=column), __tablename__=name)
    run(engine, (first := revise(engine, old)), first.upgrade)
    assert len(triggers(engine)) == 1
    new = models(token=Unique(name="stamp"), __tablename__=name)
    revision = revise(engine, new)
    run(engine, revision, revision.upgrade)
    assert triggers(engine) == []
    assert is_clean(engine, new) is True
    run(engine, revision, revision.downgrade)
    assert is_clean(engine, old) is True


def _only(schema):
    return lambda name, kind, parents: kind != "schema" or name in (None, schema)


# -- without the line in env.py ---------------------------------------------------------------

WITHOUT = {"autogenerate_plugins": ["alembic.autogenerate.*"]}
says_the_line = pytest.warns(UserWarning, match=r'of pages .*lacks a line: .*\*", "optilock"\]')


@pytest.mark.usefixtures("pages")
def test_without_the_line_a_warning_names_it(engine):
    with says_the_line:
        revision = revise(engine, models(token=Counter()), **WITHOUT)
    assert "op.add_column('pages'" in revision.upgrade  # fails on a table that has rows


def test_and_where_a_trigger_would_be_missing(engine):
    with says_the_line:
        revise(engine, models(token=RowVersion()), **WITHOUT)


def test_nobody_is_reminded_where_nothing_is_wrong(engine, recwarn):
    revise(engine, models(token=Counter()), **WITHOUT)  # a new table is right as it is
    revise(engine, models(token=RowVersion()))
    models(token=Counter()).create_all(engine)
    revise(engine, models(token=Counter()), **WITHOUT)
    revise(engine, MetaData(), **WITHOUT)
    assert not recwarn.list


@pytest.mark.usefixtures("pages")
@pytest.mark.parametrize("line", [True, False])
def test_versions_of_classes_that_nobody_holds_are_known(engine, line, collect):
    metadata = models(token=Counter())
    configure_mappers()
    collect()
    collect()
    if line:
        assert "op.add_version_column('pages'" in revise(engine, metadata).upgrade
        return
    with says_the_line:
        revise(engine, metadata, **WITHOUT)


# -- SQLAlchemy's own version_id_col becomes the mixin's -------------------------------------------


def native(kind: Any) -> MetaData:
    """The class before: the version is counted by SQLAlchemy."""

    class Base(DeclarativeBase):
        pass

    class Page(Base):
        __tablename__ = "pages"
        id: Mapped[int] = mapped_column(primary_key=True)
        version: Mapped[int] = mapped_column(kind, nullable=False)
        __mapper_args__ = {"version_id_col": version}

    return Base.metadata


def moved(declared: Any) -> MetaData:
    """And of the mixin; ``declared``: the column's type, or ``None``: it is not declared."""

    class Base(DeclarativeBase):
        pass

    body: dict[str, Any] = {
        "__tablename__": "pages",
        "__version_token__": Counter(),
        "id": mapped_column(Integer, primary_key=True),
    }
    if declared is not None:
        body["version"] = mapped_column(declared, nullable=False)
    type("Page", (Versioned, Base), body)
    return Base.metadata


@pytest.mark.parametrize("line", [False, True])
@pytest.mark.parametrize(
    ("before", "declared", "altered"),
    [
        (Integer, Integer, False),
        (Integer, None, False),
        (BigInteger, None, False),
        (Integer, BigInteger, True),
        (SmallInteger, None, True),
    ],
)
@each_style
def test_a_version_that_moves_to_the_mixin_keeps_its_type(
    engine, before, declared, altered, line, batch
):
    """D6: no table is written anew for a wider integer, unless a class says so."""
    native(before).create_all(engine)
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO pages (id, version) VALUES (1, 7)"))
    metadata = moved(declared)
    revision = revise(engine, metadata, **({} if line else WITHOUT), render_as_batch=batch)
    assert revision.empty is not altered
    if altered and (batch or engine.dialect.name != "sqlite"):
        assert "type_=sa.BigInteger()" in revision.upgrade
        run(engine, revision, revision.upgrade)
        assert is_clean(engine, metadata) is True
    (page,) = (mapper.class_ for mapper in classes_over(metadata.tables["pages"]))
    with watch(sessionmaker(engine)).begin() as session:
        touch(session.get_one(page, 1))
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT version FROM pages")) == 8
