"""Aggregates: a root's version moves once a flush when anything that belongs to it changes."""

from __future__ import annotations

import gc
import re
import weakref

import pytest
from sqlalchemy import ForeignKey, String, inspect, select
from sqlalchemy.orm import (
    Mapped,
    Session,
    load_only,
    mapped_column,
    raiseload,
    relationship,
    sessionmaker,
)

from optilock import (
    ConcurrencyError,
    ConfigurationError,
    UnitOfWork,
    Versioned,
    client_wins,
    merge_fields,
    store_wins,
    watch,
)
from optilock.preconditions import ETags, merge_changes, sign_seen
from optilock.statements import no_bump
from optilock.testing import count_statements
from tests.support.models import Base, key
from tests.support.orders import Label, Line, Order, Part, Receipt, Remark
from tests.support.orders import session as session

alive = pytest.mark.needs("resolves-in-place")


@pytest.fixture
def versions(engine):
    def versions():
        with Session(engine) as fresh:
            return tuple(fresh.scalars(select(Order.version).order_by(Order.id)))

    return versions


# -- children -------------------------------------------------------------------------------------


def test_a_changed_child_moves_its_root(session, versions):
    """EX-11"""
    session.get_one(Line, 1).text = "mine"
    session.commit()
    assert versions() == (2, 1)


def test_several_changed_children_move_it_once(session, versions):
    """EX-11"""
    order = session.get_one(Order, 1)
    for line in session.scalars(select(Line)):
        line.text = "mine"
    order.name = "mine"
    session.commit()
    assert versions() == (2, 1)


def test_each_flush_moves_it_once(session, versions):
    line = session.get_one(Line, 1)
    for n in range(3):
        line.text = f"mine {n}"
        session.flush()
    session.commit()
    assert versions() == (4, 1)


def test_a_child_without_a_net_change_moves_nothing(session, versions):
    line = session.get_one(Line, 1)
    line.text = "b"
    line.text = "a"
    session.commit()
    assert versions() == (1, 1)


def test_ignored_columns_of_a_child_move_nothing(session, versions):
    session.get_one(Line, 1).seen = 7
    session.commit()
    assert versions() == (1, 1)


@pytest.mark.parametrize("how", ["collection", "object", "foreign key"])
def test_a_new_child_moves_its_root(session, versions, how):
    """EX-11, HB-17"""
    order = session.get_one(Order, 1)
    if how == "collection":
        order.lines.append(Line(id=9))
    elif how == "object":
        session.add(Line(id=9, order=order))
    else:
        session.add(Line(id=9, order_id=1))
    session.commit()
    assert versions() == (2, 1)


def test_appending_does_not_load_the_collection(session, versions):
    """HB-17"""
    order = session.get_one(Order, 1)
    session.add(Line(id=9, order=order))
    session.flush()
    assert "lines" not in order.__dict__
    session.commit()
    assert versions() == (2, 1)


@pytest.mark.parametrize("how", ["collection", "delete"])
def test_a_removed_child_moves_its_root(session, versions, how):
    """EX-11, HB-17"""
    order = session.get_one(Order, 1)
    if how == "collection":
        order.lines.pop()
    else:
        session.delete(session.get_one(Line, 2))
    session.commit()
    assert versions() == (2, 1)


@pytest.mark.parametrize("how", ["collection", "object", "foreign key"])
def test_a_child_that_changes_its_parent_moves_both_roots(session, versions, how):
    """EX-11"""
    line, two = session.get_one(Line, 1), session.get_one(Order, 2)
    if how == "collection":
        two.lines.append(line)
    elif how == "object":
        line.order = two
    else:
        line.order_id = 2
    session.commit()
    assert versions() == (2, 2)


def test_a_child_of_nobody_moves_nothing(session, versions):
    session.add(Line(id=9))
    session.commit()
    assert versions() == (1, 1)


