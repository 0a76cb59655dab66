"""A strict session refuses UPDATE and DELETE of rows whose class has no version."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from sqlalchemy import (
    Column,
    ForeignKey,
    Table,
    delete,
    event,
    insert,
    lambda_stmt,
    or_,
    select,
    text,
    update,
)
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    mapped_column,
    relationship,
    sessionmaker,
)
from sqlmodel import Field, SQLModel
from sqlmodel import Session as SQLModelSession
from sqlmodel import select as sqlmodel_select

from optilock import (
    AsyncUnitOfWork,
    ConfigurationError,
    UnitOfWork,
    Versioned,
    bulk_update,
    unit_of_work,
    watch,
)
from optilock.errors import UnguardedStatement
from optilock.statements import unchanged
from optilock.testing.counting import count_statements
from optilock.tokens import CompareValues
from tests.support.models import key
from tests.support.work import calls_of


class Base(DeclarativeBase):
    pass


tagged = Table(
    "strict_tagged",
    Base.metadata,
    Column("page_id", ForeignKey("strict_pages.id"), primary_key=True),
    Column("tag_id", ForeignKey("strict_tags.id"), primary_key=True),
)


class Page(Versioned, Base):
    __tablename__ = "strict_pages"
    id: Mapped[int] = key()
    n: Mapped[int]
    tags: Mapped[list[Tag]] = relationship(secondary=tagged)


class Tag(Base):
    """Somebody has forgotten the mixin."""

    __tablename__ = "strict_tags"
    id: Mapped[int] = key()
    n: Mapped[int]
    above_id: Mapped[int | None] = mapped_column(ForeignKey("strict_tags.id"))
    above: Mapped[Tag | None] = relationship(remote_side=id, back_populates="below")
    below: Mapped[list[Tag]] = relationship(back_populates="above")


class Line(Base):
    """Belongs to a page; somebody has forgotten the mixin."""

    __tablename__ = "strict_lines"
    id: Mapped[int] = key()
    n: Mapped[int]
    page_id: Mapped[int | None] = mapped_column(ForeignKey("strict_pages.id"))
    page: Mapped[Page | None] = relationship(backref="lines")


class Log(Base):
    """Its rows have one writer, and the class says so."""

    __tablename__ = "strict_logs"
    __version_token__ = None
    id: Mapped[int] = key()
    n: Mapped[int]


class Native(Base):
    __tablename__ = "strict_natives"
    id: Mapped[int] = key()
    n: Mapped[int]
    revision: Mapped[int] = mapped_column()
    __mapper_args__ = {"version_id_col": revision}


class Compared(Versioned, Base):
    __tablename__ = "strict_compared"
    __version_token__ = CompareValues("n")
    id: Mapped[int] = key()
    n: Mapped[int]


class Short(Base):
    """Another class over the pages, that knows nothing of their version."""

    __table__ = Page.__table__
    __mapper_args__ = {"include_properties": ["id", "n"]}
    id: Mapped[int]
    n: Mapped[int]


@pytest.fixture
def rows(store: Any) -> None:
    tags = [Tag(id=1, n=0), Tag(id=2, n=0, above_id=1)]
    store(*tags, Log(id=1, n=0), Native(id=1, n=0), Compared(id=1, n=0))
    store(Page(id=1, n=0, tags=[Tag(id=3, n=0)]), Line(id=1, n=0, page_id=1))


@pytest.fixture
def strict(engine, rows):
    with watch(sessionmaker(engine), strict=True)() as session:
        yield session


def changed(session: Session, model: Any, at: int = 1) -> None:
    session.get_one(model, at).n += 1


@pytest.mark.parametrize("model", [Tag, Short])
def test_a_changed_row_without_a_version_is_refused_before_anything_is_sent(strict, model):
    changed(strict, Native)
    changed(strict, model)
    with (
        count_statements(strict.get_bind()) as sent,
        pytest.raises(ConfigurationError, match=rf"^{model.__name__} \(1,\) .* __version_token__"),
    ):
        strict.flush()
    assert not sent.statements
    assert strict.is_active
    strict.expunge(strict.get_one(model, 1))
    strict.commit()
    assert strict.scalars(select(Native.n)).one() == 1


def test_a_deleted_row_without_a_version_is_refused(strict, stored):
    strict.delete(strict.get_one(Tag, 2))
    with pytest.raises(ConfigurationError, match=r"^Tag \(2,\).*Nothing was sent"):
        strict.commit()
    assert stored(Tag, 2)


def test_the_error_can_be_pickled(strict):
    changed(strict, Tag)
    with pytest.raises(ConfigurationError) as caught:
        strict.flush()
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_what_has_a_version_or_says_that_it_needs_none_is_written(strict, stored):
    for model in (Page, Log, Native):
        changed(strict, model)
    strict.commit()
    assert [stored(model, 1)["n"] for model in (Page, Log, Native)] == [1, 1, 1]
    strict.delete(strict.get_one(Log, 1))
    strict.commit()
    assert stored(Log, 1) is None


def test_new_rows_and_links_and_what_does_not_change_are_written(strict, stored):
    page = strict.get_one(Page, 1)
    tag = strict.get_one(Tag, 1)
    tag.n += 0
    page.tags = [tag, Tag(id=4, n=0)]
    strict.commit()
    page.tags.remove(tag)
    strict.commit()
    strict.execute(delete(tagged))
    strict.connection().execute(delete(tagged), [{}])
    strict.commit()
    assert stored(Tag, 4)


def moves_elsewhere(session):
    session.get_one(Tag, 2).above = session.get_one(Tag, 3)


def goes_with_its_parent(session):
    session.delete(session.get_one(Page, 1))


def leaves_its_collection(session):
    page = session.get_one(Page, 1)
    page.lines.clear()


@pytest.mark.parametrize("act", [moves_elsewhere, goes_with_its_parent, leaves_its_collection])
def test_a_foreign_key_that_changes_counts(strict, stored, act):
    act(strict)
    with pytest.raises(ConfigurationError, match=r"(Tag|Line) .*has no version"):
        strict.commit()
    strict.rollback()
    assert stored(Line, 1)["page_id"] == 1
    assert stored(Tag, 2)["above_id"] == 1


def test_what_a_listener_changes_counts(strict, stored):
    @event.listens_for(Page, "before_update")
    def before_update(mapper: Any, connection: Any, page: Any) -> None:
        connection.execute(update(Tag).values(n=7))

    try:
        changed(strict, Page)
        with pytest.raises(ConfigurationError, match="Rows of Tag"):
            strict.commit()
    finally:
        event.remove(Page, "before_update", before_update)
    strict.rollback()
    assert stored(Tag, 1)["n"] == stored(Page, 1)["n"] == 0


def upsert(engine: Any) -> Any:
    values = {"id": 1, "n": 5}
    if engine.dialect.name in ("mysql", "mariadb"):
        from sqlalchemy.dialects import mysql

        return mysql.insert(Tag).values(values).on_duplicate_key_update(n=5)
    from sqlalchemy.dialects import postgresql, sqlite

    kind = postgresql if engine.dialect.name == "postgresql" else sqlite
    return (
        kind.insert(Tag).values(values).on_conflict_do_update(index_elements=["id"], set_={"n": 5})
    )


STATEMENTS = {
    "update(Model)": lambda s: s.execute(update(Tag).values(n=5)),
    "delete(Model)": lambda s: s.execute(delete(Tag).where(Tag.id == 2)),
    "update(table)": lambda s: s.execute(update(Tag.__table__).values(n=5)),
    "delete(table)": lambda s: s.execute(delete(Tag.__table__).where(Tag.id == 2)),
    "by key": lambda s: s.execute(update(Tag), [{"id": 1, "n": 5}]),
    "query": lambda s: s.query(Tag).update({"n": 5}),
    "connection": lambda s: s.connection().execute(update(Tag.__table__).values(n=5)),
    "mappings": lambda s: s.bulk_update_mappings(Tag, [{"id": 1, "n": 5}]),
    "saved": lambda s: (changed(s, Tag), s.bulk_save_objects([s.identity_map.values()[0]])),
    "upsert": lambda s: s.execute(upsert(s.get_bind())),
    "another class": lambda s: s.execute(update(Short).values(n=5)),
}


@pytest.mark.parametrize("send", STATEMENTS.values(), ids=STATEMENTS)
def test_a_statement_counts(strict, stored, send):
    with pytest.raises(ConfigurationError, match=r"(Tag|Short) .*Nothing was sent"):
        send(strict)
    strict.rollback()
    assert stored(Tag, 1)["n"] == 0
    assert stored(Tag, 2)
    assert stored(Page, 1)["n"] == 0


def test_a_class_elsewhere_that_cannot_be_mapped_is_no_matter(strict):
    class Elsewhere(DeclarativeBase):
        pass

    class Broken(Elsewhere):
        __tablename__ = "broken"
        id: Mapped[int] = key()
        lost: Mapped[Any] = relationship("Nobody")

    with pytest.raises(ConfigurationError, match="Tag"):
        strict.execute(update(Tag.__table__).values(n=5))


@pytest.mark.engines("postgresql")
def test_a_statement_inside_of_a_query_counts(strict):
    inside = update(Tag).values(n=5).returning(Tag.id).cte()
    with pytest.raises(ConfigurationError, match="Tag"):
        strict.execute(select(inside.c.id))


UNSEEN = {
    "update(Model)": lambda s: s.execute(update(Page).values(n=5)),
    "made of itself": lambda s: s.execute(update(Page).values(n=Page.n * 2)),
    "delete(Model)": lambda s: s.execute(delete(Page).where(Page.id == 1)),
    "update(table)": lambda s: s.execute(update(Page.__table__).values(n=5)),
    "delete(table)": lambda s: s.execute(delete(Page.__table__)),
    "parameters": lambda s: s.execute(update(Page.__table__), {"n": 5}),
    "Query.update": lambda s: s.query(Page).update({"n": 5}),
    "Query.delete": lambda s: s.query(Page).filter_by(id=1).delete(),
    "lambda": lambda s: s.execute(lambda_stmt(lambda: update(Page).values(n=5))),
    "version_id_col": lambda s: s.execute(update(Native).values(n=5)),
    "of the connection": lambda s: s.connection().execute(update(Page).values(n=5)),
    "table, of the connection": lambda s: s.connection().execute(delete(Page.__table__)),
    "lambda, of the connection": lambda s: s.connection().execute(
        lambda_stmt(lambda: update(Page).values(n=5))
    ),
    "text": lambda s: s.execute(text("UPDATE strict_pages SET n = 5")),
    "text, of the connection": lambda s: s.connection().exec_driver_sql("DELETE FROM strict_pages"),
    "compared values": lambda s: s.execute(update(Compared).values(n=5)),
    "compared values, perhaps": lambda s: s.execute(
        update(Compared).where(or_(Compared.n == 0, Compared.id == 1)).values(n=5)
    ),
    "delete of compared values": lambda s: s.execute(delete(Compared).where(Compared.id == 1)),
}


@pytest.mark.parametrize("send", UNSEEN.values(), ids=UNSEEN)
def test_a_statement_that_compares_no_version_is_refused(strict, stored, send):
    """B1: a strict session sends no UPDATE or DELETE that overwrites versioned rows unseen."""
    with pytest.raises(UnguardedStatement, match="Nothing was sent") as caught:
        send(strict)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    strict.commit()
    assert [stored(one, 1)["n"] for one in (Page, Native, Compared)] == [0, 0, 0]


def test_the_error_says_what_to_write_instead(strict):
    """B1: the text names unchanged(), a version in WHERE, bulk_update and overwrite."""
    with pytest.raises(UnguardedStatement) as caught:
        strict.execute(update(Page).values(n=5))
    for name in ("unchanged(obj)", "Page.version to its WHERE", "bulk_update()", "overwrite(obj)"):
        assert name in str(caught.value)
    with pytest.raises(UnguardedStatement, match="bulk_delete"):
        strict.execute(delete(Page))


def test_what_a_listener_sends_is_refused_too(strict, stored):
    """B1: so is the statement of a listener, but not one of the row that the flush writes."""
    sent = [update(Page).values(n=7)]

    @event.listens_for(Page, "before_update")
    def before_update(mapper: Any, connection: Any, page: Any) -> None:
        for statement in sent:
            connection.execute(statement)

    try:
        changed(strict, Page)
        with pytest.raises(UnguardedStatement, match="Page"):
            strict.commit()
        strict.rollback()
        sent[:] = [update(Page).where(Page.id == 1).values(n=7)]
        changed(strict, Page)
        strict.commit()
    finally:
        event.remove(Page, "before_update", before_update)
    assert stored(Page, 1)["version"] == 2


def test_what_compares_the_version_or_only_adds_is_sent(strict, stored):
    """B1: forms that overwrite nothing pass: unchanged(), a version, rows by key, sums."""
    page = strict.get_one(Page, 1)
    strict.execute(update(Page).where(unchanged(page)).values(n=1))
    strict.execute(update(Page).where(Page.version == 2).values(n=2))
    strict.execute(update(Page), [{"id": 1, "version": 3, "n": 3}])
    bulk_update(strict, Page, [{"id": 1, "version": 4, "n": 4}])
    strict.execute(update(Page).values(n=Page.n + 1))
    strict.execute(update(Native).values(n=Native.n - 1))
    strict.execute(update(Page).values(n=6, version=Page.version + 1))
    strict.execute(text("UPDATE strict_pages SET n = n + 1, version = version + 1"))
    strict.execute(update(Compared).where(Compared.n == 0).values(n=1))
    strict.commit()
    assert stored(Page, 1)["n"] == 7
    assert stored(Page, 1)["version"] == 8
    assert [stored(one, 1)["n"] for one in (Native, Compared)] == [-1, 1]


def test_statements_of_other_tables_and_inserts_are_sent(strict, stored):
    strict.execute(update(Page).where(Page.version == 1).values(n=5))
    strict.execute(update(Page.__table__).values(n=Page.__table__.c.n + 1))
    strict.execute(update(Log).values(n=5))
    strict.execute(insert(Tag).values(id=9, n=5))
    strict.commit()
    assert [stored(Page, 1)["n"], stored(Log, 1)["n"], stored(Tag, 9)["n"]] == [6, 5, 5]


def test_other_sessions_go_on_writing_it(engine, rows, stored):
    loose = sessionmaker(engine)
    watch(loose)
    watch(sessionmaker(engine), strict=True)
    with loose.begin() as session:
        changed(session, Tag)
    assert stored(Tag, 1)["n"] == 1


@pytest.mark.parametrize("below", [False, True])
def test_a_second_watch_leaves_them_strict(engine, rows, stored, below):
    """B8: a second watch() of the sessions, or of a class below theirs, resets no option."""
    sessions = watch(sessionmaker(engine), strict=True)
    if below:
        sessions = sessionmaker(engine, class_=sessions.class_)
    with (
        pytest.raises(ConfigurationError, match="Tag"),
        watch(sessions, strict=False).begin() as session,
    ):
        changed(session, Tag)
    assert stored(Tag, 1)["n"] == 0


# -- units -----------------------------------------------------------------------------------------


def test_a_unit_can_be_strict(engine, rows):
    with pytest.raises(ConfigurationError, match="Tag"), UnitOfWork(engine, strict=True) as session:
        changed(session, Tag)
    with UnitOfWork(engine) as session:
        changed(session, Tag)


def test_a_unit_on_strict_sessions_is_strict(engine, rows):
    calls = []

    @unit_of_work(watch(sessionmaker(engine), strict=True), attempts=2)
    def work(session):
        calls.append(session)
        changed(session, Tag)

    with pytest.raises(ConfigurationError, match="Tag"):
        work()
    assert len(calls) == 1  # it is not run again


def test_a_unit_that_joins_cannot_become_strict(engine, rows):
    sessions = sessionmaker(engine)
    with (
        pytest.raises(ConfigurationError, match="strict=True"),
        UnitOfWork(sessions),
        UnitOfWork(sessions, strict=True),
    ):
        pass


@pytest.mark.anyio
async def test_an_async_session_is_strict(async_engine, async_store):
    async_store(Tag(id=1, n=0))

    async def work(session):
        (await session.get_one(Tag, 1)).n += 1

    async with watch(async_sessionmaker(async_engine), strict=True)() as session:
        await work(session)
        with pytest.raises(ConfigurationError, match="Tag"):
            await session.commit()
    with pytest.raises(ConfigurationError, match="Tag"):
        async with AsyncUnitOfWork(async_engine, strict=True) as session:
            await work(session)


@pytest.mark.parametrize("strict", [1, 0, "yes"])
def test_it_is_true_or_false(engine, strict):
    with pytest.raises(ConfigurationError, match="neither True nor False"):
        watch(sessionmaker(engine), strict=strict)
    with pytest.raises(ConfigurationError, match="neither True nor False"):
        UnitOfWork(engine, strict=strict)


# -- what it costs ---------------------------------------------------------------------------------


@pytest.mark.engines("sqlite-wal")
def test_who_does_not_ask_pays_nothing(engine, rows):
    """Of the files that are about it, no function is called."""

    def work():
        with watch(sessionmaker(engine))() as session:
            for model in (Page, Tag, Log):
                changed(session, model)
            session.execute(update(Tag).values(n=5))
            session.commit()

    work()
    called = calls_of(work)
    names = {"refuse_forgotten_rows", "refuse_forgotten_statement"}
    assert not [
        f for f, name in called if f.endswith("_watched/statements/strict_mode.py") or name in names
    ]


class Hero(Versioned, SQLModel, table=True):
    __tablename__ = "strict_heroes"
    id: int | None = Field(default=None, primary_key=True)
    n: int = 0


def test_exec_of_sqlmodel_is_strict_too(engine):
    """B1: it calls SQLAlchemy's execute() past that of the watched class."""
    SQLModel.metadata.create_all(engine, [SQLModel.metadata.tables["strict_heroes"]])
    sessions = watch(sessionmaker(engine, class_=SQLModelSession), strict=True)
    with sessions() as session:
        session.add(Hero(id=1))
        session.commit()
        for statement in (update(Hero).values(n=1), text("UPDATE strict_heroes SET n = 1")):
            with pytest.raises(UnguardedStatement):
                session.exec(statement)
        hero = session.exec(sqlmodel_select(Hero)).one()
        assert (hero.id, hero.n) == (1, 0)
        session.exec(update(Hero).where(unchanged(hero)).values(n=2))
        assert session.exec(sqlmodel_select(Hero.n, Hero.id)).all() == [(2, 1)]
    SQLModel.metadata.drop_all(engine, [SQLModel.metadata.tables["strict_heroes"]])


