"""No version column: the values that were read are compared with the stored ones."""

from __future__ import annotations

from datetime import datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import (
    JSON,
    BigInteger,
    Double,
    Float,
    ForeignKey,
    LargeBinary,
    Numeric,
    SmallInteger,
    Text,
    event,
    select,
    update,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.orm import Mapped, Session, defer, mapped_column, relationship, sessionmaker

from optilock import (
    ConcurrencyError,
    ConfigurationError,
    UnitOfWork,
    Versioned,
    bulk_delete,
    bulk_update,
    client_wins,
    etag_of,
    merge_fields,
    store_wins,
    verify,
    watch,
)
from optilock.testing import count_statements
from optilock.tokens import CompareValues, Counter
from tests.support.models import Base, key
from tests.support.two_writers import ends_transactions

pytestmark = pytest.mark.modes(full=True)

alive = pytest.mark.needs("resolves-in-place")


class Invoice(Versioned, Base):
    """Two named columns are compared; the note is not."""

    __tablename__ = "cv_invoices"
    __version_token__ = CompareValues("status", "amount")
    id: Mapped[int] = key()
    status: Mapped[str | None]
    amount: Mapped[int | None]
    note: Mapped[str | None]


class Sheet(Versioned, Base):
    """Every column is compared, whatever its type."""

    __tablename__ = "cv_sheets"
    __version_token__ = CompareValues.all()
    __version_ignore__ = ("views",)
    id: Mapped[int] = key()
    title: Mapped[str | None]
    ratio: Mapped[float | None]
    data: Mapped[Any | None] = mapped_column(JSON(none_as_null=True))
    body: Mapped[str | None] = mapped_column(Text)
    blob: Mapped[bytes | None] = mapped_column(LargeBinary)
    views: Mapped[int | None]


class Card(Versioned, Base):
    """Only what we change is compared."""

    __tablename__ = "cv_cards"
    __version_token__ = CompareValues.changed()
    id: Mapped[int] = key()
    front: Mapped[str | None]
    back: Mapped[int | None]


class Club(Base):
    __tablename__ = "cv_clubs"
    id: Mapped[int] = key()


class Member(Versioned, Base):
    """A foreign key is the token."""

    __tablename__ = "cv_members"
    __version_token__ = CompareValues("club_id")
    id: Mapped[int] = key()
    name: Mapped[str | None]
    club_id: Mapped[int | None] = mapped_column(ForeignKey("cv_clubs.id"))
    club: Mapped[Club | None] = relationship()


class Shape(Versioned, Base):
    """Joined tables: a value of each is compared."""

    __tablename__ = "cv_shapes"
    __version_token__ = CompareValues.all()
    id: Mapped[int] = key()
    kind: Mapped[str]
    name: Mapped[str | None]
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "shape"}


class Circle(Shape):
    __tablename__ = "cv_circles"
    id: Mapped[int] = mapped_column(ForeignKey("cv_shapes.id"), primary_key=True)
    radius: Mapped[int | None]
    colour: Mapped[str | None]
    __mapper_args__ = {"polymorphic_identity": "circle"}


class Delivery(Versioned, Base):
    """A version, and a value that programs change which know of no version."""

    __tablename__ = "cv_deliveries"
    __version_token__ = (Counter(), CompareValues("state"))
    id: Mapped[int] = key()
    state: Mapped[str | None]
    total: Mapped[int | None]


class Parcel(Versioned, Base):
    """Columns that keep less than they may be given."""

    __tablename__ = "cv_parcels"
    __version_token__ = CompareValues.all()
    id: Mapped[int] = key()
    sent: Mapped[datetime | None]
    price: Mapped[Decimal | None] = mapped_column(Numeric(10, 2))
    count: Mapped[int | None]
    data: Mapped[Any | None] = mapped_column(JSON(none_as_null=True))
    note: Mapped[str | None]


def directly(engine, model, key, **values):
    """Another program, which knows nothing of optilock."""
    table = model.__table__
    with engine.begin() as connection:
        connection.execute(table.update().where(table.c.id == key).values(values))


def removed(engine, model, key):
    table = model.__table__
    with engine.begin() as connection:
        connection.execute(table.delete().where(table.c.id == key))


def value(engine, model, key, name):
    with Session(engine) as session:
        return session.scalar(select(getattr(model, name)).where(model.id == key))


# -- what is a conflict ---------------------------------------------------------------------------


