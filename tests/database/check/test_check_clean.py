"""``optilock check`` finds nothing where there is nothing."""

from __future__ import annotations

import datetime
import uuid

import pytest
from sqlalchemy import JSON, DateTime, Float, PickleType, String, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from optilock import Versioned
from optilock.check import check
from optilock.tokens import CompareValues, Counter, Manual, RowVersion, Timestamp, Unique
from tests.database.migrations.test_autogenerate import _tables_of
from tests.support import models
from tests.support.migrating import migrate

pytestmark = pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")


def about_models(findings):
    """A server's own settings are another test's."""
    return {(f.code, f.subject) for f in findings if f.subject != "connection"}


def test_models_of_every_kind_are_sound(engine, store):
    """Only those are named that have no version, or SQLAlchemy's own."""
    own = [m.class_ for m in models.Base.registry.mappers if m.class_.__module__ == models.__name__]
    models.Base.metadata.create_all(engine, tables=_tables_of(models))
    store(
        models.Kinds(
            id=1,
            real=float("nan") if engine.dialect.name == "postgresql" else 0.1,
            price=1,
            short="x",
            upper="word",
            blob=b"x",
            day=datetime.date(2020, 2, 29),
            clock=datetime.time(1, 2, 3),
            moment=datetime.datetime(2020, 2, 29, 1, 2, 3),
            zoned=datetime.datetime(2020, 2, 29, tzinfo=datetime.UTC),
            span=datetime.timedelta(1),
            token=uuid.UUID(int=7),
            tag=uuid.UUID(int=8),
            colour=models.Colour.red,
            word=models.Colour.green,
            data={"a": [1]},
        ),
        models.Settings(id=1, data={"a": 1}, plain=[1, {"b": None}]),
        models.Stamped(id=1, name="x", scalar=1, called="c", derived="d"),
    )

    assert about_models(check(own, engine)) == {
        ("not-versioned", "Native"),
        ("no-root", "Post.comments"),
        ("no-version", "File"),
        ("no-version", "Tag"),
        ("no-version", "Vehicle"),
    }


TOKENS = {
    "counter": Counter(),
    "unique": Unique(),
    "timestamp": Timestamp(),
    "row version": RowVersion(),
    "manual": Manual(String(20)),
    "values": CompareValues.all(),
    "both": (Counter(), CompareValues("body")),
}
GUARDED = ("counter", "unique", "timestamp")


@pytest.mark.parametrize(
    ("name", "guard"),
    [
        *((name, None) for name in TOKENS),
        *((name, policy) for name in GUARDED for policy in ("bump", "reject")),
    ],
)
def test_every_token_is_sound(engine, name, guard):
    token = TOKENS[name]

    class Base(DeclarativeBase):
        pass

    class Page(Versioned, Base):
        __tablename__ = "pages"
        __version_token__ = token
        __version_guard__ = guard
        __version_ignore__ = () if token == RowVersion() else ("views",)
        id: Mapped[int] = mapped_column(primary_key=True)
        body: Mapped[str] = mapped_column(String(20))
        data: Mapped[object] = mapped_column(JSON)
        thing: Mapped[object] = mapped_column(PickleType)
        real: Mapped[float] = mapped_column(Float(53))
        views: Mapped[int]

    Base.metadata.create_all(engine)
    if guard:
        migrate(engine, lambda op: op.create_guard_trigger("pages", token, guard, ignore=["views"]))
    with Session(engine) as session:
        values = {"body": "x", "data": {"a": 1}, "thing": {1, 2}, "real": 0.1, "views": 0}
        first = {"version": "1"} if isinstance(token, Manual) else {}
        session.add_all(Page(**values, **first) for _ in range(2))
        session.commit()

    assert about_models(check(Base, engine)) == set()


@pytest.mark.parametrize("token", [Counter, Unique, Timestamp, RowVersion])
@pytest.mark.parametrize("column", ["Version Nr", "order", 'we"ird', "a::text b"])
def test_names_with_capitals_and_signs_are_sound(engine, token, column):
    class Base(DeclarativeBase):
        pass

    class Page(Versioned, Base):
        __tablename__ = "Odd Pages"
        __version_token__ = token(column=column)
        __version_guard__ = None if token is RowVersion else "bump"
        id: Mapped[int] = mapped_column("Id %", primary_key=True)
        title: Mapped[str] = mapped_column("the Title", String(20))

    Base.metadata.create_all(engine)
    if Page.__version_guard__:
        migrate(
            engine,
            lambda op: op.create_guard_trigger("Odd Pages", token(column=column), "bump"),
        )
    assert about_models(check(Base, engine)) == set()


@pytest.mark.engines("postgresql", "mariadb")
def test_a_schema_of_its_own_is_looked_at(engine):
    class Base(DeclarativeBase):
        pass

    class Page(Versioned, Base):
        __tablename__ = "ck_pages"
        __table_args__ = {"schema": "ck_other"}
        __version_token__ = RowVersion()
        id: Mapped[int] = mapped_column(primary_key=True)
        seen: Mapped[datetime.datetime | None] = mapped_column(DateTime)

    with engine.begin() as connection:
        connection.execute(text("DROP SCHEMA IF EXISTS ck_other"))
        connection.execute(text("CREATE SCHEMA ck_other"))
    try:
        assert ("no-table", "ck_other.ck_pages") in about_models(check(Page, engine))
        Base.metadata.create_all(engine)
        assert about_models(check(Page, engine)) == set()
        translated = engine.execution_options(schema_translate_map={"ck_other": None})
        assert ("no-table", "ck_other.ck_pages") in about_models(check(Page, translated))
    finally:
        Base.metadata.drop_all(engine)
        with engine.begin() as connection:
            connection.execute(text("DROP SCHEMA ck_other"))
