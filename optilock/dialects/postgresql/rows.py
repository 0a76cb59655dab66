"""PostgreSQL's set form: the rows of one table in one statement.

::

    WITH held AS MATERIALIZED (
        SELECT v.*, t.version AS stored
        FROM unnest(:keys, :expected, :values …) AS v JOIN t ON t.id = v.id
        ORDER BY t.id FOR NO KEY UPDATE OF t),
    written AS (
        UPDATE t SET … FROM held WHERE t.id = held.id AND held.stored = held.expected RETURNING 1)
    SELECT (how many were locked), (how many were written)
    UNION ALL SELECT the places in the arrays of the rows whose stored token is another one

The rows are locked in key order by the statement itself: sorted input alone does not order the
locks, and two statements on one table are two orders. FOR NO KEY UPDATE, because FOR UPDATE would
block the foreign-key checks of other transactions' children. Rows of different column sets share
the statement: a column that not every row sets has a boolean array beside it.

Values travel in arrays (:mod:`~optilock.dialects.postgresql.arrays`). For a type that no array can
carry, the form of other databases is used.

The answer names rows by their place in the arrays: keys may come back as other values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.types import TypeEngine

from optilock.conditions.condition import (
    Condition,
    Given,
    demanded_parameters,
    parameter,
    parameter_name,
)
from optilock.conditions.write import Params, Shape, Write, mark_checked
from optilock.dialects.postgresql.arrays import Carrier, array_of, carrier_of, is_padded
from optilock.dialects.rows import (
    LockAndLook,
    Locks,
    execute_unguarded,
    have_mixed_types,
    must_match,
)
from optilock.dialects.waits import LONGEST_PAUSE
from optilock.errors import Entry

#: A parameter that is called as a column would be taken for a new value of that column.
_OWN = "optilock_"


class SetForm:
    """The statement for one combination of shapes, and its parameters."""

    def __init__(
        self,
        database: Locks,
        shapes: tuple[Shape, ...],
        carriers: dict[sa.Column[Any], Carrier],
        *,
        locked: bool,
    ) -> None:
        self._database, self._locked = database, locked
        first = shapes[0]
        self.shape = first
        self.columns = {
            name: column for shape in shapes for name, column in shape.all_sets().items()
        }
        #: Columns that some rows leave alone.
        self.masked = [
            name for name in self.columns if any(name not in s.all_sets() for s in shapes)
        ]
        self.carriers = carriers
        self.statement = self._statement()

    def send(self, connection: sa.Connection, writes: list[Write]) -> list[Write]:
        """Write the rows; return those that were changed or are gone."""
        places = self.places(writes)
        if places is None:
            return LockAndLook(self._database).send(connection, writes)
        counts, *answers = execute_unguarded(connection, self.statement, places).all()
        _, locked, written = counts
        stale = {place for place, differs, _ in answers if differs}
        must_match(
            connection, self.shape.table, locked - len(stale), written, deleting=self.shape.deletes
        )
        if locked < len(writes):  # then the answer names every row that was locked
            stale |= set(range(1, len(writes) + 1)) - {place for place, *_ in answers}
        return [writes[place - 1] for place in sorted(stale)]

    def places(self, writes: list[Write]) -> dict[str, Any] | None:
        """The parameters; ``None`` where drivers refuse such arrays, or a type refuses a value."""
        try:
            arrays = self._arrays(writes)
        except Exception:  # SQLAlchemy meets it as well, and names the statement
            return None
        if any(have_mixed_types(values) for values in arrays.values()):
            return None
        places = {**arrays, f"{_OWN}sent": len(writes)}
        if self.shape.demanded:
            places |= demanded_parameters(writes[0].params)
        return places

    def _arrays(self, writes: list[Write]) -> dict[str, list[Any]]:
        params = [write.params for write in writes]
        arrays: dict[str, list[Any]] = {}
        for place, condition in self._compared().items():
            values = [row[condition.parameter] for row in params]
            arrays[place] = self.carriers[condition.column].values(values)
        for place, (name, column) in self._set().items():
            values = [row.get(name) for row in params]
            arrays[place] = self.carriers[column].values(values)
        for place, name in self._masks().items():
            arrays[place] = [name in row for row in params]
        for place, name in self._each().items():
            key = parameter_name(name)
            arrays[place] = [row[key] for row in params]
        return arrays

    # The carried columns, after _OWN: k0 … keys, w0 … expected, c0 … new values, m0 … masks,
    # e0 … what a demanded condition asks of each row.

    def _compared(self) -> dict[str, Any]:
        keys = {f"{_OWN}k{i}": key for i, key in enumerate(self.shape.keys)}
        return keys | {f"{_OWN}w{i}": c for i, c in enumerate(self.shape.matches)}

    def _set(self) -> dict[str, tuple[str, sa.Column[Any]]]:
        return {f"{_OWN}c{i}": item for i, item in enumerate(self.columns.items())}

    def _masks(self) -> dict[str, str]:
        return {f"{_OWN}m{i}": name for i, name in enumerate(self.masked)}

    def _each(self) -> dict[str, str]:
        return {f"{_OWN}e{i}": name for i, name in enumerate(self.shape.row_parameters)}

    def _statement(self) -> Any:
        held = self._held()
        compared = range(len(self.shape.matches))
        stands = [held.c[f"{_OWN}stands"]] if self.shape.demanded else []
        locked = sa.select(sa.func.count()).select_from(held).scalar_subquery()
        count = sa.select(sa.func.count()).select_from(self._written(held)).scalar_subquery()
        differs = sa.or_(
            sa.false(),
            *(held.c[f"{_OWN}s{i}"].is_distinct_from(held.c[f"{_OWN}w{i}"]) for i in compared),
            *(sa.not_(one) for one in stands),
        )
        place = held.c[f"{_OWN}place"]
        return sa.union_all(
            sa.select(
                sa.cast(sa.null(), sa.BigInteger).label("place"),
                locked.label("a"),
                count.label("b"),
            ),
            sa.select(place, sa.case((differs, 1), else_=0), sa.literal_column("0")).where(
                sa.or_(differs, locked < sa.bindparam(f"{_OWN}sent", type_=sa.Integer))
            ),
        )

    @cached_property
    def or_error(self) -> Any:
        """The statement that writes all rows, or raises an error (:func:`all_or_error`)."""
        return all_or_error(
            self._written(self._held()), sa.bindparam(f"{_OWN}sent", type_=sa.Integer)
        )

    def _written(self, held: Any) -> Any:
        """The change of the rows whose conditions are all true."""
        shape, table = self.shape, self.shape.table
        found = sa.and_(
            *(key.column == held.c[f"{_OWN}k{i}"] for i, key in enumerate(shape.keys)),
            *(held.c[f"{_OWN}s{i}"] == held.c[f"{_OWN}w{i}"] for i in range(len(shape.matches))),
            *([held.c[f"{_OWN}stands"]] if shape.demanded else []),
        )
        if self._locked:  # by another statement: the row itself is compared once more
            given = enumerate(shape.matches)
            found = sa.and_(found, *(c.column == held.c[f"{_OWN}w{i}"] for i, c in given))
        change: sa.Delete | sa.Update
        if shape.deletes:
            change = mark_checked(sa.delete(table).where(found))
        else:
            change = mark_checked(sa.update(table).values(self._values(held)).where(found))
        return change.returning(sa.literal_column("1").label("one")).cte("optilock_written")

    def _kinds(self) -> tuple[dict[str, TypeEngine[Any]], dict[str, TypeEngine[Any]]]:
        """Return the types of the values by place, and the types of their arrays."""
        each = {place: self.shape.row_parameters[name] for place, name in self._each().items()}
        kinds = {place: self.carriers[c.column].type for place, c in self._compared().items()}
        kinds |= {place: self.carriers[column].type for place, (_, column) in self._set().items()}
        kinds |= {place: sa.Boolean() for place in self._masks()}
        arrays: dict[str, TypeEngine[Any]] = {place: ARRAY(one) for place, one in kinds.items()}
        arrays |= {place: array_of(kind) for place, kind in each.items()}
        return {**kinds, **each}, arrays

    def _held(self) -> Any:
        shape, table = self.shape, self.shape.table
        kinds, arrays = self._kinds()
        given = (
            sa.func.unnest(*(sa.bindparam(place, type_=kind) for place, kind in arrays.items()))
            .table_valued(
                *(sa.Column(place, kind) for place, kind in kinds.items()),
                name="given",
                with_ordinality=f"{_OWN}place",
            )
            .render_derived()
        )
        keys = list(enumerate(shape.keys))
        held = (
            sa.select(
                *given.c,
                *(c.column.label(f"{_OWN}s{i}") for i, c in enumerate(shape.matches)),
                *self._stands(given),
            )
            .select_from(
                given.join(
                    table, sa.and_(*(key.column == given.c[f"{_OWN}k{i}"] for i, key in keys))
                )
            )
            .order_by(*(key.column for key in shape.keys))
        )
        if not self._locked:
            held = held.with_for_update(of=table, key_share=not shape.deletes)
        return held.cte("optilock_held").prefix_with("MATERIALIZED")

    def _stands(self, given: Any) -> list[Any]:
        """Return the session's demands on the row as SQL; NULL counts as false."""
        each = {name: given.c[place] for place, name in self._each().items()}

        def value(name: str, kind: TypeEngine[Any]) -> sa.ColumnElement[Any]:
            return each[name] if name in each else parameter(name, kind)

        clauses = [one.clause(value) for one in self.shape.demanded]
        return (
            [sa.func.coalesce(sa.and_(*clauses), sa.false()).label(f"{_OWN}stands")]
            if clauses
            else []
        )

    def _values(self, held: Any) -> dict[sa.Column[Any], Any]:
        masks = {name: held.c[place] for place, name in self._masks().items()}
        values: dict[sa.Column[Any], Any] = {}
        for place, (name, column) in self._set().items():
            value = self.carriers[column].restored(held.c[place])
            if name in masks:
                untouched = column if column.onupdate is None else _onupdate(column)
                value = sa.case((masks[name], value), else_=untouched)
            values[column] = value
        each = {name: held.c[place] for place, name in self._each().items()}
        values |= self.shape.extra_values(lambda name, kind: each[name])
        return values