@pytest.mark.parametrize("many", [1, 3])
@pytest.mark.parametrize("deleted", [False, True])
def test_beside_a_version_the_entry_says_that_a_compared_value_has_moved(
    store, watched, refused, engine, many, deleted
):
    store(*(Delivery(id=n, state="new", total=5) for n in range(many)))
    session = watched()
    for delivery in session.scalars(select(Delivery)):
        delivery.total = 6
        if deleted:
            session.delete(delivery)
    directly(engine, Delivery, 0, state="sent", version=1)
    [entry] = refused(session).entries

    assert entry.compared == {"state"}
    assert "the version is still 1; stored with another value than we read: state" in str(entry)


@pytest.mark.parametrize("many", [1, 3])
def test_a_compared_value_that_has_moved_is_a_conflict(store, watched, refused, engine, many):
    """HB-01"""
    store(*(Invoice(id=n, status="open", amount=5) for n in range(many)))
    session = watched()
    for invoice in session.scalars(select(Invoice)):
        invoice.note = "mine"
    directly(engine, Invoice, 0, status="paid")
    [entry] = refused(session).entries

    assert (entry.identity, entry.kind, entry.action) == ((0,), "updated", "update")
    assert entry.original["status"] == "open"
    assert entry.database["status"] == "paid"
    assert entry.changes == {"note": "mine"}
    assert entry.token is None
    session.rollback()
    assert value(engine, Invoice, 0, "note") is None


@pytest.mark.parametrize("many", [1, 3])
def test_a_value_that_is_not_compared_may_move(store, watched, engine, many):
    store(*(Invoice(id=n, status="open", amount=5) for n in range(many)))
    session = watched()
    for invoice in session.scalars(select(Invoice)):
        invoice.amount = 6
    with_snapshot = not ends_transactions(engine)
    if with_snapshot:
        directly(engine, Invoice, 0, note="theirs")
    session.commit()

    assert value(engine, Invoice, 0, "amount") == 6
    if with_snapshot:
        assert value(engine, Invoice, 0, "note") == "theirs"


@pytest.mark.parametrize("many", [1, 3])
def test_null_equals_null(store, watched, refused, engine, many):
    store(*(Invoice(id=n) for n in range(many)))
    session = watched()
    for invoice in session.scalars(select(Invoice)):
        invoice.status = "open"
    session.commit()
    assert value(engine, Invoice, 0, "status") == "open"

    for invoice in session.scalars(select(Invoice)):
        invoice.status = "paid"
    directly(engine, Invoice, 0, amount=1)
    [entry] = refused(session).entries
    assert (entry.original["amount"], entry.database["amount"]) == (None, 1)


MOVES = {
    "title": ("a", "A"),
    "ratio": (0.1, 0.2),
    "data": ({"a": [1]}, {"a": [2]}),
    "body": ("long", "Long"),
    "blob": (b"\x00\x01", b"\x00\x02"),
}


@pytest.mark.parametrize("many", [1, 2])
@pytest.mark.parametrize("name", MOVES)
def test_every_type_is_compared_exactly(store, watched, refused, engine, name, many):
    """Also text that differs in case only, fractions, JSON and large values."""
    before, after = MOVES[name]
    values = {n: a for n, (a, _) in MOVES.items()}
    store(*(Sheet(id=n, views=0, **values) for n in range(many)))
    session = watched()
    for sheet in session.scalars(select(Sheet)):
        setattr(sheet, "body" if name == "title" else "title", "mine")
    session.flush()  # as it was read: no conflict, for any type
    session.rollback()

    for sheet in session.scalars(select(Sheet)):
        setattr(sheet, "body" if name == "title" else "title", "mine")
    directly(engine, Sheet, 0, **{name: after})
    [entry] = refused(session).entries
    assert (entry.original[name], entry.database[name]) == (before, after)


@alive
def test_ignored_columns_are_not_compared(store, watched, engine):
    store(Sheet(id=1, title="a", views=1))
    session = watched()
    session.get_one(Sheet, 1).title = "mine"
    directly(engine, Sheet, 1, views=2)
    session.commit()

    assert value(engine, Sheet, 1, "title") == "mine"
    assert value(engine, Sheet, 1, "views") == 2


@alive
@pytest.mark.parametrize("many", [1, 2])
def test_with_changed_two_writers_of_different_columns_do_not_conflict(
    store, watched, engine, many
):
    store(*(Card(id=n, front="a", back=1) for n in range(many)))
    session = watched()
    for card in session.scalars(select(Card)):
        card.front = "mine"
    directly(engine, Card, 0, back=2)
    session.commit()

    assert value(engine, Card, 0, "front") == "mine"
    assert value(engine, Card, 0, "back") == 2


