"""What an operation sends: one statement, two on a miss; also without a transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import pytest
from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Engine,
    create_engine,
    make_url,
    text,
)
from sqlalchemy.orm import Mapped, Mapper, Session

from optilock import (
    ConfigurationError,
    Entry,
    OptilockError,
    PreconditionFailed,
    Versioned,
    entities,
    events,
)
from optilock.conditions import Condition, Demand
from optilock.conditions.condition import Given
from optilock.entities import Version
from optilock.errors import AlreadyExists, NotFound, NotWritten
from optilock.preconditions import entity_tags
from optilock.statements import demand
from optilock.testing import Wire, count_statements
from tests.support.entities import KINDS, Base, Visited
from tests.support.models import Account, Note, key
from tests.support.tags import tag

AUTOCOMMIT = {"isolation_level": "AUTOCOMMIT"}
#: Statements of a write with one tag, by database; two on SQLite behind a trigger, and on MariaDB
#: for what the database makes.
MORE = {
    "sqlite": {"RowVersion"},
    "mysql": {"RowVersion", "Timestamp"},
}
ONLY = {"Xmin": [pytest.mark.engines("postgresql")]} | {
    name: [pytest.mark.full] for name in ("Hash", "Native", "Tens")
}


def test_the_digest_of_a_row_is_computed_once(tables, watched, monkeypatch):
    tables(Visited)
    session, made = watched(), []
    stored = entities.insert(session, Visited, 1, {"name": "a"})

    def recorded(*args: Any, **options: Any) -> Any:
        made.append(args)
        return blake2b(*args, **options)

    monkeypatch.setattr(entity_tags, "blake2b", recorded)
    merged = entities.merge(session, Visited, 1, {"name": "b"}, if_match=stored.etag)
    assert merged.etag != stored.etag
    assert len(made) == 1


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=ONLY.get(name, [])) for name in sorted(KINDS)]
)
def test_one_statement_and_two_on_a_miss(tables, watched, engine, name):
    kind = KINDS[name]
    tables(kind)
    session = watched()
    values = {"title": "a", "body": "a"}
    first = done = entities.insert(session, kind, 1, values)
    session.commit()
    session.connection()
    usual = 2 if name in MORE.get(engine.dialect.name, ()) else 1
    sent = {}
    for write in (entities.merge, entities.replace):
        for star in (False, True):
            values = {"title": f"{star}", "body": write.__name__}
            if_match = "*" if star else done.etag
            with count_statements(engine) as counted:
                done = write(session, kind, 1, values, if_match=if_match)
            sent[write.__name__, star] = counted.count
            session.commit()
            session.connection()
    assert sent == dict.fromkeys(sent, usual)

    with count_statements(engine) as counted, pytest.raises(PreconditionFailed):
        entities.merge(session, kind, 1, values, if_match=first.etag)
    assert counted.count == 2
    with count_statements(engine) as counted, pytest.raises(NotFound):
        entities.delete(session, kind, 9, if_match=tag(kind, 9, done.version))
    assert counted.count == 2
    with count_statements(engine) as counted:
        entities.delete(session, kind, 1, if_match=done.etag)
    assert counted.count == 1
    with count_statements(engine) as counted:
        entities.insert_or_merge(session, kind, 1, values)
    assert counted.count == (usual if engine.dialect.name == "sqlite" else 1)


# -- round trips -----------------------------------------------------------------------------------


def far(line: Wire, **options: Any) -> Engine:
    """An engine by way of the line; psycopg's preparing, a trip of its own, is switched off."""
    postgresql = make_url(line.url).get_backend_name() == "postgresql"
    arguments = {"prepare_threshold": None} if postgresql else {}
    return create_engine(line.url, connect_args=arguments, **options)


@pytest.mark.needs("server")
@pytest.mark.parametrize(("options", "trips"), [({}, 3), (AUTOCOMMIT, 1)], ids=["in", "without"])
def test_three_round_trips_in_a_transaction_and_one_without(store, line, options, trips):
    store(Account(id=1, owner="a"))
    engine = far(line, **options)
    with engine.connect():
        pass  # the pool's first connection asks the server for more
    session = Session(engine)
    with line.counting() as counted:
        entities.merge(session, Account, 1, {"owner": "b"}, if_match=tag(Account, 1, 1))
        if options:
            written = counted.count
        session.commit()
    assert (written if options else counted.count) == trips
    session.close()
    engine.dispose()


