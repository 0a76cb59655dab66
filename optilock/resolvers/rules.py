"""Resolvers: functions that settle a conflict with another transaction's change of a row.

A resolver is a function of one :class:`~optilock.errors.Entry`, which has the three values of every
column, and it returns a :class:`~optilock.resolvers.resolution.Resolution`. It runs in the
transaction that met the conflict, and its decision is written there::

    unit_of_work(SessionLocal, on_conflict=merge_fields)
    unit_of_work(SessionLocal, on_conflict={Page: per_field(body=merge_text), Account: reject})

================  ==============================  =======================  =======================
\\                 both updated                    we update, they deleted  we delete, they updated
================  ==============================  =======================  =======================
`client_wins`     our columns over theirs         inserted again           deleted
`store_wins`      theirs, our edits dropped       our object is detached   the row is kept
`merge_fields`    each column from the side that  refuses                  refuses
                  changed it, or refuses
`per_field`       the same, and a policy where    refuses                  refuses
                  both changed a column
`reject`          refuses                         refuses                  refuses
================  ==============================  =======================  =======================

To refuse means to raise the ``ConcurrencyError``. Where both deleted the row there is nothing left
to do, and all but `reject` do it. A row that was only to be verified has no change of ours to
choose: all refuse.

A resolver of your own gets every value, and may refuse::

    def higher_bid_wins(entry: Entry[Auction]) -> Resolution:
        if entry.conflicting != {"bid"}:
            return Resolution.reject()
        return Resolution.write({"bid": max(entry.current["bid"], entry.database["bid"])})

A merge of columns can break a rule between two of them. If the class or the resolver declares that
they belong together, they conflict as one: see :mod:`optilock.resolvers.column_groups`.

Two writers that store *equal* values are no conflict: no value is lost. A counter is
different: two additions of 1 are one addition of 2. Give it a policy,
``per_field(views=add_delta)``, which is called whenever both sides changed the attribute.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, overload

from sqlalchemy import Column
from sqlalchemy import inspect as inspect_class
from sqlalchemy.orm import Mapper

from optilock._mapped import facts, joined_groups
from optilock.errors import CannotMerge, Computed, ConfigurationError, Entry
from optilock.resolvers.column_groups import (
    GroupNames,
    check_together,
    conflicting_together,
    groups_in,
    reason_not_merged,
)
from optilock.resolvers.merge import FieldPolicy
from optilock.resolvers.resolution import OnConflict, Resolution, Resolver, check_classes
from optilock.serialize import is_equal

# -- the resolvers ---------------------------------------------------------------------------------


def client_wins(entry: Entry[Any]) -> Resolution:
    """Keep ours: our changed columns over theirs, our delete, or the row inserted again.

    Columns that only they changed stay theirs, unless they belong together with one of ours.
    """
    return _without_choice(entry) or Resolution.overwrite()


def store_wins(entry: Entry[Any]) -> Resolution:
    """Keep theirs: our edits are dropped, a deleted row stays deleted, one we deleted is kept."""
    return _without_choice(entry) or Resolution.keep_database()


@overload
def merge_fields(entry: Entry[Any]) -> Resolution: ...
@overload
def merge_fields(*, together: GroupNames) -> PerField: ...
def merge_fields(
    entry: Entry[Any] | None = None, *, together: GroupNames = ()
) -> Resolution | PerField:
    """Keep both: each column from the side that changed it.

    Refuses when both changed a column to different values, when each changed another column of a
    group that belongs together (:mod:`optilock.resolvers.column_groups`), and when one side deleted
    the row. A rule across columns that no group declares is not known here, and may be broken.

    ``merge_fields(together=[("start", "end")])`` is a resolver with groups of its own, in addition
    to those of the class. Raises ``ConfigurationError`` for a value that is no group.
    """
    if entry is None:
        return PerField({}, together)
    return _without_choice(entry) or _only_updates(entry) or _merge(entry, {}, ())


def reject(entry: Entry[Any]) -> Resolution:
    """Settle nothing: every conflict is raised as a ``ConcurrencyError``."""
    return Resolution.reject()


def per_field(*, together: GroupNames = (), **policies: FieldPolicy) -> PerField:
    """Merge as :func:`merge_fields`, with a policy for attributes that both sides changed.

    A policy is a callable ``(original, current, database) -> value``, for example ``merge_text``.
    The row is refused when a policy raises ``CannotMerge``, when a conflicting attribute has none,
    and when a policy would lack a value: the attribute was set without having been loaded, or to a
    SQL expression. Where columns that belong together conflict (``together=``, as of
    :func:`merge_fields`), each of them that one side changed needs a policy. A policy sees one
    column only: give one to each only if they keep the rule between them. Raises
    ``ConfigurationError`` for a value that is not a policy, or no group.
    """
    return PerField(policies, together)


@dataclass(frozen=True, repr=False)
class PerField:
    """The resolver made by :func:`per_field`, and by :func:`merge_fields` with groups."""

    #: Attribute -> policy, read-only.
    policies: Mapping[str, FieldPolicy]
    #: Groups of columns that belong together, in addition to those of the class.
    together: GroupNames = ()

    def __post_init__(self) -> None:
        for name, policy in self.policies.items():
            _check_policy(name, policy)
        object.__setattr__(self, "policies", MappingProxyType(dict(self.policies)))
        object.__setattr__(self, "together", check_together(self.together, "together"))

    def __call__(self, entry: Entry[Any]) -> Resolution:
        return (
            _without_choice(entry)
            or _only_updates(entry)
            or _merge(entry, self.policies, self.together)
        )

    def __hash__(self) -> int:
        return hash((frozenset(self.policies.items()), self.together))

    def __reduce__(self) -> tuple[Any, ...]:
        return (PerField, (dict(self.policies), self.together))

    def __repr__(self) -> str:
        named = [f"{name}={_name_of(policy)}" for name, policy in self.policies.items()]
        if self.together:
            named.append(f"together={self.together!r}")
        return f"per_field({', '.join(named)})"


def _without_choice(entry: Entry[Any]) -> Resolution | None:
    """Return the decision for rows where all resolvers but `reject` agree; ``None`` for others."""
    if entry.action == "verify":
        return Resolution.reject(reason="a row that was to stay as it is has changed")
    if entry.action == "delete" and entry.kind == "deleted":
        return Resolution.keep_database()
    return None


def _only_updates(entry: Entry[Any]) -> Resolution | None:
    """Reject a conflict with a delete: no column can be merged with a row that is not there."""
    if entry.action == "delete" or entry.kind == "deleted":
        return Resolution.reject(
            reason="one side deleted the row, which no merge of columns can settle"
        )
    return None


#: Each column from the side that changed it: one decision for all rows.
_BOTH = Resolution.write()


def _merge(
    entry: Entry[Any], policies: Mapping[str, FieldPolicy], together: GroupNames
) -> Resolution:
    conflicting = entry.conflicting
    if policies or together:
        conflicting |= _of_groups(entry, policies, together)
    missing = conflicting - policies.keys()
    if missing:
        return Resolution.reject(reason=_why_not(entry, sorted(missing)))
    values = {}
    for name in dict.fromkeys((*conflicting, *_changed_by_both(entry, policies))):
        try:
            values[name] = policies[name](*_three_values(entry, name))
        except CannotMerge as error:
            return Resolution.reject(reason=f"{name}: {error}")
    return Resolution.write(values) if values else _BOTH


def _of_groups(
    entry: Entry[Any], policies: Mapping[str, FieldPolicy], together: GroupNames
) -> frozenset[str]:
    """Return columns that conflict through a group, or because a policy remakes a part of it."""
    mapper = getattr(entry.model, "__mapper__", None)
    of_class = () if mapper is None else facts(mapper).together
    groups = joined_groups((*of_class, *groups_in(entry, together)))
    if not groups:
        return frozenset()
    remade = frozenset(_changed_by_both(entry, policies))
    return conflicting_together(groups, entry, entry.database or {}, _same, remade)


def _same(name: str, a: Any, b: Any) -> bool:
    return is_equal(a, b)


def _why_not(entry: Entry[Any], names: list[str]) -> str:
    unknown = [name for name in names if name not in entry.original]
    unread = [name for name in unknown if name not in entry.changes]
    if unread:
        return (
            f"their change of {', '.join(unread)} is unknown: it belongs together with a column"
            " that we changed, and was not loaded before"
        )
    if unknown:
        return f"the value of {', '.join(unknown)} before it was set or changed in place is unknown"
    if any(_changed_by_one(entry, name) for name in names):
        return f"both sides changed columns that belong together: {', '.join(names)}"
    return f"both sides changed {', '.join(names)}"


def _changed_by_one(entry: Entry[Any], name: str) -> bool:
    if name not in entry.changes:
        return True
    stored = entry.database or {}
    return name in entry.original and is_equal(entry.original[name], stored.get(name))


def _changed_by_both(entry: Entry[Any], names: Collection[str]) -> Iterator[str]:
    """Yield the named attributes that both changed, also to equal values: 5 + 1 + 1 is not 6."""
    stored = entry.database or {}
    for name in names:
        if name in entry.conflicting:
            yield name
        elif name not in entry.changes or name not in entry.original or name not in stored:
            continue
        elif not is_equal(entry.original[name], stored[name]):
            yield name


def _three_values(entry: Entry[Any], name: str) -> tuple[Any, Any, Any]:
    if name not in entry.original:
        raise CannotMerge("it was set without having been loaded, so its original is unknown")
    stored = entry.database or {}
    values = (entry.original[name], entry.current[name], stored[name])
    if any(isinstance(value, Computed) for value in values):
        raise CannotMerge(
            "it was set to a SQL expression, so its value is unknown until the statement runs"
        )
    return values


# -- refused values --------------------------------------------------------------------------------


def check_on_conflict(value: Any) -> OnConflict:
    """Return ``value``, if ``on_conflict=`` can take it; raise ``ConfigurationError`` if not."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        return check_resolver(value)
    check_classes("on_conflict", value, "Page: merge_fields, Account: reject")
    for model, resolver in value.items():
        check_resolver(resolver)
        if hasattr(model, "__mapper__"):
            _check_names(resolver, model, _can_conflict(model.__mapper__))
    return dict(value)


