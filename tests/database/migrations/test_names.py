"""Any name that the database takes works in SQL text that is made from it."""

from __future__ import annotations

import pytest
from sqlalchemy import Column, Integer, MetaData, String, Table, delete, inspect
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

from optilock import Versioned, leases, shares, unit_of_work, watch
from optilock.dialects import database_of
from optilock.leases import Leasable, Name, Names
from optilock.queue import Queue
from optilock.rollout import roll_out
from optilock.tables import names as tables
from optilock.tables import table_set
from optilock.tables.names import scopes
from optilock.tokens import Counter
from tests.support.migrating import migrate

NAMES = (
    "a:b::c/*d",
    "a*/b;c--d",
    "a\\b",
    "a\\'b c",
    'a"b`c',
    "a%b%(c)s",
    "a{$ $optilock$",
    "Ü漢",
    "x" * 61,
)


@pytest.mark.parametrize("name", NAMES)
def test_tables_and_columns_of_any_name_get_versions_and_triggers(engine, name):
    table, version = f"{name}t", Counter(column=f"{name}v")
    metadata = MetaData()
    Table(table, metadata, Column("id", Integer, primary_key=True), Column(name, String(9)))
    metadata.create_all(engine)
    try:
        roll_out(engine, table, token=version)
        for policy in ("bump", "reject"):
            migrate(
                engine,
                lambda op, p=policy: op.create_guard_trigger(table, version, p, ignore=[name]),
            )
        migrate(engine, lambda op: op.drop_guard_trigger(table, version, "reject"))
        migrate(engine, lambda op: op.drop_version_column(table, version))
        migrate(engine, lambda op: op.add_version_column(table, version))
        name_of = database_of(engine.dialect).tables.name_reflected
        found = {name_of(one["name"]) for one in inspect(engine).get_columns(table)}
        assert f"{name}v" in found
    finally:
        metadata.drop_all(engine)


@pytest.mark.parametrize("name", NAMES)
def test_a_queue_has_a_table_of_any_name(engine, name):
    migrate(engine, lambda op: op.create_optilock_tables("queue", revision=1, table=name))
    try:
        with Queue(engine, name, table=name) as queue:
            sent = queue.send({"n": 1}, group=name, dedup=name)
            assert queue.send({"n": 1}, dedup=name).duplicate
            assert [one.id for one in queue.peek()] == [sent.id]
            [message] = queue.receive()
            queue.delete(message)
    finally:
        migrate(engine, lambda op: op.drop_optilock_tables("queue", revision=1, table=name))


@pytest.mark.parametrize("name", NAMES)
def test_a_trigger_makes_the_key_of_a_scope_that_a_session_makes(engine, name):
    """Of the table's name, and of its columns'."""

    class Base(DeclarativeBase):
        pass

    class Thing(Versioned, Base):
        __tablename__ = f"{name}t"
        __version_guard__ = "bump"
        __version_scopes__ = ("place", ())
        id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
        place: Mapped[int] = mapped_column(name)

    table = Thing.__table__
    scopes.create(engine, checkfirst=True)
    Base.metadata.create_all(engine)
    try:
        with watch(sessionmaker(engine)).begin() as session:
            session.add(Thing(id=1, place=7))
        with engine.begin() as connection:
            kept = {one.scope: one.version for one in connection.execute(scopes.select())}
            connection.execute(delete(table))
            found = {one.scope: one.version for one in connection.execute(scopes.select())}
        assert found.keys() == kept.keys()
        assert all(found[key] > kept[key] for key in kept)
    finally:
        Base.metadata.drop_all(engine)
        scopes.drop(engine)


@pytest.mark.parametrize("name", NAMES)
def test_leases_shares_and_tokens_have_any_name(engine, name):
    """And so have a leased row's table and column, and a table of names."""

    class Base(DeclarativeBase):
        pass

    class Desk(Leasable, Versioned, Base):
        __tablename__ = f"{name}t"
        id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
        text: Mapped[str] = mapped_column(name, String(9))

    names = tables.leases.to_metadata(MetaData(), name=name)
    made = [Base.metadata, names.metadata]
    made += [table_set(one).tables for one in ("leases", "shares", "commit_tokens")]
    for metadata in made:
        metadata.create_all(engine)
    try:
        sessions = watch(sessionmaker(engine))
        with sessions.begin() as session:
            session.add(Desk(id=1, text="a"))
        of_table = Name("a", Names(table=name))
        for leased in (lambda session: session.get_one(Desk, 1), Name(name), of_table):
            with sessions.begin() as session:
                target = leased(session) if callable(leased) else leased
                lease = leases.acquire(session, target, 30)
            with sessions.begin() as session:
                lease = leases.renew(session, lease)
                leases.release(session, lease)
        with sessions.begin() as session:
            handle = shares.open(session, name, "RW", share="R", seconds=30)
        with sessions.begin() as session:
            assert list(shares.names(session)) == [name]
            with pytest.raises(shares.SharingViolation):
                shares.open(session, name, "W", share="R", seconds=30)
            shares.close(session, handle)
        ran = []

        @unit_of_work(sessions, exactly_once=lambda key: key)
        def once(session, key):
            ran.append(key)
            return key

        assert [once(name), once(name)] == [name, name]
        assert ran == [name]
    finally:
        for metadata in made:
            metadata.drop_all(engine)