def _onupdate(column: sa.Column[Any]) -> Any:
    """Return the value for rows that do not set the column: the SQL ``onupdate``, or their own."""
    default: Any = column.onupdate
    return default.arg if default.is_clause_element else column


def set_form(
    database: Locks, writes: list[Write], dialect: sa.Dialect, *, locked: bool = False
) -> SetForm | None:
    """The set form for these rows, built once for each combination of shapes."""
    shapes = tuple(dict.fromkeys(write.shape for write in writes))
    forms = shapes[0].forms
    key = frozenset(shapes), locked
    if key not in forms:
        forms[key] = _build(database, shapes, dialect, locked=locked)
    form: SetForm | None = forms[key]
    return form


def _build(
    database: Locks, shapes: tuple[Shape, ...], dialect: sa.Dialect, *, locked: bool
) -> SetForm | None:
    columns = {condition.column for condition in (*shapes[0].keys, *shapes[0].matches)}
    if any(is_padded(column.type, dialect) for column in columns):
        return None
    columns |= {column for shape in shapes for column in shape.all_sets().values()}
    carriers = {column: carrier_of(column.type, dialect) for column in columns}
    usable = {column: carrier for column, carrier in carriers.items() if carrier is not None}
    if len(usable) < len(columns):
        return None
    return SetForm(database, shapes, usable, locked=locked)