def check_resolver(value: Any) -> Resolver:
    """Return ``value``, if it can be a resolver; raise ``ConfigurationError`` if not."""
    problem = _problem_with_resolver(value)
    if problem is None:
        return value  # type: ignore[no-any-return]
    raise ConfigurationError(
        f"{_name_of(value)} is not a resolver: {problem}. Use client_wins, store_wins,"
        " merge_fields, per_field(attribute=policy), reject, or a function that takes an Entry"
        " and returns a Resolution."
    )


def check_resolver_for(value: Any, model: type[Any], names: Collection[str]) -> Resolver:
    """Return a resolver like :func:`check_resolver`; its attributes must be in ``names``."""
    resolver = check_resolver(value)
    _check_names(resolver, model, names)
    return resolver


def _problem_with_resolver(value: Any) -> str | None:
    if value is None or not callable(value):
        return "it cannot be called"
    if isinstance(value, type):
        return "it is a class"
    if value is per_field:
        return "it has to be called first"
    if not _takes(value, 1):
        if _takes(value, 3):
            return "it is a policy for one attribute"
        return "it does not take one Entry"
    return None


def _check_policy(name: str, policy: Any) -> None:
    problem = None
    if not callable(policy):
        problem = "it cannot be called"
    elif inspect.iscoroutinefunction(policy):
        problem = "it is async"
    elif not _takes(policy, 3):
        problem = "it does not take original, current and database"
    if problem is not None:
        raise ConfigurationError(
            f"per_field({name}={_name_of(policy)}): that is not a policy, {problem}. Use add_delta,"
            " merge_set, merge_text, merge_json, or a function (original, current, database) ->"
            " value."
        )


