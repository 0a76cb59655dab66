"""The SQL that finds rows by their keys on MariaDB."""

from __future__ import annotations

from sqlalchemy import Column, Integer, MetaData, Table, create_mock_engine
from sqlalchemy.dialects import mysql

from optilock.dialects.mariadb.rows import at_keys, delete_at

DIALECT = create_mock_engine("mysql+pymysql://", print).dialect


def table_of(width, name="rows", schema=None):
    columns = (Column(f"k{n}", Integer, primary_key=True) for n in range(width))
    return Table(name, MetaData(), *columns, schema=schema)


def lists_in(found):
    return str(found.compile(dialect=mysql.dialect())).count(" IN ")


def test_a_list_is_shorter_than_what_the_server_makes_a_table_of():
    """It counts values: a key of two columns counts as two."""
    (one,), two = table_of(1).columns, list(table_of(2).columns)

    assert lists_in(at_keys([one], [(n,) for n in range(999)])) == 1
    assert lists_in(at_keys([one], [(n,) for n in range(1000)])) == 2
    assert lists_in(at_keys(two, [(n, n) for n in range(499)])) == 1
    assert lists_in(at_keys(two, [(n, n) for n in range(500)])) == 2


def test_a_delete_names_its_table_twice_and_the_index_once():
    table = table_of(1, name="50% :of `it`", schema="some where")
    sent = str(delete_at(table, list(table.columns), [(1,)]).compile(dialect=DIALECT))
    name = "`some where`.`50%% :of ``it```"

    assert sent.startswith(f"DELETE {name} FROM {name} FORCE INDEX (PRIMARY) WHERE {name}.k0 IN")