@pytest.mark.parametrize("many", [1, 2])
def test_with_changed_two_writers_of_one_column_conflict(store, watched, refused, engine, many):
    """HB-01"""
    store(*(Card(id=n, front="a", back=1) for n in range(many)))
    session = watched()
    for card in session.scalars(select(Card)):
        card.front = "mine"
    directly(engine, Card, 0, front="theirs")
    [entry] = refused(session).entries
    assert entry.conflicting == {"front"}


def test_a_foreign_key_can_be_the_token(store, watched, refused, engine):
    """EF-09"""
    store(Club(id=1), Club(id=2), Club(id=3), Member(id=1, club_id=1))
    session = watched()
    session.get_one(Member, 1).club = session.get_one(Club, 2)
    directly(engine, Member, 1, club_id=3)
    [entry] = refused(session).entries

    assert (entry.model, entry.conflicting) == (Member, {"club_id"})
    session.rollback()
    assert session.get_one(Member, 1).club.id == 3


@pytest.mark.parametrize("moved", ["name", "radius"])
@pytest.mark.parametrize("changed", ["name", "radius", "colour"])
def test_joined_tables_are_one_row(store, watched, refused, engine, moved, changed):
    store(Circle(id=1, name="a", radius=1, colour="red"))
    session = watched()
    circle = session.get_one(Circle, 1)
    setattr(circle, changed, 7 if changed == "radius" else "mine")
    directly(
        engine, Shape if moved == "name" else Circle, 1, **{moved: 9 if moved == "radius" else "b"}
    )
    [entry] = refused(session).entries
    session.rollback()

    assert entry.database[moved] in (9, "b")
    assert value(engine, Circle, 1, "colour") == "red"


def test_a_version_and_a_value_are_both_checked(store, watched, other, refused, engine):
    store(Delivery(id=1, state="new", total=1), Delivery(id=2, state="new", total=1))
    session = watched()
    for delivery in session.scalars(select(Delivery)):
        delivery.total = 2
    directly(engine, Delivery, 1, state="sent", version=1)
    other(Delivery, 2, total=9)
    entries = refused(session).entries

    assert {entry.identity for entry in entries} == {(1,), (2,)}


def test_one_row_with_a_version_and_a_value_is_one_look_and_one_statement(store, watched, engine):
    store(Delivery(id=1, state="new", total=1))
    session = watched()
    delivery = session.get_one(Delivery, 1)
    delivery.total = 2
    with count_statements(engine) as counted:
        session.flush()
    assert counted.count == 2 + begins(engine)
    session.commit()
    assert value(engine, Delivery, 1, "version") == 2


def begins(engine):
    return engine.dialect.name == "sqlite"


# -- how it is written ----------------------------------------------------------------------------


@pytest.mark.parametrize("many", [1, 10])
def test_many_rows_are_one_look_and_one_statement(store, watched, engine, many):
    store(*(Invoice(id=n, status="open") for n in range(many)))
    session = watched()
    for invoice in session.scalars(select(Invoice)):
        invoice.note = "mine"
    with count_statements(engine) as counted:
        session.flush()
    assert counted.count == 2 + begins(engine)
    session.commit()
    assert value(engine, Invoice, many - 1, "note") == "mine"


# -- deletes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("many", [1, 3])
@pytest.mark.parametrize("model", [Invoice, Card])
def test_a_row_that_has_moved_is_not_deleted(store, watched, refused, engine, many, model):
    name = "status" if model is Invoice else "front"
    store(*(model(id=n, **{name: "a"}) for n in range(many)))
    session = watched()
    for row in session.scalars(select(model)):
        session.delete(row)
    directly(engine, model, 0, **{name: "b"})
    [entry] = refused(session).entries
    session.rollback()

    assert (entry.action, entry.database[name]) == ("delete", "b")
    assert value(engine, model, many - 1, name) is not None


@pytest.mark.parametrize("many", [1, 3])
def test_rows_that_nobody_moved_are_deleted(store, watched, engine, many):
    store(*(Invoice(id=n, status="a") for n in range(many)))
    session = watched()
    for row in session.scalars(select(Invoice)):
        session.delete(row)
    session.commit()
    assert value(engine, Invoice, 0, "id") is None


@pytest.mark.parametrize("many", [1, 3])
def test_a_row_that_is_gone_is_a_conflict(store, watched, refused, engine, many):
    store(*(Invoice(id=n, status="a") for n in range(many)))
    session = watched()
    for row in session.scalars(select(Invoice)):
        row.note = "mine"
    removed(engine, Invoice, 0)
    [entry] = refused(session).entries
    assert (entry.kind, entry.database) == ("deleted", None)


# -- resolvers ------------------------------------------------------------------------------------