def test_a_child_whose_foreign_key_is_expired_is_read(session, versions):
    line = session.get_one(Line, 1)
    session.commit()
    line.text = "mine"
    session.commit()
    assert versions() == (2, 1)


@pytest.mark.parametrize("left_out", ["not loaded", "must not be loaded", "expired"])
@pytest.mark.parametrize("what", ["changed", "moved", "deleted"])
def test_a_foreign_key_that_was_not_read_is_found(session, versions, what, left_out):
    """Or the root that a child leaves would not notice it."""
    raising = left_out == "must not be loaded" and what != "deleted"  # SQLAlchemy reads it itself
    query = select(Line).where(Line.id == 1)
    if left_out != "expired":
        query = query.options(load_only(Line.text, raiseload=raising), raiseload("*"))
    line = session.scalars(query).one()
    if left_out == "expired":
        session.commit()
    if what == "changed":
        line.text = "mine"
    elif what == "moved":
        line.order_id = 2
    else:
        session.delete(line)
    session.commit()
    assert versions() == ((2, 2) if what == "moved" else (2, 1))


@pytest.mark.parametrize("how", ["changed", "added", "removed", "moved"])
def test_a_grandchild_moves_the_root_of_its_root(session, versions, how):
    """EX-11"""
    part = session.get_one(Part, 1)
    if how == "changed":
        part.text = "mine"
    elif how == "added":
        session.add(Part(id=9, line_id=1))
    elif how == "removed":
        session.delete(part)
    else:
        part.line_id = 2
    session.commit()
    assert versions() == (2, 1)
    assert session.get_one(Line, 1).version == 2


def test_one_to_one_counts(session, versions):
    session.get_one(Receipt, 1).text = "mine"
    session.commit()
    assert versions() == (2, 1)
    session.get_one(Receipt, 1).order_id = 2
    session.commit()
    assert versions() == (3, 2)


def test_a_child_that_does_not_know_its_parent_counts(session, versions):
    session.get_one(Remark, 1).text = "mine"
    session.commit()
    remark, two = session.get_one(Remark, 1), session.get_one(Order, 2)
    two.remarks.append(remark)
    session.commit()
    assert versions() == (3, 2)


# -- links ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["order", "label"])
@pytest.mark.parametrize("what", ["added", "removed"])
def test_a_link_moves_its_root_from_either_side(session, versions, side, what):
    order = session.get_one(Order, 1)
    label = session.get_one(Label, 2 if what == "added" else 1)
    collection, member = (order.labels, label) if side == "order" else (label.orders, order)
    (collection.append if what == "added" else collection.remove)(member)
    session.commit()
    assert versions() == (2, 1)


def test_a_linked_object_is_not_a_part(session, versions):
    session.get_one(Label, 1).text = "mine"
    session.commit()
    assert versions() == (1, 1)


def test_deleting_a_linked_object_removes_its_links(session, versions):
    session.delete(session.get_one(Label, 1))
    session.commit()
    assert versions() == (2, 1)


# -- roots ----------------------------------------------------------------------------------------


def test_a_new_root_has_its_first_version(session, versions):
    """EX-11"""
    session.add(Order(id=3, lines=[Line(id=9)]))
    session.commit()
    assert versions() == (1, 1, 1)


def test_a_deleted_root_is_left_alone(session, versions):
    """EX-11"""
    order = session.get_one(Order, 1)
    order.labels.clear()
    session.delete(session.get_one(Receipt, 1))
    session.delete(session.get_one(Remark, 1))
    session.delete(session.get_one(Part, 1))
    session.flush()
    session.delete(order)
    session.commit()
    assert versions() == (1,)


def test_only_the_roots_own_update_is_added(session, engine):
    order = session.get_one(Order, 1)
    line = session.get_one(Line, 1)
    line.text = "mine"
    with count_statements(engine) as sent:
        session.flush()
    assert sent.count == 2
    assert order.version == 2


