"""Batches that overlap, in opposite orders, at the same time: no deadlock, and nothing is lost."""

from __future__ import annotations

import random
import threading

import pytest
from sqlalchemy import ForeignKey, ForeignKeyConstraint, String, event, select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, defer, mapped_column, relationship, sessionmaker

from optilock import Versioned, client_wins, watch
from optilock.dialects import Cause
from optilock.dialects.transient import cause_of
from optilock.resolvers import add_delta, per_field
from optilock.tables.names import scopes
from tests.support.models import Account, Comment, Dog, Post, Seat

pytestmark = pytest.mark.modes

ROUNDS, ROWS = 25, 12
servers = pytest.mark.engines("postgresql", "mariadb")
alive = pytest.mark.needs("resolves-in-place")


def together(*works):
    """Run them at the same time; their errors come out here."""
    barrier, errors = threading.Barrier(len(works)), []

    def run(work):
        try:
            for turn in range(ROUNDS):
                barrier.wait(30)
                work(turn)
        except BaseException as error:
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    real = [error for error in errors if not isinstance(error, threading.BrokenBarrierError)]
    if real:
        raise real[0]
    assert errors == []


def adder(sessions, order, *, alternating=False):
    """Adds 1 to every account, edited in the order of ``order``."""

    def work(turn):
        with sessions() as session, session.begin():
            rows = {row.id: row for row in session.scalars(select(Account))}
            for n in order:
                rows[n].balance += 1
                if alternating and (n + turn) % 2:
                    rows[n].note = f"turn {turn}"

    return work


@servers
@alive
@pytest.mark.parametrize("alternating", [False, True])
def test_opposite_orders_end_without_a_deadlock_and_every_addition_is_stored(
    store, engine, stored, alternating
):
    store(*(Account(id=n, balance=0) for n in range(ROWS)))
    sessions = watch(sessionmaker(engine), on_conflict=per_field(balance=add_delta, note=later))
    orders = [list(range(ROWS)), list(reversed(range(ROWS)))]
    together(*(adder(sessions, order, alternating=alternating) for order in orders))

    assert [stored(Account, n)["balance"] for n in range(ROWS)] == [2 * ROUNDS] * ROWS
    assert [stored(Account, n)["version"] for n in range(ROWS)] == [2 * ROUNDS + 1] * ROWS


def later(original, current, database):
    return max(current or "", database or "")