@alive
@pytest.mark.parametrize("many", [1, 3])
@pytest.mark.parametrize(
    ("resolver", "status", "note"),
    [(client_wins, "mine", "mine"), (store_wins, "theirs", None), (None, None, None)],
)
def test_a_resolver_settles_it_in_the_transaction(
    store, watched, refused, engine, many, resolver, status, note
):
    store(*(Invoice(id=n, status="a") for n in range(many)))
    session = watched(resolver)
    for row in session.scalars(select(Invoice)):
        row.status, row.note = "mine", "mine"
    directly(engine, Invoice, 0, status="theirs", amount=3)
    if resolver is None:
        refused(session)
        refused(session)  # it stays stale
        session.refresh(session.get_one(Invoice, 0))
        session.commit()
        assert value(engine, Invoice, 0, "status") == "theirs"
        return
    session.commit()

    assert value(engine, Invoice, 0, "status") == status
    assert value(engine, Invoice, 0, "note") == note
    assert value(engine, Invoice, 0, "amount") == 3
    assert session.get_one(Invoice, 0).status == status


@alive
def test_changes_of_both_sides_are_merged(store, watched, engine):
    store(Sheet(id=1, title="a", body="b"))
    session = watched(merge_fields)
    session.get_one(Sheet, 1).title = "mine"
    directly(engine, Sheet, 1, body="theirs")
    session.commit()

    assert value(engine, Sheet, 1, "title") == "mine"
    assert value(engine, Sheet, 1, "body") == "theirs"


@alive
def test_a_row_that_is_gone_is_inserted_again(store, watched, engine):
    store(Invoice(id=1, status="a"))
    session = watched(client_wins)
    session.get_one(Invoice, 1).note = "mine"
    removed(engine, Invoice, 1)
    session.commit()
    assert value(engine, Invoice, 1, "note") == "mine"


def test_a_second_flush_compares_with_what_the_first_has_written(store, watched, engine):
    store(Sheet(id=1, title="a", ratio=0.1))
    session = watched()
    sheet = session.get_one(Sheet, 1)
    for n in range(3):
        sheet.title = f"mine {n}"
        session.flush()
    sheet.views = Sheet.id + 1
    session.commit()
    assert value(engine, Sheet, 1, "title") == "mine 2"
    assert value(engine, Sheet, 1, "views") == 2


@alive
def test_an_expression_is_written_only_where_the_values_hold(store, watched, refused, engine):
    store(Invoice(id=1, status="a", amount=1))
    session = watched()
    session.get_one(Invoice, 1).amount = Invoice.amount + 1
    directly(engine, Invoice, 1, status="b")
    refused(session)
    session.rollback()
    session.get_one(Invoice, 1).amount = Invoice.amount + 1
    session.commit()
    assert value(engine, Invoice, 1, "amount") == 2


# -- what is refused ------------------------------------------------------------------------------


def test_a_plain_session_is_refused(store, engine):
    store(Invoice(id=1, status="a"))
    with Session(engine) as session:
        session.get_one(Invoice, 1).note = "mine"
        with pytest.raises(ConfigurationError, match="compares none"):
            session.commit()
    with Session(engine) as session:
        session.delete(session.get_one(Invoice, 1))
        with pytest.raises(ConfigurationError, match="compares none"):
            session.commit()


def test_a_plain_session_still_checks_a_version_beside(store, other, engine):
    store(Delivery(id=1, state="a"))
    with Session(engine) as session:
        session.get_one(Delivery, 1).total = 1
        session.commit()
    assert value(engine, Delivery, 1, "version") == 2


def test_a_unit_of_work_compares(store, engine):
    store(Card(id=1, front="a"))
    with pytest.raises(ConcurrencyError), UnitOfWork(engine) as session:
        session.get_one(Card, 1).front = "mine"
        directly(engine, Card, 1, front="theirs")


def test_there_is_no_etag_of_compared_values(store, watched):
    store(Card(id=1))
    with pytest.raises(ConfigurationError):
        etag_of(watched().get_one(Card, 1))


def test_without_a_conflict_a_trigger_that_prevents_the_write_is_told_as_such(store, engine):
    store(Invoice(id=1, status="a"))
    sessions = watch(sessionmaker(engine))
    with sessions() as session:
        invoice = session.get_one(Invoice, 1)

        @event.listens_for(session, "before_flush")
        def remove_the_row(session, uow, objects):
            table = Invoice.__table__
            session.connection().execute(table.delete())

        invoice.note = "mine"
        with pytest.raises(ConcurrencyError) as caught:
            session.flush()
        assert caught.value.entries[0].kind == "deleted"


# -- objects that were expired ---------------------------------------------------------------------