def _takes(function: Callable[..., Any], count: int) -> bool:
    """Return whether it can be called with so many arguments; functions without a signature can."""
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:
        return True
    return True


def _check_names(resolver: Any, model: type[Any], names: Collection[str]) -> None:
    unknown = sorted(set(getattr(resolver, "policies", ())) - set(names))
    unknown += _never_merged(model, getattr(resolver, "together", ()))
    if unknown:
        meant = difflib.get_close_matches(unknown[0], names, 1)
        guess = f" {meant[0]} was probably meant." if meant else ""
        raise ConfigurationError(
            f"{resolver!r} names {', '.join(unknown)}, which {model.__name__} does not have or"
            f" which cannot conflict.{guess} It has: {', '.join(sorted(names))}."
        )


def _can_conflict(mapper: Mapper[Any]) -> set[str]:
    """Return the attributes of columns but the version, of subclasses too. Configures no mapper."""
    names = {
        name
        for one in mapper.self_and_descendants
        for name, column in one.columns.items()
        if isinstance(column, Column)
    }
    return names - {facts(mapper).token}


def _never_merged(model: type[Any], together: GroupNames) -> list[str]:
    mapper = inspect_class(model, raiseerr=False)  # while it is mapped, it has no __mapper__ yet
    line = () if mapper is None else tuple(mapper.self_and_descendants)
    names = sorted({name for group in together for name in group})
    return [name for name in names if line and all(reason_not_merged(one, name) for one in line)]


def _name_of(value: Any) -> str:
    name = getattr(value, "__qualname__", None)
    return name if isinstance(name, str) else repr(value)
