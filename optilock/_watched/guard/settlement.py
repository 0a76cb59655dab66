"""The end of a guarded flush: every row that missed is settled, or none is.

It runs when SQLAlchemy has sent everything, and before it marks objects clean. If all resolvers
have an answer, the corrections are written and the objects equal the stored rows. If one refuses,
nothing is corrected, and :mod:`optilock._watched.guard.corrections` makes the objects dirty again
afterwards.

Two kinds of rows cannot wait so long. Children that the same flush inserts need their parent before
they come: if the resolver wants a deleted row inserted again, that happens at once. And a changed
child must not refer to a parent that the same flush deletes: a foreign key would refuse the DELETE,
and ``ON DELETE CASCADE`` would take the child along.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.orm import Mapper
from sqlalchemy.orm.exc import StaleDataError

from optilock import events
from optilock._mapped import facts
from optilock._undocumented.flushes import unmark_deleted
from optilock._undocumented.mappers import expire_attribute, mark_changed, mark_unchanged
from optilock._watched.guard.corrections import (
    Correction,
    RefusedEdits,
    delete_rows,
    insert_row,
    plan_update,
    update_rows,
)
from optilock._watched.guard.decisions import decide, resolvers_of
from optilock._watched.guard.dependents import (
    changed_links,
    give_back_to_parent,
    has_deleted_parent,
    has_dependents,
)
from optilock._watched.guard.own_statements import told_as_own
from optilock._watched.guard.records import Flush, with_sqlalchemys_message
from optilock._watched.guard.repeats import remember_missed
from optilock._watched.rows.entries import (
    AFTER_DELETE,
    AFTER_INSERT,
    AFTER_UPDATE,
    Missed,
    equal_to_stored,
    stale_relationships,
)
from optilock._watched.rows.locked import note_locked
from optilock._watched.rows.stored import read_stored
from optilock._watched.rows.touch import stands_for_others
from optilock.errors import ConcurrencyError


def settle(flush: Flush) -> None:
    """Resolve the rows that missed, or remember the error that ``flush()`` will raise."""
    for state in flush.skipped.difference(flush.missed_states):
        unmark_deleted(flush.session, state)  # gone before the flush
    if not flush.misses:
        return
    conflict = tuple(missed.entry for missed in flush.misses)
    events.emit(lambda: events.Conflict(conflict, reason=_reason(flush)))
    error = _decide(flush, flush.misses)
    remember_missed(flush, refused=error is not None)
    if error is None:
        _carry_out(flush, [missed for missed in flush.misses if not missed.restored])
        _show_as_stored(flush)
        _were_not_written(flush, [missed for missed in flush.misses if missed.written is None])
        _tell_written(flush)
        events.emit(lambda: events.Resolved(conflict, resolvers_of(flush.misses, flush.record)))
        return
    error = told_as_own(flush.session, flush.misses, error)
    if isinstance(error, StaleDataError):
        with_sqlalchemys_message(error, flush.short)
    if isinstance(error, ConcurrencyError):
        error.reported = True
    if any(missed.restored or _half_written(flush, missed) for missed in flush.misses):
        raise error  # SQLAlchemy rolls back: what depends on these rows was already written
    _refuse(flush, error)


def _reason(flush: Flush) -> Any:
    """Return whether a client's version was stale, or two transactions have met."""
    promises = flush.record.promises
    demanded = promises and any(promises.demand(one.attempt.place) for one in flush.misses)
    return "precondition" if demanded else "race"


def _refuse(flush: Flush, error: Exception) -> None:
    """Keep the edits of all rows that missed; ``flush()`` raises the error at its end."""
    flush.error = error
    flush.kept = [
        RefusedEdits.of(missed, for_others=_stands_for_others(flush, missed))
        for missed in flush.misses
    ]
    _were_not_written(flush, flush.misses)
    for missed in flush.misses:
        if missed.attempt.action == "delete":
            _not_deleted(flush, missed)
    for kept in flush.kept:
        kept.hide()


def conclude(flush: Flush) -> None:
    """Put refused edits back and raise, or tidy up, after SQLAlchemy has finished."""
    for kept in flush.kept:
        kept.put_back()
    for obj in flush.expunge_later:
        flush.session.expunge(obj)
    if flush.error is not None:
        for gone in flush.gone_links:
            flush.error.add_note(f"optilock: {gone}")
        raise flush.error
    for gone in flush.gone_links:
        raise events.report(gone)


def _stands_for_others(flush: Flush, missed: Missed) -> bool:
    assert flush.uow is not None
    return stands_for_others(missed.state, flush.missed_states, flush.uow.states)


