"""Statements that bypass the version, and a search for them.

::

    guard_statements(engine, "warn")       # in tests and in development
    guard_statements(engine, "forbid")     # where no statement should do it any more
    SessionLocal = watch(sessionmaker(engine), strict=True)      # refuses them as well

An UPDATE or DELETE that does not compare the version overwrites what its author may not have seen,
also where it moves the version on. That is so for ``update(Account)`` and ``Query.delete()`` as for
a statement of the table, an alias of it, one inside a CTE, and one of the other tables of joined
rows; for upserts that leave the version unchanged; and for SQL text that writes a versioned table
and does not mention its version column. These pass:

* a statement whose WHERE compares the version with a value (``unchanged()``,
  :mod:`optilock._watched.statements.comparisons`), or that moves it to a next one
  (:mod:`optilock._watched.statements.given_versions`);
* one that only adds to columns (``values(likes=Page.likes + 1)``) and moves the version: it writes
  nothing over;
* one that sets only columns of ``__version_ignore__``;
* what the unit of work sends, SQLAlchemy's UPDATE by primary key, and optilock's own statements:
  they compare it.

:func:`guard_statements` checks all statements that an engine executes. ``"warn"`` gives an
``UnguardedStatementWarning`` that points to the caller's line; ``"forbid"`` raises
``UnguardedStatement`` before anything is sent. It helps to find code, and is off by default. It is
no protection: text in a stored procedure is not checked (a trigger would see it).

:func:`refuse_unguarded` checks the statements of a strict session, and its classes whose values are
compared (``CompareValues``), too. :mod:`~optilock._watched.statements.unguarded_warnings` warns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, Literal
from weakref import WeakKeyDictionary

from sqlalchemy import (
    CTE,
    BinaryExpression,
    BindParameter,
    Column,
    ColumnClause,
    Delete,
    Dialect,
    Engine,
    Insert,
    StatementLambdaElement,
    Table,
    Update,
    event,
)
from sqlalchemy.engine import Compiled
from sqlalchemy.orm import FromStatement, Mapper
from sqlalchemy.sql import operators, visitors

from optilock._mapped import facts
from optilock._mapping.original_values import compared_names
from optilock._mapping.tables import (
    classes_over,
    features_in_use,
    joined_tables,
    moved_by_flushes,
    owner_of,
    versioned_tables,
)
from optilock._undocumented.statements import (
    MappersCache,
    is_of_the_orm,
    is_ordered,
    names_set_by,
    resolve_lambda,
    subject_of,
    values_of,
)
from optilock._watched.session.record import warn_caller
from optilock._watched.statements.comparisons import compares_with_value
from optilock._watched.statements.given_versions import is_moved_by
from optilock._watched.statements.refusals import (
    inner_writes_of,
    leaves_version,
    refuse_upsert_of_table,
    replaces_rows,
)
from optilock._watched.statements.silent_cascades import (
    refuse_silent_statement,
    refuse_silent_text,
)
from optilock._watched.statements.sql_text import calls_code, may_write, sql_of, unversioned_writes
from optilock._watched.statements.version import version_is_added
from optilock.conditions.write import is_checked
from optilock.errors import (
    ConfigurationError,
    UnguardedStatement,
    UnguardedStatementWarning,
)

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
            warn_caller(problem, UnguardedStatementWarning)

    event.listen(engine, "before_cursor_execute", before_cursor_execute)
    _installed[engine] = before_cursor_execute


def changes_executed(context: Any) -> Iterator[tuple[Any, bool]]:
    """Yield the Core changes that are executed, each with whether it is in a CTE.

    ``(None, False)`` stands for a SQL text. SQLAlchemy compiles statements of one form once: the
    ``compiled.statement`` is the first of them, with other values and options than this one.
    """
    compiled = getattr(context, "compiled", None)
    statement = getattr(context, "invoked_statement", None)
    if statement is None:
        statement = getattr(compiled, "statement", None)
    if isinstance(statement, FromStatement):
        statement = statement.element
    elif isinstance(statement, StatementLambdaElement):
        statement = resolve_lambda(statement)
    if getattr(compiled, "ctes", None):
        inside = (one.element for one in visitors.iterate(statement) if isinstance(one, CTE))
        for change in dict.fromkeys(one for one in inside if isinstance(one, _CHANGES)):
            yield change, True
    if isinstance(statement, _CHANGES):
        yield statement, False
    elif statement is None or statement.__visit_name__ in ("textclause", "text", "ddl"):
        yield None, False


def _problems(sql: str, context: Any) -> Iterator[str]:
    for statement, in_cte in changes_executed(context):
        if statement is not None:
            yield from _problems_of_core(statement, context, inside=in_cte)
            continue
        yield from problems_of_text(sql, context.dialect)


def problems_of_text(sql: str, dialect: Dialect | None) -> Iterator[str]:
    """Yield a sentence for each versioned table that the text writes without its version.

    Code that it runs, and whose writes are unknown, is such a problem, too.
    """
    if calls_code(sql, dialect):
        yield (
            "SQL text runs code (CALL, EXECUTE or DO), and the tables that it writes are unknown:"
            " it may go around the check. Send it by a session that is not strict, on an engine"
            " without guard_statements(), or write its statements in the program."
        )
    for name, verb, version in unversioned_writes(sql, dialect):
        way = _WAYS.get(verb, "compare and move {version} in the text")
        yield (
            f"SQL text writes {name} ({verb}) without {_LEFT.get(verb, '')}{version.name}: it goes"
            " around the check. Use objects in a session, optilock.bulk_update(), or"
            f" {way.format(version=version.name)}."
        )


#: What a text may do instead, by its verb; and the part of its work that it leaves out.
_WAYS = {
    "INSERT": "set {version} to its next value, or compare it, where the upsert changes the row",
    "MERGE": "compare and move {version} where it changes the stored row",
    "REPLACE": "an upsert that sets {version} to its next value",
    "TRUNCATE": "optilock.bulk_delete()",
}
_LEFT = dict.fromkeys(("INSERT", "MERGE", "REPLACE"), "moving or comparing the stored ")


# -- Core ------------------------------------------------------------------------------------------


def _problems_of_core(statement: Any, context: Any, *, inside: bool = False) -> Iterator[str]:
    for table in _tables_written(statement):
        yield from _problems_of_table(table, statement, context, inside=inside)


def _problems_of_table(given: Any, statement: Any, context: Any, *, inside: bool) -> Iterator[str]:
    table = getattr(given, "element", given)  # an alias of it
    version = version_of_table(table)
    is_joined = table in joined_tables()
    as_named = table is given and not (inside and is_joined)
    upsert = isinstance(statement, Insert)
    if version is None or (as_named and not upsert and _is_of_mappers(context)):
        return
    if upsert:
        if replaces_rows(statement) or _leaves_version(statement, version, context):
            yield _upsert_message(table.description, _shown(version, is_joined))
    elif not is_guarded(statement, given, version, context.compiled.column_keys or ()):
        yield _not_compared_message(statement, table, version)


def _tables_written(statement: Any) -> Iterator[Any]:
    """Yield the statement's table, and on MariaDB the others that it sets columns of."""
    yield statement.table
    named = values_of(statement) if isinstance(statement, Update) else ()
    tables = {getattr(name, "table", None) for name in named}  # a text is of none
    yield from tables - {statement.table, None}


