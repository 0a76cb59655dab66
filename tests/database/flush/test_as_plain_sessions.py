"""What is odd in a flush comes out of a watched session as it comes out of a plain one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Integer, String, TypeDecorator, event, inspect
from sqlalchemy.exc import PendingRollbackError, SAWarning
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from optilock import ConcurrencyError, Versioned, watch
from tests.models import key


class Base(DeclarativeBase):
    type_annotation_map = {str: String(60)}


class Stop(BaseException):
    """As Ctrl-C is one."""


class Picky(TypeDecorator[str]):
    impl = String(20)
    cache_ok = True

    def compare_values(self, x: Any, y: Any) -> bool:
        if "bad" in (x or ""):
            raise ValueError(x)
        if "stop" in (x or ""):
            raise Stop
        return bool(x == y)


class Cell:
    """It cannot be sorted."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cell) and other.number == self.number

    def __hash__(self) -> int:
        return hash(self.number)


class CellType(TypeDecorator[Any]):
    impl = Integer
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> Any:
        return value.number if isinstance(value, Cell) else value

    def process_result_value(self, value: Any, dialect: Any) -> Any:
        return Cell(value)


class Part(Versioned, Base):
    __tablename__ = "ap_parts"
    id: Mapped[int] = key()
    title: Mapped[str | None] = mapped_column(Picky)
    note: Mapped[str | None]


class Unsorted(Versioned, Base):
    __tablename__ = "ap_unsorted"
    id: Mapped[Any] = mapped_column(CellType, primary_key=True, autoincrement=False)
    note: Mapped[str | None]


_changing: list[Callable[[], None]] = []


def changing() -> str:
    for change in _changing:
        change()
    return "made"


class Changing(Versioned, Base):
    """Where its value is made, other objects may change."""

    __tablename__ = "ap_changing"
    id: Mapped[int] = key()
    note: Mapped[str | None]
    made: Mapped[str | None] = mapped_column(onupdate=changing)


@pytest.fixture
def makers(engine) -> list[Any]:
    """A plain and a watched ``sessionmaker``; the guard knows the statements."""
    Base.metadata.create_all(engine)
    made = [sessionmaker(engine), watch(sessionmaker(engine))]
    for model in (Part, Changing):
        for one in made:
            with one() as session, session.begin():
                if session.get(model, 1) is None:
                    session.add_all(model(id=n, note="a") for n in (1, 2))
            with one() as session, session.begin():
                session.get_one(model, 1).note += "."
    return made


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("value", ["bad", "stop"])
def test_an_error_while_a_flush_looks_at_values(makers, value, nested):
    """C6"""
    said = []
    for made in makers:
        with made() as session:
            one, two = session.get_one(Part, 1), session.get_one(Part, 2)
            one.note = "written"
            session.flush()
            if nested:
                session.begin_nested()
            two.title = value
            with pytest.raises((ValueError, Stop)) as failed:
                session.flush()
            said.append([type(failed.value), session.is_active, session.in_transaction()])
            session.rollback()
            said[-1] += [session.is_active, two.title, one.note]
            two.title = "good"
            session.commit()
            two.title = None
            session.commit()
    assert said[0] == said[1]
    assert said[0][1] is False


@pytest.mark.parametrize("deleting", [False, True])
def test_a_value_that_was_deleted_from_its_object(makers, deleting):
    """C6"""
    said: list[list[Any]] = []
    for made in makers:
        with made() as session:
            session.get_one(Part, 2).note = "written"
            session.flush()
            one = session.get_one(Part, 1)
            del one.note
            if deleting:
                session.delete(one)
            try:
                session.flush()
            except KeyError as error:
                said.append([type(error), error.args, session.is_active])
            else:
                said.append([None, session.is_active, inspect(one).deleted])
            session.rollback()
            said[-1].append(one.note.rstrip("."))
    assert said[0] == said[1]


def test_a_conflict_of_a_row_whose_value_was_deleted_from_its_object(makers, other):
    """C6"""
    with makers[1]() as session:
        one = session.get_one(Part, 1)
        del one.note
        session.delete(one)
        other(Part, 1, title="theirs")
        with pytest.raises(ConcurrencyError) as refused:
            session.flush()
        (entry,) = refused.value.entries
        assert entry.action == "delete"
        assert "note" not in entry.current


def test_rows_that_cannot_be_sorted(makers):
    """One of them is to be written."""
    said = []
    for made in makers:
        with made() as session:
            for number in (1, 2):
                session.add(Unsorted(id=Cell(number), note="a"))
                session.flush()
            one, two = session.get_one(Unsorted, Cell(1)), session.get_one(Unsorted, Cell(2))
            one.note = "b"
            session.flush()
            one.note, two.note = "c", "b"
            two.note = "a"
            with pytest.raises(Exception, match="sort") as failed:
                session.flush()
            said.append([type(failed.value), session.is_active])
            session.rollback()
    assert said[0] == said[1]


@pytest.mark.parametrize("value", ["another", None])
def test_a_flush_in_a_transaction_that_has_failed(makers, value):
    for made in makers:
        with made() as session:
            one, two = session.get_one(Part, 1), session.get_one(Part, 2)
            two.title = "bad"
            with pytest.raises(ValueError, match="bad"):
                session.flush()
            one.__dict__.update(title=None)  # nothing may be read any more
            inspect(one).expired_attributes.clear()
            one.title = value
            with pytest.raises(PendingRollbackError):
                session.flush()
            with pytest.warns(SAWarning, match="changed on a non-active transaction"):
                session.rollback()


def test_what_is_changed_while_rows_are_sent(makers):
    for made in makers:
        with made() as session:
            one, two = session.get_one(Changing, 1), session.get_one(Part, 2)
            _changing.append(lambda two=two: setattr(two, "note", "by the way"))
            try:
                one.note += "."
                with pytest.warns(SAWarning, match="accumulated on 1 previously clean"):
                    session.flush()
            finally:
                _changing.clear()
            assert not session.dirty
            session.commit()
            assert two.note != "by the way"


@pytest.mark.parametrize("where", ["session", "factory", "class"])
@pytest.mark.parametrize("failing", [False, True])
def test_listeners_to_transactions_hear_of_those_of_a_flush(makers, where, failing):
    """C12"""
    said = []
    for made in makers:
        heard: list[Any] = []

        def created(session, transaction, heard=heard) -> None:
            heard.append(("created", transaction.nested, transaction.parent is None))

        def over(session, transaction, heard=heard) -> None:
            heard.append(("over", transaction.nested, transaction.parent is None))

        with made() as session:
            one = session.get_one(Part, 1)
            target: Any = {"session": session, "factory": made, "class": Session}[where]
            event.listen(target, "after_transaction_create", created)
            event.listen(target, "after_transaction_end", over)
            try:
                one.title = "bad" if failing else f"new {made is makers[0]}"
                if failing:
                    with pytest.raises(ValueError, match="bad"):
                        session.flush()
                    session.rollback()
                else:
                    session.flush()
                    session.commit()
            finally:
                event.remove(target, "after_transaction_create", created)
                event.remove(target, "after_transaction_end", over)
        said.append(heard)
    assert said[0] == said[1]
    assert ("created", False, False) in said[0]
