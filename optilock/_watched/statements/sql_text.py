"""The tables that a SQL text writes, and whether it mentions their versions.

A text is not parsed, only searched: for words such as ``UPDATE``, for the names of tables behind
them, and for the name of the version anywhere in the same statement. It does not count where it
neither compares nor moves the version of a stored row: behind ``RETURNING``, and among the columns
of the new row of an upsert or a ``MERGE``. ``REPLACE`` makes the row again, with any version.
Comments and literals do not count: :mod:`optilock.dialects.quoting` reads them as the database
does, or in every way where the database is unknown. Modifiers (``UPDATE OR REPLACE``, ``DELETE
QUICK``) and MariaDB's statements of several tables are known.

Statements that write no row are left out: what they say may be executed later, or never. These are
``CREATE``, with the body of a trigger, a function or a view, ``ALTER``, ``DROP``, ``COMMENT``,
``GRANT``, ``PREPARE``, and ``EXPLAIN`` without ``ANALYZE``. What :func:`calls_code` finds may write
any table: ``CALL``, ``EXECUTE``, and a ``DO`` block.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import DDL, Column, Dialect, TextClause, TextualSelect
from sqlalchemy.engine import Compiled
from sqlalchemy.orm import FromStatement

from optilock._mapping.tables import joined_tables, versioned_tables
from optilock._watched.statements.given_versions import COUNTED, NOT_BEFORE, is_trusted
from optilock.dialects import database_of
from optilock.dialects.quoting import EVERY, MARK, PlainText, read_each

_FLAGS = re.IGNORECASE | re.DOTALL
_NAME = rf"(?:[\w$]+|{MARK})"
_MODIFIERS = (
    r"(?:(?:ONLY|IGNORE|LOW_PRIORITY|HIGH_PRIORITY|DELAYED|QUICK|OR\s+(?:REPLACE|ROLLBACK|ABORT"
    r"|FAIL|IGNORE))\b\s*)*"
)
_TABLE = rf"(?:{_NAME}\s*\.\s*){{0,2}}(?P<table>{_NAME})"
_WRITES = re.compile(
    rf"\b(?:(?:(?P<update>UPDATE)\b|(?P<delete>DELETE)\s+{_MODIFIERS}FROM\b)\s*{_MODIFIERS}\(?\s*"
    rf"|(?P<insert>REPLACE|INSERT|MERGE)\b\s*{_MODIFIERS}(?:INTO\b\s*(?:TABLE\b\s*)?)?{_MODIFIERS}"
    rf"|(?P<copy>COPY)\b\s*){_TABLE}",
    re.IGNORECASE,
)
#: A look that costs little, before the long one.
_CHANGES = re.compile(r"UPDATE|REPLACE|MERGE", re.IGNORECASE)
_DELETES = re.compile(r"DELETE|TRUNCATE", re.IGNORECASE)
_RUNS = re.compile(r"\b(?:CALL|DO|EXEC|EXECUTE)\b", re.IGNORECASE)
_VERBS = ("UPDATE", "REPLACE", "MERGE")
_ADDS = re.compile(r"INSERT|COPY|LOAD", re.IGNORECASE)
_ADDED = re.compile(r"\b(?:INSERT|COPY|LOAD)\b", re.IGNORECASE)
_REPLACES = re.compile(r"\bOR\s+REPLACE\b", re.IGNORECASE)
_UPSERT = re.compile(r"\bON\s+(CONFLICT\b.*\bDO\s+UPDATE|DUPLICATE\s+KEY\s+UPDATE)\b", _FLAGS)
#: Where the name of the version says nothing of a stored row: new rows of a MERGE, and answers.
_NEW_ROW = re.compile(r"\bTHEN\s+INSERT\b.*?(?=\bWHEN\b|\Z)", _FLAGS)
#: Else a MERGE only adds rows.
_MERGED = re.compile(r"\bTHEN\s+(UPDATE|DELETE)\b", re.IGNORECASE)
_RETURNED = re.compile(r"\bRETURNING\b[^()]*", re.IGNORECASE)
_LOADED = re.compile(rf"\s*LOAD\s+(?:DATA|XML)\b.*?\bINTO\s+TABLE\s+{_TABLE}", _FLAGS)
_COPIED = re.compile(r"\s*COPY\b.*\bFROM\b", _FLAGS)
#: Several tables: the listed ones, and the part with their names and aliases.
_MANY_UPDATED = re.compile(r"\bUPDATE\b(?P<refs>.*?)\bSET\b(?P<targets>.*)", _FLAGS)
_MANY_DELETED = re.compile(r"\bDELETE\b(?P<targets>.*?)\b(?P<by>FROM|USING)\b(?P<refs>.*)", _FLAGS)
_TRUNCATED = re.compile(
    r"\s*(?:TRUNCATE\b|ALTER\b[^(]*\bTABLE\b(?=.*\bTRUNCATE\s+PARTITION\b))(?P<targets>.*)", _FLAGS
)
#: Behind these words the text goes on with a statement.
_CODE = re.compile(
    r"(?:^|\b(?:BEGIN|ATOMIC|THEN|ELSE|DO|LOOP|REPEAT)\b)\s*(?:CALL|EXEC|EXECUTE)\b"
    r"|^\s*DO\s*(?:LANGUAGE\s+\w+\s*)*$",
    re.IGNORECASE,
)
#: Words behind a verb that are no names without quotes: ``FOR UPDATE OF``, ``UPDATE (SELECT …)``.
_NO_TABLES = frozenset(
    [
        "of",
        "nowait",
        "skip",
        "wait",
        "set",
        "limit",
        "cascade",
        "restrict",
        "no",
        "select",
        "values",
        "with",
    ]
)

# -- statements that write no row ------------------------------------------------------------------

_OTHER_VERB = re.compile(
    r"\s*(?:COMMENT|GRANT|REVOKE|PREPARE|DROP|SHOW|ALTER(?!.*\bTRUNCATE\s+PARTITION\b)"
    r"|(?:EXPLAIN|DESCRIBE|DESC)\b(?!.*\bANALYZE\b)"
    r"|CREATE\s+(?!(?:\w+\s+){0,4}?TABLE\b|(?:OR\s+REPLACE\s+)?MATERIALIZED\b))\b",
    _FLAGS,
)
_STORED = re.compile(
    r"\s*CREATE\b[^;(]*?\b(?:TRIGGER|FUNCTION|PROCEDURE|EVENT|PACKAGE|RULE)\b", _FLAGS
)
_STEPS = re.compile(
    r"[;()]|\b(?:BEGIN|CASE|(?P<other>END\s+(?:IF|LOOP|WHILE|REPEAT|FOR))|END(?:\s+CASE)?)\b",
    re.IGNORECASE,
)
_FOR_STATEMENT = re.compile(r"\s*SET\s+STATEMENT\b.*?\bFOR\b", _FLAGS)


#: The columns that a statement sets, up to the ``=``: one, or some in brackets.
_ASSIGNED = re.compile(
    rf"(?P<begin>\bSET\b|\bUPDATE\b(?=[^=]*=)|,)\s*(?P<names>\([^()]*\)|(?:{_NAME}\s*\.\s*)*{_NAME})\s*=",
    re.IGNORECASE,
)
#: Where the value of one column ends.
_VALUE_ENDS = re.compile(
    r"[(),]|\b(?:CASE|END|WHERE|FROM|RETURNING|WHEN|ORDER|LIMIT)\b", re.IGNORECASE
)


def _end_of_value(text: str, at: int) -> int:
    """Return where the value of a column ends that begins at ``at``."""
    depth = 0
    for found in _VALUE_ENDS.finditer(text, at):
        word = found[0].upper()
        if word in ("(", "CASE"):
            depth += 1
        elif depth == 0:
            return found.start()
        elif word in (")", "END"):
            depth -= 1
    return len(text)


def _word(name: str) -> str:
    return re.sub(r"\W", "_", name.lower())


#: Functions that make a random version.
_CHANCE = re.compile(
    r"\b(?:gen_random_uuid|uuid\w*|rand|random|randomblob|random_bytes)\s*\(", re.IGNORECASE
)


@functools.lru_cache(maxsize=64)
def _following(own: str) -> re.Pattern[str]:
    """Return what a version after the stored one looks like; a group is the table before it."""
    stored = rf"(?:\w+\s*\.\s*)*?(?:(?P<{{}}>\w+)\s*\.\s*)?{own}\b"
    of, it = stored.format("of"), stored.format("it")
    function = rf"(?:{'|'.join(sorted(NOT_BEFORE))})\s*\(\s*{of}\s*,[^()]*\)"
    return re.compile(rf"\A[\s(]*(?:{function}|{it})\s*\+\s*[1-9]\d*[\s)]*\Z")


@dataclass(frozen=True)
class _Statement:
    """One statement of a text, without comments and literals."""

    plain: PlainText
    text: str

    def name(self, found: str) -> str:
        return self.plain.name(found)

    def guards(self, version: Column[Any], verb: str) -> bool:
        """Return whether it names the version where that can compare or move a stored row's."""
        if verb in ("TRUNCATE", "REPLACE"):
            return False
        text = self.text
        if verb == "INSERT" and (upsert := _UPSERT.search(text)) is not None:
            text = text[upsert.start() :]
        elif verb == "MERGE":
            text = _NEW_ROW.sub(" ", text)
        if verb != "DELETE" and not is_trusted(version):
            text = self._without_given(version, text)
        return self._mentions(version, _RETURNED.sub(" ", text))

    def _without_given(self, version: Column[Any], text: str) -> str:
        """Return the text without what it writes into the version, unless that makes a next one."""
        kept, at = [], 0
        for found in _ASSIGNED.finditer(text):
            if found.start() < at or not self._mentions(version, found["names"]):
                continue
            end = _end_of_value(text, found.end())
            if not self._makes_next(version, text[found.end() : end]):
                kept.append(text[at : found.end("begin")])
                at = end
        return " ".join([*kept, text[at:]])

    def _makes_next(self, version: Column[Any], value: str) -> bool:
        """Return whether a number is added to the stored version, or chance makes another."""
        if isinstance(version.type, COUNTED):
            table, own = _word(version.table.description), _word(version.name)
            found = _following(own).search(self._flat(value))
            aliased = re.search(rf"\b{table}\s+(?:as\s+)?(\w+)", self._flat(self.text))
            known = {"", table, *(aliased.groups() if aliased else ())}
            return found is not None and (found["of"] or found["it"] or "") in known
        return _CHANCE.search(value) is not None

    def _flat(self, text: str) -> str:
        """Return the text in lower case, with words instead of names in quotes."""
        return re.sub(MARK, lambda mark: _word(self.name(mark[0])), text).lower()

    def _mentions(self, version: Column[Any], text: str) -> bool:
        word = rf"(?<!\w){re.escape(version.name)}(?!\w)"
        return re.search(word, text, re.IGNORECASE) is not None or version.name.lower() in (
            self.plain.names_in(text)
        )


