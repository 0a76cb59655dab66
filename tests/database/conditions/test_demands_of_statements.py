"""What a session demands of rows that a statement writes, and what is refused since nobody asks.

``tests/database/conditions/test_demands.py`` has the statements that are asked. Here are those of a
hierarchy whose classes differ, those of a listener while the session is flushing, and texts and
upserts, which are refused before they are sent.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    ForeignKey,
    bindparam,
    delete,
    event,
    insert,
    select,
    text,
    update,
)
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import Mapped, Mapper, Session, aliased, mapped_column, relationship

from optilock import ConfigurationError, Entry, OptilockError, Versioned, watch
from optilock.conditions import Condition, Demand
from optilock.conditions.condition import Given
from optilock.statements import demand
from optilock.testing import count_statements
from tests.support.models import Base, key


class NotAsDemanded(OptilockError):
    """Somebody else's row."""


@dataclass(frozen=True)
class Says(Condition):
    column: Column[Any]

    def clause(self, given: Given) -> ColumnElement[bool]:
        return self.column == given("said", self.column.type)

    def explain(self, entry: Entry[Any]) -> Exception:
        return NotAsDemanded(f"{entry.model.__name__} {entry.identity}")


class Said(Demand):
    """``said`` must be what it is in each row of these classes, in the column of that name."""

    values = {"said": "mine"}

    def __init__(self, **columns: str) -> None:
        self._columns = columns

    def on(self, mapper: Mapper[Any]) -> Condition | None:
        name = self._columns.get(mapper.class_.__name__)
        return None if name is None else Says(mapper.columns[name])


class Vessel(Versioned, Base):
    __tablename__ = "said_vessels"
    id: Mapped[int] = key()
    kind: Mapped[str]
    port: Mapped[str] = mapped_column(default="mine")
    name: Mapped[str] = mapped_column(default="")
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "vessel"}


class Ferry(Vessel):
    """Its rows are in the same table."""

    line: Mapped[str | None] = mapped_column(default="mine")
    __mapper_args__ = {"polymorphic_identity": "ferry"}


class Tanker(Vessel):
    __tablename__ = "said_tankers"
    id: Mapped[int] = mapped_column(ForeignKey(Vessel.id), primary_key=True)
    owner: Mapped[str] = mapped_column(default="mine")
    cargo: Mapped[str] = mapped_column(default="")
    __mapper_args__ = {"polymorphic_identity": "tanker"}


class Barge(Tanker):
    """Its rows are in the table of the class above, which does not say which they are."""

    __mapper_args__ = {"polymorphic_identity": "barge"}


class Plan(Versioned, Base):
    """No row is of this class itself."""

    __tablename__ = "said_plans"
    id: Mapped[int] = key()
    kind: Mapped[str]
    name: Mapped[str] = mapped_column(default="")
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_abstract": True}


class Voyage(Plan):
    __tablename__ = "said_voyages"
    id: Mapped[int] = mapped_column(ForeignKey(Plan.id), primary_key=True)
    owner: Mapped[str] = mapped_column(default="mine")
    __mapper_args__ = {"polymorphic_identity": "voyage"}


class Crew(Base):
    """Without a version."""

    __tablename__ = "said_crews"
    id: Mapped[int] = key()
    captain: Mapped[str] = mapped_column(default="mine")
    name: Mapped[str] = mapped_column(default="")


class Harbour(Versioned, Base):
    """Nothing is demanded of it."""

    __tablename__ = "said_harbours"
    id: Mapped[int] = key()
    name: Mapped[str] = mapped_column(default="")
    vessels: Mapped[list[Vessel]] = relationship(secondary="said_berths")


class Berth(Base):
    """A link, and a class of its own."""

    __tablename__ = "said_berths"
    harbour_id: Mapped[int] = mapped_column(ForeignKey(Harbour.id), primary_key=True)
    vessel_id: Mapped[int] = mapped_column(ForeignKey(Vessel.id), primary_key=True)
    tenant: Mapped[str] = mapped_column(default="mine")


OF_CLASSES = {"Vessel": "port", "Ferry": "line", "Tanker": "owner", "Barge": "owner"}
OF_CREWS = {"Crew": "captain"}


@pytest.fixture
def rows(store: Any) -> None:
    store(Vessel(id=1), Vessel(id=2), Ferry(id=3), Tanker(id=4), Barge(id=5))
    store(Crew(id=1), Crew(id=2), Harbour(id=1))


def demanding(watched: Any, **columns: str) -> Session:
    session: Session = watched()
    demand(session, Said(**columns))
    return session


