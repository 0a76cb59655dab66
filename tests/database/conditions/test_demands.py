"""What a session demands of every row that it writes: a holder, or a lease that has not ended.

The two parts below are all that such an option takes; whatever the session writes, and in whatever
form it is sent, the row of another holder is left as it is, and the error is the part's own.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
from sqlalchemy import (
    Column,
    ColumnElement,
    Engine,
    ForeignKey,
    event,
    func,
    select,
    text,
    true,
    update,
)
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import Mapped, Mapper, Session, mapped_column, relationship, sessionmaker

from optilock import (
    ConfigurationError,
    Entry,
    OptilockError,
    UnitOfWork,
    Versioned,
    client_wins,
    watch,
)
from optilock.conditions import Condition, Demand
from optilock.conditions.condition import Given
from optilock.statements import demand
from optilock.testing import count_statements
from optilock.tokens import CompareValues, Counter
from optilock.tokens.timestamp import ServerTime, UtcDateTime
from optilock.unit import Part
from tests.support.models import Base, key
from tests.support.ways_to_write import Lose, over, several

NOW = datetime.datetime.now(datetime.UTC)


# -- the two parts ---------------------------------------------------------------------------------


class NotTheHolder(OptilockError):
    """Somebody else holds the row."""


class LeaseEnded(OptilockError):
    """The lease under which we write has ended."""


@dataclass(frozen=True)
class HeldBy(Condition):
    column: Column[Any]

    def clause(self, given: Given) -> ColumnElement[bool]:
        return self.column == given("holder", self.column.type)

    def explain(self, entry: Entry[Any]) -> Exception:
        return NotTheHolder(f"{entry.model.__name__} {entry.identity!r} is held by somebody else")


class Holder(Part, Demand):
    """Writes only what ``me`` holds."""

    def __init__(self, me: str) -> None:
        self.values = {"holder": me}

    def on(self, mapper: Mapper[Any]) -> Condition | None:
        column = mapper.columns.get("holder")
        return None if column is None else HeldBy(column)

    def begin(self, session: Session) -> None:
        demand(session, self)


@dataclass(frozen=True)
class Alive(Condition):
    def clause(self, given: Given) -> ColumnElement[bool]:
        alive = select(Lease.id).where(
            Lease.id == given("lease", Lease.__table__.c.id.type), Lease.until > ServerTime()
        )
        return alive.with_for_update(read=True).exists()

    def explain(self, entry: Entry[Any]) -> Exception:
        return LeaseEnded(f"the lease for {entry.model.__name__} {entry.identity!r} has ended")


class UnderLease(Part, Demand):
    """Writes only as long as the lease lasts, by the clock of the database."""

    def __init__(self, lease: int) -> None:
        self.values = {"lease": lease}

    def on(self, mapper: Mapper[Any]) -> Condition | None:
        return Alive()

    def begin(self, session: Session) -> None:
        demand(session, self)


# -- what is written -------------------------------------------------------------------------------


class Lease(Base):
    __tablename__ = "demanded_leases"
    id: Mapped[int] = key()
    until: Mapped[Any] = mapped_column(UtcDateTime())


class Task(Versioned, Base):
    __tablename__ = "demanded_tasks"
    __version_token__ = Counter()
    __version_ignore__ = ("views",)
    id: Mapped[int] = key()
    kind: Mapped[str] = mapped_column(default="task")
    holder: Mapped[str | None] = mapped_column(default="me")
    title: Mapped[str] = mapped_column(default="")
    views: Mapped[int] = mapped_column(default=0)
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "task"}


class Bug(Task):
    __tablename__ = "demanded_bugs"
    __version_ignore__ = ("seen",)
    id: Mapped[int] = mapped_column(ForeignKey(Task.id), primary_key=True)
    cause: Mapped[str] = mapped_column(default="")
    seen: Mapped[int] = mapped_column(default=0)
    __mapper_args__ = {"polymorphic_identity": "bug"}


class DemandedList(Versioned, Base):
    __tablename__ = "demanded_lists"
    id: Mapped[int] = key()
    holder: Mapped[str] = mapped_column(default="me")
    lines: Mapped[list[DemandedLine]] = relationship(cascade="all, delete-orphan")


class DemandedLine(Base):
    __tablename__ = "demanded_lines"
    id: Mapped[int] = key()
    list_id: Mapped[int] = mapped_column(ForeignKey(DemandedList.id))


class Plain(Versioned, Base):
    __tablename__ = "demanded_plain"
    __version_token__ = CompareValues.all()
    id: Mapped[int] = key()
    holder: Mapped[str] = mapped_column(default="me")
    title: Mapped[str] = mapped_column(default="")
    size: Mapped[int] = mapped_column(default=0)


class Bare(Base):
    """Without a version: what is demanded is demanded of it, too."""

    __tablename__ = "demanded_bare"
    id: Mapped[int] = key()
    holder: Mapped[str] = mapped_column(default="me")
    title: Mapped[str] = mapped_column(default="")


TABLES = [one.__table__ for one in (Lease, Task, Bug, DemandedList, DemandedLine, Plain, Bare)]


CASES = over(Task=Task, Bug=Bug, DemandedList=DemandedList, Plain=Plain, Bare=Bare)
cases = pytest.mark.parametrize("case", CASES)
resolvers = pytest.mark.parametrize(
    "resolver", [client_wins, pytest.param(None, marks=pytest.mark.full)]
)
#: The part, its error, and what takes away what it demands.
THEFT = [text(f"UPDATE {table.name} SET holder = 'you'") for table in TABLES if "holder" in table.c]
parts = pytest.mark.parametrize("part", ["holder", "lease"])
#: The lease where its values or its clock may matter; otherwise with ``--full``.
part = pytest.mark.parametrize("part", ["holder", pytest.param("lease", marks=pytest.mark.full)])


def part_of(name: str) -> tuple[Any, type[OptilockError], list[Any]]:
    if name == "holder":
        return Holder("me"), NotTheHolder, THEFT
    ended = update(Lease).values(until=NOW - datetime.timedelta(days=1))
    return UnderLease(1), LeaseEnded, [ended]


def by(engine: Engine, *statements: Any) -> Lose:
    """Somebody else sends these, and commits."""

    def send() -> None:
        with engine.begin() as connection:
            for statement in statements:
                connection.execute(statement)

    return send


MOVED = text("UPDATE demanded_tasks SET title = 'theirs', version = version + 1 WHERE id = 1")


def rows() -> list[Any]:
    return [
        Lease(id=1, until=NOW + datetime.timedelta(days=1)),
        *(of(id=n) for of in (Task, Plain, Bare) for n in (1, 2, 3)),
        Bug(id=9),
        DemandedList(id=1, lines=[DemandedLine(id=1), DemandedLine(id=2)]),
    ]


def fill(engine: Engine) -> None:
    Base.metadata.create_all(engine, tables=TABLES)
    with Session(engine) as session, session.begin():
        session.add_all(rows())


@pytest.fixture
def filled(engine: Engine) -> Iterator[Engine]:
    fill(engine)
    yield engine
    Base.metadata.drop_all(engine, tables=TABLES)


def stored(engine: Engine) -> Any:
    with engine.connect() as connection:
        return [
            connection.execute(select(table).order_by(*table.primary_key)).all()
            for table in TABLES[1:]
        ]


@parts
@cases
@resolvers
@pytest.mark.needs("resolves-in-place")
def test_nothing_is_written_of_a_row_that_is_not_as_demanded(
    filled: Engine, part: str, case: Any, resolver: Any
) -> None:
    wanted, error, statements = part_of(part)
    moved = by(filled, MOVED)
    with watch(sessionmaker(filled), on_conflict=resolver)() as session:
        demand(session, wanted)
        with pytest.raises(error):
            case(session, by(filled, *statements), moved)
            session.flush()
        session.expunge_all()  # the refused edits are pending again
        session.commit()
    assert "mine" not in str(stored(filled))
    assert ", 7" not in str(stored(filled))
    assert [len(rows) for rows in stored(filled)] == [4, 1, 1, 2, 3, 3]


@part
@cases
@pytest.mark.needs("resolves-in-place")
def test_what_is_as_demanded_is_written_as_ever(filled: Engine, part: str, case: Any) -> None:
    wanted, _, _ = part_of(part)
    before = stored(filled)
    with watch(sessionmaker(filled), on_conflict=client_wins)() as session:
        demand(session, wanted)
        case(session, lambda: None, by(filled, MOVED))
        session.commit()
    assert stored(filled) != before


@pytest.mark.anyio
@part
@cases
async def test_nothing_is_written_by_an_async_session(
    async_engine: Any, async_store: Any, part: str, case: Any
) -> None:
    wanted, error, statements = part_of(part)
    sync: Engine = async_engine.sync_engine
    async_store(*rows())
    async with watch(async_sessionmaker(async_engine), on_conflict=client_wins)() as session:
        demand(session.sync_session, wanted)
        with pytest.raises(error):
            await session.run_sync(case, by(sync, *statements), by(sync, MOVED))
            await session.flush()
        await session.rollback()


@pytest.mark.engines("postgresql")
def test_what_was_taken_away_and_came_back_before_the_look_is_written(filled: Engine) -> None:
    """The UPDATE finds nothing; the row is looked at, is as demanded again, and is written."""
    back = by(filled, text("UPDATE demanded_tasks SET holder = 'me'"))
    with watch(sessionmaker(filled))() as session:
        demand(session, Holder("me"))
        task = session.get_one(Task, 1)
        by(filled, *THEFT)()
        task.title = "mine"

        waiting = [back]

        def locks(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
            if "FOR NO KEY UPDATE" in statement and waiting:
                waiting.pop()()

        event.listen(session.connection(), "before_cursor_execute", locks)
        session.commit()
        assert not waiting
    assert "mine" in str(stored(filled))


@pytest.mark.needs("resolves-in-place")
def test_a_unit_takes_the_part_as_an_option(filled: Engine) -> None:
    by(filled, *THEFT)()
    with (
        pytest.raises(NotTheHolder),
        UnitOfWork(filled, on_conflict=client_wins, parts=[Holder("me")]) as session,
    ):
        session.get_one(Task, 1).title = "mine"
    with UnitOfWork(filled, parts=[Holder("you"), UnderLease(1)]) as session:
        for task in several(session, Task):
            task.title = "yours"
    assert str(stored(filled)).count("yours") == 4


@pytest.mark.engines("postgresql", "sqlite")
@pytest.mark.parametrize("many", [1, 3])
def test_it_costs_no_statement_and_its_values_are_parameters(filled: Engine, many: int) -> None:
    with watch(sessionmaker(filled))() as session:
        demand(session, Holder("me"))
        for task in several(session, Task)[:many]:
            task.title = "mine"
        with count_statements(filled) as sent:
            session.flush()
        session.rollback()
    assert sent.count == 1
    assert "'me'" not in sent.statements[0].text


def test_a_resolver_writes_under_the_demands_as_well(filled: Engine) -> None:
    """The row has moved, and nobody has taken it: the resolver's correction is written."""
    with watch(sessionmaker(filled), on_conflict=client_wins)() as session:
        demand(session, Holder("me"))
        task = session.get_one(Task, 1)
        session.commit()
        assert task.title == ""
        session.commit()
        by(filled, MOVED)()
        task.title = "mine"
        session.commit()
    assert "mine" in str(stored(filled))