def test_a_root_that_is_not_loaded_is_read_once(session, engine, versions):
    for line in session.scalars(select(Line)):
        line.text = "mine"
    with count_statements(engine) as sent:
        session.flush()
    reads = [s for s in sent.statements if s.text.startswith("SELECT ag_orders")]
    assert len(reads) == 1
    session.commit()
    assert versions() == (2, 1)


def test_roots_that_are_not_loaded_are_read_together(session, store, engine):
    """One locking read for each table of roots, however many there are."""
    store(*(Order(id=n, lines=[Line(id=n, parts=[Part(id=n)])]) for n in range(11, 21)))
    for line in session.scalars(select(Line).where(Line.id > 10)):
        line.text = "mine"
    with count_statements(engine) as sent:
        session.flush()
    assert [text[:16] for text in reads(sent)] == ["SELECT ag_orders"]
    assert {order.version for order in session.scalars(select(Order).where(Order.id > 10))} == {2}
    session.rollback()
    session.expunge_all()
    for part in session.scalars(select(Part).where(Part.id > 10)):
        part.text = "mine"
    with count_statements(engine) as sent:
        session.flush()
    found = [text[:15] for text in reads(sent)]
    # The first one reads foreign keys. The last one is for parts without a version.
    assert found == ["SELECT ag_lines", "SELECT ag_order", "SELECT ag_lines", "SELECT ag_parts"]
    if engine.dialect.name != "sqlite":
        assert ["UPDATE" in text for text in reads(sent)] == [False, True, True, True]
    assert {order.version for order in session.scalars(select(Order).where(Order.id > 10))} == {2}


@pytest.mark.parametrize("held", ["the root", "a row ahead of it"])
def test_rows_ahead_of_a_root_that_is_read_are_locked_with_it(session, store, engine, held):
    """Or a flush that has all of them would lock them in another order."""
    store(Order(id=3, lines=[Line(id=9)]))
    order = session.get_one(Order, 1)
    rows = [(Line, 1), (Line, 9)] if held == "the root" else [(Part, 1)]
    for part in [session.get_one(*row) for row in rows]:
        part.text = "mine"
    with count_statements(engine) as sent:
        session.flush()
    if engine.dialect.name != "sqlite":
        of = ["ag_orders", "ag_orders" if held == "the root" else "ag_lines"]
        locks = [s.text.split()[1] for s in sent.statements if " UPDATE" in s.text]
        assert [column.partition(".")[0] for column in locks][:2] == of
    assert order.version == 2


def reads(sent):
    """The queries of the flush, without MariaDB's look at the rows that it writes together."""
    texts = [one.text for one in sent.statements if one.text.startswith("SELECT")]
    return [text for text in texts if not re.match(r"SELECT (\w+)\.id, \1\.version ", text)]


def test_under_no_bump_a_child_does_not_move_its_root(watched, session, versions):
    if type(session) is Session:
        pytest.skip("a plain session has no no_bump")
    with no_bump(session):
        session.get_one(Line, 1).text = "mine"
    session.commit()
    assert versions() == (1, 1)


# -- conflicts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("many", [1, 2])
def test_writers_of_different_children_meet_at_the_root(session, other, refused, many):
    if type(session) is Session:
        pytest.skip("the guard tells the entries")
    order = session.get_one(Order, 1)
    for line in order.lines[:many]:
        line.text = "mine"
    other(Part, 1, text="theirs")
    entries = {entry.model: entry for entry in refused(session).entries}
    assert dict(entries[Order].changes) == {}


@alive
def test_a_merge_keeps_both_children(session, other, versions, watched, stored):
    session.close()
    ours = watched(merge_fields)
    order = ours.get_one(Order, 1)
    ours.get_one(Line, 1).text = "mine"
    other(Line, 2, text="theirs")
    ours.commit()

    assert versions() == (3, 1)
    assert stored(Line, 1)["text"] == "mine"
    assert stored(Line, 2)["text"] == "theirs"
    assert order.version == 3


