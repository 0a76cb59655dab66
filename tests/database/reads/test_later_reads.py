"""What is read later of a row that was read with a lock is of the same row.

On MariaDB at REPEATABLE READ a plain read would show the row of the transaction's snapshot, beside
the version of the newest one: an edit of that would be a lost update which no check sees.
"""

from __future__ import annotations

import pytest
from sqlalchemy import ForeignKey, String, select, text
from sqlalchemy.orm import (
    Mapped,
    Session,
    deferred,
    immediateload,
    joinedload,
    load_only,
    mapped_column,
    relationship,
    selectin_polymorphic,
    selectinload,
    sessionmaker,
    undefer,
)

from optilock import (
    ConcurrencyError,
    Versioned,
    client_wins,
    merge_fields,
    store_wins,
    verify,
    watch,
)
from optilock.testing import count_statements
from tests.support.models import key, own_base

Base = own_base()


class Article(Versioned, Base):
    __tablename__ = "later_articles"
    id: Mapped[int] = key()
    title: Mapped[str]
    number: Mapped[int] = mapped_column(default=0)
    body: Mapped[str] = deferred(mapped_column(String(60)))


class Animal(Versioned, Base):
    __tablename__ = "later_animals"
    id: Mapped[int] = key()
    kind: Mapped[str]
    name: Mapped[str]
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "animal"}


class Dog(Animal):
    __tablename__ = "later_dogs"
    id: Mapped[int] = mapped_column(ForeignKey("later_animals.id"), primary_key=True)
    tricks: Mapped[str]
    __mapper_args__ = {"polymorphic_identity": "dog"}


class Native(Base):
    __tablename__ = "later_natives"
    id: Mapped[int] = key()
    body: Mapped[str] = deferred(mapped_column(String(60)))
    revision: Mapped[int] = mapped_column()
    __mapper_args__ = {"version_id_col": revision}


class Order(Versioned, Base):
    __tablename__ = "later_orders"
    __version_root_of__ = ("lines",)
    id: Mapped[int] = key()
    lines: Mapped[list[Line]] = relationship(order_by="Line.id")


class Line(Base):
    """It has no version: that of its root stands for it."""

    __tablename__ = "later_lines"
    id: Mapped[int] = key()
    text: Mapped[str]
    order_id: Mapped[int] = mapped_column(ForeignKey("later_orders.id"))


@pytest.fixture
def old(store, watched, other):
    """Our session has taken its snapshot; then somebody else has changed every row."""
    store(
        Article(id=1, title="old", body="old"),
        Article(id=2, title="old", body="old"),
        Dog(id=1, name="old", tricks="old"),
        Native(id=1, body="old"),
    )

    def old(**options):
        session = watched(**options)
        session.execute(select(Article.id)).all()
        other(Article, 1, title="theirs", body="theirs")
        other(Dog, 1, name="theirs", tricks="theirs")
        other(Native, 1, body="theirs")
        return session

    return old


def locks(sent):
    return [one for one in sent.statements if "LOCK IN" in str(one) or "FOR " in str(one)]


def get(session, cls):
    return session.get_one(cls, 1, with_for_update=True)


LOCKING = {
    "get": get,
    "shared": lambda s, cls: s.get_one(cls, 1, with_for_update={"read": True}),
    "select": lambda s, cls: s.scalars(select(cls).where(cls.id == 1).with_for_update()).one(),
    "query": lambda s, cls: s.query(cls).where(cls.id == 1).with_for_update().one(),
    "query.get": lambda s, cls: s.query(cls).with_for_update().get(1),
    "from_statement": lambda s, cls: s.scalars(
        select(cls).from_statement(select(cls).where(cls.id == 1).with_for_update())
    ).one(),
    "load_only": lambda s, cls: s.scalars(
        select(cls).where(cls.id == 1).options(load_only(cls.id)).with_for_update()
    ).one(),
}


