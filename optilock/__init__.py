"""Optimistic concurrency for SQLAlchemy: no lost update, every conflict with its three values."""

from typing import TYPE_CHECKING, Any

from optilock import events, moved
from optilock.conditions.condition import Condition
from optilock.conditions.demands import Demand
from optilock.dialects.transient import is_transient
from optilock.errors import (
    AlreadyExists,
    BadEntity,
    BadPrecondition,
    BatchFailed,
    CannotMerge,
    CommitOutcomeUnknown,
    ConcurrencyError,
    ConditionNotCompared,
    ConfigurationError,
    Entry,
    LinkGone,
    NotFound,
    NotWritten,
    OptilockError,
    PreconditionFailed,
    PreconditionRequired,
    SeparateUnitWarning,
    UnguardedStatement,
    UnguardedStatementWarning,
    WouldOverwrite,
)
from optilock.leases.errors import LeaseHeld, LeaseLost
from optilock.preconditions.apply import apply
from optilock.preconditions.etag import etag_of
from optilock.preconditions.expect import expect, overwrite, verify
from optilock.preconditions.forms import EditForm, FilledForm, conflict_form
from optilock.preconditions.lock import lock
from optilock.preconditions.merge import merge_changes
from optilock.preconditions.signed import sign_seen
from optilock.resolvers.merge import add_delta, merge_json, merge_set, merge_text
from optilock.resolvers.resolution import OnDelete, Resolution
from optilock.resolvers.rules import client_wins, merge_fields, per_field, reject, store_wins
from optilock.shares.errors import DeletePending, SharingViolation
from optilock.tokens import CompareValues, Counter, Manual, RowVersion, Timestamp, Unique
from optilock.unit.isolation import Isolation
from optilock.unit.parts import Part
from optilock.unit.retry import retry, retrying
from optilock.unit.running import attempt_number
from optilock.unit.strategies.heat import Adaptive
from optilock.unit.unit_of_work import UnitOfWork, repeatable_read, serializable, unit_of_work
from optilock.versioned import Versioned
from optilock.watched.guard import watch
from optilock.watched.guard.no_bump import no_bump
from optilock.watched.rows.touch import touch
from optilock.watched.session.watched import demand
from optilock.watched.statements.bulk import BulkResult, bulk_delete, bulk_update
from optilock.watched.statements.unguarded import guard_statements
from optilock.watched.statements.version import unchanged

if TYPE_CHECKING:
    from optilock.unit.async_unit import AsyncUnitOfWork

__all__ = [
    "Adaptive",
    "AlreadyExists",
    "AsyncUnitOfWork",
    "BadEntity",
    "BadPrecondition",
    "BatchFailed",
    "BulkResult",
    "CannotMerge",
    "CommitOutcomeUnknown",
    "CompareValues",
    "ConcurrencyError",
    "Condition",
    "ConditionNotCompared",
    "ConfigurationError",
    "Counter",
    "DeletePending",
    "Demand",
    "EditForm",
    "Entry",
    "FilledForm",
    "Isolation",
    "LeaseHeld",
    "LeaseLost",
    "LinkGone",
    "Manual",
    "NotFound",
    "NotWritten",
    "OnDelete",
    "OptilockError",
    "Part",
    "PreconditionFailed",
    "PreconditionRequired",
    "Resolution",
    "RowVersion",
    "SeparateUnitWarning",
    "SharingViolation",
    "Timestamp",
    "UnguardedStatement",
    "UnguardedStatementWarning",
    "Unique",
    "UnitOfWork",
    "Versioned",
    "WouldOverwrite",
    "add_delta",
    "apply",
    "attempt_number",
    "bulk_delete",
    "bulk_update",
    "client_wins",
    "conflict_form",
    "demand",
    "etag_of",
    "events",
    "expect",
    "guard_statements",
    "is_transient",
    "lock",
    "merge_changes",
    "merge_fields",
    "merge_json",
    "merge_set",
    "merge_text",
    "no_bump",
    "overwrite",
    "per_field",
    "reject",
    "repeatable_read",
    "retry",
    "retrying",
    "serializable",
    "sign_seen",
    "store_wins",
    "touch",
    "unchanged",
    "unit_of_work",
    "verify",
    "watch",
]


__version__: str

moved.install()


def __dir__() -> list[str]:
    """The public names, and not the modules which the imports above leave here."""
    return [*__all__, "__version__"]


def __getattr__(name: str) -> Any:
    """What is loaded when it is asked for: greenlet may be absent, metadata takes time to read."""
    if name == "__version__":
        from importlib.metadata import version

        return version("optilock")
    if name == "AsyncUnitOfWork":
        from optilock.unit.async_unit import AsyncUnitOfWork

        return AsyncUnitOfWork
    raise AttributeError(f"module 'optilock' has no attribute {name!r}")
