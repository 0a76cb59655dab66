"""What is used of SQLAlchemy without its being documented is there, and means the same."""

from __future__ import annotations

import ast
import functools
import inspect as inspect_python
import re
import sqlite3
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest
from sqlalchemy import (
    Column,
    ForeignKey,
    Integer,
    LargeBinary,
    TypeDecorator,
    create_engine,
    delete,
    event,
    insert,
    inspect,
    select,
    text,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Mapper,
    Session,
    aliased,
    composite,
    defer,
    joinedload,
    load_only,
    mapped_column,
    relationship,
    undefer,
)
from sqlalchemy.orm.attributes import instance_state
from sqlalchemy.orm.exc import UnmappedClassError
from sqlalchemy.sql import func, lambda_stmt

import optilock
from optilock import ConfigurationError, Versioned
from optilock._undocumented import check, connections, flushes, mappers, statements
from optilock._undocumented.connections import (
    default_in_ddl,
    doubles_percents,
    has_begin_listeners,
    has_bind_expression,
    is_raised_while_connecting,
    json_writer,
    level_on_connect,
    reads_json_itself,
)
from optilock._undocumented.flushes import (
    classes_to_flush,
    expire_with_savepoint,
    is_flushing,
    last_deleted_state,
    mark_deleted,
    nested_transaction,
    run_before_planning,
    states_deleted_since,
    states_expired_with,
    states_inserted_by,
    states_marked_deleted,
    transaction_of,
    unmark_deleted,
)
from optilock._undocumented.mappers import (
    AskingListeners,
    always_load,
    ask_listeners,
    compare_by_key,
    expire_attribute,
    is_child,
    keep_with_mapping,
    key_of_mapping,
    leave_out,
    mappers_in,
    mappers_meant,
    mark_changed,
    mark_unchanged,
    names_in_composite,
    names_left_out,
    registries,
)
from optilock._undocumented.statements import (
    add_shared_lock,
    cache_key_of,
    criteria_of,
    is_of_the_orm,
    is_ordered,
    is_server_side,
    loader_options_of,
    locks_rows,
    may_repeat_objects,
    names_given_by,
    names_set_by,
    next_run,
    prefixes_of,
    resolve_lambda,
    returns_values,
    run_of,
    state_lazily_loaded_by,
    state_refreshed_by,
    subject_of,
    upsert_of,
    values_of,
)
from optilock._watched.guard.self_test import find_faults


class Base(DeclarativeBase):
    pass


class Page(Base):
    __tablename__ = "pages"
    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str]
    views: Mapped[int] = mapped_column(default=0)


class Book(Base):
    __tablename__ = "books"
    id: Mapped[int] = mapped_column(primary_key=True)
    notes: Mapped[list[Note]] = relationship()


class Note(Base):
    __tablename__ = "notes"
    id: Mapped[int] = mapped_column(primary_key=True)
    book_id: Mapped[int] = mapped_column(ForeignKey("books.id"))


class Hashed(TypeDecorator[bytes]):
    impl = LargeBinary
    cache_ok = True

    def bind_expression(self, value):
        return func.hash(value)


@pytest.fixture
def session():
    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add(Page(id=1, title="Home"))
        session.commit()
        yield session
    engine.dispose()


@contextmanager
def capture(engine):
    """The statements that are sent."""
    sent = []
    event.listen(engine, "before_cursor_execute", lambda *args: sent.append(args[2]))
    yield sent


def test_nothing_else_of_it_is_used():
    """A name of SQLAlchemy that begins with an underscore stands in this one folder."""
    ours, found = {"_optilock"}, set()
    for path in Path(optilock.__file__).parent.rglob("*.py"):
        if path.parent.name == "_undocumented":
            continue
        tree = ast.parse(path.read_text())
        own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
                of_self = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
                known = node.attr in ours or node.attr in own or node.attr.startswith("__")
                if not of_self and not known:
                    found.add(f"{path.name}: {node.attr}")
    assert found <= {"counting.py: _statements", "autogenerate.py: _repr_type"}  # Alembic's


