"""What all operations of optilock have: they can be written as Python, taken back, and compared.

Alembic loads optilock's plug-in while it is being imported itself. Therefore the operations import
nothing of ``alembic.autogenerate``; what writes them down (:mod:`optilock.alembic.rendering`) comes
in later.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from alembic.operations import MigrateOperation

__all__ = ["Call", "VersionOperation"]


@dataclass(frozen=True)
class Call:
    """``op.name(arguments, options)``; options that are None or empty are left out."""

    name: str
    arguments: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)


class VersionOperation(MigrateOperation):
    """An operation of optilock."""

    def call(self) -> Call:
        """The call that does this operation in a migration script."""
        raise NotImplementedError  # every operation says its own

    def to_diff_tuple(self) -> tuple[Any, ...]:
        """What ``alembic check`` and ``compare_metadata`` show."""
        call = self.call()
        given = {name: value for name, value in call.options.items() if value is not None}
        return (call.name, *call.arguments, given)