@dataclass(frozen=True)
class Lasting(Alive):
    """As ``Alive``, but nobody is kept from ending the lease meanwhile."""

    def clause(self, given: Given) -> ColumnElement[bool]:
        alive = select(Lease.id).where(Lease.id == given("lease", Lease.__table__.c.id.type))
        return alive.where(Lease.until > ServerTime()).exists()


class UnderLastingLease(UnderLease):
    def on(self, mapper: Mapper[Any]) -> Condition | None:
        return Lasting()


@pytest.mark.engines("postgresql")
@pytest.mark.parametrize("many", [1, 3])
def test_a_lease_that_ends_while_a_resolver_thinks_is_told(filled: Engine, many: int) -> None:
    _, error, statements = part_of("lease")

    def slow(entry: Entry[Any]) -> Any:
        by(filled, *statements)()
        return client_wins(entry)

    with watch(sessionmaker(filled), on_conflict=slow)() as session:
        demand(session, UnderLastingLease(1))
        found = several(session, Task)[:many]
        by(filled, text("UPDATE demanded_tasks SET version = version + 1"))()
        for task in found:
            task.title = "mine"
        with pytest.raises(error):
            session.flush()
        session.rollback()
    assert "mine" not in str(stored(filled))


class Cause(Demand):
    """Demands something of a column in the table of the child, whose version is in the base."""

    values = {"cause": ""}

    def on(self, mapper: Mapper[Any]) -> Condition | None:
        return ByCause(Bug.__table__.c.cause) if mapper.class_ is Bug else None


