"""Every kind of session that can be watched, and every way a session gets its connection."""

from __future__ import annotations

import threading

import pytest
from sqlalchemy import create_engine, event, select, update
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.orm.exc import StaleDataError

from optilock import (
    ConcurrencyError,
    ConfigurationError,
    client_wins,
    reject,
    store_wins,
    watch,
)
from optilock._watched.session.record import is_strict, session_record
from optilock.resolvers import OnDelete
from tests.support.models import Account, Note, Post, Stamped, Tag
from tests.support.needed import two_phases

pytestmark = pytest.mark.modes(full=True)

alive = pytest.mark.needs("resolves-in-place")
rows = pytest.mark.parametrize("count", [1, 3])


def accounts(count=2):
    return [Account(id=n, owner="a", balance=1) for n in range(count)]


def stale(session, other):
    """Account 0 was changed after we read it, and all of them are edited."""
    found = session.scalars(select(Account).order_by(Account.id)).all()
    for row in found:
        row.balance = 10
    other(Account, 0, owner="theirs")
    return found[0]


# -- what can be watched --------------------------------------------------------------------------


def targets(engine):
    class Mine(Session):
        pass

    return {
        "sessionmaker": lambda: watch(sessionmaker(engine)),
        "sessionmaker of a class": lambda: watch(sessionmaker(engine, class_=Mine)),
        "scoped_session": lambda: watch(scoped_session(sessionmaker(engine))),
        "class": lambda: sessionmaker(engine, class_=watch(Mine)),
        "subclass of a watched class": lambda: sessionmaker(
            engine, class_=type("Sub", (watch(Mine),), {})
        ),
        "both": lambda: watch(sessionmaker(engine, class_=watch(Mine))),
    }


@pytest.mark.parametrize(
    "target",
    [
        "sessionmaker",
        "sessionmaker of a class",
        "scoped_session",
        "class",
        "subclass of a watched class",
        "both",
    ],
)
@rows
def test_whatever_makes_sessions_can_be_watched(store, engine, other, refused, target, count):
    store(*accounts(count))
    sessions = targets(engine)[target]()
    with sessions() as session:
        stale(session, other)
        assert [entry.identity for entry in refused(session).entries] == [(0,)]
    if hasattr(sessions, "remove"):
        sessions.remove()


def test_watch_gives_back_what_it_was_given(engine):
    sessions = sessionmaker(engine)

    assert watch(sessions) is sessions


def test_other_sessionmakers_of_the_engine_are_left_alone(store, engine, other):
    store(*accounts())
    watch(sessionmaker(engine))
    with sessionmaker(engine)() as session:
        stale(session, other)
        with pytest.raises(Exception) as caught:  # noqa: PT011
            session.flush()
        session.rollback()

    assert not isinstance(caught.value, ConcurrencyError)


def test_a_class_that_is_watched_twice_is_guarded_once(store, engine, watched, other, refused):
    class Mine(Session):
        pass

    watch(Mine)
    flush = Mine.flush
    watch(Mine)

    assert Mine.flush is flush


@alive
def test_a_second_watch_keeps_the_resolver(store, engine, other, stored):
    """B8: options that a second watch() leaves out stay, and mappings are joined."""
    store(*accounts())
    sessions = watch(sessionmaker(engine), on_conflict={Account: client_wins})
    watch(sessions)
    watch(sessions, on_conflict={Note: reject, Account: client_wins})
    with sessions() as session:
        stale(session, other)
        session.commit()

    assert (stored(Account, 0)["balance"], stored(Account, 0)["owner"]) == (10, "theirs")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"on_conflict": client_wins}, {"on_conflict": store_wins}),
        ({"on_conflict": {Account: client_wins}}, {"on_conflict": {Account: reject}}),
        ({"on_conflict": {Account: client_wins}}, {"on_conflict": reject}),
        ({"on_delete": OnDelete.STRICT}, {"on_delete": OnDelete.IGNORE_GONE}),
    ],
    ids=["resolvers", "of one class", "all or some", "on_delete"],
)
def test_a_second_watch_that_says_something_else_is_refused(engine, first, second):
    """B8: of two resolvers, one would silently have no effect."""
    sessions = watch(sessionmaker(engine), **first)
    with pytest.raises(ConfigurationError, match=f"another {next(iter(second))}"):
        watch(sessions, strict=True, **second)
    with sessions() as session:
        record = session_record(session)
        assert {name: getattr(record, name) for name in first} == first
        assert not is_strict(session)
    watch(sessionmaker(engine, class_=sessions.class_), **second)  # a class below it has its own