# -- writes that wait only briefly for a lock ------------------------------------------------------
#
# They are for units that run again and lock their rows first. PostgreSQL looks for a deadlock after
# a wait of one second (``deadlock_timeout``), and until then all transactions that want one of the
# rows stand still. A unit that has locked some rows and writes others may be half of a deadlock;
# and another transaction that has such a row is nearly always about to write it, so the unit would
# miss it anyway.
#
# So such writes set ``lock_timeout`` for the rest of the transaction, in their own WHERE: it is
# evaluated before the row is waited for, and costs no statement. A limit of the application's own
# stays. (https://www.postgresql.org/docs/current/runtime-config-client.html#GUC-LOCK-TIMEOUT)

#: Milliseconds; a COMMIT that is on its way over a network has arrived by then.
_LONGEST = 20
#: For locks that PostgreSQL would wait for without end; a limit that no program would write.
BOUND = "9999ms"
_CLAUSE = (
    f"CASE WHEN current_setting('lock_timeout') IN ('0', '{BOUND}')"
    f" THEN set_config('lock_timeout', '{_LONGEST}ms', true) IS NOT NULL ELSE true END"
)


@dataclass(frozen=True)
class WaitsBriefly(Condition):
    """True of every row."""

    def clause(self, given: Given) -> sa.ColumnElement[bool]:
        return sa.literal_column(_CLAUSE, sa.Boolean())

    @property
    def looks(self) -> tuple[sa.ColumnElement[Any], ...]:
        return ()

    def holds(self, params: Any, seen: Any) -> bool:
        return True

    def explain(self, entry: Entry[Any]) -> Exception | None:
        return None


