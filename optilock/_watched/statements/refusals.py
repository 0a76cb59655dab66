"""Statements that a watched session refuses, because they would overwrite changes silently.

*Upserts.* ``INSERT … ON CONFLICT DO UPDATE`` has to move the version of the row that it changes.
SQLAlchemy does not apply ``onupdate`` there, so the upsert itself must set the version.
``excluded.version`` does not move it: that is the first version, which a new row would have had.
A version that the program gives does not move it either: the session sets the next one instead
(:mod:`optilock._watched.statements.given_versions`).

*Demands.* Where the session demands something of rows (:func:`optilock.statements.demand`), three
kinds of statements are refused: SQL text, an upsert that may change a stored row, and a statement
inside another one. The demand cannot be added to them.
:mod:`optilock._watched.statements.demand_checks` checks the rows of all other statements.

*Strict sessions.* ::

    SessionLocal = watch(sessionmaker(engine), strict=True)

A class without a version is written as SQLAlchemy writes it: the last write wins, silently. If the
mixin was only forgotten, that is a mistake, and a strict session raises: for a flush that updates
or deletes a row of such a class, and for an ``update()``, a ``delete()`` or an upsert. A class that
needs no version declares ``__version_token__ = None``. Inserts, rows of a link table
(``secondary``), and tables without a class are allowed.

A flush is checked before it begins (:mod:`optilock._watched.guard.refusals`). Some changes appear
only while it runs: a foreign key that becomes NULL because the parent is deleted, or the change of
a listener. Their statement is refused, and the flush is rolled back. SQL text of such tables
is not checked, and neither are changes by the database itself (ON DELETE CASCADE).
What a strict session refuses of versioned rows: :mod:`optilock._watched.statements.unguarded`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapper
from sqlalchemy.sql import visitors

from optilock._mapped import Identity, all_mappers, facts
from optilock._mapping.tables import classes_over, moved_by_flushes, versioned_tables
from optilock._undocumented import statements
from optilock._watched.statements.by_key import refuse_first_versions
from optilock._watched.statements.given_versions import (
    is_of_new_row,
    makes_next,
    set_by_upsert,
    with_next_version,
)
from optilock._watched.statements.sql_text import (
    may_write,
    sql_of,
    tables_written,
    text_writes_rows,
)
from optilock.conditions.demands import Demands
from optilock.errors import ConfigurationError
from optilock.tokens.timestamp import NextServerTime

_REPLACES = re.compile(r"\bREPLACE\b", re.IGNORECASE)


def leaves_version(
    statement: sa.Insert, version: sa.Column[Any], given: Collection[str] = ()
) -> bool:
    """Return whether the upsert changes stored rows and leaves the version that others have read.

    ``given`` are the names of the new rows' parameters.
    """
    values = set_by_upsert(statement)
    names = {version.key, version.name}
    named = [value for name, value in values.items() if name in names]
    if not named:
        return bool(values)
    if is_of_new_row(named[0], version):
        return _repeats(version) or not names.isdisjoint(
            {*given, *statements.names_given_by(statement)}
        )
    return not makes_next(named[0], version, (statement.table,))


def replaces_rows(statement: sa.Insert) -> bool:
    """Return whether it deletes a stored row and inserts it again (``INSERT OR REPLACE``)."""
    return any(map(_REPLACES.search, statements.prefixes_of(statement)))


def changes_stored_rows(statement: sa.Insert) -> bool:
    """Return whether it may change, or insert again, a row that exists already."""
    return bool(set_by_upsert(statement)) or replaces_rows(statement)


def _repeats(version: sa.Column[Any]) -> bool:
    """Return whether the column's default, or none, gives two new rows one version."""
    default: Any = version.default
    return default is None or not default.is_callable or isinstance(version.type, sa.Integer)


def refuse_insert(statement: sa.Insert, params: Any) -> None:
    """Refuse an INSERT that would replace a versioned row unseen, or lose a version it gives.

    Raises:
        ConfigurationError: it changes stored rows and does not move the version, or it gives new
            rows a version that SQLAlchemy would not store.
    """
    mapper = getattr(statements.subject_of(statement), "mapper", None)
    if not isinstance(mapper, Mapper):
        refuse_upsert_of_table(statement, params)
        return
    version = facts(mapper).version
    if version is None:
        return
    if params:
        refuse_first_versions(mapper, params if isinstance(params, list) else [params])
    _refuse_replacing(statement)
    # SQLAlchemy stores the first version, not those of these rows
    if not leaves_version(statement, version):
        return
    if facts(mapper).by_application or facts(mapper).by_itself:
        return
    cls, key = mapper.class_.__name__, facts(mapper).token
    raise _version_left_error(cls, version, f"{cls}.{key}", by_values=facts(mapper).by_values)


def checked_upsert(statement: Any, params: Any) -> Any:
    """Return a statement for a connection; an upsert gets the next version, or is refused.

    Raises:
        ConfigurationError: it changes stored rows, and does not move the version.
    """
    if isinstance(statement, sa.Insert) and changes_stored_rows(statement):
        statement = with_next_version(statement, params)
        refuse_upsert_of_table(statement, params)
    return statement


