"""Columns that belong together: no merge stores a combination that neither side has written."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from sqlalchemy import ForeignKey, select
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import (
    Mapped,
    composite,
    load_only,
    mapped_column,
    sessionmaker,
    synonym,
    validates,
)

from optilock import (
    AsyncUnitOfWork,
    ConcurrencyError,
    ConfigurationError,
    Entry,
    PreconditionFailed,
    Versioned,
    client_wins,
    merge_fields,
    reject,
    store_wins,
    watch,
)
from optilock.preconditions import merge_changes, overwrite, sign_seen
from optilock.preconditions.entity_tags import ETags
from optilock.resolvers import Resolution, add_delta, per_field
from optilock.tokens import CompareValues
from tests.support.models import Base, key

TAGS = ETags(keys=["a key of sixteen bytes or more"])
PAIR = (("start", "end"),)


class InOrder:
    """Every writer keeps the rule that a start is not after its end."""

    @validates("start", "end")
    def _in_order(self, name: str, value: int) -> int:
        start = value if name == "start" else self.start
        end = value if name == "end" else self.end
        assert start is None or end is None or start <= end
        return value


class Slot(InOrder, Versioned, Base):
    """Declares nothing: only resolvers know that its columns belong together."""

    __tablename__ = "together_slots"
    id: Mapped[int] = key()
    start: Mapped[int]
    end: Mapped[int] = mapped_column("the_end")
    note: Mapped[str | None]


class Booking(InOrder, Versioned, Base):
    __tablename__ = "together_bookings"
    __merge_together__ = PAIR
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "booking"}
    id: Mapped[int] = key()
    kind: Mapped[str]
    start: Mapped[int]
    end: Mapped[int]
    note: Mapped[str | None]


class Stay(Booking):
    """A group of its own, in two tables, that overlaps the one of its parent."""

    __tablename__ = "together_stays"
    __merge_together__ = (("finish", "nights"),)
    __mapper_args__ = {"polymorphic_identity": "stay"}
    id: Mapped[int] = mapped_column(ForeignKey(Booking.id), primary_key=True)
    nights: Mapped[int]
    beds: Mapped[int]
    finish = synonym("end")


@dataclasses.dataclass(frozen=True)
class Money:
    amount: int
    currency: str


class Price(Versioned, Base):
    """A composite is one value, and nothing has to be declared."""

    __tablename__ = "together_prices"
    id: Mapped[int] = key()
    price: Mapped[Money] = composite(mapped_column("amount"), mapped_column("currency"))
    note: Mapped[str | None]


class Native(Base):
    """Has SQLAlchemy's own version."""

    __tablename__ = "together_natives"
    __merge_together__ = PAIR
    id: Mapped[int] = key()
    revision: Mapped[int] = mapped_column()
    start: Mapped[int]
    end: Mapped[int]
    note: Mapped[str | None]
    __mapper_args__ = {"version_id_col": revision}


class Compared(Versioned, Base):
    """Compares what it writes."""

    __tablename__ = "together_compared"
    __version_token__ = CompareValues.changed()
    __merge_together__ = PAIR
    id: Mapped[int] = key()
    start: Mapped[int]
    end: Mapped[int]
    note: Mapped[str | None]


OF_CLASS, OF_RESOLVER = merge_fields, merge_fields(together=PAIR)
BOTH_WAYS = pytest.mark.parametrize(
    ("model", "resolver"),
    [(Booking, OF_CLASS), (Slot, OF_RESOLVER), (Slot, per_field(note=max, together=PAIR))],
    ids=["class", "merge_fields", "per_field"],
)
DECLARED = pytest.mark.parametrize("model", [Booking, Native, Compared])


@pytest.fixture
def other(engine: Any) -> Any:
    """The other program is watched as well: a plain session would not write ``Compared``."""
    sessions = watch(sessionmaker(engine))

    def other(model: Any, key: int, **values: Any) -> None:
        with sessions.begin() as session:
            row = session.get_one(model, key)
            for name, value in values.items():
                setattr(row, name, value)

    return other


@pytest.fixture
def stored_times(stored: Any) -> Any:
    def stored_times(model: Any, key: int = 1) -> tuple[Any, Any]:
        row = stored(model, key)
        return row["start"], row["end"]

    return stored_times


@BOTH_WAYS
def test_a_merge_joins_no_start_of_ours_with_an_end_of_theirs(
    model, resolver, store, watched, other, refused, stored_times
):
    store(model(id=1, start=1, end=10))
    session = watched(resolver)
    row = session.get_one(model, 1)
    row.start = 9
    other(model, 1, end=2)
    error = refused(session)

    assert stored_times(model) == (1, 2)
    assert "belong together: end, start" in error.__notes__[0]
    if model is Booking:
        assert error.entries[0].conflicting == {"start", "end"}