# -- without a transaction -------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["engine", "connection"])
def test_nothing_needs_a_transaction(tables, database, watched_on, stored, how):
    tables(Account, Note)
    engine = database.engine(**(AUTOCOMMIT if how == "engine" else {}))
    if how == "engine":
        session = Session(engine)  # watch() refuses the engine
    else:
        session = watched_on(engine)
        session.connection(execution_options=AUTOCOMMIT)
    for cls, name in ((Account, "owner"), (Note, "text")):
        first = entities.insert(session, cls, 1, {name: "a"})
        assert stored(cls, 1)[name] == "a"
        second = entities.merge(session, cls, 1, {name: "b"}, if_match=first.etag)
        assert stored(cls, 1)[name] == "b"
        with pytest.raises(PreconditionFailed) as caught:
            entities.replace(session, cls, 1, {}, if_match=first.etag)
        assert caught.value.etag == second.etag
        third = entities.replace(session, cls, 1, {name: "c"}, if_match=[first.etag, second.etag])
        assert stored(cls, 1)["version"] == third.version
        with pytest.raises(AlreadyExists):
            entities.insert(session, cls, 1)
        entities.insert_or_merge(session, cls, 1, {name: "d"})
        entities.delete(session, cls, 1, if_match="*")
        assert stored(cls, 1) is None
        with pytest.raises(NotFound):
            entities.delete(session, cls, 1, if_match="*")
    session.close()
    engine.dispose()


@pytest.mark.engines("sqlite", "mariadb")
def test_a_version_that_has_to_be_read_afterwards_needs_one(tables, database, stored):
    """In between, another writer's version could be there."""
    kind = KINDS["RowVersion"]
    tables(kind)
    engine = database.engine(**AUTOCOMMIT)
    with Session(engine) as session:
        entities.insert(session, kind, 1, {"title": "a"})
        with pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
            entities.merge(session, kind, 1, {"title": "b"}, if_match="*")
        entities.delete(session, kind, 1, if_match=Version(1))
    assert stored(kind, 1) is None
    engine.dispose()


@pytest.mark.engines("mariadb")
def test_so_does_one_that_stays_and_is_not_named(tables, database, stored):
    tables(Visited)
    engine = database.engine(**AUTOCOMMIT)
    with Session(engine) as session:
        first = entities.insert(session, Visited, 1, {"visits": 1})
        with pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
            entities.merge(session, Visited, 1, {"visits": 2}, if_match="*")
        assert stored(Visited, 1)["visits"] == 1
        assert entities.merge(session, Visited, 1, {"visits": 3}, if_match=first.etag) == first
    engine.dispose()


def test_a_transaction_of_several_needs_one(tables, database):
    tables(Account)
    engine = database.engine(**AUTOCOMMIT)
    with Session(engine) as session, pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
        entities.transaction(session, [entities.Operation(entities.insert, Account, 1)])
    engine.dispose()


# -- what the session demands ----------------------------------------------------------------------


class Held(Versioned, Base):
    __tablename__ = "ent_held"
    id: Mapped[int] = key()
    holder: Mapped[str]
    title: Mapped[str | None]


class NotTheHolder(OptilockError):
    """Somebody else holds the row."""


@dataclass(frozen=True)
class HeldBy(Condition):
    column: Column[Any]
    exactly: bool = True

    @property
    def exact(self) -> bool:  # type: ignore[override]
        return self.exactly

    def clause(self, given: Given) -> ColumnElement[bool]:
        return self.column == given("holder", self.column.type)

    def explain(self, entry: Entry[Any]) -> Exception:
        return NotTheHolder(f"{entry.identity} is held by somebody else")


@dataclass
class Holder(Demand):
    values: Mapping[str, Any]
    exactly: bool = True

    def on(self, mapper: Mapper[Any]) -> Condition | None:
        column = mapper.columns.get("holder")
        return None if column is None else HeldBy(column, self.exactly)