def test_an_error_of_a_pool_that_was_making_a_connection_is_known():
    def refuse():
        raise OSError

    with pytest.raises(OSError) as of_a_pool:  # noqa: PT011
        create_engine("sqlite://", creator=refuse).connect()
    assert is_raised_while_connecting(of_a_pool.value)
    with pytest.raises(OSError) as of_another:  # noqa: PT011
        refuse()
    assert not is_raised_while_connecting(of_another.value)


def test_an_update_by_key_compares_an_attribute_and_leaves_it():
    """A3: also once a subclass was mapped; whoever asks may refuse."""

    class Own(DeclarativeBase):
        pass

    class Shape(Own):
        __tablename__ = "shapes"
        id: Mapped[int] = mapped_column(primary_key=True)
        name: Mapped[str]
        edges: Mapped[int] = mapped_column()
        __mapper_args__ = {"version_id_col": edges, "version_id_generator": False}

    asked = []
    compare_by_key(inspect(Shape), "edges", Shape.__table__, lambda: asked.append("asked"))
    type("Circle", (Shape,), {})
    engine = create_engine("sqlite://")
    Own.metadata.create_all(engine)
    with Session(engine) as session, capture(engine) as sent:
        session.add(Shape(id=1, name="a", edges=3))
        session.commit()
        session.bulk_update_mappings(Shape, [{"id": 1, "edges": 3, "name": "b"}])
    assert "SET name=? WHERE shapes.id = ? AND shapes.edges = ?" in sent[-1]
    assert asked
    engine.dispose()


def test_a_savepoint_that_is_undone_expires_what_a_flush_has_looked_at(session):
    """A11: also an object whose edit has changed nothing, so that no row was written."""
    page = session.get_one(Page, 1)
    page.views = 7
    session.flush()
    savepoint = session.begin_nested()
    assert inspect(page) not in states_expired_with(savepoint)
    page.views = 7
    session.flush()
    assert inspect(page) in states_expired_with(savepoint)
    savepoint.rollback()
    assert "views" not in page.__dict__


def test_what_is_kept_with_a_mapping_goes_when_it_changes():
    class Own(DeclarativeBase):
        pass

    class Shape(Own):
        __tablename__ = "shapes"
        id: Mapped[int] = mapped_column(primary_key=True)

    mapper = Shape.__mapper__
    for change in (
        lambda: setattr(Shape, "colour", mapped_column(Integer)),
        lambda: type("Circle", (Shape,), {}),
    ):
        Own.registry.configure()
        assert keep_with_mapping(mapper, "optilock_test", 1) == 1
        assert mapper.__dict__["optilock_test"] == 1
        change()
        assert "optilock_test" not in mapper.__dict__


def test_a_change_can_be_told_without_events(session):
    page = session.get_one(Page, 1)
    state = instance_state(page)
    mark_changed(state, "title", "Home")
    page.__dict__["title"] = "Start"
    assert page in session.dirty
    session.flush()
    assert session.scalar(select(Page.title)) == "Start"


def test_an_object_can_be_taken_as_stored_or_read_again(session):
    page = session.get_one(Page, 1)
    page.title = "Start"
    mark_unchanged(instance_state(page))
    assert page not in session.dirty
    expire_attribute(instance_state(page), "title")
    assert page.title == "Home"


def test_a_savepoint_can_be_told_what_to_expire(session):
    page = session.get_one(Page, 1)
    savepoint = session.begin_nested()
    expire_with_savepoint(session, [instance_state(page)])
    savepoint.rollback()
    assert "title" not in page.__dict__


def test_a_child_tells_whether_it_has_a_parent(session):
    book, note = Book(notes=[Note()]), Note()
    state = instance_state(book.notes[0])
    assert is_child(state, Book, "notes") is True
    assert is_child(instance_state(note), Book, "notes") is None
    book.notes.clear()
    assert is_child(state, Book, "notes") is False


def test_a_session_tells_what_it_deletes_and_whether_it_flushes(session):
    page = session.get_one(Page, 1)
    assert not states_marked_deleted(session)
    session.delete(page)
    assert instance_state(page) in states_marked_deleted(session)
    assert is_flushing(session) is False
    unmark_deleted(session, instance_state(page))
    assert page not in session.deleted
    mark_deleted(session, instance_state(page), page)
    assert list(session.deleted) == [page]
    session.flush()
    assert session.get(Page, 1) is None


