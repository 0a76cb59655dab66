"""What is sent, counted at the driver: one statement a table, and nothing more than without us."""

from __future__ import annotations

import pytest
from sqlalchemy import event, select

from optilock import ConcurrencyError, client_wins, merge_fields
from optilock.testing import count_statements
from tests.support.models import Account, Dog, Note, Page, Ranked, Stamped


def words(sent):
    """UPDATE, SELECT, … in order; a WITH that updates is an UPDATE in one statement."""
    return [statement.text.split()[0] for statement in sent.statements]


def expected(engine, count):
    """PostgreSQL: one statement. SQLite: one executemany. MariaDB: lock, then one statement."""
    if count == 1:
        return ["UPDATE"]
    return {"postgresql": ["WITH"], "sqlite": ["UPDATE"]}.get(
        engine.dialect.name, ["SELECT", "UPDATE"]
    )


@pytest.mark.parametrize("count", [1, 2, 10, 1000])
def test_rows_of_one_table_are_one_write(store, watched, engine, count):
    store(*(Account(id=n, balance=0) for n in range(count)))
    session = watched()
    for row in session.scalars(select(Account)):
        row.balance = 1
    with count_statements(engine) as sent:
        session.flush()

    assert words(sent) == expected(engine, count)


@pytest.mark.parametrize("count", [2, 10, 1000])
def test_alternating_columns_are_one_write_or_one_for_each_set(store, watched, engine, count):
    store(*(Account(id=n, balance=0) for n in range(count)))
    session = watched()
    for row in session.scalars(select(Account)):
        setattr(row, "owner" if row.id % 2 else "note", "x")
    with count_statements(engine) as sent:
        session.flush()

    if engine.dialect.name == "sqlite":
        assert words(sent) == ["UPDATE", "UPDATE"]
    else:
        assert words(sent) == expected(engine, count)


@pytest.mark.parametrize("resolver", [None, merge_fields, client_wins])
def test_a_resolver_costs_nothing_when_nothing_conflicts(store, watched, engine, resolver):
    store(*(Account(id=n, balance=0) for n in range(10)))
    session = watched(resolver)
    for row in session.scalars(select(Account)):
        row.balance = 1
    with count_statements(engine) as sent:
        session.commit()

    assert words(sent) == expected(engine, 10)