@BOTH_WAYS
def test_the_same_column_conflicts_as_ever(model, resolver, store, watched, other, refused):
    store(model(id=1, start=1, end=10))
    session = watched(resolver)
    session.get_one(model, 1).start = 9
    other(model, 1, start=3)
    error = refused(session)

    assert error.entries[0].conflicting == {"start"}
    assert error.__notes__[0].endswith("both sides changed start")


@BOTH_WAYS
@pytest.mark.parametrize(
    ("ours", "theirs", "result"),
    [
        ({"start": 2, "end": 8}, {"note": "theirs"}, (2, 8)),
        ({"note": "ours"}, {"start": 2, "end": 8}, (2, 8)),
        ({"start": 3}, {"start": 3, "end": 5}, (3, 5)),
        ({"start": 3, "end": 5}, {"start": 3}, (3, 5)),
        ({"start": 3, "end": 5}, {"start": 3, "end": 5}, (3, 5)),
    ],
)
def test_a_combination_that_one_side_has_written_is_no_conflict(
    model, resolver, ours, theirs, result, store, watched, other, stored_times
):
    store(model(id=1, start=1, end=10))
    session = watched(resolver)
    row = session.get_one(model, 1)
    for name, value in ours.items():
        setattr(row, name, value)
    other(model, 1, **theirs)
    session.commit()

    assert stored_times(model) == (row.start, row.end) == result


@DECLARED
@pytest.mark.parametrize(
    ("resolver", "result"), [(client_wins, (9, 10)), (store_wins, (1, 2))], ids=["ours", "theirs"]
)
def test_who_wins_wins_the_whole_group(
    model, resolver, result, store, watched, other, stored_times, stored
):
    store(model(id=1, start=1, end=10))
    session = watched(resolver)
    row = session.get_one(model, 1)
    row.start = 9
    other(model, 1, end=2, note="theirs")
    session.commit()

    assert stored_times(model) == (row.start, row.end) == result
    assert stored(model, 1)["note"] == row.note == "theirs"


@DECLARED
def test_classes_of_every_kind_declare_groups(model, store, watched, other, refused, stored_times):
    store(model(id=1, start=1, end=10))
    session = watched(merge_fields)
    session.get_one(model, 1).start = 9
    other(model, 1, end=2)

    assert refused(session).entries[0].conflicting == {"start", "end"}
    assert stored_times(model) == (1, 2)


def test_without_a_resolver_columns_that_are_compared_are_those_that_belong_together(
    store, watched, other, refused, stored
):
    store(Compared(id=1, start=1, end=10, note="a"))
    session = watched()
    session.get_one(Compared, 1).start = 9
    other(Compared, 1, end=2)
    refused(session)
    session.rollback()
    session.get_one(Compared, 1).start = 2
    other(Compared, 1, note="theirs")  # no part of the group: still no conflict
    session.commit()

    row = stored(Compared, 1)
    assert (row["start"], row["end"], row["note"]) == (2, 2, "theirs")


def test_overwriting_a_row_overwrites_the_whole_group(store, watched, other, stored_times):
    store(Booking(id=1, start=1, end=10))
    session = watched(reject)
    row = session.get_one(Booking, 1)
    row.start = 9
    overwrite(row)
    other(Booking, 1, end=2)
    session.commit()

    assert stored_times(Booking) == (9, 10)


def test_a_resolver_of_the_program_is_told_the_whole_group(store, watched, other, stored_times):
    def mine(entry: Entry[Any]) -> Resolution:
        return Resolution.write({name: entry.current[name] for name in entry.conflicting})

    store(Booking(id=1, start=1, end=10))
    session = watched(mine)
    session.get_one(Booking, 1).start = 9
    other(Booking, 1, end=2)
    session.commit()

    assert stored_times(Booking) == (9, 10)


def test_edits_are_applied_again_with_the_whole_group(store, watched, other, refused, stored_times):
    store(Native(id=1, start=1, end=10))
    session = watched()
    session.get_one(Native, 1).start = 9
    other(Native, 1, end=2)
    [entry] = refused(session).entries
    session.rollback()
    entry.apply_to(session.get_one(Native, 1))
    session.commit()
    assert stored_times(Native) == (9, 10)


# -- a batch of rows, and deletes ------------------------------------------------------------------


