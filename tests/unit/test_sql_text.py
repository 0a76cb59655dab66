"""What the search of SQL text for writes of versioned tables finds, and leaves alone."""

from __future__ import annotations

import pytest

from optilock.guard.statements.sql_text import written_unversioned
from tests.models import Account

FOUND = [
    "UPDATE accounts SET owner = 'x'",
    "UPDATE accounts AS a SET owner = 'version'",
    'update "public"."accounts" set owner = 1',
    "UPDATE OR REPLACE accounts SET owner = 1",
    "UPDATE LOW_PRIORITY IGNORE `accounts` SET owner = 1",
    "UPDATE tags JOIN accounts ON accounts.id = tags.id SET accounts.owner = 1",
    "UPDATE tags t, accounts AS a SET t.name = 1, a.owner = 1",
    "WITH q AS (UPDATE accounts SET owner = 1 RETURNING id) SELECT * FROM q",
    "UPDATE tags SET name = 1; DELETE FROM accounts",
    "DELETE QUICK FROM accounts",
    "DELETE FROM ONLY accounts",
    "DELETE accounts FROM accounts JOIN tags ON 1",
    "DELETE a FROM tags JOIN accounts AS a ON 1",
    "DELETE FROM a USING accounts a JOIN tags",
    "REPLACE accounts (id) VALUES (1)",
    "REPLACE LOW_PRIORITY INTO accounts (id) VALUES (1)",
    "INSERT OR REPLACE INTO accounts (id) VALUES (1)",
    "INSERT accounts (id) VALUES (1) ON DUPLICATE KEY UPDATE owner = 1",
    "INSERT OR IGNORE INTO accounts (id) VALUES (1) ON CONFLICT DO UPDATE SET owner = 1",
    "LOAD DATA INFILE 'x' REPLACE INTO TABLE accounts",
    "MERGE INTO accounts USING tags ON 1 = 1 WHEN MATCHED THEN UPDATE SET owner = 1",
    "TRUNCATE tags, accounts",
]
PASSING = [
    "SELECT * FROM accounts FOR NO KEY UPDATE OF accounts NOWAIT",
    "SELECT truncate, replace(owner, 'a', 'b') FROM accounts",
    "-- UPDATE accounts SET owner = 1\nSELECT 1",
    "INSERT INTO accounts (id) VALUES (1) ON CONFLICT DO NOTHING",
    "UPDATE accounts SET owner = 'x', version = version + 1",
    "DELETE FROM accounts WHERE version = 3 AND id = 1",
    "UPDATE tags JOIN accounts ON accounts.id = tags.id SET tags.name = accounts.owner",
    "UPDATE tags SET name = 1 FROM accounts WHERE accounts.id = tags.id",
    "DELETE FROM tags WHERE id IN (SELECT id FROM accounts)",
    "DELETE t FROM tags AS t JOIN accounts AS a ON 1",
    "INSERT INTO tags (id) SELECT id FROM accounts ON CONFLICT (id) DO UPDATE SET name = 1",
    "CREATE TRIGGER t BEFORE UPDATE ON accounts FOR EACH ROW EXECUTE FUNCTION f()",
    "ALTER TABLE x ADD FOREIGN KEY (a) REFERENCES accounts (id) ON UPDATE CASCADE",
    "GRANT INSERT, DELETE, UPDATE ON accounts TO joe",
    "COMMENT ON TABLE accounts IS 'delete from accounts'",
]


@pytest.mark.parametrize("sql", FOUND)
def test_a_text_that_writes_a_versioned_table_without_its_version_is_found(sql):
    assert [(name, column) for name, _, column in written_unversioned(sql)] == [
        ("accounts", Account.__table__.c.version)
    ]


@pytest.mark.parametrize("sql", PASSING)
def test_a_text_that_does_not_passes(sql):
    assert not list(written_unversioned(sql))
