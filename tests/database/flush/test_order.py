"""What happens around a flush has one order, whoever was imported, watched or asked first."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from itertools import permutations
from typing import Any

import pytest
from sqlalchemy.orm import Session, sessionmaker

from optilock import touch, watch
from optilock._watched.session import order
from tests.support.models import Account
from tests.support.work import calls_of

FIRST = ("watch", "touch", "aggregates", "verify", "unit")
#: Forks before anybody was told of anything, and then does these in every order.
PROGRAM = """
    import os, sys
    from itertools import permutations
    from sqlalchemy import ForeignKey, create_engine
    from sqlalchemy.orm import *
    from optilock import ConcurrencyError, UnitOfWork, Versioned, touch, verify, watch
    from optilock._watched.session import order
    import optilock._watched.guard.installation

    class Base(DeclarativeBase): pass

    class Plain(Versioned, Base):
        __tablename__ = "plains"
        id: Mapped[int] = mapped_column(primary_key=True)

    def steps(of_event):
        names = {step: name for name, (_, step) in order._known[of_event].items()}
        return [names[step] for _, step in order._in_order[of_event]]

    def in_order(first):
        engine = create_engine("sqlite://")
        Base.metadata.create_all(engine)
        class Rooted(DeclarativeBase): pass
        class Order(Versioned, Rooted):
            __tablename__ = "orders"
            __version_root_of__ = ("lines",)
            id: Mapped[int] = mapped_column(primary_key=True)
            lines: Mapped[list["Line"]] = relationship("Line")
        class Line(Versioned, Rooted):
            __tablename__ = "lines"
            id: Mapped[int] = mapped_column(primary_key=True)
            n: Mapped[int] = mapped_column(default=0)
            order_id: Mapped[int] = mapped_column(ForeignKey(Order.id))

        with engine.begin() as connection:
            connection.exec_driver_sql("INSERT INTO plains (id, version) VALUES (1, 1)")

        def do_watch(): watch(sessionmaker(engine))
        def do_touch():
            with Session(engine) as session: touch(session.get(Plain, 1))
        def do_aggregates(): Rooted.registry.configure()
        def do_verify():
            with watch(sessionmaker(engine))() as session: verify(session.get(Plain, 1))
        def do_unit():
            scope = scoped_session(sessionmaker(engine))
            scope()
            with UnitOfWork(scope): pass
        for one in first: locals()["do_" + one]()

        Rooted.metadata.create_all(engine)
        sessions = watch(sessionmaker(engine))
        with sessions.begin() as session: session.add(Order(id=1, lines=[Line(id=1)]))
        session = sessions()
        root, line = session.get(Order, 1), session.get(Line, 1)
        verify(root)
        with engine.begin() as connection:
            connection.exec_driver_sql("UPDATE orders SET version = 7")
        session.refresh(root)
        line.n = 7
        try:
            session.commit()
        except ConcurrencyError as error:
            found = [one.model.__name__ for one in error.entries]
        return found, steps("before_flush"), steps("before_commit")

    every, *names = sys.argv[1:]
    for first in [*permutations(names)][:: int(every)]:
        child = os.fork()
        if not child:
            print(*in_order(first), flush=True)
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            print("failed", first, flush=True)
"""


@pytest.mark.engines("sqlite")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork()")
def test_the_steps_have_one_order_whoever_was_first(engine: Any, tries: Any) -> None:
    every = tries(7, 7, 1)  # so each step is the first one sometimes
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(PROGRAM), str(every), *FIRST],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    expected = "['Order'] ['beside', 'touches', 'roots', 'guard'] ['touches', 'promises']"
    assert done.stderr == ""
    assert set(done.stdout.splitlines()) == {expected}
    assert len(done.stdout.splitlines()) == len([*permutations(FIRST)][::every])


@pytest.mark.engines("sqlite")
@pytest.mark.parametrize("below_first", [True, False])
def test_two_watched_classes_one_above_the_other_call_each_step_once(
    engine: Any, store: Any, below_first: bool
) -> None:
    class Above(Session):
        pass

    class Below(Above):
        pass

    for cls in (Below, Above) if below_first else (Above, Below):
        watch(cls)
    store(Account(id=1))

    def work() -> None:
        with Below(engine) as session:
            session.get_one(Account, 1).note = "changed"
            session.commit()

    files = ("_watched/guard/flush.py", "_watched/guard/session_events.py")
    called = [name for file, name in calls_of(work) if file.endswith(files)]
    steps = ("_after_begin", "before_flush", "after_flush", "_after_commit")
    assert [called.count(step) for step in steps] == [1] * len(steps)


@pytest.mark.engines("sqlite")
def test_a_class_that_is_made_below_a_watched_one_later_calls_each_step_once(
    engine: Any, store: Any
) -> None:
    above = watch(sessionmaker(engine)).class_
    below = watch(sessionmaker(engine, class_=above))
    store(Account(id=1))

    def work() -> None:
        with below.begin() as session:
            session.get_one(Account, 1).note = "changed"

    called = [name for file, name in calls_of(work) if "/watched/guard/" in file]
    assert (called.count("_after_begin"), called.count("_after_commit")) == (1, 1)


@pytest.mark.engines("sqlite")
def test_a_step_is_asked_only_by_sessions_that_have_something_for_it(
    engine: Any, store: Any
) -> None:
    store(Account(id=1))
    with Session(engine) as session:
        touch(session.get_one(Account, 1))

    def work() -> None:
        with Session(engine) as session:
            session.get_one(Account, 1).note = "changed"
            session.commit()

    work()
    ours = [name for file, name in calls_of(work) if "/optilock/_watched/rows/touch" in file]
    assert ours == []


def test_every_step_of_the_order_is_told_of_in_words() -> None:
    told = order.__doc__ or ""
    for name, steps in order.ORDER.items():
        assert [step for step in steps if f"*{step}*" not in told] == [], name


def test_a_step_that_is_not_in_the_order_is_refused() -> None:
    with pytest.raises(LookupError, match="'another' is not in the order of before_flush"):
        order.add_step("another", None, before_flush=lambda *_: None)
