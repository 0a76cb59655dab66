"""E4: a lease has the label that its holder gave, and everybody who asks may see it."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

import pytest
from sqlalchemy import Engine, MetaData, text, update
from sqlalchemy.orm import Mapped, Session, mapped_column, sessionmaker

import optilock.asyncio
from optilock import ConfigurationError, UnitOfWork, Versioned, leases, watch
from optilock.check import check
from optilock.leases import Leasable, LeaseHeld, LeaseLost, LeasePolicy, Name, Names
from optilock.tables.names import leases as own_table
from optilock.testing import count_statements
from tests.support.migrating import migrate, revise, run
from tests.support.models import key, own_base
from tests.support.waiting import until

Base = own_base()


class Lot(Leasable, Versioned, Base):
    __tablename__ = "label_lots"
    __lease_policy__ = LeasePolicy(shortest=0.1, exclusive_reads=True)
    id: Mapped[int] = key()
    text: Mapped[str] = mapped_column(default="")


NAMES = Names(table="label_names", policy=LeasePolicy(shortest=0.1))


class Price(Versioned, Base):
    __tablename__ = "label_prices"
    __lease_policy__ = LeasePolicy(all_rows=Name("prices", NAMES))
    id: Mapped[int] = key()
    text: Mapped[str] = mapped_column(default="")


TABLES: list[Any] = [Lot.__table__, Price.__table__, NAMES.columns.table]
ROWS = [(Lot, 1), Name("import", NAMES)]
of_both = pytest.mark.parametrize("of", ROWS, ids=["row", "name"])


def create(connection: Any) -> None:
    for table in TABLES:
        table.drop(connection, checkfirst=True)
        table.create(connection)
    for table in TABLES[:2]:
        connection.execute(table.insert(), [{"id": n, "version": 1} for n in (1, 2)])


@pytest.fixture
def lots(engine: Engine) -> Iterator[Engine]:
    with engine.begin() as connection:
        create(connection)
    yield engine
    for table in TABLES:
        table.drop(engine)


def on(engine: Engine, call: Any, *args: Any, **options: Any) -> Any:
    """Somebody calls it, and commits."""
    with Session(engine) as session, session.begin():
        return call(session, *args, **options)


def holder(engine: Engine, of: Any) -> str | None:
    found: str | None = on(engine, leases.look, of).holder
    return found


@of_both
def test_it_is_shown_as_long_as_the_lease_is_that_holders(lots: Engine, of: Any) -> None:
    """E4: renewal keeps it; another id, another holder, a break and a release do not."""
    lease = on(lots, leases.acquire, of, 30, holder="ada")
    assert holder(lots, of) == "ada"
    lease = on(lots, leases.renew, lease)
    assert holder(lots, of) == "ada"
    lease = on(lots, leases.change, lease, holder="bo")
    assert holder(lots, of) == "bo"
    lease = on(lots, leases.acquire, of, 30, proposed=lease.id, holder="bo, again")
    assert holder(lots, of) == "bo, again"
    lease = on(lots, leases.change, lease)
    assert holder(lots, of) is None
    on(lots, leases.release, lease)
    on(lots, leases.acquire, of, 30, holder="cy")
    assert on(lots, leases.break_, of, after=10).holder is None
    assert on(lots, leases.look, of).state == "breaking"
    assert holder(lots, of) is None
    on(lots, leases.break_, of, after=0)
    lease = on(lots, leases.acquire, of, 30, holder="di")
    on(lots, leases.release, lease)
    assert holder(lots, of) is None
    on(lots, leases.acquire, of, 30)
    assert holder(lots, of) is None


@of_both
def test_a_released_or_broken_lease_leaves_no_label_in_the_table(lots: Engine, of: Any) -> None:
    """E4: nor does the next holder without one."""
    table = "label_lots WHERE id = 1" if of == (Lot, 1) else "label_names WHERE name = 'import'"

    def stored() -> Any:
        with lots.connect() as connection:
            return connection.scalar(text(f"SELECT lease_holder FROM {table}"))

    on(lots, leases.release, on(lots, leases.acquire, of, 30, holder="ada"))
    assert stored() is None
    on(lots, leases.acquire, of, 30, holder="ada")
    on(lots, leases.break_, of, after=10)
    assert stored() is None
    on(lots, leases.break_, of, after=0)
    on(lots, leases.acquire, of, 0.1, holder="ada")
    assert stored() == "ada"
    until(lambda: on(lots, leases.look, of).state == "expired")
    assert holder(lots, of) == "ada"  # the last holder
    on(lots, leases.acquire, of, 30)
    assert stored() is None


def test_the_label_of_a_lease_that_a_write_took_away_is_not_shown(lots: Engine) -> None:
    """E4: the write stores no id, so there is no lease whose holder could be shown."""
    on(lots, leases.acquire, (Lot, 1), 0.1, holder="ada")
    until(lambda: on(lots, leases.look, (Lot, 1)).state == "expired")
    with watch(sessionmaker(lots)).begin() as session:
        session.get_one(Lot, 1).text = "theirs"
    found = on(lots, leases.look, (Lot, 1))
    assert (found.state, found.holder) == ("available", None)


def one_row(session: Any, of: Any) -> None:
    session.get_one(of, 1).text = "theirs"


def many_rows(session: Any, of: Any) -> None:
    for n in (1, 2):
        session.get_one(of, n).text = "theirs"


def a_delete(session: Any, of: Any) -> None:
    session.delete(session.get_one(of, 1))


def a_statement(session: Any, of: Any) -> None:
    session.execute(update(of).values(text="theirs"))


def written(way: Any, of: Any) -> Callable[[Engine], None]:
    def write(engine: Engine) -> None:
        with UnitOfWork(engine) as session:
            way(session, of)

    return write


REFUSED: dict[str, tuple[Any, Callable[[Engine], Any]]] = {
    "acquire": ((Lot, 1), lambda engine: on(engine, leases.acquire, (Lot, 1), 30)),
    "of a name": (ROWS[1], lambda engine: on(engine, leases.acquire, ROWS[1], 30, holder="bo")),
    "read": ((Lot, 1), lambda engine: on(engine, leases.read, Lot, 1)),
    **{
        f"{way.__name__} of {of.__name__}": (place, written(way, of))
        for way in (one_row, many_rows, a_delete, a_statement)
        for of, place in ((Lot, (Lot, 1)), (Price, Price))
    },
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_who_is_refused_is_told_who_holds_it_and_never_the_id(lots: Engine, case: Any) -> None:
    """E4: by an operation, a read and each form of a write, of a row and of all rows."""
    of, refused = case
    on(lots, leases.prepare, Price)
    lease = on(lots, leases.acquire, of, 30, holder="ada's desk")
    with pytest.raises(LeaseHeld) as raised:
        refused(lots)
    held = raised.value
    assert held.holder == "ada's desk"
    assert (held.since, held.until) == (lease.since, lease.until)
    assert 'Another holder ("ada\'s desk") has a lease on ' in str(held)
    again = pickle.loads(pickle.dumps(held))
    assert (again.holder, again.since, str(again)) == (held.holder, held.since, str(held))
    for shown in (str(held), repr(held.__dict__), repr(on(lots, leases.look, of))):
        assert lease.id.hex not in shown.replace("-", "")


def test_without_a_label_none_is_told(lots: Engine) -> None:
    """E4: it is None by default."""
    on(lots, leases.acquire, (Lot, 1), 30)
    with pytest.raises(LeaseHeld, match="Another holder has a lease on Lot 1 since") as raised:
        written(one_row, Lot)(lots)
    assert raised.value.holder is None


class Desk(str, Enum):  # noqa: UP042
    FIRST = "desk 1"


WRONG = ["", "x" * 201, "a\0b", "\ud800", 7, b"ada", ["ada"]]


@pytest.mark.parametrize("wrong", WRONG, ids=range(len(WRONG)))
@of_both
def test_what_is_no_label_is_refused_before_anything_is_sent(
    lots: Engine, of: Any, wrong: Any
) -> None:
    """E4: a text of 1 to 200 characters, without NUL and half surrogates."""
    lease = on(lots, leases.acquire, of, 30)
    with Session(lots) as session, count_statements(lots) as sent:
        for call in (
            lambda: leases.acquire(session, of, 30, proposed=lease.id, holder=wrong),
            lambda: leases.change(session, lease, holder=wrong),
            lambda: leases.lease(lots, of, 30, holder=wrong).__enter__(),
        ):
            with pytest.raises(ConfigurationError, match="1 to 200 characters"):
                call()
    assert sent.count == 0


@pytest.mark.parametrize("label", ["x" * 200, " a ", "a\nb", "Ада, 机 'x' \"y\" %s :z"])
@of_both
def test_every_other_text_is_kept_as_it_is(lots: Engine, of: Any, label: str) -> None:
    """E4: also blanks at its ends, letters of every language, and what SQL has a meaning for."""
    on(lots, leases.acquire, of, 30, holder=label)
    assert holder(lots, of) == label


def test_a_member_of_an_enum_of_texts_is_its_value(lots: Engine) -> None:
    """E4: whatever its class makes of ``str()``."""
    on(lots, leases.acquire, (Lot, 1), 30, holder=Desk.FIRST)
    assert holder(lots, (Lot, 1)) == "desk 1"


def test_it_costs_no_statement(lots: Engine) -> None:
    """E4: an operation with a label is as many statements as one without."""
    with Session(lots) as session:
        counts = []
        for options in ({}, {"holder": "ada"}):
            with count_statements(lots) as sent:
                lease = leases.acquire(session, (Lot, 1), 30, **options)
                leases.release(session, leases.change(session, lease, **options))
            counts.append(sent.count)
    assert counts[0] == counts[1] == (3 if lots.dialect.update_returning else 5)


def test_a_block_says_who_holds_it(lots: Engine) -> None:
    """E4: ``lease(...)`` takes it, and its renewals keep it."""
    with leases.lease(lots, (Lot, 1), 30, holder="ada") as held:
        held.renew(lots)
        assert holder(lots, (Lot, 1)) == "ada"
    assert holder(lots, (Lot, 1)) is None


@pytest.mark.anyio
async def test_an_async_block_says_it_too(async_engine: Any) -> None:
    """E4: ``async with optilock.asyncio.lease(...)``."""
    async with async_engine.begin() as connection:
        await connection.run_sync(create)
    async with (
        optilock.asyncio.lease(async_engine, (Lot, 1), 30, holder="ada"),
        async_engine.connect() as connection,
    ):
        found = await connection.run_sync(
            lambda sync: leases.look(Session(bind=sync), (Lot, 1)).holder
        )
    assert found == "ada"
    async with async_engine.begin() as connection:
        for table in TABLES:
            await connection.run_sync(table.drop)


# -- tables that are older than the column ---------------------------------------------------------


@of_both
def test_without_the_column_every_operation_is_refused(lots: Engine, of: Any) -> None:
    """E4: with a label and without one, and the error says which column to add."""
    lease = on(lots, leases.acquire, of, 30)
    table = "label_lots" if of == (Lot, 1) else "label_names"
    with lots.begin() as connection:
        connection.execute(text(f"ALTER TABLE {table} DROP COLUMN lease_holder"))
    for call in (
        lambda: on(lots, leases.acquire, of, 30),
        lambda: on(lots, leases.acquire, of, 30, holder="ada"),
        lambda: on(lots, leases.look, of),
        lambda: on(lots, leases.renew, lease),
        lambda: on(lots, leases.break_, of),
        lambda: on(lots, leases.release, lease),
    ):
        with pytest.raises(ConfigurationError, match=f"column lease_holder of the table {table}"):
            call()
    with lots.connect() as connection:
        count = connection.scalar(
            text(f"SELECT count(*) FROM {table} WHERE lease_id IS NOT NULL AND lease_fence = 1")
        )
    assert count == 1


def test_without_the_column_no_row_is_written_over_a_lease(lots: Engine) -> None:
    """E4: the write is refused by its lease, or by the look for its holder."""
    on(lots, leases.acquire, (Lot, 1), 30)
    with lots.begin() as connection:
        connection.execute(text("ALTER TABLE label_lots DROP COLUMN lease_holder"))
    for way in (one_row, many_rows, a_delete, a_statement):
        with pytest.raises(Exception, match="lease_holder"):
            written(way, Lot)(lots)
    with lots.connect() as connection:
        found = connection.scalars(text("SELECT text FROM label_lots ORDER BY id")).all()
    assert found == ["", ""]


def test_other_errors_of_the_database_stay_what_they_are(lots: Engine) -> None:
    """E4: only the missing column is explained as one."""
    with lots.begin() as connection:
        connection.execute(text("ALTER TABLE label_lots RENAME COLUMN lease_fence TO odd"))
    with pytest.raises(Exception, match="lease_fence") as raised:
        on(lots, leases.acquire, (Lot, 1), 30, holder="ada")
    assert not isinstance(raised.value, (ConfigurationError, LeaseLost))
    with lots.begin() as connection:
        connection.execute(text("ALTER TABLE label_lots RENAME COLUMN odd TO lease_fence"))


def test_the_second_step_adds_the_column_and_takes_it_back(engine: Engine) -> None:
    """E4: ``optilock check`` names the old table; leases that are held stay so."""

    def old() -> list[str]:
        return [one.code for one in check([Lot], engine) if one.subject == own_table.name]

    name = Name("nightly")
    Lot.__table__.create(engine)  # type: ignore[attr-defined]
    assert old() == []  # there is no table, and none is needed
    migrate(engine, lambda op: op.create_optilock_tables("leases"))
    assert old() == ["old-leases"]
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO optilock_leases (name) VALUES ('nightly')"))
    with pytest.raises(ConfigurationError, match="to=2"):
        on(engine, leases.acquire, name, 30)
    migrate(engine, lambda op: op.upgrade_optilock_tables("leases", to=2))
    assert old() == []
    on(engine, leases.acquire, name, 30, holder="ada")
    assert on(engine, leases.look, name).holder == "ada"
    migrate(engine, lambda op: op.downgrade_optilock_tables("leases", to=1))
    with engine.connect() as connection:
        count = text("SELECT count(*) FROM optilock_leases WHERE lease_fence = 1")
        assert connection.scalar(count) == 1
    migrate(engine, lambda op: op.drop_optilock_tables("leases"))


def test_autogenerate_and_check_find_the_column_of_rows(engine: Engine) -> None:
    """E4: it is added as any other column."""
    table: Any = Lot.__table__
    table.create(engine)
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE label_lots DROP COLUMN lease_holder"))
    found = {(one.code, one.subject) for one in check([Lot], engine)}
    assert ("no-column", "label_lots.lease_holder") in found
    revision = revise(engine, table.to_metadata(MetaData()).metadata)
    run(engine, revision, revision.upgrade)
    on(engine, lambda session: session.add(Lot(id=1)))
    on(engine, leases.acquire, (Lot, 1), 30, holder="ada")
    assert holder(engine, (Lot, 1)) == "ada"