def _statements(sql: str, dialect: Dialect | None = None) -> Iterator[_Statement]:
    """Yield the statements that may write rows, in each way in which the text can be read."""
    quotings = EVERY if dialect is None else database_of(dialect).values.quotings(dialect)
    for plain in read_each(sql, quotings):
        for text in _split(plain.text):
            if _OTHER_VERB.match(text) is None:
                yield _Statement(plain, _FOR_STATEMENT.sub(" ", text, count=1))


def _split(text: str) -> Iterator[str]:
    """Yield the statements between semicolons; a stored body is a part of its CREATE."""
    at = 0
    while at < len(text):
        end = text.find(";", at)
        end = len(text) if end < 0 else end
        if _STORED.match(text, at) is not None:
            end = _end_of_body(text, at, end)
        yield text[at:end]
        at = end + 1


def _end_of_body(text: str, at: int, otherwise: int) -> int:
    """Return where the CREATE ends; at its first semicolon, if its blocks do not close."""
    depth = 0
    for found in _STEPS.finditer(text, at):
        word = found[0].upper()
        if word == ";":
            if depth == 0:
                return found.start()
        elif word in ("(", "BEGIN", "CASE"):
            depth += 1
        elif not found["other"]:
            depth -= 1
    return len(text) if depth == 0 else otherwise


