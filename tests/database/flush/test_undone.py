"""Objects that leave a session whose flush comes to nothing."""

from __future__ import annotations

import copy
import gc
import pickle
from typing import Any

import pytest
from sqlalchemy import Engine, update
from sqlalchemy.orm import (
    Mapped,
    Session,
    make_transient,
    make_transient_to_detached,
    sessionmaker,
)

from optilock import ConcurrencyError, ConfigurationError, Versioned, touch, watch
from optilock.testing import count_statements
from optilock.tokens import CompareValues, RowVersion
from tests.support.models import Account, Base, Dog, Native, Note, key
from tests.support.two_writers import Do


class Sealed(Versioned, Base):
    """The database moves the version."""

    __tablename__ = "sealed"
    __version_token__ = RowVersion()
    id: Mapped[int] = key()
    owner: Mapped[str | None]
    note: Mapped[str | None]


class Weighed(Versioned, Base):
    """Values are compared."""

    __tablename__ = "weighed"
    __version_token__ = CompareValues("owner")
    id: Mapped[int] = key()
    owner: Mapped[str | None]
    note: Mapped[str | None]


MODELS = [Account, Sealed, Weighed]


def _close(session: Session, obj: Any) -> None:
    session.close()


def _leave(session: Session, obj: Any) -> None:
    session.__exit__(None, None, None)


def _reset(session: Session, obj: Any) -> None:
    getattr(session, "reset", session.close)()


def _invalidate(session: Session, obj: Any) -> None:
    session.invalidate()


def _close_the_transaction(session: Session, obj: Any) -> None:
    transaction = session.get_transaction()
    assert transaction is not None
    transaction.close()
    session.expunge(obj)


def _expunge_and_roll_back(session: Session, obj: Any) -> None:
    session.expunge(obj)
    session.rollback()


def _expunge_and_close(session: Session, obj: Any) -> None:
    session.expunge(obj)
    session.close()


def _expunge_all_and_roll_back(session: Session, obj: Any) -> None:
    session.expunge_all()
    session.rollback()


def _make_detached_anew(session: Session, obj: Any) -> None:
    session.close()
    make_transient(obj)
    make_transient_to_detached(obj)


ENDS = [
    _close,
    _leave,
    _reset,
    _invalidate,
    _close_the_transaction,
    _expunge_and_roll_back,
    _expunge_and_close,
    _expunge_all_and_roll_back,
    _make_detached_anew,
]


def _add(session: Session, obj: Any) -> Any:
    session.add(obj)
    return obj


def _merge(session: Session, obj: Any) -> Any:
    return session.merge(obj)


def _merge_unread(session: Session, obj: Any) -> Any:
    return session.merge(obj, load=False)


def _deep(session: Session, obj: Any) -> Any:
    return session.merge(copy.deepcopy(obj))


def _shallow(session: Session, obj: Any) -> Any:
    return session.merge(copy.copy(obj))


def _pickled(session: Session, obj: Any) -> Any:
    return session.merge(pickle.loads(pickle.dumps(obj)))


RETURNS = [_add, _merge, _merge_unread, _deep, _shallow, _pickled]

Lost = (ConcurrencyError, ConfigurationError)


def flushed(session: Session, model: type[Any]) -> Any:
    obj = session.get_one(model, 1)
    obj.owner = "undone"
    session.flush()
    return obj


def theirs(session: Session, model: type[Any]) -> None:
    """Somebody else changes the row, who compares what is to be compared."""
    with session:
        session.get_one(model, 1).owner = "theirs"
        session.commit()


def back(session: Session, come: Any, obj: Any) -> None:
    """The object comes to another session, is edited and committed."""
    with session:
        mine = come(session, obj)
        mine.note = "mine"
        session.commit()


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("end", ENDS)
def test_an_undone_version_is_not_that_of_somebody_else(
    store: Do, watched: Do, stored: Do, model: Any, end: Any
) -> None:
    store(model(id=1, owner="Ada"))
    session = watched()
    mine = flushed(session, model)
    end(session, mine)
    theirs(watched(), model)
    with pytest.raises(Lost):
        back(watched(), _merge, mine)
    with pytest.raises(Lost):
        back(watched(), _add, mine)
    assert (stored(model, 1)["owner"], stored(model, 1)["note"]) == ("theirs", None)


