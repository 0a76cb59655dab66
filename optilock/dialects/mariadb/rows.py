"""MariaDB's form: the rows are locked and looked at, and those that match go out in one statement.

::

    UPDATE (SELECT NULL AS k0, NULL AS w0, NULL AS c0 FROM DUAL WHERE 1 = 0
            UNION ALL VALUES (%s, %s, %s), (%s, %s, %s), …) AS optilock_given
        STRAIGHT_JOIN t FORCE INDEX (PRIMARY)
        ON t.id = optilock_given.k0 AND t.version = optilock_given.w0
    SET t.name = optilock_given.c0, t.version = …

STRAIGHT_JOIN begins with the given rows and finds each by its key. A plain JOIN may begin with the
table if that is small, and InnoDB locks every row that a write has read, wanted or not: it then
waits for rows of other batches, whose writers wait for ours. FORCE INDEX alone does not prevent
it. A DELETE of one table scans as well, and takes no index; the form for several tables does::

    DELETE t FROM t FORCE INDEX (PRIMARY) WHERE (t.id, t.version) IN ((%s, %s), (%s, %s), …)

The drivers send ``executemany`` of an UPDATE row by row, one round trip each. Measured for 1,000
rows on a socket, MariaDB 10.11: ``executemany`` 67 ms, this join 4.2 ms, CASE per column 6.5 ms,
JSON_TABLE 3.8 ms (but values change on their way through JSON). The join compares integers only:
columns of a derived table have a collation of their own, so other keys and tokens keep
``executemany``, and so do values that need further hints for the driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles

from optilock._mapped import Identity
from optilock._undocumented.connections import has_bind_expression
from optilock.conditions.condition import parameter
from optilock.conditions.write import Shape, Write
from optilock.dialects.mariadb.causes import number_of
from optilock.dialects.rows import (
    LockAndLook,
    Locks,
    group_by_shape,
    have_mixed_types,
    judge,
    lock_and_read,
)
from optilock.dialects.values import key_is_one_of, rows_with_keys

#: One statement stays well below ``max_allowed_packet`` (16 MiB by default).
_ROWS = 1000
_BYTES = 1 << 20
#: The server does not take such a statement here, where it takes that of a single row: it is no
#: SQL of it (1064, 1221, 1235), reads too many rows (1104), finds none by a key in "safe updates"
#: (1175), names a key that is not there (1176), or a view that no join changes (1288, 1356, 1393 to
#: 1395), compares what it cannot (1267, 1270, 1271), has too many parameters (1390), or the user
#: may not do that much (1142, 1143).
_REFUSED = {1064, 1104, 1142, 1143, 1175, 1176, 1221, 1235, 1267, 1270, 1271, 1288}
_REFUSED |= {1356, 1390, 1393, 1394, 1395}
#: The rows' name in the statement, which no table of an application should have.
_GIVEN = "optilock_given"


def is_refused(error: DBAPIError) -> bool:
    """Return whether a statement for many rows was refused, and one for a single row may not be."""
    return number_of(error.orig) in _REFUSED


class JoinedRows:
    """Lock, look, and one UPDATE or DELETE for the rows that match."""

    def __init__(self, database: Locks, shapes: tuple[Shape, ...], dialect: sa.Dialect) -> None:
        self._database = database
        self.shape = shapes[0]
        self.dialect = dialect
        self.columns = {name: column for s in shapes for name, column in s.all_sets().items()}
        self.masked = [n for n in self.columns if any(n not in s.all_sets() for s in shapes)]
        extra = self.shape.extra_values(parameter).items()
        self.columns |= {one.key: c for c, one in extra if isinstance(one, sa.BindParameter)}
        self._emptied = [column for column, one in extra if isinstance(one, sa.Null)]
        self._columns_carried = [
            *(condition.column for condition in (*self.shape.keys, *self.shape.matches)),
            *self.columns.values(),
        ]
        self._processors = [
            column.type.dialect_impl(dialect).bind_processor(dialect)
            for column in self._columns_carried
        ]

    def send(self, connection: sa.Connection, writes: list[Write]) -> list[Write]:
        """Write the rows; return those that were changed by others or are gone."""
        translated = connection.get_execution_options().get("schema_translate_map")
        if translated or self._mixed(writes):  # names change in Core statements only
            return LockAndLook(self._database).send(connection, writes)
        matched, missed = judge(self._database, connection, writes)
        for some in _portions(matched):
            if self._together(connection, some) != len(some):
                missed += self._plainly(connection, some)
        return missed

    def _together(self, connection: sa.Connection, some: list[Write]) -> int | None:
        """How many were written; ``None``: the server refuses such a statement, and wrote none."""
        try:
            if self.shape.deletes:
                return self._delete(connection, some)
            return self._update(connection, some)
        except DBAPIError as error:
            if not is_refused(error):
                raise
        return None

    def _plainly(self, connection: sa.Connection, some: list[Write]) -> list[Write]:
        """The rows that are as they were, each in its own statement."""
        form, database = LockAndLook(self._database), self._database
        kept, missed = [], []
        for write in some:  # a look at several may show less
            found = lock_and_read(database, connection, [write])
            if not found and not self.shape.deletes:
                missed.append(write)
            elif any(_is_as_read(write, stored) for stored in found.values()):
                kept.append(write)
        for same in group_by_shape(kept):
            missed += form.write(connection, same[0].shape, same)
        return missed

    def _mixed(self, writes: list[Write]) -> bool:
        """A float beside decimals would make floats of them all."""
        return any(
            have_mixed_types(write.params.get(name) for write in writes) for name in self.columns
        )

    def _delete(self, connection: sa.Connection, writes: list[Write]) -> int:
        compared = (*self.shape.keys, *self.shape.matches)
        rows = [tuple(write.params[c.parameter] for c in compared) for write in writes]
        statement = delete_at(self.shape.table, [c.column for c in compared], rows)
        return int(type(connection).execute(connection, statement).rowcount)

    def _update(self, connection: sa.Connection, writes: list[Write]) -> int:
        try:
            rows = [self._row(write) for write in writes]
        except Exception:  # of a value's type: SQLAlchemy meets it as well, and names the statement
            return len(writes) - len(LockAndLook(self._database).send(connection, writes))
        sql = self._sql(len(rows))
        result = connection.__class__.exec_driver_sql(
            connection, sql, tuple(value for row in rows for value in row)
        )
        return int(result.rowcount)

    def _row(self, write: Write) -> list[Any]:
        params = write.params
        names = [c.parameter for c in (*self.shape.keys, *self.shape.matches)]
        values = [params.get(name) for name in (*names, *self.columns)]
        carried = [
            value if process is None else process(value)
            for value, process in zip(values, self._processors, strict=True)
        ]
        return carried + [name in params for name in self.masked]

    def _sql(self, rows: int) -> str:
        quote = self.dialect.identifier_preparer
        table = quote.format_table(self.shape.table)
        compared = [
            *((c.column, f"k{i}") for i, c in enumerate(self.shape.keys)),
            *((c.column, f"w{i}") for i, c in enumerate(self.shape.matches)),
        ]
        names = [name for _, name in compared]
        names += [f"c{i}" for i in range(len(self.columns))]
        names += [f"m{i}" for i in range(len(self.masked))]
        head = ", ".join(f"NULL AS {name}" for name in names)
        row = "(" + ", ".join(["%s"] * len(names)) + ")"
        matches = " AND ".join(
            f"{table}.{quote.format_column(column)} = {_GIVEN}.{name}" for column, name in compared
        )
        changes = [f"{table}.{quote.format_column(c)} = {sql}" for c, sql in self._changes(table)]
        by_key = f" {BY_PRIMARY}" if has_primary(self.shape.table) else ""
        return (
            f"UPDATE (SELECT {head} FROM DUAL WHERE 1 = 0 UNION ALL VALUES "
            f"{', '.join([row] * rows)}) AS {_GIVEN} STRAIGHT_JOIN {table}"
            f"{by_key} ON {matches} SET {', '.join(changes)}"
        )

    def _changes(self, table: str) -> Iterator[tuple[sa.Column[Any], str]]:
        """SQL of the new value of each column: a row's own, or the stored one if it has none."""
        mask = {name: f"{_GIVEN}.m{i}" for i, name in enumerate(self.masked)}
        for i, (name, column) in enumerate(self.columns.items()):
            value = f"{_GIVEN}.c{i}"
            if name in mask:
                stored = f"{table}.{self.dialect.identifier_preparer.format_column(column)}"
                value = f"CASE WHEN {mask[name]} THEN {value} ELSE {stored} END"
            yield column, value
        yield from self._computed()

    def _computed(self) -> Iterator[tuple[sa.Column[Any], str]]:
        """SQL ``onupdate`` values of the columns that no row sets, and those that end as NULL."""
        yield from ((column, "NULL") for column in self._emptied)
        for column in self.shape.postfetch:
            if column.onupdate is not None:
                yield column, _compiled(column, self.dialect) or ""


