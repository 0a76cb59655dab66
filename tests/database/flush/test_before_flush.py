"""What a flush looks at before it begins, in whatever order it was told of."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, ForeignKey, event, inspect
from sqlalchemy.orm import Mapped, Session, mapped_column, relationship, sessionmaker

from optilock import (
    ConcurrencyError,
    ConfigurationError,
    Entry,
    UnitOfWork,
    Versioned,
    expect,
    store_wins,
    verify,
    watch,
)
from optilock.resolvers import Resolution
from optilock.testing.counting import count_statements
from tests.engines import Target
from tests.support.models import Account, Base, Comment, Draft, Post, key
from tests.support.two_writers import Do

PROGRAM = """
    import os
    import sys
    from sqlalchemy import ForeignKey, create_engine
    from sqlalchemy.orm import *
    from optilock import ConcurrencyError, Versioned, verify, watch

    class Base(DeclarativeBase): pass

    class Order(Versioned, Base):
        __tablename__ = "bf_orders"
        __version_root_of__ = ("lines",)
        id: Mapped[int] = mapped_column(primary_key=True)
        n: Mapped[int] = mapped_column(default=0)
        lines: Mapped[list["Line"]] = relationship()

    class Line(Versioned, Base):
        __tablename__ = "bf_lines"
        id: Mapped[int] = mapped_column(primary_key=True)
        n: Mapped[int] = mapped_column(default=0)
        order_id: Mapped[int] = mapped_column(ForeignKey("bf_orders.id"))

    def run(url, order, act):
        engine = create_engine(url)
        if not url.startswith("sqlite"):
            engine = engine.execution_options(isolation_level="READ COMMITTED")
        if order == "watched-first":
            sessions = watch(sessionmaker(engine))
            configure_mappers()
        else:
            configure_mappers()
            sessions = watch(sessionmaker(engine))

        Base.metadata.create_all(engine)
        with sessions.begin() as session:
            session.add(Order(id=1, lines=[Line(id=1)]))
        session = sessions()
        root, line = session.get(Order, 1), session.get(Line, 1)
        verify(root)
        with sessions.begin() as theirs:
            theirs.get(Order, 1).n = 50
        session.refresh(root)
        line.n = 7
        try:
            getattr(session, act)()
        except ConcurrencyError as error:
            found = [(type(error).__name__, one.model.__name__) for one in error.entries]
            print(order, act, found, flush=True)
        session.rollback()
        Base.metadata.drop_all(engine)
        engine.dispose()

    for order in ("watched-first", "mapped-first"):
        for act in ("flush", "commit"):
            child = os.fork()
            if not child:
                run(sys.argv[1], order, act)
                os._exit(0)
            if os.waitpid(child, 0)[1]:
                print("failed", order, act, flush=True)
"""


@pytest.mark.usually("sqlite-wal")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork()")
@pytest.mark.full
def test_a_promise_is_kept_for_a_root_whoever_was_told_of_flushes_first(database: Target) -> None:
    """The order is settled once in a process, so each case is a process, with the imports done."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(PROGRAM), database.url],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    expected = [
        f"{order} {act} [('ConcurrencyError', 'Order')]"
        for order in ("watched-first", "mapped-first")
        for act in ("flush", "commit")
    ]
    assert (done.stdout.splitlines(), done.stderr) == (expected, "")


@pytest.mark.parametrize("way", [verify, lambda obj: expect(obj, 1)], ids=["verify", "expect"])
def test_a_promise_is_kept_for_a_row_that_a_later_listener_changes(
    store: Do, watched: Do, other: Do, stored: Do, engine: Engine, way: Any
) -> None:
    """The look before the flush came too early to see the change; the one before COMMIT does."""
    store(Account(id=1, owner="Ada"), Account(id=2))
    session: Session = watched()
    if engine.dialect.name != "sqlite":
        session.connection(execution_options={"isolation_level": "READ COMMITTED"})
    mine, second = session.get_one(Account, 1), session.get_one(Account, 2)
    way(mine)
    other(Account, 1, owner="theirs")
    session.refresh(mine)

    @event.listens_for(session, "before_flush")
    def change(*_: Any) -> None:
        mine.note = "by a listener"

    second.note = "mine"
    with pytest.raises(ConcurrencyError) as caught:
        session.commit()
    assert [entry.identity for entry in caught.value.entries] == [(1,)]
    session.rollback()
    assert stored(Account, 1)["note"] is None


