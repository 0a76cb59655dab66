"""What the text of a statement says of it, for the faults of optilock.testing."""

from __future__ import annotations

import pytest

from optilock.testing.sql_texts import Transactions, is_commit, is_end, is_write


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("COMMIT", (True, True, False)),
        ("commit;", (True, True, False)),
        ("END", (True, True, False)),
        ("XA COMMIT 'a'", (True, True, False)),
        ("COMMIT PREPARED 'a'", (True, True, False)),
        ("INSERT INTO t VALUES (1); COMMIT", (True, True, True)),
        ("BEGIN NOT ATOMIC INSERT INTO t VALUES (1); COMMIT; END", (True, True, True)),
        ("BEGIN NOT ATOMIC INSERT INTO t VALUES (1); END", (False, False, True)),
        ("ROLLBACK", (False, True, False)),
        ("ROLLBACK TO SAVEPOINT a", (False, False, False)),
        ("UPDATE t SET a = 'COMMIT'", (False, False, True)),
        ("WITH x AS (SELECT 1) UPDATE t SET a = 1", (False, False, True)),
        ("SET STATEMENT lock_wait_timeout=0 FOR INSERT INTO t VALUES (1)", (False, False, True)),
        ("SELECT * FROM t FOR UPDATE", (False, False, False)),
    ],
)
def test_commit_rollback_and_writes_are_known_by_their_words(text, found):
    assert (is_commit(text), is_end(text), is_write(text)) == found


@pytest.mark.parametrize(
    ("sent", "stores"),
    [
        (["BEGIN", "UPDATE t SET a = 1", "COMMIT"], [2]),
        (["BEGIN", "SELECT 1", "COMMIT", "BEGIN", "DELETE FROM t", "COMMIT"], [5]),
        (["BEGIN", "DELETE FROM t", "ROLLBACK", "BEGIN", "SELECT 1", "COMMIT"], []),
        (["SELECT 1", "UPDATE t SET a = 1", "UPDATE t SET a = 2"], [1, 2]),
        (["SET AUTOCOMMIT = 0", "UPDATE t SET a = 1", "COMMIT", "SELECT 1", "COMMIT"], [2]),
        (["SET AUTOCOMMIT = 0", "SET AUTOCOMMIT = 1", "UPDATE t SET a = 1"], [2]),
        (["BEGIN", "INSERT INTO t VALUES (1); COMMIT", "UPDATE t SET a = 1"], [1, 2]),
        (["BEGIN NOT ATOMIC INSERT INTO t VALUES (1); COMMIT; END"], [0]),
    ],
)
def test_what_stores_is_the_commit_of_a_write_or_a_write_outside_of_a_transaction(sent, stores):
    line = Transactions()
    found = [number for number, text in enumerate(sent) if line.statement(text).stores]
    assert found == stores


def test_the_statements_of_a_transaction_have_it_in_common():
    line = Transactions()
    found = [
        line.statement(text).transaction
        for text in ("BEGIN", "SELECT 1", "UPDATE t SET a = 1", "COMMIT", "BEGIN", "SELECT 1")
    ]
    assert found[1] is found[2] is found[3]
    assert found[5] is not found[3]