@pytest.mark.parametrize("model", [Invoice, Sheet, Card])
@pytest.mark.parametrize("moved", [False, True])
def test_an_edit_after_a_commit_is_compared_with_what_was_seen_before(
    store, watched, engine, model, moved
):
    name = "front" if model is Card else "title" if model is Sheet else "status"
    store(model(id=1, **{name: "a"}))
    session = watched()
    row = session.get_one(model, 1)
    session.commit()
    setattr(row, name, "mine")  # without having read it again
    if moved:
        directly(engine, model, 1, **{name: "theirs"})
        with pytest.raises(ConcurrencyError) as caught:
            session.flush()
        [entry] = caught.value.entries
        assert (entry.original[name], entry.database[name]) == ("a", "theirs")
        session.rollback()
        assert getattr(row, name) == "theirs"
        setattr(row, name, "mine")  # now it was read
    session.commit()
    assert value(engine, model, 1, name) == "mine"


@pytest.mark.parametrize("model", [Invoice, Sheet])
@pytest.mark.parametrize("act", ["edit", "delete"])
def test_values_that_are_read_inside_the_flush_were_seen_by_nobody(
    store, watched, engine, model, act
):
    name, edited = ("status", "note") if model is Invoice else ("title", "body")
    store(model(id=1, **{name: "a"}))
    session = watched()
    row = session.get_one(model, 1)
    session.commit()
    if act == "edit":
        setattr(row, edited, "mine")
    else:
        session.delete(row)
    directly(engine, model, 1, **{name: "theirs"})
    with pytest.raises(ConcurrencyError):
        session.commit()
    session.rollback()
    assert value(engine, model, 1, name) == "theirs"
    setattr(row, edited, "mine")
    with pytest.raises(ConcurrencyError):  # still without having read it
        session.commit()


def test_all_that_was_read_is_compared_though_one_value_was_expired(store, watched, engine):
    store(Sheet(id=1, title="a", body="b"))
    session = watched()
    sheet = session.get_one(Sheet, 1)
    session.expire(sheet, ["body"])
    directly(engine, Sheet, 1, title="theirs")
    sheet.body = "mine"
    with pytest.raises(ConcurrencyError):
        session.commit()
    assert value(engine, Sheet, 1, "body") == "b"


@pytest.mark.parametrize("model", [Invoice, Sheet, Card])
@pytest.mark.parametrize("how", ["expire", "refresh"])
def test_an_edit_is_written_though_another_value_is_read_again(store, watched, engine, model, how):
    edited, again = {
        Invoice: ("status", "note"),
        Sheet: ("title", "body"),
        Card: ("front", "back"),
    }[model]
    store(model(id=1, **{edited: "a"}))
    session = watched()
    row = session.get_one(model, 1)
    setattr(row, edited, "mine")
    getattr(session, how)(row, [again])
    session.commit()
    assert value(engine, model, 1, edited) == "mine"


@pytest.mark.parametrize("model", [Invoice, Sheet, Card])
def test_an_edit_that_a_query_drops_was_not_read(store, watched, engine, model):
    """Also where the query leaves its column out."""
    name = "front" if model is Card else "title" if model is Sheet else "status"
    store(model(id=1, **{name: "a"}))
    session = watched(autoflush=False)
    row = session.get_one(model, 1)
    setattr(row, name, "dropped")
    session.scalars(
        select(model).options(defer(getattr(model, name))).execution_options(populate_existing=True)
    ).all()
    assert getattr(row, name) == "a"
    setattr(row, name, "mine")
    session.commit()
    assert value(engine, model, 1, name) == "mine"


@pytest.mark.parametrize("model", [Invoice, Sheet, Card])
def test_what_was_read_after_an_undone_statement_of_one_row_must_be_read_again(
    store, watched, engine, model
):
    name = "front" if model is Card else "title" if model is Sheet else "status"
    store(model(id=1, **{name: "a"}))
    session = watched()
    session.execute(update(model.__table__).where(model.__table__.c.id == 1).values({name: "x"}))
    row = session.get_one(model, 1)
    session.rollback()
    setattr(row, name, "mine")
    with pytest.raises(ConfigurationError, match="never read"):
        session.commit()
    session.rollback()
    assert getattr(row, name) == "a"
    setattr(row, name, "mine")
    session.commit()
    assert value(engine, model, 1, name) == "mine"


def test_after_a_rollback_of_ones_own_write_the_row_is_read_first(store, watched, engine):
    store(Invoice(id=1, status="a", amount=1))
    session = watched()
    row = session.get_one(Invoice, 1)
    row.status = "mine"
    session.flush()
    session.rollback()
    row.note = "mine"
    with pytest.raises(ConfigurationError, match="never read"):
        session.commit()
    session.rollback()
    assert row.status == "a"
    row.note = "mine"
    session.commit()
    assert value(engine, Invoice, 1, "note") == "mine"


