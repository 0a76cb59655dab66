"""Are the triggers there that versions depend on, and are they those of the mapping?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import Connection

from optilock.check.findings import Finding, error, warning
from optilock.check.subjects import StoredTable, Subject, schema_of
from optilock.dialects import database_of
from optilock.dialects.triggers import Found, GuardTriggers
from optilock.errors import ConfigurationError
from optilock.mapping.triggers import moved_column, trigger_ddl, trigger_name
from optilock.schema import Expected, expected
from optilock.tokens.guard_trigger import is_guard

__all__ = ["check_triggers"]


@dataclass(frozen=True)
class _Triggers:
    """Those of one table, as the catalogue of the database keeps them."""

    connection: Connection
    subject: Subject
    schema: str | None
    kind: GuardTriggers
    found: list[Found]

    def get(self, name: str) -> Found | None:
        """One by its name, also where the catalogue does not show it to this user."""
        table = self.subject.table.name
        there = next((one for one in self.found if one.name == name), None)
        return there or self.kind.hidden(self.connection, table, name, self.schema)


def check_triggers(
    connection: Connection, subject: Subject, stored: StoredTable | None
) -> Iterator[Finding]:
    """Compare them as the catalogue keeps them."""
    wanted = expected([subject.table]).get(subject.table)
    if stored is None:
        return  # check_table says so
    schema = schema_of(connection, subject.table)
    kind = database_of(connection.dialect).guard_triggers(connection.dialect)
    found = [one for one in kind.found(connection, schema) if one.table == subject.table.name]
    triggers = _Triggers(connection, subject, schema, kind, found)
    try:
        yield from _guard(triggers, subject, wanted)
        yield from _version(triggers, subject, wanted)
    except ConfigurationError as refusal:
        advice = "Use a token and options that this database has."
        yield error("no-trigger", subject.table.fullname, str(refusal), advice)


def _guard(triggers: _Triggers, subject: Subject, wanted: Expected | None) -> Iterator[Finding]:
    """The trigger of ``__version_guard__``."""
    there = next((one for one in triggers.found if is_guard(one.name)), None)
    guard = wanted.guard if wanted is not None else None
    if guard is not None:
        yield from _compared(
            subject,
            f"{subject.name}.__version_guard__ = {guard.policy!r}",
            there or triggers.get(guard.name),
            triggers.kind.source(guard),
            "op.create_guard_trigger",
            "a foreign UPDATE changes rows and nobody is told",
        )
    elif there is not None and not there.of_parent:
        yield _unasked(
            subject,
            there,
            f"The table has a guard trigger, and {subject.name} asks for none.",
            "Set __version_guard__, or drop the trigger: op.drop_guard_trigger, which"
            " autogenerate writes.",
        )


def _version(triggers: _Triggers, subject: Subject, wanted: Expected | None) -> Iterator[Finding]:
    """The trigger of a ``RowVersion``."""
    if wanted is None or not wanted.moves_by_trigger:
        for one in triggers.found:
            moved = moved_column(subject.table.name, one.name, one.source)
            if moved is not None and not one.of_parent:
                yield _unasked(
                    subject,
                    one,
                    f"A trigger moves the column {moved!r}, and {subject.name} has no RowVersion.",
                    "Use RowVersion(), or drop the trigger: op.drop_version_trigger, which"
                    " autogenerate writes.",
                )
        return
    table, column = subject.table, wanted.column
    ddl = trigger_ddl(table, column, triggers.kind.dialect, schema=triggers.schema)
    yield from _compared(
        subject,
        f"{subject.name}.__version_token__ = RowVersion()",
        triggers.get(trigger_name(table.name, column.name)),
        ddl.source,
        "op.create_version_trigger",
        "the version does not move, and every write is refused",
    )


def _compared(
    subject: Subject, what: str, there: Found | None, source: str, operation: str, harm: str
) -> Iterator[Finding]:
    advice = f"Create it in a migration: {operation}, which autogenerate writes."
    if there is None:
        code, message = "no-trigger", f"{what} needs a trigger, and the table has none: {harm}."
    elif not there.enabled:
        code = "trigger-off"
        message = f"The trigger {there.name} of {what} is switched off: {harm}."
        advice = "ALTER TABLE … ENABLE TRIGGER, and find out who switched it off."
    elif there.source is None:
        yield warning(
            "unreadable",
            f"{subject.table.fullname}.{there.name}",
            "What the trigger does may not be read, so nobody knows whether it is the right one.",
            "Check as a user who has the right TRIGGER on the table.",
        )
        return
    elif there.source.strip() != source.strip():
        code = "other-trigger"
        message = f"The trigger {there.name} is another one than {what} asks for."
    else:
        return
    yield error(code, subject.table.fullname, message, advice)


def _unasked(subject: Subject, there: Found, message: str, advice: str) -> Finding:
    where = f"{subject.table.fullname}.{there.name}"
    return warning("unasked-trigger", where, message, advice)