def test_in_a_batch_the_others_are_merged(store, watched, other, stored_times, stored):
    def earlier(entry: Entry[Any]) -> Resolution:
        if not entry.conflicting:
            return merge_fields(entry)
        assert entry.conflicting == {"start", "end"}
        return Resolution.write({"start": entry.original["start"], "end": entry.database["end"]})

    store(*(Booking(id=n, start=1, end=10, note="a") for n in range(1, 7)))
    session = watched(earlier)
    for row in session.scalars(select(Booking)).all():
        row.start = 9
    other(Booking, 2, end=2)
    other(Booking, 4, note="theirs")
    session.commit()

    assert [stored_times(Booking, n) for n in (1, 2, 3, 4)] == [(9, 10), (1, 2), (9, 10), (9, 10)]
    assert stored(Booking, 4)["note"] == "theirs"


def test_one_refused_row_of_a_batch_leaves_all_that_missed(
    store, watched, other, refused, stored_times
):
    store(*(Booking(id=n, start=1, end=10, note="a") for n in range(1, 4)))
    session = watched(merge_fields)
    for row in session.scalars(select(Booking)).all():
        row.start = 9
    other(Booking, 2, end=2)
    other(Booking, 3, note="theirs")

    assert [entry.identity for entry in refused(session).entries] == [(2,), (3,)]
    session.rollback()
    assert [stored_times(Booking, n) for n in (2, 3)] == [(1, 2), (1, 10)]


def test_a_deleted_row_is_settled_as_a_whole(store, watched, gone, other, stored, stored_times):
    store(Booking(id=1, start=1, end=10), Booking(id=2, start=1, end=10))
    session = watched(client_wins)
    deleted, edited = session.get_one(Booking, 2), session.get_one(Booking, 1)
    edited.start = 9
    session.delete(deleted)
    gone(Booking, 1)
    other(Booking, 2, end=2)
    session.commit()

    assert stored_times(Booking) == (9, 10)
    assert stored(Booking, 2) is None


# -- what was not loaded ---------------------------------------------------------------------------


def half_loaded(session: Any) -> Any:
    only = select(Native).options(load_only(Native.start))
    return session.scalars(only).one()


@pytest.mark.parametrize("resolver", [merge_fields, client_wins, overwrite])
def test_a_column_that_was_not_loaded_may_have_been_changed(
    resolver, store, watched, other, refused, stored_times
):
    store(Native(id=1, start=1, end=10))
    session = watched(reject if resolver is overwrite else resolver)
    row = half_loaded(session)
    row.start = 9
    if resolver is overwrite:
        overwrite(row)
    other(Native, 1, end=2)
    error = refused(session)

    assert error.entries[0].conflicting == {"start", "end"}
    assert "end" in error.__notes__[0]
    assert "loaded" in error.__notes__[0]
    with pytest.raises(ConfigurationError, match=r"Native\.end was never loaded"):
        error.entries[0].apply_to(Native())
    assert stored_times(Native) == (1, 2)


# -- policies --------------------------------------------------------------------------------------


def test_a_policy_for_one_of_the_columns_settles_no_group(
    store, watched, other, refused, stored_times
):
    store(Booking(id=1, start=1, end=10))
    session = watched(per_field(start=lambda original, current, database: current))
    session.get_one(Booking, 1).start = 9
    other(Booking, 1, end=2)
    refused(session)

    assert stored_times(Booking) == (1, 2)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [({"start": 3}, {"start": 3, "end": 5}), ({"start": 3, "end": 5}, {"start": 3})],
)
def test_what_a_policy_makes_is_of_neither_side(
    ours, theirs, store, watched, other, refused, stored_times
):
    store(Booking(id=1, start=1, end=10))
    session = watched(per_field(start=add_delta))  # 1 + 2 + 2: after their end, or our own
    row = session.get_one(Booking, 1)
    for name, value in ours.items():
        setattr(row, name, value)
    other(Booking, 1, **theirs)
    refused(session)

    assert stored_times(Booking) == (3, theirs.get("end", 10))


@pytest.mark.parametrize("model", [Booking, Slot])
def test_policies_for_all_that_was_changed_settle_the_group(
    model, store, watched, other, stored_times
):
    store(model(id=1, start=5, end=10))
    session = watched(per_field(start=min, end=max, together=PAIR))
    row = session.get_one(model, 1)
    row.start = 7
    other(model, 1, end=6)
    session.commit()

    assert stored_times(model) == (row.start, row.end) == (5, 10)


