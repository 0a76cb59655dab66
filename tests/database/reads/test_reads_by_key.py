"""``get()`` of a watched session finds what SQLAlchemy's finds, by the same SQL."""

from __future__ import annotations

import pytest
from sqlalchemy import ForeignKey, event, select
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.orm import (
    Mapped,
    Session,
    loading,
    mapped_column,
    relationship,
    sessionmaker,
    with_loader_criteria,
)

from optilock import ConcurrencyError, UnitOfWork, Versioned, watch
from optilock.testing import count_statements
from tests.support.models import key, own_base

Base = own_base()


class Author(Versioned, Base):
    __tablename__ = "by_key_authors"
    id: Mapped[int] = key()
    name: Mapped[str]
    books: Mapped[list[Book]] = relationship(lazy="joined", order_by="Book.id")


class Book(Versioned, Base):
    __tablename__ = "by_key_books"
    id: Mapped[int] = key()
    author_id: Mapped[int] = mapped_column(ForeignKey("by_key_authors.id"))


class Place(Versioned, Base):
    __tablename__ = "by_key_places"
    row: Mapped[str] = mapped_column(primary_key=True)
    number: Mapped[int] = key()


class Animal(Versioned, Base):
    __tablename__ = "by_key_animals"
    id: Mapped[int] = key()
    kind: Mapped[str]
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "animal"}


class Dog(Animal):
    __tablename__ = "by_key_dogs"
    id: Mapped[int] = mapped_column(ForeignKey("by_key_animals.id"), primary_key=True)
    barks: Mapped[str]
    __mapper_args__ = {"polymorphic_identity": "dog"}


class Cat(Animal):
    __mapper_args__ = {"polymorphic_identity": "cat"}


class Unversioned(Base):
    __tablename__ = "by_key_unversioned"
    id: Mapped[int] = key()


class Always(Versioned, Base):
    __tablename__ = "by_key_always"
    id: Mapped[int] = key()
    name: Mapped[str]
    __mapper_args__ = {"always_refresh": True}


ASKED = [
    (Author, 1),
    (Author, (1,)),
    (Author, [1]),
    (Author, {"id": 1}),
    (Author, 9),
    (Place, ("A", 1)),
    (Place, ("A", 2)),
    (Place, {"row": "A", "number": 1}),
    (Animal, 1),
    (Animal, 2),
    (Dog, 1),
    (Dog, 2),
    (Cat, 1),
    (Cat, 2),
    (Unversioned, 1),
    (Always, 1),
]


@pytest.fixture(autouse=True)
def rows(store):
    store(Author(id=1, name="Ada", books=[Book(id=1), Book(id=2)]))
    store(Place(row="A", number=1), Dog(id=1, barks="loudly"), Cat(id=2))
    store(Unversioned(id=1), Always(id=1, name="one"))


@pytest.fixture
def sessions(engine):
    return watch(sessionmaker(engine))


def found(session, engine, model, ident):
    """What ``get()`` returns, and what it has sent."""
    with count_statements(engine) as sent:
        obj = session.get(model, ident)
    values = None if obj is None else {n: v for n, v in vars(obj).items() if n[0] != "_"}
    books = [book.id for book in values.pop("books", ())] if values else None
    return type(obj), values, books, [one.text for one in sent.statements]


@pytest.mark.parametrize(("model", "ident"), ASKED)
def test_it_finds_the_same_by_the_same_statement(sessions, engine, model, ident):
    with Session(engine) as session:
        plain = found(session, engine, model, ident)
    with sessions() as session:
        assert found(session, engine, model, ident) == plain
    with UnitOfWork(sessions) as session:
        assert found(session, engine, model, ident) == plain


@pytest.mark.parametrize(("model", "ident"), ASKED)
def test_it_finds_the_same_in_a_session_that_has_the_object(sessions, engine, model, ident):
    def twice(session):
        keep = session.get(Animal, 1), session.get(Animal, 2), session.get(Author, 1)
        return found(session, engine, model, ident), len(keep)

    with Session(engine) as session:
        plain = twice(session)
    with sessions() as session:
        assert twice(session) == plain


def test_an_expired_object_is_read_anew(sessions, engine):
    with sessions() as session:
        author = session.get(Author, 1)
        session.expire(author)
        _, values, _, sent = found(session, engine, Author, 1)
        assert (values["name"], len(sent)) == ("Ada", 1)