# -- after all listeners ---------------------------------------------------------------------------


class Crate(Versioned, Base):
    __tablename__ = "bf_crates"
    __version_root_of__ = ("bottles",)
    id: Mapped[int] = key()
    n: Mapped[int] = mapped_column(default=0)
    bottles: Mapped[list[Bottle]] = relationship(
        back_populates="crate", cascade="all, delete-orphan"
    )


class Bottle(Versioned, Base):
    __tablename__ = "bf_bottles"
    id: Mapped[int] = key()
    n: Mapped[int] = mapped_column(default=0)
    crate_id: Mapped[int | None] = mapped_column(ForeignKey("bf_crates.id"))
    crate: Mapped[Crate | None] = relationship(back_populates="bottles")


class Forgotten(Base):
    __tablename__ = "bf_forgotten"
    id: Mapped[int] = key()
    n: Mapped[int] = mapped_column(default=0)


@contextmanager
def listening(listener: Any, target: Any, **how: Any) -> Iterator[None]:
    event.listen(target, "before_flush", listener, **how)
    try:
        yield
    finally:
        event.remove(target, "before_flush", listener)


@contextmanager
def late(where: str, session: Session, change: Do) -> Iterator[None]:
    """A listener that is registered after everything else; some come beside others."""

    def listener(*_: Any) -> None:
        change(session)

    def nothing(*_: Any) -> None:
        pass

    with ExitStack() as stack:
        if where == "the-session":
            stack.enter_context(listening(listener, session))
        elif where == "first-of-the-session":
            stack.enter_context(listening(nothing, session))
            stack.enter_context(listening(listener, session, insert=True))
        elif where == "its-class":
            stack.enter_context(listening(listener, type(session)))
        elif where == "first-of-its-class":
            stack.enter_context(listening(listener, type(session), insert=True))
        elif where == "all-sessions":
            stack.enter_context(listening(listener, Session))
        else:

            def registers(*_: Any) -> None:
                stack.enter_context(listening(listener, session))

            stack.enter_context(listening(nothing, session))
            stack.enter_context(listening(registers, Session))
        yield


WHERE = (
    "the-session", "first-of-the-session", "its-class", "first-of-its-class", "all-sessions",
    "in-a-listener",
)  # fmt: skip


def half_full(crate: Crate) -> None:
    crate.bottles[0].n = 5


def one_more(crate: Crate) -> None:
    crate.bottles.append(Bottle(id=3))


def one_less(crate: Crate) -> None:
    crate.bottles.pop(0)


@pytest.fixture
def crates(store: Do) -> None:
    store(Crate(id=1, bottles=[Bottle(id=1)]), Crate(id=2, bottles=[Bottle(id=2)]))


@pytest.mark.parametrize("kind", ["watched", "unit", "plain"])
@pytest.mark.parametrize("change", [half_full, one_more, one_less])
@pytest.mark.parametrize("where", WHERE)
def test_a_root_moves_for_what_a_later_listener_changes(
    crates: None, watched: Do, engine: Engine, stored: Do, where: str, change: Do, kind: str
) -> None:
    """A9: whoever registered the listener, when and wherever."""
    if kind == "watched":
        session = watched()
    elif kind == "unit":
        unit = UnitOfWork(sessionmaker(engine))
        session = unit.__enter__()
    else:
        session = Session(engine)
    with late(where, session, lambda session: once(session, change)):
        session.get_one(Crate, 2).n = 1
        if kind == "unit":
            unit.__exit__(None, None, None)
        else:
            session.commit()
            session.close()
    assert [stored(Crate, n)["version"] for n in (1, 2)] == [2, 2]
    assert stored(Crate, 1)["n"] == 0


def once(session: Session, change: Do) -> None:
    """A listener hears of each flush, and changes something in the first one."""
    if not session.info.get("changed"):
        session.info["changed"] = True
        with session.no_autoflush:
            change(session.get_one(Crate, 1))