def test_several_units_of_one_session_do_not_conflict_with_themselves(store, watched, engine):
    store(Sheet(id=1, title="a", data={"a": [1]}))
    session = watched()
    sheet = session.get_one(Sheet, 1)
    for n in range(3):
        sheet.title = f"mine {n}"
        session.commit()
        sheet.views = Sheet.id + n
        session.commit()
        sheet.views = n
        session.commit()
    assert value(engine, Sheet, 1, "title") == "mine 2"


@pytest.mark.parametrize("many", [1, 2])
def test_our_own_write_of_a_verified_row_is_no_conflict(store, watched, engine, many):
    store(*(Delivery(id=n, state="new", total=1) for n in range(many)))
    session = watched()
    for delivery in session.scalars(select(Delivery)):
        verify(delivery)
        delivery.total = 2
    session.commit()
    assert value(engine, Delivery, 0, "total") == 2


def test_what_was_read_after_an_undone_statement_must_be_read_again(store, watched, engine):
    store(Invoice(id=1, status="open"))
    session = watched(expire_on_commit=False)
    session.execute(update(Invoice).values(status="paid"))
    invoice = session.get_one(Invoice, 1)
    session.rollback()
    invoice.note = "mine"
    with pytest.raises(ConfigurationError, match="never read"):
        session.commit()
    session.rollback()
    assert invoice.status == "open"
    invoice.note = "mine"
    session.commit()
    assert value(engine, Invoice, 1, "note") == "mine"


@pytest.mark.parametrize("model", [Invoice, Card, Delivery, Circle])
def test_a_new_object_does_not_take_over_a_row_that_has_moved(
    store, watched, refused, engine, model
):
    """One deleted and another added with its key is an UPDATE, and the new object read nothing."""
    name = {Invoice: "status", Card: "front", Delivery: "state", Circle: "name"}[model]
    store(model(id=1, **{name: "a"}))
    session = watched()
    session.delete(session.get_one(model, 1))
    session.add(model(id=1, **{name: "mine"}))
    directly(engine, Shape if model is Circle else model, 1, **{name: "theirs"})
    [entry] = refused(session).entries
    assert (entry.identity, entry.action, entry.database[name]) == ((1,), "delete", "theirs")
    session.rollback()
    assert value(engine, model, 1, name) == "theirs"


@pytest.mark.parametrize("model", [Invoice, Card, Delivery])
def test_a_new_object_takes_over_a_row_that_nobody_moved(store, watched, engine, model):
    store(model(id=1))
    session = watched()
    session.delete(session.get_one(model, 1))
    name = {Invoice: "status", Card: "front", Delivery: "state"}[model]
    session.add(model(id=1, **{name: "mine"}))
    session.commit()
    assert value(engine, model, 1, name) == "mine"


def by_key(session, row):
    session.execute(update(Invoice), [row])


def by_mappings(session, row):
    session.bulk_update_mappings(Invoice, [row])


def by_objects(session, row):
    invoice = session.get_one(Invoice, 1)
    invoice.status = "mine"
    session.bulk_save_objects([Invoice(id=2), invoice])


def by_bulk_update(session, row):
    bulk_update(session, Invoice, [row])


@pytest.mark.parametrize("call", [by_key, by_mappings, by_objects, by_bulk_update])
def test_bulk_calls_which_compare_nothing_are_refused(store, watched, stored, call):
    """They would write over what somebody else has changed since, and say nothing."""
    store(Invoice(id=1, status="open"))
    session = watched(autoflush=False)
    with pytest.raises(ConfigurationError, match=r"compares values|has no version"):
        call(session, {"id": 1, "status": "mine"})
    session.rollback()
    assert stored(Invoice, 1)["status"] == "open"
    session.bulk_save_objects([Invoice(id=3)])  # a new row has nothing to compare
    session.bulk_insert_mappings(Invoice, [{"id": 4}])


def test_saving_an_object_that_is_as_it_was_read_writes_nothing(store, watched, engine):
    """So it is not refused."""
    store(Invoice(id=1, status="open"))
    session = watched()
    invoice = session.get_one(Invoice, 1)
    with count_statements(engine) as sent:
        session.bulk_save_objects([invoice])
    assert sent.count == 0


def test_bulk_rows_with_a_version_cannot_say_the_values_that_are_compared_as_well(store, watched):
    store(Delivery(id=1))
    session = watched()
    for call in (bulk_update, bulk_delete):
        with pytest.raises(ConfigurationError, match="compares values"):
            call(session, Delivery, [{"id": 1, "version": 1}])