@pytest.mark.parametrize("target", [None, 3, "sessions", object(), Account, Session.flush])
def test_what_makes_no_sessions_is_refused(target):
    with pytest.raises(ConfigurationError, match="sessionmaker"):
        watch(target)


def test_one_session_is_refused_with_what_to_do_instead(engine):
    with Session(engine) as session, pytest.raises(ConfigurationError, match="sessionmaker"):
        watch(session)


@pytest.mark.parametrize("resolver", [3, "merge", {Account: "merge"}, {"Account": reject}])
def test_what_is_no_resolver_is_refused_and_nothing_is_watched(engine, resolver):
    sessions = sessionmaker(engine)
    with pytest.raises(ConfigurationError):
        watch(sessions, on_conflict=resolver)

    assert "flush" not in vars(sessions.class_)


def test_a_session_keeps_its_own_methods_and_listeners(store, engine, stored):
    calls = []

    class Mine(Session):
        def flush(self, objects=None):
            calls.append("flush")
            super().flush(objects) if objects else super().flush()

        def commit(self):
            calls.append("commit")
            super().commit()

    store(*accounts())
    sessions = watch(sessionmaker(engine, class_=Mine))
    event.listen(sessions, "before_flush", lambda *a: calls.append("before_flush"))
    event.listen(sessions, "after_flush", lambda *a: calls.append("after_flush"))
    event.listen(sessions, "after_flush_postexec", lambda *a: calls.append("postexec"))
    with sessions() as session:
        session.get_one(Account, 1).balance = 10
        session.commit()

    assert [call for call in calls if call != "flush"][:4] == [
        "commit", "before_flush", "after_flush", "postexec",
    ]  # fmt: skip
    assert stored(Account, 1)["balance"] == 10


# -- where the connection comes from --------------------------------------------------------------


@rows
def test_a_session_on_a_connection(store, engine, other, refused, stored, count):
    store(*accounts(count))
    with engine.connect() as connection:
        transaction = connection.begin()
        sessions = watch(sessionmaker(connection))
        with sessions() as session:
            stale(session, other)
            assert [entry.identity for entry in refused(session).entries] == [(0,)]
            session.rollback()
        if transaction.is_active:
            transaction.rollback()

    assert stored(Account, 0)["owner"] == "theirs"


def test_a_session_that_joins_a_transaction_by_savepoints(store, engine, watched_on, stored):
    """The recipe of test suites: everything is rolled back outside."""
    store(*accounts())
    with engine.connect() as connection:
        connection.begin()
        if engine.dialect.name == "sqlite":
            connection.exec_driver_sql("BEGIN")
        session = watched_on(connection, join_transaction_mode="create_savepoint")
        for row in session.scalars(select(Account)):
            row.balance = 10
        session.commit()
        assert session.get_one(Account, 1).version == 2
        session.close()
        connection.rollback()

    assert stored(Account, 1)["balance"] == 1


def test_two_engines_in_one_session(store, database, engine, other, refused, watched_on, tmp_path):
    elsewhere = create_engine(f"sqlite:///{tmp_path}/second.db")
    Note.metadata.create_all(elsewhere, tables=[Note.__table__])
    with Session(elsewhere) as there, there.begin():
        there.add_all(Note(id=n, text="a") for n in range(3))
    store(*accounts(3))
    session = watched_on(None, binds={Account: engine, Note: elsewhere}, autoflush=False)
    for row in session.scalars(select(Note)):
        row.text = "ours"
    with Session(elsewhere) as there, there.begin():
        there.get_one(Note, 2).text = "theirs"
    stale(session, other)
    with pytest.raises(ConcurrencyError) as caught:
        session.flush()
    session.close()
    elsewhere.dispose()

    assert {(e.model, e.identity) for e in caught.value.entries} == {
        (Account, (0,)), (Note, (2,)),
    }  # fmt: skip