@pytest.mark.parametrize("exactly", [True, False])
def test_the_demands_of_the_session_stand_in_the_statement(store, watched, stored, engine, exactly):
    store(Held(id=1, holder="me"), Held(id=2, holder="you"))
    session = watched()
    demand(session, Holder({"holder": "me"}, exactly))
    entities.merge(session, Held, 1, {"title": "mine"}, if_match=tag(Held, 1, 1))
    for operation, values in (("merge", [{"title": "b"}]), ("delete", [])):
        for if_match in (tag(Held, 2, 1), "*", [tag(Held, 2, 1), tag(Held, 2, 7)]):
            with pytest.raises(NotTheHolder):
                getattr(entities, operation)(session, Held, 2, *values, if_match=if_match)
    with pytest.raises(PreconditionFailed):  # the version first
        entities.merge(session, Held, 2, {"title": "b"}, if_match=tag(Held, 2, 7))
    with pytest.raises(ConfigurationError, match="demands something"):
        entities.insert_or_merge(session, Held, 1, {"holder": "me", "title": "b"})
    if exactly:
        with count_statements(engine) as sent:
            entities.delete(session, Held, 1, if_match=tag(Held, 1, 2))
        assert sent.count == 1
    session.commit()
    assert stored(Held, 2)["title"] is None


# -- what is told ----------------------------------------------------------------------------------


def test_a_conflict_is_an_event(store, watched):
    store(Account(id=1, owner="a"))
    told = []

    @events.listen
    def listener(event: Any) -> None:
        told.append(event)

    try:
        with pytest.raises(PreconditionFailed) as caught:
            entities.merge(watched(), Account, 1, {"owner": "b"}, if_match=tag(Account, 1, 7))
    finally:
        events.unlisten(listener)
    assert [one.entries for one in told] == [caught.value.entries]
    (entry,) = caught.value.entries
    assert dict(entry.original) == {"id": 1, "version": 7}
    assert dict(entry.changes) == {"owner": "b"}


@pytest.mark.engines("postgresql")
def test_a_rule_that_keeps_the_row_is_said(store, watched, engine):
    store(Account(id=1, owner="a"))
    with engine.begin() as connection:
        rule = "CREATE RULE keep AS ON UPDATE TO accounts DO INSTEAD NOTHING"
        connection.execute(text(rule))
    with pytest.raises(NotWritten, match="prevents the update"):
        entities.merge(watched(), Account, 1, {"owner": "b"}, if_match=tag(Account, 1, 1))


@pytest.mark.engines("mariadb")
def test_the_look_sees_what_the_snapshot_does_not_show(store, watched, other, gone):
    """At REPEATABLE READ a plain read would still find the row in the version that was demanded."""
    store(Account(id=1, owner="a"), Account(id=2, owner="a"))
    session = watched()
    session.get_one(Account, 1)
    other(Account, 1, owner="theirs")
    gone(Account, 2)
    with pytest.raises(PreconditionFailed) as caught:
        entities.merge(session, Account, 1, {"owner": "b"}, if_match=tag(Account, 1, 1))
    assert caught.value.entries[0].database["owner"] == "theirs"
    with pytest.raises(NotFound):
        entities.merge(session, Account, 2, {"owner": "b"}, if_match=tag(Account, 2, 1))


def test_a_trigger_that_is_missing_is_noticed(tables, watched, engine):
    kind = KINDS["RowVersion"]
    tables(kind)
    with engine.begin() as connection:
        _drop_trigger(connection, kind.__table__)
    session = watched()
    first = entities.insert(session, kind, 1, {"title": "a"})
    with pytest.raises(ConfigurationError, match="did not move"):
        entities.merge(session, kind, 1, {"title": "b"}, if_match=first.etag)


def _drop_trigger(connection: Connection, table: Any) -> None:
    from optilock._mapping.triggers import trigger_ddl

    for statement in trigger_ddl(table, table.c.version, connection.dialect).drop:
        connection.exec_driver_sql(statement)