@dataclass(frozen=True)
class ByCause(HeldBy):
    def clause(self, given: Given) -> ColumnElement[bool]:
        return self.column == given("cause", self.column.type)


@pytest.mark.needs("resolves-in-place")
@pytest.mark.parametrize("many", [1, 2])
@pytest.mark.parametrize("stays", [True, False])
def test_a_column_of_another_table_of_the_row_can_be_asked_for(
    filled: Engine, many: int, stays: bool
) -> None:
    with Session(filled) as session, session.begin():
        session.add(Bug(id=10))
    with watch(sessionmaker(filled), on_conflict=client_wins)() as session:
        demand(session, Cause())
        for bug in several(session, Bug)[:many]:
            bug.title = "mine"
        if stays:
            session.flush()
            session.execute(update(Bug).values(seen=3))
        else:
            by(filled, text("UPDATE demanded_bugs SET cause = 'theirs'"))()
            with pytest.raises(NotTheHolder):
                session.flush()
            session.expunge_all()
            with pytest.raises(NotTheHolder):
                session.execute(update(Bug).values(seen=3))
        session.commit()
    assert str(stored(filled)).count("mine") == (many if stays else 0)


@dataclass(frozen=True)
class Exactly(HeldBy):
    """SQL of a collation that ignores case would take ``ME`` for ``me``: Python decides."""

    exact = False

    @property
    def looks(self) -> tuple[ColumnElement[Any], ...]:
        return (self.column,)

    def holds(self, params: Mapping[str, Any], seen: Sequence[Any]) -> bool:
        return bool(seen[0] == params["holder"])

    def clause(self, given: Given) -> ColumnElement[bool]:
        return func.lower(self.column) == func.lower(given("holder", self.column.type))