@pytest.mark.parametrize("found", ["new", "changed", "deleted"])
def test_a_step_comes_after_all_listeners_and_before_a_transaction_of_the_flush(session, found):
    """A9: what it changes is flushed, and where it raises nothing has begun."""
    page, other = Page(id=2, title="b"), session.get_one(Page, 1)
    other.title, calls, begun = "a", [], []
    session.add(page)
    session.flush()
    event.listen(session, "after_transaction_create", lambda *_: begun.append("flush"))

    def step(session, uow, objects):
        calls.append((objects, begun[:], dict(uow.states)))
        if len(calls) == 1:
            raise LookupError
        other.title = "by the step"

    event.listen(session, "before_flush", lambda *args: run_before_planning(*args, step))
    if found == "new":
        session.add(Book(id=1))
    elif found == "changed":
        page.title = "c"
    else:
        session.delete(page)
    with pytest.raises(LookupError):
        session.flush()
    assert session.is_active
    assert (page in session.deleted) is (found == "deleted")
    session.flush()
    assert calls == [(None, [], {})] * 2
    assert begun == ["flush"]
    assert other not in session.dirty
    assert session.scalar(select(Page.title).where(Page.id == 1)) == "by the step"


class Asked(AskingListeners):
    __slots__ = ()
    answer = False
    times = 0

    @staticmethod
    def ask(name, connection, state):
        Asked.times += 1
        return Asked.answer


@pytest.mark.parametrize("target", [Page, Mapper])
def test_listeners_can_be_asked_for_first(session, target):
    """The collection stays the same object, and its listeners can be removed."""
    heard = []

    def listener(mapper, connection, page):
        heard.append(page.title)

    ask_listeners(Page.__mapper__, "after_delete", Asked)  # there is none
    assert type(Page.__mapper__.dispatch.after_delete) is not Asked
    event.listen(target, "after_update", listener)
    ask_listeners(Page.__mapper__, "after_update", Asked)
    page = session.get_one(Page, 1)
    for title, Asked.answer in {"no": False, "yes": True}.items():
        page.title = title
        session.flush()
    event.remove(target, "after_update", listener)
    page.title, Asked.times = "removed", 0
    session.flush()

    assert heard == ["yes"]
    assert not Asked.times
    assert not Page.__mapper__.dispatch.after_update


def test_the_transactions_of_sessions_and_connections_are_known(session):
    connection = session.connection()
    assert nested_transaction(session) is session.get_nested_transaction() is None
    assert transaction_of(connection) is connection.get_transaction() is not None
    with session.begin_nested() as nested:
        assert nested_transaction(session) is nested
        inner = nested_transaction(session.connection())
        assert inner is connection.get_nested_transaction() is not None


def test_the_classes_of_what_a_flush_writes_are_known(session):
    assert classes_to_flush(session) == set()
    session.get_one(Page, 1).title = "Start"
    session.add(Book(id=1))
    assert {mapper.class_ for mapper in classes_to_flush(session)} == {Page, Book}
    session.flush()
    session.delete(session.get_one(Book, 1))
    assert {mapper.class_ for mapper in classes_to_flush(session)} == {Book}


def test_what_was_added_to_the_deleted_is_known(session):
    page = session.get_one(Page, 1)
    assert last_deleted_state(session) is None
    assert list(states_deleted_since(session, None)) == []
    session.delete(page)
    state = instance_state(page)
    assert last_deleted_state(session) is state
    assert list(states_deleted_since(session, None)) == [state]
    assert list(states_deleted_since(session, state)) == []
    session.flush()
    assert list(states_deleted_since(session, state)) == []


def test_what_the_transaction_has_inserted_is_known(session):
    assert list(states_inserted_by(session)) == []
    states = []
    for number in (2, 3):
        page = Page(id=number, title="New")
        session.add(page)
        session.flush()
        states.append(instance_state(page))
        session.begin_nested()
    assert set(states_inserted_by(session)) == set(states)
    session.rollback()
    assert list(states_inserted_by(session)) == []


