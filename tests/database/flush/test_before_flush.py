"""What a flush looks at before it begins, in whatever order it was told of."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import Any

import pytest
from sqlalchemy import Engine, event
from sqlalchemy.orm import Session

from optilock import ConcurrencyError, expect, verify
from tests.engines import Target
from tests.models import Account
from tests.two_writers import Do

PROGRAM = """
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

    url, order = sys.argv[1:]
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
        session.{act}()
    except ConcurrencyError as error:
        print([(type(error).__name__, one.model.__name__) for one in error.entries])
    session.rollback()
    Base.metadata.drop_all(engine)
"""


@pytest.mark.usually("sqlite-wal")
@pytest.mark.parametrize("act", ["flush", "commit"])
@pytest.mark.parametrize("order", ["watched-first", "mapped-first"])
def test_a_promise_is_kept_for_a_root_whoever_was_told_of_flushes_first(
    database: Target, order: str, act: str
) -> None:
    """Only a process of its own has told nobody yet."""
    program = textwrap.dedent(PROGRAM).replace("{act}", act)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, database.url, order],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout.strip(), done.stderr) == ("[('ConcurrencyError', 'Order')]", "")


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