def refuse_upsert_of_table(statement: sa.Insert, params: Any) -> None:
    table: Any = statement.table
    version: Any = versioned_tables().get(table)
    if version is None:
        return
    _refuse_replacing(statement)
    rows = params if isinstance(params, list) else [params or {}]
    given = {name for row in rows for name in row}
    moved_elsewhere = version.onupdate is None and moved_by_flushes(version) is None
    if moved_elsewhere or not leaves_version(statement, version, given):
        return  # by the database, or by the application
    raise _version_left_error(table.description, version, str(version))


def _refuse_replacing(statement: sa.Insert) -> None:
    if replaces_rows(statement):
        raise ConfigurationError(
            f"INSERT OR REPLACE deletes a row of {statement.table.description} and makes it again"
            " with its first version: a session that has read it would overwrite it unseen. Use ON"
            " CONFLICT DO UPDATE and set the version in it. Nothing was sent."
        )


def _version_left_error(
    what: str, version: sa.Column[Any], now: str, *, by_values: bool = False
) -> ConfigurationError:
    onupdate: Any = version.onupdate
    following = f"{now} + 1" if isinstance(version.type, sa.Integer) else "the next random value"
    if onupdate is not None and isinstance(onupdate.arg, NextServerTime):
        following = f"optilock.tokens.timestamp.NextServerTime({now})"
    if by_values:
        following = "the one that its token makes from the new values"
    return ConfigurationError(
        f"The upsert of {what} changes a stored row and leaves its version: a session that has read"
        f" the row would overwrite it unseen. Set {version.name!r} in it to {following} (and not to"
        " that of the new row, which is the first one). Nothing was sent."
    )


def refuse_unchecked(demands: Demands, statement: Any) -> None:
    """Refuse a write of demanded rows that cannot be read before it.

    Raises:
        ConfigurationError: it is a SQL text that changes such a table, or an upsert of one, or has
            a statement that writes one inside (``from_statement()``, a CTE of PostgreSQL).
    """
    if isinstance(statement, sa.Insert):
        if demands.may_concern_table(statement.table) and changes_stored_rows(statement):
            for cls in _demanded_classes(demands, statement.table):
                raise _upsert_error(cls, statement.table)
    elif (sql := sql_of(statement)) is not None:
        refuse_text(demands, sql)
        return
    refuse_inner_writes(demands, statement)


#: Statements in which there is no other one, by SQLAlchemy's keys: most programs have a few.
_without_inner_writes: set[Any] = set()
_MOST_KEYS = 1_000


def forget_statements() -> None:
    """Forget the keys of statements, which hold the classes of their tables."""
    _without_inner_writes.clear()


def inner_writes_of(statement: Any) -> Sequence[Any]:
    """Return the statements inside another one that may write rows."""
    if not isinstance(statement, sa.ClauseElement):  # a sequence, which is no statement
        return ()
    found = statements.cache_key_of(statement)
    key = None if found is None else found.key
    if key in _without_inner_writes:
        return ()
    inside = [
        one
        for one in visitors.iterate(statement)
        if one is not statement
        and isinstance(one, (sa.Update, sa.Delete, sa.Insert, sa.TextClause))
    ]
    if not inside and key is not None:
        if len(_without_inner_writes) >= _MOST_KEYS:
            _without_inner_writes.clear()
        _without_inner_writes.add(key)
    return inside


def writes_rows(statement: Any) -> bool:
    """Return whether it is, or contains, a statement that may write rows."""
    if isinstance(statement, (sa.Update, sa.Delete, sa.Insert)):
        return True
    if (sql := sql_of(statement)) is not None:
        return text_writes_rows(sql)
    return any(map(writes_rows, inner_writes_of(statement)))


def refuse_inner_writes(demands: Demands, statement: Any) -> None:
    """Refuse a statement that contains another one which writes such rows."""
    for one in inner_writes_of(statement):
        if isinstance(one, (sa.Insert, sa.TextClause)):
            refuse_unchecked(demands, one)
        else:
            for cls in _demanded_classes(demands, one.table):
                raise _inner_write_error(cls)


def refuse_text(demands: Demands, sql: str) -> None:
    """Refuse a SQL text, which is no statement of SQLAlchemy, for the same reasons."""
    if not may_write(sql) or not demands.may_be_named_in(sql):
        return
    known = {
        table.name.lower(): mapper.class_.__name__
        for mapper in all_mappers()
        if demands.conditions_for(mapper)
        for table in mapper.tables
        if isinstance(table, sa.Table)
    }
    for name in sorted(tables_written(sql, known)):
        cls = known[name]
        raise ConfigurationError(
            f"The SQL text writes the table {name!r}, and the session demands something of each row"
            f" of {cls} that it writes (optilock.statements.demand, or the leases of the class),"
            f" which cannot be checked for the rows of a text. Write update({cls}).where(...) or"
            f" delete({cls}).where(...), or change the objects. To write rows without the demand,"
            " use a session that does not have it. Nothing was sent."
        )


