"""What a strict session refuses: to change a row that nobody could miss a version of.

::

    SessionLocal = watch(sessionmaker(engine), strict=True)

A class without a version is written as SQLAlchemy writes it: the last writer wins, and nobody is
told. Where that is a mistake (somebody has forgotten the mixin), a strict session says so: a flush
that updates or deletes a row of such a class is refused, and so is an ``update()``, a ``delete()``
or an upsert. A class that is meant to have none says ``__version_token__ = None``. Inserts are
fine, and so are the rows of a link table (``secondary``), and tables without a class.

A flush is looked at before it begins (:mod:`optilock.guard.refusals`). What only becomes known
while it runs (a foreign key that goes to NULL because the parent is deleted, what a listener
changes) is refused when its statement comes, and the flush is rolled back. A SQL text is not
looked at, and neither is what the database does by itself (ON DELETE CASCADE).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Delete, Insert, Table, Update
from sqlalchemy.orm import Mapper
from sqlalchemy.sql import visitors

from optilock.errors import ConfigurationError
from optilock.mapped import Identity, all_mappers, facts
from optilock.mapping.tables import classes_over
from optilock.statements.refused import changes_stored_rows, inside_of, tables_set_by
from optilock.undocumented.statements import subject_of

_NOTHING_SENT = "Nothing was sent."


def refuse_forgotten(statement: Any) -> None:
    """Refuse a statement that changes rows of a class without a version, also inside of another.

    Raises:
        ConfigurationError: it does, and the class does not say that it needs none.
    """
    for one in (statement, *inside_of(statement)):
        if isinstance(one, (Update, Delete)) or (
            isinstance(one, Insert) and changes_stored_rows(one)
        ):
            _refuse_change(one)


def _refuse_change(statement: Any) -> None:
    mapper = getattr(subject_of(statement), "mapper", None)
    tables = set(_tables_written(statement))
    if isinstance(mapper, Mapper):
        refuse_class(mapper)
        tables.difference_update(mapper.tables)
    for table in tables:
        found = _forgotten_over(table)
        if found is not None:
            raise forgotten(found)


def _tables_written(statement: Any) -> Iterable[Table]:
    """Its table, or that of the alias, and others that an UPDATE sets columns of (MariaDB)."""
    for one in visitors.iterate(statement.table):
        if isinstance(one, Table):
            yield one
    if isinstance(statement, Update):
        yield from tables_set_by(statement)


def _forgotten_over(table: Table) -> Mapper[Any] | None:
    """A class whose rows are in the table, which has no version: unless it is a link table."""
    classes = classes_over(table)
    if any(one.version_id_col is not None and one.version_id_col.table is table for one in classes):
        return None
    found = next((one for one in classes if facts(one).forgotten), None)
    return None if found is None or _is_link(table) else found


def _is_link(table: Table) -> bool:
    """Of classes beside it: to ask a class elsewhere would configure what is no matter of ours."""
    beside = (
        one
        for one in all_mappers()
        if any(isinstance(its, Table) and its.metadata is table.metadata for its in one.tables)
    )
    return any(each.secondary is table for mapper in beside for each in mapper.relationships)


def refuse_class(mapper: Mapper[Any]) -> None:
    """Refuse to change rows of the class where they have no version.

    Raises:
        ConfigurationError: they have none, and the class does not say that it needs none.
    """
    if facts(mapper).forgotten:
        raise forgotten(mapper)


def forgotten(
    mapper: Mapper[Any], identity: Identity | None = None, *, then: str = _NOTHING_SENT
) -> ConfigurationError:
    """The row, or rows, of the class would be written without a version."""
    name = mapper.class_.__name__
    what = f"Rows of {name} were" if identity is None else f"{name} {identity!r} was"
    return ConfigurationError(
        f"{what} to be changed in a strict session, and the class has no version: the change would"
        " go over whatever somebody else has written meanwhile, and nobody would be told. Add the"
        f" mixin optilock.Versioned to {name}; or, where its rows need no version, say so in the"
        f" class: __version_token__ = None. {then}"
    )
