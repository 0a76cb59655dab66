"""What Alembic loads, whenever it is imported: the comparisons of autogenerate, by name only.

Alembic imports this module while it is being imported itself, so nothing of it is imported here.
A project switches the comparisons on in its ``env.py``::

    context.configure(..., autogenerate_plugins=["alembic.autogenerate.*", "optilock"])
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


def _compare_tables(*arguments: Any) -> Any:
    from optilock.alembic.autogenerate import compare_tables

    return compare_tables(*arguments)


def _compare_default(*arguments: Any) -> Any:
    from optilock.alembic.autogenerate import compare_default

    return compare_default(*arguments)


class _Module(ModuleType):
    """Alembic before 1.19.1 takes what it loads for a collection of modules: this is one of one."""

    def __iter__(self) -> Iterator[ModuleType]:
        yield self


sys.modules[__name__].__class__ = _Module