@pytest.mark.parametrize("kept", [False, True])
def test_a_new_row_can_be_edited_without_being_read(tables, watched, stored, kept):
    """What was not given is NULL: nothing that nobody has seen."""
    tables(Parcel, Card)
    session = watched(expire_on_commit=not kept)
    parcel, card = Parcel(id=1, count=1), Card(id=1)
    session.add_all([parcel, card])
    session.flush()
    parcel.note = card.front = "mine"
    session.commit()
    parcel.price = 3
    session.commit()
    session.delete(parcel)
    session.add(Parcel(id=1, note="another"))  # takes over the row
    session.flush()
    session.rollback()
    assert (stored(Parcel, 1)["note"], stored(Parcel, 1)["price"]) == ("mine", 3)


FINER = {
    "sent": datetime(2026, 5, 4, 3, 2, 1, 678901),
    "price": Decimal("2.2251"),
    "count": "7",
    "data": {1: ("a", "b")},
}


@alive
@pytest.mark.parametrize("name", FINER)
@pytest.mark.parametrize("kept", [False, True])
def test_what_a_column_has_rounded_is_no_conflict_with_oneself(
    tables, engine, watched, stored, name, kept
):
    """A DATETIME of MariaDB drops the fraction of a second; NUMERIC(10, 2) the fourth place."""
    tables(Parcel)
    session = watched(expire_on_commit=not kept)
    parcel = Parcel(id=1, **{name: FINER[name]})
    session.add(parcel)
    session.commit()
    parcel.note = "again"
    session.flush()
    setattr(parcel, name, FINER[name])
    session.commit()
    parcel.note = "and again"
    session.commit()
    directly(engine, Parcel, 1, **{name: None})
    parcel.note = "not seen"
    with pytest.raises(ConcurrencyError):
        session.commit()
    assert stored(Parcel, 1)["note"] == "and again"


class Gauge(Versioned, Base):
    """Numbers of every width."""

    __tablename__ = "cv_gauges"
    __version_token__ = CompareValues.all()
    id: Mapped[int] = key()
    note: Mapped[str | None]
    plain: Mapped[float | None] = mapped_column(Float)
    single: Mapped[float | None] = mapped_column(Float(24))
    double: Mapped[float | None] = mapped_column(Float(53))
    widest: Mapped[float | None] = mapped_column(Double)
    scaled: Mapped[float | None] = mapped_column(
        Float(24).with_variant(mysql.FLOAT(10, 2), "mysql", "mariadb")
    )
    fixed: Mapped[float | None] = mapped_column(
        Double().with_variant(mysql.DOUBLE(10, 2), "mysql", "mariadb")
    )
    number: Mapped[float | None] = mapped_column(Numeric(10, 2, asdecimal=False))
    varied: Mapped[float | None] = mapped_column(
        Numeric(10, 2, asdecimal=False).with_variant(mysql.FLOAT(10, 2), "mysql", "mariadb")
    )
    small: Mapped[int | None] = mapped_column(SmallInteger)
    positive: Mapped[int | None] = mapped_column(
        BigInteger().with_variant(mysql.BIGINT(unsigned=True), "mysql", "mariadb")
    )
    at: Mapped[time | None]
    lasts: Mapped[timedelta | None]


@alive
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize(
    "name", sorted(c.key for c in Gauge.__table__.columns if c.key not in ("id", "note"))
)
def test_numbers_and_times_of_every_width_are_no_conflict_with_oneself(
    tables, engine, watched, stored, name, kept
):
    tables(Gauge)
    given = {
        "small": 7,
        "positive": 7,
        "at": time(3, 2, 1, 678901),
        "lasts": timedelta(minutes=1, microseconds=678901),
    }.get(name, 200 / 3)
    session = watched(expire_on_commit=not kept)
    gauge = Gauge(id=1, **{name: given})
    session.add(gauge)
    session.commit()
    for note in ("again", "and again"):
        gauge.note = note
        session.commit()
    setattr(gauge, name, given * 2 if name != "at" else time(4, 2, 1, 678901))
    session.commit()
    gauge.note = "still"
    session.commit()
    directly(engine, Gauge, 1, **{name: given})
    gauge.note = "not seen"
    with pytest.raises(ConcurrencyError):
        session.commit()
    assert stored(Gauge, 1)["note"] == "still"


@alive
def test_what_somebody_else_has_rounded_is_a_conflict(tables, engine, watched, stored):
    tables(Parcel)
    session = watched(expire_on_commit=False)
    parcel = Parcel(id=1, price=Decimal("2.2251"))
    session.add(parcel)
    session.commit()
    directly(engine, Parcel, 1, price=Decimal("2.2351"))
    parcel.note = "not seen"
    with pytest.raises(ConcurrencyError):
        session.commit()


