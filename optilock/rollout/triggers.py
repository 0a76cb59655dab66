"""The triggers that a table gets with its version, before its rows are filled.

A token that the database makes (``RowVersion``) has one. A guard trigger is there on request: it
moves the version that a program leaves alone which knows of none, or refuses its UPDATE.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy.engine import Connection

from optilock.dialects import database_of
from optilock.dialects.rollout import Target
from optilock.dialects.triggers import Found, GuardTriggers
from optilock.errors import ConfigurationError
from optilock.mapping.triggers import trigger_ddl, trigger_name
from optilock.rollout.target import require_present
from optilock.schema import keys_without_rowid
from optilock.tokens import Token
from optilock.tokens.guard_trigger import GuardTrigger, Policy

__all__ = ["Missing", "completed", "guard_of", "missing", "require_known"]


def guard_of(
    table: str, token: Token, schema: str | None, policy: Policy | None, ignore: Iterable[str]
) -> GuardTrigger | None:
    """The guard trigger that is asked for, if one is.

    Raises:
        ConfigurationError: an unknown policy, or a token that a trigger cannot move.
    """
    # A text stays one: it is refused there, with the right words.
    ignored: Any = ignore if isinstance(ignore, str) else tuple(ignore)
    if policy is not None:
        return GuardTrigger(table, token, policy, ignored, schema=schema)
    if ignored:
        raise ConfigurationError(
            f"ignore={ignored!r} without guard=: it is the guard trigger that ignores columns."
            " Write guard='bump' or guard='reject' beside it."
        )
    return None


@dataclass(frozen=True)
class Missing:
    """A trigger that is not there: the name of the step, and its statements."""

    step: str
    statements: tuple[str, ...]


def missing(
    connection: Connection, target: Target, guard: GuardTrigger | None
) -> tuple[Missing, ...]:
    """The triggers that the table should have and has not, or has switched off."""
    triggers = database_of(connection.dialect).guard_triggers(connection.dialect)
    found = [
        one
        for one in triggers.found(connection, target.table.schema)
        if one.table == target.table.name and one.enabled
    ]
    return (*_of_the_token(connection, target, found), *_guarding(triggers, target, guard, found))


def _of_the_token(
    connection: Connection, target: Target, found: list[Found]
) -> tuple[Missing, ...]:
    if not target.token.has_trigger:
        return ()
    wanted = trigger_name(target.table.name, target.name)
    if any(one.name == wanted for one in found):
        return ()
    ddl = trigger_ddl(target.table, target.version, connection.dialect)
    return (Missing("create its trigger", (*ddl.drop, *ddl.create)),)


def _guarding(
    triggers: GuardTriggers, target: Target, guard: GuardTrigger | None, found: list[Found]
) -> tuple[Missing, ...]:
    if guard is None:
        return ()
    guard = completed(guard, target, triggers)
    source = triggers.source(guard)
    if any(one.name == guard.name and one.read() == source for one in found):
        return ()
    return (Missing("create the guard trigger", triggers.create(guard)),)


def completed(guard: GuardTrigger, target: Target | None, triggers: GuardTriggers) -> GuardTrigger:
    """With what the table itself says: the columns that count, and how a row is found.

    Without a database to ask (``target`` is None) they have to be there already.

    Raises:
        ConfigurationError: no such column.
    """
    if target is not None:
        require_present(target, guard.table)
        known = require_known(guard, target)
        guard = replace(guard, keys=keys_without_rowid(target.table))
        if guard.ignore and not guard.columns:
            guard = replace(guard, columns=tuple(n for n in known if n not in guard.ignore))
    if guard.ignore and not guard.columns and triggers.names_columns:
        raise ConfigurationError(
            f"The guard trigger of {guard.table} ignores columns, so it has to name those that"
            " count: say which, columns=[...], where there is no database to ask (--sql)."
        )
    return guard


def require_known(guard: GuardTrigger, target: Target) -> list[str]:
    """The columns beside the version; those that ``guard`` names must be among them."""
    known = [column.name for column in target.table.columns if column.name != guard.column]
    for name in (*guard.ignore, *guard.columns):
        if name not in known:
            raise ConfigurationError(
                f"The guard trigger of {guard.table} names the column {name!r}, which the"
                f" table does not have. Nothing was changed. It has: {', '.join(known)}."
            )
    return known