# -- what is written -------------------------------------------------------------------------------


def unversioned_writes(
    sql: str, dialect: Dialect | None = None
) -> Iterator[tuple[str, str, Column[Any]]]:
    """Yield (table, verb, version) of each versioned table that is written without its version."""
    tables = _by_name()
    seen = set()
    for one in _statements(sql, dialect):
        for name, verb in _writes(one, tables):
            version = tables.get(name)
            if version is None or name in seen:
                continue
            if verb == "INSERT" and not _UPSERT.search(one.text):
                continue
            if verb == "MERGE" and not _MERGED.search(one.text):
                continue
            if one.guards(version, verb):
                continue
            seen.add(name)
            yield name, verb, version


def tables_changed(sql: str) -> set[str]:
    """Return the names of the versioned tables whose stored rows it may change; often none."""
    if not _CHANGES.search(sql):
        return set()
    tables = _by_name()
    return {
        name
        for one in _statements(sql)
        for name, verb in _writes(one, tables)
        if name in tables and (verb in _VERBS or (verb == "INSERT" and _UPSERT.search(one.text)))
    }


def tables_added_to(sql: str) -> set[str]:
    """Return the names of the versioned tables that get new rows from it; mostly none."""
    if not _ADDS.search(sql):
        return set()
    tables = _by_name()
    return {
        name
        for one in _statements(sql)
        for name, verb in _first(one)
        if verb == "INSERT" and name in tables
    }


def may_write(sql: str) -> bool:
    """Return whether a word changes or deletes stored rows, or runs code. A cheap check."""
    return bool(_CHANGES.search(sql) or _DELETES.search(sql) or _RUNS.search(sql))


def text_writes_rows(sql: str) -> bool:
    """Return whether a word, outside of literals, adds, changes or deletes rows, or runs code."""
    return _may_add_or_write(sql) and any(_may_add_or_write(one.text) for one in _statements(sql))