def test_what_is_pending_is_flushed_before(sessions):
    with sessions() as session:
        session.add(Unversioned(id=7))
        assert session.get(Unversioned, 7).id == 7


def test_options_are_kept(sessions, engine):
    criteria = with_loader_criteria(Author, Author.name == "Eve")
    with sessions() as session:
        assert session.get(Author, 1, options=[criteria]) is None
        author = session.get(Author, 1)
        with Session(engine) as other, other.begin():
            other.get(Author, 1).name = "Bob"
        assert session.get(Author, 1) is author
        assert author.name == "Ada"
        if engine.dialect.name != "mysql":  # where a transaction goes on with its snapshot
            assert session.get(Author, 1, populate_existing=True).name == "Bob"


def test_criteria_of_the_session_are_kept(sessions):
    @event.listens_for(sessions, "do_orm_execute")
    def only_eve(asked):
        asked.statement = asked.statement.options(
            with_loader_criteria(Author, lambda cls: cls.name == "Eve")
        )

    with sessions() as session:
        assert session.get(Author, 1) is None


def test_what_a_cache_gives_is_taken_as_it_is(sessions):
    """Nobody knows any more that a collection was loaded by a join."""
    frozen = []

    @event.listens_for(sessions, "do_orm_execute")
    def from_the_cache(asked):
        if not frozen:
            frozen.append(asked.invoke_statement().freeze())
        merged = loading.merge_frozen_result(asked.session, asked.statement, frozen[0], load=False)
        return merged()

    for _ in range(2):
        with sessions() as session:
            author = session.get(Author, 1)
            assert [book.id for book in author.books] == [1, 2]


@pytest.mark.parametrize("ident", [(1, 2), (), ("A",)])
def test_a_key_of_another_length_is_refused_as_before(sessions, engine, ident):
    with Session(engine) as session, pytest.raises(InvalidRequestError) as plain:
        session.get(Place if ident == ("A",) else Author, ident)
    with sessions() as session, pytest.raises(InvalidRequestError) as ours:
        session.get(Place if ident == ("A",) else Author, ident)
    assert str(ours.value) == str(plain.value)


def test_a_session_with_a_get_of_its_own_keeps_it(engine):
    class Counted(Session):
        asked = 0

        def get(self, *args, **options):
            Counted.asked += 1
            return super().get(*args, **options)

    with watch(sessionmaker(engine, class_=Counted))() as session:
        assert session.get(Author, 1).name == "Ada"
    assert Counted.asked == 1


@pytest.mark.parametrize("below", [False, True], ids=["watched itself", "below a watched class"])
@pytest.mark.parametrize("strategy", ["optimistic", "pessimistic"])
def test_a_session_with_an_execute_of_its_own_is_asked(engine, strategy, below):
    asked = []

    class Asking(Session):
        def execute(self, statement, *args, **options):
            asked.append(statement)
            return super().execute(statement, *args, **options)

    class Plain(Session):
        pass

    if below:
        watch(Plain)
        Asking.__bases__ = (Plain,)
    with UnitOfWork(sessionmaker(engine, class_=Asking), strategy=strategy) as session:
        assert session.get(Author, 1).id == 1
    assert len(asked) == 1


def test_get_one_finds_it_too(sessions, engine):
    with sessions() as session, count_statements(engine) as sent:
        assert session.get_one(Author, 1).name == "Ada"
        assert len(sent.statements) == 1


def test_the_query_is_made_once(sessions):
    """A listener sees the statement; SQLAlchemy's own would be another one each time."""
    seen = []
    event.listen(sessions, "do_orm_execute", lambda asked: seen.append(asked.statement))
    for _ in range(2):
        with sessions() as session:
            session.get(Author, 1)
    assert seen[0] is seen[1]


def test_it_is_the_row_that_is_guarded(sessions, engine):
    with pytest.raises(ConcurrencyError) as raised, sessions() as session:
        author = session.get(Author, 1)
        with Session(engine) as other, other.begin():
            other.get(Author, 1).name = "Bob"
        author.name = "Eve"
        session.commit()
    (entry,) = raised.value.entries
    assert (entry.original["name"], entry.database["name"]) == ("Ada", "Bob")
    with Session(engine) as session:
        assert session.scalars(select(Author.name)).unique().all() == ["Bob"]