class ExactHolder(Holder, option="exact"):
    def on(self, mapper: Mapper[Any]) -> Condition | None:
        return Exactly(Task.__table__.c.holder) if mapper.class_ is Task else None


#: Where SQL alone would decide.
BY_SQL = {"one_row", "a_batch", "one_delete", "an_update_statement", "a_bulk_update"}


@pytest.mark.needs("resolves-in-place")
@pytest.mark.parametrize("case", [case for case in CASES if case.__name__ in BY_SQL])
def test_what_sql_cannot_tell_is_looked_at_first(filled: Engine, case: Any) -> None:
    lose = by(filled, text("UPDATE demanded_tasks SET holder = 'ME'"))
    for taken in (True, False):
        with watch(sessionmaker(filled))() as session:
            demand(session, ExactHolder("me"))
            if taken:
                with pytest.raises(NotTheHolder):
                    case(session, lose, lose)
                    session.flush()
            else:
                case(session, lambda: None, lose)
            session.rollback()
        if taken:
            by(filled, text("UPDATE demanded_tasks SET holder = 'me'"))()


class ExactCause(Cause):
    values = {"holder": "me"}

    def on(self, mapper: Mapper[Any]) -> Condition | None:
        return Exactly(Bug.__table__.c.cause) if mapper.class_ is Bug else None