def lost(engine: Any, table: str, column: str, row: int) -> None:
    """Somebody else takes it."""
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE {table} SET {column} = 'theirs' WHERE id = {row}"))


def names(engine: Any) -> list[Any]:
    with engine.connect() as connection:
        of_vessels = connection.execute(select(Vessel.__table__.c.name)).scalars().all()
        return [*of_vessels, *connection.execute(select(Crew.__table__.c.name)).scalars().all()]


# -- a hierarchy ----------------------------------------------------------------------------------

#: Whose row is lost, and in which column.
TAKEN = {
    "vessel": ("said_vessels", "port", 1),
    "ferry": ("said_vessels", "line", 3),
    "tanker": ("said_tankers", "owner", 4),
    "barge": ("said_tankers", "owner", 5),
}
#: What one class demands is no matter for the others.
NO_MATTER = [("said_vessels", "port", 3), ("said_vessels", "line", 1), ("said_vessels", "port", 4)]
VESSELS = {
    "class": lambda session: session.execute(update(Vessel).values(name="new")),
    "table": lambda session: session.execute(update(Vessel.__table__).values(name="new")),
    "connection": lambda session: session.connection().execute(
        update(Vessel.__table__).values(name="new")
    ),
    "rows": lambda session: session.connection().execute(
        update(Vessel.__table__).where(Vessel.id == bindparam("row")).values(name="new"),
        [{"row": row} for row in (1, 2, 3, 4, 5)],
    ),
    "by-key": lambda session: session.execute(
        update(Vessel), [{"id": row, "version": 1, "name": "new"} for row in (1, 2, 3, 4, 5)]
    ),
}
vessels = pytest.mark.parametrize("way", VESSELS)


@vessels
@pytest.mark.parametrize("whose", TAKEN)
def test_each_row_is_asked_what_is_demanded_of_its_own_class(rows, watched, engine, way, whose):
    session = demanding(watched, **OF_CLASSES)
    lost(engine, *TAKEN[whose])
    with pytest.raises(NotAsDemanded, match=whose.title()):
        VESSELS[way](session)
    session.commit()
    assert "new" not in names(engine)


@vessels
def test_a_row_is_not_asked_what_is_demanded_of_other_classes(rows, watched, engine, way):
    session = demanding(watched, **OF_CLASSES)
    for one in NO_MATTER:
        lost(engine, *one)
    VESSELS[way](session)
    session.commit()
    assert names(engine)[:5] == ["new"] * 5


@vessels
def test_only_the_class_below_demands_something(rows, watched, engine, way):
    session = demanding(watched, Tanker="owner")
    for taken in (TAKEN["vessel"], TAKEN["barge"]):
        lost(engine, *taken)
    VESSELS[way](session)
    session.rollback()
    lost(engine, *TAKEN["tanker"])
    with pytest.raises(NotAsDemanded, match="Tanker"):
        VESSELS[way](session)


@pytest.mark.parametrize("of", [Plan, Plan.__table__], ids=["class", "table"])
def test_the_class_above_may_be_abstract(store, watched, engine, stored, of):
    store(Voyage(id=1), Voyage(id=2))
    lost(engine, "said_voyages", "owner", 2)
    session = demanding(watched, Voyage="owner")
    session.execute(update(of).where(Plan.id == 1).values(name="new"))
    with pytest.raises(NotAsDemanded, match=r"Voyage \(2,\)"):
        session.execute(update(of).values(name="new"))
    session.commit()
    assert (stored(Plan, 1)["name"], stored(Plan, 2)["name"]) == ("new", "")


def test_a_delete_asks_the_class_of_each_row(rows, watched, engine):
    session = demanding(watched, Ferry="line")
    lost(engine, *TAKEN["ferry"])
    for of in (Vessel, Vessel.__table__):
        with pytest.raises(NotAsDemanded, match="Ferry"):
            session.execute(delete(of).where(Vessel.id < 4))
        session.execute(delete(of).where(Vessel.id == 1))
    session.commit()
    assert len(names(engine)) == 6


@pytest.mark.parametrize("of", [Tanker, Tanker.__table__], ids=["class", "table"])
def test_where_the_table_does_not_say_whose_the_row_is_it_is_refused(rows, watched, engine, of):
    session = demanding(watched, Barge="owner")
    with (
        count_statements(engine) as sent,
        pytest.raises(ConfigurationError, match=r"not the same of Barge and Tanker: .* one state"),
    ):
        session.execute(delete(of))
    assert sent.count == 0