@pytest.mark.parametrize("come", RETURNS)
def test_in_whatever_way_it_comes_back(
    store: Do, watched: Do, other: Do, stored: Do, come: Any
) -> None:
    store(Account(id=1, owner="Ada"))
    session = watched()
    mine = flushed(session, Account)
    session.close()
    other(Account, 1, owner="theirs")
    with pytest.raises(ConcurrencyError):
        back(watched(), come, mine)
    assert stored(Account, 1)["owner"] == "theirs"


@pytest.mark.parametrize("come", RETURNS)
@pytest.mark.parametrize("model", [Account, Sealed, Note, Native, Dog])
def test_where_nobody_else_was_first_it_is_written(
    store: Do, watched: Do, stored: Do, model: Any, come: Any
) -> None:
    name = {Account: "owner", Sealed: "owner", Dog: "tricks"}.get(model, "text")
    store(model(id=1, **{name: "a"}))
    session = watched()
    mine = session.get_one(model, 1)
    token = "revision" if model is Native else "version"
    before = getattr(mine, token)
    setattr(mine, name, "undone")
    session.flush()
    session.close()
    assert getattr(mine, token) == before
    assert getattr(mine, name) == "undone"
    later = watched()
    setattr(come(later, mine), name, "mine")
    later.commit()
    assert stored(model, 1)[name] == "mine"


def test_a_session_that_is_collected_as_garbage_is_undone_too(
    store: Do, engine: Engine, watched: Do, other: Do
) -> None:
    store(Account(id=1, owner="Ada"), Account(id=2))
    sessions = type(watched())
    session = sessions(engine)
    mine, gone = flushed(session, Account), session.get_one(Account, 2)
    gone.owner = "undone"
    session.flush()
    session.expunge(gone)
    session.connection()
    del session
    gc.collect()
    assert (mine.version, gone.version) == (1, 1)
    other(Account, 1, owner="theirs")
    with pytest.raises(ConcurrencyError):
        back(watched(), _merge, mine)


@pytest.mark.parametrize("leaves", ["inside", "before"])
def test_a_savepoint_is_undone_for_those_who_left(
    store: Do, watched: Do, other: Do, stored: Do, leaves: str
) -> None:
    """Whoever left before it keeps what was written before it."""
    store(Account(id=1, owner="Ada"))
    session = watched()
    mine = session.get_one(Account, 1)
    mine.owner = "first"
    session.flush()
    if leaves == "before":
        session.expunge(mine)
    savepoint = session.begin_nested()
    again = session.get_one(Account, 1)
    again.owner = "second"
    session.flush()
    if leaves == "inside":
        session.expunge(mine)
    savepoint.rollback()
    assert mine.version == 2
    session.commit()
    assert mine.version == 2
    later = watched()
    later.add(mine)
    mine.note = "mine"
    later.commit()
    assert stored(Account, 1)["version"] == 3


def test_after_a_savepoint_and_the_whole_it_is_the_version_from_before(
    store: Do, watched: Do
) -> None:
    store(Account(id=1, owner="Ada"))
    session = watched()
    mine = session.get_one(Account, 1)
    for n in range(3):
        if n == 1:
            savepoint = session.begin_nested()
        mine.owner = f"{n}"
        session.flush()
    session.expunge(mine)
    assert mine.version == 4
    savepoint.rollback()
    assert mine.version == 2
    session.rollback()
    assert mine.version == 1


@pytest.mark.parametrize("end", ENDS)
def test_what_is_committed_is_left_alone(
    store: Do, watched: Do, stored: Do, end: Any, engine: Engine
) -> None:
    store(Account(id=1, owner="Ada"))
    session = watched(expire_on_commit=False)
    mine = flushed(session, Account)
    session.commit()
    session.get_one(Account, 1)
    session.connection()
    end(session, mine)
    assert mine.version == 2
    back(watched(), _add, mine)
    assert stored(Account, 1)["version"] == 3


def test_who_leaves_before_a_commit_keeps_the_version(store: Do, watched: Do, stored: Do) -> None:
    store(Account(id=1, owner="Ada"))
    session = watched()
    mine = flushed(session, Account)
    session.expunge(mine)
    session.commit()
    session.close()
    assert mine.version == 2
    back(watched(), _merge, mine)
    assert stored(Account, 1)["version"] == 3