@pytest.mark.needs("resolves-in-place")
@pytest.mark.parametrize("count", [20, 300])
def test_conflicts_cost_two_more_statements_a_table(store, watched, other, engine, count):
    store(*(Account(id=n, balance=0) for n in range(count)))
    session = watched(merge_fields)
    for row in session.scalars(select(Account)):
        row.balance = 1
    for n in range(0, count, count // 10):
        other(Account, n, owner="theirs")
    with count_statements(engine) as sent:
        session.flush()

    written = "WITH" if engine.dialect.name == "postgresql" else "UPDATE"
    assert words(sent) == [*expected(engine, count), "SELECT", written]


@pytest.mark.needs("resolves-in-place")
def test_a_refusal_costs_one_more_statement(store, watched, other, engine):
    store(*(Account(id=n, balance=0) for n in range(10)))
    session = watched()
    for row in session.scalars(select(Account)):
        row.balance = 1
    other(Account, 3, owner="theirs")
    with count_statements(engine) as sent, pytest.raises(ConcurrencyError):
        session.flush()

    assert words(sent) == [*expected(engine, 10), "SELECT"]


def test_two_tables_are_two_writes(store, watched, engine):
    store(*(Account(id=n) for n in range(5)), *(Note(id=n) for n in range(5)))
    session = watched(autoflush=False)
    for row in session.scalars(select(Account)):
        row.owner = "x"
    for row in session.scalars(select(Note)):
        row.text = "x"
    with count_statements(engine) as sent:
        session.flush()

    assert words(sent).count("UPDATE") + words(sent).count("WITH") == 2


def test_deletes_are_one_write(store, watched, engine):
    store(*(Account(id=n) for n in range(10)))
    session = watched()
    for row in session.scalars(select(Account)):
        session.delete(row)
    with count_statements(engine) as sent:
        session.flush()

    assert words(sent) == {"postgresql": ["WITH"], "sqlite": ["DELETE"]}.get(
        engine.dialect.name, ["SELECT", "DELETE"]
    )


def test_what_nobody_changed_is_not_written(store, watched, stored, engine):
    """RL-25, EC-09"""
    store(*(Account(id=n, owner="a") for n in range(3)))
    session = watched()
    for row in session.scalars(select(Account)):
        row.owner = "b"
        row.owner = "a"
        row.balance = 0
    with count_statements(engine) as sent:
        session.commit()

    assert sent.count == 0
    assert [stored(Account, n)["version"] for n in range(3)] == [1, 1, 1]


@pytest.mark.needs("resolves-in-place")
def test_ignored_columns_alone_neither_check_nor_bump(store, watched, other, stored, engine):
    """HB-07"""
    store(Page(id=1, body="a", views=0), Page(id=2, body="a", views=0))
    session = watched()
    for row in session.scalars(select(Page)):
        row.views = 5
    other(Page, 1, body="theirs")
    session.commit()

    assert (stored(Page, 1)["views"], stored(Page, 1)["body"]) == (5, "theirs")
    assert (stored(Page, 1)["version"], stored(Page, 2)["version"]) == (2, 1)


@pytest.mark.engines("sqlite", "postgresql")
def test_unique_columns_go_row_by_row(store, watched, engine):
    store(*(Ranked(id=n, rank=n + 1) for n in range(5)))
    session = watched()
    for row in session.scalars(select(Ranked).order_by(Ranked.id)):
        row.rank -= 1
    with count_statements(engine) as sent:
        session.flush()

    assert words(sent) == ["UPDATE"] * 5


def test_echo_and_tracers_see_every_statement_that_is_sent(store, watched, engine):
    """The events of the engine and of the driver's cursor tell the same story."""
    store(*(Account(id=n) for n in range(3)))
    session = watched()
    rows = session.scalars(select(Account)).all()
    begun, ended = [], []
    event.listen(engine, "before_cursor_execute", lambda *a: begun.append(a[2]))
    event.listen(engine, "after_cursor_execute", lambda *a: ended.append(a[2]))
    for row in rows:
        row.balance = 1
    with count_statements(engine) as sent:
        session.flush()

    assert begun == ended == [statement.text for statement in sent.statements]


def test_the_connection_is_left_as_it_was(store, watched, other):
    store(*(Account(id=n) for n in range(3)))
    session = watched()
    connection = session.connection()
    before = set(vars(connection))
    for row in session.scalars(select(Account)):
        row.balance = 1
    session.flush()

    assert set(vars(connection)) == before


def test_the_connection_is_left_as_it_was_by_a_refusal(store, watched, other, refused):
    store(*(Account(id=n) for n in range(3)))
    session = watched()
    connection = session.connection()
    before = dict(vars(connection))
    rows = session.scalars(select(Account)).all()
    for row in rows:
        row.balance = 1
    other(Account, 1, owner="theirs")
    refused(session)

    for name in ("execute", "scalar", "exec_driver_sql"):
        assert vars(connection)[name] is before[name]


def test_statements_sent_by_mapper_events_see_the_rows_and_are_in_order(
    store, watched, engine, tables
):
    """What an after_update listener asks finds the row as it was just written."""
    store(*(Stamped(id=n, name="a") for n in range(3)))
    seen = []

    def after_update(mapper, connection, target):
        names = select(Stamped.name).where(Stamped.id == target.id)
        seen.append(connection.scalar(names))

    event.listen(Stamped, "after_update", after_update)
    try:
        session = watched()
        for row in session.scalars(select(Stamped)):
            row.name = f"n{row.id}"
        session.flush()
    finally:
        event.remove(Stamped, "after_update", after_update)

    assert seen == ["n0", "n1", "n2"]


def test_joined_rows_are_one_write_a_table(store, watched, engine):
    store(*(Dog(id=n, name="a", tricks="b") for n in range(10)))
    session = watched()
    for row in session.scalars(select(Dog)):
        row.name = row.tricks = "c"
    with count_statements(engine) as sent:
        session.flush()

    assert words(sent) == [*expected(engine, 10), "UPDATE"]


@pytest.mark.engines("postgresql", "mariadb")
@pytest.mark.parametrize("delete", [False, True])
def test_the_rows_are_locked_in_the_order_of_their_keys(store, watched, engine, delete):
    """By the statement itself: the order in which rows are given does not order the locks."""
    store(*(Account(id=n) for n in range(3)))
    session = watched()
    for row in session.scalars(select(Account)):
        row.balance = 1
        if delete:
            session.delete(row)
    with count_statements(engine) as sent:
        session.flush()
    weaker = engine.dialect.name == "postgresql" and not delete

    locking = " ".join(sent.statements[0].text.split())
    assert f"ORDER BY accounts.id FOR {'NO KEY ' if weaker else ''}UPDATE" in locking
