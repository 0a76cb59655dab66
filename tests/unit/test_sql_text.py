"""What the search of SQL text for writes of versioned tables finds, and leaves alone."""

from __future__ import annotations

import re

import pytest
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from optilock import Versioned
from optilock._watched.statements.sql_text import (
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


class Word(Versioned, Base):
    """Its table is found in quotes alone."""

    __tablename__ = "select"
    id: Mapped[int] = mapped_column(primary_key=True)


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
    "MERGE INTO coffers USING tags ON 1 = 1 WHEN MATCHED THEN UPDATE SET version = 2",
    # The version of the new row, and of the answer, neither compares nor moves the stored one.
    "INSERT INTO coffers (id, version) VALUES (1, 1) ON CONFLICT (id) DO UPDATE SET owner = 1",
    "INSERT INTO coffers (id, version) VALUES (1, 1) ON DUPLICATE KEY UPDATE owner = 1",
    "REPLACE INTO coffers (id, version) VALUES (1, 1)",
    "INSERT OR REPLACE INTO coffers (id, version) VALUES (1, 1)",
    "LOAD DATA INFILE 'x' REPLACE INTO TABLE coffers (id, version)",
    "MERGE INTO coffers USING tags ON 1 = 1 WHEN NOT MATCHED THEN INSERT (id, version)"
    " VALUES (1, 1) WHEN MATCHED THEN UPDATE SET owner = 1",
    "UPDATE coffers SET owner = 1 RETURNING id, version",
    "WITH q AS (UPDATE coffers SET owner = 1 RETURNING version) SELECT 1 FROM q",
    "UPDATE tags SET version = 1; DELETE FROM coffers",
    "UPDATE ONLY (coffers) SET owner = 1",
    "UPDATE store.main.coffers SET owner = 1",
    "EXPLAIN ANALYZE UPDATE coffers SET owner = 1",
    "EXPLAIN (ANALYZE, BUFFERS) DELETE FROM coffers",
    "ANALYZE FORMAT=JSON UPDATE coffers SET owner = 1",
    "SET STATEMENT max_statement_time = 1 FOR UPDATE coffers SET owner = 1",
    "BEGIN NOT ATOMIC WHILE @a DO UPDATE coffers SET owner = 1; END WHILE; END",
    "COMMENT ON TABLE tags IS 'x'; UPDATE coffers SET owner = 1",
    "CREATE TRIGGER t AFTER UPDATE ON tags BEGIN DELETE FROM tags; END; DELETE FROM coffers",
    "CREATE FUNCTION f() RETURNS int AS $$ x; $$ LANGUAGE sql; DELETE FROM coffers",
    "ALTER TABLE coffers TRUNCATE PARTITION p0",
    "TRUNCATE tags, coffers",
]
PASSING = [
    "SELECT * FROM coffers FOR NO KEY UPDATE OF coffers NOWAIT",
    "SELECT truncate, replace(owner, 'a', 'b') FROM coffers",
    "-- UPDATE coffers SET owner = 1\nSELECT 1",
    "INSERT INTO coffers (id) VALUES (1) ON CONFLICT DO NOTHING",
    "UPDATE coffers SET owner = 'x', version = version + 1",
    "UPDATE coffers SET owner = 'x', version = version + 1 RETURNING owner",
    "INSERT INTO coffers (id, version) VALUES (1, 1) ON CONFLICT (id)"
    " DO UPDATE SET owner = 1, version = coffers.version + 1",
    "INSERT INTO coffers VALUES (1, 1) ON DUPLICATE KEY UPDATE version = version + 1",
    "MERGE INTO coffers USING tags ON 1 = 1 WHEN MATCHED THEN UPDATE SET version = version + 1"
    " WHEN NOT MATCHED THEN INSERT (id, version) VALUES (1, 1)",
    "MERGE INTO coffers USING tags ON coffers.version = 1 WHEN MATCHED THEN UPDATE SET owner = 1",
    "MERGE INTO coffers USING tags ON 1 = 1 WHEN NOT MATCHED THEN INSERT (id, version)"
    " VALUES (1, 1)",
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
    "CREATE TRIGGER t AFTER INSERT ON tags BEGIN UPDATE coffers SET owner = 1; END",
    "CREATE TRIGGER t AFTER INSERT ON tags BEGIN UPDATE coffers SET owner ="
    " CASE WHEN new.id THEN 1 END; DELETE FROM coffers; END; SELECT 1",
    "CREATE OR REPLACE DEFINER=`a`@`b` TRIGGER t AFTER UPDATE ON tags FOR EACH ROW"
    " UPDATE coffers SET owner = 1",
    "CREATE PROCEDURE p() BEGIN IF 1 THEN UPDATE coffers SET owner = 1; END IF; END",
    "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC UPDATE coffers SET owner = 1; SELECT 1; END",
    "CREATE RULE r AS ON UPDATE TO t DO ALSO (UPDATE coffers SET owner = 1; DELETE FROM coffers)",
    'CREATE VIEW v AS SELECT id, owner AS "update coffers" FROM coffers',
    'SELECT owner AS "delete from coffers" FROM coffers',
    "PREPARE q AS UPDATE coffers SET owner = 1",
    "EXPLAIN UPDATE coffers SET owner = 1",
    "EXPLAIN QUERY PLAN DELETE FROM coffers",
    "GRANT UPDATE, DELETE ON coffers TO joe",
    "ALTER DEFAULT PRIVILEGES GRANT UPDATE ON TABLES TO joe",
    "CREATE POLICY p ON coffers FOR UPDATE USING (true)",
    "UPDATE (SELECT 1 AS id) AS q JOIN tags ON tags.id = q.id SET tags.name = 1",
    "COPY coffers (id) FROM STDIN",
    "COPY coffers TO STDOUT",
    "LOAD DATA INFILE 'x' INTO TABLE coffers",
    "CREATE TABLE x (a int REFERENCES coffers ON UPDATE CASCADE ON DELETE SET NULL)",
]


