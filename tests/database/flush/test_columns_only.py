"""A flush of changed columns alone is not planned, and writes what SQLAlchemy's plan would."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import (
    JSON,
    Column,
    ForeignKey,
    Integer,
    Numeric,
    Table,
    TypeDecorator,
    delete,
    event,
    func,
    insert,
    inspect,
    select,
)
from sqlalchemy.exc import InvalidRequestError, SAWarning
from sqlalchemy.ext.mutable import MutableDict
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Mapper,
    Session,
    UOWTransaction,
    column_property,
    make_transient,
    mapped_column,
    relationship,
    sessionmaker,
)
from sqlalchemy.orm.attributes import flag_modified
from sqlalchemy.orm.exc import StaleDataError

from optilock import ConcurrencyError, Versioned, merge_fields, touch, verify, watch
from optilock._watched.guard import connection as guarded_connections
from optilock._watched.guard import flush as guarded_flushes
from optilock.statements import no_bump
from optilock.tokens import Counter, Timestamp
from tests.support.models import key, own_base

Base = own_base()


class Author(Versioned, Base):
    __tablename__ = "co_authors"
    id: Mapped[int] = key()
    name: Mapped[str]
    posts: Mapped[list[Post]] = relationship(back_populates="author", order_by="Post.id")


class Post(Versioned, Base):
    __tablename__ = "co_posts"
    __version_ignore__ = ("seen",)
    id: Mapped[int] = key()
    title: Mapped[str | None]
    body: Mapped[str | None] = mapped_column("text")
    price: Mapped[Decimal | None] = mapped_column(Numeric(10, 2))
    day: Mapped[date | None]
    data: Mapped[Any | None] = mapped_column(JSON)
    seen: Mapped[int | None]
    author_id: Mapped[int | None] = mapped_column(ForeignKey("co_authors.id"))
    author: Mapped[Author | None] = relationship(back_populates="posts")


class Plain(Versioned, Base):
    """Its rows go in a flush together with those of another class."""

    __tablename__ = "co_plains"
    id: Mapped[int] = key()
    number: Mapped[int | None]


class Another(Versioned, Base):
    __tablename__ = "co_anothers"
    first: Mapped[int] = key()
    second: Mapped[int] = key()
    number: Mapped[int | None]


class Made(Versioned, Base):
    """Python makes one of its values when the row is written, and the database another."""

    __tablename__ = "co_mades"
    __version_ignore__ = ("seen",)
    id: Mapped[int] = key()
    seen: Mapped[int | None]
    number: Mapped[int | None]
    by_python: Mapped[int | None] = mapped_column(onupdate=lambda: 7)
    by_sql: Mapped[int | None] = mapped_column(onupdate=func.abs(-8))


#: What the program does while a version of :class:`Asked` is made.
_asked: list[Callable[[], object]] = []


def next_version(before: int | None) -> int:
    for ask in _asked:
        ask()
    return (before or 0) + 1


class Asked(Base):
    """The program may send something while a version is made."""

    __tablename__ = "co_asked"
    id: Mapped[int] = key()
    number: Mapped[int | None]
    other: Mapped[int | None]
    version: Mapped[int] = mapped_column()
    __mapper_args__ = {"version_id_col": version, "version_id_generator": next_version}


class Tree(Versioned, Base):
    __tablename__ = "co_trees"
    id: Mapped[int] = key()
    number: Mapped[int | None]
    above_id: Mapped[int | None] = mapped_column(ForeignKey("co_trees.id"))
    above: Mapped[Tree | None] = relationship(remote_side=id)


class Animal(Versioned, Base):
    __tablename__ = "co_animals"
    id: Mapped[int] = key()
    number: Mapped[int | None]
    kind: Mapped[str] = mapped_column(default="animal")
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "animal"}


class Eager(Versioned, Base):
    __tablename__ = "co_eagers"
    id: Mapped[int] = key()
    number: Mapped[int | None]
    by_sql: Mapped[int | None] = mapped_column(onupdate=func.abs(-8))
    __mapper_args__ = {"eager_defaults": True}


class Shown(Versioned, Base):
    """An attribute is made of a column, and read again after each write."""

    __tablename__ = "co_showns"
    id: Mapped[int] = key()
    number: Mapped[int | None]


Shown.twice = column_property(Shown.number * 2)


class Single(Versioned, Base):
    __tablename__ = "co_singles"
    id: Mapped[int] = key()
    number: Mapped[int | None]
    __mapper_args__ = {"batch": False}


class Mutable(Versioned, Base):
    __tablename__ = "co_mutables"
    id: Mapped[int] = key()
    data: Mapped[Any | None] = mapped_column(MutableDict.as_mutable(JSON))
    number: Mapped[int | None]


class Unordered:
    """Two of them cannot be sorted."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unordered) and other.number == self.number

    def __hash__(self) -> int:
        return hash(self.number)