class Logged(SQLModelSession):
    """A program's own ``exec``, over SQLModel's."""

    def exec(self, statement, **options):
        self.info["sent"] = self.info.get("sent", 0) + 1
        return super().exec(statement, **options)


class Direct(SQLModelSession):
    """Another one, which calls SQLAlchemy's method."""

    def exec(self, statement, *, params=None, **options):
        self.info["sent"] = self.info.get("sent", 0) + 1
        return super().execute(statement, params, **options)


class Through(SQLModelSession):
    """One that calls the guarded method."""

    def exec(self, statement, *, params=None, **options):
        self.info["sent"] = self.info.get("sent", 0) + 1
        return self.execute(statement, params, **options)


@pytest.mark.usually("sqlite-wal")
@pytest.mark.parametrize("cls", [Logged, Direct, Through])
def test_an_exec_of_the_program_is_strict_too(engine, cls):
    """B1: an override of SQLModel's exec() is guarded like that, and is still called."""
    SQLModel.metadata.create_all(engine, [SQLModel.metadata.tables["strict_heroes"]])
    with watch(sessionmaker(engine, class_=cls), strict=True)() as session:
        session.add(Hero(id=1))
        session.commit()
        for statement in (update(Hero).values(n=1), text("UPDATE strict_heroes SET n = 1")):
            with pytest.raises(UnguardedStatement):
                session.exec(statement)
        assert "sent" not in session.info
        hero = session.get_one(Hero, 1)
        session.exec(update(Hero).where(unchanged(hero)).values(n=2))
        assert (hero.n, hero.version) == (2, 2)
        assert session.exec(sqlmodel_select(Hero.n), params={}).all() in ([2], [(2,)])
        assert session.info["sent"] == 2
        session.exec(update(Hero), params=[{"id": 1, "n": 4, "version": 2}])
        hero.n += 1
        session.commit()
        assert (hero.n, hero.version) == (5, 4)
    SQLModel.metadata.drop_all(engine, [SQLModel.metadata.tables["strict_heroes"]])