def version_of_table(table: Any) -> Any:
    """Return the version of the table's rows, perhaps in another table; ``None``: none."""
    joined = joined_tables().get(table)
    return versioned_tables().get(table) if joined is None else joined.version_id_col


def _upsert_message(name: str, column: str) -> str:
    return (
        f"An upsert of {name} changes stored rows and leaves {column}: a session that has"
        f" read them would overwrite them unseen. Set {column} in it as well."
    )


def _shown(version: Column[Any], with_table: bool) -> str:
    return f"{version.table.description}.{version.name}" if with_table else version.name


def _not_compared_message(statement: Any, table: Any, version: Column[Any]) -> str:
    verb, bulk = ("UPDATE", "bulk_update")
    if isinstance(statement, Delete):
        verb, bulk = ("DELETE", "bulk_delete")
    what, column = table.description, _shown(version, table in joined_tables())
    if is_of_the_orm(statement):
        what, column = _names_of_class(statement, version) or (what, column)
    return (
        f"The {verb} of {what} does not compare {column}: it overwrites what its author may not"
        " have seen. Add where(unchanged(obj)) of optilock.statements for loaded objects, or"
        f" {column} to its WHERE, in the version that was read; for many rows use"
        f" optilock.{bulk}(). If the write is to win over others, change objects in a session"
        " after overwrite(obj) of optilock.preconditions."
    )


