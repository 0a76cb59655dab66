"""A search for statements that bypass the version.

::

    guard_statements(engine, "warn")       # in tests and in development
    guard_statements(engine, "forbid")     # where no statement should do it any more

It checks all statements that the engine executes: Core UPDATE and DELETE of a versioned table, or
of an alias of it, that do not compare the version (also inside a CTE, and of the other tables of
joined rows), upserts that leave it unchanged, and SQL text that writes a versioned table and does
not mention its version column. The statements of the ORM, and of optilock, do compare it, or move
it on purpose (``update(Account)`` in a session), and pass.

``"warn"`` gives an ``UnguardedStatementWarning`` that points to the caller's line; ``"forbid"``
raises ``UnguardedStatement`` before anything is sent. It helps to find code, and is off by
default. It is no protection: text in a stored procedure is not checked (a trigger would see it).
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
from optilock.watched.session.record import level_of_caller
from optilock.watched.statements.refusals import leaves_version, replaces_rows
from optilock.watched.statements.sql_text import unversioned_writes

_CHANGES = (Update, Delete, Insert)
Mode = Literal["warn", "forbid"]
_installed: WeakKeyDictionary[Engine, Callable[..., None]] = WeakKeyDictionary()


def guard_statements(engine: Any, mode: Mode = "warn") -> None:
    """Check every statement of ``engine`` (also an ``AsyncEngine``) from here on.

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


def changes_executed(context: Any) -> Iterator[tuple[Any, bool]]:
    """Yield the Core changes that are executed, each with whether it is in a CTE.

    ``(None, False)`` stands for a SQL text.
    """
    compiled = getattr(context, "compiled", None)
    statement = None if compiled is None else compiled.statement
    for cte in getattr(compiled, "ctes", None) or ():
        if isinstance(cte.element, _CHANGES):
            yield cte.element, True
    if isinstance(statement, _CHANGES):
        yield statement, False
    elif statement is None or statement.__visit_name__ in ("textclause", "text"):
        yield None, False


def _problems(sql: str, context: Any) -> Iterator[str]:
    for statement, in_cte in changes_executed(context):
        if statement is not None:
            yield from _problems_of_core(statement, context, inside=in_cte)
            continue
        for name, verb, version in unversioned_writes(sql):
            yield (
                f"SQL text writes {name} ({verb}) without {version.name}: it goes around the check."
                " Use objects in a session, optilock.bulk_update(), or compare and move"
                f" {version.name} in the text."
            )


# -- Core ------------------------------------------------------------------------------------------


def _problems_of_core(statement: Any, context: Any, *, inside: bool = False) -> Iterator[str]:
    named = values_of(statement) if isinstance(statement, Update) else ()
    others = {getattr(name, "table", statement.table) for name in named} - {statement.table}
    for table in (statement.table, *others):  # MariaDB: several tables
        yield from _problems_of_table(table, statement, context, inside=inside)


def _problems_of_table(given: Any, statement: Any, context: Any, *, inside: bool) -> Iterator[str]:
    table = getattr(given, "element", given)  # an alias of it
    version = version_of_table(table)
    is_joined = table in joined_tables()
    as_named = table is given and not (inside and is_joined)
    upsert = isinstance(statement, Insert)
    if version is None or (as_named and not upsert and _is_from_orm(statement, context)):
        return
    column = f"{version.table.description}.{version.name}" if is_joined else version.name
    if upsert:
        if replaces_rows(statement) or _leaves_version(statement, version, context):
            yield _upsert_message(table.description, column)
    elif not compares_version(statement, version):
        yield _not_compared_message(statement, table.description, column)


def version_of_table(table: Any) -> Any:
    """Return the version of the table's rows, perhaps in another table; ``None``: none."""
    joined = joined_tables().get(table)
    return versioned_tables().get(table) if joined is None else joined.version_id_col


def _upsert_message(name: str, column: str) -> str:
    return (
        f"An upsert of {name} changes stored rows and leaves {column}: a session that has"
        f" read them would overwrite them unseen. Set {column} in it as well."
    )


def _not_compared_message(statement: Any, name: str, column: str) -> str:
    verb = "UPDATE" if isinstance(statement, Update) else "DELETE"
    return (
        f"A Core {verb} of {name} does not compare {column}: it overwrites what its"
        " author may not have seen. Change objects in a session, use optilock.bulk_update(),"
        f" or add {column} to its WHERE."
    )


def _is_from_orm(statement: Any, context: Any) -> bool:
    """Return whether it is of the unit of work, or ``update(Account)``, which moves the version."""
    options = getattr(context, "execution_options", {})
    return "compiled_cache" in options or is_of_the_orm(statement)


def _leaves_version(statement: Insert, version: Column[Any], context: Any) -> bool:
    """Return whether an upsert leaves the version. One that SQLAlchemy adds is not a given one."""
    compiled, rows = context.compiled, context.compiled_parameters
    if _is_from_orm(statement, context):
        rows = ()
        if version.onupdate is None and moved_by_flushes(version) is None:
            return False  # the database moves it, or the application
    added = {column.key for column in compiled.insert_prefetch}
    return leaves_version(statement, version, {name for row in rows[:1] for name in row} - added)


def compares_version(statement: Any, version: Column[Any]) -> bool:
    """Return whether it compares the version in its WHERE, sets it, or matches nothing at all."""
    if any(getattr(n, "key", n) in (version.key, version.name) for n in values_of(statement)):
        return True
    where = statement.whereclause
    return where is not None and any(
        isinstance(one, False_) or (isinstance(one, ColumnClause) and version.shares_lineage(one))
        for one in visitors.iterate(where)
    )
