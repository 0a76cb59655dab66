"""``require_conditions(session)``: no stored row is changed unless its version was demanded."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Unpack

import pytest
from sqlalchemy import Engine, ForeignKey, delete, event, select, text, update
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
from sqlalchemy.orm import (
    Mapped,
    Session,
    mapped_column,
    relationship,
    scoped_session,
    sessionmaker,
)

from optilock import (
    AsyncUnitOfWork,
    ConfigurationError,
    UnitOfWork,
    Versioned,
    apply,
    bulk_update,
    client_wins,
    entities,
    etag_of,
    expect,
    touch,
    unit_of_work,
    verify,
    watch,
)
from optilock.conditions.request import serving
from optilock.errors import ConditionNotCompared, OptilockError, PreconditionRequired
from optilock.preconditions import merge_changes, overwrite
from optilock.preconditions.entity_tags import ETags
from optilock.preconditions.signed_values import sign_seen
from optilock.testing import count_statements
from optilock.unit import UnitOptions, ignore_conditions, require_conditions
from tests.support.models import Account, Base, key
from tests.support.two_writers import Do


class Basket(Versioned, Base):
    __tablename__ = "rc_baskets"
    __version_root_of__ = ("items",)
    id: Mapped[int] = key()
    name: Mapped[str | None]
    items: Mapped[list[BasketItem]] = relationship(
        back_populates="basket", cascade="all, delete-orphan"
    )
    notes: Mapped[list[BasketMemo]] = relationship(back_populates="basket")


class BasketItem(Versioned, Base):
    __tablename__ = "rc_items"
    id: Mapped[int] = key()
    name: Mapped[str | None]
    basket_id: Mapped[int | None] = mapped_column(ForeignKey("rc_baskets.id"))
    basket: Mapped[Basket | None] = relationship(back_populates="items")


class BasketMemo(Versioned, Base):
    """Points to a basket, and is no part of it."""

    __tablename__ = "rc_memos"
    id: Mapped[int] = key()
    basket_id: Mapped[int | None] = mapped_column(ForeignKey("rc_baskets.id"))
    basket: Mapped[Basket | None] = relationship(back_populates="notes")


@pytest.fixture
def rows(store: Do) -> None:
    store(
        Account(id=1, owner="Ada"),
        Account(id=2, owner="Bob"),
        Basket(id=1, items=[BasketItem(id=1), BasketItem(id=2)], notes=[BasketMemo(id=1)]),
        Basket(id=2, items=[BasketItem(id=4)]),
    )


@contextmanager
def unit(engine: Engine, **options: Unpack[UnitOptions]) -> Iterator[Session]:
    with unit_of_work(engine, **options) as session:
        yield require_conditions(session)


def edit(session: Session) -> Account:
    account = session.get_one(Account, 1)
    account.owner = "new"
    return account


# -- objects ---------------------------------------------------------------------------------------

BARE: dict[str, Callable[[Session], Any]] = {
    "update": edit,
    "delete": lambda session: session.delete(session.get_one(Account, 1)),
    "touch": lambda session: touch(session.get_one(Account, 1)),
    "only-verified": lambda session: verify(edit(session)),
    "another-row": lambda session: beside_another(session),
    "of-an-aggregate": lambda session: setattr(session.get_one(BasketItem, 1), "name", "new"),
    "part-added": lambda session: with_basket(
        session, lambda one: one.items.append(BasketItem(id=3))
    ),
    "part-removed": lambda session: with_basket(session, lambda one: one.items.pop()),
    "part-moved": lambda session: with_basket(
        session, lambda one: one.items.append(session.get_one(BasketItem, 4))
    ),
    "child-removed": lambda session: with_basket(session, lambda one: one.notes.clear()),
    "child-moved": lambda session: setattr(
        session.get_one(BasketMemo, 1), "basket", session.get_one(Basket, 2)
    ),
}


def beside_another(session: Session) -> None:
    expect(session.get_one(Account, 2), version=1)
    edit(session)


def with_basket(session: Session, change: Callable[[Basket], Any]) -> None:
    change(session.info.setdefault("held", session.get_one(Basket, 1)))


@pytest.mark.parametrize("write", BARE.values(), ids=BARE)
def test_a_row_without_a_condition_is_refused_before_anything_is_sent(
    rows: None, engine: Engine, stored: Do, write: Callable[[Session], Any]
) -> None:
    """A10: and the edits are where they were."""
    before = [stored(Account, 1), stored(Basket, 1), stored(BasketItem, 1), stored(BasketMemo, 1)]
    with pytest.raises(PreconditionRequired, match="overwrite") as caught, unit(engine) as session:
        with session.no_autoflush:
            write(session)
        with count_statements(engine) as sent, pytest.raises(PreconditionRequired):
            session.flush()
        written = [one.text for one in sent.statements if one.text.startswith(("UPD", "DEL"))]
        assert [sql for sql in written if "0 = 1" not in sql] == []  # which locks, on SQLite
        assert session.is_active
    assert caught.value.status == 428
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert [
        stored(Account, 1),
        stored(Basket, 1),
        stored(BasketItem, 1),
        stored(BasketMemo, 1),
    ] == before


def demanded(session: Session) -> None:
    expect(session.get_one(Account, 1), 1)
    edit(session)


def demanded_after_the_edit(session: Session) -> None:
    with session.no_autoflush:
        expect(edit(session), 1)


def twice(session: Session) -> None:
    demanded(session)
    session.flush()
    session.get_one(Account, 1).owner = "newer"


def new_and_changed(session: Session) -> None:
    account = Account(id=3)
    session.add(account)
    session.flush()
    account.owner = "new"


def new_in_a_savepoint(session: Session) -> None:
    with session.begin_nested():
        new_and_changed(session)
    session.get_one(Account, 3).owner = "newer"


def part_of_what_is_demanded(session: Session) -> None:
    basket = session.get_one(Basket, 1)
    expect(basket, 1)
    basket.items[0].name = "new"
    basket.items.pop()
    basket.items.append(BasketItem(id=3))


def root_of_what_is_demanded(session: Session) -> None:
    item = session.get_one(BasketItem, 1)
    expect(item, 1)
    item.name = "new"


def child_of_what_is_demanded(session: Session) -> None:
    basket = session.get_one(Basket, 1)
    expect(basket, 1)
    basket.notes.clear()


def deleted_with_what_it_owns(session: Session) -> None:
    basket = session.get_one(Basket, 1)
    expect(basket, 1)
    session.delete(basket)


def merged(session: Session) -> None:
    etags = ETags(keys=["k" * 32])
    account = session.get_one(Account, 1)
    seen = sign_seen(account, ["owner"], etags=etags)
    merge_changes(session, Account, 1, {"owner": "new"}, seen=seen, etags=etags)


ALLOWED: dict[str, Callable[[Session], Any]] = {
    "expect": demanded,
    "expect-after-the-edit": demanded_after_the_edit,
    "twice": twice,
    "apply": lambda session: apply(session, Account, 1, {"owner": "new"}, version=1),
    "overwrite": lambda session: overwrite(edit(session)),
    "merge-changes": merged,
    "insert": lambda session: session.add(Account(id=3)),
    "new-and-changed": new_and_changed,
    "new-in-a-savepoint": new_in_a_savepoint,
    "same-value": lambda session: setattr(session.get_one(Account, 1), "owner", "Ada"),
    "part-of-a-root": part_of_what_is_demanded,
    "root-of-a-part": root_of_what_is_demanded,
    "child-of-an-owner": child_of_what_is_demanded,
    "delete-with-parts": deleted_with_what_it_owns,
    "entity": lambda session: entities.merge(
        session, Account, 1, {"owner": "new"}, if_match=etag_of(session.get_one(Account, 1))
    ),
    "entity-and-object": lambda session: (
        entities.merge(session, Account, 1, {"owner": "x"}, if_match=entities.Version(1))
        and edit(session)
    ),
    "entity-by-name": lambda session: entities.delete(session, Account, 1, if_match="*"),
    "bulk": lambda session: bulk_update(
        session, Account, [{"id": n, "version": 1, "owner": "new"} for n in (1, 2)]
    ),
    "by-key": lambda session: session.execute(
        update(Account), [{"id": n, "version": 1, "owner": "new"} for n in (1, 2)]
    ),
    "version-in-where": lambda session: session.execute(
        update(Account).where(Account.id == 1, Account.version == 1).values(owner="new")
    ),
    "query": lambda session: session.scalars(select(Account).with_for_update()).all(),
}


@pytest.mark.parametrize("write", ALLOWED.values(), ids=ALLOWED)
def test_a_row_with_a_condition_and_a_new_one_are_written(
    rows: None, engine: Engine, write: Callable[[Session], Any]
) -> None:
    """A10: so is what goes with such a row."""
    with unit(engine) as session:
        write(session)


@pytest.mark.parametrize("many", [1, 9])
def test_many_rows_under_conditions_go_in_the_statements_of_a_batch(
    store: Do, engine: Engine, stored: Do, many: int
) -> None:
    """A10: the statements that the guard makes of them are not taken for the program's."""
    store(*(Account(id=n) for n in range(many)))
    with unit(engine) as session:
        for n in range(many):
            account = session.get_one(Account, n)
            expect(account, 1)
            account.owner = "new"
    assert [stored(Account, n)["owner"] for n in range(many)] == ["new"] * many


