"""One ``session.execute``, ``scalar`` or ``scalars`` of a watched session, and the rows it finds.

The rows of an UPDATE or DELETE are locked and read before the statement is sent.
:func:`rows_found` reads them with the WHERE of the statement itself, whether it names a class or a
table. A demand is one more column of that SELECT, and one more condition of the statement
(:mod:`optilock._watched.statements.demand_checks`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapper, Session
from sqlalchemy.sql import operators, visitors

from optilock._mapped import Identity, facts
from optilock._undocumented.flushes import is_flushing
from optilock._undocumented.statements import criteria_of, loader_options_of, prefixes_of
from optilock._watched.rows.stored import rows_at
from optilock._watched.session.connections import bind_to_write, own_connection
from optilock._watched.session.record import session_record
from optilock.dialects import database_of
from optilock.dialects.rows import ask_with_hint
from optilock.errors import ConfigurationError

Execute = Callable[..., Any]


@dataclass(frozen=True)
class Call:
    """A statement, its parameters, and the options of its call."""

    session: Session
    #: SQLAlchemy's own method.
    original: Execute
    statement: Any
    params: Any
    options: Mapping[str, Any]

    def send(self) -> Any:
        """Call SQLAlchemy's own method."""
        return self.original(self.session, self.statement, self.params, **self.options)

    def with_statement(self, statement: Any) -> Call:
        """Return the same call with another statement."""
        return replace(self, statement=statement)

    @property
    def chosen(self) -> Mapping[str, Any]:
        """Return the execution options that count."""
        given = self.options.get("execution_options") or {}
        return {**self.statement.get_execution_options(), **given}

    @property
    def is_by_key(self) -> bool:
        """Return whether SQLAlchemy writes rows by primary key, without a WHERE of the program."""
        if not isinstance(self.params, list) or not isinstance(self.statement, sa.Update):
            return False
        return self.chosen.get("dml_strategy", "auto") in ("auto", "bulk")

    @property
    def synchronizes(self) -> bool:
        """Return whether the session is to update its objects."""
        return self.chosen.get("synchronize_session", "auto") is not False

    def connection(self, mapper: Mapper[Any] | None = None) -> sa.Connection:
        """Return its connection, for a statement of the class if given; the transaction begins."""
        binds = {"clause": self.statement} if mapper is None else bind_to_write(mapper)
        return own_connection(self.session, {**binds, **(self.options.get("bind_arguments") or {})})

    @property
    def dialect(self) -> sa.Dialect | None:
        """The dialect of its engine; ``None`` if the session has none for it."""
        try:
            return self.session.get_bind(
                **{"clause": self.statement, **(self.options.get("bind_arguments") or {})}
            ).dialect
        except sa.exc.InvalidRequestError:
            return None

    def flush_before(self) -> None:
        """Write pending changes, unless the call excludes it."""
        flush_before(self.session, {"autoflush": self.session.autoflush, **self.chosen})

    def refuse_elsewhere(self, mapper: Mapper[Any]) -> None:
        """Refuse a statement for another schema than that of the session's objects.

        Its rows are others, though they have the same keys. Objects would take over values and
        versions of rows that are not theirs.

        Raises:
            ConfigurationError: ``schema_translate_map`` is an option of the statement alone.
        """
        chosen = self.chosen
        if "schema_translate_map" not in chosen or not facts(mapper).guarded:
            return
        if _schemas(self.connection(mapper).get_execution_options()) != _schemas(chosen):
            raise ConfigurationError(
                f"The statement of {mapper.class_.__name__} has a schema_translate_map of its own,"
                " and the session reads and writes its objects in another schema: rows of one would"
                " be taken for rows of the other. Give the map to the engine,"
                " engine.execution_options(schema_translate_map=...), or to the connection,"
                " session.connection(execution_options=...). Nothing was sent."
            )


