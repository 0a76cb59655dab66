"""What an attempt wants, what others write meanwhile, and what the next attempt may do.

In each case of ``CASES`` others write while attempt 1 runs, after it has read, or before attempt 2
begins; what attempt 2 may do is written beside it (``tests/database/units/test_repeated_values.py``
runs them).
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import JSON, ForeignKey, update
from sqlalchemy.ext.mutable import MutableDict
from sqlalchemy.orm import Mapped, Session, mapped_column, relationship

from optilock import Versioned, is_transient, merge_fields, reject, store_wins
from optilock.preconditions import overwrite
from optilock.resolvers import OnDelete, merge_text, per_field
from optilock.tokens import CompareValues, RowVersion, Timestamp, Unique
from tests.support.models import own_base

Base = own_base()


def key() -> Any:
    return mapped_column(primary_key=True, autoincrement=False)


class Author(Versioned, Base):
    __tablename__ = "authors"
    id: Mapped[int] = key()
    name: Mapped[str | None]


class Paper(Versioned, Base):
    __tablename__ = "papers"
    __version_ignore__ = ("views",)
    id: Mapped[int] = key()
    title: Mapped[str] = mapped_column(default="title")
    body: Mapped[str] = mapped_column(default="old")
    n: Mapped[int] = mapped_column(default=1)
    views: Mapped[int] = mapped_column(default=0)
    done: Mapped[bool] = mapped_column(default=False)
    data: Mapped[dict[str, Any] | None] = mapped_column(MutableDict.as_mutable(JSON()))
    author_id: Mapped[int | None] = mapped_column(ForeignKey("authors.id"))
    author: Mapped[Author | None] = relationship()


class Booking(Versioned, Base):
    __tablename__ = "bookings"
    __merge_together__ = (("first", "last"),)
    id: Mapped[int] = key()
    first: Mapped[int]
    last: Mapped[int]


class Stock(Versioned, Base):
    __tablename__ = "stocks"
    __version_commutes__ = ("amount",)
    id: Mapped[int] = key()
    amount: Mapped[int]
    name: Mapped[str | None]


class Signed(Versioned, Base):
    """Its writers sign each change, and several states lead to "paid"."""

    __tablename__ = "repeated_signed"
    __version_repeats__ = ("status",)
    __version_author__ = "author"
    id: Mapped[int] = key()
    n: Mapped[int] = mapped_column(default=1)
    title: Mapped[str] = mapped_column(default="title")
    status: Mapped[str] = mapped_column(default="new")
    author: Mapped[str] = mapped_column(default="-")
    stamped: Mapped[str] = mapped_column(default="-")
    changed_by: Mapped[str] = mapped_column(default="-", onupdate="me")
    author_id: Mapped[int | None] = mapped_column(ForeignKey("authors.id"))


class Loose(Versioned, Base):
    """A row that is made again has another version."""

    __tablename__ = "loose"
    __version_token__ = Unique()
    id: Mapped[int] = key()
    body: Mapped[str]


class Again(Exception):
    """Attempt 1 has failed for another reason."""


class World:
    """The others: they write in attempt 1, each time on a connection of their own."""

    def __init__(self, other: Callable[..., None], gone: Callable[..., None], store: Any) -> None:
        self.write, self.gone, self.store = other, gone, store
        self.attempts = 0
        self.between: list[Callable[[], None]] = []
        #: A resolver settles conflicts in attempt 1.
        self.settles = False

    @property
    def first(self) -> bool:
        return self.attempts == 1

    def others(self, model: type[Any] = Paper, row: int = 1, **values: Any) -> None:
        if self.first:
            self.write(model, row, **values)

    def then_fail(self) -> None:
        if self.first:
            raise Again


# -- what an attempt does, and the others ---------------------------------------------------------


def the_same_column(session: Session, world: World) -> None:
    page = session.get_one(Paper, 1)
    world.others(body="theirs")
    page.body = "ours"


def another_column(session: Session, world: World) -> None:
    page = session.get_one(Paper, 1)
    world.others(title="theirs")
    page.body = "ours"
    world.then_fail()


def the_same_value(session: Session, world: World) -> None:
    page = session.get_one(Paper, 1)
    world.others(body="ours", title="theirs")
    page.body = "ours"
    world.then_fail()


def back_to_what_was_read(session: Session, world: World) -> None:
    page = session.get_one(Paper, 1)
    world.others(body="theirs")
    world.others(body="old")
    page.body = "ours"
    world.then_fail()


def a_counter(session: Session, world: World) -> None:
    page = session.get_one(Paper, 1)
    world.others(n=5)
    page.n += 1


def json_changed_in_place(session: Session, world: World) -> None:
    page = session.get_one(Paper, 1)
    world.others(data={"b": 2})
    assert page.data is not None
    page.data["a"] = 1


def a_sql_expression(session: Session, world: World) -> None:
    page = session.get_one(Paper, 1)
    world.others(n=5)
    page.n = Paper.n + 1


def a_commuting_column(session: Session, world: World) -> None:
    stock = session.get_one(Stock, 1)
    world.others(Stock, amount=5)
    stock.amount = 10
    world.then_fail()


def an_ignored_column(session: Session, world: World) -> None:
    page = session.get_one(Paper, 1)
    world.others(views=3, title="theirs")
    page.views = 7
    world.then_fail()


def a_policy_for_ours(session: Session, world: World) -> None:
    the_same_column(session, world)
    world.then_fail()


def an_overwrite(session: Session, world: World) -> None:
    page = session.get_one(Paper, 1)
    overwrite(page)
    world.others(body="theirs")
    page.body = "ours"
    world.then_fail()


def a_whole_json_value(session: Session, world: World) -> None:
    page = session.get_one(Paper, 1)
    world.others(data={"b": 2})
    page.data = {"a": 1}


def a_relationship(session: Session, world: World) -> None:
    page = session.get_one(Paper, 1)
    ours = session.get_one(Author, 1)
    world.others(author_id=2)
    page.author = ours


def a_delete(session: Session, world: World) -> None:
    page = session.get_one(Paper, 1)
    world.others(body="theirs")
    session.delete(page)


def a_delete_of_any_version(session: Session, world: World) -> None:
    a_delete(session, world)
    world.then_fail()


def columns_that_belong_together(session: Session, world: World) -> None:
    booking = session.get_one(Booking, 1)
    world.others(Booking, first=5)
    booking.last = 12


def a_row_made_again(session: Session, world: World) -> None:
    row = session.get_one(Loose, 1)
    if world.first:
        world.gone(Loose, 1)
        world.store(Loose(id=1, body="theirs"))
    row.body = "ours"


def a_row_beside_the_one_that_missed(session: Session, world: World) -> None:
    pages = [session.get_one(Paper, number) for number in (1, 2)]
    world.others(row=2, n=7)
    pages[0].body = "ours"
    pages[1].n += 1
    if world.first:
        world.between = [functools.partial(world.write, Paper, 1, body="theirs")]


def a_row_of_an_earlier_flush(session: Session, world: World) -> None:
    page = session.get_one(Paper, 1)
    page.body = "ours"
    session.flush()
    if world.first:
        world.between = [functools.partial(world.write, Paper, 1, body="theirs")]
    world.then_fail()


def a_row_in_a_savepoint(session: Session, world: World) -> None:
    page = session.get_one(Paper, 1)
    world.others(body="theirs")
    with session.begin_nested():
        page.body = "ours"


def two_flushes(session: Session, world: World) -> None:
    page = session.get_one(Paper, 1)
    world.others(body="theirs")
    page.title = "flushed"
    session.flush()
    page.body = "ours"
    session.flush()
    page.title = "title"


def an_own_value_between(session: Session, world: World) -> None:
    """Attempt 2 writes two values of its own one after the other: nobody else was there."""
    page = session.get_one(Paper, 1)
    page.body = "draft"
    session.flush()
    page.body = "ours"
    session.flush()
    world.then_fail()


def not_yet_flushed(session: Session, world: World) -> None:
    page = session.get_one(Paper, 1)
    world.others(body="theirs")
    page.body = "ours"
    world.then_fail()


def not_yet_flushed_relationship(session: Session, world: World) -> None:
    a_relationship(session, world)
    world.then_fail()


def a_flush_in_the_body(session: Session, world: World) -> None:
    the_same_column(session, world)
    session.flush()


def a_boolean(session: Session, world: World) -> None:
    page = session.get_one(Paper, 1)
    world.others(done=True, n=5)
    page.done = True
    page.n += 1


def at_least_ten(session: Session, world: World) -> None:
    page = session.get_one(Paper, 1)
    world.others(n=5)
    page.n = max(page.n, 10)


def updated_by_me(session: Session, world: World) -> None:
    page = session.get_one(Paper, 1)
    world.others(title="them", n=5)
    page.title = "me"
    page.n += 1


def a_form_with_every_field(session: Session, world: World) -> None:
    """The title is as it was read: no change of ours, until others have changed it."""
    page = session.get_one(Paper, 1)
    world.others(title="theirs", body="theirs")
    page.title = "title"
    page.body = f"{page.body}, and ours"


def a_form_with_the_same_author(session: Session, world: World) -> None:
    page = session.get_one(Paper, 1)
    world.others(author_id=2, n=5)
    page.author = None
    page.n += 1


def a_merge_that_left_nothing_to_write(session: Session, world: World) -> None:
    page = session.get_one(Paper, 1)
    world.others(body="ours")
    page.body = "ours"
    if world.first:
        world.between = [functools.partial(world.write, Paper, 1, body="theirs")]
        session.flush() if world.settles else None
    world.then_fail()


def a_new_value_each_time(session: Session, world: World) -> None:
    page = session.get_one(Paper, 1)
    world.others(body="theirs")
    page.body = uuid.uuid4().hex


def a_statement(session: Session, world: World) -> None:
    page = session.get_one(Paper, 1)
    world.others(body="theirs", n=5)
    session.execute(update(Paper).where(Paper.id == 1).values(body="ours"))
    session.refresh(page)
    world.then_fail()


def ours(original: Any, current: Any, database: Any) -> Any:
    return current


def theirs(original: Any, current: Any, database: Any) -> Any:
    return database


OURS, THEIRS = {"body": "ours"}, {"body": "theirs"}


@dataclass(frozen=True)
class Case:
    """What attempt 2 may do: by the row's resolver, and without one."""

    body: Callable[[Session, World], None]
    by_resolver: str
    refuse: str
    #: Stored where it runs, and where it is refused.
    ours: dict[str, Any] | None
    theirs: dict[str, Any] | None
    resolver: Any = merge_fields
    model: type[Any] = Paper
    #: The resolver of the case stays with ``repeat_values="refuse"`` as well.
    keeps_resolver: bool = False
    on_delete: OnDelete | None = None