@pytest.mark.parametrize("where", WHERE)
def test_a_root_that_has_moved_is_a_conflict_of_what_a_later_listener_changes(
    crates: None, watched: Do, other: Do, stored: Do, refused: Do, where: str
) -> None:
    """A9: two writers of one aggregate meet, though a listener made the change."""
    session: Session = watched(autoflush=False)
    crate = session.get_one(Crate, 1)
    bottle = crate.bottles[0]
    session.get_one(Crate, 2).n = 1
    other(Crate, 1, n=7)

    def change(session: Session) -> None:
        bottle.n = 5

    with late(where, session, change):
        assert [entry.model for entry in refused(session).entries] == [Crate]
    session.rollback()
    assert (stored(Bottle, 1)["n"], stored(Crate, 2)["n"]) == (0, 0)


@pytest.mark.parametrize("where", WHERE)
def test_a_strict_session_refuses_what_a_later_listener_changes_before_anything_is_sent(
    store: Do, tables: Do, engine: Engine, where: str
) -> None:
    """A9: and every edit is where it was, the transaction alive."""
    store(Forgotten(id=1), Crate(id=1))
    sessions = watch(sessionmaker(engine), strict=True)
    with sessions() as session:
        row, crate = session.get_one(Forgotten, 1), session.get_one(Crate, 1)
        crate.n = 1

        def change(session: Session) -> None:
            row.n = 5

        with (
            late(where, session, change),
            count_statements(engine) as sent,
            pytest.raises(ConfigurationError, match="Forgotten"),
        ):
            session.flush()
        assert sent.count == 0
        assert (row.n, crate.n, session.is_active) == (5, 1, True)


@pytest.mark.parametrize("way", [verify, lambda obj: expect(obj, 1)], ids=["verify", "expect"])
@pytest.mark.parametrize("where", WHERE)
def test_a_promise_is_asked_before_the_flush_of_what_a_later_listener_changes(
    crates: None, watched: Do, other: Do, engine: Engine, where: str, way: Any
) -> None:
    """A9: nothing was sent for it."""
    session: Session = watched(autoflush=False)
    if engine.dialect.name != "sqlite":
        session.connection(execution_options={"isolation_level": "READ COMMITTED"})
    crate, second = session.get_one(Crate, 1), session.get_one(Crate, 2)
    way(crate)
    other(Crate, 1, n=7)
    session.refresh(crate)
    second.n = 1

    def change(session: Session) -> None:
        crate.n = 8

    with late(where, session, change), pytest.raises(ConcurrencyError) as caught:
        session.flush()
    assert [entry.identity for entry in caught.value.entries] == [(1,)]
    assert (crate.n, second.n) == (8, 1)


def keep_and_write(entry: Entry[Any]) -> Resolution:
    return Resolution.write({"title": "both"})


@pytest.mark.needs("resolves-in-place")
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("resolver", [store_wins, keep_and_write], ids=["kept", "kept-and-written"])
def test_a_row_that_a_later_listener_deletes_is_kept_where_the_resolver_says_so(
    store: Do, watched: Do, other: Do, stored: Do, where: str, resolver: Any
) -> None:
    """A9: the look at rows with dependents comes after the listener, and before the flush."""
    store(Post(id=1, comments=[Comment(id=1)]), Post(id=2), Draft(id=1))
    session: Session = watched(resolver, autoflush=False)
    post, second = session.get_one(Post, 1), session.get_one(Post, 2)
    [comment] = post.comments
    other(Post, 1, title="theirs")
    second.title = "mine"

    def change(session: Session) -> None:
        session.delete(post)

    with late(where, session, change):
        session.flush()
    assert inspect(post).persistent
    assert inspect(comment).persistent
    session.commit()
    written = "both" if resolver is keep_and_write else "theirs"
    assert (stored(Post, 1)["title"], stored(Post, 2)["title"]) == (written, "mine")
    assert stored(Comment, 1)["post_id"] == 1


@pytest.mark.engines("sqlite")
@pytest.mark.filterwarnings("ignore:The `objects` parameter")
def test_a_flush_of_some_objects_leaves_the_root_for_the_next_one(
    crates: None, watched: Do, stored: Do
) -> None:
    """A9: as where no listener is."""
    session: Session = watched(autoflush=False)
    crate, second = session.get_one(Crate, 1), session.get_one(Crate, 2)
    bottle = crate.bottles[0]
    second.n = 1

    def change(session: Session) -> None:
        bottle.n = 5

    with late("the-session", session, change):
        session.flush([second, bottle])
        assert crate in session.dirty
        session.commit()
    assert (stored(Crate, 1)["version"], stored(Crate, 2)["version"]) == (2, 2)