class UnorderedType(TypeDecorator[Any]):
    impl = Integer
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> Any:
        return value.number if isinstance(value, Unordered) else value

    def process_result_value(self, value: Any, dialect: Any) -> Any:
        return Unordered(value)


class Keyed(Versioned, Base):
    __tablename__ = "co_keyeds"
    id: Mapped[Any] = mapped_column(UnorderedType, primary_key=True, autoincrement=False)
    number: Mapped[int | None]


class Hidden(Versioned, Base):
    """It has columns that are no attributes."""

    __table__ = Table(
        "co_hiddens",
        Base.metadata,
        Column("id", Integer, primary_key=True, autoincrement=False),
        Column("number", Integer),
        Column("version", Integer, nullable=False),
        Column("by_python", Integer, onupdate=lambda: 7),
        Column("by_sql", Integer, onupdate=func.abs(-8)),
    )
    __version_token__ = Counter()
    __mapper_args__ = {"exclude_properties": ["by_python", "by_sql"]}


class Above(Versioned, Base):
    """The class below it has a table of its own, and nothing says which row is of which class."""

    __tablename__ = "co_aboves"
    id: Mapped[int] = key()
    number: Mapped[int | None]


class Below(Above):
    __tablename__ = "co_belows"
    id: Mapped[int] = mapped_column(ForeignKey("co_aboves.id"), primary_key=True)
    more: Mapped[int | None]


class Timed(Versioned, Base):
    """The database makes the version."""

    __tablename__ = "co_timeds"
    __version_token__ = Timestamp()
    id: Mapped[int] = key()
    number: Mapped[int | None]


class Defaulted(Base):
    """SQLAlchemy reads the version back, though Python makes it."""

    __tablename__ = "co_defaulteds"
    id: Mapped[int] = key()
    number: Mapped[int | None]
    version: Mapped[int] = mapped_column(server_default="1")
    __mapper_args__ = {"version_id_col": version}


_left = Table(
    "co_lefts",
    Base.metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("version", Integer, nullable=False),
    Column("number", Integer),
)
_right = Table(
    "co_rights",
    Base.metadata,
    Column("left_id", ForeignKey("co_lefts.id"), primary_key=True),
    Column("more", Integer),
)


class Joined(Base):
    __table__ = _left.join(_right)
    __mapper_args__ = {"version_id_col": _left.c.version}


class Twice(Base):
    """Two columns of the table are one attribute."""

    __table__ = Table(
        "co_twices",
        Base.metadata,
        Column("id", Integer, primary_key=True, autoincrement=False),
        Column("version", Integer, nullable=False),
        Column("number", Integer),
        Column("again", Integer),
    )
    number = column_property(__table__.c.number, __table__.c.again)
    __mapper_args__ = {"version_id_col": __table__.c.version}


class Assigned(Base):
    """The application makes the version."""

    __tablename__ = "co_assigneds"
    id: Mapped[int] = key()
    number: Mapped[int | None]
    version: Mapped[int] = mapped_column(default=1)
    __mapper_args__ = {"version_id_col": version, "version_id_generator": False}


class Heard(Versioned, Base):
    __tablename__ = "co_heards"
    id: Mapped[int] = key()
    number: Mapped[int | None]


@event.listens_for(Heard, "before_update")
def before_update(mapper: Any, connection: Any, heard: Heard) -> None:
    heard.number = (heard.number or 0) + 100


#: Rows of a number, in classes that may all be planned for another reason, or not at all.
SIMPLE: list[Any] = [
    *(Plain, Made, Mutable, Hidden),
    *(Tree, Animal, Eager, Shown, Single, Above, Defaulted, Assigned, Twice, Heard, Timed),
]