@pytest.mark.parametrize("come", [_merge, _add, _merge_unread, _pickled, _deep])
@pytest.mark.parametrize("outcome", ["rollback", "close", "commit"])
@pytest.mark.parametrize("moved", [True, False], ids=["moved", "left alone"])
@pytest.mark.parametrize("model", [Account, Sealed])
def test_a_copy_that_was_pickled_before_the_outcome_never_overwrites(
    store: Do,
    watched: Do,
    other: Do,
    stored: Do,
    come: Any,
    outcome: str,
    moved: bool,
    model: Any,
) -> None:
    store(model(id=1, owner="Ada"))
    session = watched()
    mine = flushed(session, model)
    data = pickle.dumps(mine)
    getattr(session, outcome)()
    if moved:
        other(model, 1, owner="theirs")
    mine = pickle.loads(data)
    blind = come in (_add, _merge_unread)
    if moved or blind:
        with pytest.raises(ConfigurationError if blind else ConcurrencyError):
            back(watched(), come, mine)
        left = "undone" if outcome == "commit" else "Ada"
        assert stored(model, 1)["owner"] == ("theirs" if moved else left)
    else:
        back(watched(), come, mine)
        assert (stored(model, 1)["owner"], stored(model, 1)["note"]) == ("undone", "mine")


def test_a_copy_of_what_the_transaction_did_not_write_is_a_plain_copy(
    store: Do, watched: Do, stored: Do
) -> None:
    store(Account(id=1), Account(id=2))
    session = watched()
    flushed(session, Account)
    mine = pickle.loads(pickle.dumps(session.get_one(Account, 2)))
    session.rollback()
    later = watched()
    later.add(mine)
    mine.owner = "mine"
    later.commit()
    assert stored(Account, 2)["owner"] == "mine"


def test_a_copy_that_was_read_since_is_a_plain_object(store: Do, watched: Do, stored: Do) -> None:
    store(Account(id=1))
    session = watched()
    mine = pickle.loads(pickle.dumps(flushed(session, Account)))
    session.rollback()
    later = watched(expire_on_commit=False)
    later.add(mine)
    later.refresh(mine)
    mine.owner = "mine"
    later.commit()
    again = pickle.loads(pickle.dumps(mine))
    last = watched()
    last.add(again)
    again.owner = "again"
    last.commit()
    assert stored(Account, 1)["owner"] == "again"


@pytest.mark.parametrize("outcome", ["rollback", "close", "commit"])
def test_a_merge_without_a_look_follows_its_source(
    store: Do, watched: Do, other: Do, outcome: str
) -> None:
    store(Account(id=1, owner="Ada"))
    session, later = watched(), watched()
    mine = later.merge(flushed(session, Account), load=False)
    getattr(session, outcome)()
    assert mine.version == (2 if outcome == "commit" else 1)
    if outcome != "commit":
        other(Account, 1, owner="theirs")
        mine.owner = "mine"
        with pytest.raises(ConcurrencyError):
            later.commit()


@pytest.mark.parametrize("come", [_merge, _add, _merge_unread])
@pytest.mark.parametrize("end", [_close, _expunge_and_close, _expunge_and_roll_back])
@pytest.mark.parametrize("model", MODELS)
def test_an_insert_that_was_undone_does_not_overwrite_that_of_somebody_else(
    store: Do, tables: Do, watched: Do, stored: Do, model: Any, end: Any, come: Any
) -> None:
    tables(model)
    session = watched()
    mine = model(id=1, owner="undone")
    session.add(mine)
    session.flush()
    end(session, mine)
    store(model(id=1, owner="theirs"))
    if come is _merge_unread and mine not in session and end is _expunge_and_roll_back:
        return  # SQLAlchemy refuses a new object there
    with pytest.raises((*Lost, Exception)) as caught:
        back(watched(), come, mine)
    if not (come is _add and end is _expunge_and_roll_back):  # that inserts: the key is taken
        assert isinstance(caught.value, Lost)
    assert (stored(model, 1)["owner"], stored(model, 1)["note"]) == ("theirs", None)