@alive
def test_a_merge_keeps_a_removed_child_and_a_changed_one(session, other, versions, watched, stored):
    session.close()
    ours = watched(merge_fields)
    order = ours.get_one(Order, 1)
    order.lines.remove(ours.get_one(Line, 1))
    other(Line, 2, text="theirs")
    ours.commit()

    assert versions() == (3, 1)
    assert [line.id for line in order.lines] == [2]
    assert stored(Line, 2)["text"] == "theirs"


def _change(part):
    part.text = "mine"


def _remove(part):
    part.line.parts.remove(part)


@alive
@pytest.mark.parametrize("resolver", [merge_fields, store_wins], ids=["merge", "store"])
@pytest.mark.parametrize("change", [_change, _remove])
def test_no_merge_settles_a_root_with_a_changed_part_that_has_no_version(
    session, other, refused, watched, stored, resolver, change
):
    """Only the root's version shows that the part was changed on both sides."""
    session.close()
    ours = watched(resolver)
    part = ours.get_one(Line, 1).parts[0]
    other(Part, 1, text="theirs")
    change(part)

    [note] = refused(ours).__notes__
    assert "we changed Part 1, which has no version" in note
    ours.rollback()
    assert (stored(Part, 1)["text"], stored(Part, 1)["line_id"]) == ("theirs", 1)


@alive
def test_none_does_where_the_part_was_removed_and_does_not_know_its_root(
    session, other, refused, watched
):
    session.close()
    ours = watched(merge_fields)
    order = ours.get_one(Order, 1)
    [remark] = order.remarks
    other(Remark, 1, text="theirs")
    order.remarks.remove(remark)
    [note] = refused(ours).__notes__
    assert "we changed Remark 1, which has no version" in note


@alive
def test_the_last_writer_of_a_part_without_a_version_wins_where_it_is_to_win(
    session, other, watched, stored
):
    session.close()
    ours = watched(client_wins)
    part = ours.get_one(Line, 1).parts[0]
    other(Part, 1, text="theirs")
    part.text = "mine"
    ours.commit()
    assert stored(Part, 1)["text"] == "mine"


@alive
def test_a_new_part_without_a_version_is_merged(session, other, watched, stored):
    session.close()
    ours = watched(merge_fields)
    line = ours.get_one(Line, 1)
    other(Line, 1, text="theirs")
    ours.add(Part(id=2, line=line))
    ours.commit()
    assert stored(Part, 2)["line_id"] == 1


@pytest.mark.parametrize("change", [_change, lambda part: inspect(part).session.delete(part)])
def test_a_strict_session_reads_a_root_before_its_part_without_a_version(
    session, other, engine, stored, change
):
    """Or no version would show that another transaction has changed the part."""
    session.close()
    strict = watch(sessionmaker(engine), strict=True)
    with strict() as ours:
        part = ours.get_one(Part, 1)
        other(Part, 1, text="theirs")
        change(part)
        with pytest.raises(ConfigurationError, match=r"Part 1 was .* and Line 1, .* not read"):
            ours.flush()
    assert stored(Part, 1)["text"] == "theirs"
    with strict() as ours:
        change(ours.get_one(Line, 1).parts[0])
        ours.commit()


class Binder(Versioned, Base):
    """Its parts have a version, or none and another column than its key."""

    __tablename__ = "ag_binders"
    __version_root_of__ = ("pages", "marks")
    id: Mapped[int] = key()
    code: Mapped[str] = mapped_column(String(10), unique=True)
    pages: Mapped[list[BinderPage]] = relationship()
    marks: Mapped[list[BinderMark]] = relationship()


class BinderPage(Versioned, Base):
    __tablename__ = "ag_binder_pages"
    id: Mapped[int] = key()
    text: Mapped[str | None]
    binder_id: Mapped[int | None] = mapped_column(ForeignKey("ag_binders.id"))


