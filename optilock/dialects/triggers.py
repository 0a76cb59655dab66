"""What a trigger that moves a version is made of."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Names", "TriggerDDL"]


class Names(NamedTuple):
    """Quoted for the database."""

    #: With its schema.
    table: str
    #: Without it.
    bare_table: str
    column: str
    trigger: str
    #: The trigger's name with the table's schema.
    qualified_trigger: str
    #: Columns that find a row, where SQLite has no ``rowid`` for it.
    keys: tuple[str, ...]


class TriggerDDL(NamedTuple):
    """Statements, in order."""

    create: tuple[str, ...]
    drop: tuple[str, ...]
    #: What the catalogue of the database keeps of the trigger.
    source: str