def test_a_row_that_was_overwritten_by_name_is_settled(
    rows: None, engine: Engine, other: Do, stored: Do
) -> None:
    """A10: on_conflict says what happens after the condition, and is none itself."""
    with (
        pytest.raises(PreconditionRequired),
        unit(engine, on_conflict=client_wins) as session,
    ):
        edit(session)


# -- statements ------------------------------------------------------------------------------------

table: Any = Account.__table__
STATEMENTS: dict[str, Callable[[Session], Any]] = {
    "class": lambda session: session.execute(update(Account).values(owner="new")),
    "class-delete": lambda session: session.execute(delete(Account)),
    "table": lambda session: session.execute(table.update().values(owner="new")),
    "connection": lambda session: session.connection().execute(table.delete()),
    "query": lambda session: session.query(Account).update({"owner": "new"}),
    "text": lambda session: session.execute(text("UPDATE accounts SET owner = 'new'")),
    "driver": lambda session: session.connection().exec_driver_sql("DELETE FROM accounts"),
    "upsert": lambda session: entities.insert_or_merge(session, Account, 1, {"owner": "new"}),
}
MOMENTS = ["body", "before_flush", "after_flush"]


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("send", STATEMENTS.values(), ids=STATEMENTS)
def test_a_statement_that_names_no_version_is_not_sent(
    rows: None, engine: Engine, stored: Do, send: Callable[[Session], Any], moment: str
) -> None:
    """A10: nor by a listener."""
    with pytest.raises((PreconditionRequired, ConfigurationError)), unit(engine) as session:
        if moment == "body":
            send(session)
        else:
            event.listen(session, moment, lambda *_: send(session))
            session.add(Account(id=9))
    assert [stored(Account, n)["owner"] for n in (1, 2)] == ["Ada", "Bob"]
    assert stored(Account, 9) is None