class BinderMark(Base):
    __tablename__ = "ag_binder_marks"
    __version_token__ = None
    id: Mapped[int] = key()
    text: Mapped[str | None]
    binder_code: Mapped[str | None] = mapped_column(ForeignKey("ag_binders.code"))


@pytest.fixture
def strict(tables, store, engine):
    tables(Binder, BinderPage, BinderMark)
    pages = [BinderPage(id=number) for number in range(1, 9)]
    store(Binder(id=1, code="a", pages=pages, marks=[BinderMark(id=1)]))
    store(Binder(id=2, code="b"))
    with watch(sessionmaker(engine), strict=True)() as session:
        yield session


def test_a_part_with_a_version_does_not_read_the_root_for_one_without(strict, other, stored):
    """In whichever order the flush comes to them: one part in nine is the one without."""
    parts = [*strict.scalars(select(BinderPage)), strict.get_one(BinderMark, 1)]
    other(BinderMark, 1, text="theirs")
    for part in parts:
        part.text = "mine"
    with pytest.raises(ConfigurationError, match=r"BinderMark 1 was .* and Binder 1, .* not read"):
        strict.flush()
    assert stored(BinderMark, 1)["text"] == "theirs"


@pytest.mark.parametrize("change", [{"text": "mine"}, {"binder_code": "b"}], ids=["edit", "move"])
def test_a_strict_session_knows_a_root_by_another_column_than_its_key(strict, stored, change):
    mark = strict.get_one(Binder, 1).marks[0]
    for name, value in change.items():
        setattr(mark, name, value)
    strict.commit()
    assert stored(BinderMark, 1).items() >= change.items()


@alive
def test_a_part_of_an_earlier_flush_does_not_refuse_a_merge(session, watched, stored):
    session.close()
    tags = ETags(keys=["k" * 40])
    with watched() as theirs:
        seen = sign_seen(theirs.get_one(Line, 1), ["text"], etags=tags)
        theirs.get_one(Line, 1).parts[0].text = "theirs"
        theirs.commit()
    ours = watched()
    ours.get_one(Line, 1).parts[0].text = "mine"
    ours.flush()
    edits = {"text": "mine"}
    merge_changes(ours, Line, 1, edits, seen=seen, etags=tags, on_conflict=merge_fields)
    ours.commit()
    assert stored(Line, 1)["text"] == "mine"


@pytest.mark.parametrize("expires", [True, False], ids=["expired", "kept"])
@pytest.mark.parametrize("how", ["changed", "added", "removed", "grandchild"])
def test_a_root_that_was_not_read_again_counts_in_the_version_that_was_seen(
    store, tables, watched, other, refused, engine, expires, how
):
    """Its children were, and nobody has looked at the order as a whole since."""
    tables(Order, Line, Part)
    store(
        Order(id=1, lines=[Line(id=1, parts=[Part(id=1)]), Line(id=2)]),
    )
    session = watched(expire_on_commit=expires)
    order = session.get_one(Order, 1)
    lines = list(order.lines)
    session.commit()
    other(Line, 2, text="theirs")
    line = lines[0]
    session.refresh(line)
    if how == "changed":
        line.text = "mine"
    elif how == "added":
        session.add(Line(id=9, order_id=1))
    elif how == "removed":
        session.delete(line)
    else:
        session.refresh(line, ["parts"])
        line.parts[0].text = "mine"
    conflict = refused(session)
    assert (Order, (1,), 1) in [
        (entry.model, entry.identity, entry.original["version"]) for entry in conflict.entries
    ]
    session.rollback()


@alive
def test_a_root_that_was_read_and_dropped_is_checked_in_the_version_that_was_read(
    store, watched, other, refused
):
    store(Order(id=1, lines=[Line(id=1, text="a"), Line(id=2, text="b")]))
    session = watched()
    texts = [line.text for line in session.get_one(Order, 1).lines]  # a decision
    gc.collect()
    other(Order, 1, name="theirs")
    session.get_one(Line, 1).text = "".join(texts)
    assert [entry.model for entry in refused(session).entries] == [Order]


