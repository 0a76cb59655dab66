"""Optimistic concurrency for SQLAlchemy: no lost update, every conflict with its three values.

The names here are the ones that most programs need; each is loaded when it is first used. The
others are in the module of their subject: :mod:`optilock.resolvers`, :mod:`optilock.statements`,
:mod:`optilock.preconditions`, :mod:`optilock.entities`, :mod:`optilock.unit`,
:mod:`optilock.tokens`, :mod:`optilock.conditions`, :mod:`optilock.errors`, :mod:`optilock.leases`,
:mod:`optilock.shares` and :mod:`optilock.queue`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from optilock import _old_paths

if TYPE_CHECKING:
    from optilock import events as events
    from optilock._versioned import Versioned as Versioned
    from optilock._watched.guard.installation import watch as watch
    from optilock._watched.rows.touch import touch as touch
    from optilock._watched.statements.bulk import bulk_delete as bulk_delete
    from optilock._watched.statements.bulk import bulk_update as bulk_update
    from optilock.dialects.transient import is_transient as is_transient
    from optilock.errors.base import ConfigurationError as ConfigurationError
    from optilock.errors.base import OptilockError as OptilockError
    from optilock.errors.conflicts import ConcurrencyError as ConcurrencyError
    from optilock.errors.conflicts import Entry as Entry
    from optilock.errors.conflicts import PreconditionFailed as PreconditionFailed
    from optilock.errors.conflicts import WouldOverwrite as WouldOverwrite
    from optilock.preconditions.edits import apply as apply
    from optilock.preconditions.entity_tags import etag_of as etag_of
    from optilock.preconditions.expectations import expect as expect
    from optilock.preconditions.expectations import verify as verify
    from optilock.preconditions.row_locks import lock as lock
    from optilock.resolvers.rules import client_wins as client_wins
    from optilock.resolvers.rules import merge_fields as merge_fields
    from optilock.resolvers.rules import reject as reject
    from optilock.resolvers.rules import store_wins as store_wins
    from optilock.unit.async_unit import AsyncUnitOfWork as AsyncUnitOfWork
    from optilock.unit.isolation import Isolation as Isolation
    from optilock.unit.retries import retry as retry
    from optilock.unit.retries import retrying as retrying
    from optilock.unit.units import UnitOfWork as UnitOfWork
    from optilock.unit.units import repeatable_read as repeatable_read
    from optilock.unit.units import serializable as serializable
    from optilock.unit.units import unit_of_work as unit_of_work

__all__ = [
    "AsyncUnitOfWork",
    "ConcurrencyError",
    "ConfigurationError",
    "Entry",
    "Isolation",
    "OptilockError",
    "PreconditionFailed",
    "UnitOfWork",
    "Versioned",
    "WouldOverwrite",
    "apply",
    "bulk_delete",
    "bulk_update",
    "client_wins",
    "etag_of",
    "events",
    "expect",
    "is_transient",
    "lock",
    "merge_fields",
    "reject",
    "repeatable_read",
    "retry",
    "retrying",
    "serializable",
    "store_wins",
    "touch",
    "unit_of_work",
    "verify",
    "watch",
]

__version__: str

_HOMES = {
    "AsyncUnitOfWork": "optilock.unit.async_unit",
    "ConcurrencyError": "optilock.errors.conflicts",
    "ConfigurationError": "optilock.errors.base",
    "Entry": "optilock.errors.conflicts",
    "Isolation": "optilock.unit.isolation",
    "OptilockError": "optilock.errors.base",
    "PreconditionFailed": "optilock.errors.conflicts",
    "UnitOfWork": "optilock.unit.units",
    "Versioned": "optilock._versioned",
    "WouldOverwrite": "optilock.errors.conflicts",
    "apply": "optilock.preconditions.edits",
    "bulk_delete": "optilock._watched.statements.bulk",
    "bulk_update": "optilock._watched.statements.bulk",
    "client_wins": "optilock.resolvers.rules",
    "etag_of": "optilock.preconditions.entity_tags",
    "expect": "optilock.preconditions.expectations",
    "is_transient": "optilock.dialects.transient",
    "lock": "optilock.preconditions.row_locks",
    "merge_fields": "optilock.resolvers.rules",
    "reject": "optilock.resolvers.rules",
    "repeatable_read": "optilock.unit.units",
    "retry": "optilock.unit.retries",
    "retrying": "optilock.unit.retries",
    "serializable": "optilock.unit.units",
    "store_wins": "optilock.resolvers.rules",
    "touch": "optilock._watched.rows.touch",
    "unit_of_work": "optilock.unit.units",
    "verify": "optilock.preconditions.expectations",
    "watch": "optilock._watched.guard.installation",
}

_old_paths.install()


def __dir__() -> list[str]:
    """Return the public names, without the modules that imports leave here."""
    return [*__all__, "__version__"]


def __getattr__(name: str) -> Any:
    """Load a public name at its first use; warn where it has moved."""
    if name in _HOMES:
        from optilock._coroutines import load_of_asyncio

        value = load_of_asyncio(_HOMES[name], name)
    elif name == "events":
        value = import_module("optilock.events")
    elif name == "__version__":
        from importlib.metadata import version

        value = version("optilock")
    else:
        return _old_paths.load_name(name)
    globals()[name] = value
    return value