def _may_add_or_write(sql: str) -> bool:
    return bool(_ADDED.search(sql)) or may_write(sql)


def tables_written(sql: str, names: Collection[str]) -> set[str]:
    """Return those of the tables with these names whose stored rows it may change or delete."""
    return {
        name
        for one in _statements(sql)
        for name, verb in _writes(one, names)
        if name in names and (verb != "INSERT" or _UPSERT.search(one.text))
    }


def tables_deleted(sql: str, names: Collection[str]) -> set[str]:
    """Return those of the tables with these names whose rows it may delete."""
    return {
        name
        for one in _statements(sql)
        for name, verb in _writes(one, names)
        if name in names and verb in ("DELETE", "REPLACE", "MERGE")
    }


def tables_touched(sql: str, names: Collection[str]) -> set[str]:
    """Return those of the tables with these names whose rows it may add, change or delete.

    Code that it calls may write each of them.
    """
    if not (_ADDS.search(sql) or may_write(sql)):
        return set()
    if calls_code(sql):
        return set(names)
    return {name for one in _statements(sql) for name, _ in _writes(one, names) if name in names}


def sql_of(statement: Any) -> str | None:
    """Return the text of ``text()``, of ``DDL()``, or of ``columns()`` or ``from_statement()``.

    A compiled statement has a text, too.
    """
    while isinstance(statement, (TextualSelect, FromStatement)):
        statement = statement.element
    if isinstance(statement, TextClause):
        return statement.text
    if isinstance(statement, DDL):
        return statement.statement
    return statement.string if isinstance(statement, Compiled) else None


def calls_code(sql: str, dialect: Dialect | None = None) -> bool:
    """Return whether it calls a procedure, or contains code. Its changes are unknown then."""
    return _RUNS.search(sql) is not None and any(
        _CODE.search(one.text) for one in _statements(sql, dialect)
    )


def _by_name() -> dict[str, Any]:
    found: dict[str, Any] = {
        table.name.lower(): mapper.version_id_col for table, mapper in joined_tables().items()
    }
    return found | {table.name.lower(): column for table, column in versioned_tables().items()}


def _writes(one: _Statement, tables: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the names of the tables that the statement may write, each with the verb."""
    yield from _first(one)
    yield from _further(one, tables)


def _first(one: _Statement) -> Iterator[tuple[str, str]]:
    for found in _WRITES.finditer(one.text):
        name = one.name(found["table"])
        if found["copy"]:
            if _COPIED.match(one.text):
                yield name, "INSERT"
        elif found["table"].lower() not in _NO_TABLES and not _is_an_event(one.text, found):
            verb = (found["update"] or found["delete"] or found["insert"]).upper()
            replaces = verb == "INSERT" and _REPLACES.search(found[0])
            yield name, "REPLACE" if replaces else verb
    if (loaded := _LOADED.match(one.text)) is not None:
        yield one.name(loaded["table"]), "INSERT"


def _further(one: _Statement, tables: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the tables written by statements that name several tables, with the verb."""
    for found in _MANY_UPDATED.finditer(one.text):
        pairs = re.findall(rf"({_NAME})\s*\.\s*{_NAME}\s*=", found["targets"])
        set_by = {one.name(name) for name in pairs}
        for name, alias in _referred(one, found["refs"], tables):
            if set_by & {name, alias}:
                yield name, "UPDATE"
    for found in _MANY_DELETED.finditer(one.text):
        for name in _deleted_by(one, found, tables):
            yield name, "DELETE"
    if (truncated := _TRUNCATED.match(one.text)) is not None:
        for name in re.findall(_NAME, truncated["targets"]):
            yield one.name(name), "TRUNCATE"


def _deleted_by(one: _Statement, found: re.Match[str], tables: Collection[str]) -> Iterator[str]:
    targets, refs = found["targets"], found["refs"]
    if found["by"].upper() == "FROM" and not targets.strip():  # DELETE FROM a USING a, b
        targets, _, refs = re.split(r"\b(USING)\b", refs + " USING ", flags=re.I)[:3]
    named = {one.name(name) for name in re.findall(_NAME, targets)}
    return (name for name, alias in _referred(one, refs, tables) if named & {name, alias})


def _referred(one: _Statement, refs: str, tables: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the versioned tables in ``a JOIN b AS x ON …``, each with its alias or its own name."""
    for found in re.finditer(rf"({_NAME})(?:\s+(?:AS\s+)?({_NAME}))?", refs, re.I):
        name = one.name(found[1])
        if name in tables:
            yield name, one.name(found[2] or found[1])


def _is_an_event(text: str, found: re.Match[str]) -> bool:
    """Return whether it names what a foreign key does: ``ON UPDATE`` in ``CREATE TABLE``."""
    return re.search(r"\bON\s*\Z", text[: found.start()], re.I) is not None
