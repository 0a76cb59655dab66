"""Whether the text of a statement writes, or ends a transaction.

Only the words that drivers, SQLAlchemy and optilock send are known here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Statement", "Transactions", "changes_or_locks", "is_commit", "is_end", "is_write"]

_FLAGS = re.IGNORECASE | re.DOTALL
_BEGIN = re.compile(r"\s*(BEGIN(?!\s+NOT\s+ATOMIC)|START\s+TRANSACTION)\b", _FLAGS)
#: By itself, or behind other statements of one text.
_COMMIT = re.compile(
    r"\s*((XA\s+)?COMMIT\b|END\s*;?\s*$)|.*;\s*COMMIT\s*(;\s*END\s*)?;?\s*$", _FLAGS
)
_ROLLBACK = re.compile(r"\s*ROLLBACK\b(?!\s+TO\b)", _FLAGS)
_AUTOCOMMIT = re.compile(r"\s*SET\s+AUTOCOMMIT\s*=\s*(\w+)", _FLAGS)
_WRITE = re.compile(
    r"\s*(INSERT|UPDATE|DELETE|REPLACE|MERGE)\b"
    r"|\s*(WITH|SET\s+STATEMENT|BEGIN\s+NOT\s+ATOMIC)\b.*\b(INSERT|UPDATE|DELETE)\b",
    _FLAGS,
)
#: They store nothing.
_READ = re.compile(
    r"\s*(SELECT|SET(?!\s+STATEMENT)|SHOW|BEGIN(?!\s+NOT\s+ATOMIC)|START|SAVEPOINT|RELEASE|ROLLBACK"
    r"|COMMIT|END|PRAGMA|VALUES|EXPLAIN|DISCARD|RESET)\b",
    _FLAGS,
)
_CHANGE_OR_LOCK = re.compile(r"\b(UPDATE|DELETE|FOR\s+(KEY\s+)?SHARE|LOCK\s+IN\s+SHARE)\b", _FLAGS)


def is_commit(text: str) -> bool:
    """Return whether the statement is, or ends in, COMMIT."""
    return _COMMIT.match(text) is not None


def is_end(text: str) -> bool:
    """Return whether the statement ends a transaction."""
    return is_commit(text) or _ROLLBACK.match(text) is not None


def is_write(text: str) -> bool:
    """Return whether the statement inserts, changes or deletes rows."""
    return _WRITE.match(text) is not None


def changes_or_locks(text: str, tables: tuple[str, ...]) -> bool:
    """Return whether the statement changes, deletes or locks rows of one of the tables."""
    if _CHANGE_OR_LOCK.search(text) is None:
        return False
    return any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) for name in tables)


@dataclass(frozen=True)
class Statement:
    """A statement on its way to the database."""

    text: str
    #: It stores what a transaction has written: COMMIT, or a write outside of one.
    stores: bool
    #: The same for all statements of a transaction.
    transaction: object

    def changes_or_locks(self, tables: tuple[str, ...]) -> bool:
        """Return whether it changes, deletes or locks rows of one of the tables."""
        return changes_or_locks(self.text, tables)


class Transactions:
    """The transactions of one connection, as its statements begin and end them."""

    def __init__(self) -> None:
        self._begun = self._written = False
        self._autocommit = True
        self._transaction = object()

    def statement(self, text: str, *, alone: bool | None = None) -> Statement:
        """Return what the next statement is, and note what it begins or ends.

        ``alone``: it commits itself; by default the statements so far decide.
        """
        if alone is None:
            alone = self._autocommit and not self._begun
        commit, write = is_commit(text), is_write(text)
        if alone:
            self._written, stores = write, write
        else:
            self._written |= write or not _READ.match(text)
            stores = commit and self._written
        statement = Statement(text, stores, self._transaction)
        if alone or is_end(text):
            self._transaction, self._begun, self._written = object(), False, False
        if _BEGIN.match(text):
            self._begun = not commit
        if (mode := _AUTOCOMMIT.match(text)) is not None:
            self._autocommit = mode[1].lower() not in ("0", "off", "false")
        return statement
