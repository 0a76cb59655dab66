"""SQLAlchemy's own ``version_id_col`` in watched sessions: read with its row, as the mixin's is."""

from __future__ import annotations

import pytest
from sqlalchemy import Boolean, Column, ForeignKey, Integer, String, Table, select, update
from sqlalchemy.orm import DeclarativeBase, Mapped, aliased, defer, load_only, mapped_column

from optilock import ConcurrencyError, ConfigurationError, client_wins, merge_fields, store_wins
from optilock.errors import UnguardedStatement
from optilock.statements import guard_statements
from optilock.testing import count_statements
from tests.support.models import Base, Native, key


class NativeDeferred(Base):
    __tablename__ = "natives_deferred"
    id: Mapped[int] = key()
    text: Mapped[str | None]
    revision: Mapped[int] = mapped_column(deferred=True)
    __mapper_args__ = {"version_id_col": revision}


class NativeParent(Base):
    __tablename__ = "natives_parent"
    id: Mapped[int] = key()
    kind: Mapped[str]
    revision: Mapped[int] = mapped_column()
    __mapper_args__ = {
        "version_id_col": revision,
        "polymorphic_on": "kind",
        "polymorphic_identity": "parent",
    }


class NativeChild(NativeParent):
    __tablename__ = "natives_child"
    id: Mapped[int] = mapped_column(ForeignKey("natives_parent.id"), primary_key=True)
    more: Mapped[str | None]
    __mapper_args__ = {"polymorphic_identity": "child"}


@pytest.mark.parametrize(
    "option", [load_only(Native.text), defer(Native.revision), defer("*")], ids=range(3)
)
@pytest.mark.parametrize("count", [1, 3])
def test_a_version_that_an_option_leaves_out_is_read_all_the_same(
    store, watched, other, refused, option, count
):
    store(*(Native(id=n, text="a") for n in range(count)))
    session = watched()
    rows = session.scalars(select(Native).options(option).order_by(Native.id)).all()
    assert all("revision" in row.__dict__ for row in rows)
    session.expunge_all()
    session.rollback()
    other(Native, 0, text="theirs")
    session.add_all(rows)
    for row in rows:
        row.text = "mine"
    assert [entry.identity for entry in refused(session).entries] == [(0,)]


def test_a_version_that_the_mapping_defers_is_refused(store, watched, stored):
    store(NativeDeferred(id=1, text="a"))
    session = watched()
    session.get_one(NativeDeferred, 1).text = "mine"
    with pytest.raises(ConfigurationError, match="deferred"):
        session.flush()
    session.rollback()
    assert stored(NativeDeferred, 1)["text"] == "a"


def test_statements_that_leave_the_version_are_refused(store, watched, engine, stored):
    """Nothing moves it but a flush, and ``update(Native)`` of a watched session."""
    store(Native(id=1, text="a"), NativeChild(id=1))
    session, natives = watched(), Native.__table__
    alone = [
        update(natives).values(text="mine"),
        update(natives.alias()).values(text="mine"),
        update(aliased(Native)).values(text="mine"),
        update(NativeChild.__table__).values(more="mine"),
    ]
    with count_statements(engine) as sent:
        for statement in alone:
            with pytest.raises(ConfigurationError, match=r"update\(Native|an alias|'revision'"):
                session.execute(statement)
    assert sent.count == 0
    session.execute(update(NativeChild).values(more="mine"))
    session.commit()
    guard_statements(engine, "forbid")
    for statement in (*alone, update(NativeChild).values(more="yours")):
        with engine.connect() as connection, pytest.raises(UnguardedStatement):
            connection.execute(statement)
    session.execute(update(natives).values(text="mine", revision=natives.c.revision + 1))
    session.commit()
    assert (stored(Native, 1)["revision"], stored(NativeChild, 1)["revision"]) == (2, 2)


# -- mapped to a SELECT ---------------------------------------------------------------------------

selected = Table(
    "natives_selected",
    Base.metadata,
    Column("id", Integer, primary_key=True),
    Column("text", String(50)),
    Column("hidden", Boolean, nullable=False, default=False),
    Column("revision", Integer, nullable=False),
)
shown = select(selected).where(selected.c.hidden.is_(False)).subquery("shown")