def test_what_the_last_listener_changes_needs_a_condition_as_well(
    rows: None, engine: Engine, stored: Do
) -> None:
    """A9, A10: it is asked after all listeners."""
    with pytest.raises(PreconditionRequired, match="Account 1"), unit(engine) as session:
        account = session.get_one(Account, 1)

        def change(*_: Any) -> None:
            account.owner = "new"

        event.listen(session, "before_flush", change)
        session.add(Account(id=9))
    assert (stored(Account, 1)["owner"], stored(Account, 9)) == ("Ada", None)


# -- the option ------------------------------------------------------------------------------------


def test_a_request_with_a_condition_for_another_row_is_a_fault_of_the_program(
    rows: None, engine: Engine
) -> None:
    """A10: the client has sent one, so to ask for it (428) would not help."""
    with Session(engine) as session:
        tag = etag_of(session.get_one(Account, 2))
    with (
        serving("PUT", {"If-Match": tag}),
        pytest.raises(ConditionNotCompared, match="Account 1"),
        unit(engine) as session,
    ):
        expect(session.get_one(Account, 2), tag)
        edit(session)


def test_a_decorated_function_and_a_unit_that_joins_can_require_them(
    rows: None, engine: Engine
) -> None:
    """A10: in a unit that joins, for the unit around it as well."""
    sessions = sessionmaker(engine)

    @unit_of_work(sessions)
    def work(session: Session) -> None:
        require_conditions(session)
        edit(session)

    with pytest.raises(PreconditionRequired):
        work()
    with pytest.raises(PreconditionRequired), UnitOfWork(sessions):
        work()