def test_a_query_tells_what_it_leaves_out_and_its_number(session):
    page = session.get_one(Page, 1)
    told = []

    @event.listens_for(Page, "refresh", raw=True)
    def refresh(state, query, names):
        told.append((names_left_out(state, query), run_of(query)))
        assert run_of(query) == run_of(state)

    before = next_run()
    for option in (load_only(Page.id), load_only(Page.title), undefer(Page.views)):
        query = select(Page).options(option).execution_options(populate_existing=True)
        assert session.scalars(query).one() is page
    event.remove(Page, "refresh", refresh)
    assert [set(names) for names, _ in told] == [{"title", "views"}, {"views"}, set()]
    assert [run - before for _, run in told] == [1, 2, 3]


def test_a_locking_query_says_so_and_a_lock_can_be_added(session):
    plain, locking = select(Page), select(Page).with_for_update()
    assert [locks_rows(one) for one in (plain, locking)] == [False, True]
    of_statement = select(Page).from_statement(plain)
    for one in (plain, of_statement):
        made = add_shared_lock(one)
        assert locks_rows(made)
        assert not locks_rows(one)
        assert str(made.compile(dialect=postgresql.dialect())).endswith("FOR SHARE")
        assert session.scalars(made).one().title == "Home"


def test_a_query_tells_which_object_it_refreshes(session):
    page = session.get_one(Page, 1)
    asked = []

    @event.listens_for(session, "do_orm_execute")
    def execute(state):
        asked.append(state_refreshed_by(state.local_execution_options))

    session.expire(page, ["title"])
    assert page.title == "Home"
    session.scalars(select(Page)).one()
    assert asked == [instance_state(page), None]


def test_a_query_tells_for_which_object_it_reads_a_relationship(session):
    book = Book(id=1, notes=[Note(id=1)])
    session.add(book)
    session.commit()
    asked = []

    @event.listens_for(session, "do_orm_execute")
    def execute(state):
        asked.append(state_lazily_loaded_by(state.local_execution_options))

    assert book.id == 1
    assert len(book.notes) == 1
    assert asked == [None, instance_state(book)]


def test_mappers_are_found_and_loaded_as_they_should_be(session):
    class OwnBase(DeclarativeBase):
        pass

    class Own(OwnBase):  # for ever loaded so, from here on
        __table__ = Page.__table__.to_metadata(OwnBase.metadata)

    assert OwnBase.registry in list(registries())
    assert not key_of_mapping(Own.__mapper__)
    always_load(Own.__mapper__, {Own.__table__.c.id, Own.__table__.c.views})
    for option in (load_only(Own.title), defer("*")):
        assert "views" in session.scalars(select(Own).options(option)).one().__dict__
        session.expunge_all()


def test_a_class_whose_mapping_was_refused_stands_in_nobodys_way():
    class Base(DeclarativeBase):
        pass

    class Good(Base):
        __tablename__ = "good"
        id: Mapped[int] = mapped_column(primary_key=True)

    with pytest.raises(ConfigurationError) as refused:

        class Bad(Versioned, Base):
            __tablename__ = "bad"
            __version_token__ = 5
            id: Mapped[int] = mapped_column(primary_key=True)

    assert refused.tb is not None  # and with it the class stays
    with pytest.raises(UnmappedClassError):
        Base.registry.mappers  # noqa: B018
    assert list(mappers_in(Base.registry)) == [inspect(Good)]


def test_a_relationship_means_classes_of_its_own_base_that_are_there():
    class Base(DeclarativeBase):
        pass

    class Other(DeclarativeBase):
        pass

    def named(name, table, base=Base):
        column = mapped_column(Integer, primary_key=True)
        return type(name, (base,), {"__tablename__": table, "__module__": table, "id": column})

    one, two, page = named("Twice", "one"), named("Twice", "two"), named("Page", "pages")
    other = named("Page", "pages", Other)

    def meant(argument):
        return {mapper.class_ for mapper in mappers_meant(inspect(page), argument)}

    assert meant("Page") == meant("pages.Page") == meant(page) == {page}
    assert meant("Twice") == {one, two}
    assert meant(other) == meant(lambda: other) == meant(lambda: aliased(other)) == {other}
    assert meant("Later") == meant(lambda: Later) == meant(None) == set()  # noqa: F821
    assert not inspect(page).configured