@pytest.mark.parametrize("lock", LOCKING)
@pytest.mark.parametrize("name", ["title", "body"])
@pytest.mark.filterwarnings("ignore:The Query.get")
def test_what_is_loaded_later_belongs_to_the_locked_row(old, stored, lock, name):
    session = old()
    article = LOCKING[lock](session, Article)
    setattr(article, name, getattr(article, name) + "+mine")
    session.commit()
    assert stored(Article, 1)[name] == "theirs+mine"


@pytest.mark.needs("row-locks")
def test_a_locking_read_in_sql_text_is_one(old, stored):
    session = old()
    query = select(Article).from_statement(
        text("SELECT id, title, number, version FROM later_articles WHERE id = 1 FOR UPDATE")
    )
    article = session.scalars(query).one()
    article.body += "+mine"
    session.commit()
    assert stored(Article, 1)["body"] == "theirs+mine"


def test_columns_of_a_joined_child_belong_to_the_locked_row(old, stored):
    session = old()
    dog = session.scalars(select(Animal).with_for_update()).one()
    assert (dog.name, dog.tricks) == ("theirs", "theirs")
    dog.tricks += "+mine"
    session.commit()
    assert stored(Dog, 1)["tricks"] == "theirs+mine"


def test_so_do_those_that_selectin_polymorphic_adds(old, engine):
    session = old()
    query = select(Animal).options(selectin_polymorphic(Animal, [Dog])).with_for_update()
    with count_statements(engine) as sent:
        dog = session.scalars(query).one()
        assert dog.tricks == "theirs"
    assert sent.count == 2


def test_classes_with_only_a_version_id_col_too(old, stored):
    session = old()
    native = get(session, Native)
    native.body += "+mine"
    session.commit()
    assert stored(Native, 1)["body"] == "theirs+mine"


@pytest.mark.parametrize(
    "again",
    [
        lambda session, obj: session.expire(obj, ["title"]),
        lambda session, obj: session.expire(obj),
        lambda session, obj: session.expire_all(),
        lambda session, obj: session.refresh(obj, ["title"]),
        lambda session, obj: session.refresh(obj),
        lambda session, obj: session.refresh(obj, ["title", "body"], with_for_update=True),
    ],
    ids=["expire one", "expire", "expire_all", "refresh one", "refresh", "lock again"],
)
def test_what_is_read_again_belongs_to_it(old, stored, again):
    session = old()
    article = get(session, Article)
    again(session, article)
    assert (article.title, article.body, article.version) == ("theirs", "theirs", 2)
    article.title += "+mine"
    session.commit()
    assert stored(Article, 1)["title"] == "theirs+mine"


def test_what_a_plain_query_fills_in_is_read_again_with_the_lock(old, stored):
    session = old()
    article = get(session, Article)
    session.scalars(select(Article).options(undefer(Article.body))).all()
    article.body += "+mine"
    session.commit()
    assert stored(Article, 1)["body"] == "theirs+mine"


@pytest.mark.engines("mariadb")
def test_a_plain_read_that_replaces_all_brings_the_old_version_as_well(old):
    session = old()
    article = get(session, Article)
    session.scalars(select(Article).execution_options(populate_existing=True)).all()
    article.body += "+mine"
    with pytest.raises(ConcurrencyError):
        session.commit()


def test_a_row_that_was_read_without_a_lock_is_read_on_without_one(old, engine):
    session = old()
    get(session, Article)
    plain = session.get_one(Article, 2)
    with count_statements(engine) as sent:
        assert plain.body == "old"
    assert not locks(sent)


def test_the_lock_ends_with_the_transaction(old, engine):
    session = old()
    article = get(session, Article)
    session.commit()
    with count_statements(engine) as sent:
        assert article.title == "theirs"
    assert not locks(sent)


def test_a_verified_row_is_the_one_that_was_read(old, stored):
    session = old()
    article = get(session, Article)
    verify(article)
    assert article.body == "theirs"
    session.commit()