@pytest.mark.needs("resolves-in-place")
@pytest.mark.parametrize("many", [1, 2])
@pytest.mark.parametrize("stays", [True, False])
def test_what_sql_cannot_tell_may_be_in_another_table_of_the_row(
    filled: Engine, many: int, stays: bool
) -> None:
    """Only a column of the table with the version changes; the condition is on the other one."""
    with Session(filled) as session, session.begin():
        session.add(Bug(id=10))
        session.execute(update(Bug).values(cause="me" if stays else "ME"))
    with watch(sessionmaker(filled))() as session:
        demand(session, ExactCause())
        for bug in several(session, Bug)[:many]:
            bug.title = "mine"
        if stays:
            session.commit()
        else:
            with pytest.raises(NotTheHolder):
                session.flush()
    assert str(stored(filled)).count("mine") == (many if stays else 0)


# -- refused when it is made -----------------------------------------------------------------------


def test_a_condition_without_an_explanation_is_refused_when_it_is_made() -> None:
    with pytest.raises(ConfigurationError, match=r"no explain\(\): write def explain"):

        class Silent(Condition):
            def clause(self, given: Given) -> ColumnElement[bool]:
                return true()


def test_a_condition_without_sql_is_refused_when_it_is_made() -> None:
    with pytest.raises(ConfigurationError, match=r"no clause\(\): write def clause"):

        class Empty(Condition):
            def explain(self, entry: Entry[Any]) -> None:
                return None


class _OfSome(Condition):
    """What the next classes share: nothing is ever asked."""

    def clause(self, given: Given) -> ColumnElement[bool]:
        return true()

    def explain(self, entry: Entry[Any]) -> None:
        return None


@dataclass
class Thawed(_OfSome):
    names: tuple[str, ...] = ()


@dataclass(eq=False)
class Changeable(_OfSome):
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Listing(_OfSome):
    names: list[str] = field(default_factory=list)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (
            Thawed(),
            r"cannot be kept \(unhashable type: 'Thawed'\): write @dataclass\(frozen=True\)",
        ),
        (Changeable(), r"may be changed: write @dataclass\(frozen=True\) over class Changeable"),
        (Listing(), r"cannot be kept \(unhashable type: 'list'\)"),
        ("me", "gives a str, and no Condition"),
    ],
)
def test_a_condition_that_cannot_be_kept_is_refused(filled: Engine, wrong: Any, why: str) -> None:
    """C8: before anything is sent, and in words; it was a TypeError in the middle of the flush."""

    class Odd(Demand):
        values: ClassVar[dict[str, Any]] = {}

        def on(self, mapper: Mapper[Any]) -> Any:
            return wrong

    with watch(sessionmaker(filled))() as session:
        demand(session, Odd())
        session.get_one(Task, 1).title = "new"
        with pytest.raises(ConfigurationError, match=why):
            session.flush()
        session.rollback()
        assert session.is_active
        with pytest.raises(ConfigurationError, match=why):
            session.execute(update(Task).where(Task.id == 1).values(title="new"))


def test_two_demands_that_want_one_name_are_refused() -> None:
    with watch(sessionmaker())() as session:
        demand(session, Holder("me"))
        with pytest.raises(ConfigurationError, match="names a value 'holder'"):
            demand(session, Holder("you"))


def test_a_demand_without_values_is_refused() -> None:
    class Nothing(Demand):
        def on(self, mapper: Mapper[Any]) -> None:
            return None

    with watch(sessionmaker())() as session:
        for wrong in (Nothing(), Demand(), "me"):
            with pytest.raises(ConfigurationError, match=r"self\.values = |is no demand"):
                demand(session, wrong)  # type: ignore[arg-type]


def test_a_session_that_nobody_watches_is_refused() -> None:
    with Session() as session, pytest.raises(ConfigurationError, match=r"optilock\.watch"):
        demand(session, Holder("me"))


def test_what_is_no_part_is_refused_as_an_option(filled: Engine) -> None:
    with pytest.raises(ConfigurationError, match="which is no part"):
        UnitOfWork(filled, parts=["me"])  # type: ignore[list-item]