def test_an_update_tells_what_it_sets_and_where():
    statement = update(Page).where(Page.id == 1).values(title="x").options(load_only(Page.id))
    assert subject_of(statement) is Page.__mapper__
    assert subject_of(update(Page.__table__)) is None
    assert subject_of(update(aliased(Page))).is_aliased_class
    assert is_of_the_orm(statement)
    assert not is_of_the_orm(delete(Page.__table__))
    assert [str(part) for part in criteria_of(statement)] == ["pages.id = :id_1"]
    assert len(loader_options_of(statement)) == 1
    assert [name.key for name in values_of(statement)] == ["title"]
    assert values_of(update(Page)) == {}


def test_an_ordered_update_says_so():
    ordered = update(Page).ordered_values((Page.views, 1), (Page.title, "x"))
    assert is_ordered(ordered)
    assert not is_ordered(update(Page).values(title="x"))
    assert [name.key for name in names_set_by(ordered)] == ["views", "title"]


def test_statements_that_differ_in_values_alone_have_one_cache_key():
    one, same, other = (select(Page).where(Page.id == n) for n in (1, 2, 3))
    known = cache_key_of(one).key
    assert cache_key_of(same).key == known
    assert cache_key_of(other.limit(1)).key != known
    assert cache_key_of(text("SELECT 1")).key is not None


def test_a_mapper_leaves_out_columns_before_it_has_looked_at_its_table():
    class Odd(DeclarativeBase):
        pass

    @event.listens_for(Odd, "instrument_class", propagate=True)
    def leave(mapper, cls):
        mapper.local_table.append_column(Column("hidden", Integer))
        leave_out(mapper, [mapper.local_table.c.hidden])

    class Sheet(Odd):
        __tablename__ = "sheets"
        id: Mapped[int] = mapped_column(primary_key=True)

    assert Sheet.__mapper__.column_attrs.keys() == ["id"]


def test_inserts_and_lambdas_tell_what_they_are():
    assert prefixes_of(insert(Page).prefix_with("OR REPLACE")) == ["OR REPLACE"]
    assert upsert_of(insert(Page)) is None
    assert upsert_of(sqlite.insert(Page).on_conflict_do_nothing()) is not None
    assert returns_values(update(Page).returning(Page.id))
    assert not returns_values(update(Page))
    assert isinstance(resolve_lambda(lambda_stmt(lambda: update(Page))), type(update(Page)))


def test_a_result_tells_whether_an_object_may_be_in_several_rows(session):
    assert not may_repeat_objects(session.execute(select(Book)))
    joined = session.execute(select(Book).options(joinedload(Book.notes)))
    assert may_repeat_objects(joined)
    joined.close()
    cached = session.execute(select(Book)).freeze()
    assert may_repeat_objects(cached())


def test_a_dialect_tells_whether_it_doubles_signs_and_a_type_whether_it_adds_sql():
    assert doubles_percents(postgresql.psycopg.dialect())
    assert not doubles_percents(sqlite.dialect())
    assert has_bind_expression(Hashed())
    assert not has_bind_expression(LargeBinary())


@pytest.mark.parametrize("dialect", [postgresql.psycopg.dialect(), sqlite.dialect()])
def test_a_default_is_told_as_a_table_is_made_with_it(dialect):
    for given, sql in (("5", "'5'"), ("it's 100%", "'it''s 100%'"), (text("1 + 1"), "1 + 1")):
        column = Column("one", Integer, server_default=given)
        assert default_in_ddl(column, dialect).strip("()") == sql


def test_what_an_insert_gives_new_rows_is_known():
    given = names_given_by
    assert given(insert(Page)) == set()
    assert given(insert(Page).values(id=1, title="a")) == {"id", "title"}
    assert given(insert(Page).values([{"id": 1}, {Page.id: 2, Page.views: 1}])) == {"id", "views"}
    assert given(insert(Page).from_select(["id", Page.title], select(Page.id, Page.title))) == {
        "id",
        "title",
    }


def test_an_engine_tells_its_first_level_and_who_hears_of_its_transactions():
    engine = create_engine("sqlite://", isolation_level="AUTOCOMMIT")
    assert level_on_connect(engine.dialect) == "AUTOCOMMIT"
    assert level_on_connect(create_engine("sqlite://").dialect) is None

    assert not has_begin_listeners(engine)
    event.listen(engine, "begin", lambda connection: None)
    assert has_begin_listeners(engine)
    assert has_begin_listeners(engine.execution_options(logging_token="x"))