def test_an_insert_that_was_rolled_back_does_not_either(
    store: Do, tables: Do, watched: Do, stored: Do
) -> None:
    tables(Account)
    session = watched()
    mine = Account(id=1, owner="undone")
    session.add(mine)
    session.flush()
    session.rollback()
    store(Account(id=1, owner="theirs"))
    with pytest.raises(ConcurrencyError):
        session.merge(mine)
    session.rollback()
    session.add(Account(id=2))
    session.commit()
    assert stored(Account, 1)["owner"] == "theirs"


def test_an_insert_that_was_undone_can_be_made_again(tables: Do, watched: Do, stored: Do) -> None:
    tables(Account)
    session = watched()
    added, merged = Account(id=1, owner="a"), Account(id=2, owner="b")
    session.add_all([added, merged])
    session.flush()
    session.close()
    make_transient(added)
    later = watched()
    later.add(added)
    later.merge(merged)
    later.commit()
    added.owner = "again"
    later.commit()
    assert (stored(Account, 1)["owner"], stored(Account, 1)["version"]) == ("again", 2)
    assert (stored(Account, 2)["owner"], stored(Account, 2)["version"]) == ("b", 1)


def test_a_pickle_of_an_insert_does_not_overwrite(
    store: Do, tables: Do, watched: Do, stored: Do
) -> None:
    tables(Account)
    session = watched()
    mine = Account(id=1, owner="undone")
    session.add(mine)
    session.flush()
    data = pickle.dumps(mine)
    session.rollback()
    store(Account(id=1, owner="theirs"))
    with pytest.raises(ConcurrencyError):
        watched().merge(pickle.loads(data))
    assert stored(Account, 1)["owner"] == "theirs"


def test_a_delete_that_was_undone_gives_the_version_from_before(
    store: Do, watched: Do, other: Do
) -> None:
    store(Account(id=1, owner="Ada"))
    session = watched()
    mine = flushed(session, Account)
    session.delete(mine)
    session.flush()
    session.close()
    assert mine.version == 1
    other(Account, 1, owner="theirs")
    with pytest.raises(ConcurrencyError):
        watched().merge(mine)


@pytest.mark.parametrize("end", [_close, _expunge_and_roll_back, _expunge_all_and_roll_back])
@pytest.mark.parametrize("read", ["before", "after"])
def test_an_object_that_saw_an_undone_statement_must_be_read(
    store: Do, watched: Do, other: Do, stored: Do, end: Any, read: str
) -> None:
    store(Account(id=1, owner="Ada"))
    session = watched()
    mine = session.get_one(Account, 1) if read == "before" else None
    session.execute(update(Account).values(owner="undone"))
    mine = session.get_one(Account, 1)
    end(session, mine)
    other(Account, 1, owner="theirs")
    with pytest.raises(Lost):
        back(watched(), _merge, mine)
    with pytest.raises(Lost):
        back(watched(), _add, mine)
    assert (stored(Account, 1)["owner"], stored(Account, 1)["note"]) == ("theirs", None)


def test_a_session_inside_of_a_transaction_of_others_leaves_what_it_wrote(
    store: Do, engine: Engine, watched_on: Do
) -> None:
    """Closing it undoes nothing there, and what it wrote is stored when the others commit."""
    store(Account(id=1, owner="Ada"))
    with engine.connect() as connection, connection.begin():
        session = watched_on(connection, join_transaction_mode="rollback_only")
        mine = flushed(session, Account)
        session.close()
        assert mine.version == 2
        back(watched_on(connection, join_transaction_mode="rollback_only"), _merge, mine)


def test_closing_sends_no_more_statements(store: Do, watched: Do, engine: Engine) -> None:
    store(Account(id=1, owner="Ada"))
    session = watched()
    flushed(session, Account)
    with count_statements(engine) as sent:
        session.close()
    assert sent.count == 0


@pytest.mark.anyio
@pytest.mark.parametrize("end", ["close", "expunge", "invalidate"])
async def test_an_async_session_is_undone_too(
    async_engine: Any, end: str, async_tables: Any
) -> None:
    from sqlalchemy.ext.asyncio import async_sessionmaker

    from optilock import watch

    async_tables(Account)
    sessions = watch(async_sessionmaker(async_engine, expire_on_commit=False))
    async with sessions() as first:
        first.add(Account(id=1, owner="Ada"))
        await first.commit()
    async with sessions() as session:
        mine = await session.get_one(Account, 1)
        mine.owner = "undone"
        await session.flush()
        if end == "expunge":
            session.expunge(mine)
            await session.rollback()
        elif end == "invalidate":
            await session.invalidate()
    assert mine.version == 1
    async with sessions() as theirs:
        (await theirs.get_one(Account, 1)).owner = "theirs"
        await theirs.commit()
    async with sessions() as later:
        with pytest.raises(ConcurrencyError):
            await later.merge(mine)