@pytest.fixture
def sessions(engine: Any) -> Iterator[Any]:
    """Sessions that are watched."""
    Base.metadata.create_all(engine)
    made = watch(sessionmaker(engine))
    yield made
    Base.metadata.drop_all(engine)


def fill(made: Any) -> None:
    """Rows of every class; their flush makes the statements of the classes, too."""
    with made() as session, session.begin():
        for table in reversed(Base.metadata.sorted_tables):
            session.connection().execute(table.delete())
        session.add_all(Author(id=n, name=f"author {n}") for n in (1, 2))
        session.flush()
        session.add_all(Post(id=n, title=f"post {n}", author_id=1, data={}) for n in range(1, 6))
        session.add_all(model(id=n, number=0) for model in SIMPLE for n in (3, 1, 2))
        session.add_all(Another(first=n, second=1, number=0) for n in (2, 1))
        session.connection().execute(insert(_left).values(id=1, version=1, number=0))
        session.connection().execute(insert(_right).values(left_id=1))
        for number in (1, 2):  # which cannot be sorted
            session.add(Keyed(id=Unordered(number)))
            session.flush()


def rows(session: Session) -> dict[str, list[Any]]:
    found = {}
    for table in Base.metadata.sorted_tables:
        if table is Timed.__table__:
            continue  # it has another time each time
        query = select(table).order_by(*table.primary_key)
        found[table.name] = [tuple(row) for row in session.connection().execute(query)]
    return found


Change = Callable[[Session], None]


def held(session: Session, objects: list[Any]) -> list[str]:
    """What the objects hold, and whether it is changed."""
    return sorted(
        f"{type(one).__name__} {session.is_modified(one)} "
        + repr({name: vars(one)[name] for name in sorted(vars(one)) if name in columns(one)})
        for one in objects
    )


def columns(one: Any) -> set[str]:
    return set(one.__mapper__.column_attrs.keys())


def outcome(made: Any, change: Change) -> tuple[bool, list[Any]]:
    """Was the flush planned? And what was sent, what the objects hold, and what is stored."""
    fill(made)
    sent: list[Any] = []
    planned: list[Any] = []
    execute = UOWTransaction.execute

    def plan(self: Any) -> None:
        planned.append(self)
        execute(self)

    def before_cursor_execute(_: Any, cursor: Any, text: str, given: Any, *more: Any) -> None:
        sent.append((" ".join(text.split()), given))

    with pytest.MonkeyPatch.context() as patched, made(autoflush=False) as session:
        change(session)
        objects = list(session)
        patched.setattr(UOWTransaction, "execute", plan)
        bind, refused = session.get_bind(), None
        event.listen(bind, "before_cursor_execute", before_cursor_execute)
        try:
            session.flush()
        except ConcurrencyError as error:
            refused = [(entry.identity, entry.database) for entry in error.entries]
        finally:
            event.remove(bind, "before_cursor_execute", before_cursor_execute)
        return bool(planned), [repr(sent), refused, held(session, objects), rows(session)]


