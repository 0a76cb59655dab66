"""What is asked of each table's triggers: are those there that versions depend on, and no others?

A trigger is compared as a whole: what it does, and when it fires (before the UPDATE, of any column,
for each row, under which condition), and whether it is switched on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from optilock.check.findings import Finding, error, unreadable, warning
from optilock.check.subjects import Seen, Subject
from optilock.dialects import database_of
from optilock.dialects.base import Cascade
from optilock.dialects.migrations import Found
from optilock.errors import ConfigurationError
from optilock.mapping.triggers import moved_column, trigger_ddl, trigger_name
from optilock.schema import expected
from optilock.tokens import Token
from optilock.tokens.guard_trigger import GuardTrigger, is_guard

__all__ = ["check_cascades"]


def guard_trigger(seen: Seen) -> Iterator[Finding]:
    """That of ``__version_guard__``."""
    wanted, subject = seen.subject.wanted, seen.subject
    there = next((one for one in seen.triggers if is_guard(one.name)), None)
    guard = wanted.guard if wanted is not None else None
    if guard is None:
        if there is not None and not there.of_parent:
            yield _unasked(
                seen,
                there,
                f"The table has a guard trigger, and {subject.name} asks for none.",
                "Set __version_guard__, or drop the trigger: op.drop_guard_trigger, which"
                " autogenerate writes.",
            )
        return
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
    what = f"{subject.name}.__version_guard__ = {guard.policy!r}"
    harm = "a foreign UPDATE changes rows and nobody is told"
    operation = _call(
        "create_guard_trigger",
        (seen.table.name, guard.token, guard.policy),
        ignore=list(guard.ignore),
        columns=list(guard.columns),
        schema=seen.schema,
    )
    yield from _compared(seen, what, there, made, operation, harm)


def _made(seen: Seen, guard: GuardTrigger) -> tuple[str, str]:
    return seen.guards.source(guard), seen.guards.fires(guard)


def version_trigger(seen: Seen) -> Iterator[Finding]:
    """That of a ``RowVersion``."""
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


def unasked_version_trigger(seen: Seen) -> Iterator[Finding]:
    """One of a ``RowVersion`` that is none any more."""
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


def foreign_triggers(seen: Seen) -> Iterator[Finding]:
    """Triggers of somebody else that set the version in an UPDATE."""
    subject = seen.subject
    if seen.version is None or (subject.wanted is None and not subject.mapper.version_id_generator):
        return  # a version that the application's own trigger makes, and SQLAlchemy's own column
    _, mapped, _ = seen.version
    for one in seen.triggers:
        if not one.enabled or _is_ours(seen, one):
            continue
        found = assigned(one, seen.table.name, mapped.name)
        if one.source is None and "UPDATE" in one.fires:
            yield _unreadable(seen, one)
        elif found is not None and not (found.is_next and subject.counts):
            yield _foreign(seen, one, found)


def _is_ours(seen: Seen, one: Found) -> bool:
    """By its name, and by what it does where that may be read."""
    table, wanted = seen.table.name, seen.subject.wanted
    if wanted is not None and wanted.moves_by_trigger:
        moves = one.name == trigger_name(table, wanted.column.name)
    else:
        moves = False
    return moves or is_guard(one.name) or moved_column(table, one.name, one.source) is not None


def _foreign(seen: Seen, one: Found, found: Assigned) -> Finding:
    return error(
        "foreign-trigger",
        f"{seen.name}.{one.name}",
        f"A trigger that is not optilock's sets the version in an UPDATE ({found.text}): what is"
        " stored then is not what was written. A version that stays, or comes again, lets others"
        " overwrite unseen; another one makes the writer's next write conflict with itself.",
        "Take the assignment out of the trigger, or drop it (op.execute('DROP TRIGGER …')). What"
        " shall move the version is __version_guard__ or RowVersion().",
    )


def _call(name: str, arguments: Iterable[Any], **options: Any) -> str:
    """The line of a migration that makes the trigger."""
    words = [_token(one) if isinstance(one, Token) else repr(str(one)) for one in arguments]
    words += [f"{option}={value!r}" for option, value in options.items() if value]
    return f"op.{name}({', '.join(words)})"


def _token(token: Token) -> str:
    given, named = token.arguments()
    words = [*map(repr, given), *(f"{name}={value!r}" for name, value in named.items())]
    return f"{type(token).__name__}({', '.join(words)})"


def _unknown(seen: Seen, refusal: ConfigurationError) -> Finding:
    advice = "Use a token and options that this database has."
    return error("no-trigger", seen.name, str(refusal), advice)


def _compared(
    seen: Seen,
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
        advice = f"ALTER TABLE {seen.name} ENABLE TRIGGER {there.name}; and find out who switched"
        advice += " it off."
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


def _unreadable(seen: Seen, there: Found) -> Finding:
    return warning(
        "unreadable",
        f"{seen.name}.{there.name}",
        "What the trigger does may not be read, so nobody knows what it does to versions.",
        "Check as a user who has the right TRIGGER on the table.",
    )


def _unasked(seen: Seen, there: Found, message: str, advice: str) -> Finding:
    return warning("unasked-trigger", f"{seen.name}.{there.name}", message, advice)


ALL = (guard_trigger, version_trigger, unasked_version_trigger, foreign_triggers)

# -- does the text of a trigger set the version? -------------------------------------------------
#
# It is read as text, by the few forms in which SQL does so: ``NEW.version := …``,
# ``SET NEW.version = …``, ``SELECT … INTO NEW.version``, ``NEW := OLD``, ``RETURN OLD`` before an
# UPDATE, and an UPDATE of the trigger's own table. Functions that a trigger calls and dynamic SQL
# are not followed.


@dataclass(frozen=True)
class Assigned:
    """Where a trigger sets the version."""

    text: str
    #: Does it set what comes after the old version, as a ``Counter`` does?
    is_next: bool


def assigned(trigger: Found, table: str, column: str) -> Assigned | None:
    """The first place where an UPDATE of ``table`` would set ``column``."""
    source = _bare(trigger.source or "")
    when = trigger.fires or source.upper()
    if not re.search(r"\bUPDATE\b", re.split(r"\bON\b", when)[0]):
        return None
    for form in _forms(table, column, when):
        found = re.search(form, source)
        if found is not None:
            text = " ".join(found.group().split()).strip("; ")
            return Assigned(text, _is_next(source[found.end() :], column))
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
    """``OLD.version + 1``, up to the end of the statement."""
    value = re.sub(r"[\s()]|coalesce|,0", "", re.split(r";|\bwhere\b|\bend\b|,\s*new\b", after)[0])
    return value == f"old.{column.lower()}+1"


def _bare(source: str) -> str:
    """In small letters, without comments, texts, and quotes around names."""
    without = re.sub(r"/\*.*?\*/|--[^\n]*|'(?:[^']|'')*'", " ", source, flags=re.DOTALL)
    return re.sub(r"[\"`]", "", without).lower()


# -- foreign keys by which the database changes rows and fires no trigger -------------------------
#
# MariaDB's engine does ``ON UPDATE CASCADE`` and ``SET NULL`` by itself, so neither a guard
# trigger nor that of a ``RowVersion`` sees it: the row has changed and its version has not.
# PostgreSQL and SQLite fire them. One statement a schema, where a class has such a trigger.


def check_cascades(connection: Connection, subjects: Iterable[Subject]) -> Iterator[Finding]:
    """Of tables whose versions a trigger moves, or guards."""
    by_schema: dict[str | None, set[str]] = {}
    for table, wanted in expected(subject.table for subject in subjects).items():
        if wanted.guard is not None or wanted.moves_by_trigger:
            by_schema.setdefault(table.schema, set()).add(table.name)
    database = database_of(connection.dialect)
    for schema, names in by_schema.items():
        try:
            found = database.silent_cascades(connection, schema)
        except DBAPIError as refusal:
            yield unreadable("foreign keys", refusal)
            connection.rollback()
            continue
        yield from (_finding(one, schema) for one in found if one.table in names)


def _finding(found: Cascade, schema: str | None) -> Finding:
    table = found.table if schema is None else f"{schema}.{found.table}"
    return warning(
        "silent-cascade",
        f"{table}.{found.column}",
        f"A change of {found.parent} changes the column by itself ({found.does}), and this database"
        " fires no trigger then: the version stays, and nobody who has read the row is told.",
        "Leave it to the program, which moves the version (ON UPDATE RESTRICT, ON DELETE RESTRICT;"
        " passive_deletes and passive_updates=False of the relationship).",
    )