def _is_as_read(write: Write, found: tuple[Any, ...]) -> bool:
    """Return whether the row still has its version; a compared row, that it exists."""
    matches = write.shape.matches
    read = tuple(write.params[one.parameter] for one in matches)
    return found[: len(matches)] == read


def _compiled(column: sa.Column[Any], dialect: sa.Dialect) -> str | None:
    """The SQL of a column's ``onupdate``; ``None`` if it needs parameters."""
    default: Any = column.onupdate
    if not default.is_clause_element:
        return None
    compiled = default.arg.compile(dialect=dialect)
    return None if compiled.params else f"({compiled})"


def _portions(writes: list[Write]) -> Iterator[list[Write]]:
    """So many rows that a statement stays small; the rows are locked, so the order is settled."""
    some: list[Write] = []
    size = 0
    for write in writes:
        size += sum(len(v) for v in write.params.values() if isinstance(v, (str, bytes)))
        some.append(write)
        if len(some) == _ROWS or size > _BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some


def joined_rows(database: Locks, writes: list[Write], dialect: Any) -> JoinedRows | None:
    """The form for these rows, or ``None`` where ``executemany`` has to do."""
    if not getattr(dialect, "is_mariadb", False):
        return None
    shapes = tuple(dict.fromkeys(write.shape for write in writes))
    forms, key = shapes[0].forms, frozenset(shapes)
    if key not in forms:
        forms[key] = JoinedRows(database, shapes, dialect) if _usable(shapes, dialect) else None
    form: JoinedRows | None = forms[key]
    return form


