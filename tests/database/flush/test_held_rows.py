"""A row that waits to be sent costs one object, and a flush of many rows is sent in parts."""

from __future__ import annotations

import gc

import pytest
from sqlalchemy import event, insert, select
from sqlalchemy.orm import Session

from optilock.testing import count_statements
from tests.support.models import Account, Native, Seat

N = 300


@pytest.mark.parametrize(
    ("model", "column", "objects"), [(Account, "owner", 1), (Native, "text", 1), (Seat, "guest", 2)]
)
def test_a_row_that_is_held_is_one_object_for_the_garbage_collector(
    store, watched, model, column, objects, collect
):
    """Two where its key is of two columns. Counted while rows are held, from one to another."""
    keys = [key.name for key in model.__table__.primary_key]
    store(*(model(**dict.fromkeys(keys, n)) for n in range(N)))
    session = watched()
    for row in session.scalars(select(model)).all():
        setattr(row, column, "new")
    found = []

    def refresh_flush(*_):
        """Called for each row that was held."""
        found.append(len(gc.get_objects()) if len(found) in (N // 3, N - 1) else 0)

    event.listen(model, "refresh_flush", refresh_flush)
    collect()
    gc.disable()
    try:
        session.flush()
    finally:
        gc.enable()
        event.remove(model, "refresh_flush", refresh_flush)

    first, last = N // 3, N - 1
    assert len(found) == N
    assert (found[last] - found[first]) / (last - first) <= objects + 0.1


@pytest.mark.engines("sqlite")
def test_sqlite_gets_a_thousand_rows_at_a_time_and_finds_those_that_missed(
    engine, tables, watched, refused, other
):
    tables(Account)
    with Session(engine) as session, session.begin():
        session.execute(insert(Account.__table__), [{"id": n, "version": 1} for n in range(2_300)])
    session = watched()
    for row in session.scalars(select(Account)).all():
        row.owner = "ours"
    stale = (0, 999, 1_000, 1_999, 2_000, 2_299)
    for key in stale:
        other(Account, key, owner="theirs")
    with count_statements(engine) as sent:
        error = refused(session)

    assert [entry.identity[0] for entry in error.entries] == list(stale)
    updates = [one for one in sent.statements if one.text.startswith("UPDATE")]
    assert len(updates) == 3