def test_a_pool_of_one_connection_is_enough(store, database, other, watched_on):
    engine = database.engine(pool_size=1, max_overflow=0, pool_timeout=1)
    store(*accounts(3))
    session = watched_on(engine)
    found = session.scalars(select(Account).order_by(Account.id)).all()
    for row in found:
        row.balance = 10
    other(Account, 0, owner="theirs")
    with pytest.raises(ConcurrencyError) as caught:
        session.commit()
    session.close()

    assert [entry.identity for entry in caught.value.entries] == [(0,)]
    assert engine.pool.checkedout() == 0
    engine.dispose()


def test_a_closed_session_gives_its_connection_back(store, engine, other, collect):
    """Nothing of the guard holds on to a connection."""
    store(*accounts())
    sessions = watch(sessionmaker(engine))
    session = sessions()
    stale(session, other)
    with pytest.raises(ConcurrencyError):
        session.flush()
    session.close()
    del session
    collect()

    assert engine.pool.checkedout() == 0


@alive
@pytest.mark.engines("postgresql", "mariadb")
def test_two_phase_transactions(store, engine, watched, other, refused, stored):
    two_phases(engine)
    store(*accounts(3))
    session = watched(twophase=True)
    for row in session.scalars(select(Account)):
        row.balance = 10
    session.commit()
    with session.no_autoflush:
        stale(session, other).balance = 11

    assert [entry.identity for entry in refused(session, session.prepare).entries] == [(0,)]
    session.rollback()
    assert stored(Account, 1)["balance"] == 10


