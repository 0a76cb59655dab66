"""Corrections: the writes that resolvers decided, in the same transaction.

A correction is a guarded write like any other. The stored rows were read with a lock, so it is
checked against the version that was just read and cannot miss again; if it does (a trigger, a
rule), that is an error, not another round. The session's demands on its rows apply to corrections,
too: a lease may have ended in the meantime.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ClauseElement, Column, Connection, Table
from sqlalchemy.orm import NO_VALUE, Mapper

from optilock._mapped import Facts, Identity, State, facts
from optilock._mapping.moves import touch_state, version_from
from optilock._mapping.original_values import original_of
from optilock._undocumented.flushes import mark_deleted, states_marked_deleted, unmark_deleted
from optilock._undocumented.mappers import expire_attribute, mark_changed, mark_unchanged
from optilock._watched.rows.entries import Missed, error_if_kept_by_database, sums_of
from optilock._watched.rows.stored import Values, read_stored
from optilock._watched.rows.touch import is_touched, touch_with_next_flush
from optilock._watched.writes.answers import fill_in, onupdate_values
from optilock._watched.writes.send import read_missed, resend, send
from optilock._watched.writes.shapes import shape_by_key
from optilock.conditions.condition import first_explanation
from optilock.conditions.demands import Demands
from optilock.conditions.write import Shape, Write
from optilock.dialects.rows import must_match
from optilock.errors import Computed, ConcurrencyError, OptilockError


@dataclass
class Correction:
    """One stored row, and what it gets."""

    missed: Missed
    #: Attribute -> new value, or SQL expression; empty when the row stays as it is.
    values: Values = field(default_factory=dict)
    #: Attribute -> stored value, of those that get a new one.
    replaced: Values = field(default_factory=dict)
    #: The version moves though no other value changes: the row was touched.
    touched: bool = False

    @property
    def writes(self) -> bool:
        return self.touched or bool(self.values)

    def final(self) -> tuple[Values, Values]:
        """Return the row after the correction: values that SQL computes as they were, and none."""
        computed = {k for k, v in self.values.items() if isinstance(v, ClauseElement)}
        known = {k: v for k, v in self.values.items() if k not in computed}
        final = {**(self.missed.stored or {}), **known}
        return final, {name: value for name, value in final.items() if name not in computed}


def plan_update(missed: Missed) -> Correction:
    """Plan a correction: each column from the side that changed it, then the resolver's values.

    What we add to a column is added in any case, as it is where the row has no other change.
    """
    resolution, attempt = missed.resolution, missed.attempt
    assert resolution is not None and missed.stored is not None
    kept = resolution.decision == "keep_database"
    updates = attempt.action == "update"
    known = attempt.known
    values = {**(_our_values(missed) if updates else {}), **resolution.values}
    wanted = {
        name: missed.expressions[known.columns[name]] if isinstance(value, Computed) else value
        for name, value in values.items()
    }
    changed = {
        name: value
        for name, value in wanted.items()
        if isinstance(value, ClauseElement) or not known.same(name, value, missed.stored[name])
    }
    return Correction(
        missed,
        changed,
        {name: missed.stored[name] for name in changed},
        touched=updates and not kept and not attempt.changes,
    )


def _our_values(missed: Missed) -> Values:
    """Return the values of our side that an update keeps, with the sums of what we add."""
    resolution, attempt, entry = missed.resolution, missed.attempt, missed.entry
    assert resolution is not None and missed.stored is not None
    values: Values = {} if resolution.decision == "keep_database" else {**attempt.changes}
    if values and resolution.decision == "overwrite":  # all columns that belong together are ours
        values.update((name, attempt.current[name]) for name in entry.conflicting)
    if entry.added:
        values.update(sums_of(entry, missed.stored))
    return values


def update_rows(
    connection: Connection, mapper: Mapper[Any], rows: list[Correction], demands: Demands | None
) -> list[Correction]:
    """Write the corrections of one mapper: one statement a table, and one for each expression.

    Return those that write anything.
    """
    rows = [row for row in rows if row.writes]
    together = [row for row in rows if not _has_expression(row)]
    for some in [together, *([row] for row in rows if _has_expression(row))]:
        if some:
            for row in some:
                _move_token(row)
            for table, names in some[0].missed.attempt.known.columns_in.items():
                _update_table(connection, mapper, table, names, some, demands)
    return rows


def _has_expression(row: Correction) -> bool:
    return any(isinstance(value, ClauseElement) for value in row.values.values())


def _move_token(row: Correction) -> None:
    attempt, stored = row.missed.attempt, row.missed.stored
    known, token = attempt.known, attempt.known.token
    assert stored is not None
    if known.by_application:
        assigned = attempt.current[token] != attempt.original[token]
        row.values[token] = (attempt.current if assigned else stored)[token]
    elif token:
        row.values.update(_made(known, stored[token], {**stored, **row.values}))


def _made(known: Facts, before: Any, values: Values) -> Values:
    """Return the version after ``before`` of a row with these values, if Python makes it."""
    if known.mapper.version_id_generator:
        return {known.token: known.next(before)}
    return {known.token: version_from(known.mapper, values)} if known.by_values else {}


def _update_table(
    connection: Connection,
    mapper: Mapper[Any],
    table: Table,
    names: Mapping[str, Column[Any]],
    rows: list[Correction],
    demands: Demands | None,
) -> None:
    """Write the changed columns of all rows; an unchanged one is written as stored."""
    touched = {name for row in rows for name in row.values if name in names}
    expressions: dict[Column[Any], Any] = {
        names[name]: value
        for row in rows
        for name, value in row.values.items()
        if name in names and isinstance(value, ClauseElement)
    }
    if not touched:
        if mapper.version_id_col is None or mapper.version_id_col.table is not table:
            return
        expressions.update(facts(mapper).touch)
    columns = {name: names[name] for name in touched if names[name] not in expressions}
    shape = shape_by_key(
        mapper, table, connection.dialect, columns.values(), expressions, locked=True
    )
    writes = []
    for row in rows:
        write = _write_of(shape, row, columns)
        if shape.prefetch:
            fill_in(write, connection)
            made = {n: c for n, c in names.items() if c in shape.prefetch}
            row.values.update({n: write.params[c.key] for n, c in made.items()})
        writes.append(write)
    missed = [row.missed for row in rows]
    lost = _send(connection, writes, missed, demands)
    if lost:
        why = _kept_by_database(connection, mapper, missed)
        raise why if why is not None else _not_corrected(missed, table, lost)


def _write_of(shape: Shape, row: Correction, columns: dict[str, Column[Any]]) -> Write:
    stored = row.missed.stored
    assert stored is not None
    values = {column.key: row.values.get(n, stored[n]) for n, column in columns.items()}
    return Write(shape, {**values, **_found_by(shape, row.missed)})


def _not_corrected(missed: list[Missed], table: Table, lost: int) -> ConcurrencyError:
    return ConcurrencyError(
        [one.entry for one in missed],
        f"The correction of {len(missed)} row(s) of {table.description} was written to"
        f" {len(missed) - lost}: the rows keep changing, or a trigger or a rule prevents the"
        " write. The transaction is rolled back; run the unit of work again.",
    )


def _kept_by_database(
    connection: Connection, mapper: Mapper[Any], rows: list[Missed]
) -> OptilockError | None:
    """Return the error for the first row that is still as it was read, after its correction."""
    token = facts(mapper).token
    identities = [row.attempt.identity for row in rows]
    if not token or not rows:
        return None
    now = read_stored(connection, mapper, identities, only=(token,), hidden=True)
    for row in rows:
        found, before = now.get(row.attempt.identity), row.stored or {}
        if found is not None and facts(mapper).same(token, found[token], before.get(token)):
            return error_if_kept_by_database(row.attempt, connection)
    return None


def delete_rows(
    connection: Connection, mapper: Mapper[Any], rows: list[Missed], demands: Demands | None
) -> None:
    """Delete rows in the version that is stored now; joined tables first."""
    for table in reversed(facts(mapper).tables):
        shape = shape_by_key(mapper, table, connection.dialect, None, locked=True)
        writes = [Write(shape, _found_by(shape, row)) for row in rows]
        lost = _send(connection, writes, rows, demands)
        if shape.conditions:
            must_match(connection, table, len(rows), len(rows) - lost, deleting=True)


def _found_by(shape: Shape, row: Missed) -> Values:
    stored = row.stored or {}
    return shape.found_by(row.attempt.identity, stored.get(row.attempt.known.token))


def _demanded(demands: Demands, write: Write, rows: Mapping[Identity, Missed]) -> Write:
    """Return the write under the demands; a new object over a row deletes that, too."""
    shape = write.shape
    row = rows[shape.identity_of(write.params)]
    if row.state.key is None and not shape.deletes:
        return demands.with_demands_of_both(write, shape.mapper)
    return demands.with_demands(write, shape.mapper)


def _send(
    connection: Connection, writes: list[Write], rows: list[Missed], demands: Demands | None
) -> int:
    """Write rows under the session's demands; return the number of those that missed.

    Raises:
        Exception: the explanation of a condition that was true when the row was checked.
    """
    shape = writes[0].shape
    by_row = {row.attempt.identity: row for row in rows}
    if demands is not None and shape.table is facts(shape.mapper).table:
        writes = [_demanded(demands, write, by_row) for write in writes]
    lost = send(connection, writes)
    if not lost or not writes[0].shape.demanded:
        return len(lost)
    still = resend(connection, read_missed(demands, connection, shape.mapper, lost))
    for one in still:
        row = by_row[shape.identity_of(one.write.params)]
        why = first_explanation(one.failed, row.entry)
        if why is not None:
            raise why
    return len(still)


def insert_row(connection: Connection, missed: Missed) -> Values:
    """Insert a deleted row again, with our values, in all tables of the mapper.

    Our UPDATE would have filled in the ``onupdate`` values of Python, so the INSERT does.
    """
    mapper, known = missed.state.mapper, missed.attempt.known
    assert missed.resolution is not None
    values = {**missed.attempt.current, **missed.resolution.values}
    token = known.token
    if token:
        _set_token(known, missed, values)
    for table, every in known.columns_in.items():
        names = {n: c for n, c in every.items() if c.computed is None}
        row = {c.key: values[n] for n, c in names.items() if n in values}
        row |= onupdate_values(table, connection, row)
        values.update({n: row[c.key] for n, c in names.items() if c.key in row})
        type(connection).execute(connection, table.insert(), row)
    if token and token not in values:
        identity = mapper.primary_key_from_instance(missed.obj)
        stored = read_stored(connection, mapper, [tuple(identity)], only=(token,))
        values.update(stored[tuple(identity)])
    return values


def _set_token(known: Facts, missed: Missed, values: Values) -> None:
    """Give a row that is inserted again its version, unless the database makes it."""
    token = known.token
    before = missed.attempt.original[token]
    made = _made(known, before, values)
    if not made and known.by_database:
        made = {token: known.again(before)}
        if made[token] is None:
            del values[token], made[token]
    values.update(made)


# -- a refused row keeps its edits -----------------------------------------------------------------


@dataclass(frozen=True)
class RefusedEdits:
    """The edits of a refused row, put back after the flush.

    SQLAlchemy believes that the row was written and marks the object clean. Until then the object
    shows what was loaded, because listeners look at it and none of its edits was written.
    Afterwards the edits are as before: pending values, history, the version that was read. The
    next flush tries the row again, and conflicts again, until it is resolved, refreshed or
    expunged.
    """

    state: State
    #: Held until the object is dirty again: it may have no other reference.
    obj: Any
    token: str
    version: Any
    #: Attribute -> pending value, and attribute -> value before the edit.
    pending: Values
    before: Values
    #: The next version was to be written, even without another change.
    touched: bool = False
    #: ``touch()`` was called for it, or rows that belong to it were written.
    asked: bool = False
    #: An orphan: it was to be deleted without ``session.delete()``, because its parent let it go.
    orphan: bool = False
    #: It was to be deleted by ``session.delete()``.
    deleted: bool = False
    #: Composite values, which are made of the pending ones.
    composites: Values = field(default_factory=dict)

    @classmethod
    def of(cls, missed: Missed, *, for_others: bool = False) -> RefusedEdits:
        """Take the edits before the object is marked clean; ``for_others``: these were written."""
        state, known = missed.state, missed.attempt.known
        token = known.token
        names = [name for name in known.columns if name != token]
        before = {n: state.committed_state[n] for n in names if n in state.committed_state}
        pending = {name: state.dict[name] for name in before if name in state.dict}
        for column, expression in missed.expressions.items():
            name = known.names[column]
            pending[name] = expression
            before[name] = missed.attempt.original.get(name)
        version = missed.attempt.original.get(token) if token else None
        if token and known.by_application:
            before[token], pending[token] = version, missed.attempt.current[token]
        asked = for_others or is_touched(state)
        touched = missed.attempt.action == "update" and (
            missed.touched or asked or not missed.attempt.changes
        )
        return cls(
            state,
            missed.obj,
            token,
            version,
            pending,
            before,
            touched,
            asked,
            _is_orphan(missed),
            _is_deleted(missed),
        )

    def hide(self) -> None:
        """Show what was loaded, unchanged and not deleted, until :meth:`put_back`."""
        state = self.state
        if state.key is None:  # a new object that was to take over a row
            return
        for name in self.pending:
            before = self.before[name]
            if before is NO_VALUE:
                before = original_of(state, name, NO_VALUE)  # changed in place
            if before is NO_VALUE:
                expire_attribute(state, name)
            else:
                state.dict[name] = before
        if self.token:
            state.dict[self.token] = self.version
        for composite in state.mapper.composites:
            if composite.key in state.dict:
                self.composites[composite.key] = state.dict.pop(composite.key)
        mark_unchanged(state)
        if self.deleted and state.session is not None:
            unmark_deleted(state.session, state)

    def put_back(self) -> None:
        """Make the object as dirty as it was, without events or validators."""
        state = self.state
        if self.token:
            state.dict[self.token] = self.version
            state.committed_state.pop(self.token, None)
        for name, value in self.pending.items():
            state.dict[name] = value
            state.expired_attributes.discard(name)
            mark_changed(state, name, self.before[name])
        state.dict.update(self.composites)
        if self.touched and self.token:
            (touch_with_next_flush if self.asked else touch_state)(state)
        if self.orphan and state.session is not None:
            state.session.delete(self.obj)  # its parent has let it go, and reports that once
        if self.deleted and state.key is not None and state.session is not None:
            mark_deleted(state.session, state, self.obj)


def _is_orphan(missed: Missed) -> bool:
    return missed.attempt.action == "delete" and not _is_deleted(missed)


def _is_deleted(missed: Missed) -> bool:
    session = missed.state.session
    return session is not None and missed.state in states_marked_deleted(session)