class Shown(Base):
    """SQLAlchemy checks the version when ``version_id_col`` is the column of the table."""

    __table__ = shown
    __mapper_args__ = {"version_id_col": selected.c.revision, "primary_key": [shown.c.id]}


class Unchecked(Base):
    __table__ = shown
    __mapper_args__ = {"version_id_col": shown.c.revision, "primary_key": [shown.c.id]}


class Whole(Base):
    __table__ = selected
    __mapper_args__ = {"version_id_col": selected.c.revision}


@pytest.mark.parametrize("count", [1, 3])
def test_a_class_that_is_mapped_to_a_select_conflicts(store, watched, other, stored, count):
    store(*(Whole(id=n, text="a") for n in range(1, count + 1)))
    session = watched()
    for row in session.scalars(select(Shown).options(load_only(Shown.text))):
        row.text = "mine"
    other(Whole, 1, text="theirs", hidden=True)
    with pytest.raises(ConcurrencyError) as caught:
        session.flush()
    session.close()

    [entry] = caught.value.entries
    assert (entry.model, entry.identity, entry.kind) == (Shown, (1,), "updated")
    assert (entry.original["text"], entry.current["text"]) == ("a", "mine")
    assert (entry.database["text"], entry.database["revision"]) == ("theirs", 2)
    assert entry.conflicting == {"text"}
    assert stored(Whole, 1)["text"] == "theirs"


@pytest.mark.needs("resolves-in-place")
@pytest.mark.parametrize(
    ("resolver", "text"),
    [(merge_fields, "mine"), (client_wins, "mine"), (store_wins, "a")],
    ids=["merge_fields", "client_wins", "store_wins"],
)
def test_a_resolver_settles_it(store, watched, other, stored, resolver, text):
    store(Whole(id=1, text="a"))
    session = watched(on_conflict=resolver)
    row = session.scalars(select(Shown)).one()
    other(Whole, 1, hidden=True)
    row.text = "mine"
    session.commit()
    assert stored(Whole, 1) == {
        "id": 1,
        "text": text,
        "hidden": True,
        "revision": 3 - (text == "a"),
    }


def test_a_delete_of_such_a_row_conflicts(store, watched, other, stored):
    store(Whole(id=1, text="a"), Whole(id=2, text="a"))
    session = watched()
    for row in session.scalars(select(Shown)):
        session.delete(row)
    other(Whole, 1, text="theirs")
    with pytest.raises(ConcurrencyError) as caught:
        session.flush()
    session.close()
    assert [entry.identity for entry in caught.value.entries] == [(1,)]
    assert stored(Whole, 1)["text"] == "theirs"


def test_rows_that_nobody_changed_are_written(store, watched, stored):
    store(*(Whole(id=n, text="a") for n in (1, 2, 3)))
    session = watched()
    rows = session.scalars(select(Shown).order_by(Shown.id)).all()
    rows[0].text, rows[1].text = "mine", "mine"
    session.delete(rows[2])
    session.commit()
    assert [stored(Whole, n)["text"] for n in (1, 2)] == ["mine", "mine"]
    assert stored(Whole, 3) is None


@pytest.mark.parametrize("deleting", [False, True])
def test_a_version_of_the_select_itself_is_refused(store, watched, stored, deleting):
    """SQLAlchemy writes the table without looking at it: every lost update would pass."""
    store(Whole(id=1, text="a"))
    session = watched()
    row = session.scalars(select(Unchecked)).one()
    row.text = "mine"
    if deleting:
        session.delete(row)
    with pytest.raises(ConfigurationError, match=r"version_id_col=table\.c\.revision"):
        session.flush()
    session.close()
    assert stored(Whole, 1)["text"] == "a"


def test_what_is_no_column_is_left_to_sqlalchemy(watched):
    watched()  # from here on optilock looks at every class that is mapped

    class Own(DeclarativeBase):
        pass

    class Odd(Own):
        __tablename__ = "odd"
        id: Mapped[int] = key()
        __mapper_args__ = {"version_id_col": "revision"}

    assert Odd().id is None
    assert Odd.__mapper__.version_id_col == "revision"