def test_an_engine_with_its_own_reader_of_json_is_known() -> None:
    assert not reads_json_itself(create_engine("sqlite://").dialect)
    engine = create_engine("sqlite://", json_deserializer=lambda text: object())
    assert reads_json_itself(engine.dialect)


def test_the_writer_of_json_is_that_of_the_engine() -> None:
    assert json_writer(create_engine("sqlite://").dialect)([1]) == "[1]"
    engine = create_engine("sqlite://", json_serializer=lambda value: "own")
    assert json_writer(engine.dialect)([1]) == "own"


def test_a_composite_tells_the_attributes_that_it_is_made_of() -> None:
    class Other(DeclarativeBase):
        pass

    class Shift(Other):
        __tablename__ = "shifts"
        id: Mapped[int] = mapped_column(primary_key=True)
        last: Mapped[int] = mapped_column("other_name")
        first: Mapped[int]
        span = composite(tuple, "first", "last")

    inspect(Shift).registry.configure()
    assert names_in_composite(inspect(Shift), "span") == ["first", "last"]


@pytest.mark.parametrize("streams", [False, True])
def test_who_fetches_rows_a_few_at_a_time_is_known(streams):
    engine, found = create_engine("sqlite://"), []
    dialect = engine.dialect
    dialect.supports_server_side_cursors = True  # SQLite's driver has only one kind of cursor

    @event.listens_for(engine, "before_cursor_execute")
    def before(connection, cursor, statement, parameters, context, many):
        found.append(is_server_side(context))

    type(dialect).execution_ctx_cls.create_server_side_cursor = lambda self: (
        self._dbapi_connection.cursor()
    )
    try:
        with engine.connect() as connection:
            connection.execution_options(stream_results=streams).execute(select(1)).all()
    finally:
        del type(dialect).execution_ctx_cls.create_server_side_cursor
    assert found == [streams]
    engine.dispose()


# -- what is asked of a release by the first watch() -----------------------------------------------


def test_the_installed_release_has_all_names_and_flushes_as_a_known_one():
    """C2: where this fails with a new release, ``_undocumented/check.py`` says what to do."""
    assert check.missing_names() == []
    assert check.is_known_release()
    assert check.unknown_functions() == []
    assert not any(map(check._is_unknown, check.REPLACED))


def test_a_name_that_is_gone_is_found_wherever_it_was(monkeypatch):
    """C2: each line of the table is really looked up."""
    for owner, names in check.NEEDED.items():
        for name in names.split():
            gone = "|".join(f"{one}_gone" for one in name.split("|"))
            monkeypatch.setattr(check, "NEEDED", {owner: gone})
            assert check.missing_names() == [gone]
        module, _, rest = owner.partition(":")
        away = "|".join(f"{one}_gone" for one in rest.split("|"))
        monkeypatch.setattr(check, "NEEDED", {f"{module}:{away}": names})
        assert check.missing_names() == names.split()


def test_a_function_is_known_by_what_it_does():
    """C2: comments, annotations, docstrings and layout do not count; a statement does."""

    def digest(text: str) -> str:
        parts: list[str] = []
        check._add_form(ast.parse(text).body[0], parts)
        return " ".join(parts)

    plain = digest("def f(a, b):\n    return a\n")
    assert (
        digest('def f(\n    a: int,\n    b,  # c\n) -> int:\n    "It."\n    return (a)\n') == plain
    )
    assert digest("def f(a, b):\n    return b\n") != plain
    assert digest("def f(a, b=1):\n    return a\n") != plain
    assert digest("def f(a, b):\n    if a:\n        return a\n") != plain


def test_the_source_of_a_function_is_found_as_inspect_finds_it():
    """C2: the lines are cut by their indentation, which is faster."""
    for name in check.REPLACED:
        (function,) = check._found(name)
        made = inspect_python.unwrap(function)
        source = textwrap.dedent(inspect_python.getsource(made))
        assert ast.dump(ast.parse(check._source_of(made.__code__))) == ast.dump(ast.parse(source))
    assert check.digest_of("sqlalchemy.orm:Session.no_such") is None
    assert check.digest_of("builtins:len") is None