@pytest.mark.parametrize("serves", [False, True])
def test_it_may_be_required_after_the_transaction_has_begun(
    rows: None, engine: Engine, serves: bool
) -> None:
    """A10: of the statements and flushes from there on."""
    for write in (edit, lambda session: session.execute(update(Account).values(owner="new"))):
        with (
            serving("PUT", {"If-Match": '"a"'}) if serves else nullcontext(),
            pytest.raises((PreconditionRequired, ConditionNotCompared)),
            UnitOfWork(engine) as session,
        ):
            session.get_one(Account, 2)
            require_conditions(session)
            write(session)
            session.flush()
            raise AssertionError("it was sent")


def test_it_is_required_of_watched_sessions_alone_and_not_taken_back(
    rows: None, engine: Engine
) -> None:
    """A10: a silence would be taken for protection."""
    scoped = scoped_session(watch(sessionmaker(engine)))
    require_conditions(scoped)
    edit(scoped)  # type: ignore[arg-type]
    with pytest.raises(PreconditionRequired):
        scoped.commit()
    with pytest.raises(ConfigurationError, match="for other rows"):
        ignore_conditions(scoped)
    scoped.remove()
    for call in (require_conditions, ignore_conditions):
        for wrong in (Session(engine), engine):
            with pytest.raises(ConfigurationError, match="takes a watched session"):
                call(wrong)  # type: ignore[type-var]


@pytest.mark.anyio
async def test_an_async_unit_has_it_too(async_engine: AsyncEngine) -> None:
    """A10."""
    async with async_engine.begin() as connection:
        await connection.run_sync(table.create)
    async with AsyncUnitOfWork(async_sessionmaker(async_engine)) as session:
        session.add(Account(id=1))
    with pytest.raises(PreconditionRequired):
        async with AsyncUnitOfWork(async_engine) as session:
            require_conditions(session)
            (await session.get_one(Account, 1)).owner = "new"
    async with AsyncUnitOfWork(async_engine) as session:
        require_conditions(session)
        account = await session.get_one(Account, 1)
        expect(account, 1)
        account.owner = "new"


@pytest.mark.engines("postgresql")
@pytest.mark.parametrize("many", [1, 2])
def test_the_condition_of_a_request_meets_writes_that_go_along_with_commit(
    rows: None, engine: Engine, stored: Do, many: int
) -> None:
    """A10: they do not go along with it then; and where it was compared they do."""
    with Session(engine) as session:
        tag = etag_of(session.get_one(Account, 1))
    for require in (require_conditions, lambda session: session):
        with (
            serving("PUT", {"If-Match": tag}),
            pytest.raises(ConditionNotCompared),
            UnitOfWork(engine, pipelined=True) as session,
            session.no_autoflush,
        ):
            require(session)
            for n in range(1, many + 1):
                session.get_one(Account, n).owner = "new"
    assert [stored(Account, n)["owner"] for n in (1, 2)] == ["Ada", "Bob"]
    with serving("PUT", {"If-Match": tag}), UnitOfWork(engine, pipelined=True) as session:
        expect(session.get_one(Account, 1), tag)
        edit(session)
    assert stored(Account, 1)["owner"] == "new"


@pytest.mark.parametrize("ignored", [True, False])
def test_the_condition_of_a_request_meets_the_writes_of_a_unit_on_every_database(
    rows: None, engine: Engine, stored: Do, ignored: bool
) -> None:
    """A10: one row, and many in the form of the database."""
    with Session(engine) as session:
        tag = etag_of(session.get_one(Account, 1))
    for owners in ("new", "newer"):
        error: OptilockError | None = None
        try:
            with (
                serving("PUT", {"If-Match": tag}),
                UnitOfWork(engine) as session,
                session.no_autoflush,
            ):
                for n in (1, 2) if owners == "newer" else (1,):
                    session.get_one(Account, n).owner = owners
                if not ignored:
                    expect(session.get_one(Account, 1), tag)
        except ConditionNotCompared as raised:
            error = raised
        assert (error is not None) is ignored
        with Session(engine) as session:
            tag = etag_of(session.get_one(Account, 1))
    assert stored(Account, 2)["owner"] == ("Bob" if ignored else "newer")