@pytest.mark.parametrize("read_only", [False, True])
def test_a_unit_that_only_reads_holds_no_root(engine, store, read_only):
    store(Order(id=1))
    with UnitOfWork(engine, read_only=read_only) as session:
        root = weakref.ref(session.get_one(Order, 1))
        gc.collect()
        assert (root() is None) is read_only


@alive
@pytest.mark.parametrize("drop", ["expire", "refresh"])
def test_a_part_is_not_stored_without_its_root_that_was_refused(
    store, watched, other, refused, stored, drop
):
    """The part was written when the root was refused, and stays in the transaction."""
    store(Order(id=1, lines=[Line(id=1, text="a")]))
    session = watched()
    order, line = session.get_one(Order, 1), session.get_one(Line, 1)
    line.text = "mine"
    other(Order, 1, name="theirs")
    refused(session)
    if drop == "expire":
        session.expire(order)
        with pytest.raises(ConcurrencyError):
            session.commit()
        session.rollback()
        assert stored(Line, 1)["text"] == "a"
    else:
        with session.no_autoflush:
            session.refresh(order, with_for_update=True)
        session.commit()
        assert (stored(Line, 1)["text"], stored(Order, 1)["version"]) == ("mine", 3)


def _rolled_back(session, order):
    order.name = "dropped"
    session.rollback()


def _flushed(session, order):
    order.name = "dropped"
    session.flush()
    session.rollback()


def _savepoint(session, order):
    savepoint = session.begin_nested()
    order.name = "dropped"
    session.flush()
    savepoint.rollback()
    session.commit()


def _expired(session, order):
    session.expire(order)
    session.rollback()


def _all_expired(session, order):
    session.expire_all()
    session.rollback()


def _closed_and_added(session, order):
    session.commit()
    session.close()
    session.add(order)


AWAY = [_rolled_back, _flushed, _savepoint, _expired, _all_expired, _closed_and_added]


@pytest.fixture
def away(store, tables, watched, other):
    """An order that was read, and went away in some way; then somebody else has changed it."""

    def away(went, expires):
        tables(Order, Line, Part)
        store(Order(id=1, name="old", lines=[Line(id=1), Line(id=2)]))
        session = watched(expire_on_commit=expires)
        order = session.get_one(Order, 1)
        went(session, order)
        other(Order, 1, name="theirs")
        return session, order

    return away


@pytest.mark.parametrize("expires", [True, False], ids=["expired", "kept"])
@pytest.mark.parametrize("went", AWAY)
@pytest.mark.parametrize("how", ["foreign key", "object", "child changed", "child read"])
def test_so_it_does_whatever_has_expired_the_root(away, refused, versions, went, expires, how):
    session, order = away(went, expires)
    if how == "foreign key":
        session.add(Line(id=9, order_id=1))
    elif how == "object":
        session.add(Line(id=9, order=order))
    else:
        line = session.get_one(Line, 1)
        line.text = (line.text or "") + "mine" if how == "child read" else "mine"
    entries = {entry.model: entry for entry in refused(session).entries}
    assert entries[Order].original["version"] == 1
    session.rollback()
    assert versions() == (2,)


@pytest.mark.parametrize("went", AWAY)
def test_who_reads_the_parts_of_an_expired_root_has_read_the_root(away, stored, went):
    """SQLAlchemy reads its row for them, all of it; nothing is left to look at."""
    session, order = away(went, True)
    if len(order.lines) < 3:
        order.lines.append(Line(id=9))
    assert (order.name, order.version) == ("theirs", 2)
    session.commit()
    assert (stored(Order, 1)["name"], stored(Order, 1)["version"]) == ("theirs", 3)


def test_a_stale_copy_of_a_root_is_not_merged(away):
    session, order = away(lambda session, order: session.close(), True)
    with pytest.raises(ConcurrencyError):
        session.merge(order)
