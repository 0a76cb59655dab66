"""Another writer moves a row away, and puts it back before anybody looks at the row that missed.

The UPDATE or DELETE has found nothing. The look, under a lock, finds the row as it was read. So
nothing kept the row but a writer who has taken his change back, and the row is sent once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, event, select, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Mapped, Session, mapped_column

from optilock import Entry, Versioned, bulk_delete, bulk_update
from optilock.testing import count_statements
from optilock.tokens import RowVersion
from tests.engines import Target
from tests.support.models import Account, Base, Page, key

WRITES = ("UPDATE", "DELETE", "WITH")
servers = pytest.mark.engines("postgresql", "mariadb")


class Made(Versioned, Base):
    """The database makes the version, and SQLAlchemy asks for it with RETURNING."""

    __tablename__ = "came_back_made"
    __version_token__ = RowVersion()
    id: Mapped[int] = key()
    size: Mapped[int] = mapped_column(default=0)


@pytest.fixture
def committed(database: Target) -> Iterator[Engine]:
    """Sees what others commit meanwhile, and keeps no row locked that it has not found."""
    engine = database.engine(isolation_level="READ COMMITTED")
    yield engine
    engine.dispose()


@pytest.fixture
def away(engine: Engine) -> Callable[..., Callable[[], None]]:
    """Another writer takes rows away, at once, and puts them back when he is told."""

    def away(table: Any, leave: str, come: str) -> Callable[[], None]:
        with engine.begin() as connection:
            rows = connection.execute(select(table)).mappings().all()
            connection.execute(text(leave))

        def back() -> None:
            with engine.begin() as connection:
                if come:
                    connection.execute(text(come))
                else:
                    there = set(connection.scalars(select(table.c.id)))
                    missing = [dict(row) for row in rows if row["id"] not in there]
                    connection.execute(table.insert(), missing)

        return back

    return away


def before_the_look(session: Session, back: Callable[[], None]) -> list[Callable[[], None]]:
    """Let the other writer put his rows back after the first write, before the look at them."""
    waiting, written = [back], []

    def sent(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if statement.startswith(WRITES):
            written.append(statement)
        elif statement.startswith("SELECT") and written and waiting:
            waiting.pop()()

    event.listen(session.connection(), "before_cursor_execute", sent)
    return waiting


def never(entry: Entry[Any]) -> Any:
    raise AssertionError("nothing is to be settled")


def edit(session: Session, ids: tuple[int, ...]) -> None:
    for row in session.scalars(select(Account).where(Account.id.in_(ids)).order_by(Account.id)):
        row.owner = "mine"


def drop(session: Session, ids: tuple[int, ...]) -> None:
    for row in session.scalars(select(Account).where(Account.id.in_(ids)).order_by(Account.id)):
        session.delete(row)


MOVED = "UPDATE accounts SET version = 4 WHERE id = 1"
RESTORED = "UPDATE accounts SET version = 1 WHERE id = 1"
GONE = "DELETE FROM accounts WHERE id = 1"


@servers
@pytest.mark.parametrize("resolver", [None, never])
@pytest.mark.parametrize("write", [edit, drop])
@pytest.mark.parametrize(
    ("ids", "leave", "come"),
    [
        ((1,), MOVED, RESTORED),
        ((1,), GONE, ""),
        ((1, 2, 3), GONE, ""),  # of rows that are there, nobody can put one back: they are locked
    ],
)
def test_a_row_that_is_as_it_was_read_again_is_written(
    store, watched_on, committed, stored, away, write, ids, leave, come, resolver
):
    store(*(Account(id=n, owner="a") for n in (1, 2, 3)))
    session = watched_on(committed, resolver)
    write(session, ids)
    waiting = before_the_look(session, away(Account.__table__, leave, come))
    with count_statements(committed) as sent:
        session.commit()

    assert not waiting
    assert [stored(Account, n) and stored(Account, n)["owner"] for n in ids] == (
        ["mine"] * len(ids) if write is edit else [None] * len(ids)
    )
    verb = "UPDATE" if write is edit else "DELETE"
    assert sent.statements[-1].text.startswith(verb)  # once more, and nothing after it


@servers
def test_a_row_of_which_only_an_ignored_column_changes_is_written(
    store, watched_on, committed, stored, away
):
    store(Page(id=1, body="a"))
    session = watched_on(committed, never)
    session.get_one(Page, 1).views = 7
    waiting = before_the_look(session, away(Page.__table__, "DELETE FROM pages", ""))
    session.commit()

    assert not waiting
    assert stored(Page, 1)["views"] == 7


@pytest.mark.engines("postgresql")
def test_the_object_knows_what_the_database_has_made(store, watched_on, committed, stored, away):
    store(Made(id=1))
    session = watched_on(committed, never)
    made = session.get_one(Made, 1)
    made.size = 7
    waiting = before_the_look(session, away(Made.__table__, "DELETE FROM came_back_made", ""))
    with count_statements(committed) as sent:
        session.flush()

        assert not waiting
        assert made.version > 1
    assert sent.statements[-1].text.startswith("UPDATE")
    made.size = 8
    session.commit()
    assert stored(Made, 1)["size"] == 8


@servers
@pytest.mark.parametrize("act", [bulk_update, bulk_delete])
def test_a_row_of_a_bulk_call_is_written(store, watched_on, committed, stored, away, act):
    store(Account(id=1, owner="a"))
    session = watched_on(committed)
    waiting = before_the_look(session, away(Account.__table__, MOVED, RESTORED))
    row = {"id": 1, "version": 1} | ({"owner": "mine"} if act is bulk_update else {})
    done = act(session, Account, [row])
    session.commit()

    assert not waiting
    assert not done.conflicts
    row = stored(Account, 1)
    assert row is None if act is bulk_delete else row["owner"] == "mine"


@pytest.mark.engines("sqlite")
def test_on_sqlite_nobody_gets_between_the_write_and_the_look(
    store, watched, engine, away, refused
):
    """The UPDATE has the lock of the whole file, also where it has found nothing."""
    store(Account(id=1, owner="a"))
    session = watched(expire_on_commit=False)
    account = session.get_one(Account, 1)
    session.commit()
    back = away(Account.__table__, MOVED, RESTORED)
    account.owner = "mine"

    def locked_out() -> None:
        with pytest.raises(OperationalError, match="locked"):
            back()

    waiting = before_the_look(session, locked_out)
    assert refused(session).entries[0].database["version"] == 4
    assert not waiting
