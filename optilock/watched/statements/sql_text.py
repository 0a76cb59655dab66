"""The tables that a SQL text writes, and whether it mentions their versions.

A text is not parsed, only searched: for words such as ``UPDATE``, for the names of tables behind
them, and for the name of the version anywhere. Comments and literals do not count. Modifiers
(``UPDATE OR REPLACE``, ``DELETE QUICK``) and MariaDB's statements of several tables are known.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any

from sqlalchemy import DDL, Column, TextClause, TextualSelect
from sqlalchemy.engine import Compiled
from sqlalchemy.orm import FromStatement

from optilock.mapping.tables import joined_tables, versioned_tables

_NOISE = re.compile(r"--[^\n]*|/\*.*?\*/|'(?:[^'\\]|''|\\.)*'", re.DOTALL)
_NAME = r"(?:[\w$]+|\"(?:[^\"]|\"\")+\"|`[^`]+`|\[[^\]]+\])"
_MODIFIERS = (
    r"(?:(?:ONLY|IGNORE|LOW_PRIORITY|HIGH_PRIORITY|DELAYED|QUICK|OR\s+(?:REPLACE|ROLLBACK|ABORT"
    r"|FAIL|IGNORE))\s+)*"
)
_TABLE = rf"(?:{_NAME}\s*\.\s*)?(?P<table>{_NAME})"
_WRITES = re.compile(
    rf"\b(?:(?P<update>UPDATE)\s+{_MODIFIERS}|(?P<delete>DELETE)\s+{_MODIFIERS}FROM\s+{_MODIFIERS}"
    rf"|(?P<insert>REPLACE|INSERT|MERGE)\s+{_MODIFIERS}(?:INTO\s+(?:TABLE\s+)?)?{_MODIFIERS}){_TABLE}",
    re.IGNORECASE,
)
#: A look that costs little, before the long one.
_CHANGES = re.compile(r"UPDATE|REPLACE|MERGE", re.IGNORECASE)
_DELETES = re.compile(r"DELETE|TRUNCATE", re.IGNORECASE)
_VERBS = ("UPDATE", "REPLACE", "MERGE")
_ADDS = re.compile(r"INSERT", re.IGNORECASE)
_REPLACES = re.compile(r"\bOR\s+REPLACE\b", re.IGNORECASE)
_UPSERT = re.compile(r"\bON\s+(CONFLICT\b.*\bDO\s+UPDATE|DUPLICATE\s+KEY\s+UPDATE)\b", re.I | re.S)
#: Several tables: the listed ones, and the part with their names and aliases.
_MANY_UPDATED = re.compile(r"\bUPDATE\b(?P<refs>[^;]*?)\bSET\b(?P<targets>[^;]*)", re.I | re.S)
_MANY_DELETED = re.compile(
    r"\bDELETE\b(?P<targets>[^;]*?)\b(?P<by>FROM|USING)\b(?P<refs>[^;]*)", re.I | re.S
)
#: Code that is stored in the database, or comes with the text.
_CALLS = re.compile(r"^\s*(CALL|DO|EXEC|EXECUTE)\b", re.I)
_TRUNCATED = re.compile(r"(?:^|;)\s*TRUNCATE\b(?P<targets>[^;]*)", re.I)


def unversioned_writes(sql: str) -> Iterator[tuple[str, str, Column[Any]]]:
    """Yield (table, verb, version) of each versioned table that is written without its version."""
    text = _NOISE.sub(" ", sql)
    tables = _by_name()
    seen = set()
    for name, verb in (*_first(text), *_further(text, tables)):
        version = tables.get(name)
        if version is None or name in seen or _mentions(text, version, verb):
            continue
        if verb == "INSERT" and not _UPSERT.search(text):
            continue
        seen.add(name)
        yield name, verb, version


def tables_changed(sql: str) -> set[str]:
    """Return the names of the versioned tables whose stored rows it may change; often none."""
    if not _CHANGES.search(sql):
        return set()
    text = _NOISE.sub(" ", sql)
    tables = _by_name()
    return {
        name
        for name, verb in (*_first(text), *_further(text, tables))
        if name in tables and (verb in _VERBS or (verb == "INSERT" and _UPSERT.search(text)))
    }


def tables_added_to(sql: str) -> set[str]:
    """Return the names of the versioned tables that get new rows from it; mostly none."""
    if not _ADDS.search(sql):
        return set()
    tables = _by_name()
    added = {name for name, verb in _first(_NOISE.sub(" ", sql)) if verb == "INSERT"}
    return added & tables.keys()


def may_write(sql: str) -> bool:
    """Return whether a word changes or deletes stored rows. A cheap check."""
    return bool(_CHANGES.search(sql) or _DELETES.search(sql))


def tables_written(sql: str, names: Collection[str]) -> set[str]:
    """Return those of the tables with these names whose stored rows it may change or delete."""
    text = _NOISE.sub(" ", sql)
    return {
        name
        for name, verb in (*_first(text), *_further(text, names))
        if name in names and (verb != "INSERT" or _UPSERT.search(text))
    }


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


def calls_code(sql: str) -> bool:
    """Return whether it calls a procedure, or contains code. Its changes are unknown then."""
    return bool(_CALLS.search(_NOISE.sub(" ", sql)))


def _by_name() -> dict[str, Any]:
    found: dict[str, Any] = {
        table.name.lower(): mapper.version_id_col for table, mapper in joined_tables().items()
    }
    return found | {table.name.lower(): column for table, column in versioned_tables().items()}


def _first(text: str) -> Iterator[tuple[str, str]]:
    for found in _WRITES.finditer(text):
        if not _is_a_lock(text, found):
            verb = (found["update"] or found["delete"] or found["insert"]).upper()
            replaces = verb == "INSERT" and _REPLACES.search(found[0])
            yield _plain(found["table"]), "REPLACE" if replaces else verb


def _further(text: str, tables: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the tables written by statements that name several tables, with the verb."""
    for found in _MANY_UPDATED.finditer(text):
        set_by = {_plain(m) for m in re.findall(rf"({_NAME})\s*\.\s*{_NAME}\s*=", found["targets"])}
        for name, alias in _referred(found["refs"], tables):
            if set_by & {name, alias}:
                yield name, "UPDATE"
    for found in _MANY_DELETED.finditer(text):
        for name in _deleted_by(found, tables):
            yield name, "DELETE"
    for found in _TRUNCATED.finditer(text):
        for name in re.findall(_NAME, found["targets"]):
            yield _plain(name), "TRUNCATE"


