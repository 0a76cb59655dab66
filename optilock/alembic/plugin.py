"""The plug-in that Alembic loads whenever it is imported: autogenerate's comparisons, by name.

Alembic imports this module while it is being imported itself, so this module imports nothing of it.
A project enables the comparisons in its ``env.py``::

    context.configure(..., autogenerate_plugins=["alembic.autogenerate.*", "optilock"])

Without that line there is a warning when Alembic writes a version column as any other column.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from alembic.runtime.plugins import Plugin


def setup(plugin: Plugin) -> None:
    """Register the comparisons."""
    from alembic.util import DispatchPriority  # already loaded

    # After Alembic's own comparison of tables, whose operations they rewrite.
    plugin.add_autogenerate_comparator(
        _later("compare_tables"), "schema", priority=DispatchPriority.LAST
    )
    plugin.add_autogenerate_comparator(
        _later("compare_default"), "column", "server_default", priority=DispatchPriority.FIRST
    )
    # Its name puts it among Alembic's own comparisons, which need no line; it runs after ours.
    reminder = type(plugin)("alembic.autogenerate.optilock_reminder")
    reminder.add_autogenerate_comparator(
        _later("remind_of_line"), "schema", priority=DispatchPriority.LAST
    )
    reminder.add_autogenerate_comparator(
        _later("compare_type"), "column", "types", priority=DispatchPriority.FIRST
    )
    reminder.add_autogenerate_comparator(
        _later("keep_default"), "column", "server_default", priority=DispatchPriority.FIRST
    )


def _later(name: str) -> Callable[..., Any]:
    """Return a comparator that imports its module when it is called."""

    def compare(*arguments: Any) -> Any:
        from optilock.alembic import autogenerate

        return getattr(autogenerate, name)(*arguments)

    return compare


class _Module(ModuleType):
    """A module that is also a collection of itself, as Alembic before 1.19.1 needs it."""

    def __iter__(self) -> Iterator[ModuleType]:
        yield self


sys.modules[__name__].__class__ = _Module