def compared(made: Any, change: Change, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Do all ways come to the same? And was the flush planned, unless it was told to be?"""
    planned, ours = outcome(made, change)
    monkeypatch.setattr(guarded_flushes, "_flush_changed_columns", lambda *_: False)
    planned_too, answered = outcome(made, change)
    assert planned_too is planned
    monkeypatch.setattr(guarded_flushes, "replace_execute", lambda uow: None)
    always, theirs = outcome(made, change)
    assert always
    assert ours == answered == theirs
    return planned


# -- flushes without a plan ------------------------------------------------------------------------


def one_column(session: Session) -> None:
    session.get_one(Post, 1).title = "new"


def several_columns(session: Session) -> None:
    post = session.get_one(Post, 1)
    post.body, post.title = "new", None
    post.price, post.day, post.data = Decimal("1.5"), date(2026, 1, 1), {"a": [1]}


def rows_in_another_order(session: Session) -> None:
    for number in (3, 1, 5, 2, 4):
        session.get_one(Post, number).title = "new"


def other_columns_in_each_row(session: Session) -> None:
    for number in range(1, 6):
        setattr(session.get_one(Post, number), "body" if number % 2 else "title", "new")


def what_is_set_back(session: Session) -> None:
    for number in (1, 2):
        session.get_one(Post, number).title = "new"
    session.get_one(Post, 2).title = "post 2"


def nothing_at_all(session: Session) -> None:
    post = session.get_one(Post, 1)
    post.title = "new"
    post.title = "post 1"


def what_was_not_read(session: Session) -> None:
    post = session.get_one(Post, 1)
    session.expire(post, ["title"])
    post.title = "new"


def a_key_that_was_not_read(session: Session) -> None:
    post = session.get_one(Post, 1)
    session.expire(post, ["id"])
    post.title = "new"


def a_version_that_was_not_read(session: Session) -> None:
    post = session.get_one(Post, 1)
    session.expire(post, ["version"])
    post.title = "new"


def a_copy(session: Session) -> None:
    post = session.get_one(Post, 1)
    make_transient(post)
    post.id, post.title = 9, "new"
    session.add(post)


def a_copy_that_is_not_changed(session: Session) -> None:
    post = session.get_one(Post, 1)
    make_transient(post)
    session.connection().execute(delete(Post.__table__).where(Post.id == 1))
    session.add(post)


def beside_an_item_of_no_session(session: Session) -> None:
    author = session.get_one(Author, 2)
    Post(id=9, author=author)
    author.name = "new"


def flagged(session: Session) -> None:
    flag_modified(session.get_one(Post, 1), "data")


def two_classes(session: Session) -> None:
    session.get_one(Plain, 1).number = 5
    session.get_one(Another, (2, 1)).number = 5
    session.get_one(Another, (1, 1)).number = 5


def made_at_the_write(session: Session) -> None:
    for number in (1, 2):
        session.get_one(Made, number).number = 5


def made_for_one_row(session: Session) -> None:
    made = session.get_one(Made, 1)
    made.number = 5
    made.by_python, made.by_python = 3, None


def made_and_not_moved(session: Session) -> None:
    session.get_one(Made, 1).seen = 5


def beside_what_is_loaded(session: Session) -> None:
    author = session.get_one(Author, 1)
    assert author.posts
    author.name = "new"


def only_ignored(session: Session) -> None:
    session.get_one(Post, 1).seen = 5


def also_ignored(session: Session) -> None:
    post = session.get_one(Post, 1)
    post.seen, post.title = 5, "new"


def in_no_bump(session: Session) -> None:
    session.info["block"] = block = no_bump(session)  # it ends when nobody has it
    block.__enter__()
    session.get_one(Post, 1).title = "new"


def twice(session: Session) -> None:
    for title in ("new", "newer"):
        session.get_one(Post, 1).title = title
        session.get_one(Post, 2).title = title
        session.flush()
    session.get_one(Post, 1).title = "newest"


def changed_in_place(session: Session) -> None:
    mutable = session.get_one(Mutable, 1)
    mutable.data = {"a": 1}
    session.flush()
    mutable.data["a"] = 2


def in_a_savepoint(session: Session) -> None:
    session.begin_nested()
    session.get_one(Post, 1).title = "new"


def other_rows_are_verified(session: Session) -> None:
    verify(session.get_one(Post, 2))
    session.get_one(Post, 1).title = "new"


@pytest.mark.parametrize(
    "change",
    [
        one_column,
        several_columns,
        rows_in_another_order,
        other_columns_in_each_row,
        what_is_set_back,
        nothing_at_all,
        what_was_not_read,
        flagged,
        two_classes,
        made_at_the_write,
        made_for_one_row,
        made_and_not_moved,
        beside_what_is_loaded,
        only_ignored,
        also_ignored,
        in_no_bump,
        twice,
        changed_in_place,
        in_a_savepoint,
        other_rows_are_verified,
    ],
)
@pytest.mark.tenth
def test_it_writes_what_the_plan_would(change, sessions, monkeypatch):
    assert not compared(sessions, change, monkeypatch)


@pytest.mark.needs("two-writers")
@pytest.mark.parametrize("on_conflict", [None, merge_fields])
def test_rows_of_others_conflict_as_they_do_with_a_plan(on_conflict, sessions, monkeypatch):
    watch(sessions, on_conflict=on_conflict)

    def conflict(session: Session) -> None:
        for number in (1, 2, 3):
            session.get_one(Post, number).title = "new"
        with sessions() as other, other.begin():
            other.get_one(Post, 2).body = "theirs"
            other.delete(other.get_one(Post, 3))

    assert not compared(sessions, conflict, monkeypatch)


# -- flushes that SQLAlchemy plans -----------------------------------------------------------------


def a_new_object(session: Session) -> None:
    session.get_one(Post, 1).title = "new"
    session.add(Plain(id=9))


def a_deleted_object(session: Session) -> None:
    session.get_one(Post, 1).title = "new"
    session.delete(session.get_one(Post, 2))


def another_parent(session: Session) -> None:
    session.get_one(Post, 1).author = session.get_one(Author, 2)


def another_item(session: Session) -> None:
    author = session.get_one(Author, 2)
    author.posts.append(session.get_one(Post, 1))


def another_key(session: Session) -> None:
    session.get_one(Plain, 1).id = 8


def an_expression(session: Session) -> None:
    session.get_one(Plain, 1).number = Plain.number + 1


def a_touched_row(session: Session) -> None:
    touch(session.get_one(Plain, 1))


def two_classes_with_a_relationship(session: Session) -> None:
    session.get_one(Post, 1).title = "new"
    session.get_one(Author, 1).name = "new"


def a_number_of(model: Any) -> Change:
    def change(session: Session) -> None:
        session.get_one(model, 1).number = 5

    change.__name__ = f"of_{model.__name__}"
    return change


@pytest.mark.parametrize(
    "change",
    [
        a_new_object,
        a_copy,
        a_copy_that_is_not_changed,
        a_deleted_object,
        a_key_that_was_not_read,
        another_parent,
        another_item,
        another_key,
        an_expression,
        a_touched_row,
        two_classes_with_a_relationship,
        *map(a_number_of, (*SIMPLE[4:-1], Joined)),
    ],
)
@pytest.mark.tenth
def test_what_is_more_is_planned(change, sessions, monkeypatch):
    assert compared(sessions, change, monkeypatch)


def test_a_version_that_was_expired_is_recalled(sessions, monkeypatch):
    assert not compared(sessions, a_version_that_was_not_read, monkeypatch)


def test_a_version_of_the_database_is_planned(sessions):
    planned, _ = outcome(sessions, a_number_of(Timed))
    assert planned


@pytest.mark.parametrize("name", ["before_update", "after_update"])
@pytest.mark.parametrize("target", [Plain, Mapper], ids=["of the class", "of all classes"])
def test_a_listener_that_comes_later_is_called(target, name, sessions, monkeypatch):
    heard = []

    def listener(mapper: Any, connection: Any, plain: Plain) -> None:
        heard.append(plain.id)

    assert not compared(sessions, a_number_of(Plain), monkeypatch)
    monkeypatch.undo()
    event.listen(target, name, listener)
    try:
        planned, _ = outcome(sessions, a_number_of(Plain))
    finally:
        event.remove(target, name, listener)

    assert planned
    assert heard == [1]


@pytest.mark.filterwarnings("ignore:Object of type")
def test_an_item_of_no_session_is_warned_of(sessions, monkeypatch):
    with pytest.warns(SAWarning, match="not in session, add operation along 'Author.posts'"):
        assert compared(sessions, beside_an_item_of_no_session, monkeypatch)


def test_columns_without_an_attribute_are_left_alone(sessions, monkeypatch):
    assert not compared(sessions, a_number_of(Hidden), monkeypatch)


def test_keys_without_an_order_are_refused_by_sqlalchemy(sessions):
    fill(sessions)
    with sessions() as session:
        for keyed in session.scalars(select(Keyed)).all():
            keyed.number = 5
        with pytest.raises(InvalidRequestError, match="Could not sort objects by primary key"):
            session.flush()


@pytest.mark.parametrize(
    ("change", "names"),
    [(made_for_one_row, ["by_python", "version"]), (made_and_not_moved, ["by_python"])],
)
def test_listeners_of_filled_in_values_hear_the_same(change, names, sessions, monkeypatch):
    heard: list[Any] = []

    def refresh_flush(made: Made, uow: Any, filled_in: Any) -> None:
        if 5 in (made.number, made.seen):  # it is not a new one
            changed = "by_python" in inspect(made).committed_state
            heard.append((made.id, sorted(filled_in), made.by_python, changed, type(uow)))

    event.listen(Made, "refresh_flush", refresh_flush)
    try:
        assert not compared(sessions, change, monkeypatch)
    finally:
        event.remove(Made, "refresh_flush", refresh_flush)

    assert heard == [(1, names, 7, False, UOWTransaction)] * 3


def test_the_first_flush_of_a_class_is_planned(engine, monkeypatch):
    """SQLAlchemy makes the statement; from then on it is there."""

    class OwnBase(DeclarativeBase):
        pass

    class Fresh(Versioned, OwnBase):
        __tablename__ = "co_fresh"
        id: Mapped[int] = key()
        number: Mapped[int | None]

    planned: list[Any] = []
    execute = UOWTransaction.execute
    OwnBase.metadata.create_all(engine)
    with watch(sessionmaker(engine))() as session, session.begin():
        session.execute(insert(Fresh.__table__).values(id=1, version=1))
        monkeypatch.setattr(UOWTransaction, "execute", lambda self: planned.append(execute(self)))
        for number, so_far in ((5, 1), (6, 1)):
            session.get_one(Fresh, 1).number = number
            session.flush()
            assert len(planned) == so_far
    OwnBase.metadata.drop_all(engine)


def test_a_row_that_nobody_answers_for_is_an_error(sessions, monkeypatch):
    """SQLAlchemy's own check, where something has uncovered the connection."""
    fill(sessions)
    with sessions() as session:
        plain = session.get_one(Plain, 1)
        with sessions() as other, other.begin():
            other.get_one(Plain, 1).number = 4
        plain.number = 5
        monkeypatch.setattr(guarded_flushes, "intercept", lambda flush, connection: None)
        with pytest.raises(StaleDataError, match=r"expected to update 1 row\(s\); 0 were"):
            session.flush()


# -- rows that join one that was deferred ----------------------------------------------------------


@pytest.fixture
def asked(sessions) -> Iterator[Any]:
    """A session with eight changed rows, of two sets of columns in turn."""
    with sessions() as session, session.begin():
        session.add_all(Asked(id=n, number=0, other=0) for n in range(1, 9))
    with sessions() as session:
        rows = session.scalars(select(Asked).order_by(Asked.id)).all()
        for n, row in enumerate(rows):
            row.number = 1
            if n % 2:
                row.other = 1
        yield session
    _asked.clear()


def routed(monkeypatch) -> list[Any]:
    """What is routed from now on."""
    found: list[Any] = []
    original = guarded_connections.route_statement

    def route_statement(flush, connection, native, statement, params, options):
        found.append(params)
        return original(flush, connection, native, statement, params, options)

    monkeypatch.setattr(guarded_connections, "route_statement", route_statement)
    return found


def numbers(sessions) -> list[Any]:
    with sessions() as session:
        found = select(Asked.number, Asked.other, Asked.version).order_by(Asked.id)
        return [tuple(row) for row in session.execute(found)]


WRITTEN = [(1, 0, 2), (1, 1, 2)] * 4


def test_rows_with_the_columns_of_a_deferred_one_are_not_routed(asked, sessions, monkeypatch):
    found = routed(monkeypatch)
    asked.commit()
    assert len(found) == 2
    assert numbers(sessions) == WRITTEN


def test_rows_are_written_where_the_program_sends_something_between_them(
    asked, sessions, monkeypatch
):
    """What is deferred is sent before it, and rows that follow may not join what was sent."""
    found = routed(monkeypatch)
    made = iter(range(8))
    _asked.append(lambda: next(made) == 4 and asked.connection().execute(select(1)))
    asked.commit()
    assert len(found) == 4
    assert numbers(sessions) == WRITTEN


def test_a_row_of_each_set_of_columns_conflicts_among_those_that_joined(asked, sessions):
    with sessions() as other, other.begin():
        for n in (5, 6):
            other.get_one(Asked, n).number = 7
    with pytest.raises(ConcurrencyError) as caught:
        asked.commit()
    assert sorted(entry.identity for entry in caught.value.entries) == [(5,), (6,)]


def test_each_row_is_routed_in_a_block_that_keeps_versions(asked, sessions, monkeypatch):
    asked.commit()
    found = routed(monkeypatch)
    with no_bump(asked, asked.get_one(Asked, 8)):
        for n in range(1, 9):
            asked.get_one(Asked, n).number = 2
        asked.flush()
    asked.commit()
    assert len(found) == 8
    assert numbers(sessions) == [(2, other, 3) for _, other, _ in WRITTEN[:-1]] + [(2, 1, 2)]