@pytest.mark.parametrize("sql", FOUND)
def test_a_text_that_writes_a_versioned_table_without_its_version_is_found(sql):
    assert [(name, column) for name, _, column in unversioned_writes(sql)] == [
        ("coffers", Coffer.__table__.c.version)
    ]


@pytest.mark.parametrize(
    "sql", [one for one in FOUND if not re.search("DELETE[^;]*$|TRUNCATE", one)]
)
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
        "COPY coffers (id) FROM STDIN",
        "LOAD DATA INFILE 'x' INTO TABLE coffers",
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


# -- each database reads literals, comments and names in its own way -------------------------------

SQLITE, POSTGRESQL, MARIADB = sqlite.dialect(), postgresql.dialect(), mysql.dialect()
ANSI = mysql.dialect()
ANSI.identifier_preparer = mysql.dialect.preparer(ANSI, server_ansiquotes=True)
WRITE = "UPDATE coffers SET owner = 1"
HIDDEN = [
    # What one of the others would take for a literal or a comment, and this one does not.
    (SQLITE, rf"WITH a AS (SELECT '\') {WRITE} WHERE id <> ' '"),
    (SQLITE, f"SELECT 1 # ;\n; {WRITE}"),
    (SQLITE, f"/* a /* b */ {WRITE} -- */"),
    (SQLITE, f"WITH [it's] AS (SELECT 1) {WRITE} WHERE owner <> 'x'"),
    (SQLITE, "UPDATE 'coffers' SET owner = 1"),
    (SQLITE, "UPDATE coffers SET owner = 'version'"),
    (POSTGRESQL, rf"WITH a AS (SELECT E'it\'s') {WRITE} WHERE owner <> ' '"),
    (POSTGRESQL, rf"WITH a AS (SELECT '\') {WRITE} WHERE owner <> ' '"),
    (POSTGRESQL, f"WITH a AS (SELECT $$it's$$) {WRITE} WHERE owner <> ' '"),
    (POSTGRESQL, f"WITH a AS (SELECT $q$ $$ ' $q$) {WRITE} WHERE owner <> ' '"),
    (POSTGRESQL, f"WITH a AS (SELECT x['a]'] FROM y) {WRITE} WHERE owner <> ']'"),
    (POSTGRESQL, f"SELECT 1 # 2; {WRITE}"),
    (POSTGRESQL, f"{WRITE} /* /* */ WHERE version = 3 */"),
    (POSTGRESQL, f"{WRITE} --WHERE version = 3"),
    (MARIADB, rf"SELECT 'it\'s'; {WRITE} WHERE owner <> ' '"),
    (MARIADB, f"/*!50000 {WRITE} */"),
    (MARIADB, f"/*M! {WRITE} */"),
    (MARIADB, f"SELECT 1--1; {WRITE}"),
    (MARIADB, f"{WRITE} # WHERE version = 3"),
    (MARIADB, f"{WRITE} -- WHERE version = 3"),
    (MARIADB, f'{WRITE} WHERE owner = "version"'),
    (MARIADB, f'SELECT "it\'s"; {WRITE} WHERE owner <> " "'),
    (ANSI, f'WITH "it\'s" AS (SELECT 1) {WRITE} WHERE owner <> 2'),
]
SHOWN = [
    (SQLITE, f'{WRITE} WHERE "version" = 3'),
    (SQLITE, f"{WRITE} WHERE [version] = 3"),
    (POSTGRESQL, f"{WRITE} WHERE a #>> '{{b}}' = 'c' AND \"version\" = 3"),
    (POSTGRESQL, r"UPDATE coffers SET owner = 'C:\\' WHERE owner <> ' ' AND version = 3"),
    (POSTGRESQL, f"SELECT $$ {WRITE} $$"),
    (POSTGRESQL, f"/* /* */ {WRITE} */ SELECT 1"),
    (MARIADB, f"SELECT 1 # {WRITE}"),
    (MARIADB, f"{WRITE} WHERE `version` = 3"),
    (ANSI, f'{WRITE} WHERE "version" = 3'),
]