BRIEFLY = (WaitsBriefly(),)
#: The demands on a row that a statement for a single row can carry.
PLAIN: tuple[tuple[Condition, ...], ...] = ((), BRIEFLY)


def _limits(*settings: tuple[str, str]) -> sa.ColumnElement[bool]:
    """Return a condition, true of every row, that sets what has no limit yet."""
    texts = (
        f"CASE current_setting('{name}') WHEN '0'"
        f" THEN set_config('{name}', '{limit}', true) IS NOT NULL ELSE true END"
        for name, limit in settings
    )
    return sa.literal_column(" AND ".join(texts), sa.Boolean())


#: For reads that lock, in their WHERE.
BOUNDED = _limits(("lock_timeout", BOUND))
#: For those whose lock was only learned. A program may wait, outside of the database, for another
#: session that waits for this lock, and the server sees one idle transaction and one that waits.
#: (https://www.postgresql.org/docs/current/runtime-config-client.html)
BOUNDED_LOCKS = _limits(
    ("lock_timeout", BOUND),
    ("idle_in_transaction_session_timeout", f"{round(1000 * LONGEST_PAUSE)}ms"),
)


# -- statements that write all of their rows, or raise an error and write none ---------------------
#
# COMMIT is sent behind the last writes before their row counts are known. So the server must judge:
# after an error it skips what follows. SQL has no statement that raises an error, but a text that
# is not a number cannot be cast to one, and an error of that kind (22P02) contains the text.

#: The text of the error. PostgreSQL writes it into its log as well.
MARK = "optilock: rows were changed or deleted by others, so nothing was written"
_NOT_A_NUMBER = "22P02"

#: A parameter that is called as a column would be taken for a new value of that column.
_PARAMETER = "optilock_"


def all_or_error(written: Any, expected: Any, *shown: Any) -> Any:
    """The statement around a change with RETURNING: as many rows as ``expected``, or an error.

    Its row ends with the columns ``shown`` of the change of a single row.
    """
    count = sa.select(sa.func.count()).select_from(written).scalar_subquery()
    judged = sa.case(
        (count == expected, sa.literal_column("'0'")), else_=sa.literal_column(f"'{MARK}'")
    )
    return sa.select(
        sa.cast(judged, sa.Integer), *(sa.select(one).scalar_subquery() for one in shown)
    )


def is_mark(error: BaseException) -> bool:
    """Return whether it is the error of such a statement."""
    return getattr(error, "sqlstate", None) == _NOT_A_NUMBER and MARK in str(error)


def sum_or_error(shape: Shape, statement: Any) -> Any:
    """The statement around one that adds to a row of the shape, and returns the stored values."""
    if "sum_or_error" not in shape.forms:
        written = statement.cte("optilock_written")
        shape.forms["sum_or_error"] = all_or_error(written, sa.literal_column("1"), *written.c)
    return shape.forms["sum_or_error"]


class _OneRow(NamedTuple):
    statement: Any
    #: Its parameters, by those of the write.
    names: Mapping[str, str]


def one_or_error(write: Write) -> tuple[Any, Params]:
    """The statement for a single row of a plain shape, and its parameters."""
    shape, params = write
    known: _OneRow | None = shape.forms.get("or_error")
    if known is None:
        known = shape.forms["or_error"] = _one_row(shape)
    return known.statement, {ours: params[theirs] for theirs, ours in known.names.items()}


def _one_row(shape: Shape) -> _OneRow:
    names: dict[str, str] = {}

    def given(name: str, kind: Any) -> Any:
        ours = names.setdefault(name, f"{_PARAMETER}{len(names)}")
        return sa.bindparam(ours, type_=kind)

    where = [
        *(one.column == given(one.parameter, one.column.type) for one in shape.keys),
        *(one.column == given(one.parameter, one.column.type) for one in shape.matches),
        *(one.clause(parameter) for one in shape.demanded),
    ]
    values = {column: given(name, column.type) for name, column in shape.all_sets().items()}
    change = sa.update(shape.table).where(*where).values(values)
    written = change.returning(sa.literal_column("1").label("one")).cte("optilock_written")
    return _OneRow(all_or_error(written, sa.literal_column("1")), names)