def _deleted_by(found: re.Match[str], tables: Collection[str]) -> Iterator[str]:
    targets, refs = found["targets"], found["refs"]
    if found["by"].upper() == "FROM" and not targets.strip():  # DELETE FROM a USING a, b
        targets, _, refs = re.split(r"\b(USING)\b", refs + " USING ", flags=re.I)[:3]
    named = {_plain(name) for name in re.findall(_NAME, targets)}
    return (name for name, alias in _referred(refs, tables) if named & {name, alias})


def _referred(refs: str, tables: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the versioned tables in ``a JOIN b AS x ON …``, each with its alias or its own name."""
    for found in re.finditer(rf"({_NAME})(?:\s+(?:AS\s+)?({_NAME}))?", refs, re.I):
        name = _plain(found[1])
        if name in tables:
            yield name, _plain(found[2] or found[1])


def _plain(name: str) -> str:
    return name.strip('"`[]').lower()


def _is_a_lock(text: str, found: re.Match[str]) -> bool:
    """Return whether it is no write: ``SELECT … FOR UPDATE OF accounts``, or ``ON UPDATE``."""
    before = text[: found.start()].rstrip().upper()
    return before.endswith((" FOR", "\nFOR", " NO KEY", " ON", " DO"))


def _mentions(text: str, version: Column[Any], verb: str) -> bool:
    return verb != "TRUNCATE" and bool(
        re.search(rf"(?<!\w){re.escape(version.name)}(?!\w)", text, re.IGNORECASE)
    )