def _were_not_written(flush: Flush, misses: list[Missed]) -> None:
    if misses:
        flush.record.refused({missed.attempt.place for missed in misses}, flush.began)


def _show_as_stored(flush: Flush) -> None:
    """Show rows as they are stored, and unwritten ones as clean, to listeners after the guard."""
    for state, name in flush.expire_later:
        expire_attribute(state, name)
    for missed in flush.misses:
        if missed.written is None and missed.state.key is not None:
            unmark_deleted(flush.session, missed.state)
            mark_unchanged(missed.state)


def _decide(flush: Flush, misses: list[Missed]) -> Exception | None:
    for missed in misses:
        if missed.problem is not None:
            return missed.problem
    error = _decided(flush, misses)
    if error is not None:
        return error
    reasons = [reason for missed in misses if (reason := _cannot_drop(flush, missed))]
    if not reasons:
        return None
    conflict = ConcurrencyError(missed.entry for missed in misses)
    for reason in reasons:
        conflict.add_note(f"optilock: {reason}")
    return conflict


def _decided(flush: Flush, misses: list[Missed]) -> Exception | None:
    """Ask the resolvers; an error that one of them raises is not one of the database."""
    try:
        return decide(misses, flush.record)
    except Exception as error:
        flush.note_outer_error(error)
        raise


def _cannot_drop(flush: Flush, missed: Missed) -> str | None:
    """Return the reason if dropping our edits would have to undo writes that depend on them."""
    resolution, state = missed.resolution, missed.state
    assert resolution is not None
    if missed.attempt.action == "delete":
        if missed.gone or resolution.decision == "overwrite":
            return None
        if has_deleted_parent(flush, missed):
            return f"{missed.entry.describe()}: its parent is deleted in the same flush"
        if not has_dependents(state.mapper):
            return None
        return f"{missed.entry.describe()}: its dependents were deleted in the same flush"
    if resolution.decision != "keep_database":
        return None
    links = ", ".join(changed_links(state))
    return f"{missed.entry.describe()}: its {links} changed in the same flush" if links else None


def _half_written(flush: Flush, missed: Missed) -> bool:
    """Return whether rows were already written that depend on a row that is now not written."""
    if missed.attempt.action == "delete":
        if missed.gone:
            return has_dependents(missed.state.mapper)
        return has_dependents(missed.state.mapper) or has_deleted_parent(flush, missed)
    changes = missed.attempt.changes
    return any(  # a new object that takes over a row sets the key, and it is the same
        key in changes and changes[key] != held
        for key, held in zip(facts(missed.state.mapper).keys, missed.attempt.identity, strict=True)
    )


def _carry_out(flush: Flush, misses: list[Missed]) -> None:
    """Write the decisions about these rows, and make their objects equal to them."""
    flush.correcting = True  # and stays so when it fails
    for (connection, mapper), some in _grouped(misses).items():
        _apply_updates(flush, connection, mapper, [m for m in some if _stays(m)])
        doomed = [m for m in some if not m.gone and not _stays(m)]
        if doomed:
            delete_rows(connection, mapper, doomed, flush.record.demands)
            for missed in doomed:
                missed.written = AFTER_DELETE
        for missed in some:
            if missed.gone:
                _apply_gone(flush, missed)
    flush.correcting = False


def _grouped(misses: Iterable[Missed]) -> dict[tuple[Connection, Mapper[Any]], list[Missed]]:
    groups: dict[tuple[Connection, Mapper[Any]], list[Missed]] = {}
    for missed in misses:
        groups.setdefault((missed.connection, missed.state.mapper), []).append(missed)
    return groups


def _stays(missed: Missed) -> bool:
    """Return whether the row was in the table before, and is afterwards."""
    assert missed.resolution is not None
    if missed.gone:
        return False
    return missed.attempt.action == "update" or missed.resolution.decision != "overwrite"


def _apply_updates(
    flush: Flush, connection: Connection, mapper: Mapper[Any], some: list[Missed]
) -> None:
    if not some:
        return
    rows = [plan_update(missed) for missed in some]
    changed = update_rows(connection, mapper, rows, flush.record.demands)
    for row in changed:
        row.missed.written = AFTER_UPDATE
    if changed and some[0].attempt.known.by_database:
        _read_again(connection, mapper, changed)
    for row in rows:
        missed = row.missed
        if missed.attempt.action == "delete":
            _not_deleted(flush, missed)
        _take_over(flush, row)