def test_what_all_classes_of_a_table_demand_is_asked_once(rows, watched, engine):
    """Also of a column that the rows have in another table."""
    session = demanding(watched, Tanker="port", Barge="port")
    with count_statements(engine) as sent:
        session.execute(delete(Tanker).where(Tanker.__table__.c.id < 0))
    assert len([one for one in sent.statements if one.text.startswith("SELECT")]) == 1
    session.rollback()
    lost(engine, "said_vessels", "port", 5)
    for of in (Tanker, Tanker.__table__):
        with pytest.raises(NotAsDemanded):
            session.execute(delete(of))


def test_no_demand_no_look(rows, watched, engine):
    session = watched()
    for statement in (
        update(Vessel).values(name="new"),
        update(Vessel.__table__).values(name="new"),
        delete(Crew.__table__),
        text("UPDATE said_crews SET name = 'new'"),
    ):
        session.connection()
        with count_statements(engine) as sent:
            session.execute(statement)
        assert sent.count == 1


# -- while the session is flushing ----------------------------------------------------------------


@contextmanager
def when(session: Session, target: Any, name: str, act: Callable[[Any], Any]) -> Any:
    """``act`` is called by the event, with the connection of the flush."""

    def listen(*args: Any) -> None:
        given = [one for one in args if isinstance(one, Connection)]
        act(given[0] if given else session.connection())

    event.listen(target, name, listen)
    try:
        yield
    finally:
        event.remove(target, name, listen)


MOMENTS = [(Harbour, "before_update"), (Harbour, "after_update"), (Session, "before_flush")]
moments = pytest.mark.parametrize("moment", MOMENTS, ids=lambda it: it[1])
OF_LISTENERS = {
    "class": lambda session, given: session.execute(update(Crew).values(name="new")),
    "versioned": lambda session, given: session.execute(update(Vessel).values(name="new")),
    "table": lambda session, given: session.execute(update(Crew.__table__).values(name="new")),
    "connection": lambda session, given: given.execute(update(Crew.__table__).values(name="new")),
    "rows": lambda session, given: given.execute(
        update(Crew.__table__).where(Crew.id == bindparam("row")).values(name="new"),
        [{"row": 1}, {"row": 2}],
    ),
}


@moments
@pytest.mark.parametrize("way", OF_LISTENERS)
@pytest.mark.parametrize("taken", [True, False])
def test_what_a_listener_sends_is_asked(rows, watched, engine, moment, way, taken):
    session = demanding(watched, **OF_CREWS, **OF_CLASSES)
    session.get_one(Harbour, 1).name = "edited"
    if taken:
        lost(engine, "said_crews", "captain", 2)
        lost(engine, *TAKEN["tanker"])
    target = session if moment[0] is Session else moment[0]
    with when(session, target, moment[1], lambda given: OF_LISTENERS[way](session, given)):
        if taken:
            with pytest.raises(NotAsDemanded):
                session.flush()
            session.rollback()
        else:
            session.commit()
    assert ("new" in names(engine)) is not taken


@pytest.mark.parametrize("vessel", [1, 2])
def test_a_link_that_is_a_class_as_well_is_asked(rows, store, watched, engine, vessel):
    store(Berth(harbour_id=1, vessel_id=1), Berth(harbour_id=1, vessel_id=2, tenant="theirs"))
    session = demanding(watched, Berth="tenant")
    harbour = session.get_one(Harbour, 1)
    harbour.vessels = [one for one in harbour.vessels if one.id != vessel]
    if vessel == 1:
        session.commit()
    else:
        with pytest.raises(NotAsDemanded, match="Berth"):
            session.commit()
        session.rollback()
    with engine.connect() as connection:
        left = connection.execute(select(Berth.__table__.c.vessel_id)).scalars().all()
    assert len(left) == (1 if vessel == 1 else 2)


@moments
@pytest.mark.parametrize("driver", [True, False])
def test_a_text_that_a_listener_sends_is_refused(rows, watched, engine, moment, driver):
    session = demanding(watched, **OF_CREWS)
    session.get_one(Harbour, 1).name = "edited"
    target = session if moment[0] is Session else moment[0]

    def send(given: Any) -> None:
        if driver:
            given.exec_driver_sql("UPDATE said_crews SET name = 'new'")
        else:
            given.scalar(text("UPDATE said_crews SET name = 'new'"))

    with when(session, target, moment[1], send), pytest.raises(ConfigurationError, match="SQL te"):
        session.flush()


# -- texts ----------------------------------------------------------------------------------------