def _schemas(options: Mapping[str, Any]) -> dict[Any, Any]:
    """Return the map, without the key that SQLAlchemy's compiler adds to it (``_none``)."""
    given = options.get("schema_translate_map") or {}
    return {schema: there for schema, there in given.items() if schema != "_none"}


def flush_before(session: Session, options: Mapping[str, Any]) -> None:
    """Write pending changes, unless ``options`` exclude it, or a listener of a flush calls this."""
    if options.get("autoflush", True) and not is_flushing(session):
        session.flush()


@contextmanager
def mark_statement(session: Session, checked: bool = True) -> Iterator[None]:
    """Mark the statement as checked, so that its connection does not check it again."""
    record = session_record(session)
    around = record.run_statement(checked=checked)
    try:
        yield
    finally:
        record.statement_over(around)


# -- the rows that a statement finds ---------------------------------------------------------------

_NONE: Mapping[str, Any] = {}


def rows_found(
    connection: sa.Connection,
    statement: sa.Update | sa.Delete,
    params: Any,
    table: sa.Table,
    keys: list[Any],
    looks: Sequence[Any],
    wanted: Iterable[Identity] | None = None,
    bound: Mapping[str, Any] = _NONE,
    *,
    most: int | None = None,
) -> dict[Identity, tuple[Any, ...]]:
    """Lock the rows that the statement will find, of those ``wanted``, and return ``looks`` by key.

    With a list of parameters all wanted rows are read. ``bound``: parameters of ``looks``.
    ``most``: no more rows than these are read.
    """
    query = sa.select(*keys, *looks).options(*loader_options_of(statement))
    if not isinstance(params, list):
        query = query.where(*criteria_of(statement))
        bound = {**(params or {}), **bound}
    query = query.limit(most)
    database = database_of(connection.dialect)
    database.locks.begin_writing(connection, table)

    def locked() -> sa.Select[Any]:
        return database.locks.lock(query, table, deleting=isinstance(statement, sa.Delete))

    if wanted is None:
        found: Iterable[Any] = ask_with_hint(
            database, table, lambda: connection.execute(locked().order_by(*keys), bound).all()
        )
    else:
        found = rows_at(connection, locked, table, keys, sorted(wanted, key=repr), bound)
    return {tuple(row[: len(keys)]): tuple(row[len(keys) :]) for row in found}


def finds_twice(session: Session, statement: sa.Update) -> bool:
    """Return whether the UPDATE changes exactly the rows that a SELECT with its WHERE has found.

    Not with the criteria of a ``do_orm_execute`` listener, ``UPDATE ... LIMIT``, or functions such
    as ``random()``. A version that the statement did not make must not be taken over: another
    transaction may make it.
    """
    if session.dispatch.do_orm_execute or loader_options_of(statement):
        return False
    if statement.dialect_kwargs or prefixes_of(statement):
        return False
    where = statement.whereclause
    return where is None or not any(
        isinstance(one, (sa.FunctionElement, sa.TextClause)) for one in visitors.iterate(where)
    )


def single_key_of(
    mapper: Mapper[Any], statement: sa.Update | sa.Delete, params: Any
) -> Identity | None:
    """Return the key of the only row that the statement can match, by ``WHERE id = ?``."""
    given = params if isinstance(params, Mapping) else {}
    if params and not given:
        return None  # many rows
    named = {
        one.left: given.get(one.right.key, one.right.value)
        for one in conditions_in(criteria_of(statement))
        if isinstance(one, sa.BinaryExpression)
        and one.operator is operators.eq
        and isinstance(one.right, sa.BindParameter)
    }
    identity = tuple(named.get(column) for column in mapper.primary_key)
    return None if None in identity else identity


def conditions_in(criteria: Iterable[Any]) -> Iterator[Any]:
    """Yield the parts of a WHERE that must all be true."""
    for one in criteria:
        if getattr(one, "operator", None) is operators.and_:
            yield from conditions_in(one.clauses)
        else:
            yield one