def test_a_function_that_another_library_covers_is_not_known(monkeypatch):
    """C2: what it does before and after, the own flush would leave out."""
    original = Session._flush

    @functools.wraps(original)
    def covered(self, *args):
        return original(self, *args)

    monkeypatch.setattr(Session, "_flush", covered)
    assert check.is_known_release()
    assert check.unknown_functions() == ["sqlalchemy.orm:Session._flush"]


def test_every_private_name_is_tried_or_asked_for():
    """C2: a function of this folder runs in the self-test, or its names stand in the table."""
    asked = set(re.findall(r"\w+", " ".join([*check.NEEDED.values(), *check.NEEDED])))
    older = {"_AsyncIoGreenlet", "_concurrency_py3k", "_EventKey"}  # found where they are needed
    of_pytest = {
        "_call_reprcompare",
        "_format_explanation",
        "_saferepr",
        "_should_repr_global_name",
    }
    tried: set[CodeType] = set()
    sys.setprofile(lambda frame, what, argument: tried.add(frame.f_code))
    try:
        assert find_faults(sqlite3, own_flush=True) == (None, None)
    finally:
        sys.setprofile(None)
    for code in tried:
        if "_undocumented" in code.co_filename:
            asked.update(check._words_of(code))
    used: dict[str, str] = {}
    for module in (connections, flushes, mappers, statements):
        own = {name for name in vars(module) if name.startswith("_")}
        for node in ast.parse(Path(module.__file__ or "").read_text()).body:
            if isinstance(
                node, (ast.Assign, ast.AnnAssign, ast.If)
            ):  # find_name("..."), attrgetter
                asked.update(re.findall(r"\w+", ast.unparse(node)))
        for function in functions_in(module):
            if function.__code__ not in tried:
                words = check._words_of(function.__code__)
                names = {one for one in words if re.fullmatch("_[a-zA-Z]\\w+", one)} - own
                used.update(dict.fromkeys(names - asked - older - of_pytest, function.__qualname__))
    assert used == {}, sorted(used.items())


def functions_in(module: ModuleType) -> Iterator[FunctionType]:
    for one in vars(module).values():
        inner = vars(one).values() if isinstance(one, type) else [one]
        for function in inner:
            if isinstance(function, FunctionType) and function.__module__ == module.__name__:
                yield function


def test_modules_of_sqlalchemy_that_are_imported_are_documented():
    """An undocumented one may be renamed, so it is looked up (``_undocumented/names.py``)."""
    documented = {
        *("sqlalchemy", "sqlalchemy.engine", "sqlalchemy.engine.default", "sqlalchemy.exc"),
        *("sqlalchemy.orm", "sqlalchemy.orm.attributes", "sqlalchemy.orm.collections"),
        *("sqlalchemy.orm.exc", "sqlalchemy.pool", "sqlalchemy.schema", "sqlalchemy.sql"),
        *("sqlalchemy.sql.expression", "sqlalchemy.types"),
        *("sqlalchemy.util", "sqlalchemy.util.concurrency"),  # the way into a greenlet
    }
    found = set()
    for path in Path(optilock.__file__).parent.rglob("*.py"):
        if "testing" in path.parts:
            continue
        for node in imports_of(ast.parse(path.read_text())):
            name = node.module or ""
            if name.startswith("sqlalchemy") and not name.startswith(
                ("sqlalchemy.ext.", "sqlalchemy.dialects")
            ):
                found.add(name)
    assert found - documented == set()


def imports_of(tree: ast.AST) -> Iterator[ast.ImportFrom]:
    """Yield the imports that are carried out: not those for type checkers."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.ImportFrom):
            yield node
        yield from imports_of(node)


def test_a_release_whose_mappers_forget_in_another_way_still_maps_classes() -> None:
    """A module that cannot be imported would hide the sentence of the first ``watch()``."""

    class OtherMapper:
        pass

    mapper: Any = OtherMapper()
    assert mappers.keep_with_mapping(mapper, "a key", "a value") == "a value"
    assert vars(mapper) == {}
    assert "mapper._memoized_keys" in check.NEEDED["sqlalchemy.orm:Mapper"].split()
