"""``after_update``, ``after_delete`` and ``after_flush`` listeners hear of what was written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import ForeignKey, event, inspect, select
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import (
    Mapped,
    Mapper,
    Session,
    composite,
    mapped_column,
    relationship,
    sessionmaker,
)

from optilock import ConcurrencyError, Versioned, client_wins, merge_fields, store_wins, watch
from optilock.resolvers import OnDelete, Resolution
from optilock.testing import count_statements
from optilock.tokens import RowVersion
from tests.support.models import (
    Account,
    Animal,
    Base,
    Car,
    Comment,
    Dog,
    Note,
    Player,
    Post,
    Team,
    key,
)


class Outbox(Base):
    """What other systems are to be told."""

    __tablename__ = "listeners_outbox"
    id: Mapped[int] = mapped_column(primary_key=True)
    account: Mapped[int]
    owner: Mapped[str | None]
    balance: Mapped[int | None]
    version: Mapped[int]


class Node(Versioned, Base):
    """A tree."""

    __tablename__ = "listeners_nodes"
    id: Mapped[int] = key()
    name: Mapped[str | None]
    parent_id: Mapped[int | None] = mapped_column(ForeignKey("listeners_nodes.id"))
    parent: Mapped[Node | None] = relationship(remote_side=[id])


class Slow(Versioned, Base):
    """Saved row by row."""

    __tablename__ = "listeners_slow"
    __mapper_args__ = {"batch": False}
    id: Mapped[int] = key()
    name: Mapped[str | None]


class Moved(Versioned, Base):
    """The database makes its version."""

    __tablename__ = "listeners_moved"
    __version_token__ = RowVersion()
    id: Mapped[int] = key()
    name: Mapped[str | None]
    note: Mapped[str | None]


@dataclass
class Place:
    x: int
    y: int


class Pinned(Versioned, Base):
    """Two columns are one value."""

    __tablename__ = "listeners_pinned"
    id: Mapped[int] = key()
    x: Mapped[int]
    y: Mapped[int]
    place: Mapped[Place] = composite("x", "y")


class Silent(Versioned, Base):
    """Nobody listens."""

    __tablename__ = "listeners_silent"
    id: Mapped[int] = key()
    name: Mapped[str | None]


class Once(Versioned, Base):
    """SQLAlchemy keeps a listener that wants to hear once, which nobody can take away."""

    __tablename__ = "heard_once"
    id: Mapped[int] = key()
    owner: Mapped[str | None]


class Heard(list[tuple[Any, ...]]):
    """Key and columns of what a listener was told, and which columns had changed from what."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.names = names

    def __call__(self, mapper: Any, connection: Any, target: Any) -> None:
        state = target if hasattr(target, "manager") else inspect(target)
        if isinstance(
            state.obj(), (Account, Note, Dog, Car, Comment, Node, Slow, Moved, Once, Team)
        ):
            self.append((state.obj().id, *(getattr(state.obj(), name) for name in self.names)))

    def named(self, mapper: Any, connection: Any, target: Any) -> None:
        self(mapper, connection, target)

    @property
    def keys(self) -> list[Any]:
        return sorted(row[0] for row in self)


@contextmanager
def listening(target: Any, name: str, listener: Any, **options: Any) -> Iterator[Any]:
    event.listen(target, name, listener, **options)
    try:
        yield listener
    finally:
        event.remove(target, name, listener)