class Letter(Versioned, Base):
    """Its text is read only where it is wanted."""

    __tablename__ = "cv_letters"
    __version_token__ = CompareValues.all()
    id: Mapped[int] = key()
    name: Mapped[str | None]
    text: Mapped[str | None] = mapped_column(deferred=True)


class Memo(Versioned, Base):
    __tablename__ = "cv_memos"
    __version_token__ = CompareValues.changed()
    id: Mapped[int] = key()
    name: Mapped[str | None]
    text: Mapped[str | None] = mapped_column(deferred=True)


@pytest.mark.parametrize("model", [Letter, Memo])
@pytest.mark.parametrize("many", [1, 3])
@pytest.mark.parametrize("act", ["edit", "delete"])
def test_a_deferred_value_that_was_read_is_compared(
    store, watched, refused, engine, stored, model, many, act
):
    store(*(model(id=n, text="a") for n in range(many)))
    session = watched()
    rows = session.scalars(select(model).order_by(model.id)).all()
    assert [row.text for row in rows] == ["a"] * many
    directly(engine, model, 0, text="theirs")
    for row in rows:
        if act == "edit":
            row.text = "ours"
        else:
            session.delete(row)
    (entry,) = refused(session).entries
    session.rollback()

    assert (entry.original["text"], entry.database["text"]) == ("a", "theirs")
    assert stored(model, 0)["text"] == "theirs"


@pytest.mark.parametrize("model", [Letter, Memo])
@pytest.mark.parametrize("many", [1, 3])
def test_a_deferred_value_is_not_set_without_having_been_read(
    store, watched, engine, stored, model, many
):
    store(*(model(id=n, text="a") for n in range(many)))
    session = watched(autoflush=False)
    rows = session.scalars(select(model).order_by(model.id)).all()
    directly(engine, model, 0, text="theirs")
    for row in rows:
        row.text = "ours"
    with pytest.raises(ConfigurationError, match="its 'text' was never read"):
        session.flush()
    session.rollback()

    assert stored(model, 0)["text"] == "theirs"


@alive
@pytest.mark.parametrize("many", [1, 3])
@pytest.mark.parametrize("act", ["edit", "delete"])
def test_a_deferred_value_that_was_not_read_is_not_compared(
    store, watched, engine, stored, many, act
):
    store(*(Letter(id=n, name="a", text="a") for n in range(many)))
    session = watched()
    rows = session.scalars(select(Letter).order_by(Letter.id)).all()
    directly(engine, Letter, 0, text="theirs")
    for row in rows:
        if act == "edit":
            row.name = "ours"
        else:
            session.delete(row)
    session.commit()

    assert (stored(Letter, 0) or {}).get("text") == ("theirs" if act == "edit" else None)


# -- update(Model) of what is expired -------------------------------------------------------------


@pytest.mark.parametrize("then", ["edit", "delete"])
def test_an_expired_object_knows_of_the_sessions_own_update(store, watched, stored, then):
    store(Card(id=1, front="a", back=1))
    session = watched()
    card = session.get_one(Card, 1)
    card.front = "mine"
    session.commit()
    session.execute(update(Card).where(Card.id == 1).values(back=2))
    if then == "edit":
        card.back = 3
    else:
        session.delete(card)
    session.commit()

    assert (stored(Card, 1) or {}).get("back") == (3 if then == "edit" else None)


@alive
def test_an_expired_object_that_is_older_than_its_row_conflicts_after_the_sessions_own_update(
    engine, store, watched, stored
):
    store(Card(id=1, front="a", back=1))
    session = watched()
    card = session.get_one(Card, 1)
    session.commit()
    directly(engine, Card, 1, front="theirs")
    session.execute(update(Card).where(Card.id == 1).values(back=2))
    session.delete(card)
    with pytest.raises(ConcurrencyError):
        session.commit()
    session.rollback()
    assert stored(Card, 1)["front"] == "theirs"


# -- populate_existing ----------------------------------------------------------------------------


@alive
@pytest.mark.parametrize("model", [Card, Sheet])
def test_a_delete_is_of_the_values_that_were_held_when_it_was_decided(
    engine, store, watched, stored, model
):
    name = "front" if model is Card else "title"
    store(model(id=1, **{name: "a"}))
    session = watched()
    session.delete(session.get_one(model, 1))
    directly(engine, model, 1, **{name: "theirs"})
    with session.no_autoflush:
        session.scalars(select(model).execution_options(populate_existing=True)).all()
    with pytest.raises(ConcurrencyError):
        session.commit()
    session.rollback()
    assert stored(model, 1)[name] == "theirs"