REFUSE, RUNS = "refuse", "runs"
CASES = {
    "the same column": Case(the_same_column, REFUSE, REFUSE, OURS, THEIRS),
    "another column": Case(another_column, RUNS, RUNS, {**OURS, "title": "theirs"}, None),
    "X is D": Case(the_same_value, RUNS, RUNS, {**OURS, "title": "theirs"}, None),
    "D is O again": Case(back_to_what_was_read, RUNS, RUNS, OURS, None),
    "a counter": Case(a_counter, RUNS, RUNS, {"n": 6}, None),
    "JSON in place": Case(json_changed_in_place, RUNS, RUNS, {"data": {"a": 1, "b": 2}}, None),
    "an expression": Case(a_sql_expression, RUNS, RUNS, {"n": 6}, None),
    "commuting": Case(a_commuting_column, RUNS, RUNS, {"amount": 10}, None, model=Stock),
    "ignored": Case(an_ignored_column, RUNS, RUNS, {"views": 7}, None),
    "a policy for ours": Case(
        a_policy_for_ours, RUNS, RUNS, OURS, THEIRS, per_field(body=ours), keeps_resolver=True
    ),
    "a policy for theirs": Case(
        a_policy_for_ours, REFUSE, REFUSE, OURS, THEIRS, per_field(body=theirs)
    ),
    "store_wins": Case(a_policy_for_ours, REFUSE, REFUSE, OURS, THEIRS, store_wins),
    "overwrite()": Case(an_overwrite, RUNS, RUNS, OURS, None),
    "text that cannot be merged": Case(
        the_same_column, REFUSE, REFUSE, OURS, THEIRS, per_field(body=merge_text)
    ),
    "a whole JSON value": Case(
        a_whole_json_value, REFUSE, REFUSE, {"data": {"a": 1}}, {"data": {"b": 2}}
    ),
    "a relationship": Case(a_relationship, REFUSE, REFUSE, {"author_id": 1}, {"author_id": 2}),
    "a delete": Case(a_delete, REFUSE, REFUSE, None, THEIRS),
    "IGNORE_VERSION": Case(
        a_delete_of_any_version, RUNS, RUNS, None, None, on_delete=OnDelete.IGNORE_VERSION
    ),
    "columns together": Case(
        columns_that_belong_together,
        REFUSE,
        REFUSE,
        {"first": 5, "last": 12},
        {"first": 5, "last": 10},
        model=Booking,
    ),
    "a row made again": Case(a_row_made_again, REFUSE, REFUSE, OURS, THEIRS, model=Loose),
    "a row beside": Case(a_row_beside_the_one_that_missed, REFUSE, REFUSE, OURS, THEIRS),
    "an earlier flush": Case(a_row_of_an_earlier_flush, REFUSE, REFUSE, OURS, THEIRS),
    "a savepoint": Case(a_row_in_a_savepoint, REFUSE, REFUSE, OURS, THEIRS),
    "an own value between": Case(an_own_value_between, RUNS, RUNS, OURS, None),
    "not yet flushed": Case(not_yet_flushed, REFUSE, REFUSE, OURS, THEIRS),
    "not yet flushed relationship": Case(
        not_yet_flushed_relationship, REFUSE, REFUSE, {"author_id": 1}, {"author_id": 2}
    ),
    "a flush in the body": Case(a_flush_in_the_body, REFUSE, REFUSE, OURS, THEIRS),
    "a boolean": Case(a_boolean, RUNS, RUNS, {"done": True, "n": 6}, None),
    "at least ten": Case(at_least_ten, REFUSE, REFUSE, {"n": 10}, {"n": 5}),
    "updated by": Case(
        updated_by_me, REFUSE, REFUSE, {"title": "me", "n": 6}, {"title": "them", "n": 5}
    ),
    "every field of a form": Case(
        a_form_with_every_field,
        REFUSE,
        REFUSE,
        {"title": "title", "body": "theirs, and ours"},
        {"title": "theirs"},
    ),
    "the same author": Case(
        a_form_with_the_same_author, REFUSE, REFUSE, {"author_id": None}, {"author_id": 2}
    ),
    "nothing left to write": Case(a_merge_that_left_nothing_to_write, REFUSE, REFUSE, OURS, THEIRS),
    "a new value each time": Case(a_new_value_each_time, RUNS, RUNS, {}, None),
    "a statement": Case(a_statement, RUNS, RUNS, OURS, None),
}
MODES = ["resolver", "nobody", "reject", "refuse", "overwrite"]


