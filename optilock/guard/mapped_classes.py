"""Classes that only have SQLAlchemy's own ``version_id_col``, once a session is watched.

What :class:`~optilock.Versioned` does for its own classes while they are mapped: the version is
read with its row, also where ``load_only()`` or ``defer()`` leave it out. SQLAlchemy would read it
inside the flush, when it already is the other writer's. And their tables are known, so that
statements which go around the version are found.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, ColumnElement, event
from sqlalchemy.orm import Mapper

from optilock.conflicts.together import check_declared
from optilock.copies.members import notice_orphans
from optilock.copies.rolled_back import tell_pickles
from optilock.mapped import facts
from optilock.mapping.attribute import load_always
from optilock.mapping.moves import move_by_key
from optilock.mapping.tables import know_tables, share_table
from optilock.rows.seen import watch_loads
from optilock.undocumented.mappers import mapped_by, registries


def read_versions_with_rows() -> None:
    """From here on, rows of every class with a version come with it."""
    if event.contains(Mapper, "mapper_configured", _configured):
        return
    event.listen(Mapper, "mapper_configured", _configured)
    for registry in registries():
        for mapper in mapped_by(registry):
            if mapper.configured:
                _configured(mapper, mapper.class_)


def _configured(mapper: Mapper[Any], cls: type[Any]) -> None:
    notice_orphans(mapper)
    version: Any = mapper.version_id_col
    if not isinstance(version, ColumnElement):  # SQLAlchemy takes anything, and fails in the flush
        return
    if facts(mapper).kind is None:  # the mixin has looked at its classes
        check_declared(mapper, cls)
        if isinstance(version, Column):
            move_by_key(mapper)
    load_always(mapper)
    watch_loads(mapper)
    tell_pickles(mapper)
    if isinstance(version, Column):
        know_tables(mapper, version)
        share_table(mapper)