def _usable(shapes: tuple[Shape, ...], dialect: sa.Dialect) -> bool:
    compared = (*shapes[0].keys, *shapes[0].matches)
    set_somewhere = {column for shape in shapes for column in shape.all_sets().values()}
    computed = {c for s in shapes for c in s.postfetch if c.onupdate is not None}
    return (
        (shapes[0].deletes or all(isinstance(c.column.type, sa.Integer) for c in compared))
        and not any(has_bind_expression(c.type) for c in set_somewhere)
        and computed.isdisjoint(set_somewhere)
        and all(_compiled(column, dialect) is not None for column in computed)
    )


# -- rows by their keys, without reading other rows ------------------------------------------------
#
# InnoDB locks what it reads. A list of 1,000 values or more becomes a table of its own inside the
# server, after which the server may scan ours from its begin to its end, FORCE INDEX or not
# (``in_predicate_conversion_threshold``;
# https://mariadb.com/kb/en/conversion-of-big-in-predicates-into-subqueries/). Several shorter lists
# are one range of the primary key, in its order.

#: Through the primary key: a scan would lock every row that it reads.
BY_PRIMARY = "FORCE INDEX (PRIMARY)"
#: In the ``info`` of a table.
_WITHOUT = "optilock_without_primary"
#: ER_KEY_DOES_NOT_EXISTS
_NO_SUCH_KEY = 1176
#: In a row of values it compares these as a column is compared, and ASCII. It does not find 'Köln'
#: of a latin1 column there, because the row has the connection's character set.
_ALIKE = (sa.Integer, sa.Numeric, sa.Date, sa.DateTime)

#: A key of two columns counts as two.
_VALUES = 999


def at_keys(
    columns: Sequence[sa.ColumnElement[Any]], keys: Sequence[Identity]
) -> sa.ColumnElement[bool]:
    """``key IN (…)``, or ``key IN (…) OR key IN (…)``."""
    if len(columns) > 1 and any(map(_differs, columns, zip(*keys, strict=True))):
        return key_is_one_of(columns, keys)
    step = _VALUES // len(columns)
    if len(keys) <= step:
        return rows_with_keys(columns, keys)
    return sa.or_(*(rows_with_keys(columns, keys[n : n + step]) for n in range(0, len(keys), step)))


def _differs(column: sa.ColumnElement[Any], values: tuple[Any, ...]) -> bool:
    """Return whether these may be compared differently in rows of values."""
    if isinstance(column.type, _ALIKE):
        return False
    return not all(isinstance(value, str) and value.isascii() for value in values)


class _Name(sa.ColumnElement[Any]):
    """The name of a table; a text could not have every name."""

    inherit_cache = True  # the statement has the table in its key

    def __init__(self, table: sa.Table) -> None:
        self.named = table


@compiles(_Name, "mysql", "mariadb")
def _name(element: _Name, compiler: Any, **options: Any) -> str:
    return str(compiler.preparer.format_table(element.named))


def delete_at(
    table: sa.Table, columns: Sequence[sa.ColumnElement[Any]], keys: Sequence[Identity]
) -> sa.Delete:
    """``DELETE t FROM t FORCE INDEX (PRIMARY) WHERE key IN (…)``."""
    statement = sa.delete(table).prefix_with(_Name(table))
    if has_primary(table):
        statement = statement.with_hint(BY_PRIMARY)
    return statement.where(at_keys(columns, keys))


def has_primary(table: sa.Table) -> bool:
    """Return whether the key of the mapping is the table's PRIMARY KEY, as far as is known.

    It may be a UNIQUE key alone, or the table may be a view: :data:`BY_PRIMARY` is refused then.
    """
    return _WITHOUT not in table.info


def forget_primary(table: sa.Table, error: DBAPIError) -> bool:
    """Return whether a statement was refused because it names the key; later ones omit it."""
    if number_of(error.orig) != _NO_SUCH_KEY or not has_primary(table):
        return False
    table.info[_WITHOUT] = True
    return True