@pytest.mark.needs("resolves-in-place")
@pytest.mark.parametrize("resolver", [store_wins, client_wins, merge_fields])
def test_an_object_that_a_resolver_has_settled_reads_on_in_the_same_row(
    store, watched, other, stored, resolver
):
    store(Article(id=1, title="old", body="old"), Dog(id=1, name="old", tricks="old"))
    session = watched(on_conflict=resolver)
    article = session.get_one(Article, 1)
    dog = session.scalars(select(Animal)).one()
    other(Article, 1, body="theirs")
    other(Dog, 1, tricks="theirs")
    article.number = 7
    dog.name = "mine"
    session.flush()
    article.body += "+mine"
    dog.tricks += "+mine"
    session.commit()
    assert stored(Article, 1)["body"] == "theirs+mine"
    assert stored(Dog, 1)["tricks"] == "theirs+mine"


@pytest.mark.needs("resolves-in-place")
def test_a_settled_object_is_not_filled_again_from_an_older_snapshot(store, watched, other, stored):
    """The older version would conflict, and ``store_wins`` drop the edit without a word."""
    store(Article(id=1, title="old", body="old"))
    session = watched(on_conflict=store_wins)
    article = session.get_one(Article, 1)
    other(Article, 1, title="theirs")
    article.number = 7
    session.flush()
    session.get_one(Article, 1, populate_existing=True)
    article.title += "+mine"
    session.commit()
    assert stored(Article, 1)["title"] == "theirs+mine"


@pytest.mark.needs("resolves-in-place")
def test_so_does_one_whose_delete_was_settled(store, watched, other, stored):
    store(Dog(id=1, name="old", tricks="old"))
    session = watched(on_conflict=store_wins)
    dog = session.scalars(select(Animal)).one()
    other(Dog, 1, name="theirs", tricks="theirs")
    session.delete(dog)
    session.flush()
    dog.tricks += "+mine"
    session.commit()
    assert stored(Dog, 1)["tricks"] == "theirs+mine"


@pytest.mark.parametrize(
    "load",
    [
        lambda s: s.get_one(Order, 1, with_for_update=True),
        lambda s: s.get_one(Order, 1, with_for_update=True, options=[selectinload(Order.lines)]),
        lambda s: s.get_one(
            Order, 1, with_for_update=True, options=[joinedload(Order.lines, innerjoin=True)]
        ),
        lambda s: s.get_one(Order, 1, with_for_update=True, options=[immediateload(Order.lines)]),
    ],
    ids=["lazy", "selectinload", "joinedload", "immediateload"],
)
def test_the_parts_of_a_locked_aggregate_are_those_of_its_version(
    store, watched, engine, stored, load
):
    store(Order(id=1, lines=[Line(id=1, text="old")]))
    session = watched()
    session.execute(select(Order.id)).all()
    with watch(sessionmaker(engine))() as other:
        order = other.get_one(Order, 1)
        order.lines[0].text = "theirs"
        order.lines.append(Line(id=2, text="theirs"))
        other.commit()
    order = load(session)
    assert [line.text for line in order.lines] == ["theirs", "theirs"]
    order.lines[0].text += "+mine"
    session.commit()
    assert stored(Line, 1)["text"] == "theirs+mine"


@pytest.mark.anyio
async def test_async_sessions_read_on_in_the_locked_row_too(
    async_database, async_engine, async_store
):
    from sqlalchemy.ext.asyncio import async_sessionmaker

    engine = async_database.engine()
    async_store(Article(id=1, title="old", body="old"))
    async with watch(async_sessionmaker(async_engine))() as session:
        (await session.execute(select(Article.id))).all()
        with Session(engine) as other, other.begin():
            other.get_one(Article, 1).body = "theirs"
        article = await session.get_one(Article, 1, with_for_update=True)
        await session.refresh(article, ["body"])
        article.body += "+mine"
        await session.commit()
    with Session(engine) as other:
        assert other.get_one(Article, 1).body == "theirs+mine"
    engine.dispose()
