"""Decisions of the resolvers: one for every row, or the error that the caller gets."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from sqlalchemy.exc import MissingGreenlet
from sqlalchemy.orm.attributes import instance_state

from optilock._mapped import facts, identity_of
from optilock._watched.rows.entries import Attempt, Missed
from optilock._watched.rows.stored import Values
from optilock._watched.rows.touch import part_without_version
from optilock._watched.session.values import Promises, RowsOfTransaction, conflict_of
from optilock._watched.writes.answers import is_filled_in
from optilock.errors import (
    CannotMerge,
    Computed,
    ConcurrencyError,
    ConfigurationError,
    Entry,
    row_name,
)
from optilock.resolvers.resolution import (
    DeletePolicies,
    OnConflict,
    Resolution,
    check_resolution,
    choose_resolver,
    decide_by_policy,
)


def resolver_for(on_conflict: Any, model: type[Any]) -> Callable[..., Any] | None:
    """Return the unit's resolver, else the class's own, else ``None``."""
    return choose_resolver(on_conflict, model) or getattr(model, "__on_conflict__", None)


class Rules(Protocol):
    """The options of ``watch``, or of the unit, about conflicts."""

    on_conflict: OnConflict
    on_delete: DeletePolicies
    promises: Promises | None
    settled_by: RowsOfTransaction[OnConflict] | None


def decide(rows: Sequence[Missed], rules: Rules) -> Exception | None:
    """Give every row that has none its resolution, or return the error to raise instead.

    A row whose version was promised (``expect``, ``verify``) is not settled, and then none is. A
    row that the policy for deletes settles is no conflict: it has no entry, and no resolver is
    called. A resolution that cannot be carried out is a ``ConfigurationError``.

    Raises:
        Exception: a resolver has raised it: an error of the program, not a conflict.
    """
    entries = [row.entry for row in rows]
    if rules.promises and any(row.attempt.place in rules.promises for row in rows):
        return conflict_of(entries, rules.promises)
    policies = [decide_by_policy(entry, rules.on_delete) for entry in entries]
    entries = [entry for entry, policy in zip(entries, policies, strict=True) if policy is None]
    for row, policy in zip(rows, policies, strict=True):
        row.resolution = row.resolution or policy
        if row.resolution is None:
            resolver = resolver_for(rule_of(row.attempt, rules), row.entry.model)
            answer = ask_resolver(row.entry, resolver, entries)
            if isinstance(answer, Exception):
                return answer
            row.resolution = answer
    return _refused(entries, rows)


def resolvers_of(rows: Sequence[Missed], rules: Rules) -> tuple[str, ...]:
    """Return for each settled row the name of what decided, for events."""
    return tuple(_decided_by(row, rules) for row in rows)


def _decided_by(row: Missed, rules: Rules) -> str:
    if decide_by_policy(row.entry, rules.on_delete) is not None:
        return "on_delete"
    resolver: Any = resolver_for(rule_of(row.attempt, rules), row.entry.model)
    while isinstance(resolver, functools.partial):
        resolver = resolver.func
    return getattr(resolver, "__name__", None) or type(resolver).__name__


def rule_of(attempt: Attempt, rules: Rules) -> OnConflict:
    """Return the rule for a row: its own, as after ``overwrite()``, or that of the session."""
    own = rules.settled_by
    return own[attempt.place] if own and attempt.place in own else rules.on_conflict


def ask_resolver(
    entry: Entry[Any], resolver: Callable[..., Any] | None, entries: list[Entry[Any]]
) -> Resolution | Exception:
    """Return the resolver's decision, or the error to raise for ``entries``.

    Raises:
        Exception: the resolver has raised it. ``CannotMerge`` is a decision, and no error.
    """
    if resolver is None:
        return ConcurrencyError(entries)
    try:
        answer = _awaited(resolver(entry))
    except CannotMerge as error:
        conflict = _rejected(entries, entry, str(error))
        conflict.__cause__ = error
        return conflict
    except ConfigurationError as error:
        error.__cause__ = ConcurrencyError(entries)
        return error
    try:
        resolution = check_resolution(answer, entry)
    except ConfigurationError as error:
        error.__cause__ = ConcurrencyError(entries)
        return error
    if resolution.decision == "reject":
        return _rejected(entries, entry, resolution.reason)
    return resolution


def _refused(entries: list[Entry[Any]], rows: Sequence[Missed]) -> ConcurrencyError | None:
    """Return the conflict if a resolution cannot be carried out."""
    reasons = [reason for row in rows if (reason := reason_against(row))]
    if not reasons:
        return None
    conflict = ConcurrencyError(entries)
    for reason in reasons:
        conflict.add_note(f"optilock: {reason}")
    return conflict


def _rejected(entries: list[Entry[Any]], entry: Entry[Any], reason: str | None) -> ConcurrencyError:
    conflict = ConcurrencyError(entries)
    if reason:
        key = entry.identity[0] if len(entry.identity) == 1 else entry.identity
        conflict.add_note(f"optilock: {entry.model.__name__} {key!r} was not resolved: {reason}")
    return conflict


def _awaited(answer: Any) -> Any:
    """Return the answer of an async resolver; an ``AsyncSession``'s flush can wait for it."""
    if not inspect.isawaitable(answer):
        return answer
    from sqlalchemy.util.concurrency import await_only

    try:
        return await_only(answer)
    except MissingGreenlet:
        if inspect.iscoroutine(answer):
            answer.close()
        raise ConfigurationError(
            "An async resolver was given to a sync session: use it with async sessions, or write it"
            " as a plain function."
        ) from None