def _names_of_class(statement: Any, version: Column[Any]) -> tuple[str, str] | None:
    """Return the names of the class and of its version's attribute."""
    mapper = getattr(subject_of(statement), "mapper", None)
    if not isinstance(mapper, Mapper) or mapper.version_id_col is not version:
        return None
    cls = mapper.class_.__name__
    return cls, f"{cls}.{facts(mapper).token}"


def _is_of_mappers(context: Any) -> bool:
    """Return whether the unit of work sends it, or an UPDATE by primary key."""
    options = getattr(context, "execution_options", {})
    return type(options.get("compiled_cache")) is MappersCache


def _is_from_orm(statement: Any, context: Any) -> bool:
    return _is_of_mappers(context) or is_of_the_orm(statement)


def _leaves_version(statement: Insert, version: Column[Any], context: Any) -> bool:
    """Return whether an upsert leaves the version. One that SQLAlchemy adds is not a given one."""
    compiled, rows = context.compiled, context.compiled_parameters
    if _is_from_orm(statement, context):
        rows = ()
        if version.onupdate is None and moved_by_flushes(version) is None:
            return False  # the database moves it, or the application
    added = {column.key for column in compiled.insert_prefetch}
    return leaves_version(statement, version, {name for row in rows[:1] for name in row} - added)


def compares_version(
    statement: Any,
    given: Any,
    version: Column[Any],
    parameters: Any = None,
    *,
    where_only: bool = False,
) -> bool:
    """Return whether it compares the version in its WHERE, moves it, or matches nothing at all.

    ``given`` is the table that it writes, or an alias of it.
    """
    if (
        not where_only
        and isinstance(statement, Update)
        and is_moved_by(statement, parameters, given, version)
    ):
        return True
    return compares_with_value(statement.whereclause, version, _rows_of(given, version))


def _rows_of(given: Any, column: Column[Any]) -> tuple[Any, ...]:
    """Return the tables whose columns are of the rows that are written: its parents', too."""
    return (given, column.table) if isinstance(given, Table) else (given,)


def is_guarded(
    statement: Any,
    given: Any,
    version: Column[Any],
    parameters: Collection[str] = (),
    *,
    watched: bool = False,
) -> bool:
    """Return whether the UPDATE or DELETE of the table (or alias) ``given`` overwrites nothing.

    ``parameters``: columns of its table that are set by its parameters. A ``watched`` session moves
    the version of a class that has SQLAlchemy's ``version_id_col``, too.
    """
    if is_checked(statement):
        return True
    added = version_is_added(statement)
    rows = dict.fromkeys(parameters)
    if compares_version(statement, given, version, rows, where_only=added):
        return True
    if isinstance(statement, Delete) or not isinstance(given, Table):
        return False
    return _sets_ignored(statement, given, parameters) or (
        not parameters
        and given not in joined_tables()
        and (
            added
            or version.onupdate is not None
            or (watched and is_of_the_orm(statement))
            or _moves_by_itself(version)
        )
        and _only_adds(statement, version)
    )


def _sets_ignored(statement: Update, table: Any, parameters: Collection[str]) -> bool:
    """Return whether it sets only columns of ``__version_ignore__``."""
    mapper = joined_tables().get(table) or owner_of(table)
    ignored = facts(mapper).ignored if mapper is not None else ()
    keys = {column.key for column in ignored if table == column.table}  # may be annotated
    names = {str(getattr(name, "key", name)) for name in names_set_by(statement)} | {*parameters}
    if version_is_added(statement) and mapper is not None:
        names.discard(mapper.version_id_col.key)  # type: ignore[union-attr]
    return bool(names) and names <= keys


def _moves_by_itself(version: Column[Any]) -> bool:
    mapper = owner_of(version.table)
    return mapper is not None and facts(mapper).by_itself


