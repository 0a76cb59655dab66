"""What Alembic loads, whenever it is imported: the comparisons of autogenerate, by name only.

Alembic imports this module while it is being imported itself, so nothing of it is imported here.
A project switches the comparisons on in its ``env.py``::

    context.configure(..., autogenerate_plugins=["alembic.autogenerate.*", "optilock"])

Without that line a warning says so, when Alembic writes a version column as any other column.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from alembic.runtime.plugins import Plugin


def setup(plugin: Plugin) -> None:
    """Register the comparisons."""
    from alembic.util import DispatchPriority  # loaded by now, whatever imports us

    # After Alembic's own comparison of tables, whose operations they rewrite.
    plugin.add_autogenerate_comparator(_compare_tables, "schema", priority=DispatchPriority.LAST)
    plugin.add_autogenerate_comparator(
        _compare_default, "column", "server_default", priority=DispatchPriority.FIRST
    )
    # By its name among Alembic's own, which run without the line; after ours, where that is there.
    reminder = type(plugin)("alembic.autogenerate.optilock_reminder")
    reminder.add_autogenerate_comparator(_remind, "schema", priority=DispatchPriority.LAST)
    reminder.add_autogenerate_comparator(
        _compare_type, "column", "types", priority=DispatchPriority.FIRST
    )


def _compare_tables(*arguments: Any) -> Any:
    from optilock.alembic.autogenerate import compare_tables

    return compare_tables(*arguments)


def _remind(*arguments: Any) -> Any:
    from optilock.alembic.autogenerate import remind_of_line

    return remind_of_line(*arguments)


def _compare_type(*arguments: Any) -> Any:
    from optilock.alembic.autogenerate import compare_type

    return compare_type(*arguments)


def _compare_default(*arguments: Any) -> Any:
    from optilock.alembic.autogenerate import compare_default

    return compare_default(*arguments)


class _Module(ModuleType):
    """Alembic before 1.19.1 takes what it loads for a collection of modules: this is one of one."""

    def __iter__(self) -> Iterator[ModuleType]:
        yield self


sys.modules[__name__].__class__ = _Module