WAYS: dict[str, tuple[Any, dict[str, Any]]] = {
    "class": (Account, {}),
    "mapper": (inspect(Account), {}),
    "every-mapper": (Mapper, {}),
    "raw": (Account, {"raw": True}),
    "first": (Account, {"insert": True}),
    "propagated": (Account, {"propagate": True}),
    "named": (Account, {"named": True}),
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> tuple[Any, dict[str, Any]]:
    return WAYS[request.param]


def accounts(store: Any, number: int = 3) -> None:
    store(*(Account(id=n, owner="a", note="a") for n in range(1, number + 1)))


def edit(session: Session, owner: str = "mine") -> list[Account]:
    found = list(session.scalars(select(Account).order_by(Account.id)))
    for account in found:
        account.owner = owner
    return found


# -- rows that were written, and rows that were not ------------------------------------------------


@pytest.mark.modes
@pytest.mark.parametrize("first", ["watch", "listen"])
def test_a_refused_row_is_not_told(store, engine, other, refused, way, first):
    accounts(store)
    target, options = way
    sessions = sessionmaker(engine)
    if first == "watch":
        watch(sessions)
    with listening(target, "after_update", Heard().named, **options) as listener:
        watch(sessions)
        with sessions() as session:
            edit(session)
            other(Account, 2, owner="theirs")
            del listener.__self__[:]
            conflict = refused(session)
            heard = listener.__self__.keys

    assert [entry.identity for entry in conflict.entries] == [(2,)]
    assert heard == ([1, 3] if session.bind and not _ends(conflict) else [])


def _ends(conflict: ConcurrencyError) -> bool:
    """Has the database ended the transaction? Then nothing is told of it."""
    return conflict.__cause__ is not None


@pytest.mark.needs("resolves-in-place")
def test_a_merged_row_is_told_once_with_what_was_merged(store, watched, other, way, stored):
    accounts(store)
    target, options = way
    session = watched(merge_fields)
    edit(session)
    other(Account, 2, balance=50)
    heard = Heard("owner", "balance", "version")
    with listening(target, "after_update", heard.named, **options):
        session.commit()

    assert sorted(heard) == [(1, "mine", 0, 2), (2, "mine", 50, 3), (3, "mine", 0, 2)]
    assert stored(Account, 2)["version"] == 3


@pytest.mark.needs("resolves-in-place")
@pytest.mark.parametrize("rows", [1, 2])
def test_history_goes_from_theirs_to_what_was_written(store, watched, other, rows):
    accounts(store, rows)
    session = watched(client_wins)
    edit(session)
    other(Account, 1, owner="theirs", balance=50)
    seen: dict[int, Any] = {}

    def look(mapper: Any, connection: Any, target: Any) -> None:
        attrs = inspect(target).attrs
        seen[target.id] = attrs.owner.history, attrs.balance.history

    with listening(Account, "after_update", look):
        session.commit()

    owner, balance = seen[1]
    assert (owner.added, owner.deleted) == (["mine"], ["theirs"])
    assert (balance.added, balance.unchanged, balance.deleted) == ((), [50], ())


@pytest.mark.needs("resolves-in-place")
@pytest.mark.parametrize("rows", [1, 3])
def test_a_row_that_the_store_wins_is_not_told(store, watched, other, rows):
    accounts(store, rows)
    session = watched(store_wins)
    edit(session)
    other(Account, 1, owner="theirs")
    with listening(Account, "after_update", Heard()) as heard:
        session.commit()

    assert heard.keys == list(range(2, rows + 1))


@pytest.mark.needs("resolves-in-place")
def test_nor_is_one_that_was_merged_to_what_is_stored_already(store, watched, other):
    accounts(store)
    session = watched(merge_fields)
    edit(session, "same")
    other(Account, 2, owner="same")
    with listening(Account, "after_update", Heard()) as heard:
        session.commit()

    assert heard.keys == [1, 3]


@pytest.mark.needs("resolves-in-place")
def test_the_next_flush_tells_a_row_that_was_refused_and_then_written(
    store, watched, other, refused
):
    accounts(store)
    session = watched()
    mine = edit(session)
    other(Account, 2, owner="theirs")
    with listening(Account, "after_update", Heard("owner", "version")) as heard:
        refused(session)
        session.refresh(mine[1], with_for_update=True)
        mine[1].owner = "again"
        session.commit()

    assert sorted(heard) == [(1, "mine", 2), (2, "again", 3), (3, "mine", 2)]


@pytest.mark.needs("resolves-in-place")
@pytest.mark.parametrize("rows", [1, 2])
def test_a_row_that_is_inserted_again_is_told_once_as_an_insert(store, watched, gone, rows):
    accounts(store, rows)
    session = watched(client_wins)
    edit(session)
    gone(Account, 1)
    with (
        listening(Account, "after_insert", Heard("owner")) as inserted,
        listening(Account, "after_update", Heard("owner")) as updated,
    ):
        session.commit()

    assert (inserted, updated) == ([(1, "mine")], [(n, "mine") for n in range(2, rows + 1)])


@pytest.mark.needs("resolves-in-place")
@pytest.mark.parametrize("resolver", [None, client_wins, store_wins])
def test_a_new_object_that_takes_over_a_row_is_told_if_it_is_written(
    store, watched, other, resolver
):
    """SQLAlchemy sends an UPDATE for it, and calls after_update."""
    accounts(store)
    session = watched(resolver)
    for old in [session.get_one(Account, n) for n in (1, 2)]:
        session.delete(old)
        session.add(Account(id=old.id, owner="mine"))
    other(Account, 1, owner="theirs")
    with (
        listening(Account, "after_insert", Heard("owner")) as inserted,
        listening(Account, "after_update", Heard("owner")) as updated,
    ):
        if resolver is None:
            with pytest.raises(ConcurrencyError):
                session.commit()
        else:
            session.commit()

    wanted = [(2, "mine")] if resolver is not client_wins else [(1, "mine"), (2, "mine")]
    assert (inserted, sorted(updated)) == ([], wanted)


@pytest.mark.needs("resolves-in-place")
def test_a_row_that_is_gone_and_stays_so_is_not_told(store, watched, gone):
    accounts(store)
    session = watched(store_wins)
    edit(session)
    gone(Account, 2)
    with listening(Account, "after_update", Heard()) as heard:
        session.commit()

    assert heard.keys == [1, 3]


@pytest.mark.needs("resolves-in-place")
def test_a_listener_that_wants_to_hear_once_hears_of_a_row_that_was_written(
    store, watched, other, refused
):
    store(Once(id=1), Once(id=2))
    session = watched()
    for one in session.scalars(select(Once)).all():
        one.owner = "mine"
    other(Once, 1, owner="theirs")
    heard = Heard()
    event.listen(Once, "after_update", heard, once=True)
    refused(session)

    assert heard.keys == [2]


@pytest.mark.needs("resolves-in-place")
def test_what_was_removed_hears_nothing(store, watched, other):
    accounts(store)
    session = watched(client_wins)
    heard = Heard()
    with listening(Account, "after_update", heard):
        edit(session)
        session.flush()
    del heard[:]
    edit(session, "again")
    session.commit()
    edit(session, "last")
    other(Account, 2, owner="theirs")
    session.commit()

    assert not heard


def test_a_session_that_nobody_watches_tells_as_ever(store, watched, engine):
    accounts(store)
    with listening(Account, "after_update", Heard()) as heard:
        session = watched()
        edit(session)
        session.commit()
        with Session(engine) as plain:
            edit(plain, "plain")
            plain.commit()

    assert heard.keys == [1, 1, 2, 2, 3, 3]


# -- deletes ---------------------------------------------------------------------------------------


@pytest.mark.modes
@pytest.mark.parametrize("rows", [1, 3])
def test_a_refused_delete_is_not_told(store, watched, other, refused, rows):
    accounts(store, rows)
    session = watched()
    for account in session.scalars(select(Account)):
        session.delete(account)
    other(Account, 1, owner="theirs")
    with listening(Account, "after_delete", Heard()) as heard:
        conflict = refused(session)

    assert heard.keys == ([] if _ends(conflict) else list(range(2, rows + 1)))


@pytest.mark.needs("resolves-in-place")
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(
    "options", [{"on_conflict": client_wins}, {"on_delete": OnDelete.IGNORE_VERSION}]
)
def test_a_delete_that_is_carried_out_all_the_same_is_told_once(
    store, watched, other, stored, rows, options
):
    accounts(store, rows)
    session = watched(**options)
    for account in session.scalars(select(Account)):
        session.delete(account)
    other(Account, 1, owner="theirs")
    with listening(Account, "after_delete", Heard()) as heard:
        session.commit()

    assert heard.keys == list(range(1, rows + 1))
    assert stored(Account, 1) is None


@pytest.mark.needs("resolves-in-place")
@pytest.mark.parametrize("rows", [1, 3])
def test_a_row_that_somebody_else_has_deleted_is_not_told(store, watched, gone, rows):
    accounts(store, rows)
    session = watched(on_delete=OnDelete.IGNORE_GONE)
    for account in session.scalars(select(Account)):
        session.delete(account)
    gone(Account, 1)
    deleted: list[list[int]] = []

    def look(session: Session, uow: Any) -> None:
        deleted.append(sorted(obj.id for obj in session.deleted))

    event.listen(session, "after_flush", look)
    with listening(Account, "after_delete", Heard()) as heard:
        session.commit()

    assert heard.keys == list(range(2, rows + 1))
    assert deleted == [heard.keys]
    assert session.get(Account, 1) is None


@pytest.mark.needs("resolves-in-place")
def test_nor_is_one_with_children(store, watched, gone):
    """Such a delete is looked at before the flush."""
    store(Post(id=1), Post(id=2), Comment(id=1, post_id=2))
    session = watched(on_delete=OnDelete.IGNORE_GONE, autoflush=False)
    for post in session.scalars(select(Post)):
        session.delete(post)
    gone(Post, 1)
    heard: list[int] = []
    deleted: list[list[int]] = []

    def hear(mapper: Any, connection: Any, target: Any) -> None:
        heard.append(target.id)

    @event.listens_for(session, "after_flush")
    def look(session: Session, uow: Any) -> None:
        deleted.append(sorted(obj.id for obj in session.deleted if isinstance(obj, Post)))

    with listening(Post, "after_delete", hear):
        session.commit()

    assert heard == [2]
    assert deleted == [[2]]


@pytest.mark.needs("resolves-in-place")
@pytest.mark.parametrize("somebody", ["other", "gone"])
def test_a_delete_that_becomes_a_write_is_told_as_what_it_is(
    store, watched, request, stored, somebody
):
    accounts(store)
    session = watched(lambda entry: Resolution.write({"note": "kept"}))
    session.delete(session.get_one(Account, 2))
    act = request.getfixturevalue(somebody)
    act(Account, 2, owner="theirs") if somebody == "other" else act(Account, 2)
    with (
        listening(Account, "after_delete", Heard()) as deleted,
        listening(Account, "after_update", Heard("note")) as updated,
        listening(Account, "after_insert", Heard("note")) as inserted,
    ):
        session.commit()

    assert deleted == []
    assert (inserted if somebody == "gone" else updated) == [(2, "kept")]
    assert len(inserted) + len(updated) == 1
    assert stored(Account, 2)["note"] == "kept"


# -- what a listener does --------------------------------------------------------------------------


def put_out(mapper: Any, connection: Any, target: Any) -> None:
    connection.execute(
        Outbox.__table__.insert(),
        {
            "account": target.id,
            "owner": target.owner,
            "balance": target.balance,
            "version": target.version,
        },
    )


@pytest.mark.needs("resolves-in-place")
@pytest.mark.parametrize("resolver", [None, merge_fields])
def test_an_outbox_holds_what_is_stored(store, tables, watched, other, engine, stored, resolver):
    accounts(store, 5)
    tables(Outbox)
    session = watched(resolver)
    mine = edit(session)
    other(Account, 2, balance=50)
    with listening(Account, "after_update", put_out):
        try:
            session.commit()
        except ConcurrencyError:
            session.expunge(mine[1])
            session.commit()

    with Session(engine) as reader:
        out = {(o.account, o.owner, o.balance, o.version) for o in reader.scalars(select(Outbox))}
        rows = reader.scalars(select(Account)).all()
        written = [row for row in rows if row.owner == "mine"]
        assert out == {(row.id, row.owner, row.balance, row.version) for row in written}
    assert len(written) == (4 if resolver is None else 5)


@pytest.mark.needs("resolves-in-place")
def test_a_listener_that_fails_ends_the_flush(store, watched, other, stored):
    """Also one that is told of a row that was merged."""
    accounts(store)
    session = watched(merge_fields)
    edit(session)
    other(Account, 2, balance=50)

    def fail(mapper: Any, connection: Any, target: Any) -> None:
        if target.balance == 50:
            raise LookupError("no")

    with listening(Account, "after_update", fail), pytest.raises(LookupError):
        session.commit()
    session.rollback()

    assert [stored(Account, n)["owner"] for n in (1, 2, 3)] == ["a"] * 3


# -- after_flush -----------------------------------------------------------------------------------


@contextmanager
def looking(target: Any) -> Iterator[list[Any]]:
    """What an ``after_flush`` listener sees: history of the owners, the dirty and the deleted."""
    seen: list[Any] = []

    def look(session: Session, uow: Any) -> None:
        owners = {
            obj.id: (inspect(obj).attrs.owner.history.deleted or (None,))[0]
            for obj in session
            if isinstance(obj, Account) and inspect(obj).attrs.owner.history.has_changes()
        }
        dirty = sorted(obj.id for obj in session.dirty)
        seen.append((owners, dirty, sorted(obj.id for obj in session.deleted)))

    with listening(target, "after_flush", look):
        yield seen


@pytest.mark.needs("resolves-in-place")
@pytest.mark.parametrize("target", [Session, sessionmaker], ids=["every-session", "factory"])
def test_after_flush_sees_merged_rows_as_they_were_written(store, engine, other, target):
    accounts(store)
    sessions = sessionmaker(engine)
    with looking(sessions if target is sessionmaker else Session) as seen:
        watch(sessions, on_conflict=client_wins)
        with sessions() as session:
            edit(session)
            other(Account, 2, owner="theirs")
            del seen[:]
            session.flush()

    assert seen == [({1: "a", 2: "theirs", 3: "a"}, [1, 2, 3], [])]


@pytest.mark.needs("resolves-in-place")
def test_after_flush_sees_refused_rows_as_they_were_read(store, engine, other, refused):
    accounts(store, 4)
    sessions = sessionmaker(engine)
    with looking(Session) as seen:
        watch(sessions)
        with sessions() as session:
            mine = edit(session)
            session.delete(mine[2])
            other(Account, 2, owner="theirs")
            other(Account, 3, owner="theirs")
            del seen[:]
            refused(session)

            assert seen == [({1: "a", 4: "a"}, [1, 4], [])]
            assert list(session.dirty) == [mine[1]]
            assert list(session.deleted) == [mine[2]]
            assert (mine[1].owner, mine[2].owner) == ("mine", "mine")
            assert inspect(mine[1]).attrs.owner.history.deleted == ["a"]
            conflict = refused(session)
            assert {entry.identity for entry in conflict.entries} == {(2,), (3,)}


@pytest.mark.needs("resolves-in-place")
def test_and_so_does_one_that_the_store_wins(store, engine, other):
    accounts(store)
    sessions = watch(sessionmaker(engine), on_conflict=store_wins)
    with looking(Session) as seen, sessions() as session:
        edit(session)
        other(Account, 2, owner="theirs")
        del seen[:]
        session.flush()

    assert seen == [({1: "a", 3: "a"}, [1, 3], [])]


@pytest.mark.needs("resolves-in-place")
def test_an_attribute_that_was_set_without_being_read_is_dirty_again(
    store, watched, other, refused
):
    accounts(store)
    session = watched()
    mine = session.get_one(Account, 2)
    session.expire(mine, ["owner"])
    mine.owner = "mine"
    other(Account, 2, owner="theirs")
    shown = []

    @event.listens_for(session, "after_flush")
    def look(session: Session, uow: Any) -> None:
        shown.append((mine in session.dirty, mine.owner == "mine"))

    refused(session)

    assert shown == [(False, False)]
    assert mine.owner == "mine"
    assert mine in session.dirty
    refused(session)


@pytest.mark.needs("resolves-in-place")
def test_a_composite_value_shows_what_its_columns_do(store, watched, other, refused):
    store(Pinned(id=1, x=1, y=1))
    session = watched()
    pinned = session.get_one(Pinned, 1)
    pinned.place = mine = Place(2, 2)
    other(Pinned, 1, x=3)
    shown = []

    @event.listens_for(session, "after_flush")
    def look(session: Session, uow: Any) -> None:
        shown.append(pinned.place)

    refused(session)

    assert shown == [Place(1, 1)]
    assert pinned.place is mine
    assert (pinned.x, pinned.y) == (2, 2)


# -- shapes of classes -----------------------------------------------------------------------------


@pytest.mark.needs("resolves-in-place")
def test_joined_tables(store, watched, other, refused):
    store(*(Dog(id=n, name="a", tricks="a") for n in (1, 2, 3)))
    session = watched()
    for dog in session.scalars(select(Dog)):
        dog.tricks = "mine"
    other(Dog, 2, name="theirs")
    with listening(Animal, "after_update", Heard(), propagate=True) as heard:
        refused(session)
    assert heard.keys == [1, 3]
    del heard[:]
    session.rollback()
    session = watched(merge_fields)
    for dog in session.scalars(select(Dog)):
        dog.tricks = "mine"
    other(Dog, 2, name="again")
    heard.names = ("name", "tricks")
    with listening(Animal, "after_update", heard, propagate=True):
        session.commit()

    assert sorted(heard) == [(1, "a", "mine"), (2, "again", "mine"), (3, "a", "mine")]


@pytest.mark.needs("resolves-in-place")
def test_a_version_in_the_other_table(store, watched, other, refused):
    store(*(Car(id=n, name="a", doors=1) for n in (1, 2, 3)))
    session = watched()
    for car in session.scalars(select(Car)):
        car.name = "mine"
    other(Car, 2, doors=2)
    with listening(Car, "after_update", Heard()) as heard:
        refused(session)

    assert heard.keys == [1, 3]


@pytest.mark.needs("resolves-in-place")
@pytest.mark.parametrize("cls", [Slow, Moved, Note])
def test_rows_that_are_sent_one_by_one_or_get_their_version_from_the_database(
    store, watched, other, refused, stored, cls
):
    name = "text" if cls is Note else "name"
    store(*(cls(id=n, **{name: "a"}) for n in (1, 2, 3)))
    session = watched()
    for row in session.scalars(select(cls)):
        setattr(row, name, "mine")
    other(cls, 2, **{name: "theirs"})
    with listening(cls, "after_update", Heard()) as heard:
        refused(session)
    session.rollback()
    assert heard.keys == [1, 3]
    session = watched(client_wins)
    for row in session.scalars(select(cls)):
        setattr(row, name, "again")
    other(cls, 2, **{name: "theirs again"})
    with listening(cls, "after_update", Heard(name, "version")) as heard:
        session.commit()

    assert sorted(heard) == [(n, "again", stored(cls, n)["version"]) for n in (1, 2, 3)]


@pytest.mark.needs("resolves-in-place")
def test_a_tree(store, watched, other, refused):
    store(Node(id=1, name="a"), Node(id=2, name="a"), Node(id=3, name="a"))
    session = watched()
    nodes = session.scalars(select(Node).order_by(Node.id)).all()
    nodes[2].parent = nodes[1]
    nodes[1].parent = nodes[0]
    for node in nodes:
        node.name = "mine"
    other(Node, 2, name="theirs")
    with listening(Node, "after_update", Heard()) as heard:
        refused(session)

    assert heard.keys == [1, 3]


@pytest.mark.needs("resolves-in-place")
def test_a_second_update_of_the_row(store, watched, other, refused):
    store(Team(id=1, name="a"), Team(id=2, name="a"))
    session = watched()
    for team in session.scalars(select(Team)):
        team.name = "mine"
        team.captain = Player(id=team.id, team=team)
    other(Team, 2, name="theirs")
    with listening(Team, "after_update", Heard()) as heard:
        refused(session)

    assert heard.keys == [1]


@pytest.mark.needs("resolves-in-place")
def test_a_child_that_is_settled_before_its_parent_goes(store, watched, other, stored):
    store(Post(id=1), Comment(id=1, post_id=1, text="a"), Comment(id=2, post_id=1, text="a"))
    session = watched(client_wins)
    post = session.get_one(Post, 1)
    assert len(post.comments) == 2
    other(Comment, 1, text="theirs")
    session.delete(post)
    with listening(Comment, "after_delete", Heard()) as heard:
        session.commit()

    assert heard.keys == [1, 2]
    assert stored(Comment, 1) is None


# -- statements and cost ---------------------------------------------------------------------------


@pytest.mark.needs("batch-statement")
@pytest.mark.parametrize("conflict", [False, True])
def test_rows_of_a_class_with_a_listener_still_go_together(store, watched, engine, other, conflict):
    accounts(store, 50)
    session = watched(client_wins)
    edit(session)
    if conflict:
        other(Account, 7, owner="theirs")
    with listening(Account, "after_update", Heard()) as heard, count_statements(engine) as sent:
        session.flush()

    assert len(heard) == 50
    assert sent.count == (3 if conflict else 1)  # and one to read the row, one to correct it


def test_a_class_without_listeners_is_not_touched(store, watched, other, stored):
    store(Silent(id=1, name="a"), Silent(id=2, name="a"))
    before = _listeners(Silent)
    session = watched(client_wins)
    for row in session.scalars(select(Silent)):
        row.name = "mine"
    session.commit()

    assert [one is other for one, other in zip(_listeners(Silent), before, strict=True)] == [
        True,
        True,
    ]


def _listeners(cls: type[Any]) -> list[Any]:
    dispatch = inspect(cls).dispatch
    return [dispatch.after_update, dispatch.after_delete]


# -- async -----------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_async_sessions_tell_the_same(async_engine, async_store):
    plain = async_sessionmaker(async_engine)
    async_store(*(Account(id=n, owner="a") for n in (1, 2, 3)))
    mine = watch(async_sessionmaker(async_engine), on_conflict=merge_fields)
    with listening(Account, "after_update", Heard("owner", "balance")) as heard:
        async with mine() as session:
            for account in await session.scalars(select(Account)):
                account.owner = "mine"
            async with plain.begin() as other:
                (await other.get_one(Account, 2)).balance = 50
            del heard[:]
            await session.commit()
    await async_engine.dispose()

    assert sorted(heard) == [(1, "mine", 0), (2, "mine", 50), (3, "mine", 0)]
