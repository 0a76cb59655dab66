"""What is odd in a flush comes out of a watched session as it comes out of a plain one."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Integer, String, TypeDecorator, event, inspect
from sqlalchemy.exc import PendingRollbackError, SAWarning, StatementError
from sqlalchemy.orm import Mapped, Session, mapped_column, sessionmaker
from sqlalchemy.orm.exc import StaleDataError

from optilock import ConcurrencyError, ConfigurationError, Versioned, touch, verify, watch
from optilock.tokens import CompareValues, Counter, Timestamp
from tests.support.models import key, own_base

Base = own_base()


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


class Given(TypeDecorator[str]):
    impl = String(20)
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> Any:
        if value == "bad":
            raise ValueError(value)
        return value


class Bound(Versioned, Base):
    __tablename__ = "ap_bounds"
    id: Mapped[int] = key()
    title: Mapped[str | None] = mapped_column(Given)
    note: Mapped[str | None]


class Both(Versioned, Base):
    """Values are compared besides the version."""

    __tablename__ = "ap_boths"
    __version_token__ = (Counter(), CompareValues("title"))
    id: Mapped[int] = key()
    title: Mapped[str | None]
    note: Mapped[str | None]


class Timed(Versioned, Base):
    __tablename__ = "ap_timed"
    __version_token__ = Timestamp()
    id: Mapped[int] = key()
    title: Mapped[str | None]


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
    title: Mapped[str | None]
    note: Mapped[str | None]
    made: Mapped[str | None] = mapped_column(onupdate=changing)


@pytest.fixture
def makers(engine) -> list[Any]:
    """A plain and a watched ``sessionmaker``; the guard knows the statements."""
    Base.metadata.create_all(engine)
    made = [sessionmaker(engine), watch(sessionmaker(engine))]
    for model in (Part, Changing, Bound, Both):
        with made[0]() as session, session.begin():
            session.add_all(model(id=n, title="a", note="a") for n in (1, 2, 3))
        for one in made:
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
            two.title = "a"
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


@pytest.mark.parametrize("deleting", [False, True])
def test_a_conflict_of_a_row_with_a_value_that_cannot_be_compared(makers, other, deleting):
    """C6"""
    with makers[1]() as session:
        one = session.get_one(Part, 1)
        one.title = "bad"
        if deleting:
            session.delete(one)
        other(Part, 1, title="theirs")
        if not deleting:  # SQLAlchemy compares it before anything is sent
            with pytest.raises(ValueError, match="bad"):
                session.flush()
            return
        with pytest.raises(ConcurrencyError) as refused:
            session.flush()
        assert refused.value.entries[0].conflicting == {"title"}


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


# -- what fails while rows are sent together -------------------------------------------------------


def told(makers: Any, model: Any, count: int, edit: Callable[[Any], None]) -> list[list[Any]]:
    """What a plain and a watched session say of the same edit of so many rows."""
    said = []
    for made in makers:
        with made() as session:
            rows = [session.get_one(model, number) for number in range(1, count + 1)]
            for row in rows:
                edit(row)
            with pytest.raises(StatementError) as failed:
                session.flush()
            error = failed.value
            said.append([type(error), type(error.orig), str(error.orig), session.is_active])
            assert error.statement.startswith("UPDATE")
    return said


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_value_that_cannot_be_bound(makers, count):
    """C12"""
    said = told(makers, Bound, count, lambda row: setattr(row, "title", "bad"))
    assert said[0] == said[1]


def test_a_value_that_cannot_be_bound_in_rows_of_several_sets_of_columns(makers):
    """C12"""

    def edit(row: Any) -> None:
        if row.id % 2:
            row.title = "bad"
        else:
            row.note = "new"

    said = told(makers, Bound, 3, edit)
    assert said[0] == said[1]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_value_that_cannot_be_made(makers, count):
    """C12"""

    def fail() -> None:
        raise LookupError("none")

    _changing.append(fail)
    try:
        said = told(makers, Changing, count, lambda row: setattr(row, "note", "b"))
    finally:
        _changing.clear()
    assert said[0] == said[1]


@pytest.mark.parametrize("deleting", [False, True])
@pytest.mark.parametrize("count", [1, 3])
def test_the_sentence_of_a_conflict_where_values_are_compared_besides_the_version(
    makers, other, count, deleting
):
    """C12"""
    said = []
    for made in makers:
        with made(expire_on_commit=False) as session:
            rows = [session.get_one(Both, number) for number in range(1, count + 1)]
            session.commit()
            other(Both, 1, title=f"theirs {len(said)}")
            for row in rows:
                if deleting:
                    session.delete(row)
                else:
                    row.title = "mine"
            with pytest.raises(StaleDataError) as stale:
                session.flush()
            said.append(str(stale.value).splitlines()[0].split(".")[0])
    assert said[0] == said[1]


# -- objects in rarer states -----------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before", "after", "in part", "at commit", "marked, at commit"])
def test_an_object_that_is_deleted_while_it_is_expired_keeps_its_values(makers, when):
    """C12"""
    said = []
    for made in makers:
        with made() as session:
            if session.get(Part, 3) is None:
                session.add(Part(id=3, title="a", note="a"))
            one = session.get_one(Part, 3)
            session.flush()
            if when == "at commit":
                session.commit()
            if when == "before":
                session.expire(one)
            if when == "marked, at commit":
                session.commit()
                session.delete(one)
                session.expire_all()
            session.delete(one)
            if when == "after":
                session.expire(one)
            if when == "in part":
                session.expire(one, ["version", "title"])
            session.commit()
            said.append(
                [{n: v for n, v in vars(one).items() if n[0] != "_"}, inspect(one).detached]
            )
            assert one.title == "a"
    for values, _ in said:
        values.pop("version")
    assert said[0] == said[1]


def test_what_is_read_for_a_delete_is_not_taken_for_what_was_seen(makers, other):
    """C12"""
    with makers[1]() as session:
        one = session.get_one(Part, 1)
        session.commit()
        other(Part, 1, title="theirs")
        session.delete(one)
        with pytest.raises(ConcurrencyError) as refused:
            session.flush()
        (entry,) = refused.value.entries
        assert entry.database["title"] == "theirs"
        assert entry.original.get("title") != "theirs"


@pytest.mark.parametrize("token", ["counter", "timestamp"])
@pytest.mark.parametrize("anew", [False, True])
def test_an_object_that_is_touched_and_read_under_a_lock(makers, other, token, anew):
    """C12"""
    model = {"counter": Part, "timestamp": Timed}[token]
    with makers[1](autoflush=False) as session:
        if session.get(model, 7) is None:
            session.add(model(id=7, title="a"))
            session.commit()
        one = session.get_one(model, 7)
        version = one.version
        touch(one)
        session.get_one(model, 7, with_for_update=True, populate_existing=anew)
        session.commit()
        moved = one.version
        assert moved != version
        session.commit()
        assert one.version == moved
        touch(one)
        other(model, 7, title="theirs")
        with pytest.raises(ConcurrencyError):
            session.get_one(model, 7, with_for_update=True)
        session.rollback()
        assert one.version != moved


@pytest.mark.parametrize("edited", [False, True])
def test_a_copy_from_before_a_commit_is_verified(makers, edited):
    """C12"""
    with makers[1]() as session:
        one = session.get_one(Part, 1)
        one.title = "new"
        session.flush()
        copied = pickle.dumps(one)
        session.commit()
        version = one.version
    copy = pickle.loads(copied)
    with makers[1]() as session:
        session.add(copy)
        if edited:
            copy.note = "new"
        verify(copy)
        session.commit()
        assert (copy.title, copy.version) == ("new", version + edited)


def test_a_copy_from_before_a_rollback_cannot_be_verified(makers):
    """C12"""
    with makers[1]() as session:
        one = session.get_one(Part, 1)
        one.title = "new"
        session.flush()
        copied = pickle.dumps(one)
        session.rollback()
    copy = pickle.loads(copied)
    with makers[1]() as session:
        session.add(copy)
        with pytest.raises(ConfigurationError, match=r"cannot be given to verify\(\) without"):
            verify(copy)
        session.refresh(copy)
        verify(copy)
        session.commit()
        assert copy.title == "a"