def _only_adds(statement: Update, version: Column[Any]) -> bool:
    """Return whether it sets columns to themselves, plus or minus a number."""
    return not is_ordered(statement) and all(
        _is_sum(statement.table, getattr(named, "key", named), value)
        for named, value in values_of(statement).items()
        if getattr(named, "key", named) != version.key
    )


def _is_sum(table: Any, key: str, value: Any) -> bool:
    return (
        isinstance(value, BinaryExpression)
        and value.operator in (operators.add, operators.sub)
        and isinstance(value.left, ColumnClause)
        and isinstance(value.right, BindParameter)
        and table == value.left.table
        and key == value.left.key
    )


# -- strict sessions -------------------------------------------------------------------------------


def refuse_unguarded(
    statement: Any, params: Any = None, *, dialect: Callable[[], Dialect | None]
) -> None:
    """Refuse a statement of a strict session that overwrites versioned rows unseen.

    ``dialect`` is asked for a SQL text alone.

    Raises:
        UnguardedStatement: it is such an UPDATE or DELETE, or has one inside, or is such a text.
    """
    if isinstance(statement, StatementLambdaElement):
        statement = resolve_lambda(statement)
    elif isinstance(statement, Compiled) and statement.statement is not None:
        statement = statement.statement
    if isinstance(statement, (Update, Delete)):
        _refuse_change(statement, params)
        refuse_silent_statement(statement, dialect)
    elif (sql := sql_of(statement)) is not None:
        refuse_unguarded_text(sql, dialect())
        return
    for one in inner_writes_of(statement):
        if isinstance(one, (Update, Delete)):
            _refuse_change(one, None)
            refuse_silent_statement(one, dialect)
        elif isinstance(one, Insert):
            refuse_upsert_of_table(one, None)


def refuse_unguarded_text(sql: str, dialect: Dialect | None) -> None:
    """Refuse a SQL text that writes a versioned table without its version."""
    if may_write(sql):
        for problem in problems_of_text(sql, dialect):
            raise UnguardedStatement(f"{problem} Nothing was sent.")
        refuse_silent_text(sql, dialect)


def _refuse_change(statement: Update | Delete, params: Any) -> None:
    for problem in problems_of_change(statement, params):
        raise UnguardedStatement(
            f"{problem} The session is strict; a statement that is meant for rows in any version is"
            " sent by one that is not. Nothing was sent."
        )


def problems_of_change(statement: Update | Delete, params: Any) -> Iterator[str]:
    """Yield a sentence for each table whose rows it writes over what its author has not seen."""
    rows = params if isinstance(params, list) else [params or {}]
    for given in _tables_written(statement):
        table: Any = getattr(given, "element", given)
        columns = getattr(table, "columns", ())
        is_update = isinstance(statement, Update)
        parameters = {name for row in rows for name in row if is_update and name in columns}
        version = version_of_table(table)
        if version is None:
            yield from _uncompared_values(statement, table, parameters)
        elif not is_guarded(statement, given, version, parameters, watched=True):
            yield _not_compared_message(statement, table, version)


def _uncompared_values(statement: Any, table: Any, parameters: Collection[str]) -> Iterator[str]:
    """Yield a sentence if rows are compared by values, and the WHERE leaves some out."""
    if not features_in_use.compared:  # the mappers of the process are many
        return
    mapper = next((one for one in classes_over(table) if facts(one).compares), None)
    if mapper is None:
        return
    deleting = isinstance(statement, Delete)
    names = set() if deleting else {getattr(n, "key", n) for n in names_set_by(statement)}
    changed = {
        name
        for name, column in facts(mapper).columns.items()
        if column.key in {*names, *parameters}
    }
    columns = facts(mapper).columns
    left = [
        name
        for name in sorted(compared_names(mapper, changed=changed, deleting=deleting))
        if not compares_with_value(
            statement.whereclause, columns[name], _rows_of(statement.table, columns[name])
        )
    ]
    if left:
        cls, verb = mapper.class_.__name__, "DELETE" if deleting else "UPDATE"
        yield (
            f"The {verb} of {cls} does not compare {', '.join(left)}: it overwrites what its"
            f" author may not have seen, because rows of {cls} have no version and are compared by"
            " their values. Add these values, as they were read, to its WHERE, or change objects in"
            " a session."
        )