def reason_against(row: Missed) -> str | None:
    """Return the reason why the resolution of a row cannot be carried out, or ``None``."""
    resolution = row.resolution
    if resolution is None:
        return None
    if row.stored is not None:
        if row.attempt.action == "delete" and resolution.decision == "overwrite":
            return None
        return _of_another_class(row, row.stored) or _half_known(row) or _with_unversioned_part(row)
    if resolution.decision != "keep_database":
        return _not_insertable(row, resolution)
    if not row.entry.maybe_hidden:
        return None
    return (
        f"{row.entry.describe()}: a row that is hidden is not deleted, so this is not settled; roll"
        " back, and decide in a session of a role that sees every row"
    )


def _of_another_class(row: Missed, stored: Values) -> str | None:
    """Return the reason if the row has changed its class, which an object cannot do."""
    mapper = row.attempt.mapper
    if mapper.polymorphic_on is None:
        return None
    names = (n for n, column in facts(mapper).columns.items() if column is mapper.polymorphic_on)
    now = mapper.polymorphic_map.get(stored.get(next(names, "")))
    if now is None or now.isa(mapper):
        return None
    return (
        f"{row.entry.describe()}: the row is now of the class {now.class_.__name__}, which the"
        " object cannot become: session.expunge() it, and read the row again"
    )


def _half_known(row: Missed) -> str | None:
    """Return the reason if our side of columns that belong together was not read completely."""
    assert row.resolution is not None
    if row.resolution.decision != "overwrite" or row.attempt.action != "update":
        return None
    unknown = sorted(row.entry.conflicting - row.entry.current.keys())
    if not unknown:
        return None
    return (
        f"{row.entry.describe()}: {', '.join(unknown)} was never loaded, and belongs together with"
        " the changed columns, so our value of it is unknown: load it before the change"
    )


def _with_unversioned_part(row: Missed) -> str | None:
    """Return the reason if the root alone shows whether both sides changed one of its parts."""
    assert row.resolution is not None
    part = part_without_version(row.state)
    if part is None or row.resolution.decision == "overwrite":
        return None
    model = type(part).__name__
    name = row_name(type(part), identity_of(instance_state(part)))
    return (
        f"{row.entry.describe()}: we changed {name}, which has no version, so nothing shows"
        f" whether another transaction changed it, too: add optilock.Versioned to {model}"
    )


def _not_insertable(row: Missed, resolution: Resolution) -> str | None:
    """Return the reason why a row that is gone cannot be inserted again, or ``None``."""
    attempt = row.attempt
    values = {**attempt.current, **resolution.values}
    made_by_database = row.connection.dialect.supports_identity_columns
    for name, column in facts(attempt.mapper).columns.items():
        if made_by_database and column.identity is not None and column.identity.always:
            return f"{row.entry.describe()}: {name} is always made by the database (Identity)"
        if isinstance(values.get(name), Computed):
            return f"{row.entry.describe()}: {name} was set to a SQL expression"
        if name in values or column.server_default or column.default is not None:
            continue
        if column.onupdate is None:
            return f"{row.entry.describe()}: {name} was never loaded"
        if not is_filled_in(column):
            return (
                f"{row.entry.describe()}: the database computes {name} in each UPDATE (onupdate),"
                " so the value for an INSERT is unknown: name it in Resolution.write()"
            )
    return None