def test_a_policy_adds_to_a_composite_of_which_nobody_changed_the_rest(
    store, watched, other, stored
):
    store(Price(id=1, price=Money(10, "EUR")))
    session = watched(per_field(amount=add_delta))
    session.get_one(Price, 1).price = Money(15, "EUR")
    other(Price, 1, price=Money(7, "EUR"))
    session.commit()
    assert stored(Price, 1)["amount"] == 12


# -- composites, subclasses ------------------------------------------------------------------------


def test_a_composite_is_one_value(store, watched, other, refused, stored):
    store(Price(id=1, price=Money(10, "EUR")))
    session = watched(merge_fields)
    session.get_one(Price, 1).price = Money(15, "EUR")
    other(Price, 1, price=Money(10, "JPY"), note="theirs")

    assert refused(session).entries[0].conflicting == {"amount", "currency"}
    session.rollback()
    assert (stored(Price, 1)["amount"], stored(Price, 1)["currency"]) == (10, "JPY")


def test_a_composite_and_another_column_belong_together_by_its_name(store, watched, other, refused):
    store(Price(id=1, price=Money(10, "EUR"), note="a"))
    session = watched(per_field(together=[("price", "note")]))
    session.get_one(Price, 1).note = "ours"
    other(Price, 1, amount=11)

    assert "amount, note" in refused(session).__notes__[0]


def test_groups_of_a_subclass_are_added_and_overlapping_groups_are_one(
    store, watched, other, refused, stored
):
    store(Stay(id=1, start=1, end=10, nights=9, beds=1))
    session = watched(merge_fields)
    row = session.get_one(Stay, 1)
    row.start = 2
    other(Stay, 1, nights=3, beds=2)

    assert refused(session).entries[0].conflicting == {"start", "nights"}
    session.rollback()
    assert row.beds == 2
    row.beds = 3
    other(Stay, 1, nights=4)
    session.commit()
    assert (stored(Stay, 1)["nights"], stored(Stay, 1)["beds"]) == (4, 3)


def test_both_tables_of_a_row_get_the_whole_group(store, watched, other, stored):
    store(Stay(id=1, start=1, end=10, nights=9, beds=1))
    session = watched(client_wins)
    row = session.get_one(Stay, 1)
    row.start = 2
    other(Stay, 1, nights=3, beds=2)
    session.commit()

    assert (row.start, row.end, row.nights, row.beds) == (2, 10, 9, 2)
    assert stored(Stay, 1)["nights"] == 9


# -- merges that a client asks for, and async ------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "resolver"), [(Booking, merge_fields), (Slot, merge_fields(together=PAIR))]
)
@pytest.mark.parametrize("names", [["start", "end"], ["start"]])
def test_what_a_client_sends_is_merged_by_the_same_rule(
    model, resolver, names, store, watched, other, stored_times
):
    store(model(id=1, start=1, end=10))
    session = watched()
    seen = sign_seen(session.get_one(model, 1), names, etags=TAGS)
    session.rollback()
    other(model, 1, end=2)
    ours: dict[str, Any] = {"start": 9}
    options: dict[str, Any] = {"seen": seen, "etags": TAGS}
    with pytest.raises(PreconditionFailed):
        merge_changes(session, model, 1, ours, **options, on_conflict=resolver)
    session.commit()
    assert stored_times(model) == (1, 2)


def test_a_client_wins_the_whole_group(store, watched, other, stored):
    store(Price(id=1, price=Money(10, "EUR")))
    session = watched()
    seen = sign_seen(session.get_one(Price, 1), ["amount", "currency"], etags=TAGS)
    session.rollback()
    other(Price, 1, price=Money(10, "JPY"), note="theirs")
    changes = {"price": Money(15, "EUR")}
    merge_changes(session, Price, 1, changes, seen=seen, etags=TAGS, on_conflict=client_wins)
    session.commit()
    row = stored(Price, 1)
    assert (row["amount"], row["currency"], row["note"]) == (15, "EUR", "theirs")


@pytest.mark.anyio
@pytest.mark.parametrize(("model", "resolver"), [(Booking, OF_CLASS), (Slot, OF_RESOLVER)])
async def test_async_sessions_keep_columns_together(model, resolver, async_engine, async_store):
    sessions = watch(async_sessionmaker(async_engine), on_conflict=resolver)
    async_store(model(id=1, start=1, end=10))
    async with sessions() as session:
        row = await session.get_one(model, 1)
        async with AsyncUnitOfWork(async_engine) as others:
            (await others.get_one(model, 1)).end = 2
        row.start = 9
        with pytest.raises(ConcurrencyError):
            await session.commit()
    async with sessions() as session:
        row = await session.get_one(model, 1)
        assert (row.start, row.end) == (1, 2)
