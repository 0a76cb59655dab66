"""Statements of a table that a session sends itself: its objects know what became of their rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, bindparam, delete, event, select, update
from sqlalchemy.orm import Mapped, Session

from optilock import ConcurrencyError, Versioned, expect, touch, verify
from optilock._watched.session.record import session_record as watched_state
from optilock.statements import no_bump
from optilock.testing import count_statements
from optilock.tokens import CompareValues, RowVersion, Timestamp
from tests.support.models import Animal, Base, Note, Page, key
from tests.support.two_writers import Do


class Stamped(Versioned, Base):
    """The database moves the version."""

    __tablename__ = "os_stamped"
    __version_token__ = RowVersion()
    id: Mapped[int] = key()
    text: Mapped[str | None]
    note: Mapped[str | None]


class Timed(Versioned, Base):
    """The version is a time."""

    __tablename__ = "os_timed"
    __version_token__ = Timestamp()
    id: Mapped[int] = key()
    text: Mapped[str | None]
    note: Mapped[str | None]


class Matched(Versioned, Base):
    """Values are compared."""

    __tablename__ = "os_matched"
    __version_token__ = CompareValues("text", "note")
    id: Mapped[int] = key()
    text: Mapped[str | None]
    note: Mapped[str | None]


class Trigger(Versioned, Base):
    """Its insertion makes a listener write other rows."""

    __tablename__ = "os_triggers"
    id: Mapped[int] = key()
    text: Mapped[str | None]


class Paper(Versioned, Base):
    __tablename__ = "os_papers"
    id: Mapped[int] = key()
    text: Mapped[str | None]
    note: Mapped[str | None]


MODELS = [Paper, Stamped, Timed, Matched]
Send = Callable[..., Any]


def _session(session: Session, statement: Any, *params: Any) -> None:
    session.execute(statement, *params)


def _connection(session: Session, statement: Any, *params: Any) -> None:
    session.connection().execute(statement, *params)


def _in_a_listener(session: Session, statement: Any, *params: Any) -> None:
    def listen(mapper: Any, connection: Any, target: Any) -> None:
        connection.execute(statement, *params)

    _flushing(session, listen)


def _in_a_listener_by_the_session(session: Session, statement: Any, *params: Any) -> None:
    _flushing(session, lambda *_: session.execute(statement, *params))


def _before_the_flush(session: Session, statement: Any, *params: Any) -> None:
    def listen(*_: Any) -> None:
        session.connection().execute(statement, *params)

    event.listen(session, "before_flush", listen, once=True)
    session.add(Trigger(id=1))
    session.flush()


def _after_the_flush(session: Session, statement: Any, *params: Any) -> None:
    def listen(*_: Any) -> None:
        session.execute(statement, *params)

    event.listen(session, "after_flush", listen, once=True)
    session.add(Trigger(id=1))
    session.flush()


def _flushing(session: Session, listen: Any) -> None:
    event.listen(Trigger, "after_insert", listen)
    try:
        session.add(Trigger(id=1))
        session.flush()
    finally:
        event.remove(Trigger, "after_insert", listen)


WAYS = [
    _session,
    _connection,
    _in_a_listener,
    _in_a_listener_by_the_session,
    _before_the_flush,
    _after_the_flush,
]


def _by_key(model: Any) -> Any:
    table = model.__table__
    return table.update().where(table.c.id == 1).values(note="own")


def _by_criteria(model: Any) -> Any:
    table = model.__table__
    return table.update().where(table.c.text == "a").values(note="own")


def _all_rows(model: Any) -> Any:
    return model.__table__.update().values(note="own")


#: Every form of a statement for one kind of version, and one form for every kind.
CASES = [
    (Paper, _by_key),
    (Paper, _by_criteria),
    (Paper, _all_rows),
    (Stamped, _by_key),
    (Stamped, _by_criteria),
    (Timed, _by_criteria),
    (Matched, _by_criteria),
]


@pytest.fixture
def papers(store: Do, tables: Do) -> None:
    tables(Trigger)
    store(*(model(id=n, text="a") for model in MODELS for n in (1, 2)))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("model", "statement"), CASES)
def test_a_session_does_not_conflict_with_its_own_statement(
    papers: None, watched: Do, stored: Do, model: Any, statement: Any, way: Send
) -> None:
    session = watched()
    mine = session.get_one(model, 1)
    for n in range(3):
        way(session, statement(model)) if n == 0 else session.execute(statement(model))
        assert mine.note == "own"
        mine.text = "a"
        mine.note = f"mine {n}"
        session.flush()
    session.commit()
    assert (stored(model, 1)["text"], stored(model, 1)["note"]) == ("a", "mine 2")


@pytest.mark.needs("resolves-in-place")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("model", "statement"), CASES)
def test_an_object_that_is_older_than_its_row_conflicts_all_the_same(
    papers: None, watched: Do, stored: Do, model: Any, statement: Any, way: Send
) -> None:
    session, theirs = watched(autoflush=False, expire_on_commit=False), watched()
    mine = session.get_one(model, 1)
    session.commit()
    theirs.get_one(model, 1).text = "theirs"
    theirs.commit()
    way(session, statement(model))
    with session.no_autoflush:
        mine.text = "ours"
    with pytest.raises(ConcurrencyError):
        session.flush()
    session.rollback()
    assert stored(model, 1)["text"] == "theirs"


@pytest.mark.parametrize("way", [_session, _connection, _in_a_listener])
def test_many_rows_by_key_are_known_as_well(
    papers: None, watched: Do, stored: Do, way: Send
) -> None:
    table = Paper.__table__
    statement = table.update().where(table.c.id == bindparam("wanted")).values(note=bindparam("n"))
    session = watched()
    one, two = session.scalars(select(Paper).order_by(Paper.id)).all()
    way(session, statement, [{"wanted": 1, "n": "x"}, {"wanted": 2, "n": "y"}])
    assert (one.note, two.note) == ("x", "y")
    one.text = two.text = "mine"
    session.commit()
    assert (stored(Paper, 1)["version"], stored(Paper, 2)["note"]) == (3, "y")


@pytest.mark.parametrize("way", [_session, _connection, _before_the_flush])
def test_an_edit_that_waits_is_not_overwritten(
    papers: None, watched: Do, stored: Do, way: Send
) -> None:
    session = watched(autoflush=False)
    mine = session.get_one(Paper, 1)
    touch(mine)
    mine.note = "mine"
    way(session, _all_rows(Paper).values(text="own"))
    session.commit()
    assert (stored(Paper, 1)["note"], stored(Paper, 1)["text"]) == ("mine", "own")
    mine.text = "mine"
    session.commit()
    assert stored(Paper, 1)["text"] == "mine"


@pytest.mark.parametrize("expired", [True, False])
def test_an_expired_object_knows_it_too(
    papers: None, watched: Do, stored: Do, expired: bool
) -> None:
    session = watched(expire_on_commit=expired)
    mine = session.get_one(Paper, 1)
    session.commit()
    session.connection().execute(_by_key(Paper))
    mine.text = "mine"
    session.commit()
    assert (stored(Paper, 1)["text"], stored(Paper, 1)["version"]) == ("mine", 3)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("statement", [_by_key, _all_rows])
@pytest.mark.parametrize("nested", [False, True], ids=["transaction", "savepoint"])
def test_what_is_rolled_back_leaves_no_version_behind(
    papers: None,
    watched: Do,
    other: Do,
    stored: Do,
    statement: Any,
    way: Send,
    nested: bool,
) -> None:
    session = watched()
    held = session.get_one(Paper, 1)
    undone = session.begin_nested() if nested else session
    way(session, statement(Paper))
    session.get_one(Paper, 2)
    held.text = "undone"
    session.flush()
    undone.rollback()
    assert held.version == 1
    session.rollback()
    other(Paper, 1, text="theirs")
    held.note = "mine"
    with pytest.raises(ConcurrencyError):
        session.commit()
    session.rollback()
    assert stored(Paper, 1)["text"] == "theirs"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("statement", [_by_key, _all_rows])
@pytest.mark.parametrize("end", ["rollback", "close"])
def test_an_object_that_was_read_after_it_must_be_read_again(
    papers: None, watched: Do, other: Do, stored: Do, statement: Any, way: Send, end: str
) -> None:
    session = watched()
    way(session, statement(Paper))
    mine = session.get_one(Paper, 1)
    getattr(session, end)()
    other(Paper, 1, text="theirs")
    later = session if end == "rollback" else watched()
    if end == "close":
        later.add(mine)
    mine.note = "mine"
    with pytest.raises(Exception, match="without having been read"):
        later.commit()
    later.rollback()
    assert stored(Paper, 1)["text"] == "theirs"


@pytest.mark.parametrize("way", [_session, _connection, _in_a_listener])
@pytest.mark.parametrize("promise", [verify, lambda obj: expect(obj, 1)], ids=["verify", "expect"])
@pytest.mark.parametrize("deletes", [False, True])
def test_what_was_promised_and_is_written_by_us_is_ours(
    papers: None, watched: Do, stored: Do, way: Send, promise: Any, deletes: bool
) -> None:
    table = Paper.__table__
    session = watched()
    promise(session.get_one(Paper, 1))
    way(session, delete(table).where(table.c.id == 1) if deletes else _by_key(Paper))
    session.commit()
    assert (stored(Paper, 1) is None) is deletes


@pytest.mark.parametrize("way", [_session, _connection])
@pytest.mark.parametrize("doomed", [False, True])
def test_an_object_whose_row_we_have_deleted_is_deleted(
    papers: None, watched: Do, stored: Do, way: Send, doomed: bool
) -> None:
    """As ``delete(Model)`` does it."""
    table = Paper.__table__
    session = watched(autoflush=False)
    mine = session.get_one(Paper, 1)
    if doomed:
        session.delete(mine)
    way(session, table.delete().where(table.c.id == 1))
    assert mine not in session
    session.commit()
    assert stored(Paper, 1) is None


def test_a_listener_may_delete_what_the_flush_is_to_delete(
    papers: None, watched: Do, stored: Do
) -> None:
    table = Paper.__table__
    session = watched()
    session.delete(session.get_one(Paper, 1))
    session.delete(session.get_one(Paper, 2))

    def listen(mapper: Any, connection: Any, target: Any) -> None:
        connection.execute(table.delete().where(table.c.text == "a"))

    event.listen(Trigger, "before_insert", listen)
    try:
        session.add(Trigger(id=1))
        session.commit()
    finally:
        event.remove(Trigger, "before_insert", listen)
    assert stored(Paper, 1) is None


def test_other_conditions_than_a_key_are_no_key(
    papers: None, watched: Do, other: Do, stored: Do
) -> None:
    """``id != 1`` names all rows but one: their versions move, too."""
    table = Paper.__table__
    session = watched()
    mine = session.get_one(Paper, 1)

    def listen(mapper: Any, connection: Any, target: Any) -> None:
        connection.execute(table.update().where(table.c.id != 1).values(note="own"))
        connection.execute(
            table.update().where((table.c.id == 1) | (table.c.id == 2)).values(note="both")
        )

    event.listen(Paper, "after_update", listen)
    try:
        mine.text = "mine"
        session.flush()
    finally:
        event.remove(Paper, "after_update", listen)
    mine.text = "again"
    session.commit()
    assert (stored(Paper, 2)["note"], stored(Paper, 2)["version"]) == ("both", 3)
    assert stored(Paper, 1)["text"] == "again"


def test_a_connection_that_nobody_asks_for_is_as_it_was(papers: None, watched: Do) -> None:
    session = watched()
    session.get_one(Paper, 1).text = "mine"
    session.flush()
    session.execute(update(Paper).values(note="x"))
    assert watched_state(session).followed == {}


def test_it_is_given_back_as_it_was(papers: None, watched_on: Do, engine: Engine) -> None:
    with engine.connect() as connection:
        session = watched_on(connection)
        assert session.connection() is connection
        session.get_one(Paper, 1).text = "mine"
        session.flush()
        session.execute(_by_key(Paper))
        session.commit()
        assert "execute" not in connection.__dict__


def test_nothing_is_read_where_no_object_is_held(papers: None, watched: Do, engine: Engine) -> None:
    session = watched()
    held = session.get_one(Paper, 2)
    with count_statements(engine) as sent:
        session.connection().execute(_by_key(Paper))
        session.execute(_by_key(Stamped))
        session.execute(_all_rows(Stamped))
    assert sent.count == 3
    assert held.version == 1


def test_rows_of_a_hierarchy_are_known(store: Do, watched: Do, stored: Do) -> None:
    from tests.support.models import Dog

    store(Dog(id=1, name="Rex"))
    session = watched()
    dog = session.get_one(Dog, 1)
    session.execute(Animal.__table__.update().values(name="Max"))
    assert (dog.name, dog.version) == ("Max", 2)
    dog.tricks = "sit"
    session.commit()
    assert stored(Dog, 1)["version"] == 3


def test_random_versions_are_known(store: Do, watched: Do, stored: Do) -> None:
    store(Note(id=1, text="a"))
    session = watched()
    note = session.get_one(Note, 1)
    session.connection().execute(Note.__table__.update().values(text="own"))
    assert note.version == session.scalar(select(Note.version))
    note.text = "mine"
    session.commit()
    assert stored(Note, 1)["text"] == "mine"


@pytest.mark.anyio
async def test_an_async_session_knows_it_too(async_engine: Any, async_tables: Any) -> None:
    from sqlalchemy.ext.asyncio import async_sessionmaker

    from optilock import watch

    async_tables(Paper)
    async with watch(async_sessionmaker(async_engine, expire_on_commit=False))() as session:
        mine = Paper(id=1, text="a", note="b")
        session.add(mine)
        await session.commit()
        await session.execute(_all_rows(Paper))
        assert mine.note == "own"
        await (await session.connection()).execute(_by_key(Paper).values(note="again"))
        assert (mine.note, mine.version) == ("again", 3)
        mine.text = "mine"
        await session.commit()


def test_bulk_calls_on_a_connection_that_is_followed_are_seen_to_once(
    papers: None, watched: Do, stored: Do, engine: Engine
) -> None:
    session = watched()
    mine = session.get_one(Paper, 1)
    session.connection()
    with count_statements(engine) as sent:
        session.bulk_update_mappings(Paper, [{"id": 2, "version": 1, "text": "bulk"}])
    assert sent.count == 1
    mine.text = "mine"
    session.commit()
    assert (stored(Paper, 1)["text"], stored(Paper, 2)["text"]) == ("mine", "bulk")


def test_a_delete_of_other_rows_that_is_rolled_back_leaves_nothing_in_doubt(
    papers: None, watched: Do, stored: Do
) -> None:
    session = watched()
    session.execute(Paper.__table__.delete().where(Paper.__table__.c.text == "b"))
    mine = session.get_one(Paper, 1)
    session.rollback()
    mine.text = "mine"
    session.commit()
    assert stored(Paper, 1)["text"] == "mine"


def _of_ignored(many: bool) -> Any:
    table = Page.__table__
    if many:
        where = table.update().where(table.c.id == bindparam("which"))
        return where, [{"which": 1, "views": 7}, {"which": 2, "views": 7}]
    return (table.update().values(views=7),)


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_a_statement_of_ignored_columns_leaves_the_version(
    store: Do, tables: Do, watched: Do, stored: Do, way: Send, many: bool
) -> None:
    tables(Trigger)
    store(*(Page(id=n, body="a") for n in (1, 2)))
    session = watched()
    mine = session.get_one(Page, 1)
    way(session, *_of_ignored(many))
    mine.body = "b"
    session.commit()
    assert [stored(Page, n)["views"] for n in (1, 2)] == [7, 7]
    assert [stored(Page, n)["version"] for n in (1, 2)] == [2, 1]


@pytest.mark.parametrize("way", WAYS[:2])
def test_a_statement_inside_of_no_bump_leaves_the_version(
    papers: None, watched: Do, stored: Do, way: Send
) -> None:
    session = watched()
    with no_bump(session):
        way(session, _all_rows(Paper))
    session.commit()
    assert (stored(Paper, 1)["note"], stored(Paper, 1)["version"]) == ("own", 1)


@pytest.mark.needs("resolves-in-place")
@pytest.mark.parametrize("way", WAYS[:2])
def test_what_another_session_on_the_connection_has_written_is_not_overwritten(
    papers: None, watched_on: Do, engine: Engine, way: Send
) -> None:
    with engine.connect() as connection:
        options = {"join_transaction_mode": "create_savepoint", "autoflush": False}
        mine, theirs = watched_on(connection, **options), watched_on(connection, **options)
        paper = mine.get_one(Paper, 1)
        mine.connection()
        paper.note = "mine"
        way(theirs, _all_rows(Paper))
        with pytest.raises(ConcurrencyError):
            mine.flush()
        theirs.close()
        mine.close()


def test_of_two_sessions_on_one_connection_each_follows_what_it_executes_itself(
    papers: None, watched_on: Do, engine: Engine
) -> None:
    """On the connection nobody could say whose the statement is; ``session.execute`` says it."""
    with engine.connect() as connection:
        options = {"join_transaction_mode": "rollback_only"}
        mine, theirs = watched_on(connection, **options), watched_on(connection, **options)
        theirs.connection()
        mine.connection()
        paper = mine.get_one(Paper, 1)
        mine.execute(_all_rows(Paper))
        paper.text = "mine"
        mine.flush()
        assert (paper.note, paper.version) == ("own", 3)
        theirs.close()
        mine.close()