WRITES = [
    "UPDATE said_crews SET name = 'new'",
    "update \"said_crews\" set name = 'new' where id = 1",
    "DELETE FROM said_crews WHERE id = 1",
    "TRUNCATE said_crews",
    "REPLACE INTO said_crews (id, captain, name) VALUES (1, 'me', 'new')",
    "INSERT INTO said_crews (id) VALUES (1) ON CONFLICT (id) DO UPDATE SET name = 'new'",
    "INSERT INTO said_crews (id) VALUES (1) ON DUPLICATE KEY UPDATE name = 'new'",
    "WITH gone AS (DELETE FROM said_crews RETURNING id) SELECT * FROM gone",
    "UPDATE said_harbours h, said_crews c SET c.name = 'new' WHERE h.id = c.id",
    "MERGE INTO said_crews USING said_harbours ON 1 = 1 WHEN MATCHED THEN DELETE",
]
TEXTS = {
    "execute": lambda session, sql: session.execute(text(sql)),
    "scalar": lambda session, sql: session.scalar(text(sql)),
    "scalars": lambda session, sql: session.scalars(text(sql)),
    "columns": lambda session, sql: session.execute(text(sql).columns(Crew.id)),
    "from_statement": lambda session, sql: session.scalars(select(Crew).from_statement(text(sql))),
    "connection": lambda session, sql: session.connection().execute(text(sql)),
    "connection-scalar": lambda session, sql: session.connection().scalar(text(sql)),
    "connection-scalars": lambda session, sql: session.connection().scalars(text(sql)),
    "driver": lambda session, sql: session.connection().exec_driver_sql(sql),
}


@pytest.mark.parametrize(
    "way",
    [
        way if way in ("execute", "driver") else pytest.param(way, marks=pytest.mark.full)
        for way in TEXTS
    ],
)
@pytest.mark.parametrize("sql", WRITES)
def test_a_text_that_writes_such_a_table_is_refused(rows, watched, engine, way, sql):
    session = demanding(watched, **OF_CREWS)
    session.connection()
    with (
        count_statements(engine) as sent,
        pytest.raises(ConfigurationError, match=r"writes the table 'said_crews', .*update\(Crew\)"),
    ):
        TEXTS[way](session, sql)
    assert sent.count == 0


@pytest.mark.parametrize("way", ["execute", "connection", "driver"])
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id FROM said_crews -- UPDATE said_crews",
        "INSERT INTO said_crews (id, captain, name) VALUES (9, 'theirs', '')",
        "UPDATE said_harbours SET version = version + 1",
        "DELETE FROM said_harbours WHERE id IN (SELECT id FROM said_crews)",
    ],
)
def test_other_texts_are_sent(rows, watched, way, sql):
    session = demanding(watched, **OF_CREWS)
    TEXTS[way](session, sql)
    session.commit()


@pytest.mark.parametrize("table", ["said_vessels", "said_tankers"])
def test_every_table_of_the_class_is_meant(rows, watched, table):
    session = demanding(watched, Barge="owner")
    with pytest.raises(ConfigurationError, match=rf"writes the table '{table}'"):
        session.execute(text(f"DELETE FROM {table}"))


def test_a_demand_that_is_made_later_counts_on_the_connection_as_well(rows, watched, engine):
    session = watched()
    connection = session.connection()
    connection.exec_driver_sql("UPDATE said_crews SET name = 'early'")
    demand(session, Said(**OF_CREWS))
    for send in (
        lambda: connection.exec_driver_sql("UPDATE said_crews SET name = 'new'"),
        lambda: connection.scalar(text("UPDATE said_crews SET name = 'new'")),
    ):
        with pytest.raises(ConfigurationError, match="said_crews"):
            send()
    session.flush()
    session.commit()
    assert not {"execute", "scalar", "exec_driver_sql"} & connection.__dict__.keys()
    assert "early" in names(engine)


def test_the_connection_is_covered_after_a_flush(rows, watched, engine):
    session = demanding(watched, **OF_CREWS)
    connection = session.connection()
    for harbour in (session.get_one(Harbour, 1), Harbour(id=2)):
        harbour.name = "edited"
        session.add(harbour)
        session.flush()
        with pytest.raises(ConfigurationError, match="said_crews"):
            connection.exec_driver_sql("UPDATE said_crews SET name = 'new'")
    session.rollback()


# -- upserts, and statements inside of others -----------------------------------------------------


def upsert(dialect: str, of: Any, **values: Any) -> Any:
    if dialect == "mysql":
        made = mysql.insert(of).values(values)
        return made.on_duplicate_key_update({name: values[name] for name in values if name != "id"})
    made = (postgresql if dialect == "postgresql" else sqlite).insert(of).values(values)
    return made.on_conflict_do_update(index_elements=["id"], set_=values)


