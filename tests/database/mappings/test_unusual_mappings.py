"""Mappings that are not one attribute for each column, and a key that is the table's."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Column, ForeignKey, Integer, String, Table, func, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import (
    Mapped,
    Session,
    column_property,
    mapped_column,
    relationship,
)

from optilock import ConcurrencyError, Versioned, client_wins, merge_fields
from optilock.tokens import CompareValues, Counter
from tests.support.models import key, own_base

Base = own_base()


def table_of(name: str, *columns: Column[Any]) -> Table:
    return Table(
        name,
        Base.metadata,
        *columns,
        Column("title", String(20)),
        Column("note", String(20)),
        Column("version", Integer, nullable=False),
    )


def key_column(**options: Any) -> Column[Any]:
    return Column("id", Integer, primary_key=True, autoincrement=False, **options)


class Twice(Versioned, Base):
    """One column under two attributes: SQLAlchemy writes the last one."""

    __table__ = table_of("um_twices", key_column())
    __version_token__ = Counter()


Twice.also = column_property(Twice.__table__.c.title)


class ByCode(Versioned, Base):
    """Its key is not that of its table."""

    __table__ = table_of("um_codes", key_column(), Column("code", Integer, unique=True))
    __version_token__ = Counter()
    __mapper_args__ = {"primary_key": [__table__.c.code]}


class ByBoth(Versioned, Base):
    """Its key is more than that of its table."""

    __table__ = table_of("um_boths", key_column(), Column("code", Integer))
    __version_token__ = Counter()
    __mapper_args__ = {"primary_key": [__table__.c.code, __table__.c.id]}


class ByPart(Versioned, Base):
    """Its key is a part of that of its table."""

    __table__ = table_of(
        "um_parts",
        key_column(),
        Column("code", Integer, primary_key=True, autoincrement=False, unique=True),
    )
    __version_token__ = Counter()
    __mapper_args__ = {"primary_key": [__table__.c.code]}


class Compared(Versioned, Base):
    """The same, and values are compared besides the version."""

    __table__ = table_of("um_compared", key_column(), Column("code", Integer, unique=True))
    __version_token__ = (Counter(), CompareValues("title", "note"))
    __mapper_args__ = {"primary_key": [__table__.c.code]}


class Valued(Versioned, Base):
    """The same, and its rows have no version."""

    __table__ = Table(
        "um_valued",
        Base.metadata,
        key_column(),
        Column("code", Integer, unique=True),
        Column("title", String(20)),
        Column("note", String(20)),
    )
    __version_token__ = CompareValues("title", "note")
    __mapper_args__ = {"primary_key": [__table__.c.code]}


class Hidden(Versioned, Base):
    """It does not map columns that change with each UPDATE."""

    __table__ = table_of(
        "um_hiddens",
        key_column(),
        Column("by_python", String(20), onupdate=lambda: "u"),
        Column("by_sql", Integer, onupdate=func.abs(-8)),
        Column("by_server", String(20), server_default="s", server_onupdate=text("s")),
    )
    __version_token__ = Counter()
    __mapper_args__ = {"exclude_properties": ["by_python", "by_sql", "by_server"]}


class Named(Versioned, Base):
    """Others refer to its rows by another column than the key."""

    __tablename__ = "um_names"
    id: Mapped[int] = key()
    name: Mapped[str] = mapped_column(unique=True)
    note: Mapped[str | None]


class Follower(Versioned, Base):
    __tablename__ = "um_followers"
    id: Mapped[int] = key()
    name: Mapped[str | None] = mapped_column(
        ForeignKey("um_names.name", onupdate="CASCADE", deferrable=True, initially="DEFERRED")
    )
    named: Mapped[Named | None] = relationship(passive_updates=False)


@pytest.fixture
def elsewhere(watched):
    """Another program changes a row, or deletes it, and commits; rows without a version, too."""

    def elsewhere(model: Any, key: Any, **values: Any) -> None:
        session = watched()
        row = session.get_one(model, key)
        for name, value in values.items():
            setattr(row, name, value)
        if not values:
            session.delete(row)
        session.commit()
        session.close()

    return elsewhere


OF_ANOTHER_KEY = [ByCode, ByBoth, ByPart, Compared, Valued]


def key_of(model: Any, number: int) -> Any:
    return (number + 5, number) if model is ByBoth else number + 5


def rows_of(model: Any, count: int = 3) -> list[Any]:
    return [model(id=n, code=n + 5, title="a", note="a") for n in range(1, count + 1)]


def test_of_two_attributes_of_a_column_the_last_one_is_written(store, watched, stored):
    """C3"""
    store(Twice(id=1, also="a"))
    session, plain = watched(), Session(watched().get_bind())
    for number in range(3):
        for made in (plain, session):
            one = made.get_one(Twice, 1)
            one.title = f"t{number}"
            made.commit()
            assert stored(Twice, 1)["title"] == (f"a{number - 1}" if number else "a")
        one = session.get_one(Twice, 1)
        one.also = f"a{number}"
        session.commit()
        assert stored(Twice, 1)["title"] == f"a{number}"
    plain.close()
    assert stored(Twice, 1)["version"] == 4


def test_a_conflict_names_the_attribute_that_is_written(store, watched, other, stored, refused):
    """C3"""
    store(Twice(id=1, also="a", note="a"))
    session = watched()
    one = session.get_one(Twice, 1)
    one.title, one.also = "t", "mine"
    other(Twice, 1, also="theirs")
    (entry,) = refused(session).entries
    assert entry.changes == {"also": "mine"}
    assert entry.conflicting == {"also"}
    session.rollback()

    session = watched(client_wins)
    one = session.get_one(Twice, 1)
    one.title, one.also = "t", "mine"
    other(Twice, 1, also="theirs again", note="theirs")
    session.commit()
    assert stored(Twice, 1)["title"] == "mine"
    assert stored(Twice, 1)["note"] == "theirs"


@pytest.mark.parametrize("model", OF_ANOTHER_KEY)
def test_rows_of_another_key_are_written_again_and_again(model, store, watched, stored):
    """C4"""
    store(*rows_of(model))
    session = watched()
    for title in "bcd":
        for number in (3, 1, 2):
            session.get_one(model, key_of(model, number)).title = title
        session.commit()
    assert stored(model, key_of(model, 1))["title"] == "d"
    one = session.get_one(model, key_of(model, 1))
    one.title = "e"
    session.commit()
    session.delete(one)
    session.delete(session.get_one(model, key_of(model, 2)))
    session.commit()
    assert [stored(model, key_of(model, number)) is None for number in (1, 2, 3)] == [1, 1, 0]


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("model", OF_ANOTHER_KEY)
def test_rows_of_another_key_conflict_and_are_merged(
    model, count, store, watched, elsewhere, stored, refused
):
    """C4"""
    store(*rows_of(model))
    keys = [key_of(model, number) for number in range(1, count + 1)]
    session = watched()
    for one in [session.get_one(model, one) for one in keys]:
        one.title = "mine"
    elsewhere(model, keys[0], title="theirs")
    (entry,) = refused(session).entries
    assert entry.identity == tuple(keys[0] if isinstance(keys[0], tuple) else (keys[0],))
    assert entry.conflicting == {"title"}
    assert entry.database["title"] == "theirs"
    session.rollback()

    session = watched(merge_fields)
    for one in [session.get_one(model, one) for one in keys]:
        one.title = "merged"
    elsewhere(model, keys[0], note="theirs")
    session.commit()
    found = stored(model, keys[0])
    assert (found["title"], found["note"]) == ("merged", "theirs")


@pytest.mark.parametrize("model", OF_ANOTHER_KEY)
def test_rows_of_another_key_are_deleted_and_inserted_again(
    model, store, watched, elsewhere, stored
):
    """C4"""
    store(*rows_of(model))
    one, two = key_of(model, 1), key_of(model, 2)
    session = watched(client_wins)
    first, second = session.get_one(model, one), session.get_one(model, two)
    session.delete(first)
    second.title = "mine"
    elsewhere(model, one, title="theirs")
    elsewhere(model, two)
    session.commit()
    assert stored(model, one) is None
    assert stored(model, two)["title"] == "mine"


@pytest.mark.parametrize("count", [1, 3])
def test_a_conflict_of_a_row_with_columns_that_no_attribute_has(
    count, store, watched, other, stored, refused
):
    """C5"""
    store(*(Hidden(id=n, title="a", note="a") for n in (1, 2, 3)))
    for resolver in (None, merge_fields):
        session = watched(resolver)
        for one in [session.get_one(Hidden, number) for number in range(1, count + 1)]:
            one.title = f"mine {resolver is None}"
        other(Hidden, 1, note=f"theirs {resolver is None}")
        if resolver is None:
            (entry,) = refused(session).entries
            assert entry.changes == {"title": "mine True"}
            session.rollback()
        else:
            session.commit()
    found = stored(Hidden, 1)
    assert (found["title"], found["note"]) == ("mine False", "theirs False")
    with Session(session.get_bind()) as plain:
        table = Hidden.__table__
        rows = plain.execute(select(table.c.by_python, table.c.by_sql).where(table.c.id == 1))
        assert rows.one() == ("u", 8)


def test_an_error_of_the_database_is_told_of_such_a_row(store, watched):
    """C5"""
    store(*(Hidden(id=n, title="a") for n in (1, 2, 3)))
    session = watched()
    session.get_one(Hidden, 1).title = "x"
    session.add(Hidden(id=3, title="taken"))
    with pytest.raises(IntegrityError):
        session.commit()


def test_an_edit_over_a_deleted_row_of_such_a_class(store, watched, gone):
    """C5"""
    store(Hidden(id=1, title="a"))
    session = watched()
    session.get_one(Hidden, 1).title = "x"
    gone(Hidden, 1)
    with pytest.raises(ConcurrencyError) as refused:
        session.commit()
    assert refused.value.entries[0].kind == "deleted"


@pytest.mark.engines("sqlite", "postgresql")
def test_a_column_that_others_refer_to_takes_them_along(store, watched, stored):
    """As the plan of SQLAlchemy's own flush does."""
    store(Named(id=1, name="a"))
    store(Follower(id=1, name="a"))
    session = watched()
    one, follower = session.get_one(Named, 1), session.get_one(Follower, 1)
    assert follower.named is one
    for name in "bc":
        one.note = name
        session.flush()
        one.name = name
        session.flush()
        assert follower.name == name
    session.commit()
    assert stored(Follower, 1)["name"] == "c"
