"""Checks of triggers: a table has those that its version needs, and no others that set a version.

A trigger is compared as a whole: its text, when it fires (before the UPDATE, of any column, for
each row, under which condition), and whether it is enabled.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from optilock._mapping.triggers import moved_column, trigger_ddl, trigger_name
from optilock._versioned import expected_tables
from optilock.check.findings import Finding, error, note, unreadable_finding, warning
from optilock.check.subjects import CheckedTable, Subject
from optilock.dialects import database_of
from optilock.dialects.catalogue import Cascade
from optilock.dialects.migrations import Found
from optilock.errors import ConfigurationError
from optilock.tokens import Token
from optilock.tokens.guard_trigger import GuardTrigger, is_guard


def guard_trigger(seen: CheckedTable) -> Iterator[Finding]:
    """Compare the trigger of ``__version_guard__``."""
    wanted, subject = seen.subject.wanted, seen.subject
    there = next((one for one in seen.triggers if is_guard(one.name)), None)
    guard = wanted.guard if wanted is not None else None
    if guard is not None:
        yield from _wanted_guard(seen, guard, there)
    elif there is not None and not there.of_parent:
        yield _unasked(
            seen,
            there,
            f"The table has a guard trigger, and {subject.name} asks for none.",
            "Set __version_guard__, or drop the trigger: op.drop_guard_trigger, which autogenerate"
            " writes.",
        )


def _wanted_guard(
    seen: CheckedTable, guard: GuardTrigger, there: Found | None
) -> Iterator[Finding]:
    mapped = (column.name for column in seen.table.columns)
    stored = (column.name for column in seen.stored.columns.values())
    guard, wider = guard.fitting(mapped, stored, seen.stored.generated)
    try:
        made, also = (_made(seen, one) for one in (guard, wider))
    except ConfigurationError as refusal:
        yield _unknown(seen, refusal)
        return
    if there is not None and there.source is not None and there.is_made_by(*also):
        made = also
    what = f"{seen.subject.name}.__version_guard__ = {guard.policy!r}"
    harm = "a foreign UPDATE changes rows without notice"
    operation = _call(
        "create_guard_trigger",
        (seen.table.name, guard.token, guard.policy),
        ignore=list(guard.ignore),
        columns=list(guard.columns),
        schema=seen.schema,
    )
    yield from _compared(seen, what, there, made, operation, harm)


def _made(seen: CheckedTable, guard: GuardTrigger) -> tuple[str, str]:
    return seen.guards.source(guard), seen.guards.fires(guard)


def version_trigger(seen: CheckedTable) -> Iterator[Finding]:
    """Compare the trigger of a ``RowVersion``."""
    wanted, table = seen.subject.wanted, seen.table
    if wanted is None or not wanted.moves_by_trigger:
        return
    try:
        ddl = trigger_ddl(table, wanted.column, seen.dialect, schema=seen.schema)
    except ConfigurationError as refusal:
        yield _unknown(seen, refusal)
        return
    there = seen.trigger(trigger_name(table.name, wanted.column.name))
    what = f"{seen.subject.name}.__version_token__ = RowVersion()"
    harm = "the version does not move, and every write is refused"
    made = ddl.source, ddl.fires
    operation = _call("create_version_trigger", (table.name, wanted.token), schema=seen.schema)
    yield from _compared(seen, what, there, made, operation, harm)


def unasked_version_trigger(seen: CheckedTable) -> Iterator[Finding]:
    """Find the trigger of a former ``RowVersion``."""
    wanted = seen.subject.wanted
    if wanted is not None and wanted.moves_by_trigger:
        return
    for one in seen.triggers:
        moved = moved_column(seen.table.name, one.name, one.source)
        if moved is not None and not one.of_parent:
            yield _unasked(
                seen,
                one,
                f"A trigger moves the column {moved!r}, and {seen.subject.name} has no RowVersion.",
                "Use RowVersion(), or drop the trigger: op.drop_version_trigger, which"
                " autogenerate writes.",
            )


def foreign_triggers(seen: CheckedTable) -> Iterator[Finding]:
    """Find other programs' triggers that set the version in an UPDATE."""
    subject = seen.subject
    if seen.version is None or (subject.wanted is None and not subject.mapper.version_id_generator):
        return  # a version that the application's own trigger makes, and SQLAlchemy's own column
    for one in seen.triggers:
        if one.enabled and not _is_ours(seen, one):
            yield from _foreign_trigger(seen, one, seen.version[1].name)


