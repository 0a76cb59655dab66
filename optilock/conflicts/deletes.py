"""How strict a delete is about a row that somebody else changed or deleted first.

::

    class Draft(Versioned, Base):
        __on_delete__ = OnDelete.IGNORE_GONE

    UnitOfWork(SessionLocal, on_delete=OnDelete.IGNORE_VERSION)
    watch(SessionLocal, on_delete={Draft: OnDelete.IGNORE_VERSION, Invoice: OnDelete.STRICT})

==================  ==============================  ==============================
\\                   somebody else changed the row   somebody else deleted the row
==================  ==============================  ==============================
`STRICT`            a conflict                      a conflict
`IGNORE_GONE`       a conflict                      nothing left to do
`IGNORE_VERSION`    deleted all the same            nothing left to do
==================  ==============================  ==============================

What is a conflict goes to the resolver, and without one comes out as ``ConcurrencyError``. What
is none asks no resolver. The unit's policy goes first, then the class's, then ``STRICT``.

A delete still carries its version: only a row that missed is looked at, so a policy costs nothing
where nobody interferes. Where the database itself ends the transaction (see
``docs/isolation.md``) nothing can be ignored; the unit runs again, and reads what there is.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from optilock.conflicts.resolution import Resolution, check_classes, nearest
from optilock.errors import ConfigurationError, Entry

__all__ = [
    "DeletePolicies",
    "OnDelete",
    "check_on_delete",
    "check_policy",
    "policy_for",
    "settled_by_policy",
]


class OnDelete(Enum):
    """What a delete does when its row is not as it was read."""

    #: The row must be there, in the version that was read.
    STRICT = "strict"
    #: Already deleted by somebody else is as good as deleted by us.
    IGNORE_GONE = "ignore_gone"
    #: Delete whatever is stored; already deleted is fine, too.
    IGNORE_VERSION = "ignore_version"


#: What ``on_delete=`` takes: a policy for every class, or one for each of some classes.
DeletePolicies = OnDelete | Mapping[type[Any], OnDelete] | None


def settled_by_policy(entry: Entry[Any], on_delete: DeletePolicies) -> Resolution | None:
    """What the policy decides about a row that missed; ``None`` where it is a conflict."""
    if entry.action != "delete":
        return None
    policy = policy_for(entry.model, on_delete)
    if policy is OnDelete.STRICT:
        return None
    if entry.kind == "deleted":
        return Resolution.keep_database()
    return Resolution.overwrite() if policy is OnDelete.IGNORE_VERSION else None


def policy_for(model: type[Any], on_delete: DeletePolicies) -> OnDelete:
    """The unit's policy, else the class's own, else ``STRICT``."""
    given = nearest(on_delete, model) if isinstance(on_delete, Mapping) else on_delete
    own = getattr(model, "__on_delete__", None)
    return given or (own if isinstance(own, OnDelete) else OnDelete.STRICT)


def check_on_delete(value: Any) -> DeletePolicies:
    """``value``, if ``on_delete=`` can take it; ``ConfigurationError`` otherwise."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        return check_policy(value, "on_delete")
    check_classes("on_delete", value, "Draft: OnDelete.IGNORE_GONE")
    for model, policy in value.items():
        check_policy(policy, f"on_delete for {model.__name__}")
    return dict(value)


def check_policy(value: Any, what: str) -> OnDelete:
    """``value``, if it is a policy; ``ConfigurationError`` otherwise."""
    if isinstance(value, OnDelete):
        return value
    raise ConfigurationError(
        f"{what} is {value!r}, which is no policy for deletes: write"
        f" {', '.join(f'OnDelete.{policy.name}' for policy in OnDelete)}."
    )
