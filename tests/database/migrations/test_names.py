"""Any name that the database takes works in SQL text that is made from it."""

from __future__ import annotations

import pytest
from sqlalchemy import Column, Integer, MetaData, String, Table, inspect

from optilock.queue import Queue
from optilock.rollout import roll_out
from optilock.tables.queue import message_tables
from optilock.tokens import Counter
from tests.support.migrating import migrate

NAMES = (
    "a:b",
    "a::b",
    "a/*b",
    "a*/b",
    "a\\b",
    "a\\'b",
    'a"b',
    "a%b",
    "a%(b)s",
    "a;b",
    "a--b",
    "a{$",
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
        assert f"{name}v" in {one["name"] for one in inspect(engine).get_columns(table)}
    finally:
        metadata.drop_all(engine)


@pytest.mark.parametrize("name", NAMES)
def test_a_queue_has_a_table_of_any_name(engine, name):
    metadata = message_tables(table=name, schema=None).messages.metadata
    metadata.create_all(engine)
    try:
        with Queue(engine, "jobs", table=name) as queue:
            sent = queue.send({"n": 1})
            assert [one.id for one in queue.peek()] == [sent.id]
    finally:
        metadata.drop_all(engine)