@servers
@alive
def test_shuffled_batches_that_overlap_partly(store, engine, stored):
    """Four writers, each with its own rows among all, in an order of its own."""
    store(*(Account(id=n, balance=0) for n in range(ROWS)))
    sessions = watch(sessionmaker(engine), on_conflict=per_field(balance=add_delta))
    chance = random.Random(7)
    orders = [chance.sample(range(ROWS), ROWS * 2 // 3) for _ in range(4)]
    together(*(adder(sessions, order) for order in orders))
    wanted = [sum(n in order for order in orders) * ROUNDS for n in range(ROWS)]

    assert [stored(Account, n)["balance"] for n in range(ROWS)] == wanted


@servers
@alive
def test_halves_of_a_small_table_in_opposite_orders(store, engine, stored):
    """Half of a table is so much of it that a server would rather scan it."""
    size = 60
    store(*(Account(id=n, balance=0) for n in range(size)))
    sessions = watch(sessionmaker(engine), on_conflict=per_field(balance=add_delta, note=later))
    chance = random.Random(8)
    halves = [sorted(chance.sample(range(size), size // 2), reverse=n % 2) for n in range(4)]
    together(*(adder(sessions, half, alternating=True) for half in halves))
    wanted = [sum(n in half for half in halves) * ROUNDS for n in range(size)]

    assert [stored(Account, n)["balance"] for n in range(size)] == wanted


@servers
@alive
def test_keys_of_two_columns_and_texts(store, engine, stored):
    keys = [(show, n) for show in "ab" for n in range(4)]
    store(*(Seat(show=show, number=n, guest="") for show, n in keys))
    sessions = watch(sessionmaker(engine), on_conflict=per_field(guest=both))

    def writer(letter, order):
        def work(turn):
            with sessions() as session, session.begin():
                rows = {(row.show, row.number): row for row in session.scalars(select(Seat))}
                for seat in order:
                    rows[seat].guest += letter

        return work

    together(writer("x", keys), writer("y", list(reversed(keys))))

    assert {len(stored(Seat, seat)["guest"]) for seat in keys} == {2 * ROUNDS}


def both(original, current, database):
    """What each side has appended."""
    return database + current[len(original) :]


@servers
def test_a_batch_does_not_keep_others_from_adding_children(store, engine, database):
    """The rows are locked no harder than an UPDATE would: foreign keys can be checked."""
    if database.family == "mariadb":
        pytest.skip("InnoDB locks a parent's row for its children as for an UPDATE")
    store(*(Post(id=n, title="a") for n in range(3)))
    with watch(sessionmaker(engine))() as session, engine.begin() as other:
        for post in session.scalars(select(Post)):
            post.title = "b"
        session.flush()
        other.execute(text("SET LOCAL lock_timeout = '2s'"))
        other.execute(Comment.__table__.insert().values(id=1, post_id=1, version=1))
        session.commit()


@servers
@alive
def test_joined_rows_in_opposite_orders(store, engine, stored):
    store(*(Dog(id=n, name="", tricks="") for n in range(6)))
    sessions = watch(sessionmaker(engine), on_conflict=per_field(tricks=both, name=both))

    def writer(letter, order):
        def work(turn):
            with sessions() as session, session.begin():
                rows = {row.id: row for row in session.scalars(select(Dog))}
                for n in order:
                    rows[n].tricks += letter

        return work

    together(writer("x", range(6)), writer("y", range(5, -1, -1)))

    assert {len(stored(Dog, n)["tricks"]) for n in range(6)} == {2 * ROUNDS}


# -- roots and scopes ------------------------------------------------------------------------------


class Base(DeclarativeBase):
    pass


class Region(Versioned, Base):
    """The root of shops, which are roots themselves. Python has another order of its keys."""

    __tablename__ = "ov_regions"
    __version_root_of__ = ("shops",)
    name: Mapped[str] = mapped_column(String(9), primary_key=True)
    shops: Mapped[list[Shop]] = relationship()


class Shop(Versioned, Base):
    __tablename__ = "ov_shops"
    __version_root_of__ = ("items", "marks")
    street: Mapped[str] = mapped_column(String(9), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    region_name: Mapped[str] = mapped_column(ForeignKey(Region.name))
    note: Mapped[int] = mapped_column(default=0)
    items: Mapped[list[Item]] = relationship()
    marks: Mapped[list[Mark]] = relationship()


class _Part:
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    street: Mapped[str] = mapped_column(String(9))
    number: Mapped[int]
    n: Mapped[int] = mapped_column(default=0)


class Item(_Part, Versioned, Base):
    """A part that has scopes, too."""

    __tablename__ = "ov_items"
    __version_scopes__ = ("shelf",)
    __table_args__ = (ForeignKeyConstraint(["street", "number"], [Shop.street, Shop.number]),)
    shelf: Mapped[int]


class Mark(_Part, Base):
    """A part without a version."""

    __tablename__ = "ov_marks"
    __version_token__ = None
    __table_args__ = (ForeignKeyConstraint(["street", "number"], [Shop.street, Shop.number]),)


SHOPS = [(street, number) for street in ("Elm", "ash", "Oak", "fir") for number in (2, 10, 1)]
PARTS = 24


@pytest.fixture
def shops(tables, store, engine):
    tables(Region, Shop, Item, Mark)
    scopes.create(engine, checkfirst=True)
    store(*(Region(name=name) for name in ("north", "South")))
    names = {street: "north" if street.islower() else "South" for street, _ in SHOPS}
    store(*(Shop(street=s, number=n, region_name=names[s]) for s, n in SHOPS))
    places = [SHOPS[n % len(SHOPS)] for n in range(PARTS)]
    store(*(Item(id=n, street=s, number=k, shelf=n % 5) for n, (s, k) in enumerate(places)))
    store(*(Mark(id=n, street=s, number=k) for n, (s, k) in enumerate(places)))


def stock_taker(sessions, seed):
    """Changes parts of some shops, few of which it has read, and some of these shops."""
    chance = random.Random(seed)

    def work(turn):
        with sessions.begin() as session:
            held = []
            for n in chance.sample(range(PARTS), 6):
                query = select(Item).where(Item.id == n)
                if turn % 3 == 0:  # its shelf, and so its scope, is unknown
                    query = query.options(defer(Item.shelf), defer(Item.street))
                held.append(session.scalars(query).one())
            held += [session.get_one(Mark, n) for n in chance.sample(range(PARTS), 3)]
            if turn % 2:
                held += [session.get_one(Shop, key) for key in chance.sample(SHOPS, 2)]
            for one in held:
                name = "note" if isinstance(one, Shop) else "n"
                setattr(one, name, getattr(one, name) + 1)

    return work


@servers
@alive
@pytest.mark.parametrize("seed", [1])
def test_parts_of_the_same_roots_in_any_order_do_not_deadlock(shops, engine, seed):
    """Roots of roots, read or not; scopes, known or not; keys that Python orders otherwise."""
    found = []

    def note(context):
        if cause_of(context.sqlalchemy_exception) is Cause.DEADLOCK:
            found.append(str(context.original_exception))

    event.listen(engine, "handle_error", note)
    sessions = watch(sessionmaker(engine), on_conflict=client_wins)
    try:
        together(*(stock_taker(sessions, 8 * seed + n) for n in range(4)))
    finally:
        event.remove(engine, "handle_error", note)
    assert found == []