def _foreign_trigger(seen: CheckedTable, one: Found, version: str) -> Iterator[Finding]:
    found = assignment_in(one, seen.table.name, version)
    if one.source is None and "UPDATE" in one.fires:
        yield _unreadable(seen, one)
    elif found is not None and not (found.is_next and seen.subject.counts):
        yield _foreign(seen, one, found)


def _is_ours(seen: CheckedTable, one: Found) -> bool:
    """Return whether a trigger is optilock's, by its name, or by its text where it is shown."""
    table, wanted = seen.table.name, seen.subject.wanted
    if wanted is not None and wanted.moves_by_trigger:
        moves = one.name == trigger_name(table, wanted.column.name)
    else:
        moves = False
    return moves or is_guard(one.name) or moved_column(table, one.name, one.source) is not None


def _foreign(seen: CheckedTable, one: Found, found: Assignment) -> Finding:
    return error(
        "foreign-trigger",
        f"{seen.name}.{one.name}",
        f"A trigger that is not optilock's sets the version in an UPDATE ({found.text}), so another"
        " version is stored than was written. A version that stays, or comes again, lets others"
        " overwrite unseen; another one makes the writer's next write conflict with itself.",
        "Take the assignment out of the trigger, or drop it (op.execute('DROP TRIGGER …')). To"
        " move the version, use __version_guard__ or RowVersion().",
    )


def _call(name: str, arguments: Iterable[Any], **options: Any) -> str:
    """Return the line of a migration that makes the trigger."""
    words = [_token(one) if isinstance(one, Token) else repr(str(one)) for one in arguments]
    words += [f"{option}={value!r}" for option, value in options.items() if value]
    return f"op.{name}({', '.join(words)})"


def _token(token: Token) -> str:
    given, named = token.arguments()
    words = [*map(repr, given), *(f"{name}={value!r}" for name, value in named.items())]
    return f"{type(token).__name__}({', '.join(words)})"


def _unknown(seen: CheckedTable, refusal: ConfigurationError) -> Finding:
    advice = "Use a token and options that this database has."
    return error("no-trigger", seen.name, str(refusal), advice)


def _compared(
    seen: CheckedTable,
    what: str,
    there: Found | None,
    made: tuple[str, str],
    operation: str,
    harm: str,
) -> Iterator[Finding]:
    advice = f"Create it in a migration: {operation}, which autogenerate writes."
    if there is None:
        code, message = "no-trigger", f"{what} needs a trigger, and the table has none: {harm}."
    elif not there.enabled:
        code = "trigger-off"
        message = f"The trigger {there.name} of {what} is switched off, or fires for replicas only:"
        message += f" {harm}."
        advice = f"ALTER TABLE {seen.name} ENABLE TRIGGER {there.name}; and find the program that"
        advice += " switched it off."
    elif there.source is None:
        yield _unreadable(seen, there)
        return
    elif there.fires != made[1]:
        code = "other-trigger"
        message = f"The trigger {there.name} fires {there.fires}, and {what} asks for {made[1]}:"
        message += f" where it does not fire, {harm}."
    elif not there.is_made_by(*made):
        code = "other-trigger"
        message = f"The trigger {there.name} is another one than {what} asks for: where it does"
        message += f" something else, {harm}."
    else:
        return
    yield error(code, seen.name, message, advice)


def _unreadable(seen: CheckedTable, there: Found) -> Finding:
    return warning(
        "unreadable",
        f"{seen.name}.{there.name}",
        "The text of the trigger may not be read, so its effect on versions is unknown.",
        "Check as a user who has the right TRIGGER on the table.",
    )


def _unasked(seen: CheckedTable, there: Found, message: str, advice: str) -> Finding:
    return warning("unasked-trigger", f"{seen.name}.{there.name}", message, advice)


ALL = (guard_trigger, version_trigger, unasked_version_trigger, foreign_triggers)

# -- triggers that set the version -----------------------------------------------------------------
#
# It is read as text, by the few forms in which SQL does so: ``NEW.version := …``,
# ``SET NEW.version = …``, ``SELECT … INTO NEW.version``, ``NEW := OLD``, ``RETURN OLD`` before an
# UPDATE, and an UPDATE of the trigger's own table. Functions that a trigger calls and dynamic SQL
# are not followed.


@dataclass(frozen=True)
class Assignment:
    """A place where a trigger sets the version."""

    text: str
    #: Whether it sets the old version plus one, as a ``Counter`` does.
    is_next: bool