def outcome_of(case: Case, mode: str) -> str:
    if mode == "overwrite":
        return RUNS
    if mode == "resolver" or (mode == "refuse" and case.keeps_resolver):
        return case.by_resolver
    return REFUSE if case.keeps_resolver else case.refuse


def options_of(case: Case, mode: str) -> dict[str, Any]:
    options: dict[str, Any] = {"wait_initial": 0, "on": again_or_transient}
    if mode in ("resolver", "overwrite") or (mode == "refuse" and case.keeps_resolver):
        options["on_conflict"] = case.resolver
    if mode == "reject":
        options["on_conflict"] = reject
    if mode in ("refuse", "overwrite"):
        options["repeat_values"] = mode
    if case.on_delete is not None:
        options["on_delete"] = case.on_delete
    return options


def again_or_transient(error: BaseException) -> bool:
    return isinstance(error, Again) or is_transient(error)


# -- rows of every kind ----------------------------------------------------------------------------


class _Row:
    id: Mapped[int] = key()
    text: Mapped[str]
    n: Mapped[int]


class Counted(_Row, Versioned, Base):
    __tablename__ = "repeated_counted"


class Random(_Row, Versioned, Base):
    __tablename__ = "repeated_random"
    __version_token__ = Unique()


class Timed(_Row, Versioned, Base):
    __tablename__ = "repeated_timed"
    __version_token__ = Timestamp()


class Triggered(_Row, Versioned, Base):
    __tablename__ = "repeated_triggered"
    __version_token__ = RowVersion()


class Compared(_Row, Versioned, Base):
    __tablename__ = "repeated_compared"
    __version_token__ = CompareValues.all()


class Native(_Row, Base):
    __tablename__ = "repeated_native"
    revision: Mapped[int] = mapped_column()
    __mapper_args__ = {"version_id_col": revision}


class Long(Versioned, Base):
    __tablename__ = "repeated_long"
    id: Mapped[int] = key()
    text: Mapped[str] = mapped_column(deferred=True)
    n: Mapped[int]


KINDS = [Counted, Random, Timed, Triggered, Compared, Native]


class Fields(Versioned, Base):
    __tablename__ = "repeated_fields"
    id: Mapped[int] = key()
    a: Mapped[str]
    b: Mapped[str]
    c: Mapped[str]