def _read_again(connection: Connection, mapper: Mapper[Any], rows: list[Correction]) -> None:
    """Read versions that the database makes, which are known only after the write."""
    stored = read_stored(connection, mapper, [row.missed.attempt.identity for row in rows])
    for row in rows:
        row.missed.stored = stored[row.missed.attempt.identity]
        row.values = {}


def _take_over(flush: Flush, row: Correction) -> None:
    state = row.missed.state
    final, row.missed.after = row.final()
    unknown = [
        name
        for name, column in row.missed.attempt.known.columns.items()
        if row.values and name in state.dict and _computed_later(column, row.values, name)
    ]
    relationships = stale_relationships(state, final)
    equal_to_stored(state, final, flush.uow)
    note_locked(flush.session, state)
    for name in unknown:
        expire_attribute(state, name)
    for name, before in row.replaced.items():
        if name in state.dict:
            mark_changed(state, name, before)  # theirs, then what was written
    flush.expire_later.extend((state, name) for name in relationships)


def _computed_later(column: Any, values: dict[str, Any], name: str) -> bool:
    if name in values:
        return hasattr(values[name], "__clause_element__") or hasattr(values[name], "compile")
    return column.server_onupdate is not None or (
        column.onupdate is not None and column.onupdate.is_clause_element
    )


def _apply_gone(flush: Flush, missed: Missed) -> None:
    assert missed.resolution is not None
    kept = missed.resolution.decision == "keep_database"
    if missed.attempt.action == "update":
        if kept:
            flush.expunge_later.append(missed.obj)
        else:
            _restore(flush, missed)
    elif missed.resolution.decision == "write":
        _not_deleted(flush, missed)
        _restore(flush, missed)


def _not_deleted(flush: Flush, missed: Missed) -> None:
    """Keep SQLAlchemy from treating the object as deleted."""
    assert flush.uow is not None
    flush.uow.states[missed.state] = (False, True)
    if flush.error is None:
        give_back_to_parent(flush, missed.state)
        flush.session.add(missed.obj)  # takes the delete mark off


# -- while the flush is still running --------------------------------------------------------------


def restore_gone(flush: Flush, some: list[Missed]) -> None:
    """Insert again what others of the flush may refer to, if its resolver wants it back.

    Everything else waits for the end of the flush: nothing is corrected if one row is refused.
    """
    gone = [
        missed
        for missed in some
        if missed.gone
        and missed.attempt.action == "update"
        and missed.problem is None
        and _may_be_referred_to(flush, missed)
    ]
    if not gone:
        return
    if _decided(flush, gone) is not None:
        return  # refused: raised at the end, when all conflicts of the flush are known
    flush.correcting = True
    for missed in gone:
        if missed.resolution is not None and missed.resolution.decision != "keep_database":
            _restore(flush, missed)
    flush.correcting = False


def _may_be_referred_to(flush: Flush, missed: Missed) -> bool:
    """Return whether this flush writes rows with a foreign key to the row's tables."""
    assert flush.uow is not None
    own = missed.state.mapper.tables
    if any(
        relationship.secondary is not None for relationship in missed.state.mapper.relationships
    ):
        return True
    return any(
        key.column.table in own and (table not in own or table is key.column.table)
        for mapper in flush.uow.mappers
        for table in mapper.tables
        for key in table.foreign_keys
    )


def _restore(flush: Flush, missed: Missed) -> None:
    """Insert the row again; its object is then like any other that was written."""
    values = missed.after = insert_row(missed.connection, missed)
    state = missed.state
    equal_to_stored(state, values, flush.uow)
    made = [n for n, c in facts(state.mapper).columns.items() if c.computed is not None]
    flush.expire_later.extend((state, name) for name in made if name in state.dict)
    missed.restored = True
    missed.written = AFTER_INSERT


def settle_children(flush: Flush, some: list[Missed]) -> None:
    """Carry out at once the decisions about children of rows that this flush deletes.

    If one is refused, nothing is done: the error is raised when all conflicts are known.
    """
    children = [
        missed
        for missed in some
        if not missed.gone and missed.problem is None and has_deleted_parent(flush, missed)
    ]
    if not children or _decided(flush, children) is not None:
        return
    changed = [
        missed
        for missed in children
        if missed.resolution is not None and missed.resolution.decision != "keep_database"
    ]
    _carry_out(flush, changed)
    for missed in changed:
        missed.restored = True


def _tell_written(flush: Flush) -> None:
    """Call the listeners for the rows that missed, and were written all the same."""
    for missed in flush.misses:
        if missed.written is not None and not missed.told:
            missed.told = True
            mapper = missed.state.mapper
            getattr(mapper.dispatch, missed.written)(mapper, missed.connection, missed.state)