@pytest.mark.parametrize("of", [Crew, Crew.__table__], ids=["class", "table"])
@pytest.mark.parametrize("connection", [True, False])
def test_an_upsert_is_refused(rows, watched, engine, of, connection):
    session = demanding(watched, **OF_CREWS)
    statement = upsert(engine.dialect.name, of, id=1, name="new", captain="mine")
    send = session.connection().execute if connection else session.execute
    with (
        count_statements(engine) as sent,
        pytest.raises(ConfigurationError, match="The upsert of said_crews may change a stored row"),
    ):
        send(statement)
    assert sent.count == 0
    session.execute(insert(of).values(id=7, captain="theirs", name="new"))  # nobody held it before
    session.commit()
    assert "new" in names(engine)


@pytest.mark.engines("sqlite", "postgresql")
def test_an_insert_that_leaves_stored_rows_alone_is_sent(rows, watched, engine):
    session = demanding(watched, **OF_CREWS)
    made = (postgresql if engine.dialect.name == "postgresql" else sqlite).insert(Crew)
    session.execute(made.values(id=1, name="new", captain="mine").on_conflict_do_nothing())
    session.commit()
    assert "new" not in names(engine)


@pytest.mark.engines("postgresql")
@pytest.mark.parametrize("connection", [True, False])
def test_a_statement_inside_of_another_one_is_refused(rows, watched, connection):
    session = demanding(watched, **OF_CREWS)
    send = session.connection().execute if connection else session.execute
    gone = delete(Crew.__table__).returning(Crew.__table__.c.id).cte()
    for statement in (
        select(gone),
        insert(Harbour.__table__).from_select(["id"], select(gone)),
        update(Harbour.__table__).where(Harbour.id.in_(select(gone.c.id))).values(name="new"),
    ):
        with pytest.raises(ConfigurationError, match="rows of Crew is inside of another"):
            send(statement)


@pytest.mark.engines("sqlite", "postgresql")
def test_a_change_inside_of_from_statement_is_refused(rows, watched):
    session = demanding(watched, **OF_CREWS)
    change = update(Crew).values(name="new").returning(Crew)
    with pytest.raises(ConfigurationError, match="rows of Crew is inside of another"):
        session.scalars(select(Crew).from_statement(change))
    assert len(session.scalars(change).all()) == 2


@pytest.mark.parametrize("of", [Crew.__table__.alias(), aliased(Crew)], ids=["table", "class"])
@pytest.mark.parametrize("make", [update, delete])
def test_an_alias_is_refused(rows, watched, of, make):
    session = demanding(watched, **OF_CREWS)
    statement = make(of)
    with pytest.raises(ConfigurationError, match="name said_crews itself"):
        session.execute(statement.values(name="new") if make is update else statement)


@pytest.mark.engines("mariadb")
def test_a_statement_of_two_tables_is_refused(rows, watched):
    session = demanding(watched, **OF_CREWS)
    crews, harbours = Crew.__table__, Harbour.__table__
    both = update(harbours).where(harbours.c.id == crews.c.id)
    for connection in (session, session.connection()):
        with pytest.raises(ConfigurationError, match="name said_crews itself"):
            connection.execute(both.values({crews.c.name: "new"}))
    session.execute(both.values({harbours.c.name: "new"}))


# -- async ----------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_an_async_session_is_asked_and_refused_as_well(
    async_engine: Any, async_store: Any, async_tables: Any
) -> None:
    async_tables(Harbour, Berth)
    async_store(Vessel(id=1), Tanker(id=2, owner="theirs"), Crew(id=1, captain="theirs"))
    sessions = watch(async_sessionmaker(async_engine))
    for of in (Vessel, Vessel.__table__, Crew.__table__):
        async with sessions() as session:
            demand(session.sync_session, Said(**OF_CLASSES, **OF_CREWS))
            with pytest.raises(NotAsDemanded, match=r"Tanker|Crew"):
                await session.execute(update(of).values(name="new"))
            await session.rollback()
            with pytest.raises(NotAsDemanded, match=r"Tanker|Crew"):
                await (await session.connection()).execute(update(of).values(name="new"))
            await session.rollback()
    async with sessions() as session:
        demand(session.sync_session, Said(**OF_CREWS))
        connection = await session.connection()
        for send in (
            lambda: session.execute(text(WRITES[0])),
            lambda: connection.execute(text(WRITES[0])),
            lambda: connection.exec_driver_sql(WRITES[0]),
            lambda: session.execute(upsert(async_engine.dialect.name, Crew, id=1, name="new")),
        ):
            with pytest.raises(ConfigurationError, match="said_crews"):
                await send()
        await session.rollback()