def assignment_in(trigger: Found, table: str, column: str) -> Assignment | None:
    """Return the first place where an UPDATE of ``table`` would set ``column``."""
    source = _bare(trigger.source or "")
    when = trigger.fires or source.upper()
    if not re.search(r"\bUPDATE\b", re.split(r"\bON\b", when)[0]):
        return None
    for form in _forms(table, column, when):
        found = re.search(form, source)
        if found is not None:
            text = " ".join(found.group().split()).strip("; ")
            return Assignment(text, _is_next(source[found.end() :], column))
    return None


def _forms(table: str, column: str, when: str) -> list[str]:
    name, into = re.escape(column.lower()), re.escape(table.lower())
    new = rf"\bnew\s*\.\s*{name}"
    forms = [
        rf"{new}\s*:=",
        rf"(?:^|;|\b(?:begin|then|else|loop|set)\b)\s*{new}\s*=",
        rf"\bset\b[^;()]*,\s*{new}\s*=",
        rf"\binto\s+(?:strict\s+)?{new}\b",
        r"\bnew\s*:=\s*old\b",
        rf"\bupdate\s+(?:only\s+)?(?:\w+\s*\.\s*)?{into}\b(?:(?!\bwhere\b)[^;])*?"
        rf"(?:\bset|,)\s*(?:{into}\s*\.\s*)?{name}\s*=",
    ]
    if "BEFORE" in when and "DELETE" not in when:
        forms.append(r"\breturn\s+old\b")
    return forms


def _is_next(after: str, column: str) -> bool:
    """Return whether the value is ``OLD.version + 1``, up to the end of the statement."""
    value = re.sub(r"[\s()]|coalesce|,0", "", re.split(r";|\bwhere\b|\bend\b|,\s*new\b", after)[0])
    return value == f"old.{column.lower()}+1"


def _bare(source: str) -> str:
    """Return SQL in small letters, without comments, texts, and quotes around names."""
    without = re.sub(r"/\*.*?\*/|--[^\n]*|'(?:[^']|'')*'", " ", source, flags=re.DOTALL)
    return re.sub(r"[\"`]", "", without).lower()


# -- foreign keys by which the database changes rows and fires no trigger -------------------------
#
# MariaDB's engine does ``ON UPDATE CASCADE`` and ``SET NULL`` by itself, so neither a guard
# trigger nor that of a ``RowVersion`` sees it: the row has changed and its version has not.
# PostgreSQL and SQLite fire them. One statement a schema, where a class has such a trigger.


def check_cascades(connection: Connection, subjects: Iterable[Subject]) -> Iterator[Finding]:
    """Find silent cascades into tables whose versions a trigger moves, or guards."""
    by_schema: dict[str | None, set[str]] = {}
    for table, wanted in expected_tables(subject.table for subject in subjects).items():
        if wanted.guard is not None or wanted.moves_by_trigger:
            by_schema.setdefault(table.schema, set()).add(table.name)
    database = database_of(connection.dialect)
    for schema, names in by_schema.items():
        try:
            found = database.catalogue(connection, schema).silent_cascades()
        except DBAPIError as refusal:
            yield unreadable_finding("foreign keys", refusal)
            connection.rollback()
            continue
        yield from (_finding(one, schema) for one in found if one.table in names)


def check_functions(connection: Connection, subjects: Iterable[Subject]) -> Iterator[Finding]:
    """Find functions of triggers whose tables are dropped, in the schemas of the classes."""
    guards = database_of(connection.dialect).guard_triggers(connection.dialect)
    for schema in dict.fromkeys(subject.table.schema for subject in subjects):
        for name in guards.unused_functions(connection, schema):
            yield note(
                "unused-function",
                name,
                "No trigger calls this function of optilock: its table, or its trigger, was dropped"
                " without the class (by a reflected MetaData, or SQL), and the function was left.",
                f"DROP FUNCTION {name}();",
            )


def _finding(found: Cascade, schema: str | None) -> Finding:
    table = found.table if schema is None else f"{schema}.{found.table}"
    return warning(
        "silent-cascade",
        f"{table}.{found.column}",
        f"A change of {found.parent} changes the column by itself ({found.does}), and this database"
        " fires no trigger then: the version stays, and readers do not notice the change.",
        "Leave it to the program, which moves the version (ON UPDATE RESTRICT, ON DELETE RESTRICT;"
        " passive_deletes and passive_updates=False of the relationship).",
    )
