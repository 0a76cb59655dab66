"""Find statements that go around the version.

::

    guard_statements(engine, "warn")       # in tests and in development
    guard_statements(engine, "forbid")     # where nobody should do it any more

What is looked at is everything that the engine executes: Core UPDATE and DELETE of a versioned
table, or of an alias of it, that do not compare the version (also inside of a CTE, and of the other
tables of joined rows), upserts that leave it as it is, and SQL text that writes a
versioned table and does not mention its version column. The ORM's own statements, and
optilock's, do compare it, or move it on purpose (``update(Account)`` in a session), and pass.

``"warn"`` gives an ``UnguardedStatementWarning`` that points to the caller's line; ``"forbid"``
raises ``UnguardedStatement`` before anything is sent. It is a help for finding code, off by
default, and no fence: text in a stored procedure is not seen (a trigger would see it).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any, Literal
from weakref import WeakKeyDictionary

from sqlalchemy import Column, ColumnClause, Delete, Engine, False_, Insert, Update, event
from sqlalchemy.sql import visitors

from optilock.errors import (
    ConfigurationError,
    UnguardedStatement,
    UnguardedStatementWarning,
)
from optilock.mapping.tables import joined_tables, moved_by_flushes, versioned_tables
from optilock.undocumented.statements import is_of_the_orm, values_of
from optilock.watched.session.watched import level_of_caller
from optilock.watched.statements.refusals import leaves_version, replaces
from optilock.watched.statements.sql_text import written_unversioned

_CHANGES = (Update, Delete, Insert)
Mode = Literal["warn", "forbid"]
_installed: WeakKeyDictionary[Engine, Callable[..., None]] = WeakKeyDictionary()


def guard_statements(engine: Any, mode: Mode = "warn") -> None:
    """Look at every statement of ``engine`` (also an ``AsyncEngine``) from here on.

    Calling it again changes the mode.

    Raises:
        ConfigurationError: it is no engine, or there is no such mode.
    """
    engine = getattr(engine, "sync_engine", engine)
    if not isinstance(engine, Engine):
        raise ConfigurationError(
            f"guard_statements() takes an Engine, not {type(engine).__name__}."
        )
    if mode not in ("warn", "forbid"):
        raise ConfigurationError(
            f"guard_statements(mode={mode!r}): write mode='warn' or mode='forbid'."
        )
    if engine in _installed:
        event.remove(engine, "before_cursor_execute", _installed.pop(engine))

    def before_cursor_execute(
        connection: Any, cursor: Any, sql: str, parameters: Any, context: Any, many: bool
    ) -> None:
        for problem in _problems(sql, context):
            if mode == "forbid":
                raise UnguardedStatement(problem)
            warnings.warn(problem, UnguardedStatementWarning, stacklevel=level_of_caller())

    event.listen(engine, "before_cursor_execute", before_cursor_execute)
    _installed[engine] = before_cursor_execute


def _problems(sql: str, context: Any) -> Iterator[str]:
    compiled = getattr(context, "compiled", None)
    statement = None if compiled is None else compiled.statement
    for cte in getattr(compiled, "ctes", None) or ():
        if isinstance(cte.element, _CHANGES):
            yield from _of_core(cte.element, context, inside=True)
    if isinstance(statement, _CHANGES):
        yield from _of_core(statement, context)
    elif statement is None or statement.__visit_name__ in ("textclause", "text"):
        for name, verb, version in written_unversioned(sql):
            yield (
                f"SQL text writes {name} ({verb}) without {version.name}: it goes around the check."
                " Use objects in a session, optilock.bulk_update(), or compare and move"
                f" {version.name} in the text."
            )


# -- Core -----------------------------------------------------------------------------------------


def _of_core(statement: Any, context: Any, *, inside: bool = False) -> Iterator[str]:
    named = values_of(statement) if isinstance(statement, Update) else ()
    others = {getattr(name, "table", statement.table) for name in named} - {statement.table}
    for table in (statement.table, *others):  # MariaDB: several tables
        yield from _of_table(table, statement, context, inside=inside)


def _of_table(given: Any, statement: Any, context: Any, *, inside: bool) -> Iterator[str]:
    table = getattr(given, "element", given)  # an alias of it
    joined = joined_tables().get(table)
    version: Any = versioned_tables().get(table) if joined is None else joined.version_id_col
    as_named = table is given and not (inside and joined is not None)
    upsert = isinstance(statement, Insert)
    if version is None or (as_named and not upsert and _from_orm(statement, context)):
        return
    name, column = table.description, version.name
    if joined is not None:
        column = f"{version.table.description}.{version.name}"
    if upsert:
        if replaces(statement) or _leaves(statement, version, context):
            yield (
                f"An upsert of {name} changes stored rows and leaves {column}: whoever has"
                f" read them would overwrite them unseen. Set {column} in it as well."
            )
    elif not compares(statement, version):
        verb = "UPDATE" if isinstance(statement, Update) else "DELETE"
        yield (
            f"A Core {verb} of {name} does not compare {column}: it overwrites what its"
            " author may not have seen. Change objects in a session, use optilock.bulk_update(),"
            f" or add {column} to its WHERE."
        )


def _from_orm(statement: Any, context: Any) -> bool:
    """The unit of work's, or ``update(Account)`` of a session, which moves the version."""
    options = getattr(context, "execution_options", {})
    return "compiled_cache" in options or is_of_the_orm(statement)


def _leaves(statement: Insert, version: Column[Any], context: Any) -> bool:
    """The version of new rows that SQLAlchemy adds by itself is not one that somebody gives."""
    compiled, rows = context.compiled, context.compiled_parameters
    if _from_orm(statement, context):
        rows = ()
        if version.onupdate is None and moved_by_flushes(version) is None:
            return False  # the database moves it, or the application
    added = {column.key for column in compiled.insert_prefetch}
    return leaves_version(statement, version, {name for row in rows[:1] for name in row} - added)


def compares(statement: Any, version: Column[Any]) -> bool:
    """In its WHERE; or it names the version among its values; or it matches nothing at all."""
    if any(getattr(n, "key", n) in (version.key, version.name) for n in values_of(statement)):
        return True
    where = statement.whereclause
    return where is not None and any(
        isinstance(one, False_) or (isinstance(one, ColumnClause) and version.shares_lineage(one))
        for one in visitors.iterate(where)
    )
