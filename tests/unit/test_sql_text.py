"""What the search of SQL text for writes of versioned tables finds, and leaves alone."""

from __future__ import annotations

import pytest
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from optilock import Versioned
from optilock.watched.statements.sql_text import (
    calls_code,
    tables_added_to,
    tables_changed,
    unversioned_writes,
)


class Base(DeclarativeBase):
    pass


class Coffer(Versioned, Base):
    """Found by the name of its table: no other test has one of that name."""

    __tablename__ = "coffers"
    id: Mapped[int] = mapped_column(primary_key=True)
    owner: Mapped[str]


FOUND = [
    "UPDATE coffers SET owner = 'x'",
    "UPDATE coffers AS a SET owner = 'version'",
    'update "public"."coffers" set owner = 1',
    "UPDATE OR REPLACE coffers SET owner = 1",
    "UPDATE LOW_PRIORITY IGNORE `coffers` SET owner = 1",
    "UPDATE tags JOIN coffers ON coffers.id = tags.id SET coffers.owner = 1",
    "UPDATE tags t, coffers AS a SET t.name = 1, a.owner = 1",
    "WITH q AS (UPDATE coffers SET owner = 1 RETURNING id) SELECT * FROM q",
    "UPDATE tags SET name = 1; DELETE FROM coffers",
    "DELETE QUICK FROM coffers",
    "DELETE FROM ONLY coffers",
    "DELETE coffers FROM coffers JOIN tags ON 1",
    "DELETE a FROM tags JOIN coffers AS a ON 1",
    "DELETE FROM a USING coffers a JOIN tags",
    "REPLACE coffers (id) VALUES (1)",
    "REPLACE LOW_PRIORITY INTO coffers (id) VALUES (1)",
    "INSERT OR REPLACE INTO coffers (id) VALUES (1)",
    "INSERT coffers (id) VALUES (1) ON DUPLICATE KEY UPDATE owner = 1",
    "INSERT OR IGNORE INTO coffers (id) VALUES (1) ON CONFLICT DO UPDATE SET owner = 1",
    "LOAD DATA INFILE 'x' REPLACE INTO TABLE coffers",
    "MERGE INTO coffers USING tags ON 1 = 1 WHEN MATCHED THEN UPDATE SET owner = 1",
    "TRUNCATE tags, coffers",
]
PASSING = [
    "SELECT * FROM coffers FOR NO KEY UPDATE OF coffers NOWAIT",
    "SELECT truncate, replace(owner, 'a', 'b') FROM coffers",
    "-- UPDATE coffers SET owner = 1\nSELECT 1",
    "INSERT INTO coffers (id) VALUES (1) ON CONFLICT DO NOTHING",
    "UPDATE coffers SET owner = 'x', version = version + 1",
    "DELETE FROM coffers WHERE version = 3 AND id = 1",
    "UPDATE tags JOIN coffers ON coffers.id = tags.id SET tags.name = coffers.owner",
    "UPDATE tags SET name = 1 FROM coffers WHERE coffers.id = tags.id",
    "DELETE FROM tags WHERE id IN (SELECT id FROM coffers)",
    "DELETE t FROM tags AS t JOIN coffers AS a ON 1",
    "INSERT INTO tags (id) SELECT id FROM coffers ON CONFLICT (id) DO UPDATE SET name = 1",
    "CREATE TRIGGER t BEFORE UPDATE ON coffers FOR EACH ROW EXECUTE FUNCTION f()",
    "ALTER TABLE x ADD FOREIGN KEY (a) REFERENCES coffers (id) ON UPDATE CASCADE",
    "GRANT INSERT, DELETE, UPDATE ON coffers TO joe",
    "COMMENT ON TABLE coffers IS 'delete from coffers'",
]


@pytest.mark.parametrize("sql", FOUND)
def test_a_text_that_writes_a_versioned_table_without_its_version_is_found(sql):
    assert [(name, column) for name, _, column in unversioned_writes(sql)] == [
        ("coffers", Coffer.__table__.c.version)
    ]


@pytest.mark.parametrize("sql", [sql for sql in FOUND if "DELETE" not in sql.split(";")[-1]][:-1])
def test_a_text_that_changes_stored_rows_is_found(sql):
    assert tables_changed(sql) == {"coffers"}


def test_so_is_one_that_moves_the_version():
    assert tables_changed("UPDATE coffers SET owner = 'x', version = version + 1") == {"coffers"}


@pytest.mark.parametrize("sql", [s for s in (*FOUND, *PASSING) if s.startswith("DELETE")])
def test_a_delete_changes_no_row_that_can_be_read_later(sql):
    assert not tables_changed(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO coffers (id, version) VALUES (1, 1)",
        "insert into public.coffers select * from old",
        "WITH x AS (SELECT 1) INSERT INTO coffers (id) SELECT * FROM x",
    ],
)
def test_a_text_that_adds_rows_is_found(sql):
    assert tables_added_to(sql) == {"coffers"}
    assert not tables_changed(sql)


@pytest.mark.parametrize("sql", ["SELECT 'INSERT INTO coffers'", "INSERT INTO chests VALUES (1)"])
def test_a_text_that_adds_none_is_left_alone(sql):
    assert not tables_added_to(sql)


@pytest.mark.parametrize("sql", [s for s in PASSING if "version" not in s])
def test_texts_that_change_no_row_are_left_alone(sql):
    assert not tables_changed(sql)


def test_what_calls_stored_code_may_change_anything():
    assert calls_code("/* all of it */ CALL close_the_year(2024)")
    assert calls_code("do $$ BEGIN PERFORM 1; END $$")
    assert not calls_code("INSERT INTO t (a) VALUES (1) ON CONFLICT DO NOTHING")


@pytest.mark.parametrize("sql", PASSING)
def test_a_text_that_does_not_passes(sql):
    assert not list(unversioned_writes(sql))