def test_sessions_of_several_threads_do_not_see_each_others_rows(store, engine, stored):
    if engine.dialect.name == "sqlite":
        pytest.skip("one writer at a time")
    store(*accounts(20))
    sessions = watch(sessionmaker(engine))

    def edit(start):
        with sessions() as session, session.begin():
            for row in session.scalars(select(Account).where(Account.id % 4 == start)):
                row.balance = 100 + start

    threads = [threading.Thread(target=edit, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [stored(Account, n)["balance"] for n in range(20)] == [100 + n % 4 for n in range(20)]


# -- statements of the application inside a flush -------------------------------------------------


def test_listeners_of_mappers_and_sessions_are_called_as_ever(store, watched, engine):
    store(*(Stamped(id=n, name="a") for n in range(3)))
    orders = [called_by(Session(engine)), called_by(watched())]

    assert orders[0] == orders[1]
    assert len(orders[0]) == 6


def called_by(session):
    """Change two rows and delete one; who is told about what, in order?"""
    calls, listeners = [], {}
    for name in ("before_update", "after_update", "before_delete", "after_delete"):
        listeners[name] = lambda m, c, target, name=name: calls.append((name, target.id))
        event.listen(Stamped, name, listeners[name])
    for row in session.scalars(select(Stamped).order_by(Stamped.id)):
        row.name = "b"
    session.delete(session.identity_map[Stamped.__mapper__.identity_key_from_primary_key((2,))])
    session.flush()
    session.close()
    for name, listener in listeners.items():
        event.remove(Stamped, name, listener)
    return calls


def test_before_update_may_change_the_row(store, watched, stored, other, refused):
    store(*(Stamped(id=n, name="a") for n in range(3)))

    def before_update(mapper, connection, target):
        target.born = 77

    event.listen(Stamped, "before_update", before_update)
    try:
        session = watched()
        for row in session.scalars(select(Stamped)):
            row.name = "b"
        session.commit()
    finally:
        event.remove(Stamped, "before_update", before_update)

    assert [stored(Stamped, n)["born"] for n in range(3)] == [77] * 3


@pytest.mark.parametrize("how", ["execute", "scalar", "exec_driver_sql", "scalars"])
def test_whatever_is_sent_inside_the_flush_sees_the_rows_before_it(store, watched, how):
    store(*accounts(3))
    seen = []

    def after_update(mapper, connection, target):
        balances = select(Account.balance).where(Account.id == target.id)
        if how == "exec_driver_sql":
            found = connection.exec_driver_sql(
                f"SELECT balance FROM accounts WHERE id = {target.id}"
            ).scalar()
        elif how == "execute":
            found = connection.execute(balances).scalar()
        else:
            found = getattr(connection, how)(balances)
            found = found if how == "scalar" else found.one()
        seen.append(found)

    event.listen(Account, "after_update", after_update)
    try:
        session = watched()
        for row in session.scalars(select(Account)):
            row.balance = 10
        session.flush()
    finally:
        event.remove(Account, "after_update", after_update)

    assert seen == [10, 10, 10]


def test_bulk_statements_inside_a_flush_are_sent_as_they_are(store, watched, stored):
    store(*accounts(3), Tag(id=1, name="a"))

    def after_update(mapper, connection, target):
        connection.execute(update(Tag).values(name=f"seen {target.id}"))

    event.listen(Account, "after_update", after_update)
    try:
        session = watched()
        for row in session.scalars(select(Account).order_by(Account.id)):
            row.balance = 10
        session.commit()
    finally:
        event.remove(Account, "after_update", after_update)

    assert stored(Tag, 1)["name"] == "seen 2"
    assert [stored(Account, n)["balance"] for n in range(3)] == [10] * 3


def test_a_listener_that_changes_a_row_by_hand_makes_no_false_conflict(store, watched, stored):
    """The version is moved by hand as well: the listener's UPDATE comes after ours."""
    store(*accounts(2))

    def after_update(mapper, connection, target):
        table = Account.__table__
        mine = update(table).where(table.c.id == target.id)
        connection.execute(mine.values(note="by hand"))

    event.listen(Account, "after_update", after_update)
    try:
        session = watched()
        for row in session.scalars(select(Account)):
            row.balance = 10
        session.commit()
    finally:
        event.remove(Account, "after_update", after_update)

    assert [(stored(Account, n)["note"], stored(Account, n)["version"]) for n in (0, 1)] == [
        ("by hand", 2)
    ] * 2


def test_unversioned_rows_are_left_to_sqlalchemy(store, watched, stored, gone, engine):
    store(*(Tag(id=n, name="a") for n in range(3)))
    session = watched()
    for row in session.scalars(select(Tag)):
        row.name = "b"
    with Session(engine) as theirs, theirs.begin():
        theirs.get_one(Tag, 1).name = "theirs"
    try:
        session.commit()
    except ConcurrencyError as error:
        assert error.__cause__ is not None  # noqa: PT017
        return

    assert stored(Tag, 1)["name"] == "b"


def test_an_unversioned_row_that_is_gone_is_sqlalchemys_own_error(store, watched, gone):
    store(Tag(id=1, name="a"), Tag(id=2, name="a"), Post(id=1))
    session = watched()
    for row in session.scalars(select(Tag)):
        row.name = "b"
    gone(Tag, 1)
    with pytest.raises(StaleDataError):
        session.flush()
    session.rollback()


def test_bulk_updates_outside_of_a_flush_are_left_alone(store, watched, stored):
    store(*accounts(3))
    session = watched()
    session.execute(update(Account).where(Account.id > 0).values(balance=5))
    session.execute(update(Account), [{"id": 0, "balance": 7, "version": 1}])
    session.commit()

    assert [stored(Account, n)["balance"] for n in range(3)] == [7, 5, 5]


def test_several_flushes_of_one_transaction_move_the_version_each_time(store, watched, stored):
    store(*accounts(3))
    session = watched()
    found = session.scalars(select(Account)).all()
    for turn in range(1, 4):
        for row in found:
            row.balance = turn * 10
        session.flush()
    session.commit()

    assert [(row.version, row.balance) for row in found] == [(4, 30)] * 3
    assert stored(Account, 0)["version"] == 4


def test_new_changed_and_deleted_rows_in_one_flush(store, watched, stored):
    store(*accounts(4))
    session = watched()
    found = session.scalars(select(Account).order_by(Account.id)).all()
    found[0].balance = found[1].balance = 10
    session.delete(found[2])
    session.delete(found[3])
    session.add_all([Account(id=10), Account(id=11)])
    session.commit()

    assert [stored(Account, n) is None for n in (0, 1, 2, 3, 10, 11)] == [
        False, False, True, True, False, False,
    ]  # fmt: skip
    assert [row.version for row in session.scalars(select(Account).order_by(Account.id))] == [
        2, 2, 1, 1,
    ]  # fmt: skip
