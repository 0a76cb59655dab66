"""SQLAlchemy's own ``version_id_col`` in watched sessions: read with its row, as the mixin's is."""

from __future__ import annotations

import pytest
from sqlalchemy import ForeignKey, select, update
from sqlalchemy.orm import Mapped, aliased, defer, load_only, mapped_column

from optilock import ConfigurationError, UnguardedStatement, guard_statements
from optilock.testing import count_statements
from tests.models import Base, Native, key


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
    guard_statements(engine, "forbid")
    for statement in alone:
        with engine.connect() as connection, pytest.raises(UnguardedStatement):
            connection.execute(statement)
    session.execute(update(natives).values(text="mine", revision=natives.c.revision + 1))
    session.execute(update(NativeChild).values(more="mine"))
    session.commit()
    assert (stored(Native, 1)["revision"], stored(NativeChild, 1)["revision"]) == (2, 2)