def refuse_other_tables(demands: Demands, statement: Any, tables: set[Any]) -> None:
    """Refuse a statement that writes an alias, or a further table (MariaDB).

    Raises:
        ConfigurationError: something is demanded of those rows.
    """
    written: set[Any] = set()
    if not isinstance(statement.table, sa.Table):
        written = {one for one in visitors.iterate(statement.table) if isinstance(one, sa.Table)}
    if isinstance(statement, sa.Update):
        written.update(tables_set_by(statement))
    for table in written - tables:
        for cls in _demanded_classes(demands, table):
            raise ConfigurationError(
                f"The statement names an alias of {table.description}, or several tables, and the"
                f" session demands something of each row of {cls} that it writes: name"
                f" {table.description} itself, in a statement of its own. Nothing was sent."
            )


def tables_set_by(statement: sa.Update) -> Iterator[Any]:
    """Return the tables whose columns it sets, as far as the names include a table."""
    return (
        table
        for name in statements.names_set_by(statement)
        if (table := _table_of(name)) is not None
    )


def _table_of(named: Any) -> Any:
    """Return the table of a column, or of an attribute, that a statement sets; a name has none."""
    column = named.__clause_element__() if hasattr(named, "__clause_element__") else named
    return getattr(column, "table", None)


def _demanded_classes(demands: Demands, table: Any) -> list[str]:
    if not demands.may_concern_table(table):
        return []
    return [one.class_.__name__ for one in classes_over(table) if demands.conditions_for(one)]


def _inner_write_error(cls: str) -> ConfigurationError:
    return ConfigurationError(
        f"A statement that writes rows of {cls} is inside of another one, and the session demands"
        " something of each of these rows, which cannot be checked there: execute it"
        " separately, with returning() if its rows are wanted. Nothing was sent."
    )


def _upsert_error(cls: str, table: Any) -> ConfigurationError:
    return ConfigurationError(
        f"The upsert of {table.description} may change a stored row, and the session demands"
        f" something of each row of {cls} that it changes, which cannot be checked. Insert new rows"
        f" (ON CONFLICT DO NOTHING), and write update({cls}).where(...) for stored rows. Nothing"
        " was sent."
    )


# -- rows without a version, in a strict session ---------------------------------------------------

_NOTHING_SENT = "Nothing was sent."


def refuse_unversioned_change(statement: Any) -> None:
    """Refuse a statement that changes rows of a class without a version, also inside of another.

    Raises:
        ConfigurationError: it does, and the class does not say that it needs none.
    """
    for one in (statement, *inner_writes_of(statement)):
        if isinstance(one, (sa.Update, sa.Delete)) or (
            isinstance(one, sa.Insert) and changes_stored_rows(one)
        ):
            _refuse_change(one)


def _refuse_change(statement: Any) -> None:
    mapper = getattr(statements.subject_of(statement), "mapper", None)
    tables = set(_tables_written(statement))
    if isinstance(mapper, Mapper):
        refuse_unversioned_class(mapper)
        tables.difference_update(mapper.tables)
    for table in tables:
        found = _unversioned_class_of(table)
        if found is not None:
            raise strict_mode_error(found)


def _tables_written(statement: Any) -> Iterable[sa.Table]:
    """Yield its table, or that of the alias, and others whose columns an UPDATE sets (MariaDB)."""
    for one in visitors.iterate(statement.table):
        if isinstance(one, sa.Table):
            yield one
    if isinstance(statement, sa.Update):
        yield from tables_set_by(statement)


def _unversioned_class_of(table: sa.Table) -> Mapper[Any] | None:
    """Return a class without a version whose rows are in the table, unless it is a link table."""
    classes = classes_over(table)
    if any(one.version_id_col is not None and one.version_id_col.table is table for one in classes):
        return None
    found = next((one for one in classes if facts(one).forgotten), None)
    return None if found is None or _is_link(table) else found


def _is_link(table: sa.Table) -> bool:
    """Return whether classes of the same metadata use it as a link table.

    Other classes are not examined, because that would configure their mappers.
    """
    neighbours = (
        one
        for one in all_mappers()
        if any(isinstance(its, sa.Table) and its.metadata is table.metadata for its in one.tables)
    )
    return any(each.secondary is table for mapper in neighbours for each in mapper.relationships)


def refuse_unversioned_class(mapper: Mapper[Any]) -> None:
    """Refuse to change rows of the class where they have no version.

    Raises:
        ConfigurationError: they have none, and the class does not say that it needs none.
    """
    if facts(mapper).forgotten:
        raise strict_mode_error(mapper)


def strict_mode_error(
    mapper: Mapper[Any], identity: Identity | None = None, *, then: str = _NOTHING_SENT
) -> ConfigurationError:
    """Return the error of a row, or rows, that would be written without a version."""
    name = mapper.class_.__name__
    what = f"Rows of {name} were" if identity is None else f"{name} {identity!r} was"
    return ConfigurationError(
        f"{what} to be changed in a strict session, and the class has no version: the change would"
        " silently overwrite changes that another transaction has made in the meantime. Add the"
        f" mixin optilock.Versioned to {name}; or, where its rows need no version, say so in the"
        f" class: __version_token__ = None. {then}"
    )