@pytest.mark.parametrize(("dialect", "sql"), HIDDEN)
def test_a_write_is_found_behind_a_literal_or_a_comment(dialect, sql):
    assert [name for name, _, _ in unversioned_writes(sql, dialect)] == ["coffers"]


@pytest.mark.parametrize(("dialect", "sql"), SHOWN)
def test_what_the_database_takes_for_no_write_or_for_the_version_passes(dialect, sql):
    assert not list(unversioned_writes(sql, dialect))


@pytest.mark.parametrize("sql", [sql for _, sql in HIDDEN])
def test_where_the_database_is_unknown_a_text_is_read_as_each_of_them_reads_it(sql):
    assert list(unversioned_writes(sql))


@pytest.mark.parametrize(
    ("dialect", "sql"),
    [
        (POSTGRESQL, "DO LANGUAGE plpgsql $$ BEGIN DELETE FROM coffers; END $$"),
        (POSTGRESQL, "PREPARE q AS DELETE FROM coffers; EXECUTE q"),
        (MARIADB, "EXECUTE IMMEDIATE 'DELETE FROM coffers'"),
        (MARIADB, "BEGIN NOT ATOMIC IF 1 THEN CALL empty_all(); END IF; END"),
        (None, "SELECT 1; CALL empty_all()"),
    ],
)
def test_what_runs_code_may_write_any_table(dialect, sql):
    assert calls_code(sql, dialect)


@pytest.mark.parametrize(
    ("dialect", "sql"),
    [
        (MARIADB, "DO SLEEP(1)"),
        (POSTGRESQL, "GRANT EXECUTE ON FUNCTION f() TO joe"),
        (POSTGRESQL, "CREATE TRIGGER t AFTER INSERT ON a FOR EACH ROW EXECUTE FUNCTION f()"),
        (SQLITE, "INSERT INTO tags VALUES (1) ON CONFLICT DO UPDATE SET name = 'call x'"),
    ],
)
def test_what_runs_none_does_not(dialect, sql):
    assert not calls_code(sql, dialect)