@pytest.mark.parametrize("model", [Account, Sealed, Dog])
def test_a_copy_that_nobody_has_read_is_not_touched_either(
    store: Do, watched: Do, stored: Do, model: Any
) -> None:
    """The touch is refused before anything is sent, and holds once the row was read."""
    name = "tricks" if model is Dog else "owner"
    store(model(id=1, **{name: "Ada"}))
    session = watched()
    mine = session.get_one(model, 1)
    before = mine.version
    setattr(mine, name, "undone")
    session.flush()
    data = pickle.dumps(mine)
    session.rollback()
    session.expunge(mine)
    copied = pickle.loads(data)
    session.add(copied)
    touch(copied)
    with pytest.raises(ConfigurationError, match="without having been read"):
        session.commit()
    session.refresh(copied)
    session.commit()
    assert stored(model, 1)["version"] != before
    assert stored(model, 1)[name] == "Ada"


@pytest.mark.parametrize(
    ("mode", "end"),
    [
        ("rollback_only", "rollback"),
        ("conditional_savepoint", "close"),
        ("create_savepoint", "close"),
        ("rollback_only", "savepoint"),
    ],
)
def test_a_connection_undoes_what_a_joined_session_has_committed(
    store: Do, engine: Engine, watched: Do, other: Do, mode: str, end: str
) -> None:
    """The number of the version that was never stored is another writer's next one."""
    store(Account(id=1, owner="Ada"))
    sessions = watch(sessionmaker(engine, expire_on_commit=False))
    with engine.connect() as connection:
        connection.begin()
        if engine.dialect.name == "sqlite":  # whose driver sends no BEGIN for a savepoint
            connection.exec_driver_sql("BEGIN")
        around = connection.begin_nested() if end == "savepoint" else None
        with sessions(bind=connection, join_transaction_mode=mode) as session:
            mine = flushed(session, Account)
            session.commit()
        with sessions(bind=connection, join_transaction_mode=mode) as session:
            theirs = session.get_one(Account, 1)
        connection.begin_nested().rollback()  # of nothing that was written
        assert (mine.version, theirs.version) == (2, 2)
        if around is not None:
            around.rollback()
        elif end == "rollback":
            connection.rollback()
    assert (mine.version, theirs.version) == (1, 1)
    other(Account, 1, owner="Eve")
    for one in (mine, theirs):
        one.owner = "Bea"
        session = watched()
        session.add(one)
        with pytest.raises(ConcurrencyError):
            session.flush()
        session.rollback()


def test_what_the_connection_commits_is_stored(
    store: Do, engine: Engine, watched: Do, stored: Do
) -> None:
    store(Account(id=1, owner="Ada"))
    sessions = watch(sessionmaker(engine, expire_on_commit=False))
    with engine.connect() as connection:
        for name in ("Bea", "Eve"):
            connection.begin()
            with sessions(bind=connection, join_transaction_mode="rollback_only") as session:
                mine = session.get_one(Account, 1)
                mine.owner = name
                session.commit()
            connection.commit()
            connection.rollback()
        assert len(connection.dispatch.commit) == len(connection.dispatch.rollback) == 1
    assert mine.version == 3
    session = watched()
    session.add(mine)
    mine.owner = "Ada"
    session.commit()
    assert stored(Account, 1)["owner"] == "Ada"


def test_what_it_has_inserted_and_undone_was_never_read(
    tables: Do, engine: Engine, watched: Do, store: Do
) -> None:
    tables(Account)
    sessions = watch(sessionmaker(engine, expire_on_commit=False))
    with engine.connect() as connection, connection.begin() as outer:
        with sessions(bind=connection, join_transaction_mode="rollback_only") as session:
            mine = Account(id=1, owner="Ada")
            session.add(mine)
            session.flush()
        outer.rollback()
    store(Account(id=1, owner="Eve"))
    mine.owner = "Bea"
    session = watched()
    session.add(mine)
    with pytest.raises(ConfigurationError, match="without having been read"):
        session.flush()
